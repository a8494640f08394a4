"""Pages that are bounded in bytes as well as in number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import Request

from penstock.log.record import Record
from penstock.queue.entry import Entry, HistoryRow

FIRST_STEP = 16


def page_of(request: Request, find: Callable[..., list[Any]], after: int, most: int) -> tuple[list[Any], int | None]:
    """A page of entries or rows, and the ``after`` of the next page.

    They are read in steps: a thousand large payloads at once could exhaust the memory.
    """
    page_bytes: int = request.app.state.settings.page_bytes
    items: list[Any] = []
    size, step = 0, min(most, FIRST_STEP)
    while True:
        read = find(after=after, limit=step)
        for item in read:
            size += size_of(item)
            if items and size > page_bytes:
                return items, items[-1].seq
            items.append(item)
        if len(read) < step:
            return items, None
        if len(items) == most:
            return items, items[-1].seq
        after, step = items[-1].seq, next_step(size, len(items), page_bytes, most)


def size_of(item: Entry[Any] | HistoryRow | Record[Any]) -> int:
    """About how many bytes an item adds to an answer: its payload, and the texts that come with it."""
    if isinstance(item, Record):
        texts: tuple[str | None, ...] = (item.key,)
    else:
        texts = (item.error, item.traceback, *item.labels, *item.labels.values())
    headers = sum(len(name) + len(value) for name, value in item.headers.items())
    return len(item.payload or b"") + headers + sum(len(text or "") for text in texts)


def next_step(size: int, count: int, page_bytes: int, most: int) -> int:
    """How many to read next, if they are as large as those read so far."""
    fitting = max(1, (page_bytes - size) * count // max(size, 1))
    return max(1, min(most - count, fitting))

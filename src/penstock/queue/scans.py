"""Scans in the order of sequence numbers, for drivers whose database has no shorter way to the same answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from penstock.clock import Micros
from penstock.queue.entry import AttemptState, Entry, HistoryRow
from penstock.queue.protocol import EndedCount, Find, Part

if TYPE_CHECKING:
    from penstock.queue.driver import Driver

PAGE = 1000
MOST_COUNTED = 5_000  # rows of the history that are looked through to count them
NEWEST_DEAD = 10_000  # dead letters that are looked through for a unique id


def rows_between(driver: Driver, part: Part, where: Find, until: int) -> list[tuple[Any, ...]]:
    """Rows with ``where.after < seq <= until``, as plain columns; see :meth:`Driver.rows`."""
    rows: list[tuple[Any, ...]] = []
    after = where.after
    while len(rows) < where.limit:
        asked = min(PAGE, where.limit - len(rows))
        page = _read(driver, part, replace(where, after=after, limit=asked))
        inside = [entry for entry in page if entry.seq <= until]
        rows += map(row_of, inside)
        if len(page) < asked or len(inside) < len(page):
            break
        after = page[-1].seq
    return rows


def last_seq(driver: Driver, part: Part) -> int:
    """The highest sequence number that is in use; 0 for nothing at all."""
    return max((entry.seq for entry in _read(driver, part, Find(limit=1, newest_first=True))), default=0)


def ids_with_unique(driver: Driver, key: str, limit: int) -> list[str]:
    """Ids, sorted, of entries that hold a unique id, and of recent dead letters that held it."""
    ids = {hold.id for hold in driver.holds() if hold.key == key}
    after = 0
    for _ in range(0, NEWEST_DEAD, PAGE):
        page = driver.dead(Find(after=after, limit=PAGE, newest_first=True))
        ids.update(letter.id for letter in page if letter.unique == key)
        if len(page) < PAGE:
            break
        after = page[-1].seq
    return sorted(ids)[:limit]


def count_ended(driver: Driver, since_us: Micros) -> list[EndedCount] | None:
    """Ended attempts since a time, by queue and outcome, if they are few."""
    counted: Counter[tuple[str, AttemptState]] = Counter()
    where = Find(from_us=since_us, limit=PAGE, newest_first=True)
    while page := driver.history(where):
        counted.update((row.queue, row.state) for row in page)
        if counted.total() > MOST_COUNTED:
            return None
        if len(page) < PAGE:
            break
        where = replace(where, after=page[-1].seq)
    return [EndedCount(queue, state, count) for (queue, state), count in counted.items()]


def _read(driver: Driver, part: Part, where: Find) -> Sequence[Entry[Any] | HistoryRow]:
    if part == "live":
        return driver.find(where)
    return driver.dead(where) if part == "dead" else driver.history(where)


def row_of(entry: Entry[Any] | HistoryRow) -> tuple[Any, ...]:
    """An entry, a dead letter or a row of the history, as bulk readers get it."""
    if isinstance(entry, HistoryRow):
        owner, started = entry.owner, entry.started_us
    else:
        owner, started = (None, None) if entry.lease is None else (entry.lease.owner, entry.lease.claimed_us)
    return (
        entry.seq, entry.id, entry.queue, entry.state, entry.generation, entry.attempt, owner, entry.created_us,
        entry.due_us, started, entry.ended_us, entry.error, _json(entry.labels), _json(entry.headers), entry.codec,
        entry.type, entry.payload,
    )  # fmt: skip


def _json(texts: dict[str, str]) -> str | None:
    return msgspec.json.encode(texts).decode() if texts else None

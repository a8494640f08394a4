"""Search over all queues: entries by id or a part of it, by unique id, by label, and by what their error mentions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.clock import Micros
from penstock.errors import BadInput, EntryNotFound
from penstock.queue.entry import Entry, HistoryRow, error_alone
from penstock.queue.options import check_searched
from penstock.queue.protocol import Find

if TYPE_CHECKING:
    from penstock.queue.queues import QueueStore


SHORTEST_PART = 4
MOST_CANDIDATES = 200  # ids that are looked at for a part of one
SHOWN_CANDIDATES = 10
MOST_SCANNED = 20_000  # rows of each kind that are looked through for a text in an error
PAGE = 1000

Read = Callable[[Find], Sequence[Entry[Any] | HistoryRow]]


class Hit(msgspec.Struct, frozen=True):
    """Where an entry was found, and by what."""

    id: str
    queue: str
    state: str
    by: str  # id, unique id, label or error
    at_us: Micros  # when it is due, or ended
    labels: dict[str, str]
    unique: str | None = None
    error: str | None = None


def search(
    store: QueueStore,
    text: str = "",
    *,
    labels: dict[str, str] | None = None,
    error: str = "",
    family: str | None = None,
    limit: int = 50,
) -> list[Hit]:
    """Entries of all queues, or of a family.

    ``text`` is an id, the beginning or end of one, or a unique id. Every hit also has the labels, and an error that
    mentions ``error``, ignoring case. Live entries come first, then dead letters, then what has ended.
    """
    where = Find(family=family, labels=check_searched(labels or {}), limit=limit)
    if text:
        return _by_text(store, text, where, error)[:limit]
    if error:
        return _hits(_mentioning(store, where, error, limit), "error", limit)
    if labels:
        return _hits((row for read in _reads(store) for row in read(where)), "label", limit)
    raise BadInput("nothing to search for was given.", hint="Give an id, a unique id, a label or a text of the error.")


def resolve_id(store: QueueStore, text: str, *, queue: str | None = None) -> str:
    """The id that a text stands for: the id itself, or the beginning or end of exactly one.

    Looks in one queue, or in all. Raises ``EntryNotFound`` without a match and ``BadInput`` with the candidates if
    there are several.
    """
    hits = _by_id(store, text, Find(queue=queue))
    where = "" if queue is None else f" in queue {queue!r}"
    if not hits:
        raise EntryNotFound(
            f"there is no entry {text!r}{where}.",
            hint="It has ended and its history was removed, or its id has a slip. "
            f"A part of an id has {SHORTEST_PART} characters or more.",
        )
    if len(hits) > 1:
        shown = ", ".join(f"{hit.id} ({hit.state} in {hit.queue})" for hit in hits[:SHOWN_CANDIDATES])
        more = f" and {len(hits) - SHOWN_CANDIDATES} more" if len(hits) > SHOWN_CANDIDATES else ""
        raise BadInput(f"{text!r} is a part of several ids{where}: {shown}{more}.", hint="Give more of the id.")
    return hits[0].id


# --- inside ----------------------------------------------------------------------------------------


def _by_text(store: QueueStore, text: str, where: Find, error: str) -> list[Hit]:
    """The cheapest search first: ids and their beginnings are in an index, their ends need a scan."""
    hits = _with_ids(store, [text], where, "id")
    if not hits:
        by_both = [*_by_part(store, text, where, at_end=False), *_by_unique(store, text, where)]
        hits = list({hit.id: hit for hit in reversed(by_both)}.values())[::-1]
    if not hits:
        hits = _by_part(store, text, where, at_end=True)
    return [hit for hit in hits if mentions(hit.error, error)]


def _by_id(store: QueueStore, text: str, where: Find) -> list[Hit]:
    return (
        _with_ids(store, [text], where, "id")
        or _by_part(store, text, where, at_end=False)
        or _by_part(store, text, where, at_end=True)
    )


def _by_part(store: QueueStore, text: str, where: Find, *, at_end: bool) -> list[Hit]:
    if len(text) < SHORTEST_PART:
        return []
    candidates = store.driver.ids_like(text, at_end=at_end, limit=MOST_CANDIDATES)
    return _with_ids(store, candidates, where, "id")


def _by_unique(store: QueueStore, text: str, where: Find) -> list[Hit]:
    return _with_ids(store, store.driver.ids_with_unique(text, limit=MOST_CANDIDATES), where, "unique id")


def _with_ids(store: QueueStore, ids: Sequence[str], where: Find, by: str) -> list[Hit]:
    """The entries with these ids, each once, as it is now."""
    if not ids:
        return []
    chosen = msgspec.structs.replace(where, ids=tuple(ids), limit=len(ids))
    hits: dict[str, Hit] = {}
    for entry in (*store.driver.find(chosen), *store.driver.dead(chosen)):
        hits.setdefault(entry.id, _hit(entry, by))
    ended = tuple(id_ for id_ in ids if id_ not in hits)
    if ended:
        history = msgspec.structs.replace(chosen, ids=ended, limit=100 * len(ended), newest_first=True)
        for row in store.driver.history(history):
            hits.setdefault(row.id, _hit(row, by))
    return sorted(hits.values(), key=lambda hit: hit.id)


def _reads(store: QueueStore) -> tuple[Read, ...]:
    def ended(where: Find) -> list[HistoryRow]:
        return store.driver.history(msgspec.structs.replace(where, newest_first=True))

    return store.driver.find, store.driver.dead, ended


def _mentioning(store: QueueStore, where: Find, error: str, limit: int) -> Iterator[Entry[Any] | HistoryRow]:
    newest = msgspec.structs.replace(where, newest_first=True)
    matches = 0
    for read in _reads(store):
        for row in _pages(read, newest, MOST_SCANNED):
            if mentions(row.error, error):
                yield row
                matches += 1
        if matches >= limit:
            return


def _pages(read: Read, where: Find, most: int) -> Iterator[Entry[Any] | HistoryRow]:
    """Rows in order, page by page, up to a limit."""
    after = 0
    for _ in range(0, most, PAGE):
        page = read(msgspec.structs.replace(where, after=after, limit=PAGE))
        yield from page
        if len(page) < PAGE:
            return
        after = page[-1].seq


def _hits(rows: Iterator[Entry[Any] | HistoryRow], by: str, limit: int) -> list[Hit]:
    """Each entry once. The first hit says most."""
    hits: dict[str, Hit] = {}
    for row in rows:
        hits.setdefault(row.id, _hit(row, by))
        if len(hits) >= limit:
            break
    return list(hits.values())


def _hit(row: Entry[Any] | HistoryRow, by: str) -> Hit:
    at_us = row.ended_us if row.ended_us is not None else row.due_us
    unique = row.unique if isinstance(row, Entry) else None
    return Hit(row.id, row.queue, row.state, by, at_us, row.labels, unique, error_alone(row.error))


def mentions(error: str | None, text: str) -> bool:
    """Whether a stored error contains a text, ignoring case. The traceback behind it does not count."""
    alone = error_alone(error)
    return not text or (alone is not None and text.lower() in alone.lower())

"""What a handler returned, and how far one has come: for those who put the entry."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.clock import Micros
from penstock.codec import changed_by_json, prepared
from penstock.errors import EntryNotFound, PayloadTooLarge, Undecodable
from penstock.ids import derived_id
from penstock.queue.batch import LABEL
from penstock.queue.entry import FINAL, Entry, HistoryRow, Lease, error_alone
from penstock.queue.protocol import DocumentWrite, Find, NewResult

if TYPE_CHECKING:
    from penstock.queue.queues import QueueStore

MOST_BYTES = 64 * 1024
PROGRESS = "penstock.progress."
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.25  # seconds between two looks
PAGE = 1000
CODEC = "json"
_encode = msgspec.json.Encoder().encode
RETURN_JSON = "Return numbers, text, lists, dicts with keys of text, or objects with such fields."


class Result(msgspec.Struct, frozen=True):
    """What has become of an entry. ``state`` is final, or where the entry was when the time to wait was over."""

    id: str
    state: str
    error: str | None = None
    payload: bytes | None = None  # what the handler returned, encoded, or None if it is not kept

    @property
    def is_final(self) -> bool:
        """Whether the entry has ended."""
        return self.state in FINAL

    @property
    def value(self) -> Any:
        """What the handler returned. Raises ``Undecodable`` if the entry is not done, or its result is not kept."""
        if self.state != "done":
            raise Undecodable(f"entry {self.id} is {self.state}, so it has no result.", hint="Look at its state first.")
        if self.payload is None:
            raise Undecodable(
                f"the result of entry {self.id} is not kept, or not any more.",
                hint='Register its handler with keep_result="1d", say, and ask within that time.',
            )
        return msgspec.json.decode(self.payload)


def new_result(value: Any, kept_us: Micros, entry: Entry[Any]) -> NewResult:
    """What a handler returned for an entry, on its way into the store.

    Raises ``PayloadTooLarge`` for one that is too large to keep, and ``Undecodable`` for one that JSON would change.
    """
    if (change := changed_by_json(value)) is not None:
        raise Undecodable(f"a result cannot be kept: {change}.", hint=RETURN_JSON)
    try:
        payload = _encode(value)
    except (TypeError, ValueError) as error:
        raise Undecodable(
            f"a result of type {type(value).__name__} cannot be kept: {error}.", hint=RETURN_JSON
        ) from None
    if len(payload) > MOST_BYTES:
        raise PayloadTooLarge(
            f"a result of {len(payload):,} bytes is over the limit of {MOST_BYTES:,}.",
            hint="Store it elsewhere and return where it is.",
        )
    return NewResult(payload, CODEC, kept_us, entry.generation, entry.queue, entry.labels.get(LABEL))


def look(store: QueueStore, id_: str, queue: str | None = None) -> Result:
    """What has become of an entry so far. Raises ``EntryNotFound`` for an unknown id."""
    driver = store.driver
    entries = driver.find(Find(queue=queue, ids=(id_,))) or driver.dead(Find(queue=queue, ids=(id_,)))
    if entries:
        return Result(id_, entries[0].state, error_alone(entries[0].error))
    rows = driver.history(Find(queue=queue, ids=(id_,), states=FINAL, newest_first=True, limit=1))
    if rows:
        return Result(id_, rows[0].state, error_alone(rows[0].error), kept_value(store, rows[0]))
    result = driver.result(id_)  # which may be kept for longer than the history
    if result is None or queue not in (None, result.queue) or result.until_us <= store.now():
        raise EntryNotFound(
            f"no entry {id_!r} is known{'' if queue is None else f' in queue {queue!r}'}.",
            hint="Ended entries are forgotten with their history and their result.",
        )
    return Result(id_, "done", None, result.value)


def kept_value(store: QueueStore, row: HistoryRow) -> bytes | None:
    """What the handler returned in an attempt that ended, encoded, or None if it is not kept, or not any more."""
    result = store.driver.result(row.id) if row.state == "done" else None
    if result is None or result.generation != row.generation or result.until_us <= store.now():
        return None
    return result.value


def values_of_batch(store: QueueStore, batch: str) -> dict[str, Any]:
    """What the handlers of a batch's members returned, by the ids of the members, as far as it is kept."""
    now = store.now()
    values: dict[str, Any] = {}
    after, more = "", True
    while more:
        page = store.driver.results(batch=batch, after=after, limit=PAGE)
        after, more = page[-1][0] if page else "", len(page) == PAGE
        values |= {id_: msgspec.json.decode(result.value) for id_, result in page if result.until_us > now}
    return values


def wait_for(store: QueueStore, id_: str, queue: str | None, seconds: float) -> Result:
    """Look until an entry has ended, or the time is over."""
    result = look(store, id_, queue)
    for pause in pauses(seconds):
        if result.is_final:
            break
        threading.Event().wait(pause)
        result = look(store, id_, queue)
    return result


def pauses(seconds: float) -> Iterator[float]:
    """How long to wait before each further look, until the time is over."""
    until, pause = time.monotonic() + seconds, FIRST_PAUSE
    while (left := until - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(pause * 1.5, LONGEST_PAUSE)


# --- progress ---------------------------------------------------------------------------------------------


class Progress(msgspec.Struct, frozen=True):
    """How far the handler of an entry has come, as it said last."""

    done: int
    total: int | None = None
    text: str = ""
    at_us: Micros = 0

    def __str__(self) -> str:
        """For people."""
        parts = f"{self.done:,}" if self.total is None else f"{self.done:,} of {self.total:,}"
        return f"{parts}: {self.text}" if self.text else parts


@prepared
class _Note(msgspec.Struct, frozen=True):
    token: str
    progress: Progress


def note_of(lease: Lease, progress: Progress) -> DocumentWrite:
    """A progress on its way into the store. It is valid as long as the lease is."""
    return DocumentWrite(_document(lease.entry), msgspec.json.encode(_Note(lease.token, progress)))


def progress_of(store: QueueStore, entry: Entry[Any]) -> Progress | None:
    """What the handler that has the entry said last, or None if it said nothing, or nobody has it."""
    if entry.lease is None:
        return None
    document = store.driver.document(_document(entry.id))
    if document is None:
        return None
    note = msgspec.json.decode(document.value, type=_Note)
    if note.token != entry.lease.token:
        return None
    return msgspec.structs.replace(note.progress, at_us=document.changed_us)


def _document(id_: str) -> str:
    return PROGRESS + derived_id("progress", id_)

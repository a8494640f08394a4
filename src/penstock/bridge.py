"""Bridges between queues and logs: entries that become records, records that become entries; each once.

``QueueToLog`` notes in the log ``<name>.moved``, in the transaction that appends the records, which entries they were.
The transactions are numbered. If two bridges want the same number, one is refused and looks again. An entry that
was appended and not yet finished when a bridge died is found there, and only finished.

``LogToQueue`` gives an entry the id that follows from the record's place. A put that is repeated has no second effect
as long as the queue store knows the id: while the entry lives, and at least 15 minutes longer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Generic, TypeVar

import msgspec

from penstock.clock import Duration, duration
from penstock.errors import BadInput
from penstock.ids import derived_id
from penstock.log.log import Log
from penstock.log.record import Partition, Record
from penstock.log.settings import Retention
from penstock.names import check_name
from penstock.queue.entry import Entry
from penstock.queue.queue import Queue

T = TypeVar("T")

BATCH = 100
REMEMBER = timedelta(days=1)  # a lease never lasts so long


class Moved(msgspec.Struct, array_like=True):
    """One transaction of a bridge: its number, and the entries that became records."""

    number: int
    ids: list[str]


class Bridge:
    """What both directions share: one step at a time, or in a loop."""

    def step(self) -> int:
        """Move what is there, at most a batch. Returns how many were moved."""
        raise NotImplementedError

    def drain(self) -> int:
        """Move until nothing is left. Returns how many were moved."""
        total = 0
        while moved := self.step():
            total += moved
        return total

    def run(self, stop: threading.Event, *, poll: Duration = "200ms") -> int:
        """Move until ``stop`` is set. Returns how many were moved.

        Args:
            stop: set it from another thread or a signal handler
            poll: how long it waits when nothing is there
        """
        pause = duration(poll, name="poll").total_seconds()
        total = 0
        while not stop.is_set():
            moved = self.step()
            total += moved
            if not moved:
                stop.wait(pause)
        return total


class QueueToLog(Bridge, Generic[T]):
    """Appends the due entries of a queue to a log and finishes them.

    The entry's headers go along, with its id and labels.

    Args:
        name: of the bridge, the same in every process that runs it
        queue: where from
        log: where to
        key: makes a record's key of an entry; without it records have none
        batch: how many entries at once
        lease: how long the entries are held meanwhile
    """

    def __init__(
        self,
        name: str,
        queue: Queue[T],
        log: Log[T],
        *,
        key: Callable[[Entry[T]], str | None] | None = None,
        batch: int = BATCH,
        lease: Duration = "60s",
    ) -> None:
        """``name`` is this bridge's, the same in every process that runs it."""
        self.name = check_name(name, kind="bridge")
        if batch < 1:
            raise BadInput(f"bridge {name} moves batches of {batch}.", hint="Use 1 or more.")
        self.queue = queue
        self.log = log
        self._key = key
        self._batch = batch
        self._lease = lease
        self._moved_log = f"{name}.moved"
        log.store.create(self._moved_log, 1, retention=Retention(age=REMEMBER))
        self._moved: dict[str, None] = {}
        self._read = log.store.bounds(self._moved_log)[0].start
        self._number = -1

    def step(self) -> int:
        """Take a batch, append it, finish it. Returns how many entries were finished."""
        with self.queue.store.unit(lease=self._lease) as unit:
            entries = unit.take(self.queue, self._batch, attempts=None)
            if not entries:
                return 0
            while not self._append([entry for entry in entries if entry.id not in self._known()]):
                pass  # another bridge was faster with this number: its notes are read now
            unit.commit()
        return len(entries)

    def _append(self, entries: list[Entry[T]]) -> bool:
        if not entries:
            return True
        store = self.log.store
        number = self._number + 1
        with store.transaction(producer=f"bridge-{self.name}", sequence=number) as tx:
            tx.append_many(
                self.log.name,
                [entry.value for entry in entries],
                codec=self.log.codec,
                keys=[None if self._key is None else self._key(entry) for entry in entries],
                headers=[_headers(entry) for entry in entries],
            )
            tx.append(self._moved_log, msgspec.msgpack.encode(Moved(number, [entry.id for entry in entries])), bytes)
            return not tx.commit().duplicate

    def _known(self) -> dict[str, None]:
        """The entries that were moved recently, by whatever process."""
        store = self.log.store
        place = Partition(self._moved_log, 0)
        bounds = store.bounds_of(place)
        if self._read < bounds.end:
            for batch in store.batches(place, max(self._read, bounds.start)):
                for payload in batch.payloads():
                    moved = msgspec.msgpack.decode(payload, type=Moved)
                    self._number = max(self._number, moved.number)
                    self._moved.update(dict.fromkeys(moved.ids))
            self._read = bounds.end
            while len(self._moved) > 100_000:
                del self._moved[next(iter(self._moved))]
        return self._moved


class LogToQueue(Bridge, Generic[T]):
    """Puts every record of a log into a queue, for a group of its own.

    Args:
        name: of the group; several processes share the partitions
        log: where from
        queue: where to
        options: makes the options of ``put`` from a record: due, priority, labels, unique …
        batch: how many records at once
    """

    def __init__(
        self,
        name: str,
        log: Log[T],
        queue: Queue[T],
        *,
        options: Callable[[Record[T]], dict[str, Any]] | None = None,
        batch: int = BATCH,
    ) -> None:
        """``name`` is the group; several processes share the partitions."""
        self.name = check_name(name, kind="bridge")
        if batch < 1:
            raise BadInput(f"bridge {name} moves batches of {batch}.", hint="Use 1 or more.")
        self.queue = queue
        self.log = log
        self._options = options
        self._batch = batch
        self._tail = log.subscribe(name)

    def step(self) -> int:
        """Read a batch, put it, commit. Returns how many records were moved."""
        records = self._tail.read(self._batch, timeout="50ms")
        if not records:
            return 0
        self.queue.store.driver.put(tuple(self._entry(record) for record in records))
        self._tail.commit()
        return len(records)

    def _entry(self, record: Record[T]) -> Any:
        more = {} if self._options is None else dict(self._options(record))
        headers = {name: value for name, value in record.headers.items() if isinstance(value, str)}
        return self.queue.new(
            record.value,
            id=derived_id("bridge", self.name, self.log.name, str(record.partition), str(record.offset)),
            headers={**headers, **more.pop("headers", {})},
            **more,
        )

    def close(self) -> None:
        """Give the partitions back."""
        self._tail.close()

    def __enter__(self) -> LogToQueue[T]:
        """For ``with``."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def _headers(entry: Entry[Any]) -> dict[str, str | bytes]:
    own: dict[str, str | bytes] = dict(entry.headers)
    own["penstock-entry"] = entry.id
    for name, value in entry.labels.items():
        own[f"penstock-label-{name}"] = value
    return own

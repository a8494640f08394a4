"""The state of the memory driver: logs, groups, producers and staged records, shared by the handles of one name."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock.clock import Micros
from penstock.ids import new_id
from penstock.log.record import NO_HEADERS, Headers, ListBatch, NewRecords, Partition, key_bytes
from penstock.log.settings import LogSettings

if TYPE_CHECKING:
    from penstock.log.drivers.memory.driver import MemoryDriver


class MemoryPartition:
    """The records of one partition, as columns that grow at the end and shrink at the start."""

    def __init__(self) -> None:
        """Empty."""
        self.start = 0
        self.payloads: list[bytes] = []
        self.keys: list[str | None] = []
        self.times: list[Micros] = []
        self.appended: list[Micros] = []  # the append times by the driver's clock, which retention goes by
        self.headers: list[Headers] = []
        self.size = 0
        self.producers: dict[str, list[tuple[int, range]]] = {}  # sequences and their offsets, oldest first

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.start + len(self.payloads)

    def add(self, records: NewRecords, now: Micros) -> range:
        """Append records. Returns their offsets."""
        first, count = self.end, len(records)
        self.payloads += records.values
        self.keys += [
            None if key is None else key_bytes(key).decode("utf-8", "surrogateescape")
            for key in records.keys or [None] * count
        ]
        self.times += records.times or [now] * count
        self.appended += [now] * count
        self.headers += [dict(headers) if headers else NO_HEADERS for headers in records.headers or [None] * count]
        self.size += sum(map(len, records.values))
        return range(first, first + count)

    def batch(self, partition: Partition, offset: int, limit: int) -> ListBatch:
        """At most ``limit`` records from ``offset`` on."""
        low = offset - self.start
        high = min(low + limit, len(self.payloads))
        return ListBatch(
            partition, range(offset, self.start + high), self.payloads[low:high], self.times[low:high],
            self.keys[low:high], self.headers[low:high],
        )  # fmt: skip

    def start_for_size(self, size: int) -> int:
        """The first offset to keep so that at most ``size`` bytes of values remain."""
        excess, start = self.size - size, self.start
        for payload in self.payloads:
            if excess <= 0:
                break
            excess -= len(payload)
            start += 1
        return start

    def cut(self, start: int) -> None:
        """Remove the records before ``start``."""
        count = start - self.start
        self.size -= sum(map(len, self.payloads[:count]))
        for column in (self.payloads, self.keys, self.times, self.appended, self.headers):
            del column[:count]
        self.start = start


class MemoryLog:
    """One log: its settings, its partitions and its open appenders."""

    def __init__(self, settings: LogSettings) -> None:
        """With empty partitions."""
        self.settings = settings
        self.identity = new_id()
        self.partitions = [MemoryPartition() for _ in range(settings.partitions)]
        self.appenders = 0
        self.exclusive: MemoryDriver | None = None  # the handle whose appender keeps the log to itself


class MemoryGroup:
    """One group: committed offsets, leases and members."""

    def __init__(self) -> None:
        """Without members."""
        self.offsets: dict[Partition, int] = {}
        self.epochs: dict[Partition, int] = {}
        self.owners: dict[Partition, str] = {}
        self.members: dict[str, tuple[tuple[str, ...], float, float]] = {}  # logs, last heartbeat, max_poll
        self.version = 0


class MemoryState:
    """Everything that the handles of one name share; ``bell`` is its only lock."""

    def __init__(self) -> None:
        """Without logs."""
        self.bell = threading.Condition(threading.RLock())
        self.rings = 0
        self.logs: dict[str, MemoryLog] = {}
        self.groups: dict[str, MemoryGroup] = {}
        self.producers: dict[str, int] = {}  # the epoch of the newest appender of each name
        self.sequences: dict[str, int] = {}  # the last committed transaction of each producer
        self.staged: dict[str, list[tuple[int, NewRecords]]] = {}
        self.handles = 0

    def ring(self) -> None:
        """Wake everybody who waits."""
        self.rings += 1
        self.bell.notify_all()

    def group(self, name: str) -> MemoryGroup:
        """A group, which is created on first use."""
        return self.groups.setdefault(name, MemoryGroup())

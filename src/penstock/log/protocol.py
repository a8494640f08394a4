"""What a log store and its driver exchange: capability flags, commits, staged records, and the two ends of a log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.clock import Micros
from penstock.errors import Unsupported
from penstock.log.record import NewRecords, Partition, RecordBatch, from_arrow

if TYPE_CHECKING:
    import pyarrow as pa

OutOfRange = Literal["error", "earliest", "latest"]


class LogCapabilities(msgspec.Struct, frozen=True):
    """What a driver can do. A call that it cannot do raises ``Unsupported``."""

    durable: bool = True  # an acknowledged append survives a power cut (durable profile)
    dense: bool = True  # offsets have no holes
    exclusive: bool = True  # an appender may keep a log to itself
    mixing: bool = True  # fixed and subscribed tailers of one group never read the same partition
    sequences: bool = True  # a producer may number its appends, also across restarts
    staging: bool = True  # records written by many processes, committed by one
    retention: bool = True  # by size and consumption, enforced by Penstock
    copies: bool = True  # backup, verify, repair


class Removed(msgspec.Struct, frozen=True):
    """What retention removed, or would remove in a dry run: the records below ``start``, and the reason."""

    partition: Partition
    start: int
    count: int
    size: int
    reason: str


class StagedFile(msgspec.Struct, frozen=True):
    """A file of staged records for one partition."""

    partition: int
    name: str
    count: int
    size: int
    highest_time: Micros


class Staged(msgspec.Struct, frozen=True):
    """Records that a process wrote aside; plain data that can be sent to the process that commits them."""

    path: str
    log: str
    counts: dict[int, int]
    files: list[StagedFile] = []  # only if the driver stages records in files


class Commit(msgspec.Struct):
    """A transaction for a driver: appends and offsets, and the producer and sequence that make it repeatable."""

    outputs: list[tuple[Partition, NewRecords]]
    offsets: list[tuple[Source, dict[Partition, int]]]
    staged: list[Staged] = []
    producer: str | None = None
    sequence: int | None = None


class Committed(msgspec.Struct):
    """A transaction that was committed. ``duplicate``: an earlier commit had the same producer and sequence."""

    offsets: dict[Partition, Sequence[int]] = {}
    duplicate: bool = False


class Finding(msgspec.Struct, frozen=True):
    """One line of ``verify``, ``repair`` or ``doctor``: the level, what was checked, and what it means."""

    level: Literal["good", "unknown", "warning", "bad"]
    what: str
    detail: str


class Sink(ABC):
    """Appends to one log. Threads may share it."""

    @abstractmethod
    def append(self, parts: Sequence[tuple[int, NewRecords]], sequence: int | None = None) -> list[Sequence[int]]:
        """Append records to partitions. Returns their offsets once the records are as safe as the durability promises.

        If this producer has used a ``sequence`` in a partition before, nothing is appended there and the offsets of the
        first time are returned. A sequence that is too old to be remembered raises ``Conflict``.
        """

    def last_sequence(self, partition: int) -> int | None:
        """The highest sequence of this producer in a partition."""
        raise Unsupported("this sink has no sequences.", hint="Open the appender with producer=.")

    @abstractmethod
    def close(self) -> None:
        """Release what it holds."""


class Source(ABC):
    """Reads for one member of a group. One thread uses it at a time; any thread may call :meth:`wake`."""

    @abstractmethod
    def assignment(self) -> list[Partition]:
        """The partitions it owns now."""

    @abstractmethod
    def poll(self, limit: int, seconds: float) -> list[RecordBatch]:
        """Read at most ``limit`` records, waiting up to ``seconds`` for the first.

        Partitions take turns. The assignment changes only in this call, which also calls the listener. Positions move
        past the records that are returned.
        """

    @abstractmethod
    def position(self, partition: Partition) -> int:
        """The next offset that ``poll`` returns for an owned partition."""

    @abstractmethod
    def seek(self, partition: Partition, offset: int) -> None:
        """Move the position of an owned partition."""

    @abstractmethod
    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Store these offsets for the group. If one partition is no longer owned, none is stored: ``Fenced``."""

    @abstractmethod
    def wake(self) -> None:
        """End a poll that is waiting in another thread."""

    @abstractmethod
    def close(self) -> None:
        """Give the partitions back and call the listener; positions that were not committed are lost."""


class Stage(ABC):
    """Writes records aside, for a transaction of another process to commit."""

    @abstractmethod
    def append(self, parts: Sequence[tuple[int, NewRecords]]) -> None:
        """Write more records; their order within a partition is kept."""

    def append_arrow(self, parts: Sequence[tuple[int, pa.RecordBatch]]) -> None:
        """Write columns of :func:`penstock.log.record.arrow_schema`; all but ``value`` may be missing."""
        self.append([(partition, from_arrow(batch)) for partition, batch in parts if batch.num_rows])

    @abstractmethod
    def close(self) -> Staged:
        """Finish. Returns what :meth:`Transaction.append_staged` takes."""

    @abstractmethod
    def discard(self) -> None:
        """Discard the records."""

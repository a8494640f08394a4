"""What a log store and its callers hand each other: settings, capability flags, commits, and both ends of a log."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.clock import Duration, Micros, duration
from penstock.errors import BadInput, Unsupported
from penstock.log.partitioner import DEFAULT
from penstock.log.record import NewRecords, Partition, RecordBatch, from_arrow
from penstock.names import check_name

if TYPE_CHECKING:
    import pyarrow as pa


class LogCapabilities(msgspec.Struct, frozen=True):
    """What a log store can do. An excluded call raises ``Unsupported`` when it is made."""

    durable: bool = True  # an acknowledged append survives a power cut (durable profile)
    dense: bool = True  # offsets have no holes
    exclusive: bool = True  # an appender may keep a log to itself
    mixing: bool = True  # fixed and subscribed tailers of one group never read the same partition
    sequences: bool = True  # a producer may number its appends, also across restarts
    staging: bool = True  # records written by many processes, committed by one
    retention: bool = True  # size and consumption, enforced by Penstock
    copies: bool = True  # backup, verify, repair


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What may be removed: records older than ``age``, the oldest beyond ``size`` bytes per partition.

    Nothing that a group of ``keep_for`` has not consumed is removed, unless ``hard_size`` bytes per partition are
    passed. With ``consumed=True`` whatever all groups of ``keep_for`` have consumed goes at once, whatever its age.
    """

    age: Duration | None = timedelta(days=4)
    size: int | None = None
    keep_for: tuple[str, ...] = ()
    consumed: bool = False
    hard_size: int | None = None

    def __post_init__(self) -> None:
        """Refuse what could never work, where it was written."""
        if self.age is not None:
            duration(self.age, name="Retention(age)")
        for name in ("size", "hard_size"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise BadInput(f"Retention({name}={value!r}) is not a size.", hint="Give a number of bytes, or None.")
        if isinstance(self.keep_for, str):
            raise BadInput("Retention(keep_for=) is one text.", hint='Give a tuple of groups: ("billing",).')
        for group in self.keep_for:
            check_name(group, kind="group")
        if self.consumed and not self.keep_for:
            raise BadInput("Retention(consumed=True) names no group.", hint='Add keep_for=("billing",).')


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a log is kept, for everybody; stored with it when it is created."""

    name: str
    partitions: int
    partitioner: str = DEFAULT
    retention: Retention = Retention()
    segment_bytes: int = 256 * 1024 * 1024
    segment_age: Duration = timedelta(hours=24)
    compression: str | None = None
    codec: str | None = None  # when set, appenders and tailers of another codec are refused (bytes never is)


class Removed(msgspec.Struct, frozen=True):
    """What retention removed, or would remove in a dry run: the records below ``start``, and why."""

    partition: Partition
    start: int
    count: int
    size: int
    reason: str


class StagedFile(msgspec.Struct, frozen=True):
    """A file of records that were written aside for one partition."""

    partition: int
    name: str
    count: int
    size: int
    highest_time: Micros


class Staged(msgspec.Struct, frozen=True):
    """Records that a process wrote aside; plain data, so that it can be sent to the one that commits them."""

    path: str
    log: str
    counts: dict[int, int]
    files: list[StagedFile] = []  # where the store keeps them in files


class Commit(msgspec.Struct):
    """A transaction as the store gets it: appends, offsets of sources, and the mark that makes it repeatable."""

    outputs: list[tuple[Partition, NewRecords]]
    offsets: list[tuple[Source, dict[Partition, int]]]
    staged: list[Staged] = []
    producer: str | None = None
    sequence: int | None = None


class Committed(msgspec.Struct):
    """A transaction that happened. ``duplicate``: it had happened before, under the same producer and sequence."""

    offsets: dict[Partition, Sequence[int]] = {}
    duplicate: bool = False


class Finding(msgspec.Struct, frozen=True):
    """One line of ``verify``, ``repair`` or ``doctor``: good, warning or bad, what was looked at, what it means."""

    level: Literal["good", "unknown", "warning", "bad"]
    what: str
    detail: str


class Sink(ABC):
    """Appends to one log; safe to share between threads."""

    @abstractmethod
    def append(self, parts: Sequence[tuple[int, NewRecords]], sequence: int | None = None) -> list[Sequence[int]]:
        """Append to partitions; their offsets, once they are as safe as the store's durability says.

        A ``sequence`` at or below the last one of this producer in a partition changes nothing there and gives the
        offsets of the first time; one too old to be remembered raises ``Conflict``.
        """

    def last_sequence(self, partition: int) -> int | None:
        """The highest sequence this producer has in a partition."""
        raise Unsupported("this sink knows no sequences.", hint="Open the appender with producer=.")

    @abstractmethod
    def close(self) -> None:
        """Let go of what it holds."""


class Source(ABC):
    """Reads for one member of a group; used by one thread at a time, but for :meth:`wake` and :meth:`close`."""

    @abstractmethod
    def assignment(self) -> list[Partition]:
        """The partitions it owns now."""

    @abstractmethod
    def poll(self, limit: int, seconds: float) -> list[RecordBatch]:
        """At most ``limit`` records, waiting up to ``seconds`` for the first.

        Partitions take turns. Changes of the assignment happen in here, and the listener is told here. Positions
        move behind what is returned.
        """

    @abstractmethod
    def position(self, partition: Partition) -> int:
        """The next offset that ``poll`` gives for an owned partition."""

    @abstractmethod
    def seek(self, partition: Partition, offset: int) -> None:
        """Move the position of an owned partition."""

    @abstractmethod
    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Keep these for the group; raises ``Fenced`` when a partition is no longer owned, and then keeps none."""

    @abstractmethod
    def wake(self) -> None:
        """End a poll that waits in another thread."""

    @abstractmethod
    def close(self) -> None:
        """Give the partitions back, telling the listener; positions not committed are forgotten."""


class Stage(ABC):
    """Writes records aside, for a transaction of another process to commit."""

    @abstractmethod
    def append(self, parts: Sequence[tuple[int, NewRecords]]) -> None:
        """Write more; order within a partition is kept."""

    def append_arrow(self, parts: Sequence[tuple[int, pa.RecordBatch]]) -> None:
        """The same from columns of :func:`penstock.log.record.arrow_schema`; all but ``value`` may be missing."""
        self.append([(partition, from_arrow(batch)) for partition, batch in parts if batch.num_rows])

    @abstractmethod
    def close(self) -> Staged:
        """Finish; what to hand to :meth:`Transaction.append_staged`."""

    @abstractmethod
    def discard(self) -> None:
        """Throw it away."""

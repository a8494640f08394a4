"""LogDriver: the contract between a :class:`LogStore` and what speaks to a folder, a cluster or memory for it.

A driver provides four things: logs (create, list, delete, bounds), a :class:`Sink` that appends, a :class:`Source` that
reads for a group, and one atomic commit of appends and offsets (:meth:`LogDriver.transact`). Typed records, routing by
key, lingering, named seeks and waiting are built on these once, in ``appender``, ``tailer`` and ``transaction``.

Every driver must keep these promises, which ``tests/contract/log`` checks:

- after an append returns, its records are readable at their offsets, in order, until retention removes them;
- the offsets of a partition rise and are never reused; a committed offset is the next one to read;
- at most one open tailer of a group owns a partition at any time, and a commit of a former owner is ``Fenced``;
- a transaction's records and offsets become visible together or never.

Not for user code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from penstock.clock import Clock, Micros, SystemClock
from penstock.errors import BadInput, Closed, LogNotFound, OffsetOutOfRange, Unsupported
from penstock.log.commit_watch import CommitWatch
from penstock.log.group import Listener
from penstock.log.protocol import (
    Commit,
    Committed,
    Finding,
    LogCapabilities,
    OutOfRange,
    Removed,
    Sink,
    Source,
    Stage,
    Staged,
)
from penstock.log.record import Bounds, Partition, RecordBatch
from penstock.log.settings import LogSettings, check_index
from penstock.names import check_name
from penstock.signals import Signals

_SYSTEM = SystemClock()


class LogDriver(ABC):
    """Keeps logs for one :class:`LogStore`. Threads may share it."""

    capabilities: LogCapabilities = LogCapabilities()
    record_limit: int = 8 * 1024 * 1024
    transaction_bytes: int = 64 * 1024 * 1024

    def __init__(self, clock: Clock, name: str) -> None:
        """Bind the driver to a clock. ``name`` is the masked URL, for messages."""
        self.clock = clock
        self.name = name
        self.signals = Signals()
        self.closed = False

    # --- logs ------------------------------------------------------------------------------------

    @abstractmethod
    def names(self) -> list[str]:
        """The names of all logs, sorted."""

    @abstractmethod
    def create(self, settings: LogSettings) -> bool:
        """Create a log. Returns False, and changes nothing, if it exists."""

    @abstractmethod
    def find_settings(self, name: str) -> LogSettings | None:
        """The settings of a log, or None if it does not exist."""

    @abstractmethod
    def find_identity(self, name: str) -> str | None:
        """The identity of a log (see :meth:`LogStore.identity`), or None if it does not exist."""

    @abstractmethod
    def delete(self, name: str) -> bool:
        """Delete a log with its records and offsets. Returns False if it does not exist."""

    @abstractmethod
    def bounds(self, settings: LogSettings) -> list[Bounds]:
        """The bounds of every partition, in order."""

    def bounds_of(self, partition: Partition) -> Bounds:
        """The bounds of one partition."""
        return self.bounds(self.check_partition(partition))[partition.index]

    # --- reading without a group -------------------------------------------------------------------

    @abstractmethod
    def batches(self, partition: Partition, start: int, stop: int) -> Iterator[RecordBatch]:
        """The records from ``start`` up to, but not including, ``stop``."""

    @abstractmethod
    def offset_at(self, partition: Partition, micros: Micros) -> int:
        """The first offset with a timestamp at or after a time, or the end."""

    def ranges_in_time(
        self, partition: Partition, span: tuple[int, int], times: tuple[Micros, Micros]
    ) -> list[tuple[int, int]]:
        """Leave out the records before the first one of that time; later records may have any time."""
        low, high = max(span[0], self.offset_at(partition, times[0])), span[1]
        return [(low, high)] if low < high else []

    # --- groups ------------------------------------------------------------------------------------

    @abstractmethod
    def groups(self, name: str) -> list[str]:
        """The groups with offsets in a log, sorted."""

    @abstractmethod
    def committed(self, settings: LogSettings, group: str) -> list[int | None]:
        """A group's offset in every partition, or None where it has never committed."""

    def committed_now(self, settings: LogSettings, group: str) -> list[int | None]:
        """Like ``committed``, for monitoring: does not wait for undecided transactions."""
        return self.committed(settings, group)

    @abstractmethod
    def reset(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Set a group's offsets from outside. Raises ``PartitionTaken`` while a tailer owns one of the partitions."""

    @abstractmethod
    def forget(self, group: str, name: str | None) -> bool:
        """Delete a group's offsets in one log, or in all. Returns False if it has none."""

    def commit_watch(self, group: str) -> CommitWatch:
        """What :meth:`LogStore.wait_for` waits with; polls unless the driver can do better."""
        return CommitWatch()

    # --- writing and reading -----------------------------------------------------------------------

    @abstractmethod
    def open_sink(self, settings: LogSettings, *, exclusive: bool, producer: str | None) -> Sink:
        """Open what an appender appends to."""

    @abstractmethod
    def open_assigned(
        self, partitions: Sequence[Partition], group: str, *, out_of_range: OutOfRange, max_poll: timedelta
    ) -> Source:
        """Open a source that owns exactly these partitions. Raises ``PartitionTaken`` if it cannot own all of them."""

    @abstractmethod
    def open_subscribed(
        self,
        logs: Sequence[LogSettings],
        group: str,
        listener: Listener,
        *,
        out_of_range: OutOfRange,
        max_poll: timedelta,
    ) -> Source:
        """Open a source whose partitions follow the group's members. It owns none before its first poll."""

    @abstractmethod
    def transact(self, commit: Commit) -> Committed:
        """Commit appends and offsets together, or none of them."""

    def stage(self, settings: LogSettings) -> Stage:
        """Open a stage for a log."""
        raise self.unsupported("staging")

    def staged_commit(self) -> str:
        """Describe what the committing process does with the bytes of staged records."""
        raise self.unsupported("staging")

    def discard(self, staged: Sequence[Staged]) -> None:
        """Discard staged records that will not be committed."""
        raise self.unsupported("staging")

    # --- maintenance -------------------------------------------------------------------------------

    def enforce_retention(self, settings: LogSettings, dry_run: bool) -> list[Removed]:
        """Remove what a log's retention allows."""
        raise self.unsupported("retention by Penstock")

    def delete_before(self, offsets: Mapping[Partition, int]) -> None:
        """Remove the records before these offsets at once. A driver that enforces retention needs no such call."""
        raise self.unsupported("deleting records before an offset")

    def backup(self, target: str, *, dry_run: bool = False) -> list[Finding]:
        """Copy everything to an empty folder, as it is at one moment."""
        raise self.unsupported("backup")

    def verify(self, name: str | None = None) -> list[Finding]:
        """Check every byte of a log, or of all."""
        raise self.unsupported("verify")

    def repair(self, name: str, *, dry_run: bool = False) -> list[Finding]:
        """Move damaged records aside; their offsets stay empty."""
        raise self.unsupported("repair")

    def check(self) -> list[Finding]:
        """What ``penstock doctor`` reports."""
        return []

    def sync(self) -> None:  # noqa: B027 - nothing to do where nothing is buffered
        """Return once everything appended so far survives a power cut."""

    def now(self) -> Micros:
        """The time of a fake clock, else the driver's own time."""
        fixed = self.clock.fixed()
        return _SYSTEM.micros() if fixed is None else fixed

    def close(self) -> None:
        """Close the driver; a subclass also releases what it holds."""
        self.closed = True

    def __repr__(self) -> str:
        """The URL without its password."""
        return f"<{type(self).__name__} {self.name}>"

    # --- shared by the drivers -----------------------------------------------------------------------

    def settings(self, name: str) -> LogSettings:
        """The settings of a log. Raises ``LogNotFound``."""
        check_name(name, kind="log")
        self.check_open()
        settings = self.find_settings(name)
        if settings is None:
            raise self.log_not_found(name)
        return settings

    def check_partition(self, partition: Partition) -> LogSettings:
        """The settings of the partition's log. Raises if the log or the partition does not exist."""
        if not isinstance(partition, Partition):
            raise BadInput(f"{partition!r} is not a Partition.", hint='Write Partition("clicks", 0).')
        settings = self.settings(partition.log)
        check_index(settings, partition.index)
        return settings

    def check_open(self) -> None:
        """Raise ``Closed`` if the store was closed."""
        if self.closed:
            raise Closed(f"{self.name} was closed.", hint="Open it again to continue.")

    def log_not_found(self, name: str) -> LogNotFound:
        """The error for a log that does not exist."""
        return LogNotFound(
            f"there is no log {name!r} in {self.name}.", hint=f"Create it first: create({name!r}, partitions=…)."
        )

    def unsupported(self, what: str) -> Unsupported:
        """The error for a call that this driver does not offer."""
        return Unsupported(f"{self.name} does not offer {what}.", hint="See the capabilities in the docs.")

    def out_of_range(self, partition: Partition, offset: int, bounds: Bounds) -> OffsetOutOfRange:
        """The error for an offset outside the bounds of a partition."""
        return OffsetOutOfRange(
            f"offset {offset} is not in {partition}, which holds {bounds.start} to before {bounds.end}.",
            hint='Seek to the start or end, or open the tailer with out_of_range="earliest" or "latest".',
            partition=str(partition), offset=offset,
        )  # fmt: skip

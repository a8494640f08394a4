"""What a driver provides for :class:`EmbeddedSource`: a reader, a membership in a group, and a watch.

A *lease* is the right to read one partition for a group. Taking it starts a new epoch. Commits carry the epoch and are
refused once another member has a higher one. There is no coordinator: every member computes the same assignment from
the same list of live members, gives back the partitions that are no longer its own, and takes those that are free.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from penstock.log.record import Partition, RecordBatch


class Reader(ABC):
    """Reads one partition at any offset, in one thread."""

    @property
    @abstractmethod
    def start(self) -> int:
        """The first offset."""

    @property
    @abstractmethod
    def end(self) -> int:
        """The offset after the last visible record."""

    @property
    def is_written(self) -> bool:
        """Whether an append is about to become visible."""
        return False

    @abstractmethod
    def read(self, offset: int, limit: int) -> tuple[list[RecordBatch], int]:
        """At most ``limit`` records from ``offset`` on, and the offset to continue at (it skips repaired damage)."""

    def close(self) -> None:  # noqa: B027 - not every reader holds files
        """Close its files."""


class Membership(ABC):
    """One member's view of its group: the other live members, and the leases."""

    id: str

    @abstractmethod
    def refresh(self) -> int:
        """Finish what dead members left half done, then return the group's version.

        The version changes with members and leases, except when a member dies.
        """

    @abstractmethod
    def beat(self) -> None:
        """Record a heartbeat: this member is alive and reads."""

    @abstractmethod
    def members(self) -> Mapping[str, Sequence[str]]:
        """The live subscribers, this one included, with the logs they want."""

    @abstractmethod
    def owner(self, partition: Partition) -> str | None:
        """The member whose lease is in force, whether or not it is alive."""

    @abstractmethod
    def take(self, partition: Partition) -> int | None:
        """Take the lease. Returns its epoch, or None while a live member holds it."""

    @abstractmethod
    def holds(self, partition: Partition, epoch: int) -> bool:
        """Whether this lease is still the member's."""

    @abstractmethod
    def give_back(self, partition: Partition, epoch: int) -> None:
        """End a lease; harmless if it was lost."""

    @abstractmethod
    def commit(self, offsets: Mapping[Partition, tuple[int, int]]) -> None:
        """Store offsets, given as (offset, epoch). If one lease is lost, none is stored: ``Fenced``."""

    @abstractmethod
    def committed(self, partition: Partition) -> int | None:
        """The group's offset."""

    @abstractmethod
    def leave(self) -> None:
        """Leave the group."""


class Watch(ABC):
    """Waits for new records in some partitions and for changes in a group."""

    saw_write = False  # whether the last wait ended because a partition was written to

    @abstractmethod
    def follow(self, partitions: Sequence[Partition]) -> None:
        """Wake for these partitions from now on, and for no others."""

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Sleep until something has happened since the last call. Returns True if the group may have changed."""

    @abstractmethod
    def wake(self) -> None:
        """End a wait in another thread."""

    @abstractmethod
    def close(self) -> None:
        """Release what it holds."""

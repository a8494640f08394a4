"""Errors that several drivers raise, worded once."""

from __future__ import annotations

from penstock.errors import AppenderTaken, Conflict, Fenced, PartitionTaken
from penstock.log.record import Partition


def fenced(partition: Partition, group: str) -> Fenced:
    """The error for a partition that another tailer owns now."""
    return Fenced(
        f"{partition} of group {group} went to another tailer; nothing was committed.",
        hint="Read on: the tailer drops what it lost, and the other one reads from the last commit.",
    )


def fenced_while_silent(partitions: str, group: str) -> Fenced:
    """The error for a tailer with fixed partitions that did not read for ``max_poll`` and lost them."""
    return Fenced(
        f"{partitions} of group {group} went to another tailer while this one was silent.",
        hint="Read more often than max_poll, or open another tailer.",
    )


def read_by_another(partition: Partition, group: str) -> PartitionTaken:
    """The error for opening a tailer on a partition that another tailer of the group owns."""
    return PartitionTaken(
        f"{partition} is read by another tailer of group {group}.",
        hint="Close that one first, use another group, or subscribe() to share the partitions.",
    )


def has_open_tailer(partition: Partition, group: str) -> PartitionTaken:
    """The error for changing the offset of a partition that an open tailer owns."""
    return PartitionTaken(
        f"{partition} is read by an open tailer of group {group}.", hint="Stop the group's readers first."
    )


def exclusive_appender(log: str) -> AppenderTaken:
    """The error for a transaction into a log that an appender of another store handle keeps to itself."""
    return AppenderTaken(
        f"log {log} has an appender that was opened with exclusive=True.",
        hint="Close it first, or commit the transaction through its store.",
    )


def producer_fenced(producer: str) -> Fenced:
    """The error for an appender whose producer name a newer appender has taken."""
    return Fenced(f"producer {producer} has another appender now.", hint="Only the newest one may append.")


def sequence_too_old(producer: str, sequence: int, last: int) -> Conflict:
    """The error for a repeated sequence whose offsets are no longer remembered."""
    return Conflict(
        f"producer {producer} is at sequence {last}; {sequence} is too long ago to say where it went.",
        hint="Go on after last_sequence().",
    )


def staged_gone(log: str) -> Conflict:
    """The error for staged records that were committed or discarded before."""
    return Conflict(f"what was staged for {log} is gone.", hint="Was it committed already? If not, stage it again.")

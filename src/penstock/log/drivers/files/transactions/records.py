"""The records of the journal."""

from __future__ import annotations

import msgspec

from penstock.codec import prepared


class Output(msgspec.Struct, array_like=True):
    """The records that a transaction wrote to one partition."""

    log: str
    partition: int
    first: int
    count: int


class OffsetChange(msgspec.Struct, array_like=True):
    """An offset that a transaction commits for a group."""

    group: str
    log: str
    partition: int
    generation: int
    offset: int
    epoch: int


@prepared
class JournalRecord(msgspec.Struct, array_like=True):
    """One committed transaction."""

    id: int
    outputs: list[Output]
    offsets: list[OffsetChange]
    staged: list[str] = []

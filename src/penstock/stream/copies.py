"""Copies of broadcast inputs: every record in every partition, so that each task of a computation reads all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.log.record import Record
from penstock.stream.computation import Computation

if TYPE_CHECKING:
    from penstock.stream.context import Context


class broadcast_copies(Computation):
    """Copies every record to all partitions of its output; a topology adds it for each broadcast input."""

    def __init__(self, name: str, source: str, to: str) -> None:
        """From ``source`` to ``to``."""
        self.name = name
        self.inputs = (source,)
        self.outputs = (to,)
        self.to = to

    def process(self, record: Record[Any], ctx: Context) -> None:
        """Copy it unchanged, under its key."""
        for partition in range(ctx.partitions(self.to)):
            ctx.produce(self.to, record, partition=partition)

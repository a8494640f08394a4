"""A computation as the engine needs it: its node in the topology, and what the store says about its streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from penstock.clock import Micros
from penstock.codec import Codec
from penstock.log.record import Partition
from penstock.stream.engine.watermark_log import Writers
from penstock.stream.topology import Node


class InputStream(NamedTuple):
    """An input: the stream behind the computation's own name for it."""

    stream: str
    codec: Codec[Any]
    partitions: int
    out_of_order: Micros


class OutputStream(NamedTuple):
    """An output: where its records go, and how keys are spread over its partitions."""

    stream: str
    codec: Codec[Any]
    partitions: int
    partitioner: Callable[[str | bytes, int], int]


class ResolvedComputation(NamedTuple):
    """A computation whose streams are known. Inputs and outputs have the computation's own names."""

    node: Node
    topology: str
    tasks: int
    inputs: Mapping[str, InputStream]
    outputs: Mapping[str, OutputStream]
    writers: Writers
    reports_time: bool  # whether its tasks report event time: others use it, or nothing else stores it
    is_read: bool  # whether another computation of the topology reads its outputs
    record_limit: int  # the most bytes of a record that the store accepts
    sees_all_commits: bool  # whether readers see a committed record at once, also after a crash

    def partitions_of(self, task: int) -> list[Partition]:
        """The input partitions that a task reads."""
        return [Partition(known.stream, task) for known in self.inputs.values() if task < known.partitions]


def dead_log(computation: str) -> str:
    """The log of records that a computation gave up."""
    return f"{computation}.dead"

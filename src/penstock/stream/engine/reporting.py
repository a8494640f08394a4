"""What the tasks of an engine report to those who read their outputs, and from which offsets it holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest

from penstock.log.record import Partition
from penstock.stream.engine.task import Task
from penstock.stream.engine.watermark_log import WatermarkReport


class Reporting:
    """The reports of the tasks of one engine."""

    def __init__(self) -> None:
        """Nothing was written yet."""
        self._ends: dict[str, list[int]] = {}  # where the output streams end, as far as they were written here

    def resume(
        self, tasks: Collection[Task], last: Mapping[int, WatermarkReport], ends: Mapping[str, Sequence[int]]
    ) -> bool:
        """Take over what the last owners of tasks reported. Returns whether some must be replaced at once.

        ``ends`` are the ends of the output streams: the last owner may have written more than it has reported.
        """
        for task in tasks:
            task.resume_time(last)
        self._ends = {
            stream: [max(pair) for pair in zip_longest(self._ends.get(stream, ()), ends[stream], fillvalue=0)]
            for stream in ends
        }
        announcing = [task for task in tasks if task.publisher is not None and task.publisher.must_announce]
        for task in announcing:
            task.offer_report(self._ends)
        return bool(announcing)

    def due(self, tasks: Collection[Task], *, at_once: bool) -> list[WatermarkReport]:
        """The reports for the next transaction: about the previous checkpoint, whose offsets are known."""
        reports = [task.report(at_once=at_once) for task in tasks if task.publisher is not None]
        return [report for report in reports if report is not None]

    def committed(self, tasks: Collection[Task], ends: Mapping[Partition, int]) -> None:
        """A checkpoint was committed; its outputs end there."""
        written = {partition: end for partition, end in ends.items() if partition.log in self._ends}
        if written:  # the lists are part of reports: they never change in place
            self._ends = {stream: list(offsets) for stream, offsets in self._ends.items()}
            for partition, end in written.items():
                offsets = self._ends[partition.log]
                offsets[partition.index] = max(offsets[partition.index], end)
        for task in tasks:
            task.offer_report(self._ends)

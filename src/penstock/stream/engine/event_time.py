"""What the engine asks of its runner about event time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from penstock.clock import Micros
from penstock.log.record import Partition
from penstock.stream.engine.task import Task
from penstock.stream.engine.watermark import SilentInput

Positions = Mapping[Partition, int]  # of each input partition, the first record that is not processed
Silent = Mapping[str, SilentInput]  # by the computation's own names of its inputs
NOT_SILENT: Silent = {}


class EventTime(Protocol):
    """What a runner knows of the event time of the inputs; asked whenever a watermark may move."""

    def observe(self, tasks: Collection[Task], positions: Positions, now: Micros) -> Mapping[int, Silent]:
        """Set how far event time is in the tasks' inputs at these positions. Returns the silent inputs by task."""

"""What an instance works on: records of one input that wait or are done; how outputs of several tasks come together."""

from __future__ import annotations

import threading
from typing import Any

from penstock.clock import Micros
from penstock.errors import BadInput
from penstock.log.record import NewRecords, Partition, Record
from penstock.stream.task import Task
from penstock.stream.timers import Timer


class Orders:
    """What an instance was told by its runner."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.stopping = threading.Event()  # after the record under work, with a checkpoint
        self.killed = threading.Event()  # at once
        self.finishing: bool | None = None  # True: the input has ended; False: only drain
        self.draining = False  # batches are not waited for
        self.freeze = False  # read nothing, so that no partition comes or goes


class Stopped(Exception):
    """A record failed for good and the policy says stop."""


class WrongState(Exception):
    """A state holds a value that is not of its type, or too large."""

    def __init__(self, error: BadInput) -> None:
        """What the codec or the store said."""
        super().__init__(str(error))
        self.error = error


class TimerFailed(Exception):
    """A timer's callback raised."""

    def __init__(self, task: Task, timer: Timer, error: BaseException) -> None:
        """Which one, and what it raised."""
        super().__init__(f"timer {timer.name!r} of key {timer.key!r}: {type(error).__name__}: {error}")
        self.task = task
        self.timer = timer
        self.error = error


class Work:
    """Records of one input of one task, waiting or done."""

    __slots__ = ("alone", "attempt", "error", "has_headers", "keys", "place", "records", "stream", "task", "times")

    def __init__(  # noqa: PLR0917 - one per column
        self,
        task: Task,
        stream: str,
        place: Partition,
        records: list[Record[Any]],
        keys: list[Any],
        times: list[Micros],
        has_headers: bool,
    ) -> None:
        self.task = task
        self.stream = stream  # the computation's own name of it
        self.place = place
        self.records = records
        self.keys = keys
        self.times = times
        self.has_headers = has_headers
        self.attempt = 0
        self.error: BaseException | None = None
        self.alone = False

    def cut(self, start: int, stop: int | None = None) -> Work:
        """A part of it."""
        return Work(
            self.task, self.stream, self.place, self.records[start:stop], self.keys[start:stop],
            self.times[start:stop], self.has_headers,
        )  # fmt: skip


def rank_of(records: list[Record[Any]], record: Record[Any] | None) -> int:
    """Where a record is in a list, by identity."""
    return next((rank for rank, one in enumerate(records) if one is record), 0)


def merged(outputs: list[tuple[Partition, NewRecords]]) -> list[tuple[Partition, NewRecords]]:
    """Several tasks may write to one partition: one part for each."""
    found: dict[Partition, list[NewRecords]] = {}
    for partition, records in outputs:
        found.setdefault(partition, []).append(records)
    if len(found) == len(outputs):
        return sorted(outputs, key=lambda one: one[0])
    return sorted(
        ((partition, parts[0] if len(parts) == 1 else joined(parts)) for partition, parts in found.items()),
        key=lambda one: one[0],
    )


def joined(parts: list[NewRecords]) -> NewRecords:
    """Several parts of one partition as one."""
    values: list[bytes] = []
    keys: list[Any] = []
    times: list[Micros] = []
    headers: list[Any] = []
    for part in parts:
        count = len(part)
        values += part.values
        keys += part.keys or [None] * count
        times += part.times or ()
        headers += part.headers or [None] * count
    return NewRecords(
        values,
        keys if any(key is not None for key in keys) else None,
        times or None,
        headers if any(headers) else None,
    )

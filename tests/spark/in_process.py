"""A stand-in for Spark that runs the tasks of a job here, one after the other: SparkRunner without a JVM."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

_ONE_AT_A_TIME = threading.Lock()  # as in a worker


class Rows:
    """What a job is made of."""

    def __init__(self, rows: Iterable[Any], function: Callable[[Any], Any] | None = None) -> None:
        self._rows = list(rows)
        self._function = function

    def map(self, function: Callable[[Any], Any]) -> Rows:
        return Rows(self._rows, function)

    def collect(self) -> list[Any]:
        assert self._function is not None
        with _ONE_AT_A_TIME:
            return [self._function(row) for row in self._rows]


class InProcess:
    """Both a session and its context."""

    @property
    def sparkContext(self) -> InProcess:
        return self

    def parallelize(self, rows: Iterable[Any], tasks: int) -> Rows:
        return Rows(rows)

    def setJobGroup(self, group: str, description: str, interruptOnCancel: bool = False) -> None:
        """Nothing to remember."""

    def cancelJobGroup(self, group: str) -> None:
        """Jobs here are short."""

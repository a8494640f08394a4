"""Timers after one of them has failed: they fire one at a time, until none is due that has failed before."""

from __future__ import annotations

from penstock.stream.engine.checkpoint import Counts
from penstock.stream.engine.retry import (
    Failure,
    FailurePolicy,
    TimerFailed,
    call_timer,
    letter_of_timer,
    name_of,
)
from penstock.stream.engine.task import Task
from penstock.stream.timers import Timer


class FailedTimers:
    """The timers of an engine that have failed, and how often."""

    def __init__(self, failures: FailurePolicy, counts: Counts) -> None:
        """Start with none."""
        self.fire_alone = False  # timers fire one at a time
        self._failures = failures
        self._counts = counts
        self._failed: dict[tuple[int, Timer], Failure] = {}  # by task

    def note(self, failed: TimerFailed) -> None:
        """Count a failure; from now on timers fire one at a time."""
        self.fire_alone = True
        before = self._failed.get((failed.task, failed.timer))
        attempts = 1 if before is None else before.attempts + 1
        self._failed[failed.task, failed.timer] = self._failures.failure(failed.error, attempts)

    def fire(self, task: Task, timer: Timer) -> Failure | None:
        """Fire a timer, or give it up if its attempts are used up. Returns its failure if it has to wait.

        Raises :class:`TimerFailed` for what the computation raises.
        """
        failure = self._failed.get((task.index, timer))
        if failure is not None and failure.wait > 0:
            return failure
        if failure is not None and failure.is_final:
            self._failures.give_up(failure, letter_of_timer(timer), name_of(timer))
        else:
            call_timer(task, timer, self._counts)
        self._failed.pop((task.index, timer), None)
        return None

    def clear(self) -> None:
        """Forget the failures; timers fire together again."""
        self.fire_alone = False
        self._failed.clear()

"""The end of the input: event time goes to its end, and on_drain is called, task by task."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable

from penstock.stream.engine.checkpoint import Counts
from penstock.stream.engine.folding import NotExact
from penstock.stream.engine.retry import (
    Failure,
    FailurePolicy,
    Stopped,
    TimerFailed,
    call_timer,
    letter_of_timer,
    name_of,
)
from penstock.stream.engine.task import Task
from penstock.stream.timers import Timer


class TaskEnd:
    """A task whose input has ended; it is closed as one attempt, tried again without the timers that were given up."""

    def __init__(self, task: Task, *, final: bool) -> None:
        """With ``final`` event time goes to its end."""
        self.task = task
        self.failure: Failure | None = None  # of the last attempt
        self._is_final = final
        self._attempts: Counter[Timer | None] = Counter()
        self._skipped: dict[Timer, Failure] = {}

    def close(self, failures: FailurePolicy, counts: Counts) -> None:
        """Fire the timers of event time that are set, and call on_drain."""
        task = self.task
        if self._is_final:
            task.end_time()
            if not self._skipped:
                counts.timers += task.close_windows()
            for timer in task.timers_of_event_time():
                if task.still_set(timer) and timer not in self._skipped:
                    call_timer(task, timer, counts)
        task.drained()
        if self._is_final:
            task.close_time()
        for timer, failure in self._skipped.items():
            failures.give_up(failure, letter_of_timer(timer), name_of(timer))

    def failed(self, raised: Exception, failures: FailurePolicy) -> None:
        """An attempt failed: another one follows, perhaps without a timer; raises :class:`Stopped` if none does."""
        if isinstance(raised, NotExact):
            return  # windows could not be closed together: the next attempt closes them one by one
        timer, error = (raised.timer, raised.error) if isinstance(raised, TimerFailed) else (None, raised)
        self._attempts[timer] += 1
        failure = failures.failure(error, self._attempts[timer])
        if not failure.is_final:
            self.failure = failure
        elif timer is not None and failures.may_skip:
            self._skipped[timer], self.failure = failure, None
        else:
            raise Stopped(f"{failures.computation} failed at the end of its input") from error


class InputEnd:
    """The tasks of an engine whose input has ended: first their last records are committed, then each is closed."""

    def __init__(self, tasks: Iterable[Task], *, final: bool) -> None:
        """With ``final`` event time goes to its end."""
        self.open = deque(TaskEnd(task, final=final) for task in tasks)
        self.is_closing = False  # the last records are in a checkpoint

    def drop(self, indexes: Collection[int]) -> None:
        """Let tasks go."""
        self.open = deque(end for end in self.open if end.task.index not in indexes)

    @property
    def has_ended(self) -> bool:
        """Whether all tasks are closed."""
        return self.is_closing and not self.open

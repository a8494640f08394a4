"""What happens to a record or timer whose processing fails: further attempts, dead letters, or the end."""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.clock import Micros
from penstock.errors import BadInput, Undecodable
from penstock.log.record import NewRecords, Record
from penstock.policy import Reject
from penstock.stream.timers import Timer

if TYPE_CHECKING:
    from penstock.stream.computation import Policy
    from penstock.stream.engine.checkpoint import Counts
    from penstock.stream.engine.task import Task

logger = logging.getLogger("penstock.stream")


class Stopped(Exception):
    """A record failed for good and the policy says stop."""


class WrongState(Exception):
    """A state holds a value that is not of its type, or too large."""

    def __init__(self, error: BadInput) -> None:
        """Wrap the error of the codec or the store."""
        super().__init__(str(error))
        self.error = error


class TimerFailed(Exception):
    """A timer has failed; its work has to be undone."""

    def __init__(self, task: int, timer: Timer, error: BaseException) -> None:
        """Which one, and how."""
        super().__init__(str(error))
        self.task = task
        self.timer = timer
        self.error = error


class Failure(msgspec.Struct):
    """How the last attempt failed, and when the next one is due, or None if there is none."""

    error: BaseException
    attempts: int
    retry_at: float | None = None  # by time.monotonic()

    @property
    def is_final(self) -> bool:
        """Whether all attempts are used up."""
        return self.retry_at is None

    @property
    def wait(self) -> float:
        """Seconds until the next attempt."""
        return 0.0 if self.retry_at is None else max(0.0, self.retry_at - time.monotonic())


class DeadLetter(NamedTuple):
    """A record that was given up."""

    payload: bytes
    key: str | None
    time: Micros
    headers: dict[str, str | bytes]


def letter_of_record(record: Record[Any], key: str | None) -> DeadLetter:
    """The dead letter of a record, unchanged."""
    return DeadLetter(record.payload, key, record.time_us, dict(record.headers))


def letter_of_timer(timer: Timer) -> DeadLetter:
    """The dead letter of a timer, which has no payload."""
    return DeadLetter(b"null", timer.key or None, timer.time_us, {})


class FailurePolicy:
    """Applies the policy of a computation; holds the dead letters of the checkpoint under way."""

    def __init__(self, computation: str, policy: Policy, counts: Counts) -> None:
        """``counts`` are those of the instance: how many failures it has passed over is part of the policy."""
        self.computation = computation
        self._policy = policy
        self._counts = counts
        self._rng = random.Random()
        self.letters: list[DeadLetter] = []

    def failure(self, error: BaseException, attempts: int) -> Failure:
        """Count a failed attempt. Returns what comes next."""
        self._counts.failures += 1
        return self._next(error, attempts)

    def known_failure(self, error: BaseException, attempts: int) -> Failure:
        """A failure that another engine counted; its pause is over."""
        failure = self._next(error, attempts)
        return failure if failure.is_final else Failure(error, attempts, time.monotonic())

    def _next(self, error: BaseException, attempts: int) -> Failure:
        if isinstance(error, Reject | Undecodable):
            return Failure(error, attempts)  # it would fail again
        delay = self._policy.retry.delay(attempts, self._rng)
        return Failure(error, attempts, None if delay is None else time.monotonic() + delay.total_seconds())

    @property
    def may_skip(self) -> bool:
        """Whether the policy lets a record that failed for good be skipped."""
        return self._policy.on_failure != "stop" or self._counts.skipped < self._policy.skip_first

    def give_up(self, failure: Failure, letter: DeadLetter, what: str) -> None:
        """Skip a record or timer. Raises :class:`Stopped` if the policy says stop."""
        error = failure.error
        if not self.may_skip:
            raise Stopped(f"{self.computation} failed at {what}") from error
        self._counts.skipped += 1
        logger.warning(
            "%s skips a record of %s after %d attempts: %s: %s", self.computation, what, failure.attempts,
            type(error).__name__, error,
        )  # fmt: skip
        if self._policy.dead_letters:
            reason: dict[str, str | bytes] = {
                "penstock-error": f"{type(error).__name__}: {error}"[:1000],
                "penstock-attempts": str(failure.attempts),
                "penstock-from": what,
            }
            self.letters.append(letter._replace(headers={**letter.headers, **reason}))

    def dead_letters(self) -> NewRecords:
        """The dead letters of the checkpoint under way, as records."""
        payloads, keys, times, headers = zip(*self.letters, strict=True)
        return NewRecords(payloads, keys, times, headers)


def call_timer(task: Task, timer: Timer, counts: Counts) -> None:
    """Fire a timer. Raises :class:`TimerFailed` if the computation raises."""
    try:
        task.call(timer)
    except Exception as error:
        raise TimerFailed(task.index, timer, error) from error
    counts.timers += 1


def name_of(timer: Timer) -> str:
    """A timer, in messages."""
    return f"timer {timer.name!r} of key {timer.key!r}"

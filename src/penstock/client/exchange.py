"""One call with its repeats, without input and output: its result, or how long to pause before the next try."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from penstock.client.call import Call
from penstock.client.problems import error_of
from penstock.errors import BadInput, OutcomeUnknown, PenstockError, StoreUnavailable

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
AWAY = 503
TOO_MANY = 429


class Exchange(Generic[T]):
    """Up to ``tries`` tries at one call."""

    def __init__(self, call: Call[T], where: str, tries: int, rng: random.Random) -> None:
        """``where`` is the service, for messages."""
        self.call = call
        self._what = f"{call.method} {call.path} of {where}"
        self._left = tries - 1
        self._tried = 0
        self._rng = rng

    def result(self, headers: Mapping[str, str], content: bytes) -> T:
        """What a good answer says."""
        try:
            return self.call.read(content, headers)
        except (msgspec.MsgspecError, KeyError, UnicodeDecodeError) as cause:
            raise PenstockError(
                f"{self._what} was answered with what is not an answer of the service: {cause}.",
                hint="Is the URL that of `penstock serve`, of a version that fits this client?",
            ) from cause

    def refused(self, status: int, headers: Mapping[str, str], content: bytes) -> float:
        """Another answer has come: the seconds to pause; raises the error that it is."""
        # Too many at once: nothing was done, so whatever it was can be tried again.
        again = status == TOO_MANY or (status == AWAY and self.call.repeatable)
        if again and self._left > 0:
            after = headers.get("retry-after", "")
            return self._pause(float(after) if after.isdecimal() else None)
        raise error_of(status, content, self._what)

    def unsendable(self, cause: Exception) -> BadInput:
        """The request cannot be written down; it was not sent."""
        return BadInput(f"{self._what} cannot be sent: {cause}.", hint="Look at its address and its headers.")

    def failed(self, cause: Exception, *, was_sent: bool) -> float:
        """No answer has come: the seconds to pause; raises if it must not, or need not, be tried again."""
        if (self.call.repeatable or not was_sent) and self._left > 0:
            return self._pause(None)
        why = f"{type(cause).__name__}: {cause}"
        if was_sent and not self.call.repeatable:
            raise OutcomeUnknown(
                f"the answer to {self._what} was lost ({why}).",
                hint="It may have had its effect; look before repeating.",
            ) from cause
        raise StoreUnavailable(f"{self._what} got no answer ({why}).", hint="Is the service running?") from cause

    def _pause(self, asked: float | None) -> float:
        self._left -= 1
        self._tried += 1
        pause = FIRST_PAUSE * 2**self._tried * self._rng.uniform(0.5, 1.0)
        return min(LONGEST_PAUSE, pause if asked is None else asked)

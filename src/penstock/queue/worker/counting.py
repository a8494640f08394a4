"""Counting: tells whoever counts or logs ended attempts what the store has accepted."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Protocol

from penstock.clock import Micros
from penstock.queue.handling.context import Context
from penstock.queue.protocol import Ending

logger = logging.getLogger("penstock.queue.worker")

EndedAttempt = tuple[Ending, Context[Any]]


class AttemptCounter(Protocol):
    """Whoever counts or logs ended attempts; it must be brief, for every round trip waits for it."""

    def count(self, ended: list[EndedAttempt], now: Micros) -> None:
        """The store has accepted these outcomes."""


def count_ended(counters: Iterable[AttemptCounter], ended: list[EndedAttempt], now: Micros) -> None:
    """Tell every counter. One that fails is logged: what was settled must not be settled again because of it."""
    for counter in counters:
        try:
            counter.count(ended, now)
        except Exception:
            logger.exception("%r could not count ended attempts", counter)

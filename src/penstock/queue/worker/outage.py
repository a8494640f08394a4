"""Outage: a store that does not answer is logged when that begins, and then every half minute."""

from __future__ import annotations

import logging
import time

from penstock.errors import PenstockError

logger = logging.getLogger("penstock.queue.worker")

LOGGED_AGAIN = 30.0  # seconds


class Outage:
    """When the store's silence was last logged."""

    def __init__(self) -> None:
        """Never."""
        self._logged = -LOGGED_AGAIN

    def log(self, error: PenstockError, store: str) -> None:
        """The store did not answer, again or for the first time."""
        now = time.monotonic()
        level = logging.WARNING if now - self._logged > LOGGED_AGAIN else logging.DEBUG
        if level == logging.WARNING:
            self._logged = now
        logger.log(level, "%s did not answer; will try again: %s", store, error)

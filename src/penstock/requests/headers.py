"""What the headers of a queued request ask of its queue: expiry, retries, duplicates, time limits."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

logger = logging.getLogger("penstock.requests")

QUEUE = "x-queue"
EXPIRE_AFTER = "x-expire-after"
QUEUE_EXPIRE_AFTER = "x-queue-expire-after"
DUPLICATE_CHECK = "x-duplicate-check"
TIMEOUT = "x-timeout"
UNIQUE_IDS = ("x-rp-unique_id", "x-rp-unique-id")
DUPLICATE_SECONDS = 60
LONGEST_TIMEOUT = 3600.0

Headers = Iterable[tuple[str, str]]


class HasHeaders(Protocol):
    """A request."""

    def header(self, name: str) -> str | None:
        """The first header of a name."""


def expires_after(request: HasHeaders) -> int | None:
    """Seconds after which the request is not wanted any more; the queue's own header wins; None: never."""
    for name in (QUEUE_EXPIRE_AFTER, EXPIRE_AFTER):
        seconds = expiry(request, name)
        if seconds is not None:
            return seconds if seconds >= 0 else None
    return None


def expiry(request: HasHeaders, name: str = EXPIRE_AFTER) -> int | None:
    """What one expiry header says: seconds, -1 for never, None for absent, below -1 or no number."""
    text = request.header(name)
    if text is None:
        return None
    try:
        seconds = int(text.strip())
    except ValueError:
        logger.warning("header %s: %r is no number of seconds; it is ignored", name, text)
        return None
    return seconds if seconds >= -1 else None


def retries(request: HasHeaders, status: int) -> int | None:
    """How often a request is tried again after this status: a number, 0 for never, None without end."""
    for name in (f"x-queue-retry-{status}", f"x-queue-retry-{status // 100}xx"):
        text = request.header(name)
        if text is None:
            continue
        try:
            number = int(text.strip())
        except ValueError:
            logger.warning("header %s: %r is no number of retries; it is ignored", name, text)
            return None
        return number if number >= 0 else None
    return None


def duplicate_seconds(request: HasHeaders) -> int | None:
    """For how many seconds an equal request counts as a duplicate; None: it is not asked."""
    text = request.header(DUPLICATE_CHECK)
    if text is None:
        return None
    try:
        seconds = int(text.strip())
    except ValueError:
        return DUPLICATE_SECONDS
    return seconds if seconds > 0 else DUPLICATE_SECONDS


def timeout_seconds(request: HasHeaders, default: float) -> float:
    """How long the backend may take, by the request's own header (milliseconds) or the default."""
    text = request.header(TIMEOUT)
    if text is None:
        return default
    try:
        milliseconds = int(text.strip())
    except ValueError:
        return default
    return min(milliseconds / 1000, LONGEST_TIMEOUT) if milliseconds > 0 else default


def unique_request_id(request: HasHeaders, uri: str) -> str:
    """What tells requests apart in a circuit's statistics: the id that clients send, else the address."""
    for name in UNIQUE_IDS:
        value = request.header(name)
        if value:
            return value
    return uri

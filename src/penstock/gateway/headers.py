"""What the headers of a queued request ask of its queue: expiry, retries, duplicates, time limits."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Protocol

logger = logging.getLogger("penstock.gateway")

QUEUE = "x-queue"
EXPIRE_AFTER = "x-expire-after"
QUEUE_EXPIRE_AFTER = "x-queue-expire-after"
RETRY = "x-queue-retry-"
DUPLICATE_CHECK = "x-duplicate-check"
TIMEOUT = "x-timeout"
UNIQUE_IDS = ("x-rp-unique_id", "x-rp-unique-id")
DUPLICATE_SECONDS = 60
LONGEST_WAIT = 3600
SHOWN = 100  # characters of a header in a log

Headers = Iterable[tuple[str, str]]


class HasHeaders(Protocol):
    """A request."""

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """All of them; names may repeat."""

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
        logger.warning("header %s: %r is not a number of seconds; it is ignored", name, text[:SHOWN])
        return None
    return seconds if seconds >= -1 else None


def retry_header(request: HasHeaders, status: int) -> str | None:
    """The header of a request that is about this status: its own, else that of its class."""
    names = (f"{RETRY}{status}", f"{RETRY}{status // 100}xx")
    return next((name for name in names if request.header(name) is not None), None)


def retries(request: HasHeaders, status: int) -> int | None:
    """How often a request is tried again after this status: a number, 0 for never, None without end."""
    name = retry_header(request, status)
    if name is None:
        return None
    text = request.header(name) or ""
    try:
        number = int(text.strip())
    except ValueError:
        logger.warning("header %s: %r is not a number of retries; it is ignored", name, text[:SHOWN])
        return None
    return number if number >= 0 else None


def has_retries(request: HasHeaders) -> bool:
    """Whether any of its headers is about retries."""
    return any(name.lower().startswith(RETRY) for name, _ in request.headers)


def retry_after(text: str | None, now: datetime) -> int | None:
    """The seconds that a backend asks to be left in peace: a number, or a date, or None if it says nothing readable."""
    if text is None:
        return None
    if (digits := text.strip()).isdecimal():
        return min(int(digits[:12]), LONGEST_WAIT)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
    return max(0, min(math.ceil((until - now).total_seconds()), LONGEST_WAIT))


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


def timeout_seconds(request: HasHeaders, most: float) -> float:
    """How long the backend may take: ``most``, or less by the request's own header (milliseconds)."""
    text = request.header(TIMEOUT)
    if text is None:
        return most
    try:
        milliseconds = int(text.strip())
    except ValueError:
        return most
    return milliseconds / 1000 if 0 < milliseconds < most * 1000 else most


def unique_request_id(request: HasHeaders, uri: str) -> str:
    """What tells requests apart in a circuit's statistics: the id that clients send, else the address."""
    for name in UNIQUE_IDS:
        value = request.header(name)
        if value:
            return value
    return uri

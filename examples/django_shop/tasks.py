"""The tasks of the shop."""

from __future__ import annotations

from typing import Any

import django

from penstock import Reject, Snooze

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task

sent: list[str] = []


@task
def welcome(customer: str, *, copies: int = 1) -> dict[str, Any]:
    """Send a mail."""
    sent.extend([customer] * copies)
    return {"to": customer, "copies": copies}


@task(queue_name="reports", priority=7)
async def report(day: str) -> str:
    """Write a report."""
    return f"report of {day}"


@task(takes_context=True)
def count_attempts(context: Any) -> int:
    """Say which attempt this is."""
    attempt: int = context.attempt
    return attempt


@task
def collect(parcel: str) -> str | Reject:
    """A task may say what becomes of it, as a handler may."""
    if parcel == "not ready":
        raise Snooze("1h")
    if parcel == "no such parcel":
        return Reject(parcel)  # returned or raised: both mean the same
    return parcel


@task
def fail(text: str) -> None:
    """Fail, always."""
    raise ConnectionError(text)

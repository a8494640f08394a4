"""Who changed what over HTTP: stored for the dashboard's page of changes."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Request

from penstock.errors import PenstockError
from penstock.queue.changes import Change, record_change
from penstock.queue.queue import Queue
from penstock.service.access import audit
from penstock.service.keys import ApiKey

MOST_IDS = 20  # that are named; a change of more says how many


def record(request: Request, key: ApiKey, change: tuple[str, str], before: str, after: str, *, why: str = "") -> None:
    """Record what was done: ``change`` is what, and to what. If recording fails, that is only logged."""
    did, target = change
    try:
        record_change(request.app.state.queues, Change(key.name, did, target, before, after, why))
    except PenstockError as error:
        audit.warning("%s of %s by %s was done, but is not recorded: %s", did, target, key.name, error)


def named(ids: list[str]) -> str:
    """Entries in a change."""
    more = f" and {len(ids) - MOST_IDS} more" if len(ids) > MOST_IDS else ""
    return " ".join(ids[:MOST_IDS]) + more


def locks_text(queue: Queue[Any]) -> str:
    """Who has locked a queue, and why."""
    locks = queue.locks()
    return ", ".join(f"locked by {lock.holder}: {lock.reason or 'no reason'}" for lock in locks) or "not locked"


def as_text(value: Any) -> str:
    """A value in a change."""
    return msgspec.json.encode(value, enc_hook=str).decode()

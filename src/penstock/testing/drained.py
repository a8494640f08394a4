"""Draining: all due work handled in the calling thread, so that a test needs no worker and no waiting."""

from __future__ import annotations

from typing import Any

from penstock.queue.queue import Queue
from penstock.queue.queues import QueueStore
from penstock.queue.worker import Worker


def drain(store: QueueStore, *queues: Queue[Any], limit: int | None = None) -> int:
    """Handle what is due in these queues, or in all with a handler, until nothing is.

    Work that the handlers put is handled too once it is due; retries wait for their time, so move the clock and drain
    again.

    Args:
        store: whose queues
        *queues: these only
        limit: end after so many runs

    Returns:
        how many handlers ran
    """
    return Worker(store, queues or None).drain(limit=limit)

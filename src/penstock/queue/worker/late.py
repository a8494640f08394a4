"""Late outcomes: what is said of attempts that did not count, because their entries were taken away meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.errors import LeaseLost, PenstockError
from penstock.queue.entry import Lease
from penstock.queue.protocol import Find

if TYPE_CHECKING:
    from penstock.queue.queues import QueueStore

logger = logging.getLogger("penstock.queue.worker")


def log_late(store: QueueStore, late: Sequence[tuple[Lease, LeaseLost]]) -> None:
    """One line for each: a cancel is what somebody wanted, a lease that was lost otherwise is a warning."""
    cancelled = _cancelled(store, [lease for lease, _ in late])
    for lease, error in late:
        if lease.token in cancelled:
            logger.info("entry %s of queue %r was cancelled while this worker had it", lease.entry, lease.queue)
        else:
            logger.warning("an outcome came too late: %s", error)


def _cancelled(store: QueueStore, leases: Sequence[Lease]) -> set[str]:
    """The tokens of those that a cancel has ended."""
    ids = tuple({lease.entry for lease in leases})
    try:
        rows = store.driver.history(Find(ids=ids, states=("cancelled",), newest_first=True))
    except PenstockError:  # then the warning says what is known
        return set()
    last = {row.id: row for row in reversed(rows)}
    return {
        lease.token for lease in leases
        if (row := last.get(lease.entry)) is not None
        and row.owner == lease.owner and row.ended_us >= lease.claimed_us
    }  # fmt: skip

"""Whether a queue exists, and deleting it: an empty queue leaves the lists, and what was set for it is forgotten.

A store keeps the name of a queue for its history, and a put that is under way may need it. So a deleted queue is noted
in a document of its own, and left out of the lists for as long as it is empty: no entry can get lost in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import Conflict
from penstock.ids import derived_id
from penstock.policy import Rate
from penstock.queue.entry import Counts
from penstock.queue.protocol import Definition, DocumentWrite

if TYPE_CHECKING:
    from penstock.queue.queue import Queue
    from penstock.queue.queues import QueueStore

PREFIX = "penstock.deleted."
NOTHING_SET = Definition(fifo=False, rate=Rate(0, 1), label_limit=("", 0))


def delete_queue(store: QueueStore, name: str) -> None:
    """Take an empty queue off the lists and forget its settings and locks; its history stays until it is pruned.

    Raises ``Conflict`` while it holds entries or dead letters, or something puts into it by itself.
    """
    check_deletable(store, name)
    for lock in store.locks(name):
        store.driver.unlock(name, lock.holder)
    store.driver.define(name, NOTHING_SET)
    store.driver.write([DocumentWrite(_document(name), name.encode())])


def check_deletable(store: QueueStore, name: str) -> None:
    """Raise ``Conflict`` with what stands against deleting a queue."""
    [counts] = store.driver.counts(name)
    if counts.live or counts.dead:
        raise Conflict(
            f"queue {name!r} is not empty: {counts.live:,} live, {counts.dead:,} dead.",
            hint="Cancel the entries and purge or replay the dead letters first.",
        )
    schedules = [schedule.name for schedule in store.schedules() if schedule.queue == name]
    subscriptions = [subscription.name for subscription in store.driver.subscriptions() if subscription.queue == name]
    if schedules or subscriptions:
        raise Conflict(
            f"queue {name!r} is filled by {', '.join([*schedules, *subscriptions])}.",
            hint="Remove the schedule or the subscription first.",
        )


def without_deleted(store: QueueStore, counts: list[Counts]) -> list[Counts]:
    """Those that are not deleted, or hold something again."""
    if all(is_used(counted) for counted in counts):
        return counts
    deleted = {document.value.decode() for document in store.driver.documents(PREFIX)}
    return [counted for counted in counts if is_used(counted) or counted.queue not in deleted]


def listed_queues(store: QueueStore, *, prefix: str = "", after: str = "", limit: int = 100) -> list[Counts]:
    """What the first queues after a name hold, by name."""
    listed: list[Counts] = []
    while len(listed) < limit:
        counts = store.driver.page(prefix=prefix, after=after, limit=limit)
        listed += without_deleted(store, counts)
        if len(counts) < limit:
            break
        after = counts[-1].queue
    return listed[:limit]


def queue_exists(queue: Queue[Any]) -> bool:
    """Whether a queue holds or held anything, is locked, defined, scheduled for or subscribed."""
    store, name = queue.store, queue.name
    if queue.find(limit=1):  # most queues hold something, and to count it all may take long
        return True
    definition = store.driver.definitions().get(name, queue.definition)
    if is_used(queue.counts()) or definition.is_limited:
        return True
    feeds = {feed.queue for feed in store.schedules()} | {feed.queue for feed in store.driver.subscriptions()}
    if name in feeds:
        return True
    is_known = not definition.empty or bool(queue.history(limit=1))
    return is_known and not is_deleted(store, name)


def is_deleted(store: QueueStore, name: str) -> bool:
    """Whether a queue was deleted at some time; what was put since is in its counts."""
    return store.driver.document(_document(name)) is not None


def is_used(counts: Counts) -> bool:
    """Whether a queue holds something, is locked or is a FIFO queue."""
    return bool(counts.live or counts.dead or counts.locks or counts.fifo)


def _document(queue: str) -> str:
    return PREFIX + derived_id("deleted", queue)

"""What the processes do that are frozen inside a transaction."""

import json
from pathlib import Path
from typing import Any

from penstock import QueueStore, open_queues
from penstock.ids import new_id
from penstock.queue.protocol import ClaimRequest, Ending, Find, Source, Step

LEASE = 60_000_000


def claim(store: QueueStore, limit: int, queue: str = "q") -> list[Any]:
    request = ClaimRequest(new_id(), (Source(queue, limit, 5),), limit, "worker", "one", LEASE)
    return store.driver.claim(request).entries


def claim_some(url: str, folder: Path) -> None:
    """Claim two entries and write down what was given."""
    with open_queues(url, node="one") as store:
        entries = claim(store, 2)
        given = [(entry.id, entry.attempt, entry.lease.token) for entry in entries]
        (folder / "given").write_text(json.dumps(given))


def lock_queue(url: str, folder: Path) -> None:
    with open_queues(url, node="one") as store:
        store.driver.lock("q", "frozen", "why")


def unlock_queue(url: str, folder: Path) -> None:
    with open_queues(url, node="one") as store:
        store.driver.unlock("q", "frozen")


def finish_one(url: str, folder: Path) -> None:
    """End what this owner holds, and put something with it."""
    with open_queues(url, node="one") as store:
        [entry] = store.driver.find(Find(states=("leased",)))
        store.driver.commit(Step((Ending(entry.lease, "done"),), (store.queue("out", str).new("y"),)))

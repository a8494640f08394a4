"""What the seed tests share: waiting with an end, claiming by hand, and rows of history in short."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock import Entry, Queue, QueueStore, Signal, Worker
from penstock.clock import duration_micros
from penstock.ids import new_nonce
from penstock.queue.protocol import Claimed, ClaimRequest, Ending, Step


def eventually(condition: Callable[[], Any], what: str, seconds: float = 30.0) -> None:
    """Wait until the condition holds; fail with ``what`` when it does not come about."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.005)


@contextmanager
def working(*stores: QueueStore, **options: Any) -> Iterator[list[Worker]]:
    """A worker per store handle while the block runs."""
    workers = [Worker(store, **options) for store in stores]
    for worker in workers:
        worker.start()
    try:
        yield workers
    finally:
        for worker in workers:
            worker.stop(grace="5s")


def claim(
    queue: Queue[Any], limit: int = 1, *, lease: str = "60s", attempts: int | None = 5, owner: str = "someone"
) -> list[Entry[Any]]:
    """Leases that nobody keeps alive, as a worker leaves them that vanished."""
    return claimed(queue, limit, lease=lease, attempts=attempts, owner=owner).entries


def claimed(
    queue: Queue[Any], limit: int = 1, *, lease: str = "60s", attempts: int | None = 5, owner: str = "someone"
) -> Claimed:
    store = queue.store
    sources = (queue.source(limit, attempts),)
    return store.driver.claim(ClaimRequest(new_nonce(), sources, limit, owner, store.node, duration_micros(lease)))


def finish(store: QueueStore, *entries: Entry[Any]) -> None:
    """End leased entries as done, in one step."""
    store.driver.commit(Step(tuple(Ending(entry.lease, "done") for entry in entries if entry.lease is not None)))


def states(queue: Queue[Any], id_: str | None = None) -> list[str]:
    """What the attempts came to, oldest first."""
    return [row.state for row in queue.history(id_, limit=100_000)]


class Ear:
    """Keeps the signals it was told of."""

    def __init__(self, store: QueueStore, *kinds: str) -> None:
        self.heard: list[Signal] = []
        store.signals.subscribe(self.heard.append, *kinds)

    def ids(self, kind: str) -> list[str]:
        return [id_ for signal in self.heard if signal.kind == kind for id_ in signal.ids]


class Runs:
    """A handler that remembers what it was given, from any thread, and fails as often as told."""

    def __init__(self, failures: int = 0, error: type[BaseException] = RuntimeError) -> None:
        self.values: list[Any] = []
        self.tries = 0
        self._left = failures
        self._error = error
        self._lock = threading.Lock()

    def __call__(self, value: Any) -> None:
        with self._lock:
            self.tries += 1
            if self._left > 0:
                self._left -= 1
                raise self._error(f"failure {self.tries}")
            self.values.append(value)


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Make the calls in threads that start together; their results in order, errors included."""
    gate = threading.Barrier(len(calls))
    results: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        gate.wait(30)
        try:
            results[index] = calls[index]()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a call did not come back within 30 s"
    return results

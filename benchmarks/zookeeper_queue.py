"""One run of the comparison with another source in the benchmark of ZooKeeper; prints entries a second.

python -m benchmarks.zookeeper_queue put|drain URL COUNT

A program of its own that uses only what earlier versions have too, so that it can run with the source of another
checkout.
"""

from __future__ import annotations

import sys
import threading

from benchmarks.measure import timed
from penstock import QueueStore, Worker, open_queues

BODY = "x" * 100


def put_rate(store: QueueStore, count: int) -> float:
    """Single puts, one after the other."""
    queue = store.queue("mails", str)
    queue.put(BODY)
    return timed(count, lambda: [queue.put(BODY) for _ in range(count)]).rate


def drain_rate(store: QueueStore, count: int) -> float:
    """A worker with one slot and a handler that does nothing."""
    queue = store.queue("mails", str)
    queue.put_many([BODY] * count, chunk=200)
    left, done = count, threading.Event()

    def handle(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    queue.add_handler(handle, concurrency=1)
    worker = Worker(store)

    def work() -> None:
        worker.start()
        done.wait()

    run = timed(count, work)
    worker.stop()
    return run.rate


if __name__ == "__main__":
    with open_queues(sys.argv[2]) as opened:
        print((put_rate if sys.argv[1] == "put" else drain_rate)(opened, int(sys.argv[3])))

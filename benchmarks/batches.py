"""What batches, chains and results cost: each bar as a ratio of interleaved runs on one store.

    python benchmarks/batches.py postgresql://... [--pairs 5] [--entries 10000]

batch    time of a batch of N until its callback ran, over N plain entries drained
chain    time of a chain of 100 until its end, over 100 entries of which each is put when the one before has ended
results  CPU of a drain with kept results, over the same without
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from penstock import QueueStore, Worker, open_queues
from penstock.ids import new_nonce

CHAIN = 100


def nothing(value: int) -> None:
    """A handler."""


def measured(work: Callable[[], Any]) -> tuple[float, float]:
    """Wall time and CPU of this process, in seconds."""
    begin, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begin, time.process_time() - cpu


def drain(store: QueueStore, name: str, count: int, result: Any = None, **options: Any) -> tuple[float, float]:
    """Let a worker handle so many entries of one queue; the handler does nothing and returns ``result``."""
    queue = store.queue(name, int)
    left, ended = count, threading.Event()

    def handle(value: int) -> Any:
        nonlocal left
        left -= 1
        if left <= 0:
            ended.set()
        return result

    def work() -> None:
        worker.start()
        ended.wait(60)
        worker.stop()

    queue.add_handler(handle, concurrency=1, **options)
    worker = Worker(store)
    try:
        return measured(work)
    finally:
        assert left == 0
        queue.remove_handler()


def plain(store: QueueStore, count: int) -> tuple[float, float]:
    """Plain entries."""
    name = f"q{new_nonce()}"
    store.queue(name, int).put_many(range(count), chunk=5000)
    return drain(store, name, count)


def batch(store: QueueStore, count: int) -> tuple[float, float]:
    """A batch of as many, and its callback."""
    name = f"q{new_nonce()}"
    queue = store.queue(name, int)
    with store.batch(then=(queue, -1)) as made:
        made.put_many(queue, range(count))
    result = drain(store, name, count + 1)
    [wait] = store.driver.waits([made.id])
    assert (wait.needs, wait.done) == (0, count)
    return result


def with_results(store: QueueStore, count: int) -> tuple[float, float]:
    """Plain entries whose handlers' values are kept."""
    name = f"q{new_nonce()}"
    store.queue(name, int).put_many(range(count), chunk=5000)
    return drain(store, name, count, 1, keep_result="1h")


def chain(store: QueueStore) -> float:
    """A chain until its end."""
    queue = store.queue(f"q{new_nonce()}", int)

    def work() -> None:
        store.chain(*((queue, number) for number in range(CHAIN)))
        Worker(store).drain()

    queue.add_handler(nothing)
    seconds, _ = measured(work)
    queue.remove_handler()
    return seconds


def by_hand(store: QueueStore) -> float:
    """As many entries, each put when the one before has ended."""
    queue = store.queue(f"q{new_nonce()}", int)

    def handle(number: int, ctx: Any) -> None:
        if number + 1 < CHAIN:
            ctx.put(queue, number + 1)

    def work() -> None:
        queue.put(0)
        Worker(store).drain()

    queue.add_handler(handle)
    seconds, _ = measured(work)
    queue.remove_handler()
    return seconds


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--entries", type=int, default=10_000)
    given = parser.parse_args()
    ratios: dict[str, list[float]] = {"batch": [], "chain": [], "results": [], "results cpu": []}
    with open_queues(given.url) as store:
        plain(store, 1000), batch(store, 1000)
        for _ in range(given.pairs):
            base, cpu = plain(store, given.entries)
            ratios["batch"].append(batch(store, given.entries)[0] / base)
            ratios["chain"].append(chain(store) / by_hand(store))
            kept, kept_cpu = with_results(store, given.entries)
            ratios["results"].append(kept / base)
            ratios["results cpu"].append(kept_cpu / cpu)
    for name, values in ratios.items():
        spread = f"{min(values):.2f} to {max(values):.2f}"
        print(f"{name:12} median {statistics.median(values):.2f}   {spread}")


if __name__ == "__main__":
    main()

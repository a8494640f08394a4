"""What batches, chains and results cost: each bar as a ratio of interleaved runs on one store.

python -m benchmarks.batches [--quick] [--old SOURCE-FOLDER] [sqlite postgres redis mysql zookeeper]

batch    time of a batch of N until its callback ran, over N plain entries drained
chain    time of a chain of 100 until its end, over 100 entries of which each is put when the one before has ended
results  CPU of a drain with kept results, over the same without
memory   by how much the peak of a process grows that puts and drains a batch, and with plain entries: no bar
plain    with --old: CPU of entries without links, over the same with the source of another checkout; pairs of processes
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools import servers

from benchmarks.measure import Bar, conditions, folder, report
from penstock import QueueStore, Worker, open_queues
from penstock.ids import new_nonce

QUICK = "--quick" in sys.argv
OLD = sys.argv[sys.argv.index("--old") + 1] if "--old" in sys.argv else None
OLD_PAIRS = 3 if QUICK else 15
PAIRS = 3 if QUICK else 7
ENTRIES = 2_000 if QUICK else 10_000
CHAIN = 100
STORES: dict[str, type[servers.Server] | None] = {
    "sqlite": None, "postgres": servers.Postgres, "redis": servers.Redis, "mysql": servers.Mysql,
    "zookeeper": servers.Zookeeper,
}  # fmt: skip
TITLES = {
    "sqlite": "SQLite", "postgres": "PostgreSQL", "redis": "Redis", "mysql": "MariaDB", "zookeeper": "ZooKeeper",
}  # fmt: skip
MOST = {"zookeeper": 2_000}  # entries that a queue there may hold, with room
BARS = {"batch": 1.3, "chain": 1.2, "results": 1.1}
PLAIN_BAR = 1.01
NOTES: list[str] = []  # what has no bar


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


@contextmanager
def served(name: str) -> Iterator[str]:
    """The URL of a store on a durable server, or in a file."""
    kind = STORES[name]
    if kind is None:
        with folder() as path:
            yield f"sqlite:///{path.absolute()}/batches.db"
        return
    server = kind(durable=True).start()
    try:
        yield server.url
    finally:
        server.close()


def own_process(source: str, kind: str, count: int, url: str) -> tuple[float, float]:
    """CPU per entry and growth of memory of one run in a process of its own, with the source of a checkout."""
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.plain", kind, str(count), url],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((source, str(Path.cwd())))},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    cpu_us, megabytes = map(float, run.stdout.split())
    return cpu_us, megabytes


def memory(name: str, count: int, url: str) -> None:
    """How much memory a batch takes, as a note."""
    grown = {kind: own_process(str(Path.cwd() / "src"), kind, count, url)[1] for kind in ("plain", "batch")}
    batch_mb, plain_mb = grown["batch"], grown["plain"]
    NOTES.append(
        f"{TITLES[name]}: peak of memory with a batch of {count:,} +{batch_mb:.0f} MB, plain +{plain_mb:.0f} MB"
    )


def against_old(name: str, count: int, url: str) -> Bar:
    """Entries without links, with this source and another one; each space is new, and who comes first changes."""
    ratios = []
    for pair in range(OLD_PAIRS):
        cpu: dict[bool, float] = {}
        for is_old in (pair % 2 == 0, pair % 2 == 1):
            source = str(Path(OLD or "").absolute()) if is_old else str(Path.cwd() / "src")
            own = f"{url}{'&' if '?' in url else '?'}space=s{new_nonce()}"
            cpu[is_old] = own_process(source, "plain", count, own)[0]
        ratios.append(cpu[False] / cpu[True])
    ratio = statistics.median(ratios)
    return Bar(
        f"{TITLES[name]}: entries without links vs the other source, CPU of the worker, {OLD_PAIRS} pairs",
        f"at most {PLAIN_BAR}x", f"{ratio:.3f}x ({min(ratios):.2f} to {max(ratios):.2f})", ratio <= PLAIN_BAR,
    )  # fmt: skip


def measure(name: str) -> list[Bar]:
    """The bars of one store."""
    count = min(ENTRIES, MOST.get(name, ENTRIES))
    with served(name) as url:
        bars = ratios_of(name, count, url)
        memory(name, count, url)
        return bars if OLD is None else [*bars, against_old(name, count, url)]


def ratios_of(name: str, count: int, url: str) -> list[Bar]:
    """The bars that are ratios within one process."""
    ratios: dict[str, list[float]] = {bar: [] for bar in BARS}
    with open_queues(url) as store:
        plain(store, 1000), batch(store, 1000), chain(store), by_hand(store)
        for _ in range(PAIRS):
            seconds, cpu = plain(store, count)
            ratios["batch"].append(batch(store, count)[0] / seconds)
            ratios["chain"].append(chain(store) / by_hand(store))
            ratios["results"].append(with_results(store, count)[1] / cpu)
    labels = {
        "batch": f"a batch of {count:,} vs plain entries, time",
        "chain": f"a chain of {CHAIN} vs puts by hand, time",
        "results": "results kept vs not, CPU of the worker",
    }
    return [
        Bar(
            f"{TITLES[name]}: {labels[bar]}", f"at most {BARS[bar]}x",
            f"{statistics.median(values):.2f}x ({min(values):.2f} to {max(values):.2f})",
            statistics.median(values) <= BARS[bar],
        )
        for bar, values in ratios.items()
    ]  # fmt: skip


def main() -> int:
    """Print the ratios."""
    print(f"Conditions: {conditions()}", flush=True)
    wanted = [name for name in STORES if name in sys.argv] or list(STORES)
    bars = [bar for name in wanted for bar in measure(name)]
    return 0 if report("Batches, chains and results", bars, [f"medians of {PAIRS} pairs", *NOTES]) else 1


if __name__ == "__main__":
    sys.exit(main())

"""ZooKeeper: puts against a bare kazoo loop of the same multi, drains, and how many operations an entry costs.

python -m benchmarks.zookeeper [--quick] [--old SOURCE-FOLDER]

Every round measures each of them once, so that a busy machine slows all alike; ratios are what counts. ``--old`` also
compares puts and drains with the source of another checkout, in turn, each in a process of its own.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient
from tools import servers

from benchmarks.measure import Bar, Run, conditions, report, timed
from penstock import Worker, open_queues
from penstock.ids import new_nonce
from penstock.queue.drivers.zookeeper import ZookeeperDriver
from penstock.queue.drivers.zookeeper.connection import Op
from penstock.queue.queues import QueueStore

QUICK = "--quick" in sys.argv
OLD = sys.argv[sys.argv.index("--old") + 1] if "--old" in sys.argv else None
ROUNDS = 3 if QUICK else 7
PUTS = 600 if QUICK else 3_000
DOZEN = 12
BACKLOG = 500 if QUICK else 3_000
BODY = "x" * 100


@contextmanager
def space(server: servers.Server) -> Iterator[QueueStore]:
    """A space of its own."""
    with open_queues(f"{server.url}/{new_nonce()}") as store:
        assert isinstance(store.driver, ZookeeperDriver)
        yield store


@contextmanager
def counted(store: QueueStore) -> Iterator[list[Sequence[Op]]]:
    """The multis that are sent meanwhile."""
    multi, sent = store.driver.connection.multi, []

    def send(ops: Sequence[Op]) -> Any:
        sent.append(ops)
        return multi(ops)

    store.driver.connection.multi = send  # type: ignore[method-assign]
    yield sent
    store.driver.connection.multi = multi  # type: ignore[method-assign]


class BarePuts:
    """The multi of a single put, sent with nothing around it: as many operations of the same kinds and sizes."""

    def __init__(self, server: servers.Server, ops: Sequence[Op]) -> None:
        self._head, self._entry, self._bell, self._record = (op.data for op in ops)
        self._root = f"/{new_nonce()}"
        self._number = 0
        self.client = KazooClient(hosts=server.url.removeprefix("zookeeper://").partition("/")[0])
        self.client.start()
        for folder in ("queue", "entries", "bell", "log"):
            self.client.ensure_path(f"{self._root}/{folder}")

    def put(self) -> None:
        request = self.client.transaction()
        request.set_data(f"{self._root}/queue", self._head, self._number)
        request.create(f"{self._root}/entries/{self._number:010d}", self._entry)
        request.set_data(f"{self._root}/bell", self._bell)
        request.create(f"{self._root}/log/c-", self._record, sequence=True)
        request.commit()
        self._number += 1


def puts(server: servers.Server) -> list[tuple[Run, Run]]:
    """Single puts and bare ones, in turn by the dozen: whatever else the machine does, it does to both."""
    with space(server) as store:
        queue = store.queue("mails", str)
        with counted(store) as sent:
            queue.put(BODY)
            queue.put(BODY)
        bare = BarePuts(server, sent[-1])
        try:
            return [
                (
                    timed(DOZEN, lambda: [queue.put(BODY) for _ in range(DOZEN)]),
                    timed(DOZEN, lambda: [bare.put() for _ in range(DOZEN)]),
                )
                for _ in range(PUTS // DOZEN)
            ]
        finally:
            bare.client.stop()
            bare.client.close()


def drained(server: servers.Server) -> tuple[Run, float]:
    """A worker with one slot and a handler that does nothing; the run, and operations per entry from put to end."""
    with space(server) as store, counted(store) as sent:
        queue = store.queue("mails", str)
        queue.put_many([BODY] * BACKLOG, chunk=200)
        left, done = BACKLOG, threading.Event()

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

        run = timed(BACKLOG, work)
        worker.stop()
        return run, sum(map(len, sent)) / BACKLOG


def rate_with(source: str, server: servers.Server, work: str, count: int) -> float:
    """Entries a second of a process with this source, in a space of its own."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.zookeeper_queue", work, f"{server.url}/{new_nonce()}", str(count)],
        env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{Path.cwd()}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(ended.stdout)


def versus(old: str, server: servers.Server) -> tuple[list[Bar], list[str]]:
    """Puts and drains with this source and with another one, in turn."""
    bars, notes = [], []
    for work, count, wanted in (("put", PUTS // 2, 1.3), ("drain", BACKLOG, 1.2)):
        mine, before, ratios = [], [], []
        for number in range(ROUNDS):
            for source, rates in ((old, before), (str(Path.cwd() / "src"), mine))[:: 1 if number % 2 else -1]:
                rates.append(rate_with(source, server, work, count))
            ratios.append(mine[-1] / before[-1])
        ratio = statistics.median(ratios)
        bars.append(Bar(f"{work} vs the other source", f">= {wanted}x", f"{ratio:.2f}x", ratio >= wanted))
        notes.append(
            f"{work} {statistics.median(mine):,.0f}/s, the other source {statistics.median(before):,.0f}/s "
            f"(ratios {min(ratios):.2f} to {max(ratios):.2f})"
        )
    return bars, notes


def main() -> int:
    """Measure and print."""
    print(f"Conditions: {conditions()}", flush=True)
    server = servers.Zookeeper(durable=True).start()
    try:
        pairs = puts(server)
        drains = [drained(server) for _ in range(ROUNDS)]
        more_bars, more_notes = versus(OLD, server) if OLD is not None else ([], [])
    finally:
        server.close()
    ours, bare = (sum(pair[side].seconds for pair in pairs) for side in (0, 1))
    ratio = statistics.median(bare.seconds / ours.seconds for ours, bare in pairs)
    operations = max(number for _, number in drains)
    bars = [
        Bar("single put vs a bare loop of the same multi", ">= 0.9x", f"{ratio:.2f}x", ratio >= 0.9),
        Bar("operations per entry, from put to end", "<= 3", f"{operations:.2f}", operations <= 3),
        *more_bars,
    ]
    count = DOZEN * len(pairs)
    notes = [
        f"put {count / ours:,.0f}/s, bare {count / bare:,.0f}/s (in all {bare / ours:.2f}x)",
        f"drain {statistics.median(run.rate for run, _ in drains):,.0f}/s",
        *more_notes,
    ]
    return 0 if report("Queues on ZooKeeper, beside bare multis", bars, notes) else 1


if __name__ == "__main__":
    sys.exit(main())

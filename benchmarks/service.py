"""The breaker: what it costs a drain, in CPU, in calls to the store and in round trips to its server.

python -m benchmarks.service [--quick] [sqlite postgres]
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tools import servers

import penstock
from benchmarks.measure import Bar, Run, conditions, folder, report, timed
from penstock import Breaker, Worker
from penstock.breaker import BreakerConfig

QUICK = "--quick" in sys.argv
COUNT = 10_000 if QUICK else 50_000
REPEATS = 3 if QUICK else 7
SAMPLES = 5_000
PAYLOAD = {"to": "ann@example.org", "subject": "hello", "body": "x" * 100}


class Drain(NamedTuple):
    """A drain, its calls to settle, and its round trips: the times that the driver waited for its server."""

    run: Run
    calls: int
    waits: int


@contextmanager
def counted(url: str) -> Iterator[Callable[[], int]]:
    """How often the connections of workers have waited for PostgreSQL; 0 on other stores."""
    if not url.startswith("postgresql"):
        yield lambda: 0
        return
    from penstock.queue.drivers.sql.postgres_connection import BoundedConnection

    waits, real = [0], BoundedConnection.wait

    def wait(self: Any, *arguments: Any, **options: Any) -> Any:
        # The breaker's own thread looks around twice a second, however much is settled.
        waits[0] += threading.current_thread().name != "penstock-breaker"
        return real(self, *arguments, **options)

    BoundedConnection.wait = wait  # type: ignore[method-assign]
    try:
        yield lambda: waits[0]
    finally:
        BoundedConnection.wait = real  # type: ignore[method-assign]


def drain(url: str, *, guarded: bool) -> Drain:
    """One worker, a handler that does nothing, with or without a breaker that keeps its samples."""
    with penstock.open_queues(url) as store, counted(url) as waits:
        queue = store.queue("mails", dict)
        breaker = Breaker(store, BreakerConfig.active(max_queue_sample_count=SAMPLES))
        if guarded:
            # A window that is full from the first entry on: every outcome pushes an older one out.
            circuit = breaker.ledger.circuit("mails")
            for number in range(SAMPLES):
                circuit.statistics.add(f"old-{number}", True, store.now())
            breaker.report("mails", "first", True)
        queue.put_many([PAYLOAD] * COUNT, chunk=1000)
        left, done, counting = COUNT, threading.Event(), threading.Lock()

        def handle(_: object) -> None:
            nonlocal left
            with counting:
                left -= 1
                if left == 0:
                    done.set()

        queue.add_handler(handle, concurrency=1, breaker=breaker if guarded else None)
        calls = 0
        real = store.driver._settle  # noqa: SLF001

        def settle(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            return real(*arguments)

        store.driver._settle = settle  # type: ignore[method-assign]  # noqa: SLF001
        worker = Worker(store)

        def work() -> None:
            worker.start()
            done.wait()
            worker.stop()

        before = waits()
        run = timed(COUNT, work)
        trips = waits() - before
        if guarded:
            assert breaker.circuit("mails").successes == SAMPLES
        return Drain(run, calls, trips)


def breaker_cost(kind: str, place: Callable[[], Any]) -> tuple[list[Bar], list[str]]:
    """Drains with and without, by turns, so that what else the machine does falls on both."""
    pairs = []
    for number in range(REPEATS):
        found = {}
        for guarded in (False, True) if number % 2 else (True, False):
            with place() as url:
                found[guarded] = drain(url, guarded=guarded)
        pairs.append((found[False], found[True]))
    ratios = [after.run.cpu_us / before.run.cpu_us for before, after in pairs]
    ratio = statistics.median(ratios)
    more = statistics.median(after.calls / before.calls for before, after in pairs)
    bars = [
        Bar(
            f"{kind}: CPU of a drain with a breaker that keeps {SAMPLES:,} samples",
            "at most 1.10x",
            f"{ratio:.2f}x (from {min(ratios):.2f} to {max(ratios):.2f})",
            ratio <= 1.10,
        ),
        Bar(f"{kind}: calls to the store per drain, with a breaker", "at most 1.05x", f"{more:.2f}x", more <= 1.05),
    ]
    if pairs[0][0].waits:
        # Per call, because how many entries a call settles is chance.
        trips = [statistics.median(one.waits / one.calls for one in side) for side in zip(*pairs, strict=True)]
        bars.append(
            Bar(
                f"{kind}: round trips per call, with a breaker",
                "at most 0.1 more",
                f"{trips[1]:.2f} for {trips[0]:.2f}",
                trips[1] <= trips[0] + 0.1,
            )
        )
    plain, guarded_ = ([one.run.cpu_us for one in side] for side in zip(*pairs, strict=True))
    return bars, [
        f"{kind}: {statistics.median(plain):.1f} us of CPU per entry without, {statistics.median(guarded_):.1f} us "
        f"with; medians of {REPEATS}, {COUNT:,} entries each"
    ]


@contextmanager
def in_a_file() -> Iterator[str]:
    with folder() as path:
        yield f"sqlite:///{path / 'queue.db'}"


def main() -> int:
    wanted = [one for one in sys.argv[1:] if not one.startswith("-")] or ["sqlite", "postgres"]
    bars: list[Bar] = []
    notes: list[str] = []
    for kind in wanted:
        if kind == "sqlite":
            found = breaker_cost(kind, in_a_file)
        else:
            server = servers.SERVERS[kind](durable=True).start()

            @contextmanager
            def space(server: Any = server) -> Iterator[str]:
                yield f"{server.url}{'&' if '?' in server.url else '?'}space=b{os.urandom(5).hex()}"

            try:
                found = breaker_cost(kind, space)
            finally:
                server.close()
        bars += found[0]
        notes += found[1]
    return int(not report("Breaker", bars, [*notes, conditions()]))


if __name__ == "__main__":
    sys.exit(main())

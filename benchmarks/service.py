"""The breaker: what it costs a drain, in CPU and in calls to the store.

python -m benchmarks.service [--quick]
"""

from __future__ import annotations

import statistics
import sys
import threading
from pathlib import Path
from typing import Any

import penstock
from benchmarks.measure import Bar, Run, conditions, folder, report, timed
from penstock import Breaker, BreakerConfig, Worker

QUICK = "--quick" in sys.argv
COUNT = 10_000 if QUICK else 50_000
REPEATS = 3 if QUICK else 7
SAMPLES = 5_000
PAYLOAD = {"to": "ann@example.org", "subject": "hello", "body": "x" * 100}


def drain(path: Path, *, guarded: bool) -> tuple[Run, int]:
    """One worker, a handler that does nothing, with or without a breaker that keeps its samples; calls to settle."""
    with penstock.open_queues(f"sqlite:///{path / 'queue.db'}") as store:
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
        real = store._settle  # noqa: SLF001

        def settle(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            return real(*arguments)

        store._settle = settle  # type: ignore[method-assign]  # noqa: SLF001
        worker = Worker(store)

        def work() -> None:
            worker.start()
            done.wait()
            worker.stop()

        run = timed(COUNT, work)
        if guarded:
            assert breaker.circuit("mails").successes == SAMPLES
        return run, calls


def breaker_cost() -> tuple[list[Bar], list[str]]:
    ratios, calls = [], []
    plain_us, guarded_us = [], []
    for number in range(REPEATS):
        runs = {}
        # By turns, so that what else the machine does falls on both.
        for guarded in (False, True) if number % 2 else (True, False):
            with folder() as path:
                runs[guarded] = drain(path, guarded=guarded)
        ratios.append(runs[True][0].cpu_us / runs[False][0].cpu_us)
        calls.append(runs[True][1] / runs[False][1])
        plain_us.append(runs[False][0].cpu_us)
        guarded_us.append(runs[True][0].cpu_us)
    ratio, more = statistics.median(ratios), statistics.median(calls)
    return [
        Bar(
            f"CPU of a drain with a breaker that keeps {SAMPLES:,} samples",
            "at most 1.10x",
            f"{ratio:.2f}x (from {min(ratios):.2f} to {max(ratios):.2f})",
            ratio <= 1.10,
        ),
        Bar("calls to the store per drain, with a breaker", "at most 1.05x", f"{more:.2f}x", more <= 1.05),
    ], [
        f"{statistics.median(plain_us):.1f} us of CPU per entry without, "
        f"{statistics.median(guarded_us):.1f} us with; medians of {REPEATS}, {COUNT:,} entries each"
    ]


def main() -> int:
    bars, notes = breaker_cost()
    return int(not report("Breaker", bars, [*notes, conditions()]))


if __name__ == "__main__":
    sys.exit(main())

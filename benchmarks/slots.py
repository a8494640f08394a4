"""One slot woken at a time, against waking all of them: the same worker, interleaved runs, ratios.

python -m benchmarks.slots [--quick] [URL-TEMPLATE ...]

A template has {name} where each run has a space of its own; without one SQLite and memory are measured. A handler that
does nothing shows what waking costs; one that sleeps shows that slow handlers still run side by side.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import penstock
from benchmarks.measure import Run, conditions, folder, median, timed
from penstock import Worker
from penstock.queue.worker.pools.threads import ThreadPool

QUICK = "--quick" in sys.argv
TEMPLATES = [argument for argument in sys.argv[1:] if "://" in argument]
REPEATS = 3 if QUICK else 5
BRIEF_COUNT = 5_000 if QUICK else 20_000
SLEEPS = ((0.002, 1_000), (0.05, 100))


@contextmanager
def all_slots_woken() -> Iterator[None]:
    """The old way: every handler counts as slow, so as many slots wake as there are entries."""
    is_brief = ThreadPool.is_brief
    ThreadPool.is_brief = lambda _: False  # type: ignore[method-assign]
    try:
        yield
    finally:
        ThreadPool.is_brief = is_brief  # type: ignore[method-assign]


def drain(url: str, count: int, sleep: float) -> Run:
    """Drain a queue with the default concurrency."""
    with penstock.open_queues(url) as store:
        queue = store.queue("q", dict)
        queue.put_many([{"number": number} for number in range(count)], chunk=1000)
        left, done, counting = count, threading.Event(), threading.Lock()

        def handle(_: Any) -> None:
            nonlocal left
            if sleep:
                time.sleep(sleep)
            with counting:
                left -= 1
                if left == 0:
                    done.set()

        queue.add_handler(handle)
        worker = Worker(store)

        def work() -> None:
            worker.start()
            done.wait()
            worker.stop()

        return timed(count, work)


def compare(template: str, count: int, sleep: float) -> str:
    """Both ways in turn; the medians and their ratio."""
    one_at_a_time, all_at_once = [], []
    for number in range(REPEATS):
        one_at_a_time.append(drain(template.format(name=f"s{count}n{number}one"), count, sleep))
        with all_slots_woken():
            all_at_once.append(drain(template.format(name=f"s{count}n{number}all"), count, sleep))
    new, old = median(one_at_a_time), median(all_at_once)
    handler = f"sleeps {sleep * 1000:g} ms" if sleep else "does nothing"
    return (
        f"{template.partition(':')[0]:<12} {handler:<14} {new.rate:>9,.0f}/s  all woken {old.rate:>9,.0f}/s  "
        f"{new.rate / old.rate:.2f}x   CPU {new.cpu_us:.0f} and {old.cpu_us:.0f} µs an entry"
    )


def main() -> None:
    print(conditions())
    with folder() as path:
        templates = TEMPLATES or [f"sqlite:///{path.absolute()}/{{name}}.db", "memory://{name}"]
        for template in templates:
            for sleep, count in ((0.0, BRIEF_COUNT), *SLEEPS):
                print(compare(template, count, sleep), flush=True)


if __name__ == "__main__":
    main()

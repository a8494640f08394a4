"""One run of the benchmark of batches in a process of its own; prints microseconds of CPU per entry, and megabytes.

python -m benchmarks.plain plain|batch|results COUNT [URL]

Entries without links are put and drained, or as many that are a batch, or whose results are kept; without a URL in a
file. The second figure is by how much the peak of memory grew. It uses only what earlier versions have too, so that it
can run with the source of another checkout.
"""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path

import penstock
from benchmarks.measure import folder, timed
from penstock.ids import new_nonce

WARM = 1000


def drained(store: penstock.QueueStore, kind: str, count: int) -> float:
    """CPU per entry of a worker that handles so many, in microseconds."""
    queue = store.queue(f"q{new_nonce()}", int)
    left, ended = count, threading.Event()

    def handle(value: int) -> int | None:
        nonlocal left
        left -= 1
        if left <= 0:
            ended.set()
        return 1 if kind == "results" else None

    if kind == "batch":
        with store.batch(then=(queue, -1)) as members:
            members.put_many(queue, range(count - 1))
    else:
        queue.put_many(range(count), chunk=5000)
    if kind == "results":
        queue.add_handler(handle, concurrency=1, keep_result="1h")
    else:
        queue.add_handler(handle, concurrency=1)

    def work() -> None:
        worker = penstock.Worker(store)
        worker.start()
        ended.wait(120)
        worker.stop()

    run = timed(count, work)
    queue.remove_handler()
    assert left == 0, f"{left} were not handled"
    return run.cpu_us


def peak() -> float:
    """The most memory that this process has had, in megabytes; what getrusage() says begins with its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def main() -> None:
    """Print what one run took."""
    kind, count, *url = sys.argv[1:]
    with folder() as path, penstock.open_queues(*url or [f"sqlite:///{path.absolute() / 'plain.db'}"]) as store:
        drained(store, kind, WARM)
        gc.collect()
        before = peak()
        print(drained(store, kind, int(count)), peak() - before)


if __name__ == "__main__":
    main()

"""The load of the long run: a steady pace, history that is pruned, families that always have work, and a witness.

A store keeps ended entries for at least a quarter of an hour. A soak would be over before the first of them is pruned,
so its processes use a shorter memory: everything is written, kept and removed many times over, and whatever is not
removed shows as growth.
"""

import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.faults import load

from penstock import Retry
from penstock.clock import SECOND
from penstock.queue.worker import maintenance

STORES = ("sqlite", "postgres", "mysql", "redis", "zookeeper")
SECONDS = float(os.environ.get("FAULTS_SOAK_MINUTES", "20")) * 60 / len(STORES)  # per store
KEEP_SECONDS = int(max(10.0, SECONDS / 12))

LEASE = "10s"  # a machine that is busy with other things for seconds is not a fault of the store's
FAMILIES = {"red.": 1, "green.": 3, "blue.": 8}  # by their prefix, with the number of their queues
READY = 240  # entries that the queues of a family are given, all together
SERVICE_SECONDS = 0.1
QUEUES = load.QUEUES | {f"{family}{number}" for family, size in FAMILIES.items() for number in range(size)}


def shorten_memory() -> None:
    """Let this process keep what has ended for ``KEEP_SECONDS`` only, and prune it as often as that asks for."""
    for name, module in list(sys.modules.items()):
        if name.startswith("penstock.queue") and hasattr(module, "REMEMBERED"):
            module.REMEMBERED = KEEP_SECONDS * SECOND
        if name.startswith("penstock.queue") and hasattr(module, "NODE_REMEMBERED"):
            module.NODE_REMEMBERED = KEEP_SECONDS * SECOND
    maintenance.PRUNE_EVERY = KEEP_SECONDS * SECOND // 6


def produce_steadily(folder: Path) -> None:
    """Puts of every kind at a pace that the workers keep up with."""
    load.produce(folder, pause=0.04, most_live=READY * len(FAMILIES) + 500)


def work_and_prune(folder: Path) -> None:
    """A worker that keeps history for a while, as every worker in production does."""
    shorten_memory()
    load.work(folder, keep_history=f"{KEEP_SECONDS}s", lease=LEASE)


def cook_steadily(folder: Path) -> None:
    """Units of work."""
    load.cook(folder, lease=LEASE)


def measure(folder: Path) -> None:
    """A worker that writes down every second what it uses."""
    threading.Thread(target=_note_usage, args=(folder,), daemon=True).start()
    work_and_prune(folder)


def _note_usage(folder: Path) -> None:
    with (folder / "usage").open("a") as out:
        while load.going(folder):
            handles = len(os.listdir("/proc/self/fd"))
            memory = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
            out.write(f"{time.monotonic_ns()} {memory} {handles} {threading.active_count()}\n")
            out.flush()
            time.sleep(1)


def keep_ready(folder: Path) -> None:
    """Refill every queue of the families before it is empty; write down when all of them had work."""
    stage = load.stage_of(folder, "feeder")
    goals = {f"{family}{number}": READY // size for family, size in FAMILIES.items() for number in range(size)}
    with (folder / "ready").open("a") as out:
        while load.going(folder):
            at = time.monotonic_ns()
            counted = load.persistently(folder, stage.store.counts)
            ready = {counts.queue: counts.ready for counts in counted or ()}
            out.write(f"{at} {min(ready.get(name, 0) for name in goals)}\n")
            out.flush()
            for name, goal in goals.items():
                missing = goal - ready.get(name, 0)
                if missing > 0:
                    load.put_many(folder, stage, name, missing)
            time.sleep(0.5)
    load.close(stage)


def serve_families(folder: Path) -> None:
    """A worker of all families, with as many slots for each, that claims fewer at once than it has slots."""
    shorten_memory()
    stage = load.stage_of(folder, "server")

    def handle(value: int, ctx: Any) -> None:
        stage.recorder.started(ctx)
        time.sleep(SERVICE_SECONDS)

    for family in FAMILIES:
        queue = stage.store.queue(family, int, family=True)
        queue.add_handler(handle, retry=Retry(attempts=None, delays=["50ms"]), concurrency=4)
    load.run_worker(stage, f"{KEEP_SECONDS}s", LEASE, batch=4)

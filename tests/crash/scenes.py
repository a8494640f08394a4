"""What child processes play: ordinary programs on a store, recorded call by call."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.driver import write_tally
from tests.crash.recorder import Recorder

from penstock import Queue, QueueStore, Reaper, Retry, Worker, open_queues
from penstock.clock import SECOND, duration_micros
from penstock.errors import LeaseLost
from penstock.ids import new_nonce
from penstock.queue.protocol import ClaimRequest, Ending, Step
from penstock.testing import FileClock

LEASE = "60s"
FORGOTTEN = frozenset({"old"})  # the queue whose history is pruned


def url_of(folder: Path, disk: Path | None = None) -> str:
    """The store of a play: the one that the folder names, otherwise a file in it."""
    named = folder / "url"
    return named.read_text() if named.exists() else f"sqlite:///{(disk or folder) / 'queues.db'}"


class Stage:
    """The store of a folder, opened for this process with the folder's clock, and witnessed."""

    def __init__(
        self, folder: Path, *, options: str = "", fake: bool = True, node: str = "stage", disk: Path | None = None
    ) -> None:
        self.folder = folder
        self.recorder = Recorder(folder)
        self.clock = FileClock(folder / "clock") if fake else None
        url = url_of(folder, disk)
        url += options.replace("?", "&") if "?" in url else options
        self.store: QueueStore = self.recorder.watch(open_queues(url, clock=self.clock, node=node))

    def queue(self, name: str) -> Queue[int]:
        return self.store.queue(name, int)

    def handle(self, name: str, work: Callable[[int, Any], Any], **options: Any) -> Queue[int]:
        """A handler whose starts are recorded."""

        def handler(value: int, ctx: Any) -> Any:
            self.recorder.started(ctx)
            return work(value, ctx)

        queue = self.queue(name)
        queue.add_handler(handler, **options)
        return queue

    def advance(self, by: str) -> None:
        assert self.clock is not None
        self.clock.advance(by)

    def drain(self) -> int:
        return Worker(self.store, lease=LEASE, reaper=Reaper(self.store, keep_history=None)).drain()


def claim(queue: Queue[Any], limit: int, *, attempts: int | None = 5, lease: str = LEASE) -> list[Any]:
    """Leases that nobody extends."""
    store = queue.store
    request = ClaimRequest(
        new_nonce(), (queue.source(limit, attempts),), limit, f"{store.node}/{os.getpid()}", store.node,
        duration_micros(lease),
    )  # fmt: skip
    return store.driver.claim(request).entries


# --- one life with everything in it ----------------------------------------------------------------------------------


def cast(stage: Stage) -> None:
    """The handlers of all that may be in the store, in the child's life and in the one after it."""

    def order(value: int, ctx: Any) -> None:
        ctx.put(stage.queue("invoices"), value + 1000)
        ctx.put(stage.queue("invoices"), value + 2000)

    def fail_first(value: int, ctx: Any) -> None:
        if ctx.entry.attempt == 1:
            raise RuntimeError("not yet")

    def fail(value: int, ctx: Any) -> None:
        raise RuntimeError("never")

    def nothing(value: int, ctx: Any) -> None:
        return None

    later = Retry(attempts=3, delays=["1s"])
    stage.handle("old", nothing)
    stage.handle("orders", order)
    stage.handle("invoices", nothing)
    stage.handle("flaky", fail_first, retry=Retry(attempts=9, delays=["1s"]))
    stage.handle("doomed", fail, retry=later)
    stage.handle("lost", nothing, retry=Retry(attempts=9))
    stage.handle("busy", nothing, retry=Retry(attempts=9), concurrency=2)
    stage.handle("raw", nothing, retry=Retry(attempts=9))
    stage.handle("cooked", nothing, retry=Retry(attempts=9))
    stage.handle("batch", nothing, retry=Retry(attempts=9))


def life(folder: Path) -> None:
    """Puts, handlers of every outcome, a unit of work, a reaper, a replay, a prune; then a worker with threads."""
    stage = Stage(folder)
    store = stage.store
    cast(stage)
    stage.queue("old").put_many(range(4))
    stage.drain()
    stage.advance("30m")
    store.driver.prune(older_than_us=15 * 60 * SECOND)

    for number in range(2):
        stage.queue("orders").put(number, unique=f"order-{number}", labels={"customer": "ann"})
    stage.queue("orders").put_many(range(10, 13))
    stage.queue("flaky").put_many(range(2))
    doomed = stage.queue("doomed").put(1)
    for _ in range(3):
        stage.drain()
        stage.advance("2s")

    stage.queue("raw").put_many(range(5))
    with store.unit(lease=LEASE) as unit:
        for entry in unit.take(stage.queue("raw"), limit=3, attempts=9):
            unit.put(stage.queue("cooked"), entry.value)
        unit.put(stage.queue("cooked"), 99)
        unit.commit()
    with store.unit(lease=LEASE) as unit:
        unit.take(stage.queue("raw"), limit=2, attempts=9)
        unit.put(stage.queue("cooked"), -1)  # and no commit: rolled back

    stage.queue("batch").put_many(range(6))
    for _ in range(2):
        entries = claim(stage.queue("batch"), 3, attempts=9)
        store.driver.settle([Step((Ending(entry.lease, "done"),)) for entry in entries])

    stage.queue("lost").put_many(range(3))
    claim(stage.queue("lost"), 3, attempts=9)
    stage.advance("2m")
    store.driver.reap(node=store.node)
    store.driver.replay([doomed.id])
    stage.drain()
    write_tally("steady")

    worker = Worker(store, lease=LEASE, poll="20ms", batch=2, reaper=Reaper(store, keep_history=None))
    worker.start()
    stage.queue("busy").put_many(range(12))
    deadline = time.monotonic() + 30
    while stage.queue("busy").counts().live:
        assert time.monotonic() < deadline, "the worker did not get through"
        time.sleep(0.005)
    assert worker.stop()
    write_tally("whole")
    store.close()


def afterlife(folder: Path, *, rounds: int = 40) -> int:
    """What comes after a crash: a fresh handle, time passes, a worker takes up what is left; how many rounds."""
    stage = Stage(folder)
    cast(stage)
    try:
        for number in range(rounds):
            if not any(one.live for one in stage.store.counts()):
                return number
            stage.drain()
            stage.advance("61s")
        left = [one for one in stage.store.counts() if one.live]
        raise AssertionError(f"after {rounds} rounds there is still work: {left}")
    finally:
        stage.store.close()


# --- workers that are stopped, killed, or many -----------------------------------------------------------------------


def handle_one(folder: Path, extend: bool = False) -> None:
    """Handle what is due in `jobs`; with ``extend`` the handler asks for more time first."""
    stage = Stage(folder, node="zombie")

    def work(value: int, ctx: Any) -> None:
        if extend:
            try:
                ctx.extend("60s")
            except LeaseLost:
                (folder / "refused").touch()
                raise

    stage.handle("jobs", work)
    stage.drain()
    stage.store.close()


def commit_unit(folder: Path) -> None:
    """Take two, put two, commit; tell by a file when the commit was refused."""
    stage = Stage(folder, node="zombie")
    with stage.store.unit(lease=LEASE) as unit:
        for entry in unit.take(stage.queue("jobs"), limit=2):
            unit.put(stage.queue("results"), entry.value)
        try:
            unit.commit()
        except LeaseLost:
            (folder / "refused").touch()
    stage.store.close()


def put_one(folder: Path) -> None:
    """One put."""
    stage = Stage(folder)
    stage.queue("jobs").put(1)
    stage.store.close()


def hold_many(folder: Path, count: int, ready: Path) -> None:
    """Take leases in large bites and sit on them."""
    stage = Stage(folder, options="?durability=fast")
    held = 0
    while held < count:
        entries = claim(stage.queue("jobs"), min(100, count - held))
        assert entries, f"only {held} of {count} could be claimed"
        held += len(entries)
    ready.touch()
    signal.pause()


def write_much(folder: Path, number: int, count: int) -> None:
    """One of several writers: puts one by one, in batches and with outcomes, and settles what it can get."""
    stage = Stage(folder, fake=False, node=f"writer{number}")
    jobs, results = stage.queue("jobs"), stage.queue("results")
    for base in range(0, count, 10):
        jobs.put(number * 10_000 + base)
        jobs.put_many(range(number * 10_000 + base + 1, number * 10_000 + base + 10))
        with stage.store.unit() as unit:
            for entry in unit.take(jobs, limit=7, attempts=None):
                unit.put(results, entry.value)
            unit.commit()
        stage.store.driver.reap(node=stage.store.node)
    stage.store.close()


def poison(folder: Path, attempts: int) -> None:
    """A worker among whose entries one kills it."""
    stage = Stage(folder)

    def work(value: int, ctx: Any) -> None:
        if value == 50:
            os.kill(os.getpid(), signal.SIGKILL)

    stage.handle("jobs", work, retry=Retry(attempts=attempts, delays=["0s"]))
    stage.drain()
    stage.store.close()


def finish_all(folder: Path, leases: list[Any], gate: Path) -> None:
    """Settle leases one by one, late."""
    stage = Stage(folder)
    gate.with_suffix(f".{os.getpid()}").touch()
    deadline = time.monotonic() + 30
    while not gate.exists():
        assert time.monotonic() < deadline, "the gate never opened"
    for lease in leases:
        stage.store.driver.settle((Step((Ending(lease, "done"),)),))
    stage.store.close()


def reap_all(folder: Path, gate: Path) -> None:
    """Reap one by one until nothing is left to reap."""
    stage = Stage(folder)
    gate.with_suffix(f".{os.getpid()}").touch()
    deadline = time.monotonic() + 30
    while not gate.exists():
        assert time.monotonic() < deadline, "the gate never opened"
    while stage.store.driver.reap(node="reaper", limit=1).reaped:
        continue
    stage.store.close()


def put_for_ever(folder: Path, acknowledged: Path, options: str = "") -> None:
    """Puts one after the other; each is written down elsewhere once it was acknowledged."""
    clock = FileClock(acknowledged.parent / "clock")
    store = open_queues(f"sqlite:///{folder / 'queues.db'}{options}", clock=clock)
    jobs = store.queue("jobs", int)
    handle = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in range(1_000_000):
        put = jobs.put(number)
        os.write(handle, f"{put.id}\n".encode())

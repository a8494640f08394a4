"""The dashboard on a store with 1,000,000 entries and on one with 10,000 queues: how long each page takes.

python -m benchmarks.dashboard [--quick] [sqlite postgres]

A page is looked at cold (the counts are not known) and warm; both have to be within the bar. The SQLite files are kept
in a folder for temporary files and used again; PostgreSQL is filled once per run.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from starlette.testclient import TestClient
from tools import servers

import penstock
from benchmarks.measure import Bar, conditions, report
from penstock import QueueStore
from penstock.clock import SECOND
from penstock.ids import new_id
from penstock.queue.protocol import DocumentWrite, TransferRow
from penstock.queue.worker.figures import BLOCK, HOURS_BLOCK, HOURS_PREFIX, MINUTE, PREFIX, Tally
from penstock.queue.worker.presence import PREFIX as WORKER
from penstock.queue.worker.presence import Serving, WorkerRecord
from penstock.service import ServiceSettings, create_app

QUICK = "--quick" in sys.argv
REPEATS = 5 if QUICK else 9
MOST_MS = 200
CHUNK = 5000
WORKERS, HANDLERS = 10, 20  # that have been busy all day, each with all of these
ERRORS = [f"ConnectionError: host {number} did not answer" for number in range(20)]


class Scene(NamedTuple):
    """A large store: how many entries, in how many queues beside the two that hold most of them."""

    entries: int
    queues: int

    def __str__(self) -> str:
        return f"{self.entries:,} entries in {self.queues + 2:,} queues"


SCENES = (Scene(50_000, 200), Scene(20_000, 2000)) if QUICK else (Scene(1_000_000, 1000), Scene(100_000, 10_000))


class Times(NamedTuple):
    """Milliseconds until a page is there: the first look after a while, and after that; and of CPU in this process."""

    cold: float
    warm: float
    cpu: float


def row(scene: Scene, number: int, now: int) -> TransferRow:
    """One of a million: half are ready in one queue, others wait in many, died or are done."""
    share = number % 10
    part, queue, due = "live", "mails", now - number
    if share in (5, 6):
        customer = (number // 10 * 2 + share - 5) % scene.queues
        queue, due = f"customer.{customer:05d}", now + (3600 * SECOND if share == 5 else -number)
    elif share == 7:
        part, queue = "dead", ("invoices", "mails")[number // 10 % 2]
    elif share > 7:
        part = "history"
    ended = None if part == "live" else now - number
    return TransferRow(
        part=part, seq=number + 1, id=new_id(), queue=queue,  # type: ignore[arg-type]
        state={"live": "waiting", "dead": "dead", "history": "done"}[part],
        payload=b'{"to":"ann@example.org","n":%d}' % number, codec="json", type="dict", created_us=now - number,
        due_us=due, first_due_us=due, attempt=0 if part == "live" else 1, generation=1,
        labels={"customer": f"c{number % 500}"} if number % 4 == 0 else {}, headers={},
        error=ERRORS[number % 20] if part == "dead" else None, owner="web-1/7-a" if part != "live" else None,
        started_us=None if ended is None else ended - 1000, ended_us=ended,
    )  # fmt: skip


def seed(url: str, scene: Scene) -> None:
    """Fill an empty space."""
    joint = "&" if "?" in url else "?"
    with penstock.open_queues(f"{url}{joint}durability=fast" if url.startswith("sqlite") else url) as store:
        if store.driver.document("penstock.bench") is not None:
            return
        now = store.now()
        begin = time.monotonic()
        for start in range(0, scene.entries, CHUNK):
            numbers = range(start, min(scene.entries, start + CHUNK))
            store.driver.load([row(scene, number, now) for number in numbers])
        seed_figures(store, now)
        penstock_bench(store)
        print(f"filled with {scene} in {time.monotonic() - begin:.0f} s", file=sys.stderr)


def seed_figures(store: QueueStore, now: int) -> None:
    """What workers did in a day by the minute and in a month by the hour, as each of them would have written it."""
    served = ["mails", "invoices", *(f"customer.{number:05d}" for number in range(HANDLERS - 2))]
    minute, notes = now // MINUTE, []
    for worker in range(WORKERS):
        for prefix, size, step, back in ((PREFIX, BLOCK, 1, 24 * 60), (HOURS_PREFIX, HOURS_BLOCK * 60, 60, 720 * 60)):
            for block in range((minute - back) // size + 1, minute // size + 1):
                tallies = [
                    Tally(at, queue, False, 50, 2, 1, 1.5, [0, 10, 20, 20])
                    for at in range(block * size, min((block + 1) * size, minute), step) for queue in served
                ]  # fmt: skip
                notes.append(DocumentWrite(f"{prefix}w{worker}.{block}", msgspec.json.encode(tallies)))
        serving = tuple(Serving(queue, False, 1, 4) for queue in served)
        record = WorkerRecord(f"web-{worker}/7-a", f"web-{worker}", 7, "0.1.0", now, False, serving)
        notes.append(DocumentWrite(f"{WORKER}w{worker}", msgspec.json.encode(record)))
    for start in range(0, len(notes), 50):
        store.driver.write(notes[start : start + 50])


def penstock_bench(store: QueueStore) -> None:
    """Note that the space is filled."""
    store.driver.write([DocumentWrite("penstock.bench", b"1")])


def pages(store: QueueStore) -> list[str]:
    """What people open."""
    from penstock.queue.protocol import Find

    live = store.driver.find(Find(queue="mails", limit=1))[0].id
    dead = store.driver.dead(Find(queue="invoices", limit=1))[0].id
    return [
        "/", "/?range=1440", "/?range=43200", "/ui/queues/mails?range=1440", "/ui/queues", "/ui/queues?sort=oldest",
        "/ui/queues/mails?tab=ready",
        "/ui/queues/mails?tab=delayed", "/ui/queues/mails?tab=leased", "/ui/queues/mails?tab=retrying",
        "/ui/queues/mails?tab=dead", "/ui/queues/mails?tab=history", "/ui/queues/customer.00005?tab=ready",
        "/ui/queues/customer.00005?tab=history", "/ui/queues/mails?tab=ready&label=customer=c4",
        "/ui/queues/invoices?tab=dead&error=host+3", "/ui/queues/invoices?tab=dead&error=nothing+has+this",
        f"/ui/queues/mails/entries/{live}", f"/ui/queues/invoices/entries/{dead}", "/ui/dead",
        "/ui/dead?error=host+3", "/ui/schedules", "/ui/bus", "/ui/circuits", "/ui/workers", "/ui/report",
        "/ui/changes", "/ui/settings", f"/ui/find?q={live}", f"/ui/find?q={live[:18]}", f"/ui/find?q={live[-8:]}",
        "/ui/find?q=nowhere", "/ui/find?q=customer=c4", "/ui/do/lock?queue=mails",
    ]  # fmt: skip


def measured(client: TestClient, path: str) -> Times:
    """The median of a few tries."""
    dashboard: Any = client.app.state.dashboard  # type: ignore[attr-defined]
    cold: list[float] = []
    warm: list[float] = []
    cpu = []
    for _ in range(REPEATS):
        dashboard.reading.forget()
        used = time.process_time()
        for times in (cold, warm):
            begin = time.perf_counter()
            answer = client.get(path, follow_redirects=False)
            times.append((time.perf_counter() - begin) * 1000)
            assert answer.status_code in (200, 303), (path, answer.status_code, answer.text[:300])
            if times is cold:
                cpu.append((time.process_time() - used) * 1000)
    return Times(statistics.median(cold), statistics.median(warm), statistics.median(cpu))


def bars_of(kind: str, url: str, scene: Scene) -> list[Bar]:
    """Every page of a filled space: within the bar, also for who looks first."""
    seed(url, scene)
    bars = []
    with penstock.open_queues(url) as store:
        app = create_app(ServiceSettings(queues=url), store, None, ())
        with TestClient(app, "http://127.0.0.1") as client:
            for path in pages(store):
                times = measured(client, path)
                shown = path if len(path) < 60 else f"{path[:57]}..."
                text = f"{times.cold:6.1f} ms cold, {times.warm:6.1f} ms warm, {times.cpu:6.1f} ms of CPU when cold"
                good = max(times.cold, times.warm) <= MOST_MS
                bars.append(Bar(f"{kind}, {scene}: {shown}", f"at most {MOST_MS} ms", text, good))
    return bars


@contextmanager
def place(kind: str, scene: Scene) -> Iterator[str]:
    if kind == "sqlite":
        folder = Path(tempfile.gettempdir()) / f"penstock-bench-dashboard-{os.getuid()}"
        folder.mkdir(exist_ok=True)
        yield f"sqlite:///{folder}/{scene.entries}-in-{scene.queues}.db"
        return
    server = servers.SERVERS[kind](durable=True).start()
    try:
        yield server.url
    finally:
        server.close()


def main() -> int:
    wanted = [one for one in sys.argv[1:] if not one.startswith("-")] or ["sqlite", "postgres"]
    bars: list[Bar] = []
    conditions()  # of the machine before it is busy with this
    for kind in wanted:
        for scene in SCENES:
            with place(kind, scene) as url:
                bars += bars_of(kind, url, scene)
    ended = ", ".join(f"{load:.2f}" for load in os.getloadavg())
    note = f"the median of {REPEATS} looks; cold: nothing was read before; load at the end {ended}"
    return int(not report("Dashboard", bars, [note, conditions()]))


if __name__ == "__main__":
    sys.exit(main())

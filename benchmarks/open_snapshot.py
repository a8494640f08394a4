"""A drain on PostgreSQL beside a transaction that keeps a snapshot open: nothing that was deleted can be vacuumed.

python -m benchmarks.open_snapshot [--quick]

Entries are put as fast as they end, so that the backlog stays what it is. The rate at the end of the time with the open
transaction is compared with the rate before it; then the time counts until the rate is back.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import NamedTuple

import psycopg
from tools import servers

import penstock
from benchmarks.measure import Bar, conditions, report
from benchmarks.peers import PAYLOAD
from penstock import Worker

QUICK = "--quick" in sys.argv
SECONDS = 60 if QUICK else 600
BACKLOG = 20_000
CHUNK = 1_000
BACK = 0.8  # of the rate before: what counts as recovered
GIVE_UP = 180.0  # seconds to wait for that
BODY = json.dumps(PAYLOAD)


class Figures(NamedTuple):
    """Entries a second before and at the end of the open transaction, and how long the way back took."""

    before: float
    during: float
    recovered_seconds: float

    @property
    def share(self) -> float:
        return self.during / self.before


# --- the load: a process of its own that says every second how many entries it has ended -------------------------


def work_ours(url: str) -> None:
    """Through Worker; a thread puts what has ended again."""
    done = 0
    ended = threading.Semaphore(0)

    def handle(_: object) -> None:
        nonlocal done
        done += 1
        if done % CHUNK == 0:
            ended.release()

    with penstock.open_queues(url) as store:
        queue = store.queue("mails", dict)
        queue.put_many([PAYLOAD] * BACKLOG, chunk=CHUNK)
        queue.add_handler(handle, concurrency=1)

        def put_again() -> None:
            while ended.acquire():
                queue.put_many([PAYLOAD] * CHUNK)

        threading.Thread(target=put_again, daemon=True).start()
        Worker(store).start()
        while True:
            time.sleep(1)
            print(done, flush=True)


def work_pgmq(url: str) -> None:
    """pgmq's SQL in a bare loop."""
    send = "SELECT pgmq.send_batch('mails', array_agg(%s::jsonb)) FROM generate_series(1, %s)"
    done, owed, said = 0, 0, time.monotonic()
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SELECT pgmq.create('mails')")
        db.execute(send, (BODY, BACKLOG))
        while True:
            rows = db.execute("SELECT msg_id, message FROM pgmq.read('mails', 60, 100)").fetchall()
            db.execute("SELECT pgmq.delete('mails', %s)", ([row[0] for row in rows],))
            done += len(rows)
            owed += len(rows)
            if owed >= CHUNK:
                owed -= CHUNK
                db.execute(send, (BODY, CHUNK))
            if time.monotonic() > said + 1:
                said = time.monotonic()
                print(done, flush=True)


LOADS: dict[str, Callable[[str], None]] = {"ours": work_ours, "pgmq": work_pgmq}


class Load:
    """A running load, as its parent sees it."""

    def __init__(self, name: str, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.open_snapshot", "--work", name, url], stdout=subprocess.PIPE, text=True
        )
        self._counts: list[tuple[float, int]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._counts.append((time.monotonic(), int(line)))

    def rate(self, seconds: float) -> float:
        """Entries a second over the last seconds."""
        assert self._process.poll() is None, "the load has ended"
        last = [(at, count) for at, count in self._counts if at > time.monotonic() - seconds - 1]
        return (last[-1][1] - last[0][1]) / (last[-1][0] - last[0][0]) if len(last) > 1 else 0.0

    def await_start(self) -> None:
        while not self._counts or not self._counts[-1][1]:
            assert self._process.poll() is None, "the load has ended"
            time.sleep(0.1)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()


@contextlib.contextmanager
def running(name: str, url: str) -> Iterator[Load]:
    load = Load(name, url)
    try:
        load.await_start()
        yield load
    finally:
        load.stop()


def measure(name: str, url: str, database: str, seconds: float) -> Figures:
    """Run a load before, beside and after a transaction that is open for so many seconds."""
    window = max(5.0, seconds / 10)
    with running(name, url) as load:
        time.sleep(window + 3)
        before = load.rate(window)
        with psycopg.connect(database) as db:
            db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            db.execute("SELECT count(*) FROM pg_class")  # from now on it holds a snapshot
            time.sleep(seconds)
            during = load.rate(window)
            db.rollback()
        ended = time.monotonic()
        while load.rate(3) < BACK * before and time.monotonic() < ended + GIVE_UP:
            time.sleep(0.5)
        return Figures(before, during, time.monotonic() - ended)


def part(server: servers.Server, seconds: float = SECONDS) -> tuple[list[Bar], list[str]]:
    """Ours, then pgmq, on a server that has the extension's SQL."""
    bars, notes = [], []
    for name in LOADS:
        url = f"{server.url}?space=snapshot" if name == "ours" else server.url
        figures = measure(name, url, server.url, seconds)
        if name == "ours":
            bars = [
                Bar(f"drain, a snapshot open for {seconds:.0f} s, vs without", ">= 0.5x", f"{figures.share:.2f}x",
                    figures.share >= 0.5),
                Bar("recovered after its end", "<= 60 s", f"{figures.recovered_seconds:.0f} s",
                    figures.recovered_seconds <= 60),
            ]  # fmt: skip
        notes.append(
            f"{name}: {figures.before:,.0f}/s, at the end of {seconds:.0f} s with an open snapshot "
            f"{figures.during:,.0f}/s ({figures.share:.2f}x), back after {figures.recovered_seconds:.0f} s"
        )
    return bars, notes


def main() -> int:
    if "--work" in sys.argv:
        name, url = sys.argv[sys.argv.index("--work") + 1 :][:2]
        LOADS[name](url)
    print(f"Conditions: {conditions()}", flush=True)
    server = servers.Postgres(durable=True).start()
    try:
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute((files("pgmq") / "sql" / "pgmq.sql").read_text())
        bars, notes = part(server)
    finally:
        server.close()
    return 0 if report("Queues on PostgreSQL beside an open snapshot", bars, notes) else 1


if __name__ == "__main__":
    sys.exit(main())

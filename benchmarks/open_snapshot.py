"""A drain on PostgreSQL beside a transaction that keeps a snapshot open: nothing that was deleted can be vacuumed.

python -m benchmarks.open_snapshot [--quick]

Entries are put as fast as they end, so that the backlog stays what it is. The same load runs on another server at the
same time, without the transaction: whatever else the machine does, it does to both. Their rates at the end of the time
with the transaction are compared, and how long it takes after it until they are alike again.
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
BACK = 0.8  # of the rate without the transaction: what counts as recovered
GIVE_UP = 180.0  # seconds to wait for that
BODY = json.dumps(PAYLOAD)


class Figures(NamedTuple):
    """Entries a second at the end of the open transaction, beside it and without it, and how long the way back took."""

    beside: float
    without: float
    recovered_seconds: float

    @property
    def share(self) -> float:
        return self.beside / self.without


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
        self._reader.join()
        self._process.communicate()


@contextlib.contextmanager
def running(name: str, url: str) -> Iterator[Load]:
    load = Load(name, url)
    try:
        load.await_start()
        yield load
    finally:
        load.stop()


def measure(name: str, server: servers.Server, other: servers.Server, seconds: float) -> Figures:
    """Run a load on both servers, for so many seconds beside a transaction on the first one."""
    window = max(5.0, seconds / 10)
    with running(name, url_of(name, server)) as load, running(name, url_of(name, other)) as control:
        time.sleep(5)
        with psycopg.connect(server.url) as db:
            db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            db.execute("SELECT count(*) FROM pg_class")  # from now on it holds a snapshot
            time.sleep(seconds)
            beside, without = load.rate(window), control.rate(window)
            db.rollback()
        ended = time.monotonic()
        while load.rate(5) < BACK * control.rate(5) and time.monotonic() < ended + GIVE_UP:
            time.sleep(0.5)
        return Figures(beside, without, time.monotonic() - ended)


def url_of(name: str, server: servers.Server) -> str:
    return f"{server.url}?space=snapshot" if name == "ours" else server.url


def part(server: servers.Server, seconds: float = SECONDS) -> tuple[list[Bar], list[str]]:
    """Ours, then pgmq, whose SQL is on the server."""
    bars, notes = [], []
    other = servers.Postgres(durable=True).start()
    try:
        install_pgmq(other)
        for name in LOADS:
            figures = measure(name, server, other, seconds)
            if name == "ours":
                bars = [
                    Bar(f"drain, a snapshot open for {seconds:.0f} s, vs without", ">= 0.5x", f"{figures.share:.2f}x",
                        figures.share >= 0.5),
                    Bar("recovered after its end", "<= 60 s", f"{figures.recovered_seconds:.0f} s",
                        figures.recovered_seconds <= 60),
                ]  # fmt: skip
            notes.append(
                f"{name}: after {seconds:.0f} s with an open snapshot {figures.beside:,.0f}/s, without one "
                f"{figures.without:,.0f}/s ({figures.share:.2f}x), alike again after {figures.recovered_seconds:.0f} s"
            )
    finally:
        other.close()
    return bars, notes


def install_pgmq(server: servers.Server) -> None:
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute((files("pgmq") / "sql" / "pgmq.sql").read_text())


def main() -> int:
    if "--work" in sys.argv:
        name, url = sys.argv[sys.argv.index("--work") + 1 :][:2]
        LOADS[name](url)
    print(f"Conditions: {conditions()}", flush=True)
    server = servers.Postgres(durable=True).start()
    try:
        install_pgmq(server)
        bars, notes = part(server)
    finally:
        server.close()
    return 0 if report("Queues on PostgreSQL beside an open snapshot", bars, notes) else 1


if __name__ == "__main__":
    sys.exit(main())

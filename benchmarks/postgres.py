"""Queues on PostgreSQL against pgmq and bare loops: drains, puts, a mixed load, costs, idle, beside an open snapshot.

python -m benchmarks.postgres [--quick] [drains puts round_trips log_bytes idle mixed snapshot]

Every comparison is interleaved on one durable server; medians are compared. Processes are started beforehand, and
begin together.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from tools import servers

import penstock
from benchmarks import open_snapshot
from benchmarks.measure import Bar, conditions, report
from benchmarks.peers import PAYLOAD
from penstock import QueueStore, Worker
from penstock.ids import new_nonce
from penstock.queue.protocol import ClaimRequest, Ending, Source, Step

QUICK = "--quick" in sys.argv
COUNT = 5_000 if QUICK else 100_000  # with fewer a good part of the time is the start of a worker
PUTS = 300 if QUICK else 2_000
MIXED = 500 if QUICK else 3_000
REPEATS = 1 if QUICK else 3
BODY = json.dumps(PAYLOAD)

Part = tuple[list[Bar], list[str]]


# --- drains: programs that begin on command; the entries that each did, and when it ended ------------------


def drain_ours(url: str) -> tuple[int, float]:
    """Through Worker, with the default number of slots."""
    with penstock.open_queues(url) as store:
        return drain_with_worker(store)


def drain_with_worker(store: QueueStore) -> tuple[int, float]:
    queue = store.queue("mails", dict)
    done, ended, counting = 0, 0.0, threading.Lock()

    def handle(_: object) -> None:
        nonlocal done, ended
        with counting:
            done += 1
            ended = time.perf_counter()

    queue.add_handler(handle)
    worker = Worker(store)
    begin()
    worker.start()
    while time.perf_counter() - ended < 0.3 or queue.counts().live:  # looking costs the server, so not while it works
        time.sleep(0.1)
    worker.stop()
    return done, ended


def drain_round_trips(url: str) -> tuple[int, float]:
    """Our own round trips without a worker around them."""
    with penstock.open_queues(url) as store:
        steps: list[Step] = []
        done = 0
        begin()
        while True:
            request = ClaimRequest(new_nonce(), (Source("mails", 100, 5),), 100, "bench", store.node, 60_000_000)
            reply = store.driver.settle(steps, request)
            done += len(steps)
            for entry in reply.claimed.entries:
                json.loads(entry.payload)
            steps = [Step((Ending(one.lease, "done", started_us=reply.now_us),)) for one in reply.claimed.entries]
            if not steps:
                return done, time.perf_counter()


def drain_pgmq(url: str) -> tuple[int, float]:
    """pgmq's SQL in a bare loop: no handler, no history."""
    done = 0
    with psycopg.connect(url, autocommit=True) as db:
        begin()
        while rows := db.execute("SELECT msg_id, message FROM pgmq.read('mails', 60, 100)").fetchall():
            db.execute("SELECT pgmq.delete('mails', %s)", ([row[0] for row in rows],))
            done += len(rows)
    return done, time.perf_counter()


def drain_pgmq_client(url: str) -> tuple[int, float]:
    """pgmq's Python client in the same loop."""
    from pgmq import PGMQueue

    info = psycopg.conninfo.conninfo_to_dict(url)
    client = PGMQueue(
        host=str(info["host"]), port=str(info["port"]), database=str(info["dbname"]), username=str(info["user"]),
        password="", init_extension=False,
    )  # fmt: skip
    done = 0
    begin()
    while messages := client.read_batch("mails", vt=60, batch_size=100) or []:
        client.delete_batch("mails", [message.msg_id for message in messages])
        done += len(messages)
    return done, time.perf_counter()


DRAINS: dict[str, Callable[[str], tuple[int, float]]] = {
    "ours": drain_ours, "round trips": drain_round_trips, "pgmq": drain_pgmq, "pgmq client": drain_pgmq_client,
}  # fmt: skip


def begin() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def time_drain(server: servers.Server, name: str, processes: int) -> float:
    """Entries a second, from a backlog, by so many processes."""
    url = fill(server, name)
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.postgres", "--drain", name, url],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(processes)
    ]  # fmt: skip
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    started = time.perf_counter()
    for process in running:
        assert process.stdin is not None
        process.stdin.write("begin\n")
        process.stdin.flush()
    last_lines = [process.communicate()[0].strip().splitlines()[-1] for process in running]
    ended = max(float(line.split()[1]) for line in last_lines)
    assert sum(int(line.split()[0]) for line in last_lines) == COUNT, last_lines
    return COUNT / (ended - started)


def fill(server: servers.Server, name: str) -> str:
    if name.startswith("pgmq"):
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute("SELECT pgmq.drop_queue('mails') FROM pgmq.meta WHERE queue_name = 'mails'")
            db.execute("SELECT pgmq.create('mails')")
            db.execute(
                "SELECT pgmq.send_batch('mails', array_agg(%s::jsonb)) FROM generate_series(1, %s)", (BODY, COUNT)
            )
        return server.url
    url = own_space(server)
    with penstock.open_queues(url) as store:
        store.queue("mails", dict).put_many([PAYLOAD] * COUNT, chunk=1000)
    return url


def own_space(server: servers.Server) -> str:
    return f"{server.url}?space=b{os.urandom(5).hex()}"


def drains(server: servers.Server) -> Part:
    bars, notes = [], []
    for processes in (1, 2):
        rates: dict[str, list[float]] = {name: [] for name in DRAINS}
        for _ in range(REPEATS):
            for name, runs in rates.items():
                runs.append(time_drain(server, name, processes))
        middle = {name: statistics.median(runs) for name, runs in rates.items()}
        who = "one process" if processes == 1 else f"{processes} processes"
        for peer, wanted in (("pgmq", 1.0), ("pgmq client", 1.5), ("round trips", 0.7)):
            bars.append(ratio(f"drain, {who}, vs {peer}", middle["ours"] / middle[peer], wanted))
        notes.append(f"drain, {who}: " + ", ".join(f"{name} {rate:,.0f}/s" for name, rate in middle.items()))
    return bars, notes


# --- one by one --------------------------------------------------------------------------------------------------


def puts(server: servers.Server) -> Part:
    """Single puts: the program waits for each."""
    rates: dict[str, list[float]] = {"ours": [], "pgmq.send": [], "bare INSERT": []}
    costs: list[float] = []
    with psycopg.connect(server.url, autocommit=True) as db, penstock.open_queues(own_space(server)) as store:
        db.execute("CREATE TABLE IF NOT EXISTS bare (id bigserial PRIMARY KEY, due bigint, payload jsonb)")
        db.execute("SELECT pgmq.create('singles')")
        queue = store.queue("mails", dict)
        queue.put(PAYLOAD)
        work: dict[str, Callable[[], object]] = {
            "ours": lambda: queue.put(PAYLOAD),
            "pgmq.send": lambda: db.execute("SELECT pgmq.send('singles', %s::jsonb)", (BODY,), prepare=True),
            "bare INSERT": lambda: db.execute(
                "INSERT INTO bare (due, payload) VALUES (%s, %s::jsonb)", (1, BODY), prepare=True
            ),
        }
        for _ in range(REPEATS * 2):
            for name, call in work.items():
                seconds, cpu = repeat(call, PUTS)
                rates[name].append(PUTS / seconds)
                if name == "ours":
                    costs.append(cpu / PUTS * 1e6)
    middle = {name: statistics.median(runs) for name, runs in rates.items()}
    cost = statistics.median(costs)
    return (
        [
            ratio("put one by one vs pgmq.send", middle["ours"] / middle["pgmq.send"], 1.2),
            ratio("put one by one vs a bare INSERT", middle["ours"] / middle["bare INSERT"], 0.6),
            Bar("a single put, CPU of the client", "<= 150 µs", f"{cost:.0f} µs", cost <= 150),
        ],
        ["put one by one: " + ", ".join(f"{name} {rate:,.0f}/s" for name, rate in middle.items())],
    )


def round_trips(server: servers.Server) -> Part:
    """Single round trips: end one entry and claim the next."""
    costs = []
    for _ in range(REPEATS * 2):
        with penstock.open_queues(own_space(server)) as store:
            store.queue("mails", dict).put_many([PAYLOAD] * (PUTS + 1))
            step: tuple[Step, ...] = ()

            def turn(store: QueueStore = store) -> None:
                nonlocal step
                source = (Source("mails", 1, 5),)
                reply = store.driver.settle(step, ClaimRequest(new_nonce(), source, 1, "bench", store.node, 60_000_000))
                [entry] = reply.claimed.entries
                step = (Step((Ending(entry.lease, "done", started_us=reply.now_us),)),)

            costs.append(repeat(turn, PUTS)[1] / PUTS * 1e6)
    cost = statistics.median(costs)
    return [Bar("a single round trip, CPU of the client", "<= 200 µs", f"{cost:.0f} µs", cost <= 200)], []


def repeat(call: Callable[[], object], times: int) -> tuple[float, float]:
    """Seconds of wall clock and of CPU."""
    cpu, started = time.process_time(), time.perf_counter()
    for _ in range(times):
        call()
    return time.perf_counter() - started, time.process_time() - cpu


# --- what it costs the server ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def wal(server: servers.Server) -> Iterator[Callable[[], int]]:
    """How many bytes were written to the log since it began."""
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute("CHECKPOINT")
        [since] = db.execute("SELECT pg_current_wal_insert_lsn()").fetchone() or ()
        yield lambda: int(
            (db.execute("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), %s)", (since,)).fetchone() or (0,))[0]
        )


def log_bytes(server: servers.Server) -> Part:
    """Bytes of WAL per entry for putting and for draining; pgmq beside it."""
    said = []
    for name in ("ours", "pgmq"):
        with wal(server) as written:
            url = fill(server, name)
            put = written() / COUNT
        with wal(server) as written:
            process = subprocess.run(
                [sys.executable, "-m", "benchmarks.postgres", "--drain", name, url], input="begin\n", text=True,
                check=True, capture_output=True,
            )  # fmt: skip
            assert process.stdout.splitlines()[-1].split()[0] == str(COUNT)
            said.append(f"{name} {put:.0f} B to put and {written() / COUNT:.0f} B to drain")
    return [], [f"WAL per entry: {'; '.join(said)}"]


def idle(server: servers.Server) -> Part:
    """Transactions a second of a worker with nothing to do, on a server of its own that does not vacuum meanwhile."""
    seconds = 5 if QUICK else 60
    quiet = servers.Postgres(durable=True, autovacuum="off").start()
    try:
        with penstock.open_queues(quiet.url) as store:
            store.queue("mails", dict).add_handler(lambda _: None)
            worker = Worker(store)
            worker.start()
            time.sleep(20)  # until a beat after the start has handed in what the start did
            before = transactions(quiet.url)
            time.sleep(seconds)
            rate = max(0, transactions(quiet.url) - before - 1) / seconds  # the looking is one too
            worker.stop()
    finally:
        quiet.close()
    return [Bar("an idle worker, transactions a second", "< 1", f"{rate:.2f}", rate < 1)], []


def transactions(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as db:
        time.sleep(1.5)  # sessions hand in their counts now and then
        row = db.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()").fetchone()
        return int(row[0]) if row else 0


# --- a mixed load --------------------------------------------------------------------------------------------------


def mixed(server: servers.Server) -> Part:
    """10 % unique, 10 % labelled, 5 % failing once, 10 slots, handlers of 1 to 50 ms."""
    rates = []
    for _ in range(REPEATS):
        with penstock.open_queues(own_space(server)) as store:
            rates.append(mixed_drain(store))
    rate = statistics.median(rates)
    mean_seconds = sum(range(1, 51)) / 50 / 1000
    limit = 10 / mean_seconds
    return [ratio("a mixed load vs ten slots that never wait", rate / limit, 0.8)], [f"mixed load: {rate:,.0f}/s"]


def mixed_drain(store: QueueStore) -> float:
    queue = store.queue("mixed", int)
    left, done, counting = MIXED, threading.Event(), threading.Lock()

    def handle(number: int, ctx: penstock.Context[int]) -> None:
        nonlocal left
        time.sleep((number % 50 + 1) / 1000)
        if number % 20 == 7 and ctx.entry.attempt == 1:
            raise RuntimeError("the first attempt fails")
        with counting:
            left -= 1
            if not left:
                done.set()

    for number in range(MIXED):
        options: dict[str, Any] = {}
        if number % 10 == 1:
            options["unique"] = f"key-{number}"
        if number % 10 == 2:
            options["labels"] = {"customer": str(number % 100)}
        queue.put(number, **options)
    queue.add_handler(handle, concurrency=10, retry=penstock.Retry(attempts=3, immediate=2))
    worker = Worker(store)
    started = time.perf_counter()
    worker.start()
    done.wait()
    seconds = time.perf_counter() - started
    worker.stop()
    return MIXED / seconds


def ratio(what: str, measured: float, wanted: float) -> Bar:
    return Bar(what, f">= {wanted}x", f"{measured:.2f}x", measured >= wanted)


PARTS = {
    "drains": drains, "puts": puts, "round_trips": round_trips, "log_bytes": log_bytes, "idle": idle, "mixed": mixed,
    "snapshot": open_snapshot.part,
}  # fmt: skip


def main() -> int:
    if "--drain" in sys.argv:
        name, url = sys.argv[sys.argv.index("--drain") + 1 :][:2]
        print(*DRAINS[name](url), flush=True)
        return 0
    print(f"Conditions: {conditions()}", flush=True)
    logging.disable(logging.ERROR)  # handlers that fail on purpose
    server = servers.Postgres(durable=True).start()
    bars: list[Bar] = []
    notes: list[str] = []
    try:
        open_snapshot.install_pgmq(server)
        for name in [name for name in PARTS if name in sys.argv] or PARTS:
            more_bars, more_notes = PARTS[name](server)
            bars += more_bars
            notes += more_notes
    finally:
        server.close()
    good = report("Queues on PostgreSQL, beside pgmq", bars, notes)
    print("Ratios decide; absolute figures are for this machine and this moment.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

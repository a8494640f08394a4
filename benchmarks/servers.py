"""Queues on servers: against peers on the same server, against the bare driver, over backlog size, with two workers.

python -m benchmarks.servers [--quick] [postgres mysql redis zookeeper]
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools import servers

import penstock
from benchmarks import growth, raw_servers, server_peers
from benchmarks.measure import Bar, Run, conditions, median, quantile, report, timed
from benchmarks.peers import PAYLOAD
from benchmarks.queues import drain
from penstock import QueueStore, Worker

QUICK = "--quick" in sys.argv
COUNT = 5_000 if QUICK else 30_000
PEER_COUNT = 500 if QUICK else 3_000
REPEATS = 1 if QUICK else 3
ARQ = Path(".venv-bench-arq/bin/python")

Part = tuple[list[Bar], list[str]]


def open_space(server: servers.Server, space: str | None = None) -> QueueStore:
    """A space of its own for every measurement, or one that is there."""
    joint = "&" if "?" in server.url else "?"
    return penstock.open_queues(f"{server.url}{joint}space={space or f'b{os.urandom(5).hex()}'}")


def plain(server: servers.Server) -> str:
    """The URL as other programs write it."""
    return server.url.partition("?")[0]


def ours(server: servers.Server, count: int = COUNT) -> tuple[Run, Run, QueueStore]:
    """Put and drain; the store is still open."""
    store = open_space(server)
    mails = store.queue("mails", dict)
    put = timed(count, lambda: mails.put_many([PAYLOAD] * count, chunk=1000))
    return put, drain(store, mails, count), store


def new_database(server: servers.Server) -> str:
    """An empty database of its own: peers do not install themselves twice."""
    import psycopg

    name = f"peer{os.urandom(5).hex()}"
    with psycopg.connect(plain(server), autocommit=True) as db:
        db.execute(f'CREATE DATABASE "{name}"')
    return plain(server).rpartition("/")[0] + f"/{name}"


def emptied(server: servers.Server) -> str:
    """The server with nothing in it."""
    import redis as driver

    driver.Redis.from_url(plain(server)).flushall()
    return plain(server)


def peer(name: str, clean: Callable[[], str]) -> Run:
    """A peer in a process of its own on a clean server; the fastest of its runs counts."""
    python = str(ARQ) if name == "arq" else sys.executable
    runs = []
    for _ in range(REPEATS):
        done = subprocess.run(
            [python, "-m", "benchmarks.server_peers", name, clean(), str(PEER_COUNT)],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        runs.append(Run(*json.loads(done.stdout.strip().splitlines()[-1])))
    return max(runs, key=lambda run: run.rate)


def ratio(what: str, got: float, wanted: float) -> Bar:
    return Bar(what, f">= {wanted}x", f"{got:.2f}x", got >= wanted)


def throughput(
    server: servers.Server, raw: Callable[[str, int], tuple[Run, Run]] | None
) -> tuple[Run, Run, Run | None, Run | None]:
    """Ours and the bare loop, in turns: put, drain, raw put, raw drain."""
    puts, drains, raw_puts, raw_drains = [], [], [], []
    for _ in range(REPEATS):
        put, drained, store = ours(server)
        store.close()
        puts.append(put)
        drains.append(drained)
        if raw is not None:
            put, drained = raw(plain(server), COUNT)
            raw_puts.append(put)
            raw_drains.append(drained)
    return (
        median(puts), median(drains), median(raw_puts) if raw_puts else None, median(raw_drains) if raw_drains else None
    )  # fmt: skip


def described(what: str, run: Run) -> str:
    return f"{what} {run.rate:,.0f}/s with {run.cpu_us:.0f} µs CPU of the client per entry"


# --- the servers ----------------------------------------------------------------------------------------


def postgres() -> Part:
    server = servers.Postgres(durable=True).start()
    try:
        peers = {name: peer(name, lambda: new_database(server)) for name in server_peers.POSTGRES_PEERS}
        put, drained, raw_put, raw_drained = throughput(server, raw_servers.postgres_drain)
        assert raw_put is not None
        assert raw_drained is not None
        bars = [
            ratio("PostgreSQL: drain vs pgqueuer", drained.rate / peers["pgqueuer"].rate, 1.5),
            ratio("PostgreSQL: drain vs procrastinate", drained.rate / peers["procrastinate"].rate, 10),
            ratio("PostgreSQL: drain vs pgmq (no history, no handlers)", drained.rate / peers["pgmq"].rate, 0.8),
            ratio("PostgreSQL: drain vs bare psycopg loop", drained.rate / raw_drained.rate, 0.5),
            ratio("PostgreSQL: put_many vs bare COPY", put.rate / raw_put.rate, 0.5),
        ]
        notes = [described("PostgreSQL: drain", drained), described("bare loop", raw_drained), described("put", put)]
        notes += [described(name, run) for name, run in peers.items()]
        for part in (latency, two_workers, backlog):
            more, said = part(server, "PostgreSQL")
            bars += more
            notes += said
        return bars, notes
    finally:
        server.close()


def mysql() -> Part:
    server = servers.Mysql(durable=True).start()
    try:
        put, drained, raw_put, raw_drained = throughput(server, raw_servers.mysql_drain)
        assert raw_put is not None
        assert raw_drained is not None
        bars = [ratio("MariaDB: drain vs bare PyMySQL loop", drained.rate / raw_drained.rate, 0.4)]
        notes = [described("MariaDB: drain", drained), described("bare loop", raw_drained)]
        notes += [described("put", put), described("bare put", raw_put)]
        for part in (single_puts, far_puts, after_quiet, two_workers, backlog):
            more, said = part(server, "MariaDB")
            bars += more
            notes += said
        return bars, notes
    finally:
        server.close()


def single_puts(server: servers.Server, name: str) -> Part:
    """put() one by one against bare inserts of one row, in turns."""
    store = open_space(server)
    mails = store.queue("mails", dict)
    mails.put(PAYLOAD)
    db = raw_servers.connect_mysql(plain(server))
    cursor = db.cursor()
    cursor.execute("CREATE TABLE IF NOT EXISTS one_insert (id BIGINT AUTO_INCREMENT PRIMARY KEY, payload BLOB)")
    count, ours_took, bare_took = 30 if QUICK else 200, 0.0, 0.0
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(count):
            mails.put(PAYLOAD)
        middle = time.perf_counter()
        for _ in range(count):
            cursor.execute("INSERT INTO one_insert (payload) VALUES (%s)", (server_peers.BODY,))
            db.commit()
        ours_took += middle - begin
        bare_took += time.perf_counter() - middle
    store.close()
    db.close()
    rate = f"put {5 * count / ours_took:,.0f}/s, bare insert {5 * count / bare_took:,.0f}/s"
    return [ratio(f"{name}: put one by one vs bare insert", bare_took / ours_took, 0.5)], [rate]


FAR = """
import sys, time, penstock
with penstock.open_queues(sys.argv[1]) as store:
    for _ in range(int(sys.argv[2])):
        time.sleep(float(sys.argv[3]))
        store.queue("far", float).put(time.time())
"""


def far_puts(server: servers.Server, name: str) -> Part:
    """One put every 50 ms, for a worker that is not told."""
    p50 = quantile(far_delays(server, 40 if QUICK else 200, 0.05), 0.5)
    return [Bar(f"{name}: latency between processes, p50", "<= 5 ms", f"{p50:.2f} ms", p50 <= 5)], []


def after_quiet(server: servers.Server, name: str) -> Part:
    """The same after nothing happened for a minute."""
    quiet = 10 if QUICK else 60
    p50 = quantile(far_delays(server, 2 if QUICK else 5, quiet), 0.5)
    what = f"{name}: latency between processes after {quiet} s of quiet, p50"
    return [Bar(what, "<= 250 ms", f"{p50:.0f} ms", p50 <= 250)], []


def far_delays(server: servers.Server, count: int, pause: float) -> list[float]:
    """Milliseconds from before put() in another process to the handler's start."""
    store = open_space(server)
    delays: list[float] = []
    store.queue("far", float).add_handler(lambda begin: delays.append((time.time() - begin) * 1000))
    worker = Worker(store)
    worker.start()
    url = f"{plain(server)}?space={store.space}"
    subprocess.run([sys.executable, "-c", FAR, url, str(count), str(pause)], check=True)
    while len(delays) < count:
        time.sleep(0.05)
    worker.stop()
    store.close()
    return delays


def redis() -> Part:
    server = servers.Redis(durable=True).start()
    try:
        there = [name for name in server_peers.REDIS_PEERS if name != "arq" or ARQ.exists()]
        peers = {name: peer(name, lambda: emptied(server)) for name in there}
        fastest = max(peers, key=lambda name: peers[name].rate)
        put, drained, _, raw_drained = throughput(server, raw_servers.redis_drain)
        assert raw_drained is not None
        trips = redis_round_trips(server)
        putting, huey_putting = put_one_by_one(server), peer("huey put", lambda: emptied(server))
        bars = [
            ratio(f"Redis: drain vs {fastest}, the fastest peer", drained.rate / peers[fastest].rate, 5),
            ratio("Redis: drain vs bare Lua loop", drained.rate / raw_drained.rate, 0.5),
            ratio("Redis: put one by one vs huey", putting.rate / huey_putting.rate, 0.8),
            Bar("Redis: round trips per 100 entries", "<= 3", f"{trips:.2f}", trips <= 3),
        ]
        notes = [described("Redis: drain", drained), described("bare loop", raw_drained), described("put", put)]
        notes += [described("put one by one", putting), described("huey put one by one", huey_putting)]
        notes += [described(name, run) for name, run in peers.items()]
        for part in (backlog, two_workers):
            more, said = part(server, "Redis")
            bars += more
            notes += said
        return bars, notes
    finally:
        server.close()


def put_one_by_one(server: servers.Server) -> Run:
    """As a program puts that has one thing at a time; the fastest run counts, as for peers."""
    runs = []
    for _ in range(REPEATS):
        with open_space(server) as store:
            mails = store.queue("mails", dict)
            mails.put(PAYLOAD)
            runs.append(timed(PEER_COUNT, lambda mails=mails: [mails.put(PAYLOAD) for _ in range(PEER_COUNT)]))
    return max(runs, key=lambda run: run.rate)


def redis_round_trips(server: servers.Server) -> float:
    """Commands that the server saw while a drain went on, less those inside functions."""
    import redis as driver

    client = driver.Redis.from_url(plain(server))

    def functions() -> int:
        stats = client.info("commandstats")
        return int(stats.get("cmdstat_fcall", {}).get("calls", 0))

    store = open_space(server)
    mails = store.queue("mails", dict)
    mails.put_many([PAYLOAD] * COUNT, chunk=1000)
    before = functions()
    drain(store, mails, COUNT)
    trips = (functions() - before) / COUNT * 100
    store.close()
    return trips


def zookeeper() -> Part:
    server = servers.Zookeeper(durable=True).start()
    try:
        large, small, few = (2_000, 500, 20) if QUICK else (10_000, 1_000, 100)
        rates = {}
        for backlog_size in (small, large):
            store = open_space(server)
            mails = store.queue("mails", dict)
            mails.put_many([PAYLOAD] * backlog_size, chunk=200)
            rates[backlog_size] = drain_some(store, mails, small // 2)
            store.close()
        queue = server_peers.kazoo_queue_drain(plain(server), large, few)
        locking = server_peers.kazoo_locking_drain(plain(server), large, few)
        units_count = 100 if QUICK else 500
        raw = raw_servers.zookeeper_units(plain(server), units_count)
        units = zookeeper_units(server, units_count)
        mine = rates[large]
        flat = rates[small].rate / mine.rate
        bars = [
            ratio(f"ZooKeeper: drain vs kazoo Queue, backlog {large:,}", mine.rate / queue.rate, 2),
            ratio(f"ZooKeeper: drain vs kazoo LockingQueue, backlog {large:,}", mine.rate / locking.rate, 20),
            Bar(f"ZooKeeper: drain, backlog {small:,} vs {large:,}", "<= 2x", f"{flat:.2f}x", flat <= 2),
            ratio("ZooKeeper: units of work vs bare multi loop", units.rate / raw.rate, 0.5),
        ]
        notes = [described("ZooKeeper: drain", mine), described("kazoo Queue", queue)]
        notes += [described("kazoo LockingQueue", locking), described("units", units), described("bare units", raw)]
        more, said = two_workers(server, "ZooKeeper")
        return bars + more, notes + said
    finally:
        server.close()


def drain_some(store: QueueStore, queue: Any, count: int) -> Run:
    left = server_peers.Countdown(count)
    queue.add_handler(lambda _: left.one(), concurrency=1)
    worker = Worker(store)

    def work() -> None:
        worker.start()
        left.done.wait()

    run = timed(count, work)
    worker.stop()
    return run


def zookeeper_units(server: servers.Server, count: int) -> Run:
    store = open_space(server)
    orders, invoices = store.queue("orders", dict), store.queue("invoices", dict)
    orders.put_many([PAYLOAD] * count, chunk=200)

    def work() -> None:
        for _ in range(count):
            with store.unit() as unit:
                [order] = unit.take(orders)
                unit.put(invoices, order.value)
                unit.commit()

    run = timed(count, work)
    store.close()
    return run


# --- what is asked of several ---------------------------------------------------------------------------


def latency(server: servers.Server, name: str) -> Part:
    """put() returned to handler start at 150 a second, against one bare commit on the same server."""
    import psycopg

    with psycopg.connect(plain(server), autocommit=True) as db:
        db.execute("CREATE TABLE IF NOT EXISTS one_commit (x INT)")
        commits = []
        for number in range(100):
            begin = time.perf_counter()
            db.execute("INSERT INTO one_commit VALUES (%s)", (number,))
            commits.append((time.perf_counter() - begin) * 1000)
    commit = quantile(commits, 0.5)
    store = open_space(server)
    queue = store.queue("latency", float)
    sent: dict[float, float] = {}
    delays: list[float] = []
    arrived = threading.Semaphore(0)

    def handle(key: float) -> None:
        delays.append(max(0.0, time.perf_counter() - sent[key]) * 1000)
        arrived.release()

    queue.add_handler(handle, concurrency=4)
    worker = Worker(store)
    worker.start()
    rng = random.Random(7)
    count = 150 * (2 if QUICK else 10)
    for number in range(count):
        time.sleep(rng.expovariate(150))
        key = float(number)
        sent[key] = time.perf_counter() + 1e9  # a handler that is faster than put() returns counts as zero
        queue.put(key)
        sent[key] = min(sent[key], time.perf_counter())
    for _ in range(count):
        arrived.acquire(timeout=10)
    worker.stop()
    store.close()
    p50 = quantile(delays, 0.5)
    wanted = f"<= one bare commit + 2 ms = {commit + 2:.2f} ms"
    return (
        [Bar(f"{name}: latency at 150/s, p50", wanted, f"{p50:.2f} ms", p50 <= commit + 2)],
        [f"{name}: latency p50 {p50:.2f}, p99 {quantile(delays, 0.99):.2f} ms; one bare commit {commit:.2f} ms"],
    )


def backlog(server: servers.Server, name: str) -> Part:
    """Claims over a small and over a large backlog: time, and what the server touches."""

    def open_filled(size: int) -> QueueStore:
        store = open_space(server)
        growth.fill(store, size)
        return store

    sizes = (growth.SMALL, 10_000, 50_000) if QUICK else (growth.SMALL, 100_000, 1_000_000)
    settle_down = (lambda: vacuum(server)) if name == "PostgreSQL" else lambda: None
    bars, notes, stores = growth.measure(f"{name}: ", open_filled, sizes, settle_down)
    touched = {}
    for store in stores.values():
        store.close()  # sessions hand in what they counted
    for size, store in stores.items():
        before = touches(server, name)
        with open_space(server, store.space) as again:
            for _ in range(20):
                growth.claim_one(again)
        touched[size] = touches(server, name) - before
    more = touched[max(sizes)] / max(1, touched[growth.SMALL])
    bars.append(Bar(f"{name}: what the server touches for it", "<= 2x", f"{more:.2f}x", more <= 2))
    return bars, [*notes, f"{name}: touched by 20 claims {touched}"]


def vacuum(server: servers.Server) -> None:
    """What autovacuum does in its own time; it stays off, so that only claims are seen to touch anything."""
    import psycopg

    with psycopg.connect(plain(server), autocommit=True) as db:
        db.execute("ALTER SYSTEM SET autovacuum = off")
        db.execute("SELECT pg_reload_conf()")
        db.execute("VACUUM ANALYZE")


def touches(server: servers.Server, name: str) -> int:
    """Blocks read by PostgreSQL, rows asked for by MariaDB, or commands run by Redis, so far."""
    if name == "Redis":
        import redis as driver

        stats = driver.Redis.from_url(plain(server)).info("commandstats")
        return sum(one["calls"] for command, one in stats.items() if command != "cmdstat_info")
    if name == "MariaDB":
        with contextlib.closing(raw_servers.connect_mysql(plain(server))) as connection:
            cursor = connection.cursor()
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Handler_read%'")
            return sum(int(value) for _, value in cursor.fetchall())
    import psycopg

    with psycopg.connect(plain(server), autocommit=True) as db:
        # Sessions hand in their counts now and then; wait until nobody has any left.
        last = -1
        while True:
            db.execute("SELECT pg_stat_clear_snapshot()")
            tables = "SELECT coalesce(sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read), 0)"
            row = db.execute(f"{tables} FROM pg_statio_user_tables").fetchone()
            if row is not None and int(row[0]) == last:
                return last
            last = int(row[0]) if row is not None else 0
            time.sleep(3)


WORKER = """
import json, sys, threading, time
import penstock
store = penstock.open_queues(sys.argv[1])
done = 0
lock = threading.Lock()
def handle(_):
    global done
    time.sleep(0.01)
    with lock:
        done += 1
store.queue("mails", dict).add_handler(handle, concurrency=4)
worker = penstock.Worker(store)
worker.start()
while not done:
    time.sleep(0.001)
print("ready", flush=True)
sys.stdin.readline()
worker.stop()
print(json.dumps(done), flush=True)
"""


def two_workers(server: servers.Server, name: str) -> Part:
    """Two processes with a handler of 10 ms against one: how much faster, and who did how much.

    Workers run already and the backlog is there when the queue is unlocked, and one process looks on from outside until
    it is done: neither the start of a process nor the putting nor the looking is measured.
    """
    count = 400 if QUICK else 2_000
    gains, leasts, notes = [], [], []
    for _ in range(REPEATS):
        (alone, _), (together, shares) = (drained_by(server, processes, count) for processes in (1, 2))
        gains.append(alone / together)
        leasts.append(min(shares))
        notes.append(f"{name}: {count:,} entries with one process {alone:.2f} s, with two {together:.2f} s")
    gain, least = statistics.median(gains), statistics.median(leasts)
    return (
        [
            ratio(f"{name}: two worker processes vs one, 10 ms handler", gain, 1.8),
            Bar(f"{name}: the share of the lesser of the two", ">= 40 %", f"{least * 100:.0f} %", least >= 0.4),
        ],
        notes,
    )


def drained_by(server: servers.Server, processes: int, count: int) -> tuple[float, list[float]]:
    """So many workers: seconds from the unlocking of a backlog to its end, and the share of each."""
    joint = "&" if "?" in server.url else "?"
    url = f"{server.url}{joint}space=w{os.urandom(5).hex()}"
    with penstock.open_queues(url) as store:
        mails = store.queue("mails", dict)
        running = []
        for _ in range(processes):
            one = subprocess.Popen(
                [sys.executable, "-c", WORKER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            running.append(one)
            assert one.stdout is not None
            waiting = threading.Thread(target=one.stdout.readline)
            waiting.start()
            while waiting.is_alive():  # one entry at a time, until the new worker has had one too
                mails.put(PAYLOAD)
                waiting.join(0.05)
        while mails.counts().live:
            time.sleep(0.05)
        mails.lock(reason="until the backlog is there")
        mails.put_many([PAYLOAD] * count, chunk=200)
        time.sleep(1)
        mails.unlock()
        begin = time.perf_counter()
        while mails.counts().live:
            time.sleep(0.02)
        seconds = time.perf_counter() - begin
        done = [int(one.communicate("stop\n")[0].strip().splitlines()[-1]) for one in running]
    return seconds, [part / sum(done) for part in done]


SERVERS: dict[str, Callable[[], Part]] = {
    "postgres": postgres, "mysql": mysql, "redis": redis, "zookeeper": zookeeper,
}  # fmt: skip
TITLES = {"postgres": "PostgreSQL", "mysql": "MariaDB", "redis": "Redis", "zookeeper": "ZooKeeper"}


def main() -> int:
    wanted = [name for name in SERVERS if name in sys.argv] or list(SERVERS)
    print(f"Conditions: {conditions()}", flush=True)
    good = True
    for name in wanted:
        bars, notes = SERVERS[name]()
        good = report(f"Queues on {TITLES[name]}", bars, notes) and good
        sys.stdout.flush()
    print("Ratios decide; absolute figures are for this machine and this moment.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

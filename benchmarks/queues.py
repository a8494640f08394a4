"""Queues on the embedded store: against peers, against the raw driver, over backlog size, and idle.

python -m benchmarks.queues [--quick] [--store URL-TEMPLATE]
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import penstock
from benchmarks import growth
from benchmarks.measure import Bar, Run, conditions, durable, folder, median, quantile, raw_commit_ms, report, timed
from benchmarks.peers import PAYLOAD, PEERS, huey_drain, in_threads, raw_drain
from penstock import Queue, QueueStore, Worker
from penstock.queue.drivers.sql.statements import read_statements, script

QUICK = "--quick" in sys.argv
COUNT = 10_000 if QUICK else 50_000
PEER_COUNT = 500 if QUICK else 3_000
REPEATS = 1 if QUICK else 5
SLOTS = 8


def open_store(path: Path, name: str = "queue.db", durability: str = "durable") -> QueueStore:
    return penstock.open_queues(f"sqlite:///{path.absolute() / name}?durability={durability}")


def drain(store: QueueStore, queue: Queue[Any], count: int, *, batch: int = 100, slots: int = 1) -> Run:
    """One worker process, a handler that does nothing."""
    left = count
    done = threading.Event()
    counting = threading.Lock()

    def handle(_: object) -> None:
        nonlocal left
        with counting:
            left -= 1
            if left == 0:
                done.set()

    queue.add_handler(handle, concurrency=slots, prefetch=0 if batch == 1 else None)
    worker = Worker(store, batch=batch)

    def work() -> None:
        worker.start()
        done.wait()
        worker.stop()

    return timed(count, work)


def throughput() -> tuple[list[Bar], list[str]]:
    ours_put: list[Run] = []
    ours_drain: list[Run] = []
    ours_single: list[Run] = []
    ours_slots: list[Run] = []
    huey_slots: list[Run] = []
    raw_put: list[Run] = []
    raw_dr: list[Run] = []
    peers: dict[str, list[Run]] = {name: [] for name in PEERS}
    peer_put: dict[str, list[Run]] = {name: [] for name in PEERS}
    for _ in range(REPEATS):
        with folder() as path:
            store = open_store(path)
            mails = store.queue("mails", dict)
            payloads = [PAYLOAD] * COUNT
            ours_put.append(timed(COUNT, lambda: mails.put_many(payloads, chunk=1000)))  # noqa: B023
            ours_drain.append(drain(store, mails, COUNT))
            store.close()
        with folder() as path:
            store = open_store(path)
            mails = store.queue("mails", dict)
            mails.put_many([PAYLOAD] * PEER_COUNT)
            ours_single.append(drain(store, mails, PEER_COUNT, batch=1))
            store.close()
        with folder() as path:
            store = open_store(path)
            mails = store.queue("mails", dict)
            mails.put_many([PAYLOAD] * PEER_COUNT)
            ours_slots.append(drain(store, mails, PEER_COUNT, batch=1, slots=SLOTS))
            store.close()
        with folder() as path:
            huey_slots.append(huey_drain(path, PEER_COUNT, SLOTS)[1])
        with folder() as path:
            put, drained = raw_drain(path, COUNT)
            raw_put.append(put)
            raw_dr.append(drained)
        for name, peer in PEERS.items():
            with folder() as path:
                put, drained = peer(path, PEER_COUNT)
                peer_put[name].append(put)
                peers[name].append(drained)
    ours, single, raw = median(ours_drain), median(ours_single), median(raw_dr)
    fastest, best = max(((name, median(runs)) for name, runs in peers.items()), key=lambda one: one[1].rate)
    put, rput, slots, huey = median(ours_put), median(raw_put), median(ours_slots), median(huey_slots)
    bars = [
        _ratio(f"drain vs {fastest}, the fastest peer", ours.rate / best.rate, 5),
        _ratio("drain one by one, one slot, vs huey", single.rate / median(peers["huey"]).rate, 0.8),
        _ratio(f"drain one by one, {SLOTS} slots, vs huey with {SLOTS} threads", slots.rate / huey.rate, 1),
        _ratio("drain vs raw sqlite3 loop (100 per commit)", ours.rate / raw.rate, 0.5),
        _ratio("put_many vs raw executemany (1000 per commit)", put.rate / rput.rate, 0.5),
    ]
    notes = [
        f"drain {ours.rate:,.0f}/s, {ours.cpu_us:.1f} µs CPU per entry; raw {raw.rate:,.0f}/s, {raw.cpu_us:.1f} µs",
        f"drain one by one {single.rate:,.0f}/s with {single.cpu_us:.0f} µs CPU per entry; "
        f"{SLOTS} slots {slots.rate:,.0f}/s with {slots.cpu_us:.0f} µs, huey {huey.rate:,.0f}/s",
        f"put_many {put.rate:,.0f}/s with {put.cpu_us:.1f} µs; raw {rput.rate:,.0f}/s with {rput.cpu_us:.1f} µs",
        *(
            f"{name}: put {median(peer_put[name]).rate:,.0f}/s, drain {median(runs).rate:,.0f}/s with "
            f"{median(runs).cpu_us:.0f} µs CPU per entry"
            for name, runs in peers.items()
        ),
    ]
    return bars, notes


def group_commit() -> tuple[list[Bar], list[str]]:
    """The same single puts from 8 threads: sharing commits, against each in a transaction of its own."""
    threads, each = 8, 100 if QUICK else 500

    def spread(work: Any) -> Run:
        return timed(threads * each, lambda: in_threads(threads, work))

    ours, own = [], []
    for _ in range(REPEATS):
        with folder() as path:
            store = open_store(path)
            mails = store.queue("mails", dict)
            ours.append(spread(lambda: [mails.put(PAYLOAD) for _ in range(each)]))  # noqa: B023
            store.close()
        with folder() as path:
            store = open_store(path)
            mails = store.queue("mails", dict)
            lock = threading.Lock()

            def alone() -> None:
                for _ in range(each):
                    with lock:  # noqa: B023
                        mails.put(PAYLOAD)  # noqa: B023

            own.append(spread(alone))
            store.close()
    shared, single = median(ours), median(own)
    return (
        [_ratio("single put from 8 threads vs each its own commit", shared.rate / single.rate, 4)],
        [f"single put: 8 threads {shared.rate:,.0f}/s, one commit each {single.rate:,.0f}/s"],
    )


def latency() -> tuple[list[Bar], list[str]]:
    """put() returned to handler start at 150 a second, on the durable and on the fast profile."""
    commit = raw_commit_ms()
    figures = {}
    for durability in ("durable", "fast"):
        with folder() as path:
            store = open_store(path, durability=durability)
            queue = store.queue("latency", float)
            delays: list[float] = []
            arrived = threading.Semaphore(0)
            sent: dict[float, float] = {}

            def handle(key: float) -> None:
                delays.append(time.perf_counter() - sent[key])  # noqa: B023
                arrived.release()  # noqa: B023

            queue.add_handler(handle, concurrency=4)
            worker = Worker(store)
            worker.start()
            count = 150 * (2 if QUICK else 10)
            rng = random.Random(7)
            for number in range(count):
                time.sleep(rng.expovariate(150))
                key = float(number)
                sent[key] = time.perf_counter() + 1e9  # replaced below; a handler that is faster counts as zero
                queue.put(key)
                sent[key] = min(sent[key], time.perf_counter())
            for _ in range(count):
                arrived.acquire(timeout=10)
            worker.stop()
            store.close()
            figures[durability] = [max(0.0, one) * 1000 for one in delays]
    durable_p50, fast_p50 = quantile(figures["durable"], 0.5), quantile(figures["fast"], 0.5)
    bars = [
        Bar(
            "latency at 150/s, durable: put returned to handler start, p50",
            f"<= one raw commit + 2 ms = {commit + 2:.2f} ms",
            f"{durable_p50:.2f} ms",
            durable_p50 <= commit + 2,
        ),
        Bar("latency at 150/s, fast profile, p50", "<= 1 ms", f"{fast_p50:.2f} ms", fast_p50 <= 1),
    ]
    notes = [
        f"latency {name}: p50 {quantile(values, 0.5):.2f}, p95 {quantile(values, 0.95):.2f}, "
        f"p99 {quantile(values, 0.99):.2f} ms"
        for name, values in figures.items()
    ]
    return bars, notes


def backlog() -> tuple[list[Bar], list[str]]:
    """Claims over a small and over a large backlog: time, and what the query plan touches."""
    with folder() as path:
        plans = {}

        def open_filled(size: int) -> QueueStore:
            store = open_store(path, f"{size}.db", durability="fast")
            growth.fill(store, size)
            return store

        sizes = (growth.SMALL, 20_000, 100_000) if QUICK else (growth.SMALL, 100_000, 1_000_000)
        bars, notes, stores = growth.measure("", open_filled, sizes, lambda: None)
        for size, store in stores.items():
            plans[size] = _plan(path / f"{size}.db")
            store.close()
    is_same = len(set(plans.values())) == 1
    bars.append(Bar("the claim's query plan is the same", "equal", "equal" if is_same else "differs", is_same))
    return bars, [*notes, f"plan: {plans[max(plans)]}"]


def _plan(path: Path) -> str:
    """How SQLite finds the due entries of a queue."""
    text = script(read_statements("sqlite.sql", "penstock")["candidates"], ":{}").parts[0].text
    values = {"number": 1, "priority": 0, "moment": 1, "after_due": 0, "after_seq": 0, "limit": 10}
    db = durable(path)
    rows = db.execute(f"EXPLAIN QUERY PLAN {text}", values).fetchall()
    db.close()
    return "; ".join(row[3] for row in rows)


def fifo_queues() -> tuple[list[Bar], list[str]]:
    """Ten thousand FIFO queues of one family, three entries each: all done, in order, with few claims."""
    queues, each = (1_000, 3) if QUICK else (10_000, 3)
    with folder() as path:
        store = open_store(path, durability="fast")
        family = store.family("user-", int, fifo=True)
        for number in range(queues):
            family.member(f"user-{number}").put_many(range(each))
        seen: dict[str, list[int]] = {}
        left = queues * each
        done = threading.Event()
        claims = 0

        def on_claim(_: object) -> None:
            nonlocal claims
            claims += 1

        def handle(value: int, ctx: penstock.Context) -> None:
            nonlocal left
            seen.setdefault(ctx.entry.queue, []).append(value)
            left -= 1
            if left == 0:
                done.set()

        family.add_handler(handle, concurrency=1)
        turns = 0
        settle = store.driver.settle

        def counting(*args: Any, **kwargs: Any) -> Any:
            nonlocal turns
            turns += 1
            return settle(*args, **kwargs)

        store.driver.settle = counting  # type: ignore[method-assign]
        worker = Worker(store)

        def work() -> None:
            worker.start()
            done.wait()
            worker.stop()

        run = timed(queues * each, work)
        store.close()
    ordered = all(values == list(range(each)) for values in seen.values()) and len(seen) == queues
    return (
        [
            Bar(
                f"{queues:,} FIFO queues drain in order",
                "all, in order",
                "all, in order" if ordered else "NOT",
                ordered,
            ),
            Bar(
                "round trips per entry, not per queue",
                "< 1.1",
                f"{turns / (queues * each):.2f}",
                turns < queues * each * 1.1,
            ),
        ],
        [f"FIFO family: {run.rate:,.0f} entries/s, {run.cpu_us:.0f} µs CPU per entry, {turns:,} round trips"],
    )


def idle() -> tuple[list[Bar], list[str]]:
    """A worker with nothing to do, in a process of its own."""
    seconds = 3 if QUICK else 10
    with folder() as path:
        program = (
            "import penstock, time, resource\n"
            f"store = penstock.open_queues('sqlite:///{path.absolute() / 'idle.db'}')\n"
            "store.queue('mails', dict).add_handler(lambda mail: None)\n"
            "worker = penstock.Worker(store); worker.start(); time.sleep(2)\n"
            "begin = resource.getrusage(resource.RUSAGE_SELF)\n"
            f"time.sleep({seconds})\n"
            "end = resource.getrusage(resource.RUSAGE_SELF)\n"
            "print(end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime)\n"
            "worker.stop()\n"
        )
        cpu = float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)
    share = cpu / seconds * 100
    return [Bar("idle worker, share of one core", "< 2 %", f"{share:.2f} %", share < 2)], []


STARTING = """
import resource, sys, threading, penstock
handled = threading.Event()
store = penstock.open_queues(sys.argv[1])
store.queue("mails", dict).add_handler(lambda mail: handled.set())
worker = penstock.Worker(store)
worker.start()
handled.wait(60)
usage = resource.getrusage(resource.RUSAGE_SELF)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss, "sqlalchemy" in sys.modules)
worker.stop()
"""


def start() -> tuple[list[Bar], list[str]]:
    """CPU of a process from nothing to its first handled entry; an interpreter that does nothing beside it."""
    ours, bare, sizes = [], [], []
    for _ in range(3 if QUICK else 9):
        with folder() as path:
            store = open_store(path)
            store.queue("mails", dict).put(PAYLOAD)
            store.close()
            cpu, size, sqlalchemy = _output(STARTING, f"sqlite:///{path.absolute() / 'queue.db'}").split()
            assert sqlalchemy == "False"
            ours.append(float(cpu))
            sizes.append(int(size))
        bare.append(float(_output("import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_utime)")))
    cpu = quantile(ours, 0.5) * 1000
    return (
        [Bar("a worker starts and handles its first entry, CPU", "<= 150 ms", f"{cpu:.0f} ms", cpu <= 150)],
        [f"start: {min(ours) * 1000:.0f} to {max(ours) * 1000:.0f} ms, {quantile(sizes, 0.5) / 1024:.0f} MiB; "
         f"a bare interpreter {quantile(bare, 0.5) * 1000:.0f} ms"],
    )  # fmt: skip


DRAINING = """
import sys, time, penstock
handled = 0
def handle(mail):
    global handled
    handled += 1
with penstock.open_queues(sys.argv[1]) as store:
    queue = store.queue("mails", dict)
    queue.add_handler(handle, concurrency=1)
    worker = penstock.Worker(store)
    print("ready", flush=True)
    sys.stdin.readline()
    worker.start()
    while queue.counts().live:
        time.sleep(0.05)
    worker.stop()
print(handled)
"""


def sharing() -> tuple[list[Bar], list[str]]:
    """Two processes drain one file: what each of them gets, and how fast both are together."""
    shares, rates = [], []
    for _ in range(REPEATS):
        for processes in (1, 2):
            with folder() as path:
                url = f"sqlite:///{path.absolute() / 'queue.db'}"
                store = open_store(path)
                store.queue("mails", dict).put_many([PAYLOAD] * COUNT, chunk=1000)
                store.close()
                seconds, counts = _drain_in(processes, url)
                rates.append((processes, COUNT / seconds))
                if processes == 2:
                    shares.append(min(counts) / sum(counts))
    alone, both = (median_of([rate for number, rate in rates if number == wanted]) for wanted in (1, 2))
    worst = min(shares)
    return (
        [Bar("two processes on one file, the smaller share", ">= 40 %", f"{worst * 100:.0f} %", worst >= 0.4)],
        [f"drain by one process {alone:,.0f}/s, by two {both:,.0f}/s"],
    )


def median_of(values: list[float]) -> float:
    return quantile(values, 0.5)


def _drain_in(processes: int, url: str) -> tuple[float, list[int]]:
    command = [sys.executable, "-c", DRAINING, url]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    begin = time.perf_counter()
    for process in running:
        assert process.stdin is not None
        process.stdin.write("begin\n")
        process.stdin.flush()
    counts = [int(process.communicate()[0]) for process in running]
    return time.perf_counter() - begin, counts


def _output(program: str, *arguments: str) -> str:
    """What a program prints; its modules are compiled once, as those of an installed package are."""
    command = [sys.executable, "-c", program, *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def _ratio(what: str, ratio: float, wanted: float) -> Bar:
    return Bar(what, f">= {wanted}x", f"{ratio:.2f}x", ratio >= wanted)


def main() -> int:
    print(f"Conditions: {conditions()}")
    bars: list[Bar] = []
    notes: list[str] = []
    for part in (throughput, group_commit, latency, backlog, fifo_queues, sharing, start, idle):
        more_bars, more_notes = part()
        bars += more_bars
        notes += more_notes
    good = report("Queues on SQLite", bars, notes)
    print(f"Peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    print("Ratios decide; absolute figures are for this machine and this moment.")
    return 0 if good else 1


if __name__ == "__main__":
    tempfile.tempdir = None
    os.environ.setdefault("PYTHONHASHSEED", "0")
    sys.exit(main())

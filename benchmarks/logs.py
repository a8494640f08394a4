"""Logs on files: against peers at the same durability, over segments and partitions, waking up, taking over, recovery.

python -m benchmarks.logs [--quick] [append|read|wake|takeover|recovery|scale ...]

Every peer keeps the same four things of a record: its offset, a time, a key and a value of 200 bytes. Runs of all are
interleaved, so that what else the machine does falls on all alike; ratios are medians of ratios within a round.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import socket
import sqlite3
import statistics
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import penstock
from benchmarks.measure import Bar, Run, conditions, folder, quantile, report, timed
from penstock import LogStore
from penstock.log import Partition

QUICK = "--quick" in sys.argv
CHOSEN = [one for one in sys.argv[1:] if not one.startswith("-")]
COUNT = 50_000 if QUICK else 300_000
SLOW_COUNT = 2_000 if QUICK else 10_000
ROUNDS = 3 if QUICK else 7
BATCH = 1000
KEYS = [f"user-{number}" for number in range(BATCH)]
VALUES = [b'{"user": %07d, "page": "' % number + b"x" * 171 + b'"}' for number in range(BATCH)]
PLACE = Partition("log", 0)
_TIME = struct.Struct("<qH")


def open_store(path: Path, durability: str = "fast") -> LogStore:
    return penstock.open_logs(f"file://{path.absolute() / 'logs'}?durability={durability}")


def rows(begin: int) -> list[tuple[int, int, str, bytes]]:
    """What every peer keeps of a batch: offset, time, key, value."""
    now = time.time_ns() // 1000
    return [(begin + rank, now, key, value) for rank, (key, value) in enumerate(zip(KEYS, VALUES, strict=True))]


def packed(begin: int) -> list[tuple[bytes, bytes]]:
    """The same for a store of keys and values: the offset is the key."""
    now = time.time_ns() // 1000
    return [
        ((begin + rank).to_bytes(8, "big"), _TIME.pack(now, len(key)) + key.encode() + value)
        for rank, (key, value) in enumerate(zip(KEYS, VALUES, strict=True))
    ]


# --- ours ------------------------------------------------------------------------------------------------------------


def ours_append(path: Path, count: int, durability: str) -> Run:
    with open_store(path, durability) as store:
        store.create("log")
        with store.appender("log", bytes) as out:
            out.append_many(VALUES, keys=KEYS)
            return timed(count, lambda: [out.append_many(VALUES, keys=KEYS) and None for _ in range(count // BATCH)])


def ours_iterate(path: Path, count: int, what: str = "payloads") -> Run:
    with open_store(path) as store:
        log = store.log("log", bytes)
        read: Callable[..., Iterator[Any]] = getattr(log, what)

        def work() -> None:
            seen = 0
            for _ in read(0, 0, count):
                seen += 1
            assert seen == count

        return timed(count, work)


def ours_arrow(path: Path, count: int) -> Run:
    with open_store(path) as store:

        def work() -> None:
            assert sum(batch.num_rows for batch in store.arrow(PLACE, 0, count)) == count

        return timed(count, work)


# --- peers -----------------------------------------------------------------------------------------------------------


def lmdb_env(path: Path, durability: str) -> Any:
    import lmdb

    durable = durability == "durable"
    return lmdb.open(str(path / "lmdb"), map_size=1 << 33, sync=durable, metasync=durable)


def lmdb_append(path: Path, count: int, durability: str) -> Run:
    """LMDB with its bulk call, in append mode, one transaction per batch."""
    env = lmdb_env(path, durability)

    def work() -> None:
        for begin in range(0, count, BATCH):
            with env.begin(write=True) as transaction:
                transaction.cursor().putmulti(packed(begin), append=True)

    run = timed(count, work)
    env.close()
    return run


def lmdb_bare(path: Path, count: int, durability: str) -> Run:
    """LMDB with values only: less than the others keep."""
    env = lmdb_env(path, durability)

    def work() -> None:
        for begin in range(0, count, BATCH):
            with env.begin(write=True) as transaction:
                items = [((begin + rank).to_bytes(8, "big"), value) for rank, value in enumerate(VALUES)]
                transaction.cursor().putmulti(items, append=True)

    run = timed(count, work)
    env.close()
    return run


def lmdb_iterate(path: Path, count: int) -> Run:
    env = lmdb_env(path, "fast")

    def work() -> None:
        seen = 0
        with env.begin() as transaction:
            for _ in transaction.cursor():
                seen += 1
        assert seen == count

    run = timed(count, work)
    env.close()
    return run


def rocks_append(path: Path, count: int, durability: str) -> Run:
    from rocksdict import Options, Rdict, WriteBatch, WriteOptions

    db = Rdict(str(path / "rocks"), Options(raw_mode=True))
    options = WriteOptions()
    options.sync = durability == "durable"

    def work() -> None:
        for begin in range(0, count, BATCH):
            batch = WriteBatch(raw_mode=True)
            for key, value in packed(begin):
                batch.put(key, value)
            db.write(batch, options)

    run = timed(count, work)
    db.close()
    return run


def rocks_iterate(path: Path, count: int) -> Run:
    from rocksdict import Options, Rdict

    db = Rdict(str(path / "rocks"), Options(raw_mode=True))

    def work() -> None:
        seen = 0
        for _ in db.items():
            seen += 1
        assert seen == count

    run = timed(count, work)
    db.close()
    return run


def sqlite_append(path: Path, count: int, durability: str) -> Run:
    db = sqlite3.connect(path / "log.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {'FULL' if durability == 'durable' else 'NORMAL'}")
    db.execute("CREATE TABLE log (position INTEGER PRIMARY KEY, time INTEGER, key TEXT, value BLOB)")

    def work() -> None:
        for begin in range(0, count, BATCH):
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO log VALUES (?, ?, ?, ?)", rows(begin))
            db.execute("COMMIT")

    run = timed(count, work)
    db.close()
    return run


def sqlite_iterate(path: Path, count: int) -> Run:
    db = sqlite3.connect(path / "log.db")

    def work() -> None:
        seen = 0
        for _ in db.execute("SELECT position, time, key, value FROM log ORDER BY position"):
            seen += 1
        assert seen == count

    run = timed(count, work)
    db.close()
    return run


@contextlib.contextmanager
def redis_server(path: Path, durability: str) -> Iterator[Any]:
    import redis

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    sync = "always" if durability == "durable" else "everysec"
    arguments = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(path), "--save", "",
                 "--appendonly", "yes", "--appendfsync", sync]  # fmt: skip
    server = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    client = redis.Redis(port=port)
    try:
        for _ in range(200):
            with contextlib.suppress(redis.ConnectionError):
                client.ping()
                break
            time.sleep(0.02)
        yield client
    finally:
        client.close()
        server.terminate()
        server.wait()


def redis_append(path: Path, count: int, durability: str) -> Run:
    with redis_server(path, durability) as client:

        def work() -> None:
            for begin in range(0, count, BATCH):
                pipe = client.pipeline(transaction=False)
                for _, moment, key, value in rows(begin):
                    pipe.xadd("log", {"t": moment, "k": key, "v": value})
                pipe.execute()

        return timed(count, work)


def persist_append(path: Path, count: int, durability: str) -> Run:
    from persistqueue import Queue
    from persistqueue.serializers import json as json_serializer

    queue = Queue(str(path / "persist"), serializer=json_serializer, autosave=True)

    def work() -> None:
        for begin in range(0, count, BATCH):
            for offset, moment, key, value in rows(begin)[: count - begin]:
                queue.put([offset, moment, key, value.decode()])

    return timed(count, work)


PEERS: dict[str, tuple[Callable[[Path, int, str], Run], float, float]] = {
    # how, the least ratio of the fast profile, the aim
    "LMDB": (lmdb_append, 1.3, 1.5),
    "RocksDB": (rocks_append, 2.0, 3.0),
    "SQLite": (sqlite_append, 6.0, 8.0),
}
SLOW = {"Redis Streams": redis_append, "persist-queue": persist_append}


def appending() -> tuple[list[Bar], list[str]]:
    """append_many(1000) with keys and times."""
    runs: dict[str, list[Run]] = {}
    ratios: dict[str, list[float]] = {}

    def both(name: str, mine: Run, other: Run) -> None:
        runs.setdefault(name, []).append(other)
        ratios.setdefault(name, []).append(other.cpu / other.count / (mine.cpu / mine.count))
        ratios.setdefault(f"{name} wall", []).append(mine.rate / other.rate)

    for _ in range(ROUNDS):
        for durability in ("fast", "durable"):
            count = COUNT if durability == "fast" else COUNT // 5
            for name, (append, _, _) in {**PEERS, "LMDB, values only": (lmdb_bare, 0, 0)}.items():
                with folder() as path:
                    mine = ours_append(path, count, durability)
                with folder() as path:
                    both(f"{name} {durability}", mine, append(path, count, durability))
                runs.setdefault(f"Penstock {durability}", []).append(mine)
    for name, append in SLOW.items():
        if name == "Redis Streams" and shutil.which("redis-server") is None:
            continue
        with folder() as path:
            mine = ours_append(path, COUNT, "fast")
        with folder() as path:
            both(f"{name} fast", mine, append(path, SLOW_COUNT, "fast"))
    bars = []
    for name, (_, least, aim) in PEERS.items():
        measured = statistics.median(ratios[f"{name} fast wall"])
        shown = f"{measured:.2f}x (CPU {statistics.median(ratios[f'{name} fast']):.2f}x)"
        bars.append(Bar(f"append_many(1000), fast, vs {name}", f"{least:g}x, aim {aim:g}x", shown, measured >= least))
    measured = statistics.median(ratios["LMDB durable wall"])
    bars.append(Bar("append_many(1000), durable, vs LMDB synced", "1x", f"{measured:.2f}x", measured >= 1))
    notes = [
        f"{name}: {statistics.median(run.rate for run in found):,.0f}/s, "
        f"{statistics.median(run.cpu_us for run in found):.2f} µs CPU per record"
        for name, found in sorted(runs.items())
    ]
    notes.append(
        f"against LMDB that keeps values only: {statistics.median(ratios['LMDB, values only fast wall']):.2f}x fast, "
        f"{statistics.median(ratios['LMDB, values only durable wall']):.2f}x durable"
    )
    return bars, notes


def reading() -> tuple[list[Bar], list[str]]:
    """Every record once, checksums on."""
    with folder() as path:
        ours_append(path, COUNT, "fast")
        lmdb_append(path, COUNT, "fast")
        rocks_append(path, COUNT, "fast")
        sqlite_append(path, COUNT, "fast")
        ours_arrow(path, BATCH)  # the import is not what is measured
        names: dict[str, Callable[[], Run]] = {
            "Penstock payloads": lambda: ours_iterate(path, COUNT, "payloads"),
            "Penstock records": lambda: ours_iterate(path, COUNT, "records"),
            "Penstock Arrow": lambda: ours_arrow(path, COUNT),
            "LMDB cursor": lambda: lmdb_iterate(path, COUNT),
            "RocksDB": lambda: rocks_iterate(path, COUNT),
            "SQLite": lambda: sqlite_iterate(path, COUNT),
        }
        rounds = [{name: work() for name, work in names.items()} for _ in range(ROUNDS)]

    def ratio(one: str, other: str) -> float:
        return statistics.median(round_[one].rate / round_[other].rate for round_ in rounds)

    values, arrow = ratio("Penstock payloads", "LMDB cursor"), ratio("Penstock Arrow", "Penstock payloads")
    records = ratio("Penstock records", "LMDB cursor")
    bars = [
        Bar("iterate values vs LMDB cursor", "1.0x", f"{values:.2f}x", values >= 1),
        Bar("Arrow bulk read vs own iteration of values", "2.5x", f"{arrow:.2f}x", arrow >= 2.5),
    ]
    notes = [f"records (objects with offset, time, key and headers) vs LMDB cursor {records:.2f}x"]
    notes += [
        f"{name}: {statistics.median(round_[name].rate for round_ in rounds):,.0f}/s, "
        f"{statistics.median(round_[name].cpu_us for round_ in rounds):.3f} µs CPU per record"
        for name in names
    ]
    return bars, notes


# --- waking up, taking over ------------------------------------------------------------------------------------------


def _bare_waiter(path: str, pipe: Any, count: int) -> None:
    from penstock.log.drivers.files.reading.watch import IN_MODIFY, Inotify

    notify = Inotify()
    notify.watch(Path(path).parent, IN_MODIFY)
    fd = os.open(path, os.O_RDONLY)
    pipe.send("ready")
    times = []
    for number in range(count):
        while os.fstat(fd).st_size < 8 * (number + 1):
            notify.wait(1.0)
        times.append(time.perf_counter_ns() - int.from_bytes(os.pread(fd, 8, 8 * number), "little"))
    pipe.send(times)


def _log_waiter(path: str, pipe: Any, count: int) -> None:
    with penstock.open_logs(path) as store, store.tailer("log", "g", bytes) as tail:
        tail.read()
        pipe.send("ready")
        times = []
        while len(times) < count:
            for record in tail.read(timeout="5s"):
                times.append(time.perf_counter_ns() - int.from_bytes(record.payload, "little"))
        pipe.send(times)


def waking() -> tuple[list[Bar], list[str]]:
    """One message every millisecond from one process to another."""
    count = 200 if QUICK else 1000
    context = multiprocessing.get_context("spawn")

    def measured(target: Any, place: str, send: Callable[[], object]) -> list[float]:
        near, far = context.Pipe()
        child = context.Process(target=target, args=(place, far, count), daemon=True)
        child.start()
        near.recv()
        time.sleep(0.2)
        for _ in range(count):
            send()
            time.sleep(0.001)
        times: list[int] = near.recv()
        child.join()
        return [one / 1000 for one in times]

    ours: list[float] = []
    bare: list[float] = []
    for _ in range(2 if QUICK else 4):
        with folder() as path:
            file = path / "bell" / "file"
            file.parent.mkdir()
            fd = os.open(file, os.O_CREAT | os.O_WRONLY)
            bare += measured(
                _bare_waiter,
                str(file.absolute()),
                lambda: os.write(fd, time.perf_counter_ns().to_bytes(8, "little")),  # noqa: B023
            )
            os.close(fd)
        with folder() as path, open_store(path) as store:
            store.create("log")
            url = f"file://{path.absolute() / 'logs'}?durability=fast"
            with store.appender("log", bytes) as out:
                ours += measured(
                    _log_waiter,
                    url,
                    lambda: out.append(time.perf_counter_ns().to_bytes(8, "little")),
                )
    ratio = statistics.median(ours) / statistics.median(bare)
    shown = f"{statistics.median(ours):.0f} µs vs {statistics.median(bare):.0f} µs: {ratio:.2f}x"
    notes = [f"p99 {quantile(ours, 0.99):,.0f} µs, bare inotify {quantile(bare, 0.99):,.0f} µs"]
    return [Bar("wake-up across processes, p50, vs bare inotify", "at most 3x", shown, ratio <= 3)], notes


def _member(url: str, pipe: Any) -> None:
    with penstock.open_logs(url) as store, store.subscribe("log", "g", bytes) as tail:
        told = False
        while True:
            tail.read(timeout="50ms")
            if tail.assignment() and not told:
                told = True
                pipe.send("ready")


def takeover() -> tuple[list[Bar], list[str]]:
    """From kill -9 of a member to the first record of its partition, read by another one."""
    context = multiprocessing.get_context("spawn")
    times = []
    with folder() as path, open_store(path) as store:
        store.create("log", partitions=2)
        url = f"file://{path.absolute() / 'logs'}?durability=fast"
        with store.appender("log", bytes) as out, store.subscribe("log", "g", bytes) as tail:
            tail.read()
            for _ in range(5 if QUICK else 20):
                near, far = context.Pipe()
                child = context.Process(target=_member, args=(url, far), daemon=True)
                child.start()
                while not near.poll() or len(tail.assignment()) != 1:
                    tail.read(timeout="5ms")
                theirs = 1 - tail.assignment()[0].index
                placed = out.append(b"x", partition=theirs)
                time.sleep(0.1)
                placed = out.append(b"y", partition=theirs)
                assert child.pid is not None
                os.kill(child.pid, signal.SIGKILL)
                begin = time.perf_counter()
                while not any(record.position == placed for record in tail.read(timeout="1s")):
                    pass
                times.append((time.perf_counter() - begin) * 1000)
                child.join()
    middle = statistics.median(times)
    shown = f"{middle:.1f} ms (worst {max(times):.1f} ms of {len(times)})"
    return [Bar("partition of a killed member read by another", "100 ms at the median", shown, middle <= 100)], []


# --- recovery and scale ----------------------------------------------------------------------------------------------


def recovery() -> tuple[list[Bar], list[str]]:
    """The scan of a segment after a power cut against zlib.crc32 over the same bytes."""
    from penstock.log.drivers.files.format.segments import bases, mapped, scan, segment_path

    ratios = []
    with folder() as path:
        ours_append(path, COUNT, "fast")
        place = path / "logs" / "logs" / "log" / "p-0000"
        data = mapped(segment_path(place, bases(place)[-1]))
        for _ in range(ROUNDS + 2):
            plain = timed(len(data), lambda: zlib.crc32(data))
            ours = timed(len(data), lambda: scan(data, bases(place)[-1]))
            ratios.append(plain.seconds / ours.seconds)
    middle = statistics.median(ratios)
    shown = f"{middle:.2f}x ({ours.rate / 1e9:.1f} GB/s)"
    return [Bar("recovery scan vs zlib.crc32", "0.5x", shown, middle >= 0.5)], []


def scale() -> tuple[list[Bar], list[str]]:
    """Cost per record from 4 to 400 segments, and from 1 to 1,000 partitions."""
    count = 400_000 if QUICK else 2_000_000
    size = count * 230

    def by_segments(segments: int) -> tuple[float, float]:
        with folder() as path, open_store(path) as store:
            store.create("log", segment_bytes=size // segments)
            with store.appender("log", bytes) as out:
                append = timed(
                    count, lambda: [out.append_many(VALUES[:100], keys=KEYS[:100]) for _ in range(count // 100)]
                )
            log = store.log("log", bytes)
            read = timed(count, lambda: sum(1 for _ in log.payloads(0)))
            rng = random.Random(1)
            seek = timed(500, lambda: [next(log.payloads(0, rng.randrange(count))) for _ in range(500)])
            return append.cpu / append.count + read.cpu / read.count, seek.cpu_us

    def by_partitions(partitions: int) -> float:
        rounds = 4
        with folder() as path, open_store(path) as store:
            store.create("log", partitions=partitions)
            total = min(rounds * partitions * BATCH, 4 * count) if partitions > 1 else 400 * BATCH
            number = 0
            with store.appender("log", bytes) as out:

                def append() -> None:
                    nonlocal number
                    for _ in range(total // BATCH):
                        out.append_many(VALUES, keys=KEYS, partition=number % partitions)
                        number += 1

                for one in range(partitions):
                    out.append(b"x", partition=one)
                written = timed(total, append)
            with store.tailer("log", "g", bytes) as tail:

                def read() -> None:
                    seen = 0
                    while seen < total:
                        seen += sum(map(len, tail.read_batches(5 * BATCH)))

                consumed = timed(total, read)
            return written.cpu / total + consumed.cpu / total

    few, many, one, thousand = [], [], [], []
    for _ in range(2 if QUICK else 3):
        few.append(by_segments(4))
        many.append(by_segments(400))
        one.append(by_partitions(1))
        thousand.append(by_partitions(1000))
    segments = min(run[0] for run in many) / min(run[0] for run in few)
    partitions = min(thousand) / min(one)
    return [
        Bar("CPU per record, 400 segments vs 4", "at most 1.5x", f"{segments:.2f}x", segments <= 1.5),
        Bar("CPU per record, 1,000 partitions vs 1", "at most 1.5x", f"{partitions:.2f}x", partitions <= 1.5),
    ], [f"a seek: {min(run[1] for run in few):.0f} µs CPU with 4 segments, {min(run[1] for run in many):.0f} with 400"]


PARTS = {
    "append": appending,
    "read": reading,
    "wake": waking,
    "takeover": takeover,
    "recovery": recovery,
    "scale": scale,
}


def main() -> int:
    bars: list[Bar] = []
    notes: list[str] = [conditions()]
    for name, part in PARTS.items():
        if not CHOSEN or name in CHOSEN:
            more_bars, more_notes = part()
            bars += more_bars
            notes += [f"[{name}] {note}" for note in more_notes]
    return 0 if report("Logs on files", bars, notes) else 1


if __name__ == "__main__":
    sys.exit(main())

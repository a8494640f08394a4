"""What every benchmark needs: repeated runs, medians, the price of a commit on this disk, and a table of bars."""

from __future__ import annotations

import functools
import os
import platform
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks import figures


class Run(NamedTuple):
    """How many were done, in how many seconds of wall clock and of this process's CPU."""

    count: int
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        return self.count / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu / self.count * 1e6


class Bar(NamedTuple):
    """A promise and what was measured; ``good`` says whether it holds."""

    what: str
    wanted: str
    measured: str
    good: bool


def timed(count: int, work: Callable[[], object]) -> Run:
    """Run once and take the time."""
    cpu, begin = time.process_time(), time.perf_counter()
    work()
    return Run(count, time.perf_counter() - begin, time.process_time() - cpu)


def median(runs: list[Run]) -> Run:
    """The run in the middle by rate."""
    return sorted(runs, key=lambda run: run.rate)[len(runs) // 2]


@contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder on the disk that is measured (BENCH_DIR, or the current one: not a tmpfs)."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR", "."), prefix="bench-") as name:
        yield Path(name)


def raw_commit_ms() -> float:
    """The median price of one durable commit of one small row."""
    with folder() as path:
        db = durable(path / "commit.db")
        db.execute("CREATE TABLE t (x)")
        times = []
        for number in range(300):
            begin = time.perf_counter()
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO t VALUES (?)", (number,))
            db.execute("COMMIT")
            times.append(time.perf_counter() - begin)
        db.close()
        return statistics.median(times) * 1000


def fsync_ms() -> float:
    """The median price of one fsync after a 4 KiB append."""
    with folder() as path:
        handle = os.open(path / "fsync", os.O_CREAT | os.O_WRONLY)
        times = []
        for _ in range(200):
            os.write(handle, b"x" * 4096)
            begin = time.perf_counter()
            os.fdatasync(handle)
            times.append(time.perf_counter() - begin)
        os.close(handle)
        return statistics.median(times) * 1000


def durable(path: Path) -> sqlite3.Connection:
    """A plain connection with the durability of our default."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    return db


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


@functools.cache
def conditions() -> str:
    """The machine, its load and its disk when the run began, to be read beside every figure."""
    load = ", ".join(f"{one:.2f}" for one in os.getloadavg())
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}, "
        f"load {load}; one raw commit {raw_commit_ms():.2f} ms, one fdatasync {fsync_ms():.2f} ms"
    )


def report(title: str, bars: list[Bar], notes: list[str]) -> bool:
    """Print the table, and with --record leave it for the page of figures. Returns whether all bars hold."""
    if "--record" in sys.argv:
        figures.record(title, bars, notes, conditions())
    print(f"\n{title}\n{'=' * len(title)}")
    width = max((len(bar.what) for bar in bars), default=0)
    for bar in bars:
        print(f"{'ok  ' if bar.good else 'MISS'}  {bar.what:<{width}}  {bar.measured}  (bar: {bar.wanted})")
    for note in notes:
        print(f"      {note}")
    return all(bar.good for bar in bars)

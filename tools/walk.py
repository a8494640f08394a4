"""Counts what a reader has to follow: the functions of ours that one real call runs through.

    python -m tools.walk                      every walk, on memory and SQLite, or in a folder
    python -m tools.walk put claim --url postgresql://postgres@127.0.0.1:5432/test

A walk is traced with sys.setprofile, in all threads, after it has been walked twice: what happens once (opening,
compiling, filling caches) is not part of it. Functions count once each, however often they run.
"""

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import penstock
from penstock.errors import MissingExtra
from penstock.ids import new_id
from penstock.queue.protocol import ClaimRequest, Ending, Source, Step
from penstock.stream import LocalRunner, Topology, map_values

OURS = str(Path(penstock.__file__).parent)
Walk = Callable[[str, ExitStack], Callable[[], object]]
BYSTANDERS = {"penstock-stream-ticker"}  # threads that do nothing for one record


class Trace:
    """The functions that ran while it was on, in threads that were started since it was made."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self._is_on = False
        threading.setprofile(self._saw)
        sys.setprofile(self._saw)

    @contextmanager
    def on(self) -> Iterator[None]:
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False

    def end(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _saw(self, frame: FrameType, event: str, argument: Any) -> None:
        is_ours = self._is_on and event == "call" and frame.f_code.co_filename.startswith(OURS)
        if is_ours and threading.current_thread().name not in BYSTANDERS:
            self.codes.add(frame.f_code)

    def summary(self, package: str = "") -> tuple[int, int, int]:
        """Functions, files, and lines of these functions; only those of a package, if one is named."""
        folder = str(Path(OURS, package))
        codes = [code for code in self.codes if code.co_filename.startswith(folder)]
        named = [code for code in codes if not code.co_name.startswith("<")]
        files = {code.co_filename for code in named}
        last = [max(line or 0 for _, _, line in code.co_lines()) for code in named]
        lines = sum(end - code.co_firstlineno + 1 for code, end in zip(named, last, strict=True))
        return len(named), len(files), lines

    def by_file(self) -> dict[str, list[str]]:
        """Function names by file."""
        found: dict[str, list[str]] = {}
        for code in sorted(self.codes, key=lambda code: (code.co_filename, code.co_firstlineno)):
            if not code.co_name.startswith("<"):
                found.setdefault(str(Path(code.co_filename).relative_to(OURS)), []).append(code.co_qualname)
        return found


def put(url: str, cleanups: ExitStack) -> Callable[[], object]:
    queue = penstock.open_queues(url).queue("walk", int)
    return lambda: queue.put(1)


def claim(url: str, cleanups: ExitStack) -> Callable[[], object]:
    """A round trip: what was claimed last is settled, the next is claimed."""
    store = penstock.open_queues(url)
    store.queue("walk", int).put_many(range(100))
    held: list[Any] = []

    def walk() -> None:
        endings = tuple(Ending(entry.lease, "done") for entry in held)
        request = ClaimRequest(new_id(), (Source("walk", limit=1),), 1, "walker", "here", 60_000_000)
        reply = store.driver.settle((Step(endings=endings),) if endings else (), request)
        held[:] = reply.claimed.entries

    return walk


def work(url: str, cleanups: ExitStack) -> Callable[[], object]:
    """Two entries through a running worker: put, claim, handler, settle. After the second the first is done with."""
    store = penstock.open_queues(url)
    queue = store.queue("work", int)
    queue.add_handler(lambda value: None)
    settled = threading.Semaphore(0)
    store.signals.subscribe(lambda signal: settled.release(), "settled")
    worker = penstock.Worker(store)
    worker.start()
    cleanups.callback(worker.stop)

    def walk() -> None:
        for number in range(2):
            queue.put(number)
            settled.acquire()

    return walk


def record(url: str, cleanups: ExitStack) -> Callable[[], object]:
    """A record through a computation on the local runner, to its commit."""
    logs, topology = one_step(url)
    return record_through(LocalRunner(topology, logs).start(), logs, cleanups)


def spark_record(url: str, cleanups: ExitStack) -> Callable[[], object]:
    """The same on SparkRunner: driver and task, with a stand-in for Spark that runs the task in this process."""
    from tests.spark.in_process import InProcess

    from penstock.spark import SparkRunner

    logs, topology = one_step(url)
    runner = SparkRunner(topology, logs, InProcess(), checkpoint_every="1ms").start()  # type: ignore[arg-type]
    return record_through(runner, logs, cleanups)


def one_step(url: str) -> tuple[penstock.LogStore, Topology]:
    """A log store, and a topology of one step from one log to another."""
    logs = penstock.open_logs(url)
    for name in ("in", "out"):
        logs.create(name)
    topology = Topology("walk").stream("in", int).stream("out", int)
    return logs, topology.add(map_values("step", lambda value: value, "in", "out"))


def record_through(runner: Any, logs: penstock.LogStore, cleanups: ExitStack) -> Callable[[], object]:
    """Appends a record and waits until a runner is done with it."""
    runner.wait_for_assignments()
    cleanups.callback(runner.stop)
    (status,) = runner.status()

    def walk() -> None:
        wanted = status.records + 1
        logs.log("in", int).append(1, key="walk")
        while status.records < wanted:
            threading.Event().wait(0.001)

    return walk


def traced(where: str, make: Walk) -> Trace:
    """What one walk runs through, after two others."""
    trace = Trace()
    with ExitStack() as cleanups:
        walk = make(where, cleanups)
        for _ in range(2):
            walk()
        with trace.on():
            walk()
        trace.end()
    return trace


def show(name: str, where: str, make: Walk, *, names: bool) -> None:
    trace = traced(where, make)
    functions, files, lines = trace.summary()
    print(f"{name:<8} {where.partition(':')[0]:<12} {functions:>4} functions {files:>3} files {lines:>5} lines")
    for package in {"record": ["stream"], "spark": ["stream", "spark"]}.get(name, []):  # the rest of it is the log's
        functions, files, lines = trace.summary(package)
        print(f"{'':<8} {f'in {package}/':<12} {functions:>4} functions {files:>3} files {lines:>5} lines")
    if names:
        for file, functions_of in trace.by_file().items():
            print(f"    {file}: {', '.join(functions_of)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("walks", nargs="*", help="put, claim, work, record, spark; all if none is named")
    parser.add_argument("--url", help="a queue store, instead of memory and SQLite")
    parser.add_argument("--names", action="store_true", help="print the functions, file by file")
    given = parser.parse_args()
    wanted = set(given.walks or ("put", "claim", "work", "record", "spark"))
    with tempfile.TemporaryDirectory() as folder:
        for url in [given.url] if given.url else ["memory://walk", f"sqlite:///{folder}/walk.db"]:
            for name, make in (("put", put), ("claim", claim), ("work", work)):
                if name in wanted:
                    show(name, url, make, names=given.names)
        if "record" in wanted:
            show("record", f"file://{folder}/logs?durability=fast", record, names=given.names)
        if "spark" in wanted:
            try:
                show("spark", f"file://{folder}/spark?durability=fast", spark_record, names=given.names)
            except (MissingExtra, ModuleNotFoundError) as missing:
                print(f"{'spark':<8} left out: {missing}")


if __name__ == "__main__":
    main()

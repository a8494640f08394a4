"""One campaign: a store, its server, processes at work on it, and at the end the verdict."""

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.checker import Dump, check
from tests.crash.driver import Child
from tests.crash.judging import dump_of
from tests.crash.recorder import read_events
from tests.faults import load

from penstock import QueueStore, open_queues
from penstock.errors import CannotOpen, PenstockError
from penstock.queue.protocol import Find

PRODUCERS = frozenset({"produce", "produce_steadily", "keep_ready"})  # roles that put and handle nothing


class Arena:
    """A folder with a store's URL in it, and the processes that play there."""

    drain_seconds = 90.0  # after the faults have ended no such time may pass without anything coming to an end

    def __init__(self, folder: Path, url: str, start: Callable[..., Child], server: Any = None) -> None:
        self.folder = folder
        self.kind = url.partition(":")[0]
        self.server = server
        self._start = start
        self._cast: list[tuple[Callable[..., Any], Child]] = []
        self.events: list[dict[str, Any]] = []  # what the processes recorded, once it was judged
        (folder / "url").write_text(url)
        if server is not None:
            (folder / "server.log").symlink_to(server.folder / "server.log")
        # The tables are there before the play begins, so that no two processes are judged by who makes them.
        for patience in (True, True, True, False):
            try:
                open_queues(url).close()
                break
            except CannotOpen:  # a server that has just started on a busy machine
                if not patience:
                    raise

    def play(self, *roles: Callable[..., Any], **options: Any) -> list[Child]:
        """Start processes; they go on until the end."""
        children = [self._start(role, self.folder, **options) for role in roles]
        self._cast += zip(roles, children, strict=True)
        return children

    def ensemble(self, workers: int = 2) -> None:
        """What every campaign has: one who puts, some who work, one with units of work."""
        self.play(load.produce, *([load.work] * workers), load.cook)

    def replace(self, child: Child) -> Child:
        """Another one in the place of one that was killed."""
        role = next(role for role, one in self._cast if one is child)
        self._cast = [(role, one) for role, one in self._cast if one is not child]
        return self.play(role)[0]

    def dismiss(self, child: Child) -> None:
        """One that is gone and needs nobody in its place."""
        self._cast = [(role, one) for role, one in self._cast if one is not child]

    def members(self, role: Callable[..., Any]) -> list[Child]:
        return [child for one, child in self._cast if one is role]

    def finish(self, **options: Any) -> Dump:
        """The faults are over: let everything come to an end, stop, and judge."""
        try:
            self._drain()
        finally:
            (self.folder / "stop").touch()
            codes = {child.name: child.wait() for _, child in self._cast}
        assert {name: code for name, code in codes.items() if code != 0} == {}, "a process did not end well"
        return self.judge(**options)

    def judge(self, **options: Any) -> Dump:
        events, dump = read_events(self.folder), dump_of(self.folder)
        self.events = events
        # ZooKeeper keeps the last hundred ends of a queue; what is beyond has to have been ended by somebody.
        if self.kind == "zookeeper":
            options.setdefault("forgotten", load.QUEUES)
        broken = check(events, dump, **options)
        phases = Counter(event["phase"] for event in events if event["op"] == "step")
        starts = sum(event["op"] == "start" for event in events)
        states = Counter(row["state"] for row in dump.history)
        print(f"\n{self.kind}: steps {dict(phases)}, {starts} starts, history {dict(states)}, {len(dump.dead)} dead")
        assert broken == [], "\n".join(str(one) for one in broken[:50])
        return dump

    def _drain(self) -> None:
        """Producers stop, workers go on until nothing is left."""
        for role, child in self._cast:
            if role.__name__ in PRODUCERS:
                child.kill()
        self._cast = [(role, child) for role, child in self._cast if role.__name__ not in PRODUCERS]
        deadline = time.monotonic() + self.drain_seconds
        left: Any = "unknown"
        fewest: float = math.inf
        with contextlib.ExitStack() as stack:
            store: QueueStore | None = None
            while left:
                assert time.monotonic() < deadline, f"not all came to an end: {left}\n{self._left(store)}"
                try:
                    store = store or stack.enter_context(open_queues((self.folder / "url").read_text()))
                    left = [one for one in store.counts() if one.live]
                    live = sum(counts.live for counts in left)
                    if live < fewest:
                        fewest, deadline = live, time.monotonic() + self.drain_seconds
                except PenstockError as error:
                    left = str(error)
                time.sleep(0.2)

    def _left(self, store: QueueStore | None) -> str:
        """Whose leases they are and whether anybody still extends them: what somebody has to know who looks for why."""
        if store is None:
            return "and the store does not answer"
        now = store.now()
        entries = store.driver.find(Find(limit=20))
        return "\n".join(
            f"{entry.queue} {entry.id} {entry.state} attempt {entry.attempt}"
            + (f", {entry.lease.owner} until {(entry.lease.until_us - now) / 1e6:+.1f} s" if entry.lease else "")
            for entry in entries
        )


class StepCounter:
    """How many calls were answered. Of files that grow for hours only what is new is read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, tuple[int, int]] = {}  # per file the bytes read, up to the end of a line, and the calls

    def count(self) -> int:
        for path in self._folder.glob("*.events"):
            offset, calls = self._read.get(path, (0, 0))
            with path.open("rb") as file:
                file.seek(offset)
                lines = file.read().rpartition(b"\n")[0]
            self._read[path] = (offset + len(lines), calls + lines.count(b'"phase": "ok"'))
        return sum(calls for _, calls in self._read.values())


def wait_steps(folder: Path, count: int, seconds: float = 60.0, counter: StepCounter | None = None) -> None:
    """Wait until so many more calls were answered: faults hit a system at work, not one that is starting.

    How fast it works is up to the machine; that nothing is answered for ``seconds`` is a failure.
    """
    counter = counter or StepCounter(folder)
    answered = counter.count()
    goal, deadline = answered + count, time.monotonic() + seconds
    while answered < goal:
        assert time.monotonic() < deadline, f"no call was answered for {seconds:g} s\n{_log(folder)}"
        time.sleep(0.1)
        before, answered = answered, counter.count()
        if answered > before:
            deadline = time.monotonic() + seconds


def _log(folder: Path) -> str:
    """The end of what the server says about itself."""
    log = folder / "server.log"
    return log.read_text(errors="replace")[-2000:] if log.exists() else ""

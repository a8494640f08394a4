"""Starts processes that die or stop by themselves at a named point, and waits for them, never forever.

Children come from a fork server that has everything imported, so one costs milliseconds. A child runs a function of
``scenes`` (or any importable one); with a *strike* it ends itself by SIGKILL, or stops by SIGSTOP, when a point of
``penstock.failpoints`` is reached for the n-th time.
"""

import contextlib
import itertools
import json
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.servers import await_stopped

from penstock import failpoints

PATIENCE = 120.0  # seconds until a child that does not get on is a failure

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.crash.scenes", "tests.crash.log_scenes"])
_names = itertools.count()


@dataclass(frozen=True)
class Strike:
    """Where and when to end (or only stop) a process."""

    point: str
    hit: int = 1
    signal: int = signal.SIGKILL

    def arm(self) -> None:
        """Strike this process when its time has come."""
        lock, hits = threading.Lock(), itertools.count(1)

        def strike(name: str) -> None:
            if name == self.point:
                with lock:
                    number = next(hits)
                if number == self.hit:
                    os.kill(os.getpid(), self.signal)

        failpoints.arm(strike)


@dataclass(frozen=True)
class Shutdown:
    """Where and when to ask a process to stop, and after how many more points it is killed while it does."""

    point: str
    hit: int
    more: int

    def arm(self) -> None:
        """Ask this process to stop when the time has come, then strike it."""
        lock, hits, points = threading.Lock(), itertools.count(1), itertools.count(1)
        asked = False

        def strike(name: str) -> None:
            nonlocal asked
            with lock:
                if asked:
                    if next(points) == self.more:
                        os.kill(os.getpid(), signal.SIGKILL)
                elif name == self.point and next(hits) == self.hit:
                    asked = True
                    os.kill(os.getpid(), signal.SIGTERM)

        failpoints.arm(strike)


@dataclass(frozen=True)
class Tally:
    """No strike at all: counts how often every point is reached, into a file, when the scene asks for it."""

    path: Path

    def arm(self) -> None:
        """Count."""
        global _tally  # noqa: PLW0603 - one scene per process
        counts: Counter[str] = Counter()
        _tally = (counts, self.path)
        failpoints.arm(lambda name: counts.update((name,)))


_tally: tuple[Counter[str], Path] | None = None


def write_tally(part: str) -> None:
    """Note how often the points were reached up to here."""
    if _tally is not None:
        counts, path = _tally
        path.with_suffix(f".{part}").write_text(json.dumps(counts))


class Child:
    """A running process."""

    def __init__(
        self, function: Callable[..., Any], *args: Any, strike: Strike | Shutdown | Tally | None = None
    ) -> None:
        """Start it."""
        self.name = f"{function.__name__}-{next(_names)}"
        self._process = _context.Process(target=_main, args=(function, args, strike), name=self.name, daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    def wait(self) -> int:
        """Its exit code, negative for a signal; a child that does not end is a failure."""
        self._process.join(PATIENCE)
        code = self._process.exitcode
        if code is None:
            self.kill()
            raise AssertionError(f"{self.name} did not end within {PATIENCE:g} s")
        return code

    def ended_well(self) -> None:
        """Wait, and expect that all went well."""
        code = self.wait()
        assert code == 0, f"{self.name} ended with {code}; its own words are above"

    def was_killed(self) -> None:
        """Wait, and expect that its strike (or somebody's kill) hit."""
        code = self.wait()
        assert code == -signal.SIGKILL, f"{self.name} was to be killed and ended with {code}"

    def ended_or_was_killed(self) -> bool:
        """Wait, and expect that all went well unless its strike hit; whether it did."""
        code = self.wait()
        assert code in {0, -signal.SIGKILL}, f"{self.name} ended with {code}; its own words are above"
        return code != 0

    def wait_stopped(self) -> None:
        """Wait until it has stopped itself."""
        self._wait_for(lambda: self._state() == "T", "stop")

    def wait_file(self, path: Path) -> None:
        """Wait until it has made a file."""
        self._wait_for(path.exists, f"make {path.name}")

    def freeze(self) -> None:
        """Stop it where it is: when this returns it runs no code of its own."""
        os.kill(self.pid, signal.SIGSTOP)
        await_stopped(self.pid)

    def go_on(self) -> None:
        """Wake it up again."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, also when it is stopped."""
        if self._process.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._process.join(10)

    def _wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            code = self._process.exitcode
            assert code is None, f"{self.name} was to {what} and ended with {code}"
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"{self.name} did not {what} within {PATIENCE:g} s")
            time.sleep(0.002)

    def _state(self) -> str:
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return ""


@contextlib.contextmanager
def children() -> Iterator[Callable[..., Child]]:
    """Start children that are gone when the block ends, whatever happened in it."""
    started: list[Child] = []

    def start(function: Callable[..., Any], *args: Any, strike: Strike | Shutdown | Tally | None = None) -> Child:
        started.append(Child(function, *args, strike=strike))
        return started[-1]

    try:
        yield start
    finally:
        for child in started:
            child.kill()


def _main(function: Callable[..., Any], args: tuple[Any, ...], strike: Strike | Shutdown | Tally | None) -> None:
    logging.getLogger("penstock").setLevel(logging.CRITICAL)  # failures are part of the play
    if strike is not None:
        strike.arm()
    function(*args)

"""ProcessRunner: a topology in several processes of this machine, for work that keeps a core busy.

Each process runs a :class:`LocalRunner` of the same topology; the groups of the log store deal out the partitions. The
processes are asked and told by lines of JSON over pipes; nothing is pickled. One that dies is started again.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import random
import select
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import IO, Any

import msgspec

from penstock.clock import Duration, Micros, duration, from_micros, to_micros
from penstock.codec import prepared
from penstock.errors import BadInput, Conflict, StoreUnavailable
from penstock.log.store import LogStore
from penstock.policy import Retry
from penstock.stream import draining
from penstock.stream.changelog import check_kept
from penstock.stream.checks import Plan
from penstock.stream.local import LocalRunner
from penstock.stream.runner import Runner, Status, wait_until
from penstock.stream.topology import Node, Topology, unknown
from penstock.stream.watermark import LOWEST

logger = logging.getLogger("penstock.stream")

ANSWER = 60.0  # seconds in which a process has to answer, at most
ANSWER_SECONDS = 10.0  # a process that is well answers at once
BACKOFF = Retry(attempts=None, backoff="200ms", max_backoff="30s")


@prepared
class Told(msgspec.Struct):
    """What a process is told, or answers."""

    do: str = ""
    node: str = ""
    number: float = 0
    final: bool = False
    good: bool = True
    error: str = ""
    statuses: list[Status] = []
    lows: dict[str, list[Micros]] = {}
    waits: dict[str, bool] = {}

    @property
    def patience(self) -> float:
        """How long doing it may take, in seconds, besides answering."""
        return self.number if self.do in ("stop", "freeze", "finish") else 0.0


class Beginning(msgspec.Struct):
    """The first line a process gets."""

    topology: str
    url: str
    options: dict[str, Any]
    path: list[str]


def load_topology(name: str) -> Topology:
    """What ``MODULE:TOPOLOGY`` names: a topology, or a function without arguments that gives one."""
    module, colon, path = name.partition(":")
    if not colon or not module or not path:
        raise BadInput(f"{name!r} names no topology.", hint="Write it as MODULE:TOPOLOGY, such as shop.flows:clicks.")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as cause:
        raise BadInput(f"cannot import {module!r}: {cause}.", hint="Run where the module can be imported.") from cause
    for part in path.split("."):
        if not hasattr(found, part):
            raise BadInput(f"{module!r} has no {path!r}.", hint="Name its topology, or a function that returns one.")
        found = getattr(found, part)
    if callable(found):
        found = found()
    if not isinstance(found, Topology):
        raise BadInput(f"{name} is a {type(found).__name__}, no topology.", hint="Name a Topology.")
    return found


class Process:
    """One process, as its parent sees it."""

    def __init__(self, number: int, beginning: Beginning) -> None:
        """Start it; it answers when it runs."""
        self.number = number
        self._lock = threading.Lock()
        self._child = subprocess.Popen(
            [sys.executable, "-m", "penstock.stream.processes"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            self._send(beginning)
            self._receive()
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._child.poll() is None

    def ask(self, told: Told) -> Told:
        """Tell it something and wait for the answer; raises if it is dead, and ends one that says nothing."""
        with self._lock:
            self._send(told)
            return self._receive(ANSWER_SECONDS + told.patience)

    def end(self, seconds: float) -> bool:
        """Wait for its end, then kill it."""
        if self._child.stdin is not None:
            with contextlib.suppress(OSError):
                self._child.stdin.close()
        try:
            self._child.wait(seconds)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait(10)
            return False
        finally:
            if self._child.stdout is not None:
                self._child.stdout.close()
        return True

    def kill(self) -> None:
        """End it at once."""
        self._child.kill()
        self.end(10)

    def _send(self, what: Any) -> None:
        assert self._child.stdin is not None  # noqa: S101 - it is a pipe
        try:
            self._child.stdin.write(msgspec.json.encode(what) + b"\n")
            self._child.stdin.flush()
        except (OSError, ValueError) as cause:
            raise self._dead() from cause

    def _receive(self, seconds: float | None = None) -> Told:
        assert self._child.stdout is not None  # noqa: S101 - it is a pipe
        if seconds is not None and not select.select([self._child.stdout], [], [], seconds)[0]:
            # Frozen or stuck; an answer that came later would be taken for that to another question.
            logger.error("process %d says nothing for %.0f s; it is ended", self.number, seconds)
            self._child.kill()
            raise self._dead()
        line = self._child.stdout.readline()
        if not line:
            raise self._dead()
        answer = msgspec.json.decode(line, type=Told)
        if answer.error:
            raise BadInput(f"process {self.number} cannot run: {answer.error}")
        return answer

    def _dead(self) -> StoreUnavailable:
        return StoreUnavailable(f"process {self.number} of the runner has ended.", hint="It is started again.")


class ProcessRunner(Runner):
    """Runs the topology ``MODULE:TOPOLOGY`` in ``processes`` processes over the logs at ``url``."""

    def __init__(self, topology: str, store: LogStore, url: str, *, processes: int = 2, **options: Any) -> None:
        """Check everything here first; ``store`` is the same as what ``url`` opens."""
        if processes < 1:
            raise BadInput(f"ProcessRunner(processes={processes}) runs nothing.", hint="Use 1 or more.")
        if url.startswith("memory:"):
            raise BadInput("logs in memory are those of one process.", hint="Use file:// or kafka://.")
        self.topology = load_topology(topology)
        self.store = store
        self.plan = Plan(self.topology, store, create=False)
        for node in self.plan.keeping():
            check_kept(store, node)
        self.restarts = 0
        self._beginning = Beginning(topology, url, options, [one for one in sys.path if one])
        self._count = processes
        self._processes: list[Process] = []
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self._last: list[Status] = []
        self._rng = random.Random()

    # --- life --------------------------------------------------------------------------------------

    def start(self) -> ProcessRunner:
        """Start the processes and watch over them."""
        if self._watcher is not None:
            raise Conflict("this runner was started before.", hint="Make another one.")
        self.plan = Plan(self.topology, self.store)
        try:
            for number in range(self._count):
                self._processes.append(Process(number, self._beginning))
        except BaseException:
            self.shutdown()
            raise
        self._watcher = threading.Thread(target=self._watch, name="penstock-stream-processes", daemon=True)
        self._watcher.start()
        return self

    def _watch(self) -> None:
        failed = 0
        while not self._stopping.wait(0.05):
            for number, process in enumerate(self._processes):
                if process.is_alive or self._stopping.is_set():
                    continue
                failed += 1
                self.restarts += 1
                logger.error("process %d of %s has ended; it is started again", number, self.topology.name)
                self.store.signals.tell(
                    "store_error", self.topology.name, (), self.store.now(), step=f"process {number} restarting",
                    error="the process has ended",
                )  # fmt: skip
                process.end(1)
                delay = BACKOFF.delay(failed, self._rng)
                if self._stopping.wait(0.0 if delay is None else delay.total_seconds()):
                    return
                with contextlib.suppress(StoreUnavailable):
                    self._processes[number] = Process(number, self._beginning)

    def wait_for_assignments(self, timeout: Duration = "10s") -> bool:
        """Wait until the processes have all partitions."""
        return wait_until(
            lambda: all(
                self.owned(node) == self.plan.tasks[node.name] for node in self.plan.order if node.concurrency
            ),
            duration(timeout, name="timeout").total_seconds(),
        )  # fmt: skip

    def drain(self, timeout: Duration = "60s", *, final: bool = False) -> bool:
        """See :class:`Runner`."""
        if self._watcher is None:
            return True
        done = draining.drain(
            self.store, self.plan, self, final=final, seconds=duration(timeout, name="timeout").total_seconds()
        )
        return self.stop() and done

    def stop(self, timeout: Duration = "30s") -> bool:
        """Stop all processes, each with a checkpoint."""
        seconds = duration(timeout, name="timeout").total_seconds()
        self._last = self.status()
        self._stopping.set()
        if self._watcher is not None:
            self._watcher.join()
        for _ in self._answers(Told("stop", number=seconds)):
            pass
        ended = [process.end(seconds) for process in self._processes]
        self._processes = []
        self._last = [msgspec.structs.replace(one, state=_ended(one), partitions=[]) for one in self._last]
        return all(ended)

    def shutdown(self) -> None:
        """Kill all processes: what was not committed is done again next time."""
        self._last = self.status()
        self._stopping.set()
        for process in self._processes:
            process.kill()
        self._processes = []
        self._last = [msgspec.structs.replace(one, state="stopped", partitions=[]) for one in self._last]

    # --- asking ------------------------------------------------------------------------------------

    def status(self) -> list[Status]:
        """What every instance in every process does."""
        if not self._processes:
            return self._last
        found = []
        for number, answer in self._answers(Told("status")):
            found += [msgspec.structs.replace(one, process=number) for one in answer.statuses]
        return found

    def watermark(self, computation: str | None = None) -> datetime | None:
        """The least watermark of all partitions."""
        if computation is not None and computation not in self.topology.nodes:
            raise unknown(computation, self.topology.nodes, "computation", self.topology.name)
        lows = [
            low
            for _, answer in self._answers(Told("progress"))
            for name, mine in answer.lows.items()
            if computation in (None, name) and self.topology.nodes[name].inputs
            for low in mine
        ]
        return None if not lows or min(lows) == LOWEST else from_micros(min(lows))

    def is_done(self, moment: datetime) -> bool:
        """Whether everything up to an event time has gone all the way through."""
        at = to_micros(moment)
        lows: dict[str, list[Micros]] = {name: [] for name in self.topology.nodes}
        waits = dict.fromkeys(self.topology.nodes, False)
        for _, answer in self._answers(Told("progress", number=at)):
            for name, mine in answer.lows.items():
                lows[name] += mine
                waits[name] = waits[name] or answer.waits[name]
        return draining.is_done(self.store, self.plan, at, lows, waits)

    def _answers(self, told: Told) -> Iterator[tuple[int, Told]]:
        for process in list(self._processes):
            with contextlib.suppress(StoreUnavailable):  # a dead one is started again
                yield process.number, process.ask(told)

    # --- what draining asks --------------------------------------------------------------------------

    def _of(self, node: Node) -> list[Status]:
        return [one for one in self.status() if one.computation == node.name]

    def hurry(self, node: Node) -> None:
        """Batches are not waited for any more."""
        for _ in self._answers(Told("hurry", node.name)):
            pass

    def is_quiet(self, node: Node) -> bool:
        """Whether a source has nothing to do now."""
        return all(answer.good for _, answer in self._answers(Told("quiet", node.name)))

    def has_failed(self, node: Node) -> bool:
        """Whether an instance has failed."""
        return any(one.state == "failed" for one in self._of(node))

    def owned(self, node: Node) -> int:
        """How many partitions the processes have."""
        return sum(len(one.partitions) for one in self._of(node))

    def freeze(self, node: Node, on: bool, seconds: float) -> bool:
        """All processes read nothing, or go on."""
        done = [one.good for _, one in self._answers(Told("freeze", node.name, number=seconds, final=on))]
        return len(done) == len(self._processes) and all(done)

    def finish(self, node: Node, final: bool, seconds: float) -> bool:
        """All processes do what the end of the input means, and only then give their partitions back."""
        done = [a.good for _, a in self._answers(Told("finish", node.name, number=seconds, final=final))]
        good = len(done) == len(self._processes) and all(done)
        for _ in self._answers(Told("release", node.name)):
            pass
        return good


def _ended(status: Status) -> Any:
    return "failed" if status.state == "failed" else "stopped"


# --- in the process ----------------------------------------------------------------------------------------


def main(lines: IO[bytes], answers: IO[bytes]) -> None:
    """Run until told to stop, or until the parent is gone."""
    # By name: this process is a program of its own, above the layers that the runner lives in.
    open_logs = importlib.import_module("penstock.opening").open_logs

    def answer(told: Told) -> None:
        answers.write(msgspec.json.encode(told) + b"\n")
        answers.flush()

    first = lines.readline()
    if not first:
        return
    beginning = msgspec.json.decode(first, type=Beginning)
    sys.path[:] = list(dict.fromkeys([*beginning.path, *sys.path]))
    try:
        store = open_logs(beginning.url)
        runner = LocalRunner(load_topology(beginning.topology), store, **beginning.options).start()
    except Exception as error:
        answer(Told(error=f"{type(error).__name__}: {error}"))
        return
    answer(Told())
    with store:
        for line in lines:
            told = msgspec.json.decode(line, type=Told)
            answer(obey(runner, told))
            if told.do == "stop":
                return
        runner.stop()  # the parent is gone


def obey(runner: LocalRunner, told: Told) -> Told:
    """Do what the parent says."""
    node = runner.topology.nodes.get(told.node)
    if told.do == "stop":
        return Told(good=runner.stop(f"{told.number:g}s"))
    if told.do == "status" or node is None:
        if told.do == "progress":
            lows, waits = runner.progress(int(told.number))
            return Told(lows=lows, waits=waits)
        return Told(statuses=runner.status())
    if told.do == "hurry":
        runner.hurry(node)
    elif told.do == "quiet":
        return Told(good=runner.is_quiet(node))
    elif told.do == "freeze":
        return Told(good=runner.freeze(node, told.final, told.number))
    elif told.do == "finish":
        return Told(good=runner.finish_holding(node, told.final, told.number))
    elif told.do == "release":
        runner.release(node)
    return Told()


if __name__ == "__main__":
    # What computations print must not come between the answers.
    own = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    main(sys.stdin.buffer, own)

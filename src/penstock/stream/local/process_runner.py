"""ProcessRunner: a topology in several processes of this machine, for work that keeps a core busy.

Each process runs a :class:`LocalRunner` of the same topology; the groups of the log store deal out the partitions. The
processes get requests and answer by lines of JSON over pipes; nothing is pickled.

A process that dies is started again, whatever the runner is doing. While it drains, the new process leaves out the
computations that have ended. One that dies while a computation ends may have ended some of its partitions: the others
let go of theirs then, and the end is done again for all of them. It counts once for each partition, because it is
committed under the number of the run.
"""

from __future__ import annotations

import contextlib
import logging
import random
import sys
import threading
import time
from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Any

import msgspec

from penstock.clock import Duration, Micros, duration, from_micros, to_micros
from penstock.errors import BadInput, Conflict, StoreUnavailable
from penstock.log.protocol import Commit
from penstock.log.store import LogStore
from penstock.policy import Retry
from penstock.stream.engine.watermark import LOWEST
from penstock.stream.internal_logs import check_kept
from penstock.stream.local import drain
from penstock.stream.local.process import Message, Process, StartRequest, load_topology
from penstock.stream.runner import Runner, Status, not_started, wait_until
from penstock.stream.topology import Node, unknown
from penstock.stream.validate import ResolvedTopology

logger = logging.getLogger("penstock.stream")

STARTS = 5  # times that a process may die before it has answered at all, when the runner is started
BACKOFF = Retry(attempts=None, backoff="200ms", max_backoff="5s")
STEADY = 30.0  # seconds after which a process that dies is not one that dies again and again
LOOK = 0.02


class ProcessRunner(Runner):
    """A ``Runner`` in several processes over the same logs.

    Args:
        topology: ``MODULE:TOPOLOGY``, which the processes import
        store: the logs, for this process
        url: the same logs, for the other processes
        processes: how many
        prepare: ``MODULE:FUNCTION`` that each process calls first, for instance to set up its logging
        **options: those of ``LocalRunner``
    """

    def __init__(
        self, topology: str, store: LogStore, url: str, *, processes: int = 2, prepare: str = "", **options: Any
    ) -> None:
        """Check everything here first, before a process starts."""
        if not isinstance(topology, str):
            raise BadInput(
                f"ProcessRunner takes the name of a topology, not a {type(topology).__name__}.",
                hint="Its processes import it: write it as MODULE:TOPOLOGY, such as shop.flows:clicks.",
            )
        if not isinstance(store, LogStore) or not isinstance(url, str):
            raise BadInput(
                "ProcessRunner takes a log store and its URL.",
                hint='Write ProcessRunner("shop.flows:clicks", store, url).',
            )
        if processes < 1:
            raise BadInput(f"ProcessRunner(processes={processes}) runs nothing.", hint="Use 1 or more.")
        if url.startswith("memory:"):
            raise BadInput("logs in memory are those of one process.", hint="Use file:// or kafka://.")
        self.topology = load_topology(topology)
        self.store = store
        self.resolved = ResolvedTopology(self.topology, store, create=False)
        for node in self.resolved.keeping():
            check_kept(store, node)
        self.restarts = 0
        self._beginning = StartRequest(topology, url, options, [path for path in sys.path if path], prepare=prepare)
        self._count = processes
        self._processes: list[Process] = []
        self._lock = threading.Lock()  # of the list
        self._hurried: set[str] = set()
        self._ended_nodes: set[str] = set()
        self._stopping = threading.Event()
        self._watcher: threading.Thread | None = None
        self._last: list[Status] = []
        self._refused: dict[int, str] = {}  # processes that cannot be started again, and why
        self._rng = random.Random()

    # --- life --------------------------------------------------------------------------------------

    def start(self) -> ProcessRunner:
        """Start the processes and watch over them."""
        if self._watcher is not None:
            raise Conflict("this runner was started before.", hint="Make another one.")
        self.resolved = ResolvedTopology(self.topology, self.store)
        run = number_of_run(self.store, self.topology.name)
        self._beginning.options = {**self._beginning.options, "run": run}
        try:
            for number in range(self._count):
                self._processes.append(self._first(number))
        except BaseException:
            self.shutdown()
            raise
        self._watcher = threading.Thread(target=self._watch, name="penstock-stream-processes", daemon=True)
        self._watcher.start()
        return self

    def _first(self, number: int) -> Process:
        """Start a process with the runner; restart it if it dies before it has answered."""
        for attempt in range(1, STARTS):
            try:
                return Process(number, self._beginning)
            except StoreUnavailable as died:
                self._note_end(number)
                logger.debug("attempt %d: %s", attempt, died)
                self._rest(attempt)
        return Process(number, self._beginning)

    def _watch(self) -> None:
        """Restart processes that have ended."""
        failed = [0] * self._count
        while not self._stopping.wait(0.05):
            for number, process in enumerate(list(self._processes)):
                if number in self._refused:
                    continue
                if process.is_alive:
                    if time.monotonic() - process.began > STEADY:
                        failed[number] = 0
                    continue
                if self._stopping.is_set():
                    return
                failed[number] += 1
                self._note_end(number)
                process.end(1)
                if self._rest(failed[number]):
                    return
                self._again(number)

    def _again(self, number: int) -> None:
        """Restart a process at the runner's current stage. If that fails, the watcher tries again."""
        beginning = msgspec.structs.replace(self._beginning, leave_out=sorted(self._ended_nodes))
        try:
            process = Process(number, beginning)
        except StoreUnavailable as error:
            logger.error("process %d of %s does not start: %s", number, self.topology.name, error)
            return
        except BadInput as error:
            logger.error("process %d of %s cannot start: %s", number, self.topology.name, error)
            self._refused[number] = f"{type(error).__name__}: {error}"
            return
        with self._lock:
            stale = self._stopping.is_set() or process.left_out != self._ended_nodes
            if not stale:
                self._processes[number] = process
        if stale:  # the runner stops, or a computation has ended since
            process.kill()
            return
        with contextlib.suppress(StoreUnavailable):
            for name in sorted(self._hurried):
                process.ask(Message("hurry", name))

    def _note_end(self, number: int) -> None:
        self.restarts += 1
        logger.error("process %d of %s has ended; it is started again", number, self.topology.name)
        self.store.signals.tell(
            "store_error", self.topology.name, (), self.store.now(), step=f"process {number} restarting",
            error="the process has ended",
        )  # fmt: skip

    def _rest(self, failed: int) -> bool:
        """Wait before a process is started again. Returns True if the runner stops meanwhile."""
        delay = BACKOFF.delay(failed, self._rng)
        return self._stopping.wait(0.0 if delay is None else delay.total_seconds())

    def wait_for_assignments(self, timeout: Duration = "10s") -> bool:
        """Wait until the processes have all partitions."""
        return wait_until(
            lambda: all(
                self.owned(node) == self.resolved.tasks[node.name] for node in self.resolved.order if node.concurrency
            ),
            duration(timeout, name="timeout").total_seconds(),
        )  # fmt: skip

    def drain(self, timeout: Duration = "60s", *, final: bool = False) -> bool:
        """See :class:`Runner`."""
        if self._watcher is None:
            raise not_started()
        done = drain.drain(
            self.store, self.resolved, self, final=final, seconds=duration(timeout, name="timeout").total_seconds()
        )
        return self.stop() and done

    def stop(self, timeout: Duration = "30s") -> bool:
        """Stop all processes, each with a checkpoint."""
        seconds = duration(timeout, name="timeout").total_seconds()
        self._last = self.status()
        self._stopping.set()
        if self._watcher is not None:
            self._watcher.join()
        self._tell(Message("stop", number=seconds))
        ended = [process.end(seconds) for process in self._processes]
        self._processes = []
        self._last = [msgspec.structs.replace(status, state=_ended(status), partitions=[]) for status in self._last]
        return all(ended)

    def shutdown(self) -> None:
        """Kill all processes: what was not committed is done again next time."""
        self._last = self.status()
        with self._lock:
            self._stopping.set()
            processes, self._processes = self._processes, []
        for process in processes:
            process.kill()
        self._last = [msgspec.structs.replace(status, state="stopped", partitions=[]) for status in self._last]

    # --- asking ------------------------------------------------------------------------------------

    def status(self) -> list[Status]:
        """What every instance in every process does."""
        if not self._processes:
            return self._last
        statuses = []
        for process, answer in self._answers(Message("status")):
            statuses += [msgspec.structs.replace(status, process=process.number) for status in answer.statuses]
        return statuses + [
            Status(node.name, 0, state="failed", error=why, process=number)
            for number, why in self._refused.items()
            for node in self.resolved.order
            if node.name not in self._ended_nodes
        ]

    def watermark(self, computation: str | None = None) -> datetime | None:
        """The least watermark of all partitions."""
        if computation is not None and computation not in self.topology.nodes:
            raise unknown(computation, self.topology.nodes, "computation", self.topology.name)
        lows = [
            low
            for _, answer in self._answers(Message("progress"))
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
        for _, answer in self._answers(Message("progress", number=at)):
            for name, mine in answer.lows.items():
                lows[name] += mine
                waits[name] = waits[name] or answer.waits[name]
        return drain.is_done(self.store, self.resolved, at, lows, waits)

    def _answers(self, message: Message, *, without: Collection[Process] = ()) -> Iterator[tuple[Process, Message]]:
        """The answers of the processes; a dead one gives none, and is restarted."""
        for process in list(self._processes):
            if process not in without:
                with contextlib.suppress(StoreUnavailable):
                    yield process, process.ask(message)

    def _tell(self, message: Message) -> None:
        for _ in self._answers(message):
            pass

    # --- what draining asks --------------------------------------------------------------------------

    def _of(self, node: Node) -> list[Status]:
        return [status for status in self.status() if status.computation == node.name]

    def hurry(self, node: Node) -> None:
        """Batches are not waited for any more."""
        self._hurried.add(node.name)
        self._tell(Message("hurry", node.name))

    def is_quiet(self, node: Node) -> bool:
        """Whether a source has nothing to do now."""
        return all(answer.good for _, answer in self._answers(Message("quiet", node.name)))

    def has_failed(self, node: Node) -> bool:
        """Whether an instance has failed."""
        return any(status.state == "failed" for status in self._of(node))

    def owned(self, node: Node) -> int:
        """How many partitions the processes have."""
        return sum(len(status.partitions) for status in self._of(node))

    def freeze(self, node: Node, on: bool, seconds: float) -> bool:
        """Stop all processes from reading, or let them continue."""
        return self._freeze(node, on, seconds, ended=())

    def _freeze(self, node: Node, on: bool, seconds: float, *, ended: Collection[Process]) -> bool:
        message = Message("freeze", node.name, number=seconds, final=on)
        frozen = {process for process, answer in self._answers(message, without=ended) if answer.good}
        return all(process in frozen or process in ended for process in self._processes)

    def finish(self, node: Node, final: bool, seconds: float) -> bool:
        """Let all processes finish at the end of the input, and only then give their partitions back."""
        deadline = time.monotonic() + seconds
        ended: set[Process] = set()
        while True:
            message = Message("finish", node.name, number=max(0.0, deadline - time.monotonic()), final=final)
            answers = list(self._answers(message, without=ended))
            ended.update(process for process, answer in answers if answer.good)
            self._tell(Message("release", node.name))
            if not all(answer.good for _, answer in answers):
                return False
            with self._lock:
                if all(process in ended for process in self._processes):
                    self._ended_nodes.add(node.name)
                    return True
            # One has died. Its successor gets its partitions, and those that the others have released.
            if not self._stands_still(node, ended, deadline):
                return False

    def _stands_still(self, node: Node, ended: Collection[Process], deadline: float) -> bool:
        """Wait until the processes that have not ended a computation have all its partitions, and hold them."""
        while (left := deadline - time.monotonic()) > 0 and not self.has_failed(node):
            if self._has_all(node):
                if self._freeze(node, True, left, ended=ended) and self._has_all(node):
                    return True
                self._freeze(node, False, left, ended=ended)
            self._stopping.wait(LOOK)
        return False

    def _has_all(self, node: Node) -> bool:
        partitions = sorted(index for status in self._of(node) for index in status.partitions)
        return partitions == list(range(self.resolved.tasks[node.name])) and (not node.is_source or self.is_quiet(node))


def number_of_run(store: LogStore, topology: str) -> int:
    """A number above that of every earlier run of the topology, whatever the clocks say."""
    number, step = store.now(), 1
    while store.transact(Commit([], [], producer=f"{topology}.runs", sequence=number)).duplicate:
        number, step = number + step, 2 * step
    return number


def _ended(status: Status) -> Any:
    return "failed" if status.state == "failed" else "stopped"

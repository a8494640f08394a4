"""LocalRunner: executes a topology in threads of this process, on any log store.

Several runners, in one or many processes, may run the same topology: partitions are dealt out among their threads,
and move when one comes or goes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from penstock.clock import Duration, Micros, duration, from_micros, to_micros
from penstock.errors import BadInput, Conflict
from penstock.log.store import LogStore
from penstock.stream.engine.watermark import LOWEST
from penstock.stream.internal_logs import check_kept, reset
from penstock.stream.local import drain
from penstock.stream.local.thread import StreamThread
from penstock.stream.runner import Runner, Settings, Status, check_runner_arguments, not_started, wait_until
from penstock.stream.topology import Node, Topology, unknown
from penstock.stream.validate import ResolvedTopology

TICK = 0.05


class LocalRunner(Runner):
    """A ``Runner`` in threads: ``concurrency`` of them per computation.

    Args:
        topology: what to run
        store: that has the logs
        **options: ``checkpoint_records``, ``checkpoint_every``, ``read``, ``max_poll``, ``restart_backoff``,
            ``restart_backoff_max``; ``leave_out`` names computations that it does not run
    """

    def __init__(self, topology: Topology, store: LogStore, **options: Any) -> None:
        """Check the topology against the store and the stored state. Nothing runs before :meth:`start`."""
        check_runner_arguments("LocalRunner", topology, store)
        self.topology = topology
        self.store = store
        strange = options.keys() - set(Settings.__struct_fields__)
        if strange:
            raise BadInput(
                f"LocalRunner has no option {min(strange)!r}.", hint=f"It has {', '.join(Settings.__struct_fields__)}."
            )
        self.settings = Settings(**options)
        self.resolved = ResolvedTopology(topology, store, create=False)
        for node in self.resolved.keeping():
            check_kept(store, node)
        self._threads: dict[str, list[StreamThread]] = {}
        self._ended: list[Status] = []
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._ticker: threading.Thread | None = None

    # --- life --------------------------------------------------------------------------------------

    def start(self) -> LocalRunner:
        """Create missing logs, then begin."""
        with self._lock:
            if self._ticker is not None:
                raise Conflict("this runner was started before.", hint="Make another one.")
            self.resolved = ResolvedTopology(self.topology, self.store)
            self._ticker = threading.Thread(target=self._tick, name="penstock-stream-ticker", daemon=True)
            self._ticker.start()
            for node in self.resolved.order:
                if node.name not in self.settings.leave_out:
                    self._begin(node)
        return self

    def _begin(self, node: Node) -> None:
        threads = [
            StreamThread(self.store, self.resolved, node, number, self.settings) for number in range(node.concurrency)
        ]
        self._threads[node.name] = threads
        for thread in threads:
            thread.start()

    def _tick(self) -> None:
        while not self._over.wait(TICK):
            for thread in self._all():
                thread.tick()

    def _all(self) -> list[StreamThread]:
        with self._lock:
            return [thread for threads in self._threads.values() for thread in threads]

    def wait_for_assignments(self, timeout: Duration = "10s") -> bool:
        """Wait until the threads here have all partitions, or have ended."""
        deadline = time.monotonic() + duration(timeout, name="timeout").total_seconds()
        never = threading.Event()
        while any(
            self.owned(node) < self.resolved.tasks[node.name] for node in self.resolved.order
            if node.concurrency and not self.has_failed(node)
        ):  # fmt: skip
            if time.monotonic() > deadline:
                return False
            never.wait(0.005)
        return True

    def drain(self, timeout: Duration = "60s", *, final: bool = False) -> bool:
        """See :class:`Runner`. All partitions have to be here: stop other runners of the topology first."""
        if self._ticker is None:
            raise not_started()
        done = drain.drain(
            self.store, self.resolved, self, final=final, seconds=duration(timeout, name="timeout").total_seconds()
        )
        return self.stop() and done

    def stop(self, timeout: Duration = "30s") -> bool:
        """Stop all threads after the record under work."""
        return self._stop_all(self._all(), duration(timeout, name="timeout").total_seconds())

    def _stop_all(self, threads: Iterable[StreamThread], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        chosen = list(threads)
        for thread in chosen:
            thread.stop()
        ended = [thread.join(deadline - time.monotonic()) for thread in chosen]
        if all(thread.ended for thread in self._all()):
            self._over.set()
        return all(ended)

    def shutdown(self) -> None:
        """Stop at once."""
        for thread in self._all():
            thread.kill()
        for thread in self._all():
            thread.join(1.0)
        self._over.set()

    def stop_computation(self, name: str, timeout: Duration = "30s") -> bool:
        """Stop the threads of one computation. Returns True also if it does not run."""
        self._node(name)
        with self._lock:
            threads = self._threads.get(name, [])
        return self._stop_all(threads, duration(timeout, name="timeout").total_seconds())

    def start_computation(self, name: str) -> None:
        """Start the threads of one computation again; nothing happens if they run."""
        node = self._node(name)
        with self._lock:
            if self._ticker is None:
                raise not_started()
            running = self._threads.get(name, [])
            if running and not all(thread.ended for thread in running):
                return
            self._ended += [thread.status for thread in running]
            if self._over.is_set():
                self._over = threading.Event()
                self._ticker = threading.Thread(target=self._tick, name="penstock-stream-ticker", daemon=True)
                self._ticker.start()
            self._begin(node)

    def reset(self, name: str) -> None:
        """Forget a computation's offsets and state: it starts over. Its outputs stay. It must not run anywhere."""
        node = self._node(name)
        with self._lock:
            if any(not thread.ended for thread in self._threads.get(name, [])):
                raise Conflict(f"{name} runs.", hint="Stop it first.")
        reset(self.store, node, self.topology.name)

    # --- asking ------------------------------------------------------------------------------------

    def status(self) -> list[Status]:
        """The status of every thread."""
        return [thread.status for thread in self._all()]

    def watermark(self, computation: str | None = None) -> datetime | None:
        """The least watermark of the partitions that are here."""
        nodes = self.resolved.order if computation is None else [self._node(computation)]
        lows = [low for node in nodes if not node.is_source for low in self._lows(node)]
        return None if not lows or min(lows) == LOWEST else from_micros(min(lows))

    def is_done(self, moment: datetime) -> bool:
        """Whether everything up to an event time has gone all the way through."""
        at = to_micros(moment)
        return drain.is_done(self.store, self.resolved, at, *self.progress(at))

    def progress(self, until: Micros) -> tuple[dict[str, list[Micros]], dict[str, bool]]:
        """The watermarks here, and which computations have timers that wait, up to an event time."""
        lows = {node.name: self._lows(node) for node in self.resolved.order}
        return lows, {node.name: self._waits(node, until) for node in self.resolved.order}

    def _lows(self, node: Node) -> list[Micros]:
        """The watermarks of the partitions here. A partition that never had a record does not hold event time back."""
        tasks = [task for thread in self._threads.get(node.name, []) for task in thread.tasks]
        lags = [self.store.lags(stream, node.name) for stream in node.inputs.values()]
        return [
            task.watermark.low for task in tasks
            if task.watermark.low != LOWEST or any(lag[task.index].lag for lag in lags if task.index < len(lag))
        ]  # fmt: skip

    def _waits(self, node: Node, until: Micros) -> bool:
        for thread in self._threads.get(node.name, []):
            if node.is_source and not thread.quiet:
                return True
            for task in thread.tasks:
                at = task.next_event()
                if at is not None and at <= until:
                    return True
        return False

    def _node(self, name: str) -> Node:
        if name not in self.topology.nodes:
            raise unknown(name, self.topology.nodes, "computation", self.topology.name)
        return self.topology.nodes[name]

    # --- what draining asks --------------------------------------------------------------------------

    def hurry(self, node: Node) -> None:
        """Batches are not waited for any more."""
        for thread in self._threads.get(node.name, []):
            thread.hurry()

    def is_quiet(self, node: Node) -> bool:
        """Whether a source has nothing to do now."""
        return all(thread.quiet for thread in self._threads.get(node.name, []))

    def has_failed(self, node: Node) -> bool:
        """Whether a thread has failed, or none runs."""
        threads = self._threads.get(node.name, [])
        return not threads or any(thread.status.state == "failed" for thread in threads) or all(
            thread.ended for thread in threads
        )  # fmt: skip

    def owned(self, node: Node) -> int:
        """How many partitions are here."""
        return sum(len(thread.status.partitions) for thread in self._threads.get(node.name, []))

    def freeze(self, node: Node, on: bool, seconds: float) -> bool:
        """Let the threads read nothing, or continue."""
        threads = self._threads.get(node.name, [])
        for thread in threads:
            thread.freeze(on)
        return wait_until(
            lambda: all(thread.frozen.is_set() == on or thread.ended for thread in threads), seconds, 0.002
        )

    def finish(self, node: Node, final: bool, seconds: float) -> bool:
        """End the threads of a computation whose input has ended."""
        deadline = time.monotonic() + seconds
        good = self.finish_holding(node, final, seconds)
        self.release(node)
        # All is committed: a disk that is slow to let the partitions go makes no failure of it.
        joined = [thread.join(max(5.0, deadline - time.monotonic())) for thread in self._threads.get(node.name, [])]
        return good and all(joined)

    def release(self, node: Node) -> None:
        """Let the threads end that have finished."""
        for thread in self._threads.get(node.name, []):
            thread.release()

    def finish_holding(self, node: Node, final: bool, seconds: float) -> bool:
        """Let all threads finish at the end of the input; none gives its partitions back before all have."""
        threads = self._threads.get(node.name, [])
        for thread in threads:
            thread.finish(final)
        wait_until(lambda: all(thread.finished.is_set() or thread.ended for thread in threads), seconds, 0.002)
        return all(thread.finished.is_set() for thread in threads)

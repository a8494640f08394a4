"""LocalRunner: executes a topology in threads of this process, on any log store.

Several runners, in one or many processes, may run the same topology: partitions are dealt out among their instances,
and move when one comes or goes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from penstock.clock import Duration, Micros, duration, from_micros, to_micros
from penstock.errors import BadInput, Closed, Conflict
from penstock.log.store import LogStore
from penstock.stream.engine.watermark import LOWEST
from penstock.stream.internal_logs import check_kept, reset
from penstock.stream.local import drain
from penstock.stream.local.thread import StreamThread
from penstock.stream.runner import Runner, Settings, Status, check_runner_arguments
from penstock.stream.topology import Node, Topology, unknown
from penstock.stream.validate import ResolvedTopology

TICK = 0.05


class LocalRunner(Runner):
    """Runs a topology in threads: ``concurrency`` of them per computation.

    Further options are the fields of :class:`Settings`.
    """

    def __init__(self, topology: Topology, store: LogStore, **options: Any) -> None:
        """Check the topology against the store, and what is kept of it; nothing runs before :meth:`start`."""
        check_runner_arguments(topology, store)
        self.topology = topology
        self.store = store
        strange = options.keys() - set(Settings.__struct_fields__)
        if strange:
            raise BadInput(
                f"LocalRunner has no option {min(strange)!r}.", hint=f"It has {', '.join(Settings.__struct_fields__)}."
            )
        self.settings = Settings(**options)
        self.plan = ResolvedTopology(topology, store, create=False)
        for node in self.plan.keeping():
            check_kept(store, node)
        self._instances: dict[str, list[StreamThread]] = {}
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
            self.plan = ResolvedTopology(self.topology, self.store)
            self._ticker = threading.Thread(target=self._tick, name="penstock-stream-ticker", daemon=True)
            self._ticker.start()
            for node in self.plan.order:
                if node.name not in self.settings.leave_out:
                    self._begin(node)
        return self

    def _begin(self, node: Node) -> None:
        made = [StreamThread(self.store, self.plan, node, number, self.settings) for number in range(node.concurrency)]
        self._instances[node.name] = made
        for instance in made:
            instance.start()

    def _tick(self) -> None:
        while not self._over.wait(TICK):
            for instance in self._all():
                instance.tick()

    def _all(self) -> list[StreamThread]:
        with self._lock:
            return [one for instances in self._instances.values() for one in instances]

    def wait_for_assignments(self, timeout: Duration = "10s") -> bool:
        """Wait until the instances here have all partitions, or have ended."""
        deadline = time.monotonic() + duration(timeout, name="timeout").total_seconds()
        never = threading.Event()
        while any(
            self.owned(node) < self.plan.tasks[node.name] for node in self.plan.order
            if node.concurrency and not self.has_failed(node)
        ):  # fmt: skip
            if time.monotonic() > deadline:
                return False
            never.wait(0.005)
        return True

    def drain(self, timeout: Duration = "60s", *, final: bool = False) -> bool:
        """See :class:`Runner`. All partitions have to be here: stop other runners of the topology first."""
        if self._ticker is None:
            return True
        done = drain.drain(
            self.store, self.plan, self, final=final, seconds=duration(timeout, name="timeout").total_seconds()
        )
        return self.stop() and done

    def stop(self, timeout: Duration = "30s") -> bool:
        """Stop all instances after the record under work."""
        return self._stop_all(self._all(), duration(timeout, name="timeout").total_seconds())

    def _stop_all(self, instances: Iterable[StreamThread], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        chosen = list(instances)
        for instance in chosen:
            instance.stop()
        ended = [instance.join(deadline - time.monotonic()) for instance in chosen]
        if all(one.ended for one in self._all()):
            self._over.set()
        return all(ended)

    def shutdown(self) -> None:
        """Stop at once."""
        for instance in self._all():
            instance.kill()
        for instance in self._all():
            instance.join(1.0)
        self._over.set()

    def stop_computation(self, name: str, timeout: Duration = "30s") -> bool:
        """Stop the instances of one computation; True also if it does not run."""
        self._node(name)
        with self._lock:
            instances = self._instances.get(name, [])
        return self._stop_all(instances, duration(timeout, name="timeout").total_seconds())

    def start_computation(self, name: str) -> None:
        """Start the instances of one computation again; nothing happens if they run."""
        node = self._node(name)
        with self._lock:
            if self._ticker is None:
                raise Closed("the runner does not run.", hint="Start it first.")
            running = self._instances.get(name, [])
            if running and not all(one.ended for one in running):
                return
            self._ended += [one.status for one in running]
            if self._over.is_set():
                self._over = threading.Event()
                self._ticker = threading.Thread(target=self._tick, name="penstock-stream-ticker", daemon=True)
                self._ticker.start()
            self._begin(node)

    def reset(self, name: str) -> None:
        """Forget what a computation has read and kept: it begins anew. Its outputs stay. It must not run anywhere."""
        node = self._node(name)
        with self._lock:
            if any(not one.ended for one in self._instances.get(name, [])):
                raise Conflict(f"{name} runs.", hint="Stop it first.")
        reset(self.store, node, self.topology.name)

    # --- asking ------------------------------------------------------------------------------------

    def status(self) -> list[Status]:
        """What every instance does."""
        return [one.status for one in self._all()]

    def watermark(self, computation: str | None = None) -> datetime | None:
        """The least watermark of the partitions that are here."""
        nodes = self.plan.order if computation is None else [self._node(computation)]
        lows = [low for node in nodes if not node.is_source for low in self._lows(node)]
        return None if not lows or min(lows) == LOWEST else from_micros(min(lows))

    def is_done(self, moment: datetime) -> bool:
        """Whether everything up to an event time has gone all the way through."""
        at = to_micros(moment)
        return drain.is_done(self.store, self.plan, at, *self.progress(at))

    def progress(self, until: Micros) -> tuple[dict[str, list[Micros]], dict[str, bool]]:
        """The watermarks here, and which computations have timers that wait, up to an event time."""
        lows = {node.name: self._lows(node) for node in self.plan.order}
        return lows, {node.name: self._waits(node, until) for node in self.plan.order}

    def _lows(self, node: Node) -> list[Micros]:
        """The watermarks of the partitions here; one that has never had a record holds nobody back."""
        tasks = [task for one in self._instances.get(node.name, []) for task in one.tasks]
        lags = [self.store.lags(stream, node.name) for stream in node.inputs.values()]
        return [
            task.watermark.low for task in tasks
            if task.watermark.low != LOWEST or any(lag[task.index].lag for lag in lags if task.index < len(lag))
        ]  # fmt: skip

    def _waits(self, node: Node, until: Micros) -> bool:
        for instance in self._instances.get(node.name, []):
            if node.is_source and not instance.quiet:
                return True
            for task in instance.tasks:
                at = task.timers.next("event")
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
        for instance in self._instances.get(node.name, []):
            instance.hurry()

    def is_quiet(self, node: Node) -> bool:
        """Whether a source has nothing to do now."""
        return all(instance.quiet for instance in self._instances.get(node.name, []))

    def has_failed(self, node: Node) -> bool:
        """Whether all hope is lost: an instance has failed, or none runs."""
        instances = self._instances.get(node.name, [])
        return not instances or any(one.status.state == "failed" for one in instances) or all(
            one.ended for one in instances
        )  # fmt: skip

    def owned(self, node: Node) -> int:
        """How many partitions are here."""
        return sum(len(one.status.partitions) for one in self._instances.get(node.name, []))

    def freeze(self, node: Node, on: bool, seconds: float) -> bool:
        """Let the instances read nothing, or go on."""
        instances = self._instances.get(node.name, [])
        for instance in instances:
            instance.freeze(on)
        return _wait(lambda: all(one.frozen.is_set() == on or one.ended for one in instances), seconds)

    def finish(self, node: Node, final: bool, seconds: float) -> bool:
        """End the instances of a computation whose input has ended."""
        good = self.finish_holding(node, final, seconds)
        self.release(node)
        joined = [one.join(5.0) for one in self._instances.get(node.name, [])]
        return good and all(joined)

    def release(self, node: Node) -> None:
        """Let the instances end that have finished."""
        for instance in self._instances.get(node.name, []):
            instance.release()

    def finish_holding(self, node: Node, final: bool, seconds: float) -> bool:
        """Let all instances do what the end of the input means; none gives its partitions back before all have."""
        instances = self._instances.get(node.name, [])
        for instance in instances:
            instance.finish(final)
        _wait(lambda: all(one.finished.is_set() or one.ended for one in instances), seconds)
        return all(one.finished.is_set() for one in instances)


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    never = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        never.wait(0.002)
    return True

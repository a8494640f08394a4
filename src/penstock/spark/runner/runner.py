"""SparkRunner: executes a topology on Spark, micro-batch by micro-batch, with the log in between."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.clock import Duration, Micros, duration, from_micros, to_micros
from penstock.errors import BadInput, Conflict, Unsupported
from penstock.log.store import LogStore
from penstock.spark.datasource.options import absolute
from penstock.spark.session import session
from penstock.stream.engine.watermark import LOWEST
from penstock.stream.explaining import explain
from penstock.stream.internal_logs import check_kept, reset
from penstock.stream.local import drain
from penstock.stream.runner import Runner, Settings, Status, check_runner_arguments, not_started, wait_until
from penstock.stream.topology import Node, Topology, unknown
from penstock.stream.validate import ResolvedTopology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.runner.driver import ComputationDriver
    from penstock.spark.runner.shipping import TaskSpec

RECORDS = 1_000_000  # of a batch, by default


class SparkRunner(Runner):
    """Runs the same topologies as a local runner, on Spark: each computation in micro-batches of one job.

    All its memory is in the log store: offsets, state, timers, plans.

    Args:
        topology: what to run
        store: that has the logs; executors open it, too
        spark: the session; by default that of :func:`penstock.spark.session`
        state_in_memory: how many entries of state a worker process holds between batches; by default 2,000,000, about 1
            GB. Tasks beyond that read their state again for each batch.
        **options: those of ``LocalRunner``; ``checkpoint_records`` is the most that one batch reads
    """

    def __init__(
        self, topology: Topology, store: LogStore, spark: SparkSession | None = None, *,
        state_in_memory: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
        """Check the topology against the store and the stored state. Nothing runs before :meth:`start`."""
        check_runner_arguments("SparkRunner", topology, store)
        if spark is not None and not hasattr(spark, "sparkContext"):
            raise BadInput(
                f"spark={spark!r} is not a Spark session.",
                hint='Write spark=penstock.spark.session(master="local[2]"), or leave it out.',
            )
        self.topology = topology
        self.store = store
        strange = options.keys() - set(Settings.__struct_fields__)
        if strange:
            raise BadInput(
                f"SparkRunner has no option {min(strange)!r}.", hint=f"It has {', '.join(Settings.__struct_fields__)}."
            )
        if state_in_memory is not None and state_in_memory < 1:
            raise BadInput(f"state_in_memory={state_in_memory} holds nothing.", hint="Use 1 or more entries.")
        self.settings = Settings(**{"checkpoint_records": RECORDS, **options})
        self._state_in_memory = state_in_memory
        self.url = absolute(store.url)
        if not store.capabilities.staging:
            raise Unsupported(
                f"{store.name} cannot take records from several processes.", hint="Use file:// or kafka://."
            )
        self.resolved = ResolvedTopology(topology, store, create=False)
        self._specs: dict[str, TaskSpec] = {}
        for node in self.resolved.order:
            self._check(node)
        self._spark = spark
        self._drivers: dict[str, ComputationDriver] = {}
        self._ended: list[Status] = []
        self._lock = threading.RLock()
        self._is_started = False

    def _check(self, node: Node) -> None:
        if node.is_source:
            raise Unsupported(
                f"{node.name} has no inputs; such a computation runs on a local runner only.",
                hint=f"Run it there, and the others here: topology.only(…) without {node.name!r}.",
            )
        if node.concurrency == 0:
            return
        self._specs[node.name] = self._spec(node)
        if node.computation.keeps:
            check_kept(self.store, node)

    def _spec(self, node: Node) -> TaskSpec:
        """What workers need of a computation. Raises if it cannot be sent to them."""
        from penstock.spark.runner.shipping import TaskSpec, packed, unpacked

        part = self.topology.only(node.name)
        mine = {*node.inputs.values(), *node.outputs.values()}
        part.streams = {name: stream for name, stream in part.streams.items() if name in mine}
        part.nodes, part.elsewhere = {node.name: node}, {}  # workers of this computation do not need their code
        spec = TaskSpec("", self.url, part, node.name, self.resolved.writers)
        if self._state_in_memory is not None:
            spec.state_in_memory = self._state_in_memory
        try:
            unpacked.__wrapped__(packed(spec))  # what a worker could not read is found here
        except Exception as cause:
            raise BadInput(
                f"computation {node.name} cannot be sent to Spark's workers: {cause}.",
                hint="Open files, locks and connections in init(), not in __init__() or around the function. "
                "A class that cannot travel goes into a module that the workers can import.",
            ) from cause
        return spec

    # --- life --------------------------------------------------------------------------------------

    def start(self) -> SparkRunner:
        """Create missing logs, then begin."""
        with self._lock:
            if self._is_started:
                raise Conflict("this runner was started before.", hint="Make another one.")
            self.resolved = ResolvedTopology(self.topology, self.store)
            chosen = [node for node in self.resolved.order if node.concurrency]
            for node in chosen:
                if node.computation.keeps:
                    check_kept(self.store, node)  # before any of them runs
            self._is_started = True
            for node in chosen:
                self._begin(node)
        return self

    def _begin(self, node: Node) -> None:
        from penstock.spark.runner.driver import ComputationDriver

        if node.computation.keeps:
            check_kept(self.store, node)
        context = (self._spark or session()).sparkContext
        driver = ComputationDriver(
            self.store, self.resolved, node, context=context, spec=self._specs[node.name], settings=self.settings
        )
        self._drivers[node.name] = driver
        driver.start()

    def wait_for_assignments(self, timeout: Duration = "10s") -> bool:
        """Wait until all computations are at work, or have failed."""
        return wait_until(
            lambda: all(driver.status.partitions or driver.ended for driver in self._drivers.values()),
            duration(timeout, name="timeout").total_seconds(),
        )

    def drain(self, timeout: Duration = "60s", *, final: bool = False) -> bool:
        """See :class:`Runner`."""
        if not self._is_started:
            raise not_started()
        deadline = time.monotonic() + duration(timeout, name="timeout").total_seconds()
        done = all(
            self._finish(self._drivers[node.name], final, deadline) for node in self.resolved.order if node.concurrency
        )
        return self.stop() and done

    def _finish(self, driver: ComputationDriver, final: bool, deadline: float) -> bool:
        """Finish a computation: everything before it has ended, so the current end of its input is final."""
        driver.finish(final)
        wait_until(lambda: driver.has_finished or driver.ended, deadline - time.monotonic())
        return driver.has_finished and driver.join(30.0) and driver.status.state != "failed"

    def stop(self, timeout: Duration = "30s") -> bool:
        """Stop after the batches under way; one that takes longer is interrupted, and done again next time."""
        return self._stop_all(self._drivers.values(), duration(timeout, name="timeout").total_seconds())

    def _stop_all(self, drivers: Iterable[ComputationDriver], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        chosen = list(drivers)
        for driver in chosen:
            driver.stop()
        ended = [driver.join(deadline - time.monotonic()) for driver in chosen]
        for driver in chosen:
            driver.kill()
        for driver in chosen:
            driver.join(10.0)
        return all(ended)

    def shutdown(self) -> None:
        """Cancel all batches."""
        for driver in self._drivers.values():
            driver.kill()
        for driver in self._drivers.values():
            driver.join(10.0)

    def stop_computation(self, name: str, timeout: Duration = "30s") -> bool:
        """Stop one computation. Returns True also if it does not run."""
        self._node(name)
        running = self._drivers.get(name)
        return running is None or self._stop_all([running], duration(timeout, name="timeout").total_seconds())

    def start_computation(self, name: str) -> None:
        """Start one computation again; nothing happens if it runs."""
        node = self._node(name)
        with self._lock:
            if not self._is_started:
                raise not_started()
            running = self._drivers.get(name)
            if running is not None:
                if not running.ended:
                    return
                self._ended.append(running.status)
            self._begin(node)

    def reset(self, name: str) -> None:
        """Forget a computation's offsets and state: it starts over. Its outputs stay. It must not run anywhere."""
        node = self._node(name)
        with self._lock:
            running = self._drivers.get(name)
            if running is not None and not running.ended:
                raise Conflict(f"{name} runs.", hint="Stop it first.")
        reset(self.store, node, self.topology.name)

    # --- asking ------------------------------------------------------------------------------------

    def status(self) -> list[Status]:
        """The status of every computation."""
        return [driver.status for driver in self._drivers.values()]

    def explain(self) -> str:
        """How each computation is computed: what it reads and writes, in how many tasks, on which path, and why."""
        from penstock.spark.runner.fold_path import path_of

        staged = self.store.staged_commit()
        return explain(self.resolved, path_of, f"commit by the driver; of what tasks write aside, {staged}")

    def watermark(self, computation: str | None = None) -> datetime | None:
        """The least watermark of all partitions."""
        nodes = self.resolved.order if computation is None else [self._node(computation)]
        lows = [low for node in nodes if node.name in self._drivers for low in self._drivers[node.name].lows()]
        return None if not lows or min(lows) == LOWEST else from_micros(min(lows))

    def is_done(self, moment: datetime) -> bool:
        """Whether everything up to an event time has gone all the way through."""
        at = to_micros(moment)
        return drain.is_done(self.store, self.resolved, at, *self.progress(at))

    def progress(self, until: Micros) -> tuple[dict[str, list[Micros]], dict[str, bool]]:
        """The watermarks, and which computations have timers that wait, up to an event time."""
        lows = {node.name: self._drivers[node.name].lows() for node in self.resolved.order if node.concurrency}
        return lows, {name: self._drivers[name].waits(until) for name in lows}

    def _node(self, name: str) -> Node:
        if name not in self.topology.nodes:
            raise unknown(name, self.topology.nodes, "computation", self.topology.name)
        return self.topology.nodes[name]

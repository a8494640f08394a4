"""SparkRunner: executes a topology on Spark, one streaming query per computation, with the log in between."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.clock import Duration, Micros, duration, from_micros, to_micros
from penstock.errors import BadInput, Closed, Conflict, Unsupported
from penstock.ids import new_id
from penstock.location import read_url
from penstock.log.store import LogStore
from penstock.spark.options import absolute
from penstock.spark.session import SETTINGS, session
from penstock.stream.engine.changelog import Change, check_inputs, check_keeper, check_shapes, shapes_of, state_log
from penstock.stream.engine.watermark import LOWEST
from penstock.stream.internal_logs import last_change, reset
from penstock.stream.local import drain
from penstock.stream.runner import Runner, Settings, Status, wait_until
from penstock.stream.topology import Node, Topology, unknown
from penstock.stream.validate import ResolvedTopology

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.running.conductor import Conductor
    from penstock.spark.running.sending import Load

KEEPER = "spark"
RECORDS = 1_000_000  # of a checkpoint, if nothing else is said
MOST_SLOTS = 64  # partitions of Spark's state store for one computation
TUNED = {
    # A turn writes what it changed, not all of its state.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # How often a query looks for its next ticket.
    "spark.sql.streaming.pollingDelay": "20ms",
    # The rows are tickets: a few, and small.
    "spark.sql.adaptive.enabled": "false",
}


_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # what new_id() gives


class SparkRunner(Runner):
    """Runs the same topologies as a local runner, on Spark: one query per computation.

    ``checkpoints`` is a folder for what Spark keeps (state, timers, progress), on a file system that driver and
    executors share. ``spark`` is a session, by default the one of :func:`penstock.spark.session`. Further options are
    the fields of :class:`penstock.stream.runner.Settings`; ``checkpoint_records`` is the most that one batch reads.
    """

    def __init__(
        self, topology: Topology, store: LogStore, spark: SparkSession | None = None, *, checkpoints: str | Path,
        **options: Any,
    ) -> None:  # fmt: skip
        """Check the topology against the store, and what is kept of it; nothing runs before :meth:`start`."""
        self.topology = topology
        self.store = store
        strange = options.keys() - set(Settings.__struct_fields__)
        if strange:
            raise BadInput(
                f"SparkRunner has no option {min(strange)!r}.",
                hint=f"It has checkpoints, {', '.join(Settings.__struct_fields__)}.",
            )
        self.settings = Settings(**{"checkpoint_records": RECORDS, **options})
        self.checkpoints = _folder(checkpoints)
        self.url = absolute(store.url)
        if not store.capabilities.staging:
            raise Unsupported(
                f"{store.name} cannot take records from several processes.", hint="Use file:// or kafka://."
            )
        self.plan = ResolvedTopology(topology, store, create=False)
        self._loads: dict[str, Load] = {}
        for node in self.plan.order:
            self._check(node)
        self._spark = spark
        self._conductors: dict[str, Conductor] = {}
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
        self._loads[node.name] = self._load(node)
        if node.computation.keeps:
            self._kept(node)

    def _load(self, node: Node) -> Load:
        """What workers need of a computation; raises for what cannot be sent to them."""
        from penstock.spark.running.sending import Load, pack_load

        part = self.topology.only(node.name)
        mine = {*node.inputs.values(), *node.outputs.values()}
        part.streams = {name: stream for name, stream in part.streams.items() if name in mine}
        part.elsewhere = {}  # their code has no business in workers of this one
        load = Load("", self.url, part, node.name, self.plan.writers)
        try:
            pack_load(load)
        except Exception as cause:
            raise BadInput(
                f"computation {node.name} cannot be sent to Spark's workers: {cause}.",
                hint="Open files, locks and connections in init(), not in __init__() or around the function.",
            ) from cause
        return load

    def _kept(self, node: Node) -> Change | None:
        """What is known of a computation's state; raises if it does not fit, or is not with Spark."""
        name, computation = state_log(node.name), node.computation
        if not self.store.exists(name):
            return None
        for place in self.store.partitions(name):
            last = last_change(self.store, place)
            if last is not None:
                check_keeper(computation, last, KEEPER)
                check_shapes(computation, last)
                check_inputs(computation, last.inputs, self._inputs(node))
                return last
        return None

    def _inputs(self, node: Node) -> dict[str, str]:
        """Which logs its inputs are, as far as they are there."""
        return {log: self.store.identity(log) for log in node.inputs.values() if self.store.exists(log)}

    # --- life --------------------------------------------------------------------------------------

    def start(self) -> SparkRunner:
        """Create missing logs, then begin."""
        with self._lock:
            if self._is_started:
                raise Conflict("this runner was started before.", hint="Make another one.")
            self.plan = ResolvedTopology(self.topology, self.store)
            chosen = [node for node in self.plan.order if node.concurrency]
            for node in chosen:
                if node.computation.keeps:
                    self._kept(node)  # before any of them runs
            self._is_started = True
            for node in chosen:
                self._begin(node)
        return self

    def _begin(self, node: Node) -> None:
        from penstock.spark.running.conductor import Conductor
        from penstock.spark.running.source import TicketSource

        own = (self._spark or session()).newSession()  # its settings are nobody else's
        for name, value in {**SETTINGS, **TUNED}.items():
            if own.conf.isModifiable(name):
                own.conf.set(name, value)
        own.dataSource.register(TicketSource)
        checkpoint, slots, seen = f"{self.checkpoints}/{node.name}", None, False
        if node.computation.keeps:
            tasks = self.plan.tasks[node.name]
            count = min(tasks, MOST_SLOTS)
            own.conf.set("spark.sql.shuffle.partitions", str(count))
            slots = _slots(own, tasks, count)
            keeper, seen = self._mark(node)
            checkpoint += f"-{keeper}"
        conductor = Conductor(
            self.store, self.plan, node, session=own, load=self._loads[node.name], checkpoint=checkpoint, slots=slots,
            settings=self.settings, seen=seen, inputs=self._inputs(node),
        )  # fmt: skip
        self._conductors[node.name] = conductor
        conductor.start()

    def _mark(self, node: Node) -> tuple[str, bool]:
        """Say in the state log who keeps the state, so that no other runner begins without it; the checkpoint's id."""
        last = self._kept(node)
        keeper = new_id() if last is None else last.keeper.split()[1]
        before = {} if last is None else last.inputs
        inputs = {**before, **{log: identity for log, identity in self._inputs(node).items() if identity}}
        if last is None or last.version != node.computation.version or inputs != before:
            where = f"{KEEPER} {keeper} in {self.checkpoints}"
            change = Change(node.computation.version, shapes_of(node.computation), keeper=where, inputs=inputs)
            with self.store.appender(state_log(node.name), bytes) as out:
                out.append(msgspec.msgpack.encode(change), partition=0)
        return keeper, last is not None

    def wait_for_assignments(self, timeout: Duration = "10s") -> bool:
        """Wait until all queries are at work, or have failed."""
        return wait_until(
            lambda: all(one.status.partitions or one.ended for one in self._conductors.values()),
            duration(timeout, name="timeout").total_seconds(),
        )

    def drain(self, timeout: Duration = "60s", *, final: bool = False) -> bool:
        """See :class:`Runner`."""
        if not self._is_started:
            return True
        deadline = time.monotonic() + duration(timeout, name="timeout").total_seconds()
        done = all(
            self._finish(self._conductors[node.name], final, deadline) for node in self.plan.order if node.concurrency
        )
        return self.stop() and done

    def _finish(self, one: Conductor, final: bool, deadline: float) -> bool:
        """Everything before it has ended, so its input ends where it ends now."""
        one.finish(final)
        wait_until(lambda: one.finished.is_set() or one.ended, deadline - time.monotonic())
        return one.finished.is_set() and one.join(30.0) and one.status.state != "failed"

    def stop(self, timeout: Duration = "30s") -> bool:
        """Stop all queries after the batch under way; one that takes longer is broken off, and done again next time."""
        return self._stop_all(self._conductors.values(), duration(timeout, name="timeout").total_seconds())

    def _stop_all(self, conductors: Iterable[Conductor], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        chosen = list(conductors)
        for one in chosen:
            one.stop()
        ended = [one.join(deadline - time.monotonic()) for one in chosen]
        for one in chosen:
            one.kill()
        for one in chosen:
            one.join(10.0)
        return all(ended)

    def shutdown(self) -> None:
        """Break off all queries."""
        for one in self._conductors.values():
            one.kill()
        for one in self._conductors.values():
            one.join(10.0)

    def stop_computation(self, name: str, timeout: Duration = "30s") -> bool:
        """Stop one computation; True also if it does not run."""
        self._node(name)
        found = self._conductors.get(name)
        return True if found is None else self._stop_all([found], duration(timeout, name="timeout").total_seconds())

    def start_computation(self, name: str) -> None:
        """Start one computation again; nothing happens if it runs."""
        node = self._node(name)
        with self._lock:
            if not self._is_started:
                raise Closed("the runner does not run.", hint="Start it first.")
            running = self._conductors.get(name)
            if running is not None:
                if not running.ended:
                    return
                self._ended.append(running.status)
            self._begin(node)

    def reset(self, name: str) -> None:
        """Forget what a computation has read and kept: it begins anew. Its outputs stay. It must not run anywhere."""
        node = self._node(name)
        with self._lock:
            running = self._conductors.get(name)
            if running is not None and not running.ended:
                raise Conflict(f"{name} runs.", hint="Stop it first.")
        reset(self.store, node, self.topology.name)
        folder = read_url(self.checkpoints) if "://" in self.checkpoints else None
        if folder is None:  # elsewhere it is left: the next start uses another one
            for old in Path(self.checkpoints).glob(f"{name}*"):
                if old.name == name or (old.name.startswith(f"{name}-") and _ID.fullmatch(old.name[len(name) + 1 :])):
                    shutil.rmtree(old, ignore_errors=True)

    # --- asking ------------------------------------------------------------------------------------

    def status(self) -> list[Status]:
        """What every query does."""
        return [one.status for one in self._conductors.values()]

    def watermark(self, computation: str | None = None) -> datetime | None:
        """The least watermark of all partitions."""
        nodes = self.plan.order if computation is None else [self._node(computation)]
        lows = [low for node in nodes if node.name in self._conductors for low in self._conductors[node.name].lows()]
        return None if not lows or min(lows) == LOWEST else from_micros(min(lows))

    def is_done(self, moment: datetime) -> bool:
        """Whether everything up to an event time has gone all the way through."""
        at = to_micros(moment)
        return drain.is_done(self.store, self.plan, at, *self.progress(at))

    def progress(self, until: Micros) -> tuple[dict[str, list[Micros]], dict[str, bool]]:
        """The watermarks, and which computations have timers that wait, up to an event time."""
        lows = {node.name: self._conductors[node.name].lows() for node in self.plan.order if node.concurrency}
        return lows, {name: self._conductors[name].waits(until) for name in lows}

    def _node(self, name: str) -> Node:
        if name not in self.topology.nodes:
            raise unknown(name, self.topology.nodes, "computation", self.topology.name)
        return self.topology.nodes[name]


def _folder(checkpoints: str | Path) -> str:
    """A folder with its full path, or a URL of a file system as it is."""
    text = str(checkpoints)
    if not text:
        raise BadInput("checkpoints names no folder.", hint='Write checkpoints="/var/lib/shop/spark".')
    if "://" in text:
        return text.rstrip("/")
    path = Path(text).absolute()
    there = next(one for one in (path, *path.parents) if one.exists())
    if not there.is_dir():
        raise BadInput(f"checkpoints={text!r}: {there} is no folder.", hint="Name a folder; it is made if need be.")
    return str(path)


def _slots(spark: SparkSession, tasks: int, count: int) -> list[int]:
    """A number for every task whose hash puts it to a partition of the state store that others do not have too."""
    free: dict[int, list[int]] = {}
    hashes = ", ".join(f"pmod(hash({number}), {count})" for number in range(16 * max(tasks, count)))
    for number, place in enumerate(spark.sql(f"SELECT {hashes}").collect()[0]):
        free.setdefault(place, []).append(number)
    return [free[task % count].pop() for task in range(tasks)]

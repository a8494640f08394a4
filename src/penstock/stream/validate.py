"""What is wrong with a topology, found before anything runs: by itself, and against the logs of a store."""

from __future__ import annotations

import logging

from penstock.clock import duration, duration_micros
from penstock.errors import BadInput, Conflict, Undecodable
from penstock.log.partitioner import partitioner
from penstock.log.routing import check_codec
from penstock.log.store import LogStore
from penstock.names import did_you_mean
from penstock.policy import Batching
from penstock.stream.chaining import chain
from penstock.stream.columns import Columns, check_columns, value_type
from penstock.stream.computation import Policy
from penstock.stream.engine.changelog import check_states, state_log
from penstock.stream.engine.resolved import InputStream, OutputStream, ResolvedComputation, dead_log
from penstock.stream.engine.watermark import END
from penstock.stream.engine.watermark_log import WatermarkReport, Writers, has_reports, is_read, low_log, reports_time
from penstock.stream.internal_logs import (
    batch_log,
    begin_reports,
    end_reports,
    last_reports,
    make_low_log,
    make_state_log,
)
from penstock.stream.topology import Node, Topology, unknown

logger = logging.getLogger("penstock.stream")


def check(topology: Topology) -> None:
    """Raise for whatever could not run on any store."""
    if not topology.nodes:
        raise BadInput(f"topology {topology.name} has no computations.", hint="Add one with add().")
    for node in topology.nodes.values():
        _check_node(topology, node)
    for stream in topology.streams.values():
        writers = topology.writers(stream.name)
        if stream.single_writer and len(writers) > 1:
            raise BadInput(
                f"stream {stream.name} takes one writer and has {', '.join(writers)}.",
                hint="Give each its own stream, or declare it without single_writer.",
            )
    topology.order()
    reserved = {log(name) for name in topology.nodes for log in (state_log, dead_log, low_log, batch_log)}
    for name in reserved & topology.streams.keys():
        raise BadInput(f"stream {name} has the name of a log that a computation keeps.", hint="Use another name.")


def _check_node(topology: Topology, node: Node) -> None:
    computation = node.computation
    for local, stream in (*node.inputs.items(), *node.outputs.items()):
        if stream not in topology.streams:
            what = f"{stream} ({local} of {node.name})" if local != stream else f"{stream} of {node.name}"
            error = unknown(stream, topology.streams, "stream", topology.name)
            raise BadInput(f"{error.message} {what} was never declared.", hint=error.hint)
    if not node.inputs and not node.outputs:
        raise BadInput(f"{node.name} reads nothing and writes nothing.", hint="Give it inputs or outputs.")
    for given in (node.inputs, node.outputs):
        if len(set(given.values())) != len(given):
            raise BadInput(f"{node.name} has two names for one stream.", hint="Name each stream once.")
    if computation.batch is not None and not isinstance(computation.batch, Batching):
        raise BadInput(f"{node.name} has batch={computation.batch!r}.", hint='Write Batching(size=100, linger="1s").')
    if not isinstance(node.policy, Policy):
        raise BadInput(f"{node.name} has policy={node.policy!r}.", hint="Write Policy(retry=Retry(attempts=3)).")
    needed = "on_timer" if not node.inputs else "process_batch" if computation.batch is not None else "process"
    if not computation.overrides(needed):
        raise BadInput(f"{node.name} has no {needed}().", hint=f"Define {needed}(), or change its inputs.")
    if isinstance(computation.version, bool) or not isinstance(computation.version, int) or computation.version < 1:
        raise BadInput(f"version {computation.version!r} of {node.name} is not a number.", hint="Use 1 or more.")
    check_states(computation.states, node.name)
    duration(computation.output_delay, name=f"output_delay of {node.name}")
    if computation.idle is not None:
        duration(computation.idle, name=f"idle of {node.name}")
    if isinstance(computation.batch, Columns):
        check_columns(node.name, computation)
        for stream in node.inputs.values():
            value_type(stream, topology.streams[stream].coder)
    _check_declared(topology, node)
    _check_hidden(topology, node)
    node.fresh()


def _check_hidden(topology: Topology, node: Node) -> None:
    """Refuse a declared stream that a chain writes only between its steps: its other readers would get nothing."""
    computation = node.computation
    if not isinstance(computation, chain):
        return
    hidden = (computation.inner.keys() - computation.stored) & topology.streams.keys()
    for stream in sorted(hidden - set(node.outputs.values())):
        raise BadInput(
            f"stream {stream} is declared, and {node.name} writes it only between its steps.",
            hint=f"Write it as well with stored={stream!r}, or leave it out of the topology.",
        )


def _check_declared(topology: Topology, node: Node) -> None:
    """Refuse inputs declared with different numbers of partitions: their keys would never meet."""
    declared = {stream: topology.streams[stream].partitions for stream in node.inputs.values()}
    counts = {stream: count for stream, count in declared.items() if count is not None}
    if node.computation.keeps and len(set(counts.values())) > 1:
        listed = ", ".join(f"{stream} {count}" for stream, count in counts.items())
        raise BadInput(
            f"the inputs of {node.name} can never meet: their numbers of partitions are different ({listed}).",
            hint="Declare them with the same number.",
        )


class ResolvedTopology:
    """A topology on a store: checked, and with the real numbers of partitions."""

    def __init__(
        self, topology: Topology, store: LogStore, *, create: bool = True, writers: Writers | None = None
    ) -> None:
        """Check against the store; then create what is missing. ``writers``: those of the whole topology, if known."""
        check(topology)
        self.topology = topology
        self.order = topology.order()
        self.partitions = {name: self._partitions(store, name) for name in topology.streams}
        self.tasks = {node.name: self._tasks(node) for node in (*self.order, *topology.elsewhere.values())}
        for node in self.order:
            self._check_aligned(node, store)
        former = {} if writers is not None else former_writers(store, topology)
        self.writers = writers or Writers(
            {name: self._reporting(name, former) for name in topology.streams},
            frozenset(name for name in topology.streams if self._is_fed(name)),
            frozenset(former),
        )
        if create:
            self._create(store)
            for node in self.order:
                if has_reports(topology, node):
                    begin_reports(store, topology, node, self.tasks[node.name])
            for name in end_former(store, topology):
                logger.warning("%s left topology %s and still runs; its readers wait for it.", name, topology.name)

    def _partitions(self, store: LogStore, name: str) -> int:
        stream = self.topology.streams[name]
        others = [other for other in stream.as_wide_as if other in self.topology.streams]
        wide = max((self._partitions(store, other) for other in others), default=None)
        if not store.exists(name):
            return wide or stream.partitions or self.topology.partitions
        check_codec(store.settings(name), stream.coder)
        real = store.settings(name).partitions
        if wide is not None and wide != real:
            raise Conflict(
                f"log {name} has {real} copies of a broadcast input for {wide} partitions in {store.name}.",
                hint=f"Delete the log {name} and the groups of {name}; it is filled again from the beginning.",
            )
        if stream.partitions is not None and stream.partitions != real:
            raise Conflict(
                f"stream {name} is declared with {stream.partitions} partitions and has {real} in {store.name}.",
                hint=f"Declare it with {real}, or leave the number out.",
            )
        return real

    def _reporting(self, stream: str, former: dict[str, dict[int, WatermarkReport]]) -> dict[str, int]:
        gone = {
            name: max(report.tasks for report in last.values())
            for name, last in former.items()
            if any(stream in report.ends for report in last.values())
        }
        return gone | {node.name: self.tasks[node.name] for node in self._computing(stream)}

    def _computing(self, stream: str) -> list[Node]:
        return [node for node in self.topology.all_writers(stream) if not node.is_source]

    def _is_fed(self, stream: str) -> bool:
        computing = self._computing(stream)
        return not computing or len(computing) < len(self.topology.all_writers(stream))

    def _tasks(self, node: Node) -> int:
        if node.is_source:
            return max(1, node.concurrency)
        return max(self.partitions[stream] for stream in node.inputs.values())

    def _check_aligned(self, node: Node, store: LogStore) -> None:
        """Refuse inputs with different numbers of partitions: their keys would not meet."""
        if not node.computation.keeps or len(node.inputs) < 2:
            return
        streams = [stream for stream in node.inputs.values() if not self.topology.streams[stream].as_wide_as]
        counts = {stream: self.partitions[stream] for stream in streams}
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{stream} {count}" for stream, count in counts.items())
            raise Conflict(
                f"{node.name} keeps state over inputs of different numbers of partitions: {listed}.",
                hint="Give them the same number; keys would not meet otherwise.",
            )
        ways = {store.settings(stream).partitioner for stream in counts if store.exists(stream)}
        if len(ways) > 1:
            raise Conflict(
                f"{node.name} keeps state over inputs partitioned in different ways: {', '.join(sorted(ways))}.",
                hint="Create the logs with one partitioner.",
            )

    def _create(self, store: LogStore) -> None:
        for name, count in self.partitions.items():
            is_input = not self.topology.all_writers(name)
            known = store.names() if is_input and not store.exists(name) else None
            store.create(name, count)
            if known is not None:
                logger.warning(
                    "topology %s reads the log %s, which was not there in %s; it was created, empty. %s",
                    self.topology.name, name, store.name,
                    f"{did_you_mean(name, known)}Create logs before you start a runner.",
                )  # fmt: skip
        for node in self.topology.elsewhere.values():
            if has_reports(self.topology, node):
                make_low_log(store, node.name)
        for node in self.order:
            if node.computation.keeps:
                make_state_log(store, node.name, self.tasks[node.name])
            if has_reports(self.topology, node):
                make_low_log(store, node.name)
            if node.policy.on_failure == "continue" or node.policy.skip_first:
                store.create(dead_log(node.name), 1)

    def computation(self, store: LogStore, node: Node) -> ResolvedComputation:
        """What the engine needs to know of a computation; its streams have to exist."""
        streams = self.topology.streams
        outputs = {name: (streams[stream], store.settings(stream)) for name, stream in node.outputs.items()}
        return ResolvedComputation(
            node,
            self.topology.name,
            self.tasks[node.name],
            {
                name: InputStream(
                    stream,
                    streams[stream].coder,
                    self.partitions[stream],
                    duration_micros(streams[stream].out_of_order, name="out_of_order"),
                )
                for name, stream in node.inputs.items()
            },
            {
                name: OutputStream(stream.name, stream.coder, settings.partitions, partitioner(settings.partitioner))
                for name, (stream, settings) in outputs.items()
            },
            self.writers,
            reports_time(self.topology, node),
            is_read(self.topology, node),
            store.record_limit,
            store.capabilities.dense,
        )

    def keeping(self) -> list[Node]:
        """The computations that have states or timers."""
        return [node for node in self.order if node.computation.keeps]


def former_writers(store: LogStore, topology: Topology) -> dict[str, dict[int, WatermarkReport]]:
    """Computations that wrote streams of a topology and are not part of it any more, with their last reports.

    What they wrote may still wait to be read, so their reports count up to their last records. A stream that is
    computed in this topology must not be written by another one: its readers could not know what to wait for.
    """
    read = {stream for stream in topology.streams if topology.all_readers(stream)}
    written = {stream for stream in topology.streams if topology.all_writers(stream)}
    known = {low_log(name) for name in (*topology.nodes, *topology.elsewhere)}
    former: dict[str, dict[int, WatermarkReport]] = {}
    for log in store.names():
        if not log.endswith(low_log("")) or log in known:
            continue
        computation = log.removesuffix(low_log(""))
        try:
            last = last_reports(store, computation)
        except Undecodable:
            continue  # another program's log with such a name
        streams = {stream for report in last.values() for stream in report.ends}
        if any(report.topology == topology.name for report in last.values()):
            if streams & read:
                former[computation] = last
        elif any(report.low != END for report in last.values()):
            other = next(iter(last.values())).topology
            _check_inner(topology, computation, streams & read, other)
            if streams & written and any(report.is_read for report in last.values()):
                _refuse(topology, min(streams & written), computation, other)  # it is computed and read there
    return former


def end_former(store: LogStore, topology: Topology) -> list[str]:
    """Mark computations that are no longer part of a topology as ended. Returns those that still run."""
    return [
        name
        for name, last in former_writers(store, topology).items()
        if any(report.low != END for report in last.values()) and not end_reports(store, name, last)
    ]


def _check_inner(topology: Topology, stranger: str, streams: set[str], other: str) -> None:
    """Raise if a computation of another topology writes a stream that is computed in this one."""
    for stream in sorted(streams):
        if any(not node.is_source for node in topology.all_writers(stream)):
            _refuse(topology, stream, stranger, other)


def _refuse(topology: Topology, stream: str, stranger: str, other: str) -> None:
    raise Conflict(
        f"stream {stream} of topology {topology.name} is also written by {stranger} of topology {other}, so "
        "nobody could know how far event time has come in it.",
        hint=f"Let one of them write a stream of its own, and read both; or, if {stranger} is gone for good, delete "
        f"the log {low_log(stranger)}.",
    )

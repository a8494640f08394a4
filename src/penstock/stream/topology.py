"""Topology: the graph of streams and computations; the same object runs on every runner."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from penstock.clock import Duration, duration
from penstock.codec import Codec, codec_for
from penstock.errors import BadInput
from penstock.names import check_name, did_you_mean
from penstock.stream.computation import Computation, Policy, names_of
from penstock.stream.copies import broadcast_copies

Form = Literal["mermaid", "plantuml", "text"]


class Stream(msgspec.Struct, frozen=True):
    """A stream of a topology: a log with the type of its values. ``partitions`` None: as the log has, else the default.

    With ``single_writer`` at most one computation may write it. ``out_of_order`` is how much older than the newest
    record of a partition the next ones may be: the watermarks of its readers stay behind by so much.
    """

    name: str
    type: Any = Any
    partitions: int | None = None
    single_writer: bool = False
    codec: Codec[Any] | None = None
    out_of_order: Duration = "0s"
    as_wide_as: tuple[str, ...] = ()  # it has as many partitions as the widest of these streams

    @property
    def coder(self) -> Codec[Any]:
        """The codec of its values."""
        return self.codec or codec_for(self.type)


class Node(msgspec.Struct, frozen=True):
    """A computation in a topology: its own stream names are mapped to the topology's."""

    name: str
    computation: Computation
    inputs: dict[str, str]
    outputs: dict[str, str]
    concurrency: int
    policy: Policy

    @property
    def is_source(self) -> bool:
        """Whether it reads nothing."""
        return not self.inputs

    def fresh(self) -> Computation:
        """A new computation object, for one partition."""
        try:
            return copy.deepcopy(self.computation)
        except Exception as cause:
            raise BadInput(
                f"computation {self.name} cannot be copied for each partition: {cause}.",
                hint="Open files, locks and connections in init(), not in __init__().",
            ) from cause


class Topology:
    """Streams and computations under one name. Build it with :meth:`stream` and :meth:`add`; runners check it.

    Args:
        name: of the topology
        partitions: for streams that do not exist yet and say nothing themselves
    """

    def __init__(self, name: str, *, partitions: int = 1) -> None:
        """An empty one."""
        self.name = check_name(name, kind="topology")
        if not _is_count(partitions):
            raise BadInput(f"Topology(partitions={partitions!r}) is not a number.", hint="Use 1 or more.")
        self.partitions = partitions
        self.streams: dict[str, Stream] = {}
        self.nodes: dict[str, Node] = {}
        self.elsewhere: dict[str, Node] = {}  # computations that other runners execute

    def stream(
        self,
        name: str,
        type: Any = Any,
        *,
        partitions: int | None = None,
        single_writer: bool = False,
        codec: Codec[Any] | None = None,
        out_of_order: Duration = "0s",
    ) -> Topology:
        """Declare a stream.

        Args:
            name: of the stream, and of its log
            type: of the values
            partitions: how many, if it does not exist yet
            single_writer: refuse a topology in which several computations write it
            codec: how values become bytes; by default by type
            out_of_order: how much earlier than a record's event time one behind it may be

        Returns:
            the topology, so that calls can be chained
        """
        check_name(name, kind="stream")
        if name in self.streams:
            raise BadInput(f"topology {self.name} has a stream {name!r} already.", hint="Declare it once.")
        if partitions is not None and not _is_count(partitions):
            raise BadInput(f"stream {name} cannot have {partitions!r} partitions.", hint="Use 1 or more.")
        duration(out_of_order, name=f"out_of_order of {name}")
        declared = Stream(name, type, partitions, single_writer, codec, out_of_order)
        _ = declared.coder  # a type that cannot be stored is refused here
        self.streams[name] = declared
        return self

    def add(
        self,
        computation: Computation | type[Computation],
        *,
        name: str | None = None,
        streams: Mapping[str, str] | None = None,
        concurrency: int = 1,
        policy: Policy | None = None,
    ) -> Topology:
        """Add a computation.

        Args:
            computation: an object, or a class that takes no arguments
            name: another than its own
            streams: the streams of the topology, by the names that the computation uses
            concurrency: how many instances a runner starts; those beyond the number of partitions are spare. Of a
                source it is the number of partitions. 0 only declares the streams.
            policy: what happens when processing fails; by default the computation's own

        Returns:
            the topology
        """
        step = computation() if isinstance(computation, type) else computation
        if not isinstance(step, Computation):
            raise BadInput(f"{step!r} is not a computation.", hint="Derive from Computation, or use @computation.")
        if name is not None:
            step = copy.copy(step)
            step.name = name
        if not step.name:
            raise BadInput(f"{step!r} has no name.", hint="Give the class a name, or add(…, name=…).")
        check_name(step.name, kind="computation")
        if step.name in self.nodes:
            raise BadInput(
                f"topology {self.name} has a computation {step.name!r} already.", hint="Give add() another name=."
            )
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 0:
            raise BadInput(f"concurrency {concurrency!r} of {step.name} is not a number.", hint="Use 0 or more.")
        inputs, outputs = names_of(step.inputs), names_of(step.outputs)
        mapped = dict(streams or {})
        strange = mapped.keys() - set(inputs) - set(outputs)
        if strange:
            raise BadInput(
                f"{step.name} has no stream {min(strange)!r} to map.", hint=f"It has {', '.join((*inputs, *outputs))}."
            )
        sources = {local: mapped.get(local, local) for local in inputs}
        self._add_copies(step, sources, min(concurrency, 1))
        self.nodes[step.name] = Node(
            step.name, step, sources, {local: mapped.get(local, local) for local in outputs}, concurrency,
            policy or step.policy,
        )  # fmt: skip
        return self

    def _add_copies(self, step: Computation, sources: dict[str, str], concurrency: int) -> None:
        """Let a computation read copies of its broadcast inputs, which have every record in every partition."""
        broadcast = names_of(step.broadcast)
        others = tuple(stream for local, stream in sources.items() if local not in broadcast)
        for local in broadcast:
            if local not in sources:
                raise BadInput(f"{step.name} has no input {local!r} to broadcast.", hint="Name one of its inputs.")
            if not others:
                raise BadInput(
                    f"{step.name} has nothing but broadcast inputs, so there is nothing to share among its instances.",
                    hint="Let it read another input too, or do without broadcast.",
                )
            stream = self._known(sources[local], self.streams, "stream")
            copies = check_name(f"{step.name}.broadcast.{stream.name}", kind="stream")
            self.streams[copies] = Stream(copies, stream.type, codec=stream.codec, as_wide_as=others)
            copier = broadcast_copies(copies, stream.name, copies)
            copier.idle = step.idle
            source = {stream.name: stream.name}
            self.nodes[copies] = Node(copies, copier, source, {copies: copies}, concurrency, copier.policy)
            sources[local] = copies

    def only(self, *computations: str) -> Topology:
        """A topology with the same streams and some of the computations: the others run elsewhere, on any runner.

        Args:
            *computations: their names
        """
        part = Topology(self.name, partitions=self.partitions)
        part.streams = dict(self.streams)
        part.nodes = {name: self._known(name, self.nodes, "computation") for name in computations}
        for name in computations:  # with what copies its broadcast inputs
            part.nodes |= {other: node for other, node in self.nodes.items() if other.startswith(f"{name}.broadcast.")}
        others = {**self.elsewhere, **self.nodes}
        part.elsewhere = {name: node for name, node in others.items() if name not in part.nodes}
        return part

    def check(self) -> Topology:
        """Raise for whatever could not run. Returns the topology."""
        from penstock.stream.validate import check

        check(self)
        return self

    def draw(self, form: Form = "mermaid") -> str:
        """A picture of it: Mermaid, PlantUML or plain text.

        Args:
            form: ``"mermaid"``, ``"plantuml"`` or ``"text"``
        """
        from penstock.stream.draw import draw

        return draw(self, form)

    # --- asking ------------------------------------------------------------------------------------

    def order(self) -> list[Node]:
        """The computations, each after those it depends on; raises for a cycle."""
        ordered: list[Node] = []
        state: dict[str, int] = {}

        def visit(node: Node, way: list[str]) -> None:
            if state.get(node.name) == 2:
                return
            if state.get(node.name) == 1:
                cycle = [*way[way.index(node.name) :], node.name]
                raise BadInput(
                    f"topology {self.name} has a cycle: {' → '.join(cycle)}.",
                    hint="Let one of them write a stream that none before it reads.",
                )
            state[node.name] = 1
            for parent in self.parents_of(node.name):
                visit(self.nodes[parent], [*way, node.name])
            state[node.name] = 2
            ordered.append(node)

        for node in self.nodes.values():
            visit(node, [])
        return ordered

    def writers(self, stream: str) -> list[str]:
        """The computations that write a stream."""
        self._known(stream, self.streams, "stream")
        return [node.name for node in self.nodes.values() if stream in node.outputs.values()]

    def readers(self, stream: str) -> list[str]:
        """The computations that read a stream."""
        self._known(stream, self.streams, "stream")
        return [node.name for node in self.nodes.values() if stream in node.inputs.values()]

    def all_writers(self, stream: str) -> list[Node]:
        """The computations that write a stream, here or elsewhere."""
        everywhere = (*self.nodes.values(), *self.elsewhere.values())
        return [node for node in everywhere if stream in node.outputs.values()]

    def all_readers(self, stream: str) -> list[Node]:
        """The computations that read a stream, here or elsewhere."""
        everywhere = (*self.nodes.values(), *self.elsewhere.values())
        return [node for node in everywhere if stream in node.inputs.values()]

    def parents(self, name: str) -> set[str]:
        """What leads directly to a computation (streams) or to a stream (computations)."""
        if name in self.streams:
            return set(self.writers(name))
        return set(self._known(name, self.nodes, "stream or computation").inputs.values())

    def children(self, name: str) -> set[str]:
        """What a computation (streams) or a stream (computations) leads directly to."""
        if name in self.streams:
            return set(self.readers(name))
        return set(self._known(name, self.nodes, "stream or computation").outputs.values())

    def ancestors(self, name: str) -> set[str]:
        """All streams and computations before it."""
        return self._reached(name, self.parents)

    def descendants(self, name: str) -> set[str]:
        """All streams and computations after it."""
        return self._reached(name, self.children)

    def parents_of(self, computation: str) -> list[str]:
        """The computations whose outputs it reads, in the order they were added."""
        reads = set(self._known(computation, self.nodes, "computation").inputs.values())
        return [node.name for node in self.nodes.values() if reads & set(node.outputs.values())]

    def roots(self) -> set[str]:
        """What nothing leads to: sources, and streams that come from outside."""
        return {name for name in (*self.nodes, *self.streams) if not self.parents(name)}

    def is_source(self, name: str) -> bool:
        """Whether nothing leads to it."""
        return not self.parents(name)

    def is_sink(self, name: str) -> bool:
        """Whether it leads to nothing."""
        return not self.children(name)

    def _reached(self, name: str, step: Any) -> set[str]:
        reached: set[str] = set()
        waiting = list(step(name))
        while waiting:
            reachable = waiting.pop()
            if reachable not in reached:
                reached.add(reachable)
                waiting += step(reachable)
        return reached

    def _known(self, name: str, known: Mapping[str, Any], kind: str) -> Any:
        if name not in known:
            raise unknown(name, known, kind, self.name)
        return known[name]

    def __repr__(self) -> str:
        """Name and size."""
        return f"<topology {self.name}: {len(self.nodes)} computations, {len(self.streams)} streams>"


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1


def unknown(name: str, known: Iterable[str], kind: str, topology: str) -> BadInput:
    """The error for an unknown name."""
    names = list(known)
    return BadInput(
        f"topology {topology} has no {kind} {name!r}.",
        hint=f"{did_you_mean(name, names)}It has {', '.join(names) or 'none'}.",
    )

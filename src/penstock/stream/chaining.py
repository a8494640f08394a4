"""Steps that run as one computation: :class:`chain`; no log lies between them unless one is wanted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from penstock.clock import Micros, duration_micros, from_micros
from penstock.errors import BadInput
from penstock.log.record import Headers, Moment, Record, micros
from penstock.names import did_you_mean
from penstock.scalars import Scalar, canonical_text, scalar_of
from penstock.stream.computation import STOP, Computation, Names, names_of
from penstock.stream.context import SAME, Context
from penstock.stream.operators import (
    FieldFold,
    at_least,
    check_arguments,
    check_streams,
    rekey,
    running_fold,
    set_options,
)
from penstock.stream.state import fresh
from penstock.stream.timers import Timer
from penstock.stream.windows import windowed_fold


class chain(Computation):
    """Runs steps one after the other, for every record: the output of a step goes straight to the steps that read it.

    The streams between the steps are only names: they are not declared in the topology, and nothing is stored there.
    Values are handed on as they are. Inputs are the streams that no step writes, outputs those that no step reads.
    Retries and dead letters are those of the chain, for the record that came in.

    The last step may have states and timers, such as windows and totals; the others may not, and none takes batches.
    Its state is kept under the key of the record that came in, so the steps before it leave the key as it is.

    Args:
        *steps: computations
        stored: streams between the steps that are outputs as well, for other readers; True: all of them
    """

    def __init__(self, name: str, *steps: Computation, stored: Names | Literal[True] = (), **options: Any) -> None:
        """``steps`` in the order in which they read each other."""
        check_arguments(chain, name=name)
        if not steps:
            raise BadInput(f"{name} is a chain without steps.", hint="Give it at least one.")
        for rank, step in enumerate(steps, 1):
            _check_step(name, step, is_last=rank == len(steps))
        self.name = name
        self.steps = steps
        self.last = steps[-1]
        self.states, self.version = self.last.states, self.last.version
        # A fold of one's own may change a value that is in several windows.
        self.shares_values = isinstance(self.last, windowed_fold) and type(self.last.fold) is not FieldFold
        written = _unique(stream for step in steps for stream in names_of(step.outputs))
        read = _unique(stream for step in steps for stream in names_of(step.inputs))
        self.inner = {stream: _readers(steps, stream) for stream in written if stream in read}
        self.inputs = tuple(stream for stream in read if stream not in written)
        self.stored = frozenset(self.inner if stored is True else _checked_stored(name, stored, self.inner))
        self.outputs = tuple(stream for stream in written if stream not in read or stream in self.stored)
        self._check_order()
        self._check_keys()
        self.readers = {stream: _readers(steps, stream) for stream in self.inputs}
        check_streams(self)
        set_options(self, options)
        self.output_delay = at_least(self.output_delay, duration_micros(self.last.output_delay))

    def process(self, record: Record[Any], ctx: Context) -> None:
        """Run the record through every step that reads its stream."""
        for step in self.readers[ctx.stream]:
            step.process(record, ChainContext(self, step, ctx, record, ctx.stream))  # type: ignore[arg-type]

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Only the last step has timers."""
        self.last.on_timer(timer, ctx)

    def upgrade(self, version: int, state: str, key: str, value: Any) -> Any:
        """Only the last step has states."""
        return self.last.upgrade(version, state, key, value)

    def overrides(self, method: str) -> bool:
        """Whether the last step has timers, for the methods that are about them."""
        return self.last.overrides(method) if method in ("on_timer", "upgrade") else super().overrides(method)

    def init(self, ctx: Context) -> None:
        """Call it for every step."""
        for step in self.steps:
            step.init(ctx)

    def destroy(self) -> None:
        """Call it for every step."""
        for step in self.steps:
            step.destroy()

    def _check_order(self) -> None:
        """Refuse a step that reads what it or a later step writes: records would circulate forever."""
        written: set[str] = set()
        for step in self.steps:
            for stream in names_of(step.inputs):
                if stream in self.inner and stream not in written:
                    raise BadInput(
                        f"{step.name} in {self.name} reads {stream}, which no step before it writes.",
                        hint="List the steps in the order in which they read each other.",
                    )
            written.update(names_of(step.outputs))

    def _check_keys(self) -> None:
        """Refuse steps that change keys before one that keeps state: a key's records would be in several partitions."""
        for step in _flat(self.steps[:-1]):
            if self.last.keeps and isinstance(step, rekey):
                raise _changed_key(self, step.name)


class ChainedRecord(msgspec.Struct, frozen=True, eq=False):
    """A record between two steps of a chain; its place is that of the record that came in."""

    given: Any
    key: Any
    time_us: Micros
    added: Headers  # by the steps before
    source: Record[Any]
    copies: bool = False  # for a step that puts the value into several windows, and may change it

    @property
    def value(self) -> Any:
        """What the step before produced."""
        return fresh(self.given) if self.copies else self.given

    @property
    def headers(self) -> Headers:
        """Those of the record that came in, and what steps have added."""
        return {**self.source.headers, **self.added}

    @property
    def payload(self) -> bytes:
        """The value as JSON, for steps that want bytes; bytes are themselves."""
        return self.given if isinstance(self.given, bytes) else msgspec.json.encode(self.given)

    @property
    def time(self) -> datetime:
        """Its timestamp."""
        return from_micros(self.time_us)

    def __getattr__(self, name: str) -> Any:
        """Offset, partition, log and place."""
        return getattr(self.source, name)


class ChainContext:
    """The context of one step for one record: what it produces for the next step is processed at once."""

    def __init__(
        self, owner: chain, step: Computation, ctx: Context, record: Record[Any] | ChainedRecord, stream: str
    ) -> None:
        """``stream`` is the one that the record came from."""
        self._chain = owner
        self._step = step
        self._ctx = ctx
        self.record = record
        self.stream = stream
        outer = ctx if isinstance(ctx, ChainContext) else None
        self.source_key: str = (ctx.own_key or "") if outer is None else outer.source_key  # of the record that came in
        first_key = None if ctx.own_key is None else scalar_of(ctx.own_key) if outer is None else outer.own_key
        self.own_key = record.key if isinstance(record, ChainedRecord) else first_key
        self.source_scalar = first_key if outer is None else outer.source_scalar  # what ``source_key`` stands for

    @property
    def key(self) -> Any:
        """The key of the record at work, or in a step with state the one that it made current."""
        if self._step.keeps:
            return self._ctx.key
        return "" if self.own_key is None else self.own_key

    @key.setter
    def key(self, key: Scalar) -> None:
        if not self._step.keeps:
            raise self._no_state("another key")
        self._ctx.key = key

    def produce(
        self, stream: str, value: Any, *, key: Any = SAME, partition: int | None = None,
        timestamp: Moment | None = None, headers: Headers | None = None,
    ) -> None:  # fmt: skip
        """As :meth:`Context.produce`; for a stream between two steps, call the next."""
        at = self.record.time_us if timestamp is None else micros(timestamp)
        own_key = self.own_key if key is SAME else key
        added = self.record.added if isinstance(self.record, ChainedRecord) else {}
        added = {**added, **headers} if headers else added
        readers = self._chain.inner.get(stream)
        is_kept = readers is not None and self._chain.last in readers and self._chain.last.keeps
        is_source_key = own_key is self.source_scalar  # its text need not be that of a scalar, as "json:" is not
        if is_kept and not is_source_key and _text_of(own_key) != self.source_key:
            raise _changed_key(self._chain, "a step")
        if readers is None or stream in self._chain.stored:
            output = value.given if isinstance(value, ChainedRecord) else value
            out_key = SAME if is_source_key and not isinstance(self._ctx, ChainContext) else own_key
            self._ctx.produce(stream, output, key=out_key, partition=partition, timestamp=at, headers=added or None)
        if readers is None:
            return
        if isinstance(value, Record | ChainedRecord):
            value = value.value
        source = self._ctx.record
        assert source is not None  # noqa: S101 - a chain has no timers
        record = ChainedRecord(value, own_key, at, added, source, is_kept and self._chain.shares_values)
        for step in readers:
            step.process(record, ChainContext(self._chain, step, self._ctx, record, stream))  # type: ignore[arg-type]

    @property
    def time_us(self) -> Micros:
        """The event time of the record at work, in microseconds."""
        return self.record.time_us

    @property
    def time(self) -> datetime:
        """The event time of the record at work."""
        return self.record.time

    @property
    def late(self) -> bool:
        """Whether the record at work is older than the watermark."""
        return self.record.time_us < self._ctx.low

    def __getattr__(self, name: str) -> Any:
        """Watermark, partition, clock and so on are those of the computation; state is that of the last step."""
        if name in _OF_STATE and not self._step.keeps:
            raise self._no_state(name)
        return getattr(self._ctx, name)

    def _no_state(self, wanted: str) -> BadInput:
        return BadInput(
            f"{self._step.name} in {self._chain.name} asked for {wanted}, and has no state or timers.",
            hint="Only the last step of a chain may have some: declare them there.",
        )


_OF_STATE = frozenset({"value", "list", "map", "windows", "set_timer", "set_timer_after", "clear_timer", "timer"})


def _text_of(key: Any) -> str:
    """A key as text, as it is in a log; none is the same as an empty one."""
    if key is None:
        return ""
    return key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else canonical_text(key)


def _flat(steps: Iterable[Computation]) -> Iterator[Computation]:
    """Steps, and those of chains among them."""
    for step in steps:
        if isinstance(step, chain):
            yield from _flat(step.steps)
        else:
            yield step


def _changed_key(owner: chain, step: str) -> BadInput:
    return BadInput(
        f"{step} before {owner.last.name} in {owner.name} changes the key, under which {owner.last.name} keeps state.",
        hint="End the chain with the step that changes the key: its stream has to be stored, so that keys meet.",
    )


def _check_step(name: str, step: object, *, is_last: bool) -> None:
    if not isinstance(step, Computation):
        raise BadInput(f"{step!r} in {name} is not a computation.", hint="Give ready-made steps, or @computation.")
    takes_records = isinstance(step, running_fold) or (step.batch is None and step.overrides("process"))
    if not takes_records or step.overrides("on_drain") or getattr(step, "folds_records", False):
        raise BadInput(
            f"{step.name} in {name} works on more than the values of single records.",
            hint="Add it to the topology by itself, after the chain.",
        )
    if step.keeps and not is_last:
        raise BadInput(
            f"{step.name} in {name} keeps state, and is not the last step.",
            hint="End the chain with it, and let another computation read its output.",
        )
    if step.keeps and len(names_of(step.inputs)) > 1:
        raise BadInput(
            f"{step.name} in {name} keeps state and has several inputs.",
            hint="Add it to the topology by itself, after the chain.",
        )
    if step.policy is not STOP:
        raise BadInput(f"{step.name} in {name} has a policy of its own.", hint="Give the policy to the chain.")
    if step.idle != Computation.idle:
        raise BadInput(f"{step.name} in {name} has idle= of its own.", hint="Give idle= to the chain.")
    if step.broadcast:
        raise BadInput(
            f"{step.name} in {name} has a broadcast input.", hint="Add it to the topology by itself, before the chain."
        )
    if not is_last and duration_micros(step.output_delay):
        raise BadInput(
            f"{step.name} in {name} has an output_delay: the steps behind it would take its records for late.",
            hint="End the chain with it, so that the readers of its stream wait.",
        )


def _checked_stored(name: str, stored: Names, inner: Mapping[str, Any]) -> tuple[str, ...]:
    for stream in names_of(stored):
        if stream not in inner:
            raise BadInput(
                f"{name} cannot store {stream!r}: it is not a stream between its steps.",
                hint=f"{did_you_mean(stream, inner)}Between its steps are {', '.join(inner) or 'none'}.",
            )
    return names_of(stored)


def _readers(steps: Iterable[Computation], stream: str) -> tuple[Computation, ...]:
    return tuple(step for step in steps if stream in names_of(step.inputs))


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))

"""Ready-made computations: map, filter, rekey, deduplicate, rates and running totals.

Windows are in :mod:`penstock.stream.windows`, joins in :mod:`penstock.stream.joins`.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Unpack

import msgspec

from penstock.clock import Duration, Micros, duration_micros
from penstock.codec import codec_for
from penstock.errors import BadInput, WrongType
from penstock.log.record import Record
from penstock.names import check_name, did_you_mean, is_name
from penstock.policy import Batching, Rate
from penstock.scalars import Scalar
from penstock.stream.computation import OPTIONS, Computation, Names, OperatorOptions, names_of
from penstock.stream.context import Context
from penstock.stream.state import Map, Value, fresh
from penstock.stream.timers import Timer

FUNCTIONS = ("function", "fold")
OPTIONAL_FUNCTIONS = ("by", "joiner", "key", "merge", "of", "result")


def check_arguments(operator: Callable[..., Any], **arguments: Any) -> None:
    """Refuse arguments in the wrong order: names and streams are text, functions are callable.

    ``arguments`` have the operator's own names.
    """
    for argument, value in arguments.items():
        if argument in FUNCTIONS or argument in OPTIONAL_FUNCTIONS:
            good = callable(value) or (value is None and argument in OPTIONAL_FUNCTIONS)
            wanted = "a function"
        else:
            good = is_name(value)
            wanted = "a name" if argument == "name" else "the name of a stream"
        if not good:
            raise BadInput(
                f"{operator.__name__} was given {value!r} as {argument}, which is not {wanted}.",
                hint=f"Its arguments are {_signature(operator)}, in this order.",
            )


def _signature(operator: Callable[..., Any]) -> str:
    """The positional arguments of an operator, for messages."""
    parameters = inspect.signature(operator).parameters.values()
    placed = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    return f"{operator.__name__}({', '.join(placed)}, …)"


def check_streams(operator: Computation) -> None:
    """Refuse an operator that writes a stream it reads: it would feed itself without end."""
    for stream in operator.inputs:
        if stream in operator.outputs:
            raise BadInput(
                f"{operator.name} reads {stream} and writes it, which would never end.",
                hint="Let it write a stream of another name.",
            )


def check_initial(name: str, initial: Any, accumulator: Any) -> None:
    """Refuse an initial value that is not of the accumulator's type; None means that there is none yet."""
    if initial is None or accumulator is Any:
        return
    # As in type hints, a whole number will do for a float.
    value = float(initial) if accumulator is float and type(initial) is int else initial
    try:
        codec_for(accumulator).encode(value)
    except WrongType as cause:
        raise WrongType(
            f"{name} begins with initial={initial!r}, which its accumulator cannot hold: {cause.message}",
            hint="Give an initial of the accumulator's type, or another accumulator=.",
        ) from cause


def set_options(computation: Computation, options: Mapping[str, Any]) -> None:
    """The options that every ready-made computation takes."""
    for option, value in options.items():
        if option not in OPTIONS or option in ("name", "inputs", "outputs", "broadcast", "states", "batch"):
            takes = [*inspect.signature(type(computation).__init__).parameters][1:-1]
            takes += ["policy", "idle", "output_delay"]
            hint = f"{did_you_mean(option, takes)}It takes {', '.join(takes)}."
            if option == "lateness":
                hint = "Declare the disorder where it is: topology.stream(…, out_of_order=…)."
            raise BadInput(f"option {option!r} of {computation.name} is unknown.", hint=hint)
        setattr(computation, option, value)


def at_least(delay: Duration, least: Micros) -> timedelta:
    """An ``output_delay`` that is no shorter than what the computation needs."""
    return timedelta(microseconds=max(duration_micros(delay, name="output_delay"), least))


class SideOutput(msgspec.Struct, frozen=True):
    """What a function of an operator gives instead of a value, to send this one to another output.

    That is one of those named in ``side_outputs`` of the operator. Key and time are those of the result.
    """

    stream: str
    value: Any


def produce_result(ctx: Context, to: str, value: Any, **place: Any) -> None:
    """Produce a function's result: to the operator's output, or to the side output that it names."""
    if value.__class__ is SideOutput:
        to, value = value.stream, value.value
    ctx.produce(to, value, **place)


class Operator(Computation):
    """A ready-made computation from one stream to others.

    Throughout:
        name: of the computation
        source: the stream it reads
        to: the stream it writes
        left, right: the streams it reads
        side_outputs: streams that a :class:`SideOutput` may name
        function: of the value
        window: :class:`Tumbling`, :class:`Sliding` or :class:`Session`
        of: takes the value to be computed with out of the record's; the name of a field or a function
        accumulator: the type of the values so far: ``fold`` gets them back with it; without one they are plain JSON
        initial: the first value so far
        fold: ``fold(value so far, record's value)``
        late: the stream of records that come too late; nowhere by default
        allowed_lateness: how long after its end a window still takes records
        how: whose records come without a partner: ``"inner"``: none; ``"left"``, ``"right"``, ``"outer"``
        joiner: makes the result of both values; by default a pair of them
        **options: ``policy``, ``idle`` and ``output_delay`` of a :class:`Computation`
    """

    def __init__(self, name: str, source: str, to: Iterable[str], options: Mapping[str, Any]) -> None:
        """Store the names of the computation and its streams."""
        self.name = name
        self.inputs = (source,)
        self.outputs = tuple(dict.fromkeys(to))
        for stream in self.outputs:
            check_name(stream, kind="stream")
        check_streams(self)
        set_options(self, options)
        self.to = self.outputs[0]


class map_values(Operator):
    """Apply a function to every value; key, time and headers stay.

    A :class:`SideOutput` that it gives goes to one of the ``side_outputs`` instead.
    """

    def __init__(
        self, name: str, function: Callable[[Any], Any], source: str, to: str, *, side_outputs: Names = (),
        **options: Unpack[OperatorOptions],
    ) -> None:  # fmt: skip
        """From ``source`` to ``to``."""
        check_arguments(map_values, name=name, function=function, source=source, to=to)
        super().__init__(name, source, (to, *names_of(side_outputs)), options)
        self.function = function

    def process(self, record: Record[Any], ctx: Context) -> None:
        """Produce the function's result."""
        produce_result(ctx, self.to, self.function(record.value))


class filter_values(Operator):
    """Pass on the records for whose value a function is true.

    Args:
        otherwise: the stream of the others; nowhere by default
    """

    def __init__(
        self, name: str, function: Callable[[Any], object], source: str, to: str, *, otherwise: str | None = None,
        **options: Unpack[OperatorOptions],
    ) -> None:  # fmt: skip
        """From ``source`` to ``to``."""
        check_arguments(
            filter_values,
            name=name,
            function=function,
            source=source,
            to=to,
            otherwise=to if otherwise is None else otherwise,
        )
        super().__init__(name, source, (to,) if otherwise is None else (to, otherwise), options)
        self.function = function
        self.otherwise = otherwise

    def process(self, record: Record[Any], ctx: Context) -> None:
        """Pass the record on, or send it to ``otherwise``."""
        if self.function(record.value):
            ctx.produce(self.to, record)
        elif self.otherwise is not None:
            ctx.produce(self.otherwise, record)


class flat_map(Operator):
    """All values that a function gives for each value, in order.

    Those of them that are a :class:`SideOutput` go to one of the ``side_outputs`` instead.

    Args:
        function: gives an iterable of values
    """

    def __init__(
        self, name: str, function: Callable[[Any], Iterable[Any]], source: str, to: str, *, side_outputs: Names = (),
        **options: Unpack[OperatorOptions],
    ) -> None:  # fmt: skip
        """From ``source`` to ``to``."""
        check_arguments(flat_map, name=name, function=function, source=source, to=to)
        super().__init__(name, source, (to, *names_of(side_outputs)), options)
        self.function = function

    def process(self, record: Record[Any], ctx: Context) -> None:
        """Produce every value that the function gives."""
        for value in self.function(record.value):
            produce_result(ctx, self.to, value)


class rekey(Operator):
    """The same records under another key: what has the same key comes together.

    Args:
        function: finds the key in the value
    """

    def __init__(
        self, name: str, function: Callable[[Any], Scalar], source: str, to: str, **options: Unpack[OperatorOptions]
    ) -> None:
        """From ``source`` to ``to``."""
        check_arguments(rekey, name=name, function=function, source=source, to=to)
        super().__init__(name, source, (to,), options)
        self.function = function

    def process(self, record: Record[Any], ctx: Context) -> None:
        """Produce the record under its new key."""
        ctx.produce(self.to, record, key=self.function(record.value))


class deduplicate(Operator):
    """The first record of every id per key.

    Args:
        within: of event time: repetitions in it are dropped
        by: finds the id in the value; by default the whole payload
    """

    states = (Map("seen", int),)

    def __init__(
        self, name: str, source: str, to: str, *, within: Duration, by: Callable[[Any], str] | None = None,
        **options: Unpack[OperatorOptions],
    ) -> None:  # fmt: skip
        """From ``source`` to ``to``."""
        check_arguments(deduplicate, name=name, source=source, to=to, by=by)
        super().__init__(name, source, (to,), options)
        self.by = by
        self.within: Micros = duration_micros(within, name="within")

    def process(self, record: Record[Any], ctx: Context) -> None:
        """Pass the record on if its id is new."""
        if self.by is None:
            id_ = hashlib.blake2b(record.payload, digest_size=16).hexdigest()
        else:
            id_ = str(self.by(record.value))
        seen = ctx.map("seen")
        first = seen.get(id_)
        if first is not None and abs(record.time_us - first) <= self.within:
            return
        # Of repetitions out of order the latest counts: later repetitions are nearest to it.
        latest = record.time_us if first is None else max(first, record.time_us)
        seen.set(id_, latest)
        ctx.set_timer(latest + self.within + 1, id_)
        ctx.produce(self.to, record)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Forget an id."""
        ctx.map("seen").delete(timer.name)


class rate_limit(Operator):
    """At most so many records per key, counted in event time.

    Periods are aligned: a minute begins with the full minute. A record that comes after the end of its period is over.

    Args:
        rate: such as ``"10/m"``
        over: the stream of the others; nowhere by default
    """

    states = (Map("counts", int),)

    def __init__(
        self,
        name: str,
        source: str,
        to: str,
        rate: str | Rate,
        *,
        over: str | None = None,
        **options: Unpack[OperatorOptions],
    ) -> None:
        """From ``source`` to ``to``."""
        check_arguments(rate_limit, name=name, source=source, to=to, over=to if over is None else over)
        super().__init__(name, source, (to,) if over is None else (to, over), options)
        self.rate = Rate.read(rate)
        if not self.rate.count:
            raise BadInput(f"{name} has no rate.", hint='Write it as "10/m".')
        self.over = over

    def process(self, record: Record[Any], ctx: Context) -> None:
        """Pass the record on if its period is not full."""
        begin = record.time_us - record.time_us % self.rate.period
        counts = ctx.map("counts")
        used = counts.get(str(begin), 0)
        if begin + self.rate.period <= ctx.low:
            used = self.rate.count  # its period has ended and is not counted any more
        if used < self.rate.count:
            counts.set(str(begin), used + 1)
            ctx.set_timer(begin + self.rate.period, str(begin))
            ctx.produce(self.to, record)
        elif self.over is not None:
            ctx.produce(self.over, record)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """Forget the count of a period that has ended."""
        ctx.map("counts").delete(timer.name)


class latest(Operator):
    """The newest value per key, by event time; an older one that comes later changes nothing."""

    states = (Value("time", int),)

    def __init__(self, name: str, source: str, to: str, **options: Unpack[OperatorOptions]) -> None:
        """From ``source`` to ``to``."""
        check_arguments(latest, name=name, source=source, to=to)
        super().__init__(name, source, (to,), options)

    def process(self, record: Record[Any], ctx: Context) -> None:
        """Pass on what is not older than what was passed on before."""
        time = ctx.value("time")
        last = time.get()
        if last is None or record.time_us >= last:
            time.set(record.time_us)
            ctx.produce(self.to, record)


# --- folds: a runner that knows them may compute them in its own way --------------------------------------

Of = Callable[[Any], Any]


def count_record(count: int, _value: Any) -> int:
    """Count one more record, whatever its value is."""
    return count + 1


def plus(value: Any, other: Any) -> Any:
    """Add two counts or sums."""
    return value + other


def smaller(value: Any, other: Any) -> Any:
    """The smaller one; there may be none yet."""
    return other if value is None else value if other is None else min(value, other)


def larger(value: Any, other: Any) -> Any:
    """The larger one; there may be none yet."""
    return other if value is None else value if other is None else max(value, other)


class FieldFold:
    """A fold over what ``of`` takes out of every value, or over the values themselves."""

    def __init__(self, combine: Callable[[Any, Any], Any], of: Of | None, *, approx: bool = False) -> None:
        """``combine`` makes one of two; ``approx``: floats may be combined in any order."""
        self.combine = combine
        self.of = of
        self.approx = approx

    def __call__(self, held: Any, value: Any) -> Any:
        """Fold in one more value."""
        return self.combine(held, value if self.of is None else self.of(value))


# --- running totals -----------------------------------------------------------------------------------------

TOTAL = "total"  # the state


class running_fold(Operator):
    """One value per key, over all of its records."""

    batch = Batching(1_000, timedelta(milliseconds=20))

    def __init__(
        self,
        name: str,
        source: str,
        to: str,
        *,
        initial: Any,
        fold: Callable[[Any, Any], Any],
        accumulator: Any = Any,
        **options: Unpack[OperatorOptions],
    ) -> None:
        """From ``source`` to ``to``."""
        check_arguments(running_fold, name=name, source=source, to=to, fold=fold)
        super().__init__(name, source, (to,), options)
        check_initial(name, initial, accumulator)
        self.states = (Value(TOTAL, accumulator),)
        self.initial = initial
        self.fold = fold

    def process(self, record: Record[Any], ctx: Context) -> None:
        """Fold one record: the last step of a chain gets them one by one."""
        total = ctx.value(TOTAL)
        held = total.get(None)
        value = self.fold(fresh(self.initial) if held is None else held, record.value)
        total.set(value)
        ctx.produce(self.to, value)

    def process_batch(self, records: list[Record[Any]], ctx: Context) -> None:
        """Fold all records, then produce the totals, each at the time of its last record."""
        total, fold = ctx.value(TOTAL), self.fold
        totals: dict[str | None, Any] = {}
        last: dict[str, Record[Any]] = {}
        for record in records:
            key = record.key or ""
            if key not in last:  # the state of a key is touched twice, however many records it has
                ctx.use(record)
                totals[key] = total.get(None)
            held = totals[key]
            totals[key] = fold(fresh(self.initial) if held is None else held, record.value)
            last[key] = record
        for key, record in last.items():
            ctx.use(record)
            total.set(totals[key])
            ctx.produce(self.to, totals[key])


def running_count(name: str, source: str, to: str, **options: Unpack[OperatorOptions]) -> running_fold:
    """How many records each key has had."""
    check_arguments(running_count, name=name, source=source, to=to)
    return running_fold(name, source, to, initial=0, fold=count_record, **options)


def running_sum(
    name: str, source: str, to: str, *, of: Of | None = None, approx: bool = False, **options: Unpack[OperatorOptions]
) -> running_fold:
    """The sum of the values, or of what ``of`` takes out of them.

    Args:
        approx: floats may be added in any order, which is faster on Spark; the last digits are as they come
    """
    check_arguments(running_sum, name=name, source=source, to=to, of=of)
    return running_fold(name, source, to, initial=0, fold=FieldFold(plus, of, approx=approx), **options)


def running_min(
    name: str, source: str, to: str, *, of: Of | None = None, **options: Unpack[OperatorOptions]
) -> running_fold:
    """The least of the values, or of what ``of`` takes out of them."""
    check_arguments(running_min, name=name, source=source, to=to, of=of)
    return running_fold(name, source, to, initial=None, fold=FieldFold(smaller, of), **options)


def running_max(
    name: str, source: str, to: str, *, of: Of | None = None, **options: Unpack[OperatorOptions]
) -> running_fold:
    """The greatest of the values, or of what ``of`` takes out of them."""
    check_arguments(running_max, name=name, source=source, to=to, of=of)
    return running_fold(name, source, to, initial=None, fold=FieldFold(larger, of), **options)

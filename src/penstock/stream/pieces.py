"""Ready-made computations: map, filter, flat_map, rekey, deduplicate, rate_limit."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from penstock.clock import Duration, Micros, duration_micros
from penstock.codec import codec_for
from penstock.errors import BadInput, WrongType
from penstock.log.record import Record
from penstock.names import is_name
from penstock.policy import Rate
from penstock.stream.computation import OPTIONS, Computation
from penstock.stream.context import Context
from penstock.stream.state import Map, Value
from penstock.stream.timers import Timer

FUNCTIONS = ("function", "fold", "joiner")
OPTIONAL_FUNCTIONS = ("by", "merge", "of")


def check_arguments(piece: Callable[..., Any], **arguments: Any) -> None:
    """Refuse arguments of a piece that were given in the wrong order: names and streams are text, functions callable.

    ``arguments`` go by the names that the piece has for them.
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
                f"{piece.__name__} was given {value!r} as {argument}, which is not {wanted}.",
                hint=f"Its arguments are {_signature(piece)}, in this order.",
            )


def _signature(piece: Callable[..., Any]) -> str:
    """How a piece is written: what goes by its place."""
    parameters = inspect.signature(piece).parameters.values()
    placed = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    return f"{piece.__name__}({', '.join(placed)}, …)"


def check_streams(piece: Computation) -> None:
    """Refuse a piece that writes a stream it reads: it would feed itself without end."""
    for stream in piece.inputs:
        if stream in piece.outputs:
            raise BadInput(
                f"{piece.name} reads {stream} and writes it, which would never end.",
                hint="Let it write a stream of another name.",
            )


def check_initial(name: str, initial: Any, accumulator: Any) -> None:
    """Refuse a value to begin with that is not of the accumulator's type; None means that there is none yet."""
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


def set_options(computation: Computation, options: dict[str, Any]) -> None:
    """The options that every ready-made computation takes."""
    for option, value in options.items():
        if option not in OPTIONS or option in ("name", "inputs", "outputs", "states", "batch"):
            raise BadInput(f"option {option!r} of {computation.name} is unknown.", hint="Use policy, lateness or idle.")
        setattr(computation, option, value)


class Piece(Computation):
    """A ready-made computation from one stream to others; ``options`` are those of a :class:`Computation`."""

    def __init__(self, name: str, source: str, to: Iterable[str], options: dict[str, Any]) -> None:
        """Named and placed."""
        self.name = name
        self.inputs = (source,)
        self.outputs = tuple(dict.fromkeys(to))
        check_streams(self)
        set_options(self, options)
        self.to = self.outputs[0]


class map_values(Piece):
    """What ``function`` makes of every value; key, time and headers stay."""

    def __init__(self, name: str, function: Callable[[Any], Any], source: str, to: str, **options: Any) -> None:
        """From ``source`` to ``to``."""
        check_arguments(map_values, name=name, function=function, source=source, to=to)
        super().__init__(name, source, (to,), options)
        self.function = function

    def process(self, record: Record[Any], ctx: Context) -> None:
        """One to one."""
        ctx.produce(self.to, self.function(record.value))


class filter_values(Piece):
    """The records whose value ``function`` finds true; the others to ``otherwise``, if that is named."""

    def __init__(
        self, name: str, function: Callable[[Any], object], source: str, to: str, *, otherwise: str | None = None,
        **options: Any,
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
        """One to one or none."""
        if self.function(record.value):
            ctx.produce(self.to, record)
        elif self.otherwise is not None:
            ctx.produce(self.otherwise, record)


class flat_map(Piece):
    """All values that ``function`` gives for each value, in order."""

    def __init__(
        self, name: str, function: Callable[[Any], Iterable[Any]], source: str, to: str, **options: Any
    ) -> None:
        """From ``source`` to ``to``."""
        check_arguments(flat_map, name=name, function=function, source=source, to=to)
        super().__init__(name, source, (to,), options)
        self.function = function

    def process(self, record: Record[Any], ctx: Context) -> None:
        """One to many."""
        for value in self.function(record.value):
            ctx.produce(self.to, value)


class rekey(Piece):
    """The same records under the key that ``function`` finds in the value: what has the same key comes together."""

    def __init__(self, name: str, function: Callable[[Any], str | None], source: str, to: str, **options: Any) -> None:
        """From ``source`` to ``to``."""
        check_arguments(rekey, name=name, function=function, source=source, to=to)
        super().__init__(name, source, (to,), options)
        self.function = function

    def process(self, record: Record[Any], ctx: Context) -> None:
        """One to one, to another partition perhaps."""
        ctx.produce(self.to, record, key=self.function(record.value))


class deduplicate(Piece):
    """The first record of every id per key; repetitions within ``within`` of event time are dropped.

    The id is what ``by`` makes of the value, by default the whole payload.
    """

    states = (Map("seen", int),)

    def __init__(
        self, name: str, source: str, to: str, *, within: Duration, by: Callable[[Any], str] | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        """From ``source`` to ``to``."""
        check_arguments(deduplicate, name=name, source=source, to=to, by=by)
        super().__init__(name, source, (to,), options)
        self.by = by
        self.within: Micros = duration_micros(within, name="within")

    def process(self, record: Record[Any], ctx: Context) -> None:
        """Pass it on if its id is new."""
        if self.by is None:
            id_ = hashlib.blake2b(record.payload, digest_size=16).hexdigest()
        else:
            id_ = str(self.by(record.value))
        seen = ctx.map("seen")
        first = seen.get(id_)
        if first is not None and abs(record.time_us - first) <= self.within:
            return
        # Of repetitions out of order the latest counts: it is the one that others will be near to.
        latest = record.time_us if first is None else max(first, record.time_us)
        seen.set(id_, latest)
        ctx.set_timer(latest + self.within + 1, id_)
        ctx.produce(self.to, record)

    def on_timer(self, timer: Timer, ctx: Context) -> None:
        """An id is forgotten."""
        ctx.map("seen").delete(timer.name)


class rate_limit(Piece):
    """At most ``rate`` records per key, such as ``"10/m"``, counted in event time; the others to ``over`` or nowhere.

    Periods are aligned: a minute begins with the full minute. A record that comes after the end of its period is over.
    """

    states = (Map("counts", int),)

    def __init__(
        self, name: str, source: str, to: str, rate: str | Rate, *, over: str | None = None, **options: Any
    ) -> None:
        """From ``source`` to ``to``."""
        check_arguments(rate_limit, name=name, source=source, to=to, over=to if over is None else over)
        super().__init__(name, source, (to,) if over is None else (to, over), options)
        self.rate = Rate.read(rate)
        if not self.rate.count:
            raise BadInput(f"{name} has no rate.", hint='Write it as "10/m".')
        self.over = over

    def process(self, record: Record[Any], ctx: Context) -> None:
        """Pass it on if its period is not full."""
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
        """A period has ended."""
        ctx.map("counts").delete(timer.name)


class latest(Piece):
    """The newest value per key, by event time; an older one that comes later changes nothing."""

    states = (Value("time", int),)

    def __init__(self, name: str, source: str, to: str, **options: Any) -> None:
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

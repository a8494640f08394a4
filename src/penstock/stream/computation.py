"""Computation: a named step over streams, as a class or out of a function; its policy."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypedDict, Unpack, overload

import msgspec

from penstock.clock import Duration
from penstock.errors import BadInput
from penstock.log.record import Record
from penstock.policy import Batching, Retry
from penstock.stream.state import Declared
from penstock.stream.timers import Timer

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from penstock.stream.context import Context

    # A computation that writes plain `Computation` leaves the types of its records open.
    In = TypeVar("In", default=Any)
    Out = TypeVar("Out", default=Any)
else:
    In = typing.TypeVar("In")
    Out = typing.TypeVar("Out")

Names = str | Sequence[str]


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to a record or timer whose processing fails.

    It is tried again as ``retry`` says, each time from the state before it and without the outputs of the failed
    attempt. When the attempts are used up, ``stop`` ends the instance and leaves the record unread; ``continue`` skips
    it and puts it into the log ``<computation>.dead`` unless ``dead_letters`` is False. The first
    ``skip_first`` failures of an instance are always skipped: a way past a known bad record.
    """

    retry: Retry = Retry(attempts=1)
    on_failure: Literal["stop", "continue"] = "stop"
    dead_letters: bool = True
    skip_first: int = 0

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        if not isinstance(self.retry, Retry):
            raise BadInput(f"Policy(retry={self.retry!r}) is not a policy.", hint="Write Retry(attempts=3).")
        if self.on_failure not in ("stop", "continue"):
            raise BadInput(f"on_failure={self.on_failure!r} is unknown.", hint="Use 'stop' or 'continue'.")
        if not isinstance(self.skip_first, int) or self.skip_first < 0:
            raise BadInput(f"skip_first={self.skip_first!r} is not a number.", hint="Use 0 or more.")


STOP = Policy()
CONTINUE = Policy(on_failure="continue")


class Computation(Generic[In, Out]):
    """A named step: reads the streams ``inputs``, writes ``outputs``, keeps ``states`` per key.

    Every partition of the inputs is served by one object of its own, made as a deep copy of the one in the topology;
    what it keeps in attributes is lost with the process, what it keeps in states and timers is not. Records of one key
    come to the same object, in order. A computation without inputs is a source: it lives by its timers.

    Inputs named in ``broadcast`` are read by every instance as a whole: each of their records reaches all of them.

    The names in ``inputs`` and ``outputs`` are those the computation uses; a topology may map them to other streams.
    ``idle`` is how long an input from outside is waited for at its end (None: without end), ``output_delay`` how much
    older than the watermark outputs may be.
    Raise ``version`` when states change their shape, and override :meth:`upgrade`. ``Computation[In, Out]`` tells a
    type checker of which types the values of its inputs and outputs are.

    Throughout:
        ctx: output, state, timers, and what is at work
        record: with key, value and event time
        records: of one partition, in order
        timer: with its name and time
    """

    name: str = ""
    inputs: Names = ()
    outputs: Names = ()
    broadcast: Names = ()
    states: Sequence[Declared[Any]] = ()
    version: int = 1
    idle: Duration | None = "10s"
    output_delay: Duration = "0s"
    policy: Policy = STOP
    batch: Batching | None = None

    def init(self, ctx: Context[In, Out]) -> None:
        """Called when a partition is taken up, with its state restored; the key is empty here."""

    def process(self, record: Record[In], ctx: Context[In, Out]) -> object:
        """Process one record; ``ctx.stream`` is its input."""
        raise NotImplementedError

    def process_batch(self, records: list[Record[In]], ctx: Context[In, Out]) -> object:
        """Process several records of one partition. Called instead of :meth:`process` if ``batch`` is set.

        No key is current; :meth:`Context.use` sets the key of a record.
        """
        raise NotImplementedError

    def on_timer(self, timer: Timer, ctx: Context[In, Out]) -> object:
        """Called when a timer fires; its key is current."""
        raise NotImplementedError

    def on_drain(self, ctx: Context[In, Out]) -> None:
        """Called once per partition when the input has ended: the last chance to produce. The key is empty."""

    def destroy(self) -> None:
        """Called when the partition is given back."""

    def upgrade(self, version: int, state: str, key: str, value: Any) -> Any:
        """Convert a stored value of an older version; None drops it.

        Args:
            version: that the value was stored under
            state: its name
            key: whose value
            value: as it was stored
        """
        raise NotImplementedError

    # --- what the runner and the checks ask ----------------------------------------------------------

    def overrides(self, method: str) -> bool:
        """Whether the computation overrides a method."""
        return getattr(type(self), method) is not getattr(Computation, method)

    @property
    def keeps(self) -> bool:
        """Whether its checkpoints have something to store: states or timers."""
        return bool(self.states) or self.overrides("on_timer")

    def __repr__(self) -> str:
        """Its name."""
        return f"<computation {self.name or type(self).__name__}>"


OnTimer = Callable[[Timer, "Context[In, Out]"], object]
Process = Callable[[Record[In], "Context[In, Out]"], object] | Callable[[list[Record[In]], "Context[In, Out]"], object]


class FunctionComputation(Computation[In, Out]):
    """A computation made of functions; what :func:`computation` gives."""

    def __init__(self, process: Process[In, Out] | None = None, **options: Any) -> None:
        """``options`` are the attributes of :class:`Computation`."""
        for option, value in options.items():
            if option not in OPTIONS:
                raise BadInput(f"computation option {option!r} is unknown.", hint=f"Known: {', '.join(OPTIONS)}.")
            setattr(self, option, value)
        self._process = process
        self._on_timer: OnTimer[In, Out] | None = None
        self._on_drain: Callable[[Context[In, Out]], object] | None = None
        self._init: Callable[[Context[In, Out]], object] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> FunctionComputation[In, Out]:
        """Share the functions: they hold no state of an object."""
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def timer(self, function: OnTimer[In, Out]) -> OnTimer[In, Out]:
        """Decorator: call this for timers."""
        self._on_timer = function
        return function

    def drain(self, function: Callable[[Context[In, Out]], object]) -> Callable[[Context[In, Out]], object]:
        """Decorator: call this when the input has ended."""
        self._on_drain = function
        return function

    def start(self, function: Callable[[Context[In, Out]], object]) -> Callable[[Context[In, Out]], object]:
        """Decorator: call this when a partition is taken up."""
        self._init = function
        return function

    def overrides(self, method: str) -> bool:
        """Whether a function was given for a method."""
        given: dict[str, Any] = {
            "process": self._process if self.batch is None else None,
            "process_batch": self._process if self.batch is not None else None,
            "on_timer": self._on_timer,
            "on_drain": self._on_drain,
            "init": self._init,
        }
        return given[method] is not None if method in given else super().overrides(method)

    def init(self, ctx: Context[In, Out]) -> None:
        """Call the function given."""
        if self._init is not None:
            self._init(ctx)

    def process(self, record: Record[In], ctx: Context[In, Out]) -> object:
        """Call the function given."""
        assert self._process is not None  # noqa: S101 - checked with the topology
        return self._process(record, ctx)  # type: ignore[arg-type]

    def process_batch(self, records: list[Record[In]], ctx: Context[In, Out]) -> object:
        """Call the function given."""
        assert self._process is not None  # noqa: S101 - checked with the topology
        return self._process(records, ctx)  # type: ignore[arg-type]

    def on_timer(self, timer: Timer, ctx: Context[In, Out]) -> object:
        """Call the function given."""
        assert self._on_timer is not None  # noqa: S101 - timers cannot be set without it
        return self._on_timer(timer, ctx)

    def on_drain(self, ctx: Context[In, Out]) -> None:
        """Call the function given."""
        if self._on_drain is not None:
            self._on_drain(ctx)


OPTIONS = (
    "name", "inputs", "outputs", "broadcast", "states", "version", "idle", "output_delay", "policy", "batch",
)  # fmt: skip


class ComputationOptions(TypedDict, total=False):
    """The options of a computation besides its name and function; see :class:`Computation`."""

    inputs: Names
    outputs: Names
    broadcast: Names
    states: Sequence[Declared[Any]]
    version: int
    idle: Duration | None
    output_delay: Duration
    policy: Policy
    batch: Batching | None


class OperatorOptions(TypedDict, total=False):
    """What every ready-made computation takes besides its own options; see :class:`Computation`."""

    policy: Policy
    idle: Duration | None
    output_delay: Duration
    version: int


class Decorate(Protocol):
    """What ``@computation(...)`` returns: it turns the function into a computation."""

    @overload
    def __call__(
        self, process: Callable[[Record[In], Context[In, Out]], object], /
    ) -> FunctionComputation[In, Out]: ...

    @overload
    def __call__(
        self, process: Callable[[list[Record[In]], Context[In, Out]], object], /
    ) -> FunctionComputation[In, Out]: ...


def computation(name: str, **options: Unpack[ComputationOptions]) -> Decorate:
    """Make a computation out of a function of a record and the context: a decorator.

    With ``batch`` it is a function of several records. ``@name.timer`` and ``@name.drain`` on the result add functions
    for timers and for the end of the input.

    Args:
        name: of the computation
        **options: the attributes of a :class:`Computation`: ``inputs``, ``outputs``, ``states``, ``policy``, ``batch``,
            …
    """

    def decorate(process: Any) -> FunctionComputation[Any, Any]:
        return FunctionComputation(process, name=name, **options)

    return decorate


def names_of(given: Names) -> tuple[str, ...]:
    """One name or several, as a tuple of names."""
    return (given,) if isinstance(given, str) else tuple(given)

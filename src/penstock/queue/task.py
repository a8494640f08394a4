"""Task: a function whose calls are entries of a queue. Its parameters are the payload, and type checkers know them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    Unpack,
    get_origin,
    get_type_hints,
    overload,
)

import msgspec

from penstock.clock import Duration
from penstock.errors import BadInput
from penstock.policy import Retry
from penstock.queue.handling.context import Context
from penstock.queue.handling.middleware import Middleware, is_coroutine_function
from penstock.queue.options import LinkOptions, QueueOptions, check_options

if TYPE_CHECKING:
    from penstock.queue.protocol import PutResult
    from penstock.queue.queue import Queue

P = ParamSpec("P")
R = TypeVar("R")


class TaskOptions(QueueOptions, total=False):
    """What may be said of a task: the options of its queue, and those of ``Queue.handler``."""

    retry: Retry
    concurrency: int
    prefetch: int | None
    on_dead: Callable[[Any, str], Any] | None
    executor: Executor | None
    breaker: Any
    middleware: Iterable[Middleware]
    timeout: Duration | None
    keep_result: Duration | None


class Task(Generic[P, R]):
    """A function that workers call. Make one with ``store.task(name)`` or ``Queues.task(name)``.

    >>> from penstock import Worker, open_queues
    >>> store = open_queues("memory://")
    >>> @store.task("mails")
    ... def send(to: str, copies: int = 1) -> None:
    ...     print("to", to, copies)
    >>> send.put("ann", copies=2).queue
    'mails'
    >>> Worker(store).drain()
    to ann 2
    1
    """

    def __init__(self, calls: Calls, queue: Queue[Any], given: LinkOptions) -> None:
        """Take calls to this queue. ``given`` goes with every put."""
        self.function: Callable[..., R] = calls.function
        self.queue = queue
        self._calls = calls
        self._given = given

    def __repr__(self) -> str:
        """The function and its queue."""
        return f"<Task {self._calls.title} of {self.queue!r}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now, without a queue. A function that takes a context needs a worker."""
        if self._calls.context is not None:
            raise BadInput(
                f"task {self._calls.title} takes a context, which only a worker has.",
                hint="Put it, or call its function with a context of your own: task.function(ctx, ...).",
            )
        return self.function(*args, **kwargs)

    def put(self, *args: P.args, **kwargs: P.kwargs) -> PutResult:
        """Put a call of the function. The arguments are checked against its signature and types.

        Args:
            *args, **kwargs: those of the function
        """
        return self.queue.put(self._calls.payload_of(args, kwargs), **self._given)

    def options(self, **options: Unpack[LinkOptions]) -> Task[P, R]:
        """The same task with options for its puts, as of ``Queue.put``: ``send.options(delay="5m").put("ann")``.

        Args:
            **options: those of :meth:`penstock.Queue.put`
        """
        check_options(options, "options", LinkOptions)
        return Task(self._calls, self.queue, {**self._given, **options})


class TaskMaker(Protocol):
    """What ``store.task(name)`` gives: a decorator."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context[Any], P], R]) -> Task[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R]) -> Task[P, R]: ...


def task_maker(declare: Callable[..., Queue[Any]], name: str, options: TaskOptions) -> TaskMaker:
    """A decorator that makes a queue of this name with ``declare`` and the function its handler."""
    check_options(options, "task", TaskOptions)
    of_queue = {key: value for key, value in options.items() if key in QueueOptions.__annotations__}
    of_handler: dict[str, Any] = {key: value for key, value in options.items() if key not in of_queue}

    def make(function: Callable[..., Any]) -> Any:
        calls = Calls(function)
        queue = declare(name, calls.payload_type, **of_queue)
        queue.add_handler(calls.handler(), **of_handler)
        return Task(calls, queue, {})

    return make


class Calls:
    """How calls of a function look in a queue, and how they are made.

    A parameter that was not given is not stored, so the running code's default applies.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """Read the function's parameters."""
        self.function = function
        self.title: str = getattr(function, "__name__", None) or repr(function)
        try:
            self._hints = get_type_hints(function)
            parameters = list(inspect.signature(function).parameters.values())
        except (NameError, TypeError, ValueError) as error:
            raise BadInput(
                f"task {self.title} has parameters that cannot be read: {error}.",
                hint="A task is a function whose annotations can be resolved where it is defined.",
            ) from None
        self.context = self._context(parameters)  # the name of the parameter that is for the context
        stored = [parameter for parameter in parameters if parameter.name != self.context]
        self.signature = inspect.Signature(stored)
        self.payload_type = msgspec.defstruct(
            self.title, [self._field(parameter) for parameter in stored], kw_only=True, module=function.__module__
        )

    def _context(self, parameters: list[inspect.Parameter]) -> str | None:
        """The first parameter may be for the context: by its type, or called ``ctx`` without one."""
        if not parameters:
            return None
        name = parameters[0].name
        kind = self._hints.get(name)
        is_context = kind is Context or get_origin(kind) is Context
        return name if is_context or (kind is None and name == "ctx") else None

    def _field(self, parameter: inspect.Parameter) -> Any:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise BadInput(
                f"task {self.title} takes {parameter}, which has no name in a payload.",
                hint="Give every parameter a name: no *args, **kwargs or positional-only parameters.",
            )
        kind = self._hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            return parameter.name, kind
        # Not with "|": what a user has written as a type need not know that.
        return parameter.name, Union[kind, msgspec.UnsetType], msgspec.UNSET  # noqa: UP007

    def payload_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> msgspec.Struct:
        """A call as a payload."""
        try:
            given = self.signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise BadInput(
                f"task {self.title} cannot be called like this: {error}.", hint=f"It takes {self.signature}."
            ) from None
        return self.payload_type(**given)

    def handler(self) -> Callable[[Any, Context[Any]], Any]:
        """The function as a handler of such payloads."""
        function = self.function

        async def run_async(payload: Any, ctx: Context[Any]) -> Any:
            return await function(**self._arguments(payload, ctx))

        def run(payload: Any, ctx: Context[Any]) -> Any:
            return function(**self._arguments(payload, ctx))

        handler = run_async if is_coroutine_function(function) else run
        handler.__qualname__ = self.title
        return handler

    def _arguments(self, payload: Any, ctx: Context[Any]) -> dict[str, Any]:
        given = {} if self.context is None else {self.context: ctx}
        for name in payload.__struct_fields__:
            value = getattr(payload, name)
            if value is not msgspec.UNSET:
                given[name] = value
        return given

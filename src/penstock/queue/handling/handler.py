"""Handler: the user's function with its policy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Literal

from penstock.clock import Duration, duration, duration_micros
from penstock.errors import BadInput
from penstock.policy import Retry
from penstock.queue.handling.middleware import Middleware, check_middleware, is_coroutine_function
from penstock.queue.protocol import Definition, Scope

if TYPE_CHECKING:
    from penstock.queue.handling.context import Context
    from penstock.queue.queue import Queue

DEFAULT_RETRY = Retry()
PROCESSES = "processes"


class Handler:
    """A function that handles a queue's entries, and how."""

    def __init__(
        self,
        queue: Queue[Any],
        function: Callable[..., Any],
        *,
        retry: Retry = DEFAULT_RETRY,
        concurrency: int = 10,
        prefetch: int | None = None,
        on_dead: Callable[[Any, str], Any] | None = None,
        executor: Executor | Literal["processes"] | None = None,
        breaker: Any = None,
        middleware: Iterable[Middleware] = (),
        timeout: Duration | None = None,
        keep_result: Duration | None = None,
    ) -> None:
        """Check the function's shape and the options once, so that no worker has to."""
        self.queue = queue
        self.function = function
        self.keep_result_us = None if keep_result is None else duration_micros(keep_result, name="keep_result")
        self.retry = retry
        self.concurrency = concurrency
        self.prefetch = prefetch
        self.on_dead = on_dead
        self.executor = None if isinstance(executor, str) else executor
        self.in_processes = executor == PROCESSES
        self.title = getattr(function, "__qualname__", None) or repr(function)
        self.middleware = check_middleware(middleware, f"handler {self.title}")
        if breaker is not None:
            # A breaker makes the guard for this queue; a guard is taken as it is. It is the innermost middleware.
            guard = breaker.guards(queue) if hasattr(breaker, "guards") else breaker
            if not callable(guard) or not hasattr(guard, "sink"):
                raise BadInput(
                    f"handler {self.title}: breaker={breaker!r} is neither a breaker nor one of its guards.",
                    hint="Give a penstock.Breaker, or one of its guards: breaker.guard(circuit).",
                )
            self.middleware += (guard,)
        if not callable(function):
            raise BadInput(f"{self.title} cannot be called.", hint="A handler is a function that takes the value.")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise BadInput(
                f"handler {self.title} is a generator: calling it runs nothing.",
                hint="Write a function without yield, or an async one.",
            )
        if isinstance(executor, str) and executor != PROCESSES:
            raise BadInput(f"handler {self.title}: executor={executor!r} is unknown.", hint=f'Write "{PROCESSES}".')
        self._check_options()
        self.is_async = is_coroutine_function(function)
        self.takes_context = _takes_context(function, self.title)
        self.timeout = None if timeout is None else duration(timeout, name="timeout").total_seconds()
        if self.in_processes:
            self._check_processes()
        if self.timeout is not None and self.timeout <= 0:
            raise BadInput(f"handler {self.title} has timeout={self.timeout:g}s.", hint='Use "5m", say, or None.')
        self.check_queue()

    def check_queue(self) -> None:
        """Refuse options that the queue does not allow, as it is opened here and as it is stored."""
        queue = self.queue
        if self.prefetch and (queue.definition.fifo or (queue.is_open and not queue.is_family and queue.counts().fifo)):
            raise BadInput(
                f"handler {self.title} asks for prefetch on the FIFO queue {queue.name!r}.",
                hint="A FIFO queue has one entry in flight; leave prefetch out.",
            )
        if self.timeout is not None:
            self._check_timeout()

    def _check_options(self) -> None:
        """A worker that met a bad one later would fail at every round trip, for all queues."""
        if not isinstance(self.retry, Retry):
            raise BadInput(
                f"handler {self.title} has retry={self.retry!r}, which is not a policy.",
                hint="Write retry=Retry(attempts=5).",
            )
        if not _whole(self.concurrency) or self.concurrency < 1:
            raise BadInput(f"handler {self.title} has concurrency {self.concurrency!r}.", hint="Use 1 or more.")
        if self.prefetch is not None and (not _whole(self.prefetch) or self.prefetch < 0):
            raise BadInput(f"handler {self.title} has prefetch {self.prefetch!r}.", hint="Use 0 or more, or None.")
        if self.on_dead is not None and not callable(self.on_dead):
            raise BadInput(
                f"handler {self.title} has on_dead={self.on_dead!r}, which cannot be called.",
                hint="Give a function that takes (value, error).",
            )
        if self.executor is not None and not callable(getattr(self.executor, "submit", None)):
            raise BadInput(
                f"handler {self.title} has executor={self.executor!r}, which is unknown.",
                hint="Give a concurrent.futures.Executor.",
            )
        if self.executor is not None and _is_process_pool(self.executor):
            raise BadInput(
                f"handler {self.title} has a ProcessPoolExecutor, of which no single process can be replaced.",
                hint=f'Write executor="{PROCESSES}": one process for each slot, replaced when it dies.',
            )

    def _check_processes(self) -> None:
        """A process gets the function by its name, and the value; the store stays here."""
        name = getattr(self.function, "__qualname__", "")
        if self.is_async or self.takes_context:
            raise BadInput(
                f"handler {self.title} runs in processes, so it cannot be async or take a context.",
                hint="Let it take the value only; a middleware has the context.",
            )
        if not inspect.isfunction(self.function) or "<" in name:
            raise BadInput(
                f"handler {self.title} runs in processes, which cannot import it.",
                hint="Write it as a function at the top of a module.",
            )

    def _check_timeout(self) -> None:
        """A thread cannot be killed: where entries must not overlap, one that is late would."""
        if self.is_async or self.in_processes:
            return
        if any(definition.fifo or definition.is_limited for definition in self._definitions()):
            raise BadInput(
                f"handler {self.title} has a timeout and runs in threads, which cannot be stopped; {self.queue.name!r} "
                "is a FIFO or limited queue, where the next entry must not run beside one that is late.",
                hint=f'Write executor="{PROCESSES}" (a late process is killed), or make the handler async.',
            )

    def _definitions(self) -> list[Definition]:
        """How the queue behaves, or the queues of the family: as it was opened here, and as it is stored."""
        queue = self.queue
        scope = Scope(queue.name, queue.is_family)
        stored = queue.store.driver.definitions().items() if queue.is_open else ()
        return [queue.definition, *(definition for name, definition in stored if scope.covers(name))]

    def call(self, value: Any, context: Context[Any]) -> Any:
        """Call the function with what it asked for; an async one gives its coroutine."""
        return self.function(value, context) if self.takes_context else self.function(value)


def _is_process_pool(executor: object) -> bool:
    # Imported here: it brings multiprocessing, which most workers have no use for.
    from concurrent.futures import ProcessPoolExecutor

    return isinstance(executor, ProcessPoolExecutor)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _takes_context(function: Callable[..., Any], title: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [parameter for parameter in parameters if parameter.kind in kinds]
    required = [parameter for parameter in positional if parameter.default is parameter.empty]
    if len(required) > 2 or (
        not positional and not any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    ):
        raise BadInput(
            f"handler {title} takes {len(required)} arguments.", hint="A handler takes (value) or (value, ctx)."
        )
    # A second parameter counts as the context when it is required or called so.
    return len(required) == 2 or (len(positional) > 1 and positional[1].name in ("ctx", "context"))

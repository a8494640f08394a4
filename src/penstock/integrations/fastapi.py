"""FastAPI and Starlette: queues that open and close with the application, and the service under a prefix.

queues = penstock.Queues()
mails = queues.queue("mails", Mail)
app = FastAPI(lifespan=lifespan(queues, "postgresql://…", worker=True))
app.mount("/ops", Operations(dependencies=[Depends(admin)]))

@app.post("/orders")
async def order(body: Order, mails: Annotated[aio.Queue[Mail], Depends(awaited(mails))]) -> None:
    await mails.put(Mail(to=body.to))
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.errors import BadInput, NotOpen, PenstockError
from penstock.integrations.requirement import check_version, required

starlette: Any = required("starlette", extra="service")
check_version("Starlette", starlette.__version__, (0, 40), extra="service")

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from penstock import aio
    from penstock.declared import Queues
    from penstock.log.store import LogStore
    from penstock.queue.queue import Queue
    from penstock.queue.queues import QueueStore

T = TypeVar("T")
Scope = MutableMapping[str, Any]
Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]


def lifespan(
    queues: Queues,
    url: str | Callable[[], str],
    *,
    worker: bool = False,
    inside: Lifespan | None = None,
    **options: Any,
) -> Lifespan:
    """Make the lifespan of an application: the queues are open while it serves.

    Args:
        queues: that are declared
        url: of the store, or a function that is called when the application starts
        worker: run the handlers in the application's process: async ones in its event loop, sync ones in threads
        inside: a lifespan of your own: it begins after the queues are open and before the worker starts, and what it
            yields is the application's state
        **options: those of :class:`penstock.Worker`
    """
    if options and not worker:
        raise BadInput(
            f"lifespan() was given {', '.join(sorted(options))} for a worker, but starts none.",
            hint="Add worker=True, or leave them out.",
        )

    @asynccontextmanager
    async def running(app: Any) -> AsyncIterator[Mapping[str, Any] | None]:
        from penstock import aio

        store = await aio.run(queues.open, url() if callable(url) else url)
        try:
            async with AsyncExitStack() as stack:
                for operations in _mounted(app):
                    await stack.enter_async_context(operations.running(store))
                state = None if inside is None else await stack.enter_async_context(inside(app))
                if worker:
                    await stack.enter_async_context(aio.Worker(aio.QueueStore(store), **options))
                yield state
        finally:
            await aio.run(queues.close)

    return running


def awaited(queue: Queue[T]) -> Callable[[], Awaitable[aio.Queue[T]]]:
    """Make a dependency that gives a declared queue with calls to await.

    Args:
        queue: that is declared
    """

    async def dependency() -> aio.Queue[T]:
        from penstock import aio

        return aio.Queue(queue, aio.QueueStore(queue.store).limiter)

    return dependency


def answer_errors(app: Any) -> None:
    """Answer Penstock's errors with problem+json and a fitting status, 503 while the store is away.

    Args:
        app: the application
    """
    app.add_exception_handler(PenstockError, _answer)


async def _answer(request: Request, error: Exception) -> Response:
    from penstock.service import problems

    if not isinstance(error, PenstockError):
        raise error
    return problems.of(error)


class Operations:
    """The REST API and the dashboard, to be mounted below a prefix; :func:`lifespan` begins and ends it.

    Args:
        dependencies: admit callers that pass all of these
        keys: a file with API keys: admit callers that have one
        logs: to be shown as well
        **settings: further fields of ``penstock.service.ServiceSettings``

    Raises:
        BadInput: neither dependencies nor keys: every client could change every queue
    """

    def __init__(
        self,
        *,
        dependencies: Sequence[Any] = (),
        keys: Path | None = None,
        logs: LogStore | None = None,
        **settings: Any,
    ) -> None:
        """Refuse to serve everybody."""
        required("fastapi", extra="service")
        if not dependencies and keys is None:
            raise BadInput(
                "Operations would let every client change every queue.",
                hint="Give dependencies=[Depends(your_check)], or keys=Path(...) made with `penstock key new`.",
            )
        self._dependencies = dependencies
        self._settings = {**settings, "keys": keys, "is_guarded": bool(dependencies)}
        self._logs = logs
        self._app: Any = None

    @asynccontextmanager
    async def running(self, store: QueueStore) -> AsyncIterator[None]:
        """Serve an open store."""
        from penstock.service.app import create_app
        from penstock.service.prefix import Prefixed
        from penstock.service.settings import ServiceSettings

        settings = ServiceSettings(queues=store.name, **self._settings)
        service = create_app(settings, store, self._logs, dependencies=self._dependencies)
        async with service.router.lifespan_context(service):
            self._app = Prefixed(service)
            try:
                yield
            finally:
                service.state.ending.set()
                self._app = None

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """One request."""
        if self._app is None:
            raise NotOpen(
                "the operations of Penstock are mounted, but not running.",
                hint="Make the application with lifespan=penstock.integrations.fastapi.lifespan(queues, url).",
            )
        await self._app(scope, receive, send)


def _mounted(app: Any) -> list[Operations]:
    """The operations of an application, also those below other mounts, which have no lifespan of their own."""
    operations: list[Operations] = []
    for route in getattr(app, "routes", None) or ():
        inner = getattr(route, "app", None)
        operations += [inner] if isinstance(inner, Operations) else _mounted(route)
    return operations

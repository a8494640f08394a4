"""Client, and AsyncClient for asyncio and trio: the same calls, typed alike."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Generic, ParamSpec, TypeVar, overload

import anyio

from penstock.client import calls
from penstock.client.calls import Call
from penstock.client.exchange import Exchange
from penstock.errors import BadInput, MissingExtra

try:
    import httpx2
except ImportError as cause:
    raise MissingExtra(
        "the client needs httpx2, which is not installed.", hint='Run: pip install "penstock[client]"'
    ) from cause

P = ParamSpec("P")
T = TypeVar("T")


class _Method(Generic[P, T]):
    """A call as a method of a client."""

    def __init__(self, make: Callable[P, Call[T]]) -> None:
        self.make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, client: None, owner: type[Any]) -> Callable[P, Call[T]]: ...

    @overload
    def __get__(self, client: Client, owner: type[Any]) -> Callable[P, T]: ...

    def __get__(self, client: Client | None, owner: type[Any]) -> Callable[P, Any]:
        if client is None:
            return self.make

        @functools.wraps(self.make)
        def run(*arguments: P.args, **options: P.kwargs) -> T:
            return client.do(self.make(*arguments, **options))

        return run


class _AsyncMethod(Generic[P, T]):
    """A call as a method of an asynchronous client."""

    def __init__(self, make: Callable[P, Call[T]]) -> None:
        self.make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, client: None, owner: type[Any]) -> Callable[P, Call[T]]: ...

    @overload
    def __get__(self, client: AsyncClient, owner: type[Any]) -> Callable[P, Awaitable[T]]: ...

    def __get__(self, client: AsyncClient | None, owner: type[Any]) -> Callable[P, Any]:
        if client is None:
            return self.make

        @functools.wraps(self.make)
        async def run(*arguments: P.args, **options: P.kwargs) -> T:
            return await client.do(self.make(*arguments, **options))

        return run


class _Settings:
    """What both clients are told."""

    def __init__(self, url: str, key: str | None, timeout: float, tries: int, rng: random.Random | None) -> None:
        if not url.startswith(("http://", "https://")):
            raise BadInput(f"{url!r} is no address of a service.", hint="For example http://127.0.0.1:8080.")
        if tries < 1:
            raise BadInput(f"tries={tries} would send nothing.", hint="Use 1 or more.")
        self.url = url.rstrip("/")
        self.timeout = timeout
        self.tries = tries
        self.rng = rng or random.Random()
        # The bearer token belongs to this service: not to a proxy of the environment, nor to where a redirect points.
        self.options: dict[str, Any] = {
            "base_url": self.url, "timeout": timeout, "follow_redirects": False, "trust_env": False,
            "headers": {} if key is None else {"authorization": f"Bearer {key}"},
        }  # fmt: skip

    def exchange(self, call: Call[T]) -> Exchange[T]:
        return Exchange(call, self.url, self.tries, self.rng)

    def request(self, call: Call[Any]) -> dict[str, Any]:
        """What httpx2 is told of a call."""
        return {
            "method": call.method, "url": call.path, "params": call.query or None, "content": call.content,
            "headers": call.headers, "timeout": self.timeout + call.wait,
        }  # fmt: skip


NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
# Found while the request was put into words, before any of it left.
UNSENDABLE = (httpx2.InvalidURL, httpx2.LocalProtocolError, UnicodeError)


class Client:
    """Penstock over HTTP. Problems come as the errors of ``penstock.errors`` that they were in the service.

    A call that got no answer, or was told that the store is away, is tried again up to ``tries`` times in all, if that
    cannot have a second effect: reading, putting (each put has an idempotency key), extending. Others raise
    ``OutcomeUnknown``. It may be shared by threads.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        timeout: float = 30.0,
        tries: int = 4,
        rng: random.Random | None = None,
    ) -> None:
        """``key`` is an API key of the service, ``timeout`` in seconds."""
        self._settings = _Settings(url, key, timeout, tries, rng)
        self._http = httpx2.Client(**self._settings.options)
        self._closing = threading.Event()

    def __enter__(self) -> Client:
        """Use it in a ``with`` block to have its connections closed."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close its connections; a pause before another try ends."""
        self._closing.set()
        self._http.close()

    def do(self, call: Call[T]) -> T:
        """Do one of the calls of ``penstock.client.calls``."""
        exchange = self._settings.exchange(call)
        while True:
            try:
                answer = self._http.request(**self._settings.request(call))
            except UNSENDABLE as error:
                raise exchange.unsendable(error) from error
            except httpx2.TransportError as error:
                pause = exchange.failed(error, was_sent=not isinstance(error, NOT_SENT))
            else:
                if answer.is_success:
                    return exchange.result(answer.headers, answer.content)
                pause = exchange.refused(answer.status_code, answer.headers, answer.content)
            self._closing.wait(pause)

    queues = _Method(calls.queues)
    queue = _Method(calls.queue)
    define = _Method(calls.define)
    put = _Method(calls.put)
    put_many = _Method(calls.put_many)
    entries = _Method(calls.entries)
    entry = _Method(calls.entry)
    cancel = _Method(calls.cancel)
    replay = _Method(calls.replay)
    history = _Method(calls.history)
    dead = _Method(calls.dead)
    locks = _Method(calls.locks)
    lock = _Method(calls.lock)
    unlock = _Method(calls.unlock)
    claim = _Method(calls.claim)
    end = _Method(calls.end)
    extend = _Method(calls.extend)
    send = _Method(calls.send)
    logs = _Method(calls.logs)
    create_log = _Method(calls.create_log)
    append = _Method(calls.append)
    records = _Method(calls.records)
    group = _Method(calls.group)
    circuits = _Method(calls.circuits)
    set_circuit = _Method(calls.set_circuit)


class AsyncClient:
    """The same for asyncio and trio: ``async with AsyncClient(url) as client: await client.put(…)``."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        timeout: float = 30.0,
        tries: int = 4,
        rng: random.Random | None = None,
    ) -> None:
        """As for ``Client``."""
        self._settings = _Settings(url, key, timeout, tries, rng)
        self._http = httpx2.AsyncClient(**self._settings.options)

    async def __aenter__(self) -> AsyncClient:
        """Use it in an ``async with`` block to have its connections closed."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        await self.close()

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def do(self, call: Call[T]) -> T:
        """Do one of the calls of ``penstock.client.calls``."""
        exchange = self._settings.exchange(call)
        while True:
            try:
                answer = await self._http.request(**self._settings.request(call))
            except UNSENDABLE as error:
                raise exchange.unsendable(error) from error
            except httpx2.TransportError as error:
                pause = exchange.failed(error, was_sent=not isinstance(error, NOT_SENT))
            else:
                if answer.is_success:
                    return exchange.result(answer.headers, answer.content)
                pause = exchange.refused(answer.status_code, answer.headers, answer.content)
            await anyio.sleep(pause)

    queues = _AsyncMethod(calls.queues)
    queue = _AsyncMethod(calls.queue)
    define = _AsyncMethod(calls.define)
    put = _AsyncMethod(calls.put)
    put_many = _AsyncMethod(calls.put_many)
    entries = _AsyncMethod(calls.entries)
    entry = _AsyncMethod(calls.entry)
    cancel = _AsyncMethod(calls.cancel)
    replay = _AsyncMethod(calls.replay)
    history = _AsyncMethod(calls.history)
    dead = _AsyncMethod(calls.dead)
    locks = _AsyncMethod(calls.locks)
    lock = _AsyncMethod(calls.lock)
    unlock = _AsyncMethod(calls.unlock)
    claim = _AsyncMethod(calls.claim)
    end = _AsyncMethod(calls.end)
    extend = _AsyncMethod(calls.extend)
    send = _AsyncMethod(calls.send)
    logs = _AsyncMethod(calls.logs)
    create_log = _AsyncMethod(calls.create_log)
    append = _AsyncMethod(calls.append)
    records = _AsyncMethod(calls.records)
    group = _AsyncMethod(calls.group)
    circuits = _AsyncMethod(calls.circuits)
    set_circuit = _AsyncMethod(calls.set_circuit)

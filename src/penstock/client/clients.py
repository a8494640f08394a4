"""Client, and AsyncClient for asyncio and trio: the same calls, typed alike."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Generic, ParamSpec, TypeVar, overload

import anyio

from penstock.client import admin_calls, answers, calls
from penstock.client.call import Call
from penstock.client.exchange import Exchange
from penstock.client.problems import error_of
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
    """The settings of both clients."""

    def __init__(self, url: str, key: str | None, timeout: float, tries: int, rng: random.Random | None) -> None:
        if not url.startswith(("http://", "https://")):
            raise BadInput(f"{url!r} is not an address of a service.", hint="For example http://127.0.0.1:8080.")
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
        """The arguments with which httpx2 sends a call."""
        return {
            "method": call.method, "url": call.path, "params": call.query or None, "content": call.content,
            "headers": call.headers, "timeout": self.timeout + call.wait,
        }  # fmt: skip

    def stream(self, query: dict[str, Any]) -> dict[str, Any]:
        """The arguments with which httpx2 opens the stream of signals, which is silent while nothing happens."""
        given = {name: value for name, value in query.items() if value}
        timeout = httpx2.Timeout(self.timeout, read=None)
        return {"method": "GET", "url": "/v1/signals", "params": given or None, "timeout": timeout}


class Events:
    """Server-sent events, line by line."""

    def __init__(self) -> None:
        """Nothing was read yet."""
        self._event = self._data = ""

    def take(self, line: str) -> answers.Signal | None:
        """Take one more line. Returns the signal that it completes, if any."""
        field, _, value = line.partition(":")
        if line:
            self._event = value.strip() if field == "event" else self._event
            self._data = value.strip() if field == "data" else self._data
            return None
        event, data, self._event, self._data = self._event, self._data, "", ""
        return admin_calls.read_signal(event, data)


NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
# Found while the request was put into words, before any of it left.
UNSENDABLE = (httpx2.InvalidURL, httpx2.LocalProtocolError, UnicodeError)


class Client:
    """Penstock over HTTP. Problems come as the errors of ``penstock.errors`` that they were in the service.

    All of ``penstock.client.calls`` and ``penstock.client.admin_calls`` are methods: ``client.put("mails", "to ann")``.

    A call that got no answer, or the answer that the store is unavailable, is tried up to ``tries`` times in all, if
    repeating it is safe: reading, putting (each put has an idempotency key), extending. Other calls raise
    ``OutcomeUnknown``. Threads may share a client.

    Args:
        url: of the service
        key: an API key
        timeout: seconds for one try
        tries: how many, if repeating is safe
        rng: randomness of pauses, for tests

    Throughout:
        call: one of ``penstock.client.calls``
        *kinds: these only; all by default
        limit: end after so many
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

    def signals(self, *kinds: str, limit: int | None = None) -> Iterator[answers.Signal]:
        """What happens through the service, as it happens; ends after ``limit``, or when you stop reading."""
        request = self._settings.stream({"kind": list(kinds), "limit": limit})
        with self._http.stream(**request) as answer:
            if not answer.is_success:
                raise error_of(answer.status_code, answer.read(), "GET /v1/signals")
            events = Events()
            for line in answer.iter_lines():
                if (signal := events.take(line)) is not None:
                    yield signal

    queues = _Method(calls.queues)
    queue = _Method(calls.queue)
    define = _Method(calls.define)
    put = _Method(calls.put)
    put_many = _Method(calls.put_many)
    entries = _Method(calls.entries)
    entry = _Method(calls.entry)
    result = _Method(calls.result)
    batch = _Method(calls.batch)
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
    change = _Method(calls.change)
    delete_queue = _Method(calls.delete_queue)
    purge_dead = _Method(calls.purge_dead)
    schedules = _Method(admin_calls.schedules)
    set_schedule = _Method(admin_calls.set_schedule)
    pause_schedule = _Method(admin_calls.pause_schedule)
    resume_schedule = _Method(admin_calls.resume_schedule)
    run_schedule = _Method(admin_calls.run_schedule)
    remove_schedule = _Method(admin_calls.remove_schedule)
    changes = _Method(admin_calls.changes)
    workers = _Method(admin_calls.workers)
    figures = _Method(admin_calls.figures)
    scale = _Method(admin_calls.scale)
    log = _Method(admin_calls.log)
    delete_log = _Method(admin_calls.delete_log)
    groups = _Method(admin_calls.groups)
    reset_group = _Method(admin_calls.reset_group)
    forget_group = _Method(admin_calls.forget_group)
    circuit = _Method(admin_calls.circuit)
    remove_circuit = _Method(admin_calls.remove_circuit)
    breaker_config = _Method(admin_calls.breaker_config)
    set_breaker_config = _Method(admin_calls.set_breaker_config)
    reset_breaker_config = _Method(admin_calls.reset_breaker_config)
    breaker_settings = _Method(admin_calls.breaker_settings)
    set_breaker_settings = _Method(admin_calls.set_breaker_settings)
    breaker_changes = _Method(admin_calls.breaker_changes)
    topologies = _Method(admin_calls.topologies)
    topology = _Method(admin_calls.topology)
    picture = _Method(admin_calls.picture)
    live = _Method(admin_calls.live)
    ready = _Method(admin_calls.ready)
    metrics = _Method(admin_calls.metrics)


class AsyncClient:
    """The same for asyncio and trio: ``async with AsyncClient(url) as client: await client.put(…)``.

    Args:
        url: of the service
        key: an API key
        timeout: seconds for one try
        tries: how many, if repeating is safe
        rng: randomness of pauses, for tests
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

    async def signals(self, *kinds: str, limit: int | None = None) -> AsyncIterator[answers.Signal]:
        """What happens through the service, as it happens; ends after ``limit``, or when you stop reading."""
        request = self._settings.stream({"kind": list(kinds), "limit": limit})
        async with self._http.stream(**request) as answer:
            if not answer.is_success:
                raise error_of(answer.status_code, await answer.aread(), "GET /v1/signals")
            events = Events()
            async for line in answer.aiter_lines():
                if (signal := events.take(line)) is not None:
                    yield signal

    queues = _AsyncMethod(calls.queues)
    queue = _AsyncMethod(calls.queue)
    define = _AsyncMethod(calls.define)
    put = _AsyncMethod(calls.put)
    put_many = _AsyncMethod(calls.put_many)
    entries = _AsyncMethod(calls.entries)
    entry = _AsyncMethod(calls.entry)
    result = _AsyncMethod(calls.result)
    batch = _AsyncMethod(calls.batch)
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
    change = _AsyncMethod(calls.change)
    delete_queue = _AsyncMethod(calls.delete_queue)
    purge_dead = _AsyncMethod(calls.purge_dead)
    schedules = _AsyncMethod(admin_calls.schedules)
    set_schedule = _AsyncMethod(admin_calls.set_schedule)
    pause_schedule = _AsyncMethod(admin_calls.pause_schedule)
    resume_schedule = _AsyncMethod(admin_calls.resume_schedule)
    run_schedule = _AsyncMethod(admin_calls.run_schedule)
    remove_schedule = _AsyncMethod(admin_calls.remove_schedule)
    changes = _AsyncMethod(admin_calls.changes)
    workers = _AsyncMethod(admin_calls.workers)
    figures = _AsyncMethod(admin_calls.figures)
    scale = _AsyncMethod(admin_calls.scale)
    log = _AsyncMethod(admin_calls.log)
    delete_log = _AsyncMethod(admin_calls.delete_log)
    groups = _AsyncMethod(admin_calls.groups)
    reset_group = _AsyncMethod(admin_calls.reset_group)
    forget_group = _AsyncMethod(admin_calls.forget_group)
    circuit = _AsyncMethod(admin_calls.circuit)
    remove_circuit = _AsyncMethod(admin_calls.remove_circuit)
    breaker_config = _AsyncMethod(admin_calls.breaker_config)
    set_breaker_config = _AsyncMethod(admin_calls.set_breaker_config)
    reset_breaker_config = _AsyncMethod(admin_calls.reset_breaker_config)
    breaker_settings = _AsyncMethod(admin_calls.breaker_settings)
    set_breaker_settings = _AsyncMethod(admin_calls.set_breaker_settings)
    breaker_changes = _AsyncMethod(admin_calls.breaker_changes)
    topologies = _AsyncMethod(admin_calls.topologies)
    topology = _AsyncMethod(admin_calls.topology)
    picture = _AsyncMethod(admin_calls.picture)
    live = _AsyncMethod(admin_calls.live)
    ready = _AsyncMethod(admin_calls.ready)
    metrics = _AsyncMethod(admin_calls.metrics)

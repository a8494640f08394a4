"""Connections to the server: bounded waiting, one way of trying again, and errors in Penstock's words.

The driver's own pool and retry are not used: a call that is tried again has to be written again, as a repeat, and its
caller has to know whether it may have happened.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, cast
from urllib.parse import unquote, urlsplit

import redis.exceptions as failures
from redis.connection import Connection, SSLConnection

from penstock import failpoints
from penstock.errors import (
    BadInput,
    OutcomeUnknown,
    PenstockError,
    StoreCorrupt,
    StoreForbidden,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from penstock.location import Location
from penstock.queue.drivers.redis import library

TRIES = 3
PAUSES = (0.0, 0.05, 0.2)  # before each retry; the first has to wait for nothing but a new connection
BUSY_PAUSE = 0.1
_TLS_OPTIONS = {"tls_ca": "ssl_ca_certs", "tls_cert": "ssl_certfile", "tls_key": "ssl_keyfile"}
# The server says: not now. It may be loading its data, running a long function, or electing.
_LATER = ("LOADING", "BUSY ", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOREPLICAS")


class Link(Protocol):
    """What is used of the driver's connections."""

    def connect(self) -> None: ...

    def send_command(self, *command: Any, check_health: bool) -> None: ...

    def read_response(self) -> Any: ...

    def can_read(self, timeout: float) -> bool: ...

    def disconnect(self) -> None: ...


class Address:
    """Where the server is and how to get in."""

    def __init__(self, location: Location) -> None:
        """Read it from the URL."""
        parts = urlsplit(location.url)
        try:
            self.host, self.port = parts.hostname or "127.0.0.1", parts.port or 6379
            self.db = int(parts.path.strip("/") or 0)
        except ValueError as cause:
            raise BadInput(
                f"{location.masked} cannot be read.", hint='Write it as "redis://[user:password@]host:6379/0".'
            ) from cause
        self.user = unquote(parts.username) if parts.username else None
        self.password = unquote(parts.password) if parts.password else None
        self.tls = location.scheme == "rediss"
        self.timeout = location.seconds("timeout", 5.0)
        self.connect_timeout = location.seconds("connect_timeout", 5.0)
        self.tls_files = {
            name: location.options[option] for option, name in _TLS_OPTIONS.items() if option in location.options
        }
        if self.tls_files and not self.tls:
            raise BadInput(f"{location.masked} names TLS files but is not encrypted.", hint="Write rediss://.")

    @property
    def name(self) -> str:
        """The URL without password and options."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        login = "" if self.password is None and self.user is None else f"{self.user or ''}:***@"
        return f"{'rediss' if self.tls else 'redis'}://{login}{host}:{self.port}/{self.db}"

    def connect(self, *, timeout: float | None) -> Link:
        """A new connection; ``timeout`` bounds the wait for each reply, None does not."""
        options: dict[str, Any] = {
            "host": self.host, "port": self.port, "db": self.db, "username": self.user, "password": self.password,
            "socket_timeout": timeout, "socket_connect_timeout": self.connect_timeout, "socket_keepalive": True,
            "protocol": 2,
        }  # fmt: skip
        kind = cast("Callable[..., Link]", SSLConnection if self.tls else Connection)
        link = kind(**options, **self.tls_files)
        link.connect()
        return link


class IdleConnections:
    """Connections that nobody uses just now, shared by threads; a call takes one for as long as its reply takes."""

    def __init__(self, address: Address) -> None:
        """Connect when the first call needs it."""
        self._address = address
        self._idle: list[Link] = []
        self._lock = threading.Lock()
        self.closed = False

    def forked(self) -> None:
        """Connections that were open are the parent's."""
        self._idle, self._lock = [], threading.Lock()

    def take(self) -> Link:
        """One that works, or a new one; one that the server has closed meanwhile would not carry a call to it."""
        while True:
            with self._lock:
                link = self._idle.pop() if self._idle else None
            if link is None:
                return self._address.connect(timeout=self._address.timeout)
            if _is_open(link):
                return link
            link.disconnect()

    def give_back(self, link: Link) -> None:
        """Keep it for the next call."""
        with self._lock:
            if not self.closed:
                self._idle.append(link)
                return
        link.disconnect()

    def drop(self) -> None:
        """Close those that are idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            with contextlib.suppress(Exception):
                link.disconnect()

    def close(self) -> None:
        """Close what is idle; what is in use is closed when its call ends."""
        self.closed = True
        self.drop()


class _Call:
    """A call on its way, over all its tries."""

    def __init__(self, exchange: Callable[[Link, bool], Any]) -> None:
        self.exchange = exchange
        self.unanswered = False  # it may have reached the server without its reply having come back
        self.repeat = False
        self.tries = 0
        self.begin = time.monotonic()


class Server:
    """Runs the library's functions and plain commands on one server."""

    def __init__(self, address: Address) -> None:
        """Connect when the first call needs it."""
        self.address = address
        self.connections = IdleConnections(address)

    def run(self, key: str, write: Callable[[bool], tuple[str, list[Any]]], *, changes: bool = True) -> Any:
        """Run the function, with the arguments, that ``write(repeat)`` gives: again, as a repeat, after a lost reply.

        Raises ``OutcomeUnknown`` when a function that ``changes`` something may have run.
        """
        call = _Call(lambda link, repeat: self._run_function(link, key, *write(repeat)))
        failpoints.point("redis.before")
        reply = self._answer(call, changes=changes)
        failpoints.point("redis.after")
        return reply

    def ask(self, *command: Any) -> Any:
        """Send one plain command that may be sent twice."""
        return self._answer(_Call(lambda link, _: _ask(link, *command)), changes=False)

    def close(self) -> None:
        """Close the connections."""
        self.connections.close()

    def _run_function(self, link: Link, key: str, function: str, arguments: list[Any]) -> Any:
        name = library.PREFIX + function
        try:
            return _ask(link, "FCALL", name, 1, key, *arguments)
        except failures.ResponseError as refused:
            # In both cases the server has done nothing of this.
            if "Function not found" in str(refused):
                self._load(link)
                return self._run_function(link, key, function, arguments)
            if isinstance(refused, failures.OutOfMemoryError) and not function.endswith("_full"):
                return self._run_function(link, key, f"{function}_full", arguments)
            raise

    def _load(self, link: Link) -> None:
        """The server has never had the library, or lost it: restarted without it, flushed, failed over, restored."""
        try:
            _ask(link, "FUNCTION", "LOAD", library.CODE)
        except failures.ResponseError as refused:
            if "already exists" in str(refused):
                return  # somebody else was quicker
            if isinstance(refused, failures.NoPermissionError):
                raise StoreForbidden(
                    f"{self.address.name} does not let this user load the function library {library.NAME}: {refused}.",
                    hint=f"Allow it once: ACL SETUSER {self.address.user or 'default'} +fcall +function|load",
                ) from refused
            raise

    def _answer(self, call: _Call, *, changes: bool) -> Any:
        try:
            return self._try(call)
        except PenstockError as error:
            if not changes or not call.unanswered:
                raise
            # Also a refusal of the last try says nothing of one before it whose reply was lost.
            raise OutcomeUnknown(
                f"{self.address.name} was sent a call and its reply was lost: {error.message}",
                hint="When it answers again, repeat the call with the same ids, or look whether it took effect.",
            ) from error

    def _try(self, call: _Call) -> Any:
        while True:
            try:
                return self._try_once(call)
            except failures.MovedError as moved:
                # All keys of a space are in one slot: one node of a cluster is all there is to know.
                self.address.host, self.address.port = moved.host or self.address.host, moved.port
                self.connections.drop()
                call.tries += 1
                self._pause(call, moved, 0.0)
            except (failures.ConnectionError, failures.TimeoutError, OSError) as lost:
                self._pause(call, lost, self._after_loss(call, lost))
            except failures.ResponseError as refused:
                if not _says_later(refused):
                    if isinstance(refused, failures.ReadOnlyError):
                        self.connections.drop()  # a failover may have made another server the one to write to
                    raise translated(refused, self.address.name) from refused
                self._pause(call, refused, BUSY_PAUSE)

    def _after_loss(self, call: _Call, lost: Exception) -> float:
        """The connection broke: the next try is a repeat. How long to wait before it."""
        if isinstance(lost, failures.AuthenticationError):
            raise translated(lost, self.address.name) from lost
        self.connections.drop()
        call.repeat = True
        if _says_later(lost):
            call.tries = 0
            return BUSY_PAUSE
        call.tries += 1
        return PAUSES[call.tries - 1]

    def _pause(self, call: _Call, error: Exception, seconds: float) -> None:
        """Wait before the next try, or raise when there is none."""
        over = time.monotonic() - call.begin > 2 * self.address.timeout
        if self.connections.closed or over or call.tries >= TRIES:
            raise translated(error, self.address.name) from error
        if seconds:
            threading.Event().wait(seconds)

    def _try_once(self, call: _Call) -> Any:
        link = self.connections.take()
        before, call.unanswered = call.unanswered, True
        try:
            reply = call.exchange(link, call.repeat)
        except (failures.ResponseError, StoreForbidden):
            call.unanswered = before
            self.connections.give_back(link)
            raise
        except BaseException as error:
            if isinstance(error, failures.BusyLoadingError):
                call.unanswered = before  # that was the reply
            # Whatever comes next on it would be the answer to this call.
            link.disconnect()
            raise
        self.connections.give_back(link)
        return reply


def _ask(link: Link, *command: Any) -> Any:
    link.send_command(*command, check_health=False)
    return link.read_response()


def _is_open(link: Link) -> bool:
    """Nothing may lie unread on an idle connection: neither an end nor a word that nobody asked for."""
    try:
        return not link.can_read(0)
    except (failures.ConnectionError, failures.TimeoutError, OSError):
        return False


def _says_later(error: Exception) -> bool:
    return isinstance(error, failures.BusyLoadingError) or str(error).startswith(_LATER)


def translated(error: Exception, name: str) -> PenstockError:
    """A driver's error as one of ours."""
    text = str(error)
    if isinstance(error, failures.AuthenticationError | failures.AuthorizationError):
        return StoreUnavailable(f"{name} refused the user or the password: {text}.", hint="Check them in the URL.")
    refused = ("ACL failure", "can't run this command", "unknown command")  # the last where it was renamed
    if isinstance(error, failures.NoPermissionError) or any(words in text for words in refused):
        return StoreForbidden(f"{name} does not let this user do that: {text}.", hint="The docs list what it needs.")
    if isinstance(error, failures.ReadOnlyError) or "READONLY" in text:
        return StoreReadOnly(f"{name} is a read-only replica.", hint="Point the URL to the primary.")
    if isinstance(error, failures.OutOfMemoryError) or text.startswith("OOM") or "OOM command not allowed" in text:
        return StoreFull(f"{name} is out of memory; nothing was written.", hint="Raise maxmemory or prune history.")
    if "MISCONF" in text:
        return StoreFull(f"{name} cannot write to its disk: {text}", hint="Free space there, then see its log.")
    if isinstance(error, failures.ConnectionError | failures.TimeoutError | OSError) or _says_later(error):
        return StoreUnavailable(
            f"{name} does not answer: {text.rstrip('.')}.", hint="Check that it runs and can be reached."
        )
    if "WRONGTYPE" in text or "user_function" in text:
        return StoreCorrupt(f"{name} holds something else where queues should be: {text}", hint="Run penstock doctor.")
    return StoreUnavailable(f"{name} refused a call: {text}.", hint="Run penstock doctor on it.")

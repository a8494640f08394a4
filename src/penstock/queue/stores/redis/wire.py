"""The wire to the server: connections, bounded waiting, one way of trying again, and errors in Penstock's words."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, cast
from urllib.parse import unquote, urlsplit

import redis.exceptions as failures
from redis.connection import Connection, SSLConnection

from penstock import chaos
from penstock.errors import (
    BadInput,
    CannotOpen,
    OutcomeUnknown,
    PenstockError,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from penstock.location import Location
from penstock.queue.stores.redis.scripts import Script

TRIES = 3
PAUSES = (0.0, 0.05, 0.2)  # before each retry; the first has to wait for nothing but a new connection
BUSY_PAUSE = 0.1
_TLS_OPTIONS = {"tls_ca": "ssl_ca_certs", "tls_cert": "ssl_certfile", "tls_key": "ssl_keyfile"}
# The server says: not now. It may be loading its data, running a long script, or electing.
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
        """A new connection; ``timeout`` bounds the wait for each reply, None waits for ever."""
        options: dict[str, Any] = {
            "host": self.host, "port": self.port, "db": self.db, "username": self.user, "password": self.password,
            "socket_timeout": timeout, "socket_connect_timeout": self.connect_timeout, "socket_keepalive": True,
            "protocol": 2,
        }  # fmt: skip
        kind = cast("Callable[..., Link]", SSLConnection if self.tls else Connection)
        made = kind(**options, **self.tls_files)
        made.connect()
        return made


class _Sent:
    """Whether a call may have reached the server without its reply having come back."""

    unanswered = False


class Wire:
    """Connections to one server, shared by threads; a call takes one for as long as its reply takes."""

    def __init__(self, address: Address) -> None:
        """Connect when the first call needs it."""
        self.address = address
        self._idle: list[Link] = []
        self._lock = threading.Lock()
        self._closed = False

    def forked(self) -> None:
        """Connections that were open are the parent's."""
        self._idle, self._lock = [], threading.Lock()

    def run(self, script: Script, key: str, arguments: Callable[[bool], list[Any]], *, changes: bool = True) -> Any:
        """Run a script. ``arguments(repeat)`` are asked for again, as a repeat, when a reply was lost.

        Raises ``OutcomeUnknown`` when a script that ``changes`` something may have run.
        """

        def exchange(link: Link, repeat: bool) -> Any:
            given = arguments(repeat)
            try:
                return _ask(link, "EVALSHA", script.sha, 1, key, *given)
            except failures.NoScriptError:
                # The server was restarted or its scripts were flushed: it has done nothing of this.
                return _ask(link, "EVAL", script.text, 1, key, *given)

        chaos.point("redis.before")
        reply = self._call(exchange, changes=changes)
        chaos.point("redis.after")
        return reply

    def ask(self, *command: Any) -> Any:
        """Send one plain command that may be sent twice."""
        return self._call(lambda link, _: _ask(link, *command))

    def _call(self, exchange: Callable[[Link, bool], Any], *, changes: bool = False) -> Any:
        sent = _Sent()
        try:
            return self._try(exchange, sent)
        except PenstockError as error:
            if not changes or not sent.unanswered:
                raise
            # Also a refusal of the last try says nothing of one before it whose reply was lost.
            raise OutcomeUnknown(
                f"{self.address.name} was sent a call and its reply was lost: {error.message}",
                hint="When it answers again, repeat the call with the same ids, or look whether it took effect.",
            ) from error

    def _try(self, exchange: Callable[[Link, bool], Any], sent: _Sent) -> Any:
        begin = time.monotonic()
        tries, repeat = 0, False
        while True:
            error: Exception
            try:
                return self._once(exchange, repeat, sent)
            except failures.MovedError as moved:
                # All keys of a space are in one slot: one node of a cluster is all there is to know.
                self.address.host, self.address.port = moved.host or self.address.host, moved.port
                self._drop_idle()
                error, pause = moved, 0.0
                tries += 1
            except (failures.ConnectionError, failures.TimeoutError, OSError) as lost:
                if isinstance(lost, failures.AuthenticationError):
                    raise translated(lost, self.address.name) from lost
                self._drop_idle()
                repeat = True
                tries += 1
                error, pause = lost, BUSY_PAUSE if _says_later(lost) else PAUSES[tries - 1]
                if _says_later(lost):
                    tries = 0
            except failures.ResponseError as refused:
                if not _says_later(refused):
                    if isinstance(refused, failures.ReadOnlyError):
                        self._drop_idle()  # a failover may have made another server the one to write to
                    raise translated(refused, self.address.name) from refused
                error, pause = refused, BUSY_PAUSE
            over = time.monotonic() - begin > 2 * self.address.timeout
            if self._closed or over or tries >= TRIES:
                raise translated(error, self.address.name) from error
            if pause:
                threading.Event().wait(pause)

    def _once(self, exchange: Callable[[Link, bool], Any], repeat: bool, sent: _Sent) -> Any:
        link = self._idle_link() or self.address.connect(timeout=self.address.timeout)
        before, sent.unanswered = sent.unanswered, True
        try:
            reply = exchange(link, repeat)
        except failures.ResponseError:
            sent.unanswered = before
            self._give_back(link)
            raise
        except BaseException as error:
            if isinstance(error, failures.BusyLoadingError):
                sent.unanswered = before  # that was the reply
            # Whatever comes next on it would be the answer to this call.
            link.disconnect()
            raise
        self._give_back(link)
        return reply

    def _idle_link(self) -> Link | None:
        """A connection that nobody uses; one that the server has closed meanwhile would not carry a call to it."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                link = self._idle.pop()
            if _is_open(link):
                return link
            link.disconnect()

    def _give_back(self, link: Link) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(link)
                return
        link.disconnect()

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            with contextlib.suppress(Exception):
                link.disconnect()

    def close(self) -> None:
        """Close what is idle; what is in use is closed when its call ends."""
        self._closed = True
        self._drop_idle()


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


def translated(error: Exception, name: str, *, opening: bool = False) -> PenstockError:
    """A driver's error as one of ours."""
    text = str(error)
    unavailable = CannotOpen if opening else StoreUnavailable
    if isinstance(error, failures.AuthenticationError | failures.AuthorizationError):
        return unavailable(f"{name} refused the user or the password: {text}.", hint="Check them in the URL.")
    if isinstance(error, failures.NoPermissionError) or "ACL failure" in text or "can't run this command" in text:
        return unavailable(f"{name} does not let this user do that: {text}.", hint="The docs list what it needs.")
    if isinstance(error, failures.ReadOnlyError):
        return StoreReadOnly(f"{name} is a read-only replica.", hint="Point the URL to the primary.")
    if isinstance(error, failures.OutOfMemoryError) or text.startswith("OOM") or "OOM command not allowed" in text:
        return StoreFull(f"{name} is out of memory; nothing was written.", hint="Raise maxmemory or prune history.")
    if text.startswith("MISCONF") or "MISCONF" in text:
        return StoreFull(f"{name} cannot write to its disk: {text}", hint="Free space there, then see its log.")
    if isinstance(error, failures.ConnectionError | failures.TimeoutError | OSError) or _says_later(error):
        return unavailable(f"{name} does not answer: {text}.", hint="Check that it runs and can be reached.")
    if "READONLY" in text:
        return StoreReadOnly(f"{name} is a read-only replica.", hint="Point the URL to the primary.")
    if "WRONGTYPE" in text or "user_script" in text:
        return StoreCorrupt(f"{name} holds something else where queues should be: {text}", hint="Run penstock doctor.")
    return unavailable(f"{name} refused a call: {text}.", hint="Run penstock doctor on it.")

"""Connections to PostgreSQL: what the URL says, a bound on silence, and a listener that rings for other processes."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import select
import threading
import time
from collections.abc import Generator
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo, Format
from psycopg.rows import tuple_row

from penstock.errors import BadInput
from penstock.location import Location
from penstock.names import did_you_mean
from penstock.queue.wakeup import Bell

logger = logging.getLogger("penstock.queue.store")

OPTIONS = frozenset({"payload_limit", "pool_size", "timeout", "reply_timeout", "idle_timeout", "listen"})
_never = threading.Event()


class BoundedConnection(psycopg.Connection[Any]):
    """A connection whose server has to say something in time: one that is frozen or cut off never says that it is."""

    reply_timeout: float = 60

    @functools.cached_property
    def statements(self) -> psycopg.RawCursor[Any]:
        """The cursor that all statements are run with: one at a time uses the connection."""
        return cursor_of(self)

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        """Wait for a reply."""
        return super().wait(self._bounded(gen), *arguments, **options)

    def _bounded(self, gen: Any) -> Generator[Any, Any, Any]:
        """The driver's own dialogue with the server, which hears every tenth of a second when nothing has come."""
        deadline = time.monotonic() + self.reply_timeout
        try:
            asked = next(gen)
            while True:
                ready = yield asked
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"the server said nothing for {self.reply_timeout} s")
                asked = gen.send(ready)
        except StopIteration as end:
            return end.value


def cursor_of(connection: psycopg.Connection[Any]) -> psycopg.RawCursor[Any]:
    cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
    cursor.format = Format.BINARY
    return cursor


class Listener:
    """The thread that rings the bell for every notification; started by the first wait."""

    def __init__(self, arguments: dict[str, Any], space: str, bell: Bell, name: str) -> None:
        """Wait to be started; ``name`` is for messages."""
        self._arguments = arguments
        self._space = space
        self._bell = bell
        self._name = name
        self._thread: threading.Thread | None = None
        self._connection: psycopg.Connection[Any] | None = None
        self._left_behind: list[Any] = []
        self._closed = False
        self.hears = False  # whether every notification arrives here just now

    def start(self) -> None:
        """Listen from now on; safe to repeat."""
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="penstock-listen", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        """Ring for every notification. After a lost connection ring once, because some may have been missed."""
        deaf = False
        while not self._closed:
            try:
                with psycopg.connect(**self._arguments, autocommit=True) as connection:
                    self._connection, deaf = connection, False
                    connection.execute(f"LISTEN penstock_{self._space}")
                    self.hears = True
                    self._bell.ring()
                    for _ in connection.notifies():
                        if self._closed:
                            return
                        self._bell.ring()
            except Exception as error:
                self._is_deaf()
                if self._closed:
                    return
                level = logging.DEBUG if deaf else logging.WARNING  # an outage is logged once
                deaf = True
                logger.log(level, "cannot listen on %s, so waiting workers ask now and then: %s", self._name, error)
                _never.wait(1.0)

    def _is_deaf(self) -> None:
        """Notifications stop arriving: wake those who rely on them, so that they poll again."""
        if self.hears:
            self.hears = False
            self._bell.ring()

    def forked(self) -> None:
        """In a child: the thread and its connection are the parent's; the first wait starts another."""
        self._left_behind.append(self._connection)
        self._thread = self._connection = None
        self.hears = False

    def close(self) -> None:
        """Stop."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.cancel_safe(timeout=1)
            with contextlib.suppress(Exception):
                connection.close()


def connect_arguments(location: Location, timeout: int) -> dict[str, Any]:
    """The driver's arguments: what the URL says, without our own options."""
    ours = {"space", "durability", *OPTIONS}
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}
    parts = urlsplit(location.url)
    theirs = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name not in ours]
    for name, _ in theirs:
        if meant := did_you_mean(name, ours):
            raise BadInput(
                f"option {name!r} in {location.masked} is unknown.", hint=f"{meant}Ours: {', '.join(sorted(ours))}."
            )
        if name not in known:
            raise BadInput(
                f"option {name!r} in {location.masked} is known neither to us nor to the driver.",
                hint=f"{did_you_mean(name, known)}Ours: {', '.join(sorted(ours))}.",
            )
    _check_ports(location, parts.netloc)
    url = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(theirs, safe="/"), ""))
    try:
        arguments = conninfo_to_dict(url)
    except psycopg.Error as cause:
        raise BadInput(
            f"{location.masked} is not a database URL: {' '.join(str(cause).split())}.",
            hint="Write it as postgresql://user:password@host:5432/database.",
        ) from cause
    ours_unless_given = {
        "connect_timeout": timeout,
        "application_name": "penstock",
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
    }
    return {**ours_unless_given, **arguments}


def _check_ports(location: Location, netloc: str) -> None:
    """Refuse a port that is not a number; the driver would only find that out when it connects."""
    for host in netloc.rpartition("@")[2].split(","):
        port = re.sub(r"^\[.*\]", "", host).partition(":")[2]
        if port and not (port.isascii() and port.isdecimal()):
            raise BadInput(
                f"{location.masked} is not a database URL: port {port!r} is not a number.",
                hint="Write it as postgresql://user:password@host:5432/database.",
            )


def direct_arguments(location: Location) -> dict[str, Any]:
    """Where LISTEN is possible, if the URL says so."""
    text = location.options.get("listen")
    if text is None:
        return {}
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()):
        raise BadInput(
            f"listen {text!r} in {location.masked} is not an address.", hint="Write it as listen=db-1.example:5432."
        )
    return {"host": host, "port": int(port)}


def is_pooled(connection: psycopg.Connection[Any]) -> bool:
    """Whether a connection pooler answers: it tells another process number than the one that runs statements."""
    row = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    return row is not None and row[0] != connection.info.backend_pid


def is_quiet(connection: psycopg.Connection[Any]) -> bool:
    """Whether nothing has come on an idle connection: what comes there is its end."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)

"""Connections to MariaDB and MySQL: what the URL says, timeouts, and polling for what others have put."""

from __future__ import annotations

import inspect
import logging
import select
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from pymysql.constants import CLIENT

from penstock.errors import BadInput
from penstock.location import Location
from penstock.names import did_you_mean
from penstock.queue.wakeup import Bell

logger = logging.getLogger("penstock.queue.store")

OPTIONS = frozenset({"payload_limit", "pool_size", "timeout", "reply_timeout", "idle_timeout"})
# How often others' puts are looked for while somebody waits: soon after something came, then less and less often.
SOONEST, LATEST, SLOWING = 0.002, 0.35, 0.1
_NUMBERS = frozenset({"port", "connect_timeout", "read_timeout", "write_timeout", "client_flag", "max_allowed_packet"})
_SWITCHES = frozenset(
    {"ssl_disabled", "ssl_verify_cert", "ssl_verify_identity", "local_infile", "use_unicode", "compress", "named_pipe"}
)
_HINT = "Write it as mysql://user:password@host:3306/database."
_never = threading.Event()


class Poller:
    """The thread that rings the bell when other processes make work claimable. It polls only while somebody waits."""

    def __init__(self, look: Callable[[], Any], bell: Bell, name: str) -> None:
        """``look`` gives something else after others have put something; ``name`` is for messages."""
        self._look = look
        self._bell = bell
        self._name = name
        self._thread: threading.Thread | None = None
        self._closed = False
        self.hears = False  # whether it finds what others put just now

    def start(self) -> None:
        """Look while somebody waits; safe to repeat."""
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="penstock-look", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        thread, seen, rings, news_at, away = self._thread, None, -1, 0.0, False
        while not self._closed and self._thread is thread:
            if not self._bell.await_waiters():
                return
            try:
                current = self._look()
            except Exception as error:
                if self.hears:
                    self.hears = False
                    self._bell.ring()  # whoever sleeps because all would be found has to look by itself again
                if self._closed:
                    return
                # An outage is logged once.
                level = logging.DEBUG if away else logging.WARNING
                logger.log(level, "cannot look at %s, so waiting workers ask now and then: %s", self._name, error)
                away = True
                _never.wait(1.0)
                continue
            if current != seen or away or self._bell.rings != rings:
                news_at = time.monotonic()
            if current != seen or away:
                self._bell.ring()
            seen, rings, away, self.hears = current, self._bell.rings, False, True
            quiet = time.monotonic() - news_at
            _never.wait(min(LATEST, max(SOONEST, quiet * SLOWING)))

    def forked(self) -> None:
        """In a child: the thread is the parent's; the first wait starts another."""
        self._thread = None
        self.hears = False

    def close(self) -> None:
        """Stop."""
        self._closed = True


def connect_arguments(location: Location, timeout: int, reply_timeout: int) -> dict[str, Any]:
    """The driver's arguments: what the URL says, without our own options."""
    ours = {"space", "durability", *OPTIONS}
    known = set(inspect.signature(pymysql.connections.Connection.__init__).parameters) - {"self"}
    parts = urlsplit(location.url)
    theirs: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in ours:
            continue
        if meant := did_you_mean(name, ours):
            raise BadInput(
                f"option {name!r} in {location.masked} is unknown.", hint=f"{meant}Ours: {', '.join(sorted(ours))}."
            )
        if name not in known:
            raise BadInput(
                f"option {name!r} in {location.masked} is known neither to us nor to the driver.",
                hint=f"{did_you_mean(name, known)}Ours: {', '.join(sorted(ours))}.",
            )
        theirs[name] = _typed(location, name, value)
    host, port = _address(location)
    asked = any(name.startswith("ssl") for name in theirs)
    # The driver reads all of the system's certificates for every connection, which takes longer than connecting.
    plain = {"ssl_disabled": True} if not asked and host in ("127.0.0.1", "localhost", "::1") else {}
    return {
        "charset": "utf8mb4",
        "connect_timeout": timeout,
        "read_timeout": timeout,  # of the greeting
        "write_timeout": reply_timeout,
        **plain,
        **theirs,
        "host": host,
        "port": port,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": unquote(parts.path.lstrip("/")) or None,
        "autocommit": True,
        "client_flag": CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS | theirs.get("client_flag", 0),
    }


def _address(location: Location) -> tuple[str, int]:
    parts = urlsplit(location.url)
    try:
        return parts.hostname or "localhost", parts.port or 3306
    except ValueError as cause:
        raise BadInput(f"{location.masked} is not a database URL: {cause}.", hint=_HINT) from cause


def _typed(location: Location, name: str, value: str) -> Any:
    if name in _SWITCHES:
        return value.lower() in ("1", "true", "yes", "on")
    if name not in _NUMBERS:
        return value
    try:
        return int(value)
    except ValueError as cause:
        raise BadInput(f"{name} {value!r} in {location.masked} is not a number.", hint="Use a whole number.") from cause


def connect(arguments: dict[str, Any], settings: dict[str, int], reply_timeout: int) -> pymysql.Connection[Any]:
    """Connect with settings that every statement here relies on."""
    connection = pymysql.connect(**arguments)
    connection._read_timeout = reply_timeout  # noqa: SLF001 - the driver knows one for greeting and replies
    limits = dict(settings)
    if not is_mariadb(connection):  # MySQL has nothing like these
        limits = {name: value for name, value in settings.items() if name not in _MARIADB}
    changes = ", ".join(f"SESSION {name} = {value}" for name, value in limits.items())
    with connection.cursor() as cursor:
        cursor.execute(
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; "
            f"SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', {changes}"
        )
        while cursor.nextset():
            pass
    return connection


_MARIADB = frozenset({"idle_transaction_timeout", "in_predicate_conversion_threshold"})


def is_mariadb(connection: pymysql.Connection[Any]) -> bool:
    """Whether the server is MariaDB, not MySQL."""
    return "mariadb" in connection.get_server_info().lower()


def is_quiet(connection: pymysql.Connection[Any]) -> bool:
    """Whether nothing has come on an idle connection: what comes there is its end."""
    sock = connection._sock  # noqa: SLF001 - the driver has no other way to it
    if sock is None:
        return False
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLIN)
    return not poll.poll(0)

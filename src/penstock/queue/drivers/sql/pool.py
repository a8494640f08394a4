"""Pool: connections of this process to one database, made when needed and used again, the latest first."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from penstock.errors import StoreUnavailable


class Closable(Protocol):
    """What a pool keeps."""

    def close(self) -> None:
        """Give the connection up."""


C = TypeVar("C", bound=Closable)


class Pool(Generic[C]):
    """At most ``size`` connections; whoever finds all in use waits."""

    def __init__(
        self, connect: Callable[[], C], is_quiet: Callable[[C], bool], *, size: int, timeout: float, name: str
    ) -> None:
        """``connect`` makes one, ``is_quiet`` looks at an idle one; ``name`` is for messages."""
        self._connect = connect
        self._is_quiet = is_quiet
        self._size = size
        self._timeout = timeout
        self._name = name
        self._left_behind: list[Any] = []
        self._closed = False
        self.begin_anew()

    def begin_anew(self) -> None:
        """In a forked child: the connections are the parent's, and are neither used nor closed here."""
        self._left_behind.append(getattr(self, "_idle", None))
        # A token for each connection that may be taken: cheaper than a semaphore, which is written in Python.
        self._free: SimpleQueue[None] = SimpleQueue()
        for _ in range(self._size):
            self._free.put(None)
        self._idle: list[tuple[C, float]] = []
        self._lost_at = 0.0

    def take(self, *, look: bool = True) -> C:
        """A connection; give it back with :meth:`give` or :meth:`drop`.

        ``look=False``: whoever takes it can bear a connection that is gone. The look is a system call, at which a busy
        program's other threads may take over and keep the request from being sent.
        """
        try:
            self._free.get(timeout=self._timeout)
        except Empty:
            raise StoreUnavailable(
                f"all connections to {self._name} were in use for {self._timeout:g} s.",
                hint="Raise ?pool_size=, or look for calls that hold their connection.",
            ) from None
        try:
            while True:
                try:
                    connection, seen = self._idle.pop()
                except IndexError:
                    return self._connect()
                # A server that has gone has closed it, which can be heard without asking. What took one connection has
                # most likely taken those before it too.
                if seen > self._lost_at and (not look or self._is_quiet(connection)):
                    return connection
                _close(connection)
        except BaseException:
            self._free.put(None)
            raise

    def give(self, connection: C) -> None:
        """Take a connection back that can be used again."""
        self._idle.append((connection, time.monotonic()))
        self._free.put(None)
        if self._closed:
            self.close()

    def drop(self, connection: C, *, lost: bool) -> None:
        """Take a connection back that cannot; ``lost``: the server may be gone, and the others with it."""
        if lost:
            self._lost_at = time.monotonic()
        _close(connection)
        self._free.put(None)

    def close(self) -> None:
        """Close what is idle, and what is given back from now on."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            _close(connection)


def _close(connection: Closable) -> None:
    with contextlib.suppress(Exception):
        connection.close()

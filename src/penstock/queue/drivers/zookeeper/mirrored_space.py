"""MirroredSpace: one space as the calls of a handle read and write it, one at a time, on the mirror."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

from penstock import failpoints
from penstock.clock import Clock, Micros
from penstock.errors import CannotOpen, OutcomeUnknown, StoreUnavailable, UnitTooLarge
from penstock.location import Location
from penstock.queue.drivers.zookeeper import schema
from penstock.queue.drivers.zookeeper.connection import Address, Connection
from penstock.queue.drivers.zookeeper.layout import Layout
from penstock.queue.drivers.zookeeper.mirror import Mirror
from penstock.queue.drivers.zookeeper.optimistic import Optimistic
from penstock.queue.drivers.zookeeper.wakeup import Doorbell
from penstock.queue.rules import endings
from penstock.queue.rules.state import State

T = TypeVar("T")
logger = logging.getLogger("penstock.queue.zookeeper")


class MirroredSpace:
    """A session of this process, the mirror of the space, and the doorbell."""

    def __init__(self, location: Location, clock: Clock, cascaded: deque[tuple[str, str, str]]) -> None:
        """Connect and make what is not there yet. ``cascaded`` takes what calls cancel because of others."""
        self.name = location.masked
        self.address = Address(location)
        self.layout = Layout(self.address.chroot, location.space)
        self.doorbell = Doorbell()
        self._space = location.space
        self._clock = clock
        self._cascaded = cascaded
        self.closed = False
        self._open()

    def _open(self) -> None:
        """Open a session of this process."""
        self._lock = threading.RLock()
        self.connection = Connection(self.address, self.doorbell.flapped)
        self.optimistic = Optimistic(self.connection, self.layout, self.now)
        self._is_fork = False
        try:
            schema.prepare(self.connection, self.layout, self._space)
            self.connection.write(self.layout.handles, b"")  # gives the server's time
            self.mirror.ticks.handle = int(self.optimistic.bind().rpartition("-")[2]) % 0x10000
        except BaseException as error:
            self.connection.close()
            if isinstance(error, StoreUnavailable | OutcomeUnknown):
                raise CannotOpen(str(error)) from error
            raise

    @property
    def mirror(self) -> Mirror:
        """The space as this handle knows it."""
        return self.optimistic.mirror

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        """One call at a time, and none after the end."""
        self.open_after_fork()
        with self._lock:
            self.check_not_closed()
            yield

    def check_not_closed(self) -> None:
        """Refuse calls after the end."""
        if self.closed:
            raise StoreUnavailable(f"{self.name} was closed.", hint="Open it again to continue.")

    def now(self) -> Micros:
        """The servers' time as learnt from our writes, or the fake one."""
        self.check_not_closed()
        fixed = self._clock.fixed()
        return self.connection.now() if fixed is None else fixed

    def follow(self) -> None:
        """Bring the mirror up to what others have committed."""
        self.optimistic.follow(time.monotonic() + self.address.patience)

    def read(self, work: Callable[[State], T]) -> T:
        """Look at what is stored now."""
        with self.using():
            self.follow()
            return work(self.mirror.state)

    def write(
        self,
        work: Callable[[State], T],
        *,
        certain: Callable[[T], bool] | None = None,
        binds: bool = False,
        queue: str | None = None,
    ) -> T:
        """Run a call on the mirror and commit what it changed; ``queue`` is one whose settings it may change."""

        def draft() -> T:
            if queue is not None:
                self.mirror.touched.add(queue)
            return work(self.mirror.state)

        with self.using():
            answer, rang = self.optimistic.run(draft, certain=certain, binds=binds)
            self._cascaded += self.mirror.state.take_cascaded()
        if rang:
            self.doorbell.ring()
        return answer

    def resume(self) -> None:
        """Consume the links that earlier calls postponed. These have happened: if this fails, the reaper continues."""
        state, usual = self.mirror.state, self.mirror.state.fan_out
        try:
            while state.postponed:
                failpoints.point("links.postponed")
                try:
                    self.write(lambda state: endings.resume(state, self.now()))
                except UnitTooLarge:
                    if state.fan_out is None or state.fan_out == 1:
                        raise
                    state.fan_out //= 2
        except (StoreUnavailable, OutcomeUnknown, UnitTooLarge) as error:
            logger.warning("entries of %s are not released yet: %s", self.name, error)
        finally:
            state.fan_out = usual

    def forked(self) -> None:
        """In a child: the session and its threads are the parent's; the next call opens another one."""
        self._is_fork = True
        self.doorbell.forked()

    def open_after_fork(self) -> None:
        """Open a session of this process, if the one there is belongs to the parent."""
        self.check_not_closed()
        if self._is_fork:
            self._open()

    def close(self) -> None:
        """End the session, and with it every claim of this handle."""
        self.closed = True
        self.doorbell.close()
        if not self._is_fork:
            self.connection.close()

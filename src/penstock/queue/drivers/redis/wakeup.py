"""The doorbell: a subscription that lives only while somebody may wait, so that a busy worker receives nothing.

A function that may have made something claimable publishes one message. :meth:`Bell.listen` subscribes, unless it is
already, before the claim that the wait follows; the first message ends the subscription and rings. A listener
thread reads the messages; when its connection is cut it rings, for nobody knows what was missed, and connects again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from redis.exceptions import RedisError

from penstock.queue.drivers.redis.connection import Link

logger = logging.getLogger("penstock.queue.redis")


class Bell:
    """Rings of this process and of the server."""

    def __init__(self, connect: Callable[[], Link], channel: str, patience: float) -> None:
        """Connect only when somebody listens; ``patience`` bounds how long that may take."""
        self._connect = connect
        self._channel = channel
        self._patience = patience
        self._change = threading.Condition()
        self._joining = threading.Lock()
        self._sending = threading.Lock()
        self._link: Link | None = None
        self._listening = False
        self._joined = 0  # how often the server has said that we are subscribed
        self._closed = False
        self.rings = 0

    def ring(self) -> None:
        """Wake all who wait."""
        with self._change:
            self.rings += 1
            self._change.notify_all()

    def listen(self) -> int:
        """Listen from now on. Returns how often it has rung so far."""
        if not self._listening and not self._closed:
            with self._joining:
                if not self._listening:
                    self._join()
        return self.rings

    def wait(self, seen: int, seconds: float) -> bool:
        """Sleep until it has rung since ``seen``."""
        with self._change:
            rang = self._change.wait_for(lambda: self.rings != seen or self._closed, max(0.0, seconds))
            if not rang:
                # Subscribing again shows whether the connection still works.
                self._listening = False
            return rang

    def close(self) -> None:
        """End the listener."""
        self._closed = True
        self.ring()
        self._drop(self._link)

    def _join(self) -> None:
        """Subscribe, and wait until the server says so."""
        try:
            link = self._link
            if link is None:
                link = self._link = self._connect()
                threading.Thread(target=self._read, args=(link,), name="penstock-bell", daemon=True).start()
            before = self._joined
            self._send(link, "SSUBSCRIBE")
            with self._change:
                # A message may already have ended it again: what counts is that it was so.
                joined = self._change.wait_for(lambda: self._joined != before or self._link is not link, self._patience)
            if not joined:
                self._drop(link)
        except (RedisError, OSError) as error:
            # Without a bell a worker polls.
            logger.debug("cannot listen to %s: %s", self._channel, error)
            self._drop(self._link)

    def _read(self, link: Link) -> None:
        try:
            while self._link is link:
                kind = link.read_response()[0]
                if kind == b"ssubscribe":
                    with self._change:
                        self._listening = True
                        self._joined += 1
                        self._change.notify_all()
                elif kind == b"smessage" and self._listening:
                    self._send(link, "SUNSUBSCRIBE")
                    with self._change:
                        self._listening = False
                    self.ring()
        except Exception as error:  # whatever ends the reading, what comes now is missed
            if not self._closed:
                logger.debug("no longer listening to %s: %s", self._channel, error)
        finally:
            self._drop(link)

    def _send(self, link: Link, command: str) -> None:
        with self._sending:
            # A connection that was dropped would open itself again.
            if self._link is link:
                link.send_command(command, self._channel, check_health=False)

    def _drop(self, link: Link | None) -> None:
        with self._change:
            if link is None or self._link is not link:
                return
            self._link = None
            self._listening = False
        with self._sending, contextlib.suppress(Exception):
            link.disconnect()
        self.ring()

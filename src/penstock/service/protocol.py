"""HTTP/1.1 by uvicorn and h11, with a limit on how long the head of a request may take to arrive."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def protocol(head_seconds: float) -> type[asyncio.Protocol]:
    """The protocol class for a limit; uvicorn makes one object per connection."""

    class PatientOnce(H11Protocol):
        """Closes a connection whose request's head does not arrive in time: slow heads cost a connection each."""

        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._begin()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._end()
            elif self._timer is None:
                self._begin()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end()
            super().connection_lost(exc)

        def _begin(self) -> None:
            self._timer = self.loop.call_later(head_seconds, self.transport.close)

        def _end(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return PatientOnce

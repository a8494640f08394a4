"""A wire between a store and its server that tests can cut at a chosen moment."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable


class Proxy:
    """Listens on a port of its own and carries everything to the server and back, until told otherwise."""

    def __init__(self, port: int) -> None:
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.cut_requests = 0  # so many requests are swallowed, with their connection
        self.cut_replies = 0  # so many replies are
        self._later: dict[str, int] = {}  # so many more go through before one is swallowed
        self.on_cut: Callable[[], object] = lambda: None  # before the ends hear of a cut
        self._lock = threading.Lock()
        self.silent = False  # connections stay open and carry nothing
        self.down = False  # connections are refused
        self.mute = 0  # so many connections are accepted and never answered
        self._muted: list[socket.socket] = []
        self.stall_after: int | None = None  # after so many bytes of replies nothing is read any more
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self.down:
                    near.close()
                    continue
                if self.mute:
                    self.mute -= 1
                    self._muted.append(near)
                    continue
                try:
                    far = socket.create_connection(("127.0.0.1", self._server))
                except OSError:  # the server is down, and so is this end
                    near.close()
                    continue
                self._pairs.append((near, far))
                threading.Thread(target=self._carry, args=(near, far, "cut_requests"), daemon=True).start()
                threading.Thread(target=self._carry, args=(far, near, "cut_replies"), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, cut: str) -> None:
        with contextlib.suppress(OSError):
            while data := self._receive(source, cut):
                if self._is_cut(cut):
                    self.on_cut()
                    break
                if not self.silent:
                    target.sendall(data)
        _end(source, target)

    def _receive(self, source: socket.socket, which: str) -> bytes:
        data = source.recv(65536)
        if which == "cut_replies" and self.stall_after is not None:
            self.stall_after -= len(data)
            while self.stall_after is not None and self.stall_after < 0:
                time.sleep(0.01)
        return data

    @property
    def stalled(self) -> bool:
        """Whether it has stopped to read."""
        return self.stall_after is not None and self.stall_after < 0

    def cut_later(self, which: str, after: int) -> None:
        """Let so many more requests or replies through, then swallow one with its connection."""
        with self._lock:
            self._later[which] = after

    def _is_cut(self, which: str) -> bool:
        with self._lock:
            later = self._later.pop(which, None)
            if later:
                self._later[which] = later - 1
            elif later == 0:
                return True
            if getattr(self, which) > 0:
                setattr(self, which, getattr(self, which) - 1)
                return True
            return False

    def cut_all(self) -> None:
        """Cut every connection there is."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _end(*pair)

    def lead_to(self, port: int) -> None:
        """Lead to another server from now on."""
        self._server = port
        self.cut_all()

    def close(self) -> None:
        """Cut all and listen no more."""
        self._listener.close()
        self.cut_all()
        _end(*self._muted)


def _end(*ends: socket.socket) -> None:
    for one in ends:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()

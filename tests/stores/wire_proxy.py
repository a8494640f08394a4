"""A wire between a store and its server that tests can cut at a chosen moment."""

import contextlib
import socket
import threading


class Proxy:
    """Listens on a port of its own and carries everything to the server and back, until told otherwise."""

    def __init__(self, port: int) -> None:
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.cut_requests = 0  # so many requests are swallowed, with their connection
        self.cut_replies = 0  # so many replies are
        self.silent = False  # connections stay open and carry nothing
        self.down = False  # connections are refused
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self.down:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._server))
                self._pairs.append((near, far))
                threading.Thread(target=self._carry, args=(near, far, "cut_requests"), daemon=True).start()
                threading.Thread(target=self._carry, args=(far, near, "cut_replies"), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, cut: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if getattr(self, cut) > 0:
                    setattr(self, cut, getattr(self, cut) - 1)
                    break
                if not self.silent:
                    target.sendall(data)
        _end(source, target)

    def cut_all(self) -> None:
        """Cut every connection there is."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _end(*pair)

    def close(self) -> None:
        """Cut all and listen no more."""
        self._listener.close()
        self.cut_all()


def _end(*ends: socket.socket) -> None:
    for one in ends:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()

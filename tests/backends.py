"""A real HTTP backend on loopback that can be told to fail, hang, answer garbage or be slow."""

import contextlib
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Backend:
    """What it answers is ``mode``: a status, or "hang", "garbage", "drip", "slow", "cut"; and what it was sent."""

    def __init__(self, port: int = 0) -> None:
        self.mode: Any = 200
        self.headers: dict[str, str] = {}
        self.calls: list[tuple[str, str, dict[str, str], bytes]] = []
        self.taken: defaultdict[str, list[str]] = defaultdict(list)  # bodies answered with success, by x-name
        self.lock = threading.Lock()
        self.hold = threading.Event()
        backend = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: Any) -> None:
                pass

            def answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = self.rfile.read(length)
                if len(body) < length:  # its sender died in the middle of it
                    self.close_connection = True
                    return
                mode = backend.mode
                with backend.lock:
                    backend.calls.append((self.command, self.path, dict(self.headers.items()), body))
                if mode == "hang":
                    backend.hold.wait(30)
                    self.close_connection = True
                    return
                if mode == "cut":
                    self.close_connection = True
                    return
                if mode == "garbage":
                    self.wfile.write(b"\x00\xff nothing like HTTP\r\n\r\n")
                    self.close_connection = True
                    return
                if mode == "drip":
                    with contextlib.suppress(OSError):
                        for byte in b"HTTP/1.1 200 OK\r\nx-slow: " + b"y" * 300:
                            self.wfile.write(bytes([byte]))
                            self.wfile.flush()
                            if backend.hold.wait(0.05):
                                break
                    self.close_connection = True
                    return
                if mode == "slow":
                    time.sleep(0.3)
                    mode = 200
                status = mode(self.path, body) if callable(mode) else mode
                if 200 <= status < 300:
                    with backend.lock:
                        backend.taken[self.headers.get("x-name", self.path)].append(body.decode("utf-8", "replace"))
                self.send_response(status)
                for name, value in backend.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"ok")

            do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = do_OPTIONS = answer

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 200

            def handle_error(self, *arguments: Any) -> None:
                pass

        self.server = Server(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def until(self, calls: int) -> None:
        """Wait until it was called so often."""
        deadline = time.monotonic() + 60
        while len(self.calls) < calls:
            assert time.monotonic() < deadline, f"{len(self.calls)} of {calls} calls came"
            time.sleep(0.01)

    def close(self) -> None:
        self.hold.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(5)


@contextlib.contextmanager
def backend() -> Iterator[Backend]:
    made = Backend()
    try:
        yield made
    finally:
        made.close()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port

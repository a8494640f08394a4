"""Exposing: a small HTTP server for probes and Prometheus: ``/live``, ``/ready`` and ``/metrics``."""

from __future__ import annotations

import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from penstock.errors import CannotOpen
from penstock.telemetry.health import HealthSource
from penstock.telemetry.snapshot import CONTENT_TYPE

logger = logging.getLogger("penstock.telemetry")

MOST_AT_ONCE = 16
CLIENT_SECONDS = 5.0


class Exporter:
    """Serves one source, in threads of its own."""

    def __init__(self, host: str, port: int, source: HealthSource) -> None:
        """Listen now; port 0 takes a free one."""
        try:
            self._server = _Server((host, port), source)
        except (OSError, OverflowError) as cause:
            raise CannotOpen(
                f"cannot listen on {host} port {port}: {getattr(cause, 'strerror', None) or cause}.",
                hint="Choose another one with --host and --port; 0 is any free port.",
            ) from cause
        self.port: int = self._server.server_address[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="penstock-exporter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], source: HealthSource) -> None:
        self.source = source
        self._room = threading.BoundedSemaphore(MOST_AT_ONCE)
        if ":" in address[0]:
            import socket

            self.address_family = socket.AF_INET6
        super().__init__(address, _Request)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a probe broke off", exc_info=True)


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = CLIENT_SECONDS
    server_version, sys_version = "penstock", ""

    def do_GET(self) -> None:
        source, path = self.server.source, self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(200, source.snapshot().text().encode(), CONTENT_TYPE)
        elif path in ("/live", "/ready"):
            state = source.state()
            well = state.live if path == "/live" else state.ready
            status = {"status": "ok"} if well else {"status": f"not {path[1:]}", "why": state.why}
            self._answer(200 if well else 503, msgspec.json.encode(status), "application/json")
        else:
            self._answer(404, b'{"status":"there is /live, /ready and /metrics"}', "application/json")

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        logger.debug(format, *args)

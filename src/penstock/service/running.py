"""The server process: opens the stores, serves them, and closes them again."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Any, cast

import uvicorn

from penstock.errors import CannotOpen
from penstock.opening import open_logs, open_queues
from penstock.service.app import create_app, read_routes, read_splitting
from penstock.service.protocol import protocol
from penstock.service.settings import ServiceSettings
from penstock.stream.local.process import load_topology


class Server(uvicorn.Server):
    """uvicorn's server that also tells the application of its end: endless streams would keep it waiting."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal to end."""
        app: Any = self.config.app
        app.state.ending.set()
        super().handle_exit(sig, frame)


def serve(settings: ServiceSettings, announce: Callable[[str], object] = lambda url: None) -> None:
    """Serve until SIGTERM or Ctrl-C; requests under way are finished first. ``announce`` gets the URL."""
    # Report unreadable files before a store is created.
    topologies = tuple(load_topology(name).check() for name in settings.topologies)
    if settings.routes is not None:
        read_routes(settings.routes)
    if settings.splitting is not None:
        read_splitting(settings.splitting)
    with ExitStack() as opened:
        listening = opened.enter_context(_listening(settings))
        queues = opened.enter_context(open_queues(settings.queues))
        logs = None if settings.logs is None else opened.enter_context(open_logs(settings.logs))
        app = create_app(settings, queues, logs, topologies)
        server = Server(
            uvicorn.Config(
                app,
                http=cast("type[asyncio.Protocol]", protocol(settings)),  # it only calls it
                ws="none",
                lifespan="on",
                access_log=False,
                server_header=False,
                date_header=True,
                log_config=None,  # its lines are written like all others
                log_level="warning",
                h11_max_incomplete_event_size=settings.head_bytes,
                timeout_keep_alive=math.ceil(settings.idle_seconds),
                timeout_graceful_shutdown=20,
            )
        )
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        announce(f"http://{host}:{listening.getsockname()[1]}")
        # uvicorn catches the signals while it serves and raises them again afterwards: they need no effect then.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        server.run(sockets=[listening])


def _listening(settings: ServiceSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listening = socket.create_server((settings.host, settings.port), family=family, backlog=1024)
    except OSError as cause:
        raise CannotOpen(
            f"cannot listen on {settings.host} port {settings.port}: {cause.strerror}.",
            hint="Choose another one with --host and --port; 0 is any free port.",
        ) from cause
    # Connections inherit it. asyncio does not set it on a socket made without a protocol, and then the body of every
    # answer would wait until the client acknowledges the head, which takes it 40 ms on a connection that is kept.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening

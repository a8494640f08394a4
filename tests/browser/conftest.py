"""The dashboard in a real, headless Chromium: a service in this process, and pages that may not log an error."""

from __future__ import annotations

import os
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.store_urls import STORES, Servers

from penstock import LogStore, QueueStore, open_logs, open_queues
from penstock.service import ServiceSettings, create_app
from penstock.service.dashboard import events, reading

PATIENCE = 60_000  # milliseconds that a page gets, on a machine that is busy with other tests
# Tests of what goes wrong make these.
HARMLESS = re.compile(r"the server responded with a status of|net::ERR_|Response Status Error Code|^htmx:|\[object")


class Site:
    """A service that is served on a free port."""

    def __init__(self, app: Any, port: int = 0) -> None:
        self.app = app
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self._socket.listen()  # so that a page which is opened before the server is ready waits for it
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=lambda: self._server.run(sockets=[self._socket]), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it; open streams are cut."""
        self.app.state.ending.set()
        self._server.should_exit = True
        self._thread.join(20)
        self._socket.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's Chromium; without it, tests are skipped on a laptop and fail in CI."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("chromium is not installed here")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed here")
    with sync_api.sync_playwright() as playwright:
        options = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        started = playwright.chromium.launch(executable_path=program, args=options, timeout=4 * PATIENCE)
        yield started
        started.close()


@pytest.fixture(autouse=True)
def _no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages stay as they are while a test acts on them."""
    monkeypatch.setattr(events, "EVERY", 3600.0)


@pytest.fixture
def quick_ticks(_no_ticks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are renewed several times a second."""
    monkeypatch.setattr(events, "EVERY", 0.4)
    monkeypatch.setattr(events, "LOOK", 0.1)
    monkeypatch.setattr(reading, "FRESH", 0.0)
    monkeypatch.setattr(reading, "STALE", 0.0)


@pytest.fixture
def queues(tmp_path: Path) -> Iterator[QueueStore]:
    with open_queues(f"sqlite:///{tmp_path}/q.db?durability=fast") as store:
        yield store


@pytest.fixture(params=["sqlite", "postgres"])
def either(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Iterator[QueueStore]:
    """A store in a file, and one on a server."""
    with open_queues(STORES[request.param](tmp_path, servers).url) as store:
        yield store


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogStore]:
    with open_logs(f"file://{tmp_path}/logs?durability=fast") as store:
        yield store


@pytest.fixture
def serve(logs: LogStore) -> Iterator[Callable[..., Site]]:
    """Starts services over a store."""
    started: list[Site] = []

    def start(store: QueueStore, topologies: tuple[Any, ...] = (), *, port: int = 0, **settings: Any) -> Site:
        app = create_app(ServiceSettings(queues=store.name, **settings), store, logs, topologies)
        started.append(Site(app, port))
        return started[-1]

    yield start
    for site in started:
        site.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages; what their scripts log as an error, and what the policy forbids, fails the test."""
    contexts: list[Any] = []
    wrong: list[str] = []

    def note(message: Any) -> None:
        if message.type == "error" and not HARMLESS.search(message.text):
            wrong.append(message.text)

    def open_another(width: int = 1280, scheme: str = "light") -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 844 if width < 600 else 900},
            color_scheme=scheme,
            reduced_motion="reduce",
        )
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        return page

    yield open_another
    for context in contexts:
        context.close()
    assert wrong == []

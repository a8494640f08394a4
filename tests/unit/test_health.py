"""Health: live is about the worker's loop, ready about its store; probes by file and by port."""

import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import penstock
from penstock import QueueStore, Worker
from penstock.cli.health import main as probe
from penstock.errors import CannotOpen, StoreUnavailable
from penstock.telemetry import health
from penstock.telemetry.exposing import Exporter
from penstock.telemetry.health import HealthFile, HealthState, WorkerHealth
from penstock.telemetry.reporting import Reporter
from penstock.telemetry.snapshot import Snapshot


def eventually(condition: Callable[[], object], timeout: float = 30) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


class Source:
    def __init__(self, state: HealthState) -> None:
        self.said = state

    def state(self) -> HealthState:
        return self.said

    def snapshot(self) -> Snapshot:
        snapshot = Snapshot()
        snapshot.add("penstock_processes", (), 1)
        return snapshot


GOOD = HealthState(True, True)


@pytest.fixture
def store() -> Iterator[QueueStore]:
    with penstock.open_queues("memory://") as opened:
        opened.queue("work", int).handler(lambda number: None)
        yield opened


@pytest.fixture
def worker(store: QueueStore) -> Iterator[Worker]:
    made = Worker(store)
    made.start()
    yield made
    made.stop()


class TestWorker:
    def test_one_that_works_is_live_and_ready(self, worker: Worker) -> None:
        watched = WorkerHealth(worker)
        eventually(lambda: watched.state() == GOOD)
        watched.close()

    def test_without_its_store_it_is_live_and_not_ready(
        self, worker: Worker, store: QueueStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def away(*_: object, **__: object) -> None:
            raise StoreUnavailable("away")

        monkeypatch.setattr(health, "READY_SECONDS", 0.2)
        monkeypatch.setattr(health, "ASK_EVERY", 0.02)
        monkeypatch.setattr(store.driver, "_settle", away)
        monkeypatch.setattr(store.driver, "locks", away)
        watched = WorkerHealth(worker)
        eventually(lambda: not watched.state().ready)
        state = watched.state()
        assert state.live
        assert "has not answered" in state.why
        monkeypatch.undo()
        eventually(lambda: watched.state() == GOOD)
        watched.close()

    def test_a_store_that_keeps_it_waiting_does_not_make_it_dead(
        self, worker: Worker, store: QueueStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waits, answer = threading.Event(), threading.Event()
        settle = store.driver._settle

        def slow(*arguments: object) -> object:
            waits.set()
            answer.wait(30)
            return settle(*arguments)

        monkeypatch.setattr(store.driver, "_settle", slow)
        monkeypatch.setattr(health, "LIVE_SECONDS", 0.1)
        watched = WorkerHealth(worker)
        store.driver.wake()
        try:
            assert waits.wait(30)
            time.sleep(0.2)
            assert watched.state().live
        finally:
            answer.set()
        watched.close()

    def test_a_loop_that_stands_still_is_dead(
        self, worker: Worker, store: QueueStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stands, go_on = threading.Event(), threading.Event()

        def still(*_: object) -> bool:
            stands.set()
            go_on.wait(30)
            return False

        monkeypatch.setattr(health, "LIVE_SECONDS", 0.1)
        monkeypatch.setattr(store.driver, "wait", still)
        watched = WorkerHealth(worker)
        try:
            assert stands.wait(30)
            eventually(lambda: not watched.state().live)
            assert "has not gone round" in watched.state().why
            assert not watched.state().ready
        finally:
            go_on.set()
        watched.close()

    def test_one_that_stops_is_not_ready(self, worker: Worker) -> None:
        watched = WorkerHealth(worker)
        eventually(lambda: watched.state().ready)
        worker.stop()
        assert watched.state() == HealthState(True, False, "the worker is stopping")
        watched.close()


class TestFile:
    def test_it_says_what_is_and_is_touched(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(health, "WRITE_EVERY", 0.02)
        path, source = tmp_path / "health", Source(GOOD)
        file = HealthFile(path, source.state)
        assert json.loads(path.read_bytes()) == {"live": True, "ready": True, "why": ""}
        os.utime(path, (0, 0))
        eventually(lambda: path.stat().st_mtime > 0)
        path.unlink()
        eventually(path.exists)
        source.said = HealthState(True, False, "the store")
        eventually(lambda: not json.loads(path.read_bytes())["ready"])
        file.close()
        assert list(tmp_path.iterdir()) == []

    def test_a_probe_reads_it(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "health"
        assert probe([str(path)]) == 1
        path.write_text('{"live": true, "ready": false, "why": "the store is away"}')
        assert probe([str(path)]) == 0
        assert probe([str(path), "--ready"]) == 1
        assert "not ready: the store is away" in capsys.readouterr().out
        os.utime(path, (time.time() - 20, time.time() - 20))
        assert probe([str(path)]) == 1
        assert "20s ago" in capsys.readouterr().out
        assert probe([str(path), "--within", "60"]) == 0
        for broken in ("", "[1]", "nonsense"):
            path.write_text(broken)
            assert probe([str(path)]) == 1


class TestPort:
    @pytest.fixture
    def source(self) -> Source:
        return Source(GOOD)

    @pytest.fixture
    def url(self, source: Source) -> Iterator[str]:
        exporter = Exporter("127.0.0.1", 0, source)
        yield exporter.url
        exporter.close()

    def test_what_there_is(self, url: str, source: Source) -> None:
        with urllib.request.urlopen(f"{url}/metrics") as answer:
            assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
            assert b"penstock_processes 1\n" in answer.read()
        source.said = HealthState(True, False, "no store")
        assert urllib.request.urlopen(f"{url}/live").status == 200
        for path, status in (("/ready", 503), ("/", 404), ("/v1/queues", 404)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(url + path)
            assert refused.value.code == status
            refused.value.close()

    def test_a_probe_asks_it(self, url: str, source: Source, capsys: pytest.CaptureFixture[str]) -> None:
        assert probe([url]) == probe([url, "--ready"]) == probe([f"{url}/ready"]) == 0
        source.said = HealthState(False, False, "stuck")
        assert probe([url]) == 1
        assert "stuck" in capsys.readouterr().out
        assert probe(["http://127.0.0.1:1", "--timeout", "1"]) == 1

    def test_a_port_that_is_taken_is_said(self, url: str, source: Source) -> None:
        with pytest.raises(CannotOpen, match="cannot listen"):
            Exporter("127.0.0.1", int(url.rpartition(":")[2]), source)

    def test_idle_connections_do_not_keep_others_out_for_long(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        import socket

        host, port = url.removeprefix("http://").split(":")
        idle = [socket.create_connection((host, int(port))) for _ in range(40)]
        try:
            eventually(lambda: probe([url, "--timeout", "1"]) == 0)
        finally:
            for connection in idle:
                connection.close()


def test_a_process_that_reports_that_it_is_ready_reports_the_metrics_of_a_ready_one() -> None:
    """The parent adds up last reports, so one between the two would be taken for the whole."""
    import socket

    parent, child = socket.socketpair()
    is_ready = threading.Event()

    def snapshot() -> Snapshot:
        metrics = Snapshot()
        metrics.add("penstock_slots", ("q",), 2 if is_ready.is_set() else 0)
        is_ready.set()
        return metrics

    with closing(parent):
        reporter = Reporter(child.detach(), snapshot, lambda: HealthState(True, is_ready.is_set()))
        for ready, slots in ((b"false", b"0"), (b"true", b"2")):
            reporter.send()
            report = parent.recv(1 << 16)
            assert b'["penstock_slots",["q"],' + slots in report
            assert ready in report.rpartition(b"penstock_slots")[2]
    eventually(lambda: "penstock-reporter" not in {thread.name for thread in threading.enumerate()})


def test_a_probe_loads_neither_stores_nor_other_commands() -> None:
    import subprocess
    import sys

    code = (
        "import sys; sys.argv=['penstock','health','/nowhere']\n"
        "from penstock.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 1\n"
        "print(sorted(set(sys.modules) & {'typer','rich','msgspec','sqlalchemy','penstock.queue','asyncio'}))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"

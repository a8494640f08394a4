"""`make demo` end to end: it ends by itself, its sums add up, and what it leaves behind can be looked at."""

import contextlib
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2
import pytest
from tests.docs.pages import ROOT


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ended = subprocess.run(
        [sys.executable, "examples/shop/demo.py", "--data", str(data)],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    assert "NO " not in ended.stdout
    assert ended.stdout.count("yes  ") == 9
    assert "kill -9" in ended.stdout
    assert str(data) in ended.stdout
    listed = subprocess.run(
        [sys.executable, "-m", "penstock", "queue", "list", "--json", "--url", f"sqlite:///{data}/shop.db"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    queues = {one["queue"]: one for one in json.loads(listed.stdout)}
    assert queues["parcels"]["dead"] == 1
    assert queues["reminders"]["delayed"] == 1
    assert queues["invoices"]["leased"] == 0


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_ctrl_c_ends_the_demo_and_its_workers_without_a_traceback(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-u", "examples/shop/demo.py", "--data", str(tmp_path / "data")],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - ignored by what runs in the background
    ) as demo:  # fmt: skip
        assert demo.stdout is not None
        said = ""
        while "orders come in" not in said:
            said += demo.stdout.readline()
        demo.send_signal(signal.SIGINT)
        said += demo.stdout.read()
        assert demo.wait(40) == 130, said
    assert "Traceback" not in said
    assert "stopped; the workers have ended" in said
    log = (tmp_path / "data" / "worker.log").read_text()
    for pid in re.findall(r"process \d+ is (\d+)", log):
        assert not Path(f"/proc/{pid}").exists()


def test_the_demo_of_a_failing_backend(tmp_path: Path) -> None:
    """It checks by itself that nothing was lost and every order was kept."""
    done = subprocess.run(
        [sys.executable, "examples/backend/demo.py", "--data", str(tmp_path / "data")],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is open" in done.stdout
    assert "All 200 requests are delivered, every customer's in order: True." in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_live_demo_shows_the_shop_until_ctrl_c(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-u", "examples/live/demo.py", "--data", str(tmp_path / "data"), "--port", "0"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - ignored by what runs in the background
    ) as demo:  # fmt: skip
        assert demo.stdout is not None
        said = ""
        while "Ctrl-C ends the demo" not in said:
            line = demo.stdout.readline()
            assert line, said
            said += line
        address = re.search(r"http://[\d.:]+", said)
        while "top --url" not in said:
            said += demo.stdout.readline()
        assert f"top --url sqlite:///{tmp_path / 'data' / 'shop.db'}\n" in said, "one line, however narrow the terminal"
        assert address is not None
        with httpx2.Client(base_url=address[0], timeout=30) as client:
            queues = ("bus.mails", "bus.stock", "parcels")
            while any(f">{queue}<" not in client.get("/ui/queues").text for queue in queues):
                time.sleep(0.2)
            while "done" not in client.get("/ui/queues/parcels?tab=history").text:
                time.sleep(0.2)
            assert "per-page" in client.get("/ui/topologies/clicks").text
        demo.send_signal(signal.SIGINT)
        said += demo.stdout.read()
        assert demo.wait(60) == 0, said
    assert "Traceback" not in said
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(address[0])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--fast"], "use --once, --spark or --port N"),
        (["--port"], "--port needs a number"),
        (["--port", "web"], "--port needs a number"),
    ],
)
def test_wrong_options_of_the_demo_are_refused(options: list[str], told: str) -> None:
    ended = subprocess.run(["tools/demo.sh", ".venv", *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert told in ended.stderr


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment whose Python only says what it was to run."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "runs $*"\n')
    python.chmod(0o755)
    return tmp_path / "venv"


def test_the_demo_without_a_terminal_says_that_it_runs_once(venv: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PENSTOCK_CACHE": str(tmp_path / "empty")}
    for options, is_told in (([], True), (["--once"], False)):
        ended = subprocess.run(
            ["tools/demo.sh", str(venv), *options],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert ended.stdout.startswith("demo: the output is not a terminal, so all examples run once") is is_told
        assert "runs examples/shop/demo.py" in ended.stdout
        assert "runs examples/live/demo.py" not in ended.stdout


def test_the_demo_in_a_terminal_hands_the_port_on(venv: Path) -> None:
    ours, terminal = pty.openpty()
    subprocess.run(["tools/demo.sh", str(venv), "--port", "8123"], cwd=ROOT, stdout=terminal, check=True)
    os.close(terminal)
    said = os.read(ours, 10_000).decode()
    os.close(ours)
    assert re.fullmatch(r"runs examples/live/demo.py --data demo-data/\S+ --port 8123\r\n", said)


def test_the_live_demo_refuses_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = subprocess.run(
            [sys.executable, "examples/live/demo.py", "--data", str(tmp_path / "data"), "--port", port],
            cwd=ROOT, capture_output=True, text=True, timeout=50, check=False,
        )  # fmt: skip
    assert ended.returncode == 2
    assert f"port {port} is taken" in ended.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.timeout(120)
def test_the_live_demo_takes_a_free_port_where_its_own_is_taken(tmp_path: Path) -> None:
    with contextlib.ExitStack() as holding:
        with contextlib.suppress(OSError):  # something else holds it: as good
            holding.enter_context(socket.create_server(("127.0.0.1", 8080)))
        ended = subprocess.run(
            [sys.executable, "examples/live/demo.py", "--data", str(tmp_path / "data"), "--seconds", "0.1"],
            cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    address = re.search(r"Open the dashboard: http://[\d.]+:(\d+)", ended.stdout)
    assert address is not None
    assert address[1] != "8080"

"""penstock stream: pictures, running, lag, beginning again."""

import importlib
import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from tests.stores.own_servers import eventually
from typer.testing import CliRunner

import penstock
from penstock.cli.app import app
from penstock.cli.health import main as probe
from penstock.stream import LocalRunner

FLOWS = """
from penstock.stream.computation import computation
from penstock.stream.state import Value
from penstock.stream.topology import Topology

@computation("count", inputs="words", outputs="counts", states=[Value("n", int, 0)])
def count(record, ctx):
    ctx.value("n").set(ctx.value("n").get() + 1)
    if record.value == "bad":
        raise RuntimeError("a bad word")
    ctx.produce("counts", ctx.value("n").get())

@computation("split", inputs="lines", outputs="words")
def split(record, ctx):
    for word in record.value.split():
        ctx.produce("words", word, key=word)

lines = Topology("lines", partitions=2).stream("lines", str).stream("words", str).stream("counts", int)
lines.add(split).add(count)
words = Topology("words").stream("words", str).stream("counts", int).add(count)
cyclic = Topology("cyclic").stream("words").add(count, streams={"counts": "words"})
"""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "flows.py").write_text(FLOWS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("flows", None)
    return f"file://{tmp_path / 'logs'}?durability=fast"


def run(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["stream", *words])
    assert result.exit_code == code, result.output
    return result.output


def test_draw(url: str) -> None:
    assert run("draw", "flows:words").startswith("flowchart LR\n")
    assert run("draw", "flows:words", "--form", "plantuml").endswith("@enduml\n")
    assert "words → [count] → counts" in run("draw", "flows:words", "--form", "text")
    assert "has a cycle" in run("draw", "flows:cyclic", code=2)
    assert "has no 'wards'" in run("draw", "flows:wards", code=2)
    assert "cannot import" in run("draw", "flaws:words", code=2)
    assert "jpeg" in run("draw", "flows:words", "--form", "jpeg", code=2)


def test_run_lag_and_reset(url: str) -> None:
    with penstock.open_logs(url) as logs:
        logs.create("words")
        logs.log("words", str).append_many(["a", "a", "b"], keys=["a", "a", "b"])
    assert "count words 3" in " ".join(run("lag", "flows:words", url).split())
    assert json.loads(run("lag", "flows:words", url, "--json")) == [
        {"computation": "count", "stream": "words", "lag": 3}
    ]
    assert "3 records" in run("run", "flows:words", url, "--drain")
    assert "count words 0" in " ".join(run("lag", "flows:words", url).split())
    assert "Aborted" in run("reset", "flows:words", url, "count", code=1)
    assert "has no computation 'cuont'" in run("reset", "flows:words", url, "cuont", "--yes", code=2)
    assert "count starts over\n" in run("reset", "flows:words", url, "count", "--yes")
    run("run", "flows:words", url, "--final", "--processes", "2")
    with penstock.open_logs(url) as logs:
        assert [one.value for one in logs.log("counts", int).records(0)] == [1, 2, 1, 1, 2, 1]
        logs.log("words", str).append("bad")
    assert "a bad word" in run("run", "flows:words", url, "--drain", code=1)


def test_run_until_a_signal(url: str, tmp_path: Path) -> None:
    penstock.open_logs(url).close()
    command = [sys.executable, "-m", "penstock", "stream", "run", "flows:words", url]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert "topology words reads the log words, which was not there" in child.stderr.readline()
        assert "words runs: count" in child.stderr.readline()
        with penstock.open_logs(url) as logs:
            logs.log("words", str).append("a", key="a")
            deadline = time.monotonic() + 20
            while logs.lag("words", "count").lag and time.monotonic() < deadline:
                time.sleep(0.02)
        child.send_signal(signal.SIGTERM)
        assert "1 records\t1 produced" in child.stderr.read()
        assert child.wait(20) == 0


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_running_topology_is_probed_and_measured(url: str, tmp_path: Path, processes: str) -> None:
    with penstock.open_logs(url) as logs:
        logs.create("words")
        logs.log("words", str).append_many(["a", "a", "b"], keys=["a", "a", "b"])
    health = tmp_path / "health"
    command = [sys.executable, "-m", "penstock", "stream", "run", "flows:words", url, "--processes", processes]
    command += ["--port", "0", "--health-file", str(health), "--log-format", "json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        lines = []
        while not (lines and lines[-1]["message"].startswith("metrics and health at ")):
            lines.append(json.loads(child.stderr.readline()))
        address = lines[-1]["message"].rpartition(" ")[2]
        assert {"topology": "words", "level": "INFO"}.items() <= lines[-1].items()

        def read() -> str:
            with urllib.request.urlopen(f"{address}/metrics", timeout=20) as answer:
                return str(answer.read().decode())

        eventually(lambda: probe([address, "--ready"]) == 0 and probe([str(health), "--ready"]) == 0, "ready")
        records = 'penstock_stream_records_total{topology="words",computation="count"} '
        eventually(lambda: f"{records}3" in read(), "three records")
        eventually(lambda: 'penstock_stream_lag{topology="words",computation="count"} 0' in read(), "no lag")
        with penstock.open_logs(url) as logs:
            logs.log("words", str).append("bad", key="b")
        last = [json.loads(line) for line in child.stderr.read().splitlines()]  # it ends by itself: all have failed
        assert any("3 records" in line["message"] for line in last)
        assert child.wait(20) == 1
    assert not health.exists()


def test_a_drain_is_not_probed(url: str) -> None:
    penstock.open_logs(url).close()
    assert "cannot be probed" in run("run", "flows:words", url, "--drain", "--port", "0", code=2)


def test_a_folder_that_is_not_there_is_not_made(url: str, tmp_path: Path) -> None:
    missing = f"file://{tmp_path / 'lgos'}"
    for command in (("run", "flows:words", missing, "--drain"), ("lag", "flows:words", missing)):
        assert "there is no folder" in run(*command, code=2)
    assert not (tmp_path / "lgos").exists()


def test_status_names_who_holds_event_time_back(url: str) -> None:
    with penstock.open_logs(url) as logs:
        logs.create("lines", 2)
        logs.log("lines", str).append("a b a", partition=0, timestamp=1_000_000)
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(".")
            topology = importlib.import_module("flows").lines
        runner = LocalRunner(topology, logs).start()
        assert runner.drain("20s")
    rows = {row["computation"]: row for row in json.loads(run("status", "flows:lines", url, "--json"))}
    assert rows["split"] == {
        "computation": "split",
        "lag": 0,
        "watermark": "1970-01-01T00:00:01+00:00",
        "held_by": None,
        "problem": None,
    }
    assert rows["count"]["watermark"] is None
    assert rows["count"]["held_by"] == "partition 1 of split, which has reported nothing yet"
    shown = run("status", "flows:lines", url)
    assert "waits for" in shown
    assert "partition 1 of split" in shown
    with penstock.open_logs(url) as logs, logs.appender("count.state", bytes) as out:
        out.append(b"\xc1", partition=0)
    assert "count has stopped at count.state-00, offset " in run("status", "flows:lines", url)

"""A topology in several processes: shared out, watched over, drained as one."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import LogStore
from penstock.clock import from_micros
from penstock.errors import BadInput, Conflict
from penstock.stream.processes import ProcessRunner, load_topology
from penstock.testing.stream_contract.asking import fill, numbers, rows, told, wait_until

NAME = "tests.unit.stream.flows:sums"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'logs'}?durability=fast"


@pytest.fixture
def logs(url: str) -> Iterator[LogStore]:
    with penstock.open_logs(url) as store:
        yield store


def expected(count: int, keys: int, times: int = 1) -> list[Any]:
    sums = {f"k{key}": sum(number for number in range(count) if number % keys == key) for key in range(keys)}
    return sorted(((key, value * times, 10**15) for key, value in sums.items()), key=repr)


def test_processes_share_the_work_and_drain_as_one(logs: LogStore, url: str) -> None:
    fill(logs, "in", numbers(400, keys=16), partitions=4)
    runner = ProcessRunner(NAME, logs, url, processes=2, checkpoint_records=20)
    with pytest.raises(BadInput):
        runner.watermark("nobody")
    runner.start()
    with pytest.raises(Conflict):
        runner.start()
    assert runner.wait_for_assignments("30s"), told(runner)
    wait_until(lambda: sorted(len(one.partitions) for one in runner.status()) == [2, 2], "both have a share")
    wait_until(lambda: runner.metrics["records"] == 400, "all is read")
    assert runner.watermark() is not None
    assert runner.is_done(from_micros(1))
    assert not runner.is_done(from_micros(10**15))
    assert runner.drain("30s", final=True), told(runner)
    assert rows(logs, "out") == expected(400, 16)
    assert runner.is_terminated


def test_a_process_that_dies_is_started_again(logs: LogStore, url: str) -> None:
    fill(logs, "in", numbers(300, keys=16), partitions=4)
    runner = ProcessRunner(NAME, logs, url, processes=2, checkpoint_records=10).start()
    assert runner.wait_for_assignments("30s")
    os.kill(runner._processes[0].pid, signal.SIGKILL)
    wait_until(lambda: runner.restarts == 1, "its end is seen")
    fill(logs, "in", numbers(300, keys=16))
    wait_until(lambda: len({one.process for one in runner.status()}) == 2, "it is back")
    assert runner.drain("40s", final=True), told(runner)
    assert rows(logs, "out") == expected(300, 16, times=2)


def test_processes_end_with_their_parent(logs: LogStore, url: str) -> None:
    runner = ProcessRunner(NAME, logs, url, processes=1).start()
    process = runner._processes[0]
    runner._stopping.set()
    assert process.end(20), "an end of its input is an end of it"
    runner.shutdown()


def test_shutdown_kills(logs: LogStore, url: str) -> None:
    runner = ProcessRunner(NAME, logs, url, processes=1).start()
    began = time.monotonic()
    runner.shutdown()
    assert time.monotonic() - began < 5
    assert runner.is_terminated


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tests.unit.stream.flows", "names no topology"),
        ("tests.unit.stream.flaws:sums", "cannot import"),
        ("tests.unit.stream.flows:some", "has no 'some'"),
        ("tests.unit.stream.flows:nothing", "no topology"),
    ],
)
def test_a_bad_name(name: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        load_topology(name)


def test_bad_input(logs: LogStore, url: str) -> None:
    assert load_topology("tests.unit.stream.flows:ready").name == "sums"
    with pytest.raises(BadInput):
        ProcessRunner(NAME, logs, url, processes=0)
    with pytest.raises(BadInput):
        ProcessRunner(NAME, logs, "memory://")
    with pytest.raises(BadInput, match="cannot run"):
        ProcessRunner(NAME, logs, url, processes=1, nonsense=1).start()

"""A topology in several processes: shared out, watched over, drained as one."""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import auctions
from tests.contract.stream.shorthand import fill, numbers, rows, told, wait_until
from tests.unit.stream import dying

import penstock
from penstock import LogStore
from penstock.clock import from_micros
from penstock.errors import BadInput, Conflict, StoreUnavailable
from penstock.policy import Retry
from penstock.stream.local import process_runner
from penstock.stream.local.process import load_topology
from penstock.stream.local.process_runner import ProcessRunner
from penstock.stream.local.runner import LocalRunner

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


def test_processes_write_nothing_of_their_own_to_stderr(
    logs: LogStore, url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """What the computation prints comes out there, and nothing else."""
    fill(logs, "in", numbers(20, keys=4), partitions=2)
    runner = ProcessRunner(NAME, logs, url, processes=2).start()
    assert runner.drain("30s", final=True), told(runner)
    out, err = capfd.readouterr()
    assert (out, set(err.splitlines())) == ("", {"what a computation prints is not an answer"})


def test_a_program_with_many_open_files_runs_processes(logs: LogStore, url: str) -> None:
    with contextlib.ExitStack() as opened:
        for _ in range(1100):
            opened.enter_context(Path("/dev/null").open("rb"))
        fill(logs, "in", numbers(20, keys=4), partitions=2)
        runner = ProcessRunner(NAME, logs, url, processes=2).start()
        assert runner.drain("30s", final=True), told(runner)
    assert rows(logs, "out") == expected(20, 4)


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


# --- deaths -------------------------------------------------------------------------------------------------

DYING = "tests.unit.stream.dying:topology"
ROWS = numbers(400, keys=16)


@pytest.fixture
def deaths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file here is a death."""
    folder = tmp_path / "deaths"
    folder.mkdir()
    monkeypatch.setenv(dying.FOLDER, str(folder))
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What a LocalRunner comes to."""
    with penstock.open_logs(f"file://{tmp_path_factory.mktemp('undisturbed')}?durability=fast") as store:
        fill(store, "in", ROWS, partitions=4)
        assert LocalRunner(dying.topology(), store).start().drain("60s", final=True)
        return results(store)


def results(store: LogStore) -> dict[str, list[Any]]:
    return {name: rows(store, name) for name in ("rung", "out", "windows")}


MOMENTS = ["import", "record", "timer", "drain", "ended", "second", "second timer"]


@pytest.mark.parametrize("moments", [[moment] for moment in MOMENTS] + [MOMENTS])
def test_a_death_changes_nothing(
    moments: list[str], logs: LogStore, url: str, deaths: Path, undisturbed: dict[str, list[Any]]
) -> None:
    fill(logs, "in", ROWS, partitions=4)
    runner = ProcessRunner(DYING, logs, url, processes=2, checkpoint_records=20)
    for moment in moments:
        (deaths / moment).touch()
    runner.start()
    assert runner.drain("60s", final=True), told(runner)
    assert not [moment for moment in moments if (deaths / moment).exists()], "it has died as often as it should"
    assert runner.restarts >= len(moments)
    assert results(logs) == undisturbed


def test_what_has_ended_is_not_begun_by_a_new_process(
    logs: LogStore, url: str, deaths: Path, undisturbed: dict[str, list[Any]]
) -> None:
    fill(logs, "in", ROWS, partitions=4)
    runner = ProcessRunner(DYING, logs, url, processes=2)
    runner.start()
    first = {str(process.pid) for process in runner._processes}
    (deaths / "second").touch()
    assert runner.drain("60s", final=True), told(runner)
    assert runner.restarts == 1
    assert set((deaths / "begun").read_text().split()) <= first
    assert results(logs) == undisturbed


def test_a_process_that_never_starts_is_told(logs: LogStore, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_runner, "BACKOFF", Retry(attempts=None, backoff="1ms", max_backoff="1ms"))
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(StoreUnavailable, match="process 0 of the runner has ended"):
        ProcessRunner(NAME, logs, url, processes=1).start()


def drain_under_fire(runner: ProcessRunner, chance: random.Random, *, kills: int, pauses: tuple[float, float]) -> None:
    """Drain to the end while processes of the runner are killed now and then."""
    drained: list[bool] = []
    draining = threading.Thread(target=lambda: drained.append(runner.drain("100s", final=True)))
    draining.start()
    for _ in range(kills):
        draining.join(chance.uniform(*pauses))
        if running := list(runner._processes):
            chance.choice(running)._child.kill()
    draining.join()
    assert drained == [True], told(runner)


def test_killed_again_and_again_while_it_drains(logs: LogStore, url: str, undisturbed: dict[str, list[Any]]) -> None:
    fill(logs, "in", ROWS, partitions=4)
    runner = ProcessRunner(DYING, logs, url, processes=2, checkpoint_records=20).start()
    drain_under_fire(runner, random.Random(7), kills=6, pauses=(0.05, 0.6))
    assert results(logs) == undisturbed


def test_ten_queries_killed_while_they_drain(logs: LogStore, url: str) -> None:
    read = auctions.events(2_000, seed=31)
    auctions.append(logs, read)
    runner = ProcessRunner("tests.auctions:everything", logs, url, processes=2, checkpoint_records=300).start()
    drain_under_fire(runner, random.Random(3), kills=3, pauses=(0.3, 1.5))
    for query in auctions.QUERIES:
        assert auctions.results(logs, query) == auctions.answer(query, read), query


def test_numbers_of_runs_rise_whatever_the_clock_says(logs: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [process_runner.number_of_run(logs, "sums")]
    for clock in (10**18, 5, 5, 2 * 10**18):
        monkeypatch.setattr(process_runner.time, "time_ns", lambda clock=clock: clock)
        found.append(process_runner.number_of_run(logs, "sums"))
    assert found == sorted(set(found))


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

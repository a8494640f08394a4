"""Errors that no retry can heal end a computation, on every runner: it says why and where, and nothing is half done."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.stream.shorthand import fill, told, values, wait_until
from tests.spark.in_process import InProcess
from tests.unit.stream import flows

import penstock
from penstock.errors import BadInput, ComputationFailed, Conflict, RecordCorrupt, StoreUnavailable, Undecodable
from penstock.log.drivers.files.format import segments
from penstock.log.protocol import Commit
from penstock.log.record import NewRecords, Partition
from penstock.log.settings import Retention
from penstock.log.store import LogStore
from penstock.stream.engine.permanent import failed_at, is_permanent
from penstock.stream.local.process_runner import ProcessRunner
from penstock.stream.local.runner import LocalRunner
from penstock.stream.progress import progress_of
from penstock.stream.runner import Runner, Status

PATIENCE = "60s"
Make = Callable[..., Runner]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'logs'}?durability=fast"


@pytest.fixture
def logs(url: str) -> Iterator[LogStore]:
    with penstock.open_logs(url) as store:
        yield store


@pytest.fixture(params=["local", "processes", "spark"])
def runner(request: pytest.FixtureRequest, logs: LogStore, url: str) -> Iterator[Make]:
    made: list[Runner] = []

    def make(name: str) -> Runner:
        if request.param == "processes":
            made.append(ProcessRunner(f"tests.unit.stream.flows:{name}", logs, url, processes=1))
        elif request.param == "local":
            made.append(LocalRunner(getattr(flows, name)(), logs))
        else:
            pytest.importorskip("pyspark", reason="pyspark is not installed here")
            from penstock.spark import SparkRunner

            made.append(SparkRunner(getattr(flows, name)(), logs, InProcess()))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.shutdown()


def failed(runner: Runner, computation: str = "tally") -> Status:
    """The status of an instance that has failed."""

    def found() -> list[Status]:
        return [one for one in runner.status() if one.computation == computation and one.state == "failed"]

    wait_until(found, f"{computation} fails: {told(runner)}")
    return found()[0]


def flip(logs: LogStore, partition: Partition, offset: int) -> None:
    """Damage the frame of an offset; a second time: put it right."""
    folder = Path(logs.driver.root) / "logs" / partition.log / f"p-{partition.index:04d}"  # type: ignore[attr-defined]
    path = segments.segment_path(folder, segments.bases(folder)[0])
    data = bytearray(path.read_bytes())
    position = next(
        at for at, header in segments.headers(data, int(path.stem), 0, len(data)) if header.next_offset > offset
    )
    data[position + 130] ^= 1
    path.write_bytes(data)


def append(logs: LogStore, partition: Partition, payload: bytes) -> None:
    """Append a record that no runner would."""
    logs.transact(Commit([(partition, NewRecords([payload]))], []))


def three_frames(logs: LogStore, log: str = "in") -> list[tuple[str, int, int]]:
    """Thirty records of one partition, in three frames."""
    rows = [(f"k{number % 3}", number, (number + 1) * 1000) for number in range(30)]
    for start in (0, 10, 20):
        fill(logs, log, rows[start : start + 10])
    return rows


def tallies_of(rows: list[tuple[str, int, int]]) -> list[list[int]]:
    """What Tally tells for these rows."""
    seen: Counter[str] = Counter()
    found = []
    for key, number, _ in rows:
        seen[key] += 1
        found.append([number, seen[key]])
    return found


class TestADamagedRecord:
    def test_everything_before_it_is_done_and_nothing_behind_it(self, logs: LogStore, runner: Make) -> None:
        rows = three_frames(logs)
        flip(logs, Partition("in", 0), 15)
        running = runner("tallies").start()
        assert not running.drain(PATIENCE)
        [status] = running.status()
        assert (status.state, status.restarts) == ("failed", 0)
        assert "ComputationFailed: tally has stopped at in-00, offset 10: RecordCorrupt: " in str(status.error)
        assert values(logs, "out") == tallies_of(rows[:10])
        assert logs.committed("in", "tally") == [10]

    def test_the_next_runner_goes_on_when_it_is_put_right(self, logs: LogStore, runner: Make) -> None:
        rows = three_frames(logs)
        flip(logs, Partition("in", 0), 15)
        assert not runner("tallies").start().drain(PATIENCE)
        flip(logs, Partition("in", 0), 15)
        again = runner("tallies").start()
        assert again.drain(PATIENCE), told(again)
        assert values(logs, "out") == tallies_of(rows)

    def test_whoever_asks_for_the_status_sees_it_without_a_runner(self, logs: LogStore, runner: Make) -> None:
        three_frames(logs)
        flip(logs, Partition("in", 0), 15)
        assert not runner("tallies").start().drain(PATIENCE)
        [progress] = progress_of(logs, flows.tallies())
        assert progress.problem is not None
        assert progress.problem.startswith("tally has stopped at in-00, offset 10: RecordCorrupt: ")
        assert progress.lag == 20
        flip(logs, Partition("in", 0), 15)
        [progress] = progress_of(logs, flows.tallies())
        assert (progress.problem, progress.lag) == (None, 20)


class TestStateThatCannotBeRead:
    def test_it_stops_before_any_record(self, logs: LogStore, runner: Make) -> None:
        rows = [(f"k{number % 9}", number, number + 1) for number in range(40)]
        fill(logs, "in", rows, partitions=2)
        first = runner("tallies").start()
        assert first.drain(PATIENCE), told(first)
        before = values(logs, "out"), logs.committed("in", "tally")
        state = Partition("tally.state", 1)
        end = logs.bounds_of(state).end
        append(logs, state, b"\xc1")
        fill(logs, "in", rows, partitions=2)
        running = runner("tallies").start()
        assert not running.drain(PATIENCE)
        [status] = running.status()
        assert (status.state, status.restarts) == ("failed", 0)
        assert f"tally has stopped at tally.state-01, offset {end}: Undecodable: " in str(status.error)
        assert "stream reset MODULE:TOPOLOGY URL tally" in str(status.error)
        assert logs.committed("in", "tally")[1] == before[1][1]
        assert [one for one in progress_of(logs, flows.tallies()) if one.problem and "tally.state-01" in one.problem]

    def test_a_damaged_frame_of_it_does_the_same(self, logs: LogStore, runner: Make) -> None:
        fill(logs, "in", [(f"k{number % 9}", number, number + 1) for number in range(40)], partitions=2)
        first = runner("tallies").start()
        assert first.drain(PATIENCE), told(first)
        flip(logs, Partition("tally.state", 1), 0)
        fill(logs, "in", [("k1", 1, 1)], partitions=2)
        running = runner("tallies").start()
        assert not running.drain(PATIENCE)
        [status] = running.status()
        assert status.state == "failed"
        assert "tally has stopped at tally.state-01, offset 0: RecordCorrupt: " in str(status.error)
        assert len(values(logs, "out")) <= 41


def test_a_log_that_was_created_again_is_not_read_with_the_state_of_the_old_one(logs: LogStore, runner: Make) -> None:
    rows = three_frames(logs)
    first = runner("tallies").start()
    assert first.drain(PATIENCE), told(first)
    running = runner("tallies")
    logs.delete("in")
    fill(logs, "in", [("k0", 100 + number, number + 1) for number in range(50)])
    if isinstance(running, LocalRunner):
        status = failed(running.start())
        assert "ComputationFailed: tally has stopped at in-00, offset 0: Conflict: " in str(status.error)
        assert "the state of tally is of another log 'in'" in str(status.error)
        assert not running.drain(PATIENCE)
    else:
        with pytest.raises((Conflict, BadInput), match="the state of tally is of another log 'in'"):
            running.start()
    assert values(logs, "out") == tallies_of(rows)
    assert logs.committed("in", "tally") == [None]
    assert any(one.problem and "another log 'in'" in one.problem for one in progress_of(logs, flows.tallies()))


def test_records_that_retention_has_removed_are_not_passed_over(logs: LogStore, runner: Make) -> None:
    logs.create("in", 1, segment_bytes=4096, retention=Retention(age=None, size=8192))
    rows = three_frames(logs)
    first = runner("tallies").start()
    assert first.drain(PATIENCE), told(first)
    for number in range(300):
        fill(logs, "in", [("k0", number, 10**9)])
    logs.enforce_retention("in")
    assert logs.bounds_of(Partition("in", 0)).start > 30
    running = runner("tallies").start()
    assert not running.drain(PATIENCE)
    [status] = running.status()
    assert status.state == "failed"
    assert "tally has stopped at in-00, offset 30: OffsetOutOfRange: " in str(status.error)
    assert values(logs, "out") == tallies_of(rows)
    assert logs.committed("in", "tally") == [30]


def test_reports_of_event_time_that_nobody_can_read(logs: LogStore, runner: Make) -> None:
    three_frames(logs, "raw")
    running = runner("twice").start()
    wait_until(lambda: logs.exists("out") and len(values(logs, "out")) == 30, "all is counted")
    append(logs, Partition("double.low", 0), b"\xc1")
    fill(logs, "raw", [("k0", 1, 10**6)])
    status = failed(running)
    assert "tally has stopped at double.low-00, offset " in str(status.error)
    assert "Undecodable: " in str(status.error)
    assert not running.drain("60s")


def test_a_process_that_can_never_start_again_is_not_started_again(logs: LogStore, url: str) -> None:
    fill(logs, "in", [("k", 1, 1)])
    runner = ProcessRunner("tests.unit.stream.flows:tallies", logs, url, processes=1).start()
    wait_until(lambda: logs.exists("out") and len(values(logs, "out")) == 1, "it is counted")
    append(logs, Partition("tally.state", 0), b"\xc1")
    os.kill(runner._processes[0].pid, signal.SIGKILL)
    status = failed(runner)
    assert "Undecodable: offset " in str(status.error)
    assert not runner.drain(PATIENCE)
    assert [one.state for one in runner.status()] == ["failed"]


class TestWhatIsPermanent:
    @pytest.mark.parametrize(
        ("error", "expected"), [(RecordCorrupt("x"), True), (Undecodable("x"), True), (StoreUnavailable("x"), False)]
    )
    def test_by_its_type(self, error: Any, expected: bool) -> None:
        assert is_permanent(error) is expected

    def test_an_error_that_knows_its_place_is_believed(self) -> None:
        cause = RecordCorrupt("broken.", hint="Mend it.", partition="in-3", offset=7)
        error = failed_at("tally", cause, (Partition("in", 0), 1))
        assert str(error) == "tally has stopped at in-3, offset 7: RecordCorrupt: broken. Mend it."
        assert (error.partition, error.offset) == ("in-3", 7)
        assert failed_at("other", error) is error
        assert isinstance(error, ComputationFailed)

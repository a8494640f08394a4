"""Reports of event time: when they are written, and from which position on they count."""

from typing import Any

import pytest

import penstock
from penstock.log.record import Partition
from penstock.stream import internal_logs
from penstock.stream.engine import watermark_log
from penstock.stream.engine.watermark import END, LOWEST, Promise, Reach, SilentInput
from penstock.stream.engine.watermark_log import ALL, WatermarkGate, WatermarkPublisher, WatermarkReport, Writers
from penstock.stream.internal_logs import last_reports
from penstock.stream.watermark_reader import LogEnds, WatermarkReader

HERE = Partition("mid", 1)


def report(task: int, low: int, end: int, *, tasks: int = 2, **more: Any) -> WatermarkReport:
    """A report that holds from ``end`` on in the partition under test."""
    return WatermarkReport(task, low, {"mid": [0, end]}, tasks, "t", **more)


def lows(gate: WatermarkGate, position: int) -> list[int | None]:
    """What counts at a position, by task."""
    return [None if found is None else found.low for _, _, found in gate.at(position)]


class TestGate:
    def test_a_report_counts_from_its_offset_on(self) -> None:
        gate = WatermarkGate(HERE, {"w": 2})
        assert lows(gate, 100) == [None, None], "who has reported nothing holds"
        gate.feed("w", report(0, 50, 10))
        gate.feed("w", report(0, 70, 20))
        gate.feed("w", report(1, 60, 15))
        assert lows(gate, 9) == [None, None]
        assert lows(gate, 10) == [50, None]
        assert lows(gate, 19) == [50, 60]
        assert lows(gate, 20) == [70, 60]
        assert lows(gate, 12) == [50, None], "looking ahead has changed nothing"

    def test_what_is_committed_is_not_looked_at_again(self) -> None:
        gate = WatermarkGate(HERE, {"w": 1})
        for number in range(5):
            gate.feed("w", report(0, number, 10 * number, tasks=1))
        gate.passed(25)
        assert lows(gate, 25) == [2]
        assert lows(gate, 40) == [4]

    def test_of_reports_for_one_position_the_newest_counts(self) -> None:
        gate = WatermarkGate(HERE, {"w": 1})
        gate.feed("w", report(0, END, 10, tasks=1))
        gate.feed("w", report(0, 40, 10, tasks=1))
        assert lows(gate, 10) == [40], "it has not ended: it came back"

    def test_a_reader_behind_retention_waits_for_the_first_report_that_is_there(self) -> None:
        gate = WatermarkGate(HERE, {"w": 1})
        gate.feed("w", report(0, 900, 500, tasks=1))
        assert lows(gate, 499) == [None]
        assert lows(gate, 500) == [900]

    def test_more_tasks_are_waited_for_as_soon_as_one_says_so(self) -> None:
        gate = WatermarkGate(HERE, {"w": 2})
        gate.feed("w", report(0, 50, 0))
        gate.feed("w", report(1, 50, 0))
        assert lows(gate, 10) == [50, 50]
        gate.feed("w", report(0, 60, 0, tasks=3))
        assert lows(gate, 10) == [60, 50, None]

    def test_a_reset_takes_all_reports_back_behind_its_offset(self) -> None:
        gate = WatermarkGate(HERE, {"w": 2})
        gate.feed("w", report(0, 50, 5))
        gate.feed("w", report(1, 60, 5))
        gate.feed("w", report(ALL, LOWEST, 30, tasks=0))
        assert lows(gate, 29) == [50, 60]
        assert lows(gate, 30) == [LOWEST, LOWEST]

    def test_a_removed_writer_without_any_report_holds_nobody(self) -> None:
        gate = WatermarkGate(HERE, {"w": 1, "gone": 2}, former={"gone"})
        gate.feed("w", report(0, 50, 0, tasks=1))
        assert lows(gate, 10) == [50]
        gate.feed("gone", report(1, END, 30))
        assert lows(gate, 10) == [50, None], "what it wrote up to there is still waited for"
        assert lows(gate, 30) == [50, END]


class TestPublisher:
    @pytest.fixture
    def now(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [1000.0]
        monkeypatch.setattr(watermark_log.time, "monotonic", lambda: now[0])
        return now

    def write(self, publisher: WatermarkPublisher, *, now: bool = False) -> int | None:
        """Write what is due, as a transaction does."""
        found = publisher.due(now=now)
        publisher.committed()
        return None if found is None else found.low

    def test_only_what_is_new_and_not_too_often(self, now: list[float]) -> None:
        publisher = WatermarkPublisher(0, 1, "t", ("in",))
        publisher.offer(Promise(LOWEST), LOWEST, {})
        assert self.write(publisher) is None, "nothing is known yet"
        publisher.offer(Promise(10), 10, {})
        assert self.write(publisher) == 10
        publisher.offer(Promise(10), 10, {})
        assert publisher.wait() == float("inf")
        publisher.offer(Promise(20), 20, {})
        now[0] += 0.1
        assert self.write(publisher) is None, "a moment ago there was one"
        publisher.offer(Promise(30), 30, {})
        now[0] += 0.11
        assert self.write(publisher) == 30
        publisher.offer(Promise(40), 40, {})
        assert self.write(publisher, now=True) == 40, "at the end it does not wait"

    def test_the_last_one_is_written_again_before_retention_takes_it(self, now: list[float]) -> None:
        publisher = WatermarkPublisher(0, 1, "t", ("in",))
        publisher.offer(Promise(10), 10, {})
        assert self.write(publisher) == 10
        now[0] += watermark_log.AGAIN + 1
        assert publisher.wait() <= 0
        assert self.write(publisher) == 10
        assert internal_logs.REPORTS_KEPT.total_seconds() > watermark_log.AGAIN

    def test_what_was_not_committed_is_still_to_be_written(self, now: list[float]) -> None:
        publisher = WatermarkPublisher(0, 1, "t", ("in",))
        publisher.offer(Promise(10), 10, {})
        assert publisher.due() is not None
        publisher.rollback()
        assert self.write(publisher) == 10

    def test_what_silence_decided_is_remembered_with_the_checkpoint(self, now: list[float]) -> None:
        publisher = WatermarkPublisher(0, 1, "t", ("a", "b"))
        publisher.offer(Promise(10), 10, {"mid": [4]})
        assert self.write(publisher) == 10
        remembered = publisher.remember(99)
        assert remembered is not None
        assert (remembered.low, remembered.ends, remembered.reached) == (10, {"mid": [4]}, 99)
        publisher.committed()
        assert publisher.remember(99) is None


def test_silence_counts_only_as_long_as_nothing_comes() -> None:
    with penstock.open_logs("memory://") as logs:
        for name in ("edge", "mid", "w.low"):
            logs.create(name)
        ends = LogEnds(logs)
        upstream = WatermarkReader(logs, {"in": "mid"}, Writers({"mid": {"w": 1}}, ()), ends)
        upstream.add(0)
        silent = (SilentInput("edge", 0, 0),)
        said = WatermarkReport(0, 10, {"mid": [0]}, 1, "t", 500, silent)
        internal_logs.append_reports(logs, "w", [said])
        assert last_reports(logs, "w") == {0: said}
        upstream.look()
        assert upstream.reach(0, "in", 0) == Reach(10, 500, silent)
        logs.log("edge", int).append(1)
        ends.forget()
        assert upstream.reach(0, "in", 0) == Reach(10, 10), "a record waits there now"

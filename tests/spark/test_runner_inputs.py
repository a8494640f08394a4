"""SparkRunner when what it goes by does not go together any more: logs created again, offsets that are gone.

What keeps state says so in one line, with the next step; what keeps nothing goes on, with the right results.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.stream.shorthand import Run, drained, fill, numbers, told, values, wait_until
from tests.spark.runners import clock, logs, patience, runner
from tests.spark.test_runner import count, double

from penstock import LogStore, failpoints
from penstock.errors import Conflict, StoreUnavailable
from penstock.spark import SparkRunner
from penstock.stream import LocalRunner, Topology, running_count
from penstock.stream.runner import Runner

__all__ = ["clock", "logs", "patience", "runner"]
pytestmark = pytest.mark.timeout(300)


def stateless() -> Topology:
    return Topology("plain", partitions=2).stream("in", int).stream("mid", int).add(double)


def stateful() -> Topology:
    return Topology("kept", partitions=2).stream("mid", int).stream("out", list).add(count)


def reset(one: Runner) -> None:
    assert isinstance(one, SparkRunner)
    one.reset("count")


def make_anew(store: LogStore, log: str, rows: Any) -> None:
    store.delete(log)
    fill(store, log, rows, partitions=2)


@contextlib.contextmanager
def broken_off_at(point: str) -> Iterator[None]:
    """Let a driver fail at a named point."""

    def strike(name: str) -> None:
        if name == point:
            raise StoreUnavailable(f"broken off at {point}.")

    failpoints.arm(strike)
    try:
        yield
    finally:
        failpoints.arm(None)


def counted(store: LogStore) -> Counter[int]:
    """How often a key was counted to a number."""
    return Counter(number for number, _ in values(store, "out"))


class TestAnInputMadeAnew:
    def test_state_is_of_one_log(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "mid", numbers(20), partitions=2)
        first = drained(runner, stateful(), final=False)
        assert counted(logs) == dict.fromkeys(range(1, 5), 5)
        make_anew(logs, "mid", numbers(100))
        with pytest.raises(Conflict, match=r"another log 'mid'.*stream reset .* count") as refused:
            runner(stateful())
        assert "\n" not in str(refused.value)
        assert counted(logs).total() == 20
        reset(first)
        drained(runner, stateful(), final=False)
        assert counted(logs).total() == 120
        assert counted(logs)[1] == 10, "five keys, which began twice"

    @pytest.mark.faults
    def test_totals_that_are_folded(self, logs: LogStore, runner: Run) -> None:
        totals = Topology("totals", partitions=2).stream("mid", int).stream("out", int)
        totals.add(running_count("count", "mid", "out"))
        fill(logs, "mid", numbers(20), partitions=2)
        first = drained(runner, totals, final=False)
        make_anew(logs, "mid", numbers(10))
        with pytest.raises(Conflict, match="another log 'mid'"):
            runner(totals)
        reset(first)
        drained(runner, totals, final=False)
        logs.forget("count", "mid")
        fill(logs, "mid", numbers(5))
        drained(runner, totals, final=False)
        assert sorted(values(logs, "out")) == [2] * 5 + [3] * 5 + [4] * 5

    @pytest.mark.faults
    def test_one_that_is_deleted_only(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "mid", numbers(20), partitions=2)
        drained(runner, stateful(), final=False)
        logs.delete("mid")
        with pytest.raises(Conflict, match="another log 'mid'"):
            runner(stateful()).start()

    @pytest.mark.faults
    def test_nothing_runs_if_one_of_them_cannot(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", numbers(20), partitions=2)
        both = stateless().stream("out", list).add(count)
        drained(runner, both, final=False)
        later = runner(both)
        make_anew(logs, "mid", [])
        fill(logs, "in", numbers(5))
        with pytest.raises(Conflict, match="another log 'mid'"):
            later.start()
        assert later.status() == []
        assert logs.lag("in", "double").lag == 5

    @pytest.mark.faults
    def test_state_from_before_there_were_identities(
        self, logs: LogStore, runner: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It goes on, and from then on it is known which log it is of."""
        fill(logs, "mid", numbers(20), partitions=2)
        with monkeypatch.context() as older:
            older.setattr(type(logs), "_identity", lambda self, name: "")
            assert LocalRunner(stateful(), logs).start().drain("30s")
        fill(logs, "mid", numbers(20))
        drained(runner, stateful(), final=False)
        assert counted(logs) == dict.fromkeys(range(1, 9), 5)
        make_anew(logs, "mid", numbers(20))
        with pytest.raises(Conflict, match="another log 'mid'"):
            runner(stateful())

    @pytest.mark.faults
    def test_what_keeps_nothing_goes_on_in_the_new_one(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", numbers(20), partitions=2)
        drained(runner, stateless(), final=False)
        make_anew(logs, "in", numbers(100))
        drained(runner, stateless(), final=False)
        assert sorted(values(logs, "mid")) == sorted([2 * one for one in (*range(20), *range(100))])

    @pytest.mark.faults
    @pytest.mark.parametrize("point", ["spark.batch.planned", "spark.batch.computed"])
    def test_with_a_batch_that_was_under_way(self, logs: LogStore, runner: Run, point: str) -> None:
        """It was planned with offsets of the old log: of the new one it must leave nothing out."""
        fill(logs, "in", numbers(20), partitions=2)
        drained(runner, stateless(), final=False)
        fill(logs, "in", numbers(40)[20:])
        with broken_off_at(point):
            broken = runner(stateless(), restart_backoff="1h").start()
            wait_until(lambda: broken.metrics["restarts"] == 1, "it is broken off")
        broken.shutdown()
        make_anew(logs, "in", numbers(100))
        before = len(values(logs, "mid"))
        drained(runner, stateless(), final=False)
        assert sorted(values(logs, "mid"))[-50:] == [2 * number for number in range(50, 100)]
        assert len(values(logs, "mid")) == before + 100

    @pytest.mark.faults
    def test_under_a_runner_at_work(self, logs: LogStore, runner: Run) -> None:
        fill(logs, "in", numbers(20), partitions=2)
        one = runner(stateless().stream("out", list).add(count), restart_backoff="50ms").start()
        wait_until(lambda: logs.exists("out") and len(values(logs, "out")) == 20, "all is counted")
        assert one.stop_computation("double")
        assert one.stop_computation("count")
        make_anew(logs, "mid", numbers(30))
        make_anew(logs, "in", numbers(0))
        with pytest.raises(Conflict, match="another log 'mid'"):
            one.start_computation("count")
        one.start_computation("double")
        fill(logs, "in", [("k", 1000, 1)])
        wait_until(lambda: 2000 in values(logs, "mid"), f"it goes on\n{told(one)}")
        assert one.stop("60s")


class TestHalfOfItGone:
    """What a computation goes by is in two places of the log store: its group's offsets, and its state."""

    @pytest.mark.parametrize(
        ("how", "turns"), [("forgotten", 1), pytest.param("set back", 2, marks=pytest.mark.faults)]
    )
    def test_without_offsets_state_goes_on_where_it_is(self, logs: LogStore, runner: Run, how: str, turns: int) -> None:
        """As on a local runner: nothing is counted twice."""
        for _ in range(turns):
            fill(logs, "mid", numbers(40), partitions=2)
            drained(runner, stateful(), final=False)
        if how == "forgotten":
            logs.forget("count", "mid")
        else:
            logs.reset("count", dict.fromkeys(logs.partitions("mid"), 1))
        drained(runner, stateful(), final=False)
        assert counted(logs) == dict.fromkeys(range(1, 8 * turns + 1), 5)
        fill(logs, "mid", numbers(40))
        drained(runner, stateful(), final=False)
        assert counted(logs) == dict.fromkeys(range(1, 8 * turns + 9), 5)
        assert logs.lag("mid", "count").lag == 0

    @pytest.mark.faults
    def test_a_log_that_ends_before_what_state_has_seen(
        self, logs: LogStore, runner: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A log without an identity that was created again all the same."""
        monkeypatch.setattr(type(logs), "_identity", lambda self, name: "")
        fill(logs, "mid", numbers(40), partitions=2)
        first = drained(runner, stateful(), final=False)
        make_anew(logs, "mid", numbers(20))
        lost = runner(stateful()).start()
        assert not lost.drain("60s")
        assert "state of count has seen mid" in told(lost)
        assert "stream reset MODULE:TOPOLOGY URL count" in told(lost)
        reset(first)
        drained(runner, stateful(), final=False)
        assert counted(logs) == {**dict.fromkeys(range(1, 5), 10), **dict.fromkeys(range(5, 9), 5)}

    @pytest.mark.faults
    def test_without_offsets_what_keeps_nothing_begins_anew(self, logs: LogStore, runner: Run) -> None:
        """As on a local runner: the group is all that it goes by."""
        fill(logs, "in", numbers(20), partitions=2)
        drained(runner, stateless(), final=False)
        logs.forget("double", "in")
        drained(runner, stateless(), final=False)
        assert sorted(values(logs, "mid")) == sorted([2 * one for one in range(20)] * 2)

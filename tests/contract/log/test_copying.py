"""A log copied from one store to another, broken off or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.log.shorthand import LogContract, filled, read_all, stored

from penstock.clock import FakeClock
from penstock.errors import BadInput, Conflict
from penstock.log.maintenance.copy import LogCopied, LogCopy
from penstock.log.record import Partition
from penstock.log.store import LogStore
from penstock.opening import open_logs as open_other


@pytest.fixture
def other(clock: FakeClock) -> Iterator[LogStore]:
    """A store of another kind."""
    with open_other("memory://", clock=clock) as store:
        yield store


def furnish(store: LogStore, clock: FakeClock) -> None:
    """A log with all that a record may have, and two groups at different places."""
    store.create("clicks", partitions=3, partitioner="java")
    with store.appender("clicks") as out:
        for number in range(60):
            out.append(
                {"n": number}, key=f"user-{number % 7}", headers={"trace": str(number)} if number % 3 else None,
                timestamp=clock.now(),
            )  # fmt: skip
            clock.advance("1s")
        out.append_many(range(5), partition=1)
    with store.tailer("clicks", "slow") as tail:
        tail.read(10, timeout="5s")
        tail.commit()
    with store.tailer("clicks", "fast") as tail:
        read_all(tail, 65)
        tail.commit()


def rows(store: LogStore, log: str = "clicks") -> list[list[tuple[Any, ...]]]:
    """Everything in a log, by partition."""
    return [
        [
            (record.payload, record.key, record.time_us, dict(record.headers))
            for batch in store.batches(partition)
            for record in batch.records()
        ]
        for partition in store.partitions(log)
    ]


class TestCopies(LogContract):
    """What is read there is what was written here."""

    @pytest.mark.parametrize("direction", ["out", "in"])
    def test_everything_is_carried(self, store: LogStore, other: LogStore, clock: FakeClock, direction: str) -> None:
        source, target = (store, other) if direction == "out" else (other, store)
        furnish(source, clock)
        copied = LogCopy(source, target, "clicks").run()
        assert (sum(copied.records), copied.carried) == (65, 65)
        assert rows(target) == rows(source)
        assert target.settings("clicks").partitioner == "java"
        assert target.lag("clicks", "fast").lag == 0
        for group in ("slow", "fast"):
            with source.tailer("clicks", group) as mine, target.tailer("clicks", group) as theirs:
                left = sorted(record.payload for record in read_all(mine))
                assert sorted(record.payload for record in read_all(theirs)) == left

    def test_a_second_run_carries_what_came_since(self, store: LogStore, other: LogStore, clock: FakeClock) -> None:
        furnish(other, clock)
        LogCopy(other, store, "clicks").run()
        with other.appender("clicks") as out:
            out.append("more", partition=2)
        copied: LogCopied = LogCopy(other, store, "clicks").run()
        assert copied.carried == 1
        assert rows(store) == rows(other)

    def test_broken_off_it_goes_on(
        self, store: LogStore, other: LogStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("penstock.log.maintenance.copy.APPEND_RECORDS", 10)
        furnish(other, clock)

        def break_off(done: int, total: int) -> None:
            raise ConnectionError

        with pytest.raises(ConnectionError):
            LogCopy(other, store, "clicks", report=break_off).run()
        assert 0 < sum(len(part) for part in rows(store)) < 65
        LogCopy(other, store, "clicks").run()
        assert rows(store) == rows(other)

    def test_under_another_name(self, store: LogStore) -> None:
        filled(store, "log", partitions=2, count=6)
        LogCopy(store, store, "log", to="again").run()
        assert [stored(store, "again", index) for index in range(2)] == [[0, 2, 4], [1, 3, 5]]

    def test_what_is_refused(self, store: LogStore, other: LogStore) -> None:
        filled(store, "log", count=3)
        with pytest.raises(BadInput, match="onto itself"):
            LogCopy(store, store, "log")
        filled(other, "log", count=1)
        with pytest.raises(Conflict, match="did not write"):
            LogCopy(store, other, "log").run()
        other.create("wider", partitions=2)
        with pytest.raises(Conflict, match="2 partitions, not 1"):
            LogCopy(store, other, "log", to="wider").run()
        assert other.bounds_of(Partition("log", 0)).end == 1

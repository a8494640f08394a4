"""Committing: offsets of groups, lag, latency, resets."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.contract.log.shorthand import LogContract, OpenLogs, filled, parts, read_all, values

from penstock.clock import FakeClock
from penstock.errors import OffsetOutOfRange, PartitionTaken
from penstock.log.record import Lag, Offset, Partition
from penstock.log.store import LogStore


class TestCommits(LogContract):
    """What a group keeps."""

    def test_without_a_commit_a_tailer_begins_again(self, store: LogStore) -> None:
        filled(store)
        with store.tailer("log", "g") as tail:
            read_all(tail, 10)
        with store.tailer("log", "g") as tail:
            assert values(read_all(tail, 10)) == list(range(10))
        assert store.lag("log", "g").lag == 10

    def test_a_commit_is_the_next_to_read_and_survives(self, store: LogStore, open_logs: OpenLogs) -> None:
        filled(store)
        place = Partition("log", 0)
        with store.tailer("log", "g") as tail:
            tail.read(4, timeout="1s")
            assert tail.commit() == {place: 4}
            assert tail.committed(place) == Offset("log", 0, 4)
        other = open_logs()
        assert other.committed("log", "g") == [4]
        with other.tailer("log", "g") as tail:
            assert tail.position(place).value == 4
            assert values(read_all(tail, 6)) == [4, 5, 6, 7, 8, 9]

    def test_one_partition_or_given_offsets(self, store: LogStore) -> None:
        filled(store, partitions=2, count=10)
        with store.tailer("log", "g") as tail:
            read_all(tail, 10)
            assert tail.commit(Partition("log", 1)) == {Partition("log", 1): 5}
            assert store.committed("log", "g") == [None, 5]
            tail.commit({Partition("log", 0): 3, Partition("log", 1): Offset("log", 1, 2)})
            assert store.committed("log", "g") == [3, 2]
            tail.commit()
            tail.commit()
            assert store.committed("log", "g") == [5, 5]

    def test_going_back_and_committing_goes_back(self, store: LogStore) -> None:
        filled(store)
        with store.tailer("log", "g") as tail:
            tail.read(8, timeout="1s")
            tail.commit()
            tail.seek(Offset("log", 0, 2))
            tail.commit()
        assert store.lag("log", "g").lag == 8

    def test_reset_is_the_start_and_committed(self, store: LogStore) -> None:
        filled(store, partitions=2, count=10)
        with store.tailer("log", "g") as tail:
            read_all(tail, 10)
            tail.commit()
            tail.reset(Partition("log", 1))
            assert store.committed("log", "g") == [5, 0]
            assert values(read_all(tail, 5)) == [1, 3, 5, 7, 9]
            tail.reset()
            assert len(read_all(tail, 10)) == 10
        assert store.lag("log", "g").lag == 10

    def test_groups_are_at_their_own_speed(self, store: LogStore, open_logs: OpenLogs) -> None:
        filled(store)
        with store.tailer("log", "slow") as slow, store.tailer("log", "fast") as fast:
            assert values(slow.read(2, timeout="1s")) == [0, 1]
            assert values(fast.read(5, timeout="1s")) == [0, 1, 2, 3, 4]
            slow.commit()
            fast.commit()
            assert values(slow.read(1)) == [2]
        other = open_logs()
        assert (other.lag("log", "slow").lag, other.lag("log", "fast").lag) == (8, 5)
        with other.tailer("log", "third") as tail:
            assert values(tail.read(1, timeout="1s")) == [0], "a new group starts at the earliest"
        assert store.groups("log") == ["fast", "slow"]

    def test_positions_belong_to_the_group_not_to_the_tailer(self, store: LogStore) -> None:
        filled(store, partitions=2, count=10)
        with store.tailer("log", "g") as tail:
            read_all(tail, 10)
            tail.commit({Partition("log", 0): 2, Partition("log", 1): 4})
        with store.tailer(Partition("log", 1), "g") as tail:
            assert values(read_all(tail, 1)) == [9]


class TestLag(LogContract):
    """How far behind."""

    def test_lag_goes_by_commits(self, store: LogStore) -> None:
        store.create("log", partitions=2)
        assert store.lag("log", "g") == Lag(0, 0, 0)
        store.log("log").append("x", partition=1)
        assert store.lag("log", "g").lag == 1
        with store.tailer("log", "g") as tail:
            read_all(tail, 1)
            assert store.lag("log", "g").lag == 1
            tail.commit()
            assert tail.lag().lag == 0
        assert store.lag("log", "g").lag == 0
        assert store.lag("log", "unknown").lag == 1
        assert [one.lag for one in store.lags("log", "unknown")] == [0, 1]

    def test_lag_per_partition_and_total(self, store: LogStore) -> None:
        filled(store, partitions=3, count=10)
        store.reset("g", {Partition("log", 0): 1, Partition("log", 2): 3})
        assert store.lags("log", "g") == [Lag(1, 4, 3), Lag(0, 3, 3), Lag(3, 3, 0)]
        assert store.lag("log", "g") == Lag(4, 10, 6)

    def test_latency_is_the_age_of_the_last_committed(self, store: LogStore, clock: FakeClock) -> None:
        store.create("log", partitions=2)
        with store.appender("log") as out:
            out.append("a", key="first", partition=0)
            clock.advance("1m")
            out.append("b", key="second", partition=0)
        clock.advance("1m")
        assert store.latency("log", "g").latency == timedelta(minutes=2)
        store.reset("g", {Partition("log", 0): 1})
        one, other = store.latencies("log", "g")
        assert (one.lag, one.latency, one.key) == (1, timedelta(minutes=2), "first")
        assert (other.lag, other.latency, other.key) == (0, timedelta(0), None)
        store.reset("g", {Partition("log", 0): 2})
        assert store.latency("log", "g").latency == timedelta(0)

    def test_asking_often_leaks_nothing(self, store: LogStore) -> None:
        filled(store, partitions=2, count=4)
        for number in range(100):
            assert store.lag("log", f"g{number}").lag == 4
        assert store.groups("log") == []


class TestResets(LogContract):
    """A group's offsets from outside."""

    def test_an_idle_group_is_set(self, store: LogStore) -> None:
        filled(store, partitions=2, count=10)
        store.reset("g", {Partition("log", 0): 4, Partition("log", 1): Offset("log", 1, 5)})
        assert store.committed("log", "g") == [4, 5]
        assert store.groups("log") == ["g"]
        with store.tailer("log", "g") as tail:
            assert values(read_all(tail, 1)) == [8]

    def test_not_under_a_reader(self, store: LogStore) -> None:
        filled(store, partitions=2, count=4)
        with store.tailer(Partition("log", 0), "g"):
            with pytest.raises(PartitionTaken):
                store.reset("g", {Partition("log", 0): 1})
            with pytest.raises(PartitionTaken):
                store.forget("g")
            store.reset("g", {Partition("log", 1): 1})
        assert store.committed("log", "g") == [None, 1]

    def test_not_outside_the_log(self, store: LogStore) -> None:
        filled(store, count=4)
        for value in (-1, 5):
            with pytest.raises(OffsetOutOfRange):
                store.reset("g", {Partition("log", 0): value})
        assert store.committed("log", "g") == [None]

    def test_a_group_can_be_forgotten(self, store: LogStore) -> None:
        filled(store, "one", count=4)
        filled(store, "two", count=4)
        store.reset("g", {Partition("one", 0): 4, Partition("two", 0): 4})
        assert store.forget("g", "one") is True
        assert (store.committed("one", "g"), store.committed("two", "g")) == ([None], [4])
        assert store.forget("g") is True
        assert store.forget("g") is False
        assert store.forget("never") is False
        assert store.groups("two") == []
        assert store.partitions("one") == parts("one", 0)

"""Reading: order, turns, seeks, ranges, Arrow, policies."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from tests.contract.log.shorthand import (
    LogContract,
    OpenLogs,
    filled,
    needs,
    parts,
    read_all,
    values,
)

from penstock.clock import FakeClock
from penstock.errors import BadInput, OffsetOutOfRange, PartitionNotFound, Undecodable
from penstock.log.record import Offset, Partition, arrow_schema
from penstock.log.settings import Retention
from penstock.log.store import LogStore


class TestReading(LogContract):
    """What a tailer hands out."""

    def test_a_new_tailer_is_as_asked(self, store: LogStore) -> None:
        store.create("log", partitions=3)
        with store.tailer(parts("log", 2, 0), "g") as tail:
            assert (tail.closed, tail.group, tail.assignment()) == (False, "g", parts("log", 0, 2))
            tail.to_start()
            tail.to_end()
            tail.to_committed()
            tail.commit()
            tail.commit(Partition("log", 2))
            assert tail.read() == []
        with store.tailer("log", "g") as tail:
            assert tail.assignment() == parts("log", 0, 1, 2), "a log stands for all its partitions"

    def test_a_tailer_of_nothing_reads_nothing(self, store: LogStore) -> None:
        with store.tailer([], "g") as tail:
            assert tail.read(timeout="5ms") == []
            tail.commit()

    def test_only_assigned_partitions_are_read(self, store: LogStore) -> None:
        filled(store, partitions=3, count=9)
        with store.tailer(Partition("log", 1), "g") as tail:
            assert values(read_all(tail, 3)) == [1, 4, 7]
            assert tail.read(timeout="5ms") == []

    def test_what_is_appended_later_is_seen(self, store: LogStore) -> None:
        store.create("log")
        with store.tailer("log", "g") as tail, store.appender("log") as out:
            for number in range(5):
                assert tail.read() == []
                out.append(number)
                assert values(read_all(tail, 1)) == [number]

    def test_a_limit_is_kept(self, store: LogStore) -> None:
        store.create("log")
        with store.appender("log") as out:
            out.append_many(range(100))
        with store.tailer("log", "g") as tail:
            assert values(tail.read(3, timeout="1s")) == [0, 1, 2]
            assert values(tail.read(40, timeout="1s")) == list(range(3, 43))
            assert values(read_all(tail, 57)) == list(range(43, 100))

    def test_next_gives_one_by_one(self, store: LogStore) -> None:
        filled(store, count=3)
        with store.tailer("log", "g") as tail:
            first = tail.next(timeout="1s")
            assert first is not None
            assert (first.value, tail.position(Partition("log", 0)).value) == (0, 1)
            tail.commit()
            assert store.lag("log", "g").lag == 2, "what was read ahead is not committed"
            rest = [tail.next(timeout="1s"), tail.next(timeout="1s")]
            assert [one.value for one in rest if one] == [1, 2]
            assert tail.next() is None

    def test_partitions_take_turns(self, store: LogStore) -> None:
        store.create("log", partitions=4)
        with store.appender("log") as out:
            for number in range(4):
                out.append_many([number] * 200, partition=number)
        with store.tailer("log", "g") as tail:
            seen: list[int] = []
            while set(seen) != {0, 1, 2, 3}:
                seen += values(tail.read(20, timeout="1s"))
        assert len(seen) < 600, "none starves until the others are read to their end"

    def test_one_full_partition_among_empty_ones(self, store: LogStore) -> None:
        store.create("log", partitions=10)
        with store.appender("log") as out:
            for number in range(50):
                out.append(number, partition=7)
        with store.tailer("log", "g") as tail:
            found: list[Any] = []
            while len(found) < 50:
                got = tail.read(7, timeout="2s")
                assert got, "no empty read in between"
                found += values(got)
        assert found == list(range(50))

    def test_several_logs_in_one_tailer(self, store: LogStore) -> None:
        filled(store, "one", partitions=2, count=4)
        filled(store, "two", count=3)
        with store.tailer(["one", Partition("two", 0)], "g") as tail:
            assert tail.assignment() == [*parts("one", 0, 1), *parts("two", 0)]
            assert sorted((record.log, record.value) for record in read_all(tail, 7)) == [
                ("one", 0), ("one", 1), ("one", 2), ("one", 3), ("two", 0), ("two", 1), ("two", 2),
            ]  # fmt: skip
            tail.commit(Partition("two", 0))
            tail.to_committed()
            assert sorted(record.log for record in read_all(tail, 4)) == ["one"] * 4
            tail.to_start()
            assert len(read_all(tail, 7)) == 7

    def test_an_undecodable_record_is_no_trap(self, store: LogStore) -> None:
        store.create("log")
        with store.appender("log", bytes) as out:
            out.append_many([b"1", b"{broken", b"3"])
        with store.tailer("log", "g", int) as tail:
            one, two, three = read_all(tail, 3)
        assert (one.value, three.value, two.payload) == (1, 3, b"{broken")
        with pytest.raises(Undecodable):
            _ = two.value

    def test_an_undecodable_record_says_where_it_is(self, store: LogStore) -> None:
        store.create("log", partitions=3)
        with store.appender("log", bytes) as out:
            out.append(b"1", partition=2)
            bad = out.append(b"hello", partition=2)
        with store.tailer("log", "g", int) as tail:
            records = read_all(tail)
        assert records[0].value == 1
        for record in (records[1], list(store.log("log", int).records(2))[1]):
            with pytest.raises(Undecodable) as told:
                _ = record.value
            assert told.value.message.startswith(f"log log, partition 2, offset {bad.value}: 5 stored bytes")
            assert "int" in told.value.message

    def test_batches_have_the_same_records(self, store: LogStore) -> None:
        filled(store, count=10)
        with store.tailer("log", "g") as tail:
            found: list[Any] = []
            while len(found) < 10:
                for batch in tail.read_batches(timeout="1s"):
                    assert list(batch.offsets) == [record.offset for record in batch.records()]
                    found += [record.value for record in batch.records()]
            assert found == list(range(10))
            tail.commit()
        assert store.lag("log", "g").lag == 0

    def test_a_whole_log_is_read_partition_after_partition(self, store: LogStore) -> None:
        store.create("log", partitions=3)
        assert list(store.log("log").records()) == []
        log = store.log("log", int)
        for number in range(12):
            log.append(number, partition=number % 3)
        assert [(record.partition, record.value) for record in log.records()] == [
            (index, number) for index in range(3) for number in range(index, 12, 3)
        ]
        assert list(log.payloads()) == [record.payload for record in log.records()]
        assert [record.value for batch in log.batches() for record in batch.records()] == [
            record.value for record in log.records()
        ]

    @pytest.mark.parametrize("given", [{"start": 1}, {"stop": 1}])
    def test_offsets_belong_to_one_partition(self, store: LogStore, given: dict[str, int]) -> None:
        store.create("log", partitions=2)
        with pytest.raises(BadInput, match="each has its own offsets"):
            list(store.log("log").records(**given))


class TestSeeking(LogContract):
    """Going elsewhere."""

    def test_start_end_committed_and_offset(self, store: LogStore) -> None:
        filled(store, count=10)
        place = Partition("log", 0)
        with store.tailer("log", "g") as tail:
            assert values(tail.read(4, timeout="1s")) == [0, 1, 2, 3]
            tail.commit()
            tail.to_start()
            assert values(read_all(tail, 10)) == list(range(10))
            tail.to_committed()
            assert values(read_all(tail, 6)) == [4, 5, 6, 7, 8, 9]
            tail.to_end()
            assert tail.read(timeout="5ms") == []
            tail.seek(Offset("log", 0, 7))
            assert tail.position(place) == Offset("log", 0, 7)
            record = tail.read(1, timeout="1s")[0]
            assert record.value == 7
            tail.read(1)
            tail.seek(record)
            assert values(read_all(tail, 3)) == [7, 8, 9]

    def test_seeking_moves_one_partition_only(self, store: LogStore) -> None:
        filled(store, partitions=2, count=10)
        with store.tailer("log", "g") as tail:
            read_all(tail, 10)
            tail.seek(Offset("log", 1, 3))
            assert values(read_all(tail, 2)) == [7, 9]

    def test_next_ahead_is_not_skipped_by_a_seek(self, store: LogStore) -> None:
        filled(store, "one", count=5)
        filled(store, "two", count=5)
        with store.tailer(["one", "two"], "g") as tail:
            seen = [tail.next(timeout="1s") for _ in range(2)]
            tail.seek(Offset("two", 0, 4))
            rest = read_all(tail)
            ones = [r.value for r in [*seen, *rest] if r is not None and r.log == "one"]
            assert ones == list(range(5)), "the other log lost nothing and got nothing twice"
            assert [r.value for r in rest if r.log == "two"] == [4]

    def test_to_a_timestamp(self, store: LogStore, clock: FakeClock) -> None:
        store.create("log", partitions=2)
        moments = []
        with store.appender("log") as out:
            for number in range(6):
                moments.append(clock.now())
                out.append(number, partition=0)
                clock.advance("1m")
        place = Partition("log", 0)
        assert store.offset_at(place, moments[3]).value == 3
        assert store.offset_at(place, moments[3] - timedelta(seconds=1)).value == 3
        assert store.offset_at(place, moments[0] - timedelta(days=1)).value == 0
        assert store.offset_at(place, clock.now()).value == 6
        assert store.offset_at(Partition("log", 1), moments[0]).value == 0
        with store.tailer("log", "g") as tail:
            tail.to_time(moments[4])
            tail.commit()
        with store.tailer("log", "g") as tail:
            assert values(read_all(tail, 2)) == [4, 5]

    def test_ranges_in_time_leave_out_no_record_of_that_time(self, store: LogStore) -> None:
        """Records come in any order of time; whatever is asked for lies in the ranges, and in those only once."""
        rng = random.Random(5)
        store.create("log", partitions=1)
        with store.appender("log", bytes) as out:
            for batch in range(20):
                some = [batch * 1000 + rng.randrange(3000) for _ in range(rng.choice((1, 7, 30)))]
                out.append_many([b"x"] * len(some), timestamps=some)
        times = [record.time_us for record in store.log("log", bytes).records(0)]  # some stores round them
        place, end = Partition("log", 0), len(times)
        for _ in range(50):
            since, until = sorted((rng.randrange(-500, 24_000), rng.randrange(-500, 24_000)))
            low, high = sorted((rng.randrange(end + 1), rng.randrange(end + 1)))
            ranges = store.ranges_in_time(place, (low, high), since, until)
            offsets = [offset for begin, stop in ranges for offset in range(begin, stop)]
            assert offsets == sorted(set(offsets)), ranges
            assert set(offsets) <= set(range(low, high))
            wanted = {offset for offset in range(low, high) if since <= times[offset] < until}
            assert wanted <= set(offsets), (since, until)
        assert store.ranges_in_time(place, (0, end), 25_000, 30_000) == []

    def test_to_the_end_and_commit_is_no_lag(self, store: LogStore) -> None:
        filled(store, partitions=3, count=10)
        with store.tailer("log", "g") as tail:
            tail.to_end()
            tail.commit()
        assert store.lag("log", "g").lag == 0

    def test_seeking_what_is_not_assigned(self, store: LogStore) -> None:
        filled(store, partitions=2, count=4)
        with store.tailer(Partition("log", 0), "g") as tail:
            for call in (
                tail.seek,
                lambda offset: tail.position(offset.log_partition),
                lambda offset: tail.commit(offset.log_partition),
            ):
                with pytest.raises(PartitionNotFound, match="not assigned"):
                    call(Offset("log", 1, 0))

    def test_seeking_what_is_not_there(self, store: LogStore) -> None:
        filled(store, count=4)
        with store.tailer("log", "g") as tail:
            for value in (-1, 5, 1_000_000):
                with pytest.raises(OffsetOutOfRange):
                    tail.seek(Offset("log", 0, value))
            tail.seek(Offset("log", 0, 4))
            assert tail.read() == []


class TestRanges(LogContract):
    """Reading by offset range, without a group."""

    def test_a_range_is_exact(self, store: LogStore) -> None:
        store.create("log")
        with store.appender("log") as out:
            for begin in range(0, 100, 10):
                out.append_many(range(begin, begin + 10))
        place = Partition("log", 0)
        for start, stop in ((0, 100), (0, 1), (5, 15), (37, 38), (99, 100), (50, 50)):
            found = [int(one) for batch in store.batches(place, start, stop) for one in batch.payloads()]
            assert found == list(range(start, stop))
        with pytest.raises(OffsetOutOfRange):
            store.batches(place, 101)
        with pytest.raises(OffsetOutOfRange):
            store.batches(place, -1)

    def test_arrow_has_the_same_records(self, store: LogStore, clock: FakeClock) -> None:
        pa = pytest.importorskip("pyarrow")
        store.create("log", partitions=2)
        with store.appender("log", bytes) as out:
            out.append_many([b"a", b"bb", b""], keys=["x", None, ""], partition=1)
            out.append_many([b"c"], partition=1, headers=[{"h": "1"}])
            out.append_many([b"d", b"e"], partition=1, timestamps=[5, 6])
        table = pa.Table.from_batches(store.arrow(Partition("log", 1), 1, 6), arrow_schema())
        assert table.column("value").to_pylist() == [b"bb", b"", b"c", b"d", b"e"]
        assert table.column("key").to_pylist() == [None, b"", None, None, None]
        assert table.column("offset").to_pylist() == [1, 2, 3, 4, 5]
        assert table.column("partition").to_pylist() == [1] * 5
        assert table.column("time").cast(pa.int64()).to_pylist() == [clock.micros()] * 3 + [5, 6]
        assert [bool(one) for one in table.column("headers").to_pylist()] == [False, False, True, False, False]

    def test_ranges_see_only_what_is_there_at_the_call(self, store: LogStore) -> None:
        filled(store, count=5)
        batches = store.batches(Partition("log", 0))
        store.log("log").append(5)
        assert [int(one) for batch in batches for one in batch.payloads()] == [0, 1, 2, 3, 4]


class TestOutOfRange(LogContract):
    """What retention took before it was read."""

    def _passed_by(self, store: LogStore, clock: FakeClock) -> None:
        needs(store, "retention")
        store.create("log", retention=Retention(age="1h"), segment_bytes=4096)
        with store.appender("log", bytes) as out:
            for _ in range(10):
                out.append_many([b"x" * 500] * 10)
            with store.tailer("log", "g", bytes) as tail:
                tail.read(5, timeout="1s")
                tail.commit()
            clock.advance("2h")
            out.append_many([b"y"] * 5)
            store.enforce_retention("log")

    def test_an_error_by_default(self, store: LogStore, clock: FakeClock) -> None:
        self._passed_by(store, clock)
        assert store.bounds("log")[0].start > 5
        with store.tailer("log", "g", bytes) as tail:
            with pytest.raises(OffsetOutOfRange, match="offset 5 is not in"):
                tail.read()
            tail.to_start()
            assert tail.read(timeout="1s")
        assert store.lags("log", "g")[0].skipped == store.bounds("log")[0].start - 5, "the loss is not hidden"

    def test_or_go_on_where_there_is_something(self, store: LogStore, clock: FakeClock, open_logs: OpenLogs) -> None:
        self._passed_by(store, clock)
        told: list[Any] = []
        store.signals.subscribe(told.append, "skipped")
        with store.tailer("log", "g", bytes, out_of_range="earliest") as tail:
            assert tail.read(timeout="1s")[0].offset == store.bounds("log")[0].start
        assert [one.data["records"] for one in told] == [store.bounds("log")[0].start - 5]
        with store.tailer("log", "g", bytes, out_of_range="latest") as tail:
            assert tail.read() == []
            assert tail.position(Partition("log", 0)).value == store.bounds("log")[0].end

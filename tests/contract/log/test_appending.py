"""Appending: routing, batches, lingering, headers, timestamps, order."""

from __future__ import annotations

import threading
import zlib
from datetime import timedelta

import msgspec
import pytest
from tests.contract.log.shorthand import (
    LogContract,
    OpenLogs,
    filled,
    needs,
    read_all,
    stored,
    values,
    wait_until,
)

from penstock.clock import FakeClock
from penstock.errors import Closed, PayloadTooLarge, WrongType
from penstock.log.record import Offset
from penstock.log.store import LogStore


class Click(msgspec.Struct):
    """A typed record."""

    page: str
    user: int = 0


class TestAppending(LogContract):
    """One by one and in batches."""

    def test_offsets_rise_from_zero_without_holes(self, store: LogStore) -> None:
        needs(store, "dense")
        store.create("log", partitions=2)
        with store.appender("log") as out:
            assert [out.append(n, partition=1) for n in range(3)] == [Offset("log", 1, n) for n in range(3)]
            assert out.append("x", partition=0) == Offset("log", 0, 0)
            assert list(out.append_many([4, 5], partition=1)) == [Offset("log", 1, 3), Offset("log", 1, 4)]

    def test_the_offset_given_is_the_offset_read(self, store: LogStore) -> None:
        store.create("log", partitions=3)
        with store.appender("log") as out:
            given = {out.append(n, key=f"k{n}"): n for n in range(20)}
            given |= dict(
                zip(out.append_many(range(20, 60), keys=[f"k{n}" for n in range(40)]), range(20, 60), strict=True)
            )
        with store.tailer("log", "g") as tail:
            assert {record.position: record.value for record in read_all(tail, 60)} == given

    def test_keys_decide_the_partition_by_crc32(self, store: LogStore) -> None:
        store.create("log", partitions=7)
        keys = [f"user-{n}" for n in range(50)] + ["", "größe", "日本"]
        with store.appender("log") as out:
            one_by_one = [out.append(0, key=key).partition for key in keys]
            together = [offset.partition for offset in out.append_many([1] * len(keys), keys=keys)]
        assert one_by_one == together == [zlib.crc32(key.encode()) % 7 for key in keys]

    def test_a_log_may_have_another_partitioner(self, store: LogStore, open_logs: OpenLogs) -> None:
        store.create("log", partitions=5, partitioner="java")
        with open_logs().appender("log") as out:
            assert [out.append(0, key=key).partition for key in ("foo", "key1", "key2", "a key")] == [4, 3, 4, 3]

    def test_without_a_key_partitions_take_turns(self, store: LogStore) -> None:
        store.create("log", partitions=3)
        with store.appender("log") as out:
            assert sorted(out.append(n).partition for n in range(6)) == [0, 0, 1, 1, 2, 2]
            assert sorted({out.append_many([n]).spans.popitem()[0] for n in range(3)}) == [0, 1, 2]  # type: ignore[attr-defined]

    def test_a_given_partition_wins_over_the_key(self, store: LogStore) -> None:
        store.create("log", partitions=4)
        with store.appender("log") as out:
            for number in range(4):
                assert out.append(0, key="same", partition=number).partition == number
        for number in range(4):
            assert [record.key for record in store.log("log").records(number)] == ["same"]

    def test_everything_given_comes_back(self, store: LogStore, clock: FakeClock) -> None:
        store.create("log")
        when = clock.now() - timedelta(days=1, microseconds=7000)
        with store.appender("log", Click) as out:
            out.append(Click("a", 1), key="k", timestamp=when, headers={"trace": "1", "raw": b"\x00\xff"})
            out.append(Click("b"))
        with store.tailer("log", "g", Click) as tail:
            first, second = read_all(tail, 2)
        assert (first.value, first.key, first.time) == (Click("a", 1), "k", when)
        assert first.headers == {"trace": "1", "raw": b"\x00\xff"} or first.headers["trace"] == "1"
        assert (first.log, first.partition, first.offset) == ("log", 0, 0)
        assert (second.value, second.key, second.headers) == (Click("b"), None, {})
        assert second.time_us == clock.micros()

    def test_columns_of_a_batch_come_back(self, store: LogStore, clock: FakeClock) -> None:
        store.create("log")
        begin = clock.micros()
        keys = ["a", None, "", "größe", None]
        times = [begin + 3000, begin + 1000, begin + 2000, begin, begin + 5000]
        headers = [None, {"n": "1"}, {}, {"n": "3", "m": "x"}, None]
        payloads = [b"", b"x" * 1000, b"\x00", b"22", b"3"]
        with store.appender("log", bytes) as out:
            out.append_many(payloads, keys=keys, timestamps=times, headers=headers)
        records = list(store.log("log", bytes).records(0))
        assert [record.value for record in records] == payloads
        assert [record.key for record in records] == keys
        assert [record.time_us for record in records] == times
        assert [dict(record.headers) for record in records] == [one or {} for one in headers]

    def test_a_batch_of_nothing_is_nothing(self, store: LogStore) -> None:
        store.create("log")
        with store.appender("log") as out:
            assert len(out.append_many([])) == 0
        assert store.bounds("log")[0].end == 0

    def test_large_batches_and_records(self, store: LogStore) -> None:
        store.create("log")
        with store.appender("log", bytes) as out:
            large = b"x" * 700_000
            out.append_many([large] * 4 + [b"small"] * 3000)
        assert [len(one) for one in (record.payload for record in store.log("log", bytes).records(0))] == (
            [700_000] * 4 + [5] * 3000
        )

    def test_order_of_one_appender_is_kept(self, store: LogStore) -> None:
        store.create("log")
        with store.appender("log") as out:
            for number in range(30):
                out.append(number) if number % 3 else out.append_many([number])
        assert stored(store) == list(range(30))

    def test_threads_and_handles_append_together(self, store: LogStore, open_logs: OpenLogs) -> None:
        store.create("log", partitions=2)
        outs = [store.appender("log"), open_logs().appender("log")]

        def work(name: int) -> None:
            for number in range(50):
                outs[name % 2].append([name, number], partition=number % 2)

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.lag("log", "new").lag == 200
        for partition in (0, 1):
            found = stored(store, partition=partition)
            for name in range(4):
                assert [n for who, n in found if who == name] == list(range(partition, 50, 2)), "each in its order"

    def test_keys_of_any_bytes(self, store: LogStore) -> None:
        store.create("log", partitions=3)
        with store.appender("log") as out:
            place = out.append(1, key=b"\xff\x00k")
        key = next(store.log("log").records(place.partition)).key
        assert key is not None
        assert key.encode("utf-8", "surrogateescape") == b"\xff\x00k"


class TestLingering(LogContract):
    """Records that wait for company."""

    def test_sent_records_come_after_the_linger(self, store: LogStore) -> None:
        store.create("log")
        with store.appender("log", linger="20ms") as out:
            for number in range(5):
                out.send(number, key="k", headers={"n": str(number)})
            wait_until(lambda: store.bounds("log")[0].end == 5, "lingering records are appended")
        assert stored(store) == list(range(5))
        assert [record.headers["n"] for record in store.log("log").records(0)] == list("01234")

    def test_flush_waits_for_them(self, store: LogStore) -> None:
        store.create("log", partitions=2)
        with store.appender("log", linger="1h") as out:
            for number in range(10):
                out.send(number, partition=number % 2)
            assert [one.end for one in store.bounds("log")] == [0, 0]
            out.flush()
            assert [one.end for one in store.bounds("log")] == [5, 5]

    def test_so_many_bytes_do_not_wait(self, store: LogStore) -> None:
        store.create("log")
        with store.appender("log", bytes, linger="1h", linger_bytes=1000) as out:
            for _ in range(11):
                out.send(b"x" * 100)
            assert store.bounds("log")[0].end == 10

    def test_closing_appends_them_in_order(self, store: LogStore) -> None:
        store.create("log")
        with store.appender("log", linger="1h") as out:
            for number in range(100):
                out.send(number)
        assert stored(store) == list(range(100))

    def test_a_failure_is_told_later(self, store: LogStore) -> None:
        store.create("log")
        out = store.appender("log", bytes, linger="1h", linger_bytes=1 << 40)
        out.send(b"x" * (store.record_limit + 1))
        with pytest.raises(PayloadTooLarge):
            out.flush()
        out.close()
        with pytest.raises(Closed):
            out.send(b"x")


class TestTypes(LogContract):
    """Types reach the log."""

    def test_a_value_of_another_type_is_refused(self, store: LogStore) -> None:
        store.create("log")
        clicks = store.log("log", Click)
        with pytest.raises(WrongType):
            clicks.append({"page": "x"})  # type: ignore[arg-type]
        clicks.append(Click("x"))
        assert [record.value for record in clicks.records(0)] == [Click("x")]

    def test_a_log_may_insist_on_its_codec(self, store: LogStore) -> None:
        filled(store, "any", count=1)
        store.create("log", codec="json")
        store.log("log", Click).append(Click("x"))
        assert next(store.log("log", bytes).records(0)).value == b'{"page":"x","user":0}'

        class Other:
            name, type_name = "avro", "Avro"

        for call in (
            lambda: store.appender("log", codec=Other()),
            lambda: store.tailer("log", "g", codec=Other()),
            lambda: store.subscribe("log", "g", codec=Other()),
        ):
            with pytest.raises(WrongType, match="keeps json, not avro"):
                call()

    def test_any_group_may_read_raw_bytes(self, store: LogStore) -> None:
        filled(store, count=2)
        with store.tailer("log", "g", bytes) as tail:
            assert values(tail.read(timeout="1s")) == [b"0", b"1"]

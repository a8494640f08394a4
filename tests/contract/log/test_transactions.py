"""Transactions: appends to several logs and offsets of tailers, together or not at all."""

from __future__ import annotations

import contextlib

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

from penstock.errors import BadInput, Closed, Conflict, Fenced, LogNotFound, UnitTooLarge
from penstock.log.record import NewRecords, Partition
from penstock.log.store import LogStore


class TestTransactions(LogContract):
    """All or nothing."""

    def test_outputs_and_offsets_together(self, store: LogStore, open_logs: OpenLogs) -> None:
        filled(store, "in", partitions=2, count=10)
        store.create("out", partitions=2)
        store.create("state")
        with store.tailer("in", "g") as tail, store.transaction() as tx:
            for record in read_all(tail, 10):
                tx.append("out", record.value * 2, partition=record.partition, key="k", headers={"h": "1"})
            tx.append_many("state", ["s1", "s2"], keys=["a", "b"])
            tx.commit_offsets(tail)
            assert store.lag("in", "g").lag == 10, "nothing before the commit"
            assert [one.end for one in store.bounds("out")] == [0, 0]
            done = tx.commit()
        assert list(done.offsets[Partition("out", 0)]) == [0, 1, 2, 3, 4]
        other = open_logs()
        assert other.lag("in", "g").lag == 0
        assert (stored(other, "out", 0), stored(other, "out", 1)) == ([0, 4, 8, 12, 16], [2, 6, 10, 14, 18])
        assert stored(other, "state") == ["s1", "s2"]
        assert next(other.log("out").records(0)).headers == {"h": "1"}

    def test_without_a_commit_nothing_happened(self, store: LogStore) -> None:
        filled(store, "in", count=5)
        store.create("out")
        with store.tailer("in", "g") as tail:
            with store.transaction() as tx:
                tx.append("out", 1)
                read_all(tail, 5)
                tx.commit_offsets(tail)
            with contextlib.suppress(RuntimeError), store.transaction() as tx:
                tx.append("out", 2)
                raise RuntimeError
            tx = store.transaction()
            tx.append("out", 3)
            tx.rollback()
            for call in (tx.commit, lambda: tx.append("out", 4), lambda: tx.commit_offsets(tail)):
                with pytest.raises(Closed):
                    call()
        assert (store.bounds("out")[0].end, store.lag("in", "g").lag) == (0, 5)

    def test_a_fenced_reader_commits_nothing(self, store: LogStore, open_logs: OpenLogs) -> None:
        filled(store, "in", count=5)
        store.create("out")
        zombie = store.subscribe("in", "g", max_poll="150ms")
        read_all(zombie, 5)
        tx = store.transaction()
        tx.append("out", "from the dead")
        tx.commit_offsets(zombie)
        with open_logs().subscribe("in", "g") as other:
            wait_until(lambda: other.read(1, timeout="10ms") or other.assignment(), "the other one takes over")
            with pytest.raises(Fenced):
                tx.commit()
            assert stored(store, "out") == []
            with other.store.transaction() as mine:
                mine.append("out", "alive")
                mine.commit_offsets(other, {Partition("in", 0): 3})
                mine.commit()
        zombie.close()
        assert stored(store, "out") == ["alive"]
        assert store.committed("in", "g") == [3]

    def test_repeated_with_its_mark_it_has_one_effect(self, store: LogStore, open_logs: OpenLogs) -> None:
        store.create("out", partitions=2)
        for handle in (store, open_logs()):
            with handle.transaction(producer="query", sequence=7) as tx:
                tx.append_many("out", [1, 2, 3], keys=["a", "b", "c"])
                done = tx.commit()
            assert done.duplicate is (handle is not store)
        with store.transaction(producer="query", sequence=8) as tx:
            tx.append("out", 4, key="a")
            assert tx.commit().duplicate is False
        with store.transaction(producer="query", sequence=6) as tx:
            tx.append("out", 5, key="a")
            assert tx.commit().duplicate is True
        assert sorted(stored(store, "out", 0) + stored(store, "out", 1)) == [1, 2, 3, 4]

    def test_offsets_alone_and_outputs_alone(self, store: LogStore) -> None:
        filled(store, "in", count=5)
        with store.tailer("in", "g") as tail:
            tail.read(2, timeout="1s")
            with store.transaction() as tx:
                tx.commit_offsets(tail)
                tx.commit()
            assert store.committed("in", "g") == [2]
        with store.transaction() as tx:
            tx.append("in", 5)
            tx.commit()
        assert stored(store, "in") == [0, 1, 2, 3, 4, 5]
        with store.transaction() as tx:
            assert tx.commit().offsets == {}

    def test_transactions_and_appends_mix(self, store: LogStore) -> None:
        store.create("out")
        with store.appender("out") as out:
            for number in range(0, 20, 2):
                out.append(number)
                with store.transaction() as tx:
                    tx.append("out", number + 1)
                    tx.commit()
        assert stored(store, "out") == list(range(20))
        with store.tailer("out", "g") as tail:
            assert values(read_all(tail, 20)) == list(range(20))

    def test_too_large_is_told_before_anything_is_sent(self, store: LogStore) -> None:
        store.create("out")
        part = b"x" * min(store.record_limit, store.transaction_bytes // 20)
        with store.transaction() as tx:
            for _ in range(store.transaction_bytes // len(part)):
                tx.append("out", part, bytes)
            with pytest.raises(UnitTooLarge):
                tx.append("out", part, bytes)
        assert store.bounds("out")[0].end == 0

    def test_bad_input(self, store: LogStore, open_logs: OpenLogs) -> None:
        filled(store, "in", partitions=2, count=4)
        with store.transaction() as tx:
            with pytest.raises(LogNotFound):
                tx.append("nowhere", 1)
            with pytest.raises(BadInput):
                tx.append("in", 1, partition=2)
            with open_logs().tailer("in", "other") as foreign, pytest.raises(BadInput, match="another store"):
                tx.commit_offsets(foreign)
            with store.tailer(Partition("in", 0), "g") as tail, pytest.raises(BadInput, match="not assigned"):
                tx.commit_offsets(tail, {Partition("in", 1): 1})
        for options in ({"producer": "p"}, {"sequence": 1}, {"producer": "p", "sequence": -1}):
            with pytest.raises(BadInput):
                store.transaction(**options)


class TestStaging(LogContract):
    """Records written by many, committed by one."""

    @pytest.fixture(autouse=True)
    def able(self, store: LogStore) -> None:
        """Only where records can be written aside."""
        needs(store, "staging")

    def test_staged_records_appear_with_the_commit(self, store: LogStore, open_logs: OpenLogs) -> None:
        store.create("out", partitions=3)
        staged = []
        for task in range(2):
            stage = open_logs().stage("out")
            stage.append([(1, NewRecords([b"%d" % task], ["k"])), (2, NewRecords([b"10", b"11"]))])
            stage.append([(1, NewRecords([b"%d" % (task + 5)], None, [77], [{"h": "x"}]))])
            staged.append(stage.close())
        assert staged[0].counts == {1: 2, 2: 2}
        assert [one.end for one in store.bounds("out")] == [0, 0, 0]
        with store.transaction(producer="query", sequence=1) as tx:
            tx.append_staged(*staged)
            tx.append("out", 9, partition=0)
            done = tx.commit()
        assert {one: list(offsets) for one, offsets in done.offsets.items()}[Partition("out", 1)] == [0, 1, 2, 3]
        assert (stored(store, "out", 0), stored(store, "out", 1)) == ([9], [0, 5, 1, 6])
        assert stored(store, "out", 2) == [10, 11, 10, 11]
        first, second = list(store.log("out").records(1))[:2]
        assert (first.key, second.time_us, second.headers) == ("k", 77, {"h": "x"})
        with store.transaction(producer="query", sequence=1) as tx:
            tx.append_staged(*staged)
            assert tx.commit().duplicate is True

    def test_what_is_gone_cannot_be_committed(self, store: LogStore) -> None:
        store.create("out")
        stage = store.stage("out")
        stage.append([(0, NewRecords([b"1"]))])
        staged = stage.close()
        for expected in (None, Conflict):
            with store.transaction() as tx:
                tx.append_staged(staged)
                if expected is None:
                    tx.commit()
                else:
                    with pytest.raises(expected):
                        tx.commit()
        stage = store.stage("out")
        stage.append([(0, NewRecords([b"2"]))])
        stage.discard()
        assert stored(store, "out") == [1]

    def test_columns_are_staged_as_records_are(self, store: LogStore) -> None:
        pa = pytest.importorskip("pyarrow")
        store.create("out", partitions=2)
        whole = pa.RecordBatch.from_pydict(
            {
                "value": pa.array([b"0", b"1", b"22", b"3", b"4"], pa.binary()),
                "key": pa.array([b"a", None, b"ccc", b"d", b"e"], pa.binary()),
                "time": pa.array([5_000, 7_000, 6_000, 6_000, 9_000], pa.timestamp("us", tz="UTC")),
                "headers": pa.array([b"", msgspec.msgpack.encode({"h": "x"}), b"", b"", b""], pa.binary()),
            }
        )
        stage = store.stage("out")
        # A part of a larger batch, a column that is missing, nothing at all.
        stage.append_arrow([(0, whole.slice(1, 3)), (1, whole.select(["value"])), (1, whole.slice(0, 0))])
        staged = stage.close()
        assert staged.counts == {0: 3, 1: 5}
        with store.transaction() as tx:
            tx.append_staged(staged)
            tx.commit()
        records = list(store.log("out", bytes).records(0))
        assert [(one.payload, one.key, one.time_us) for one in records] == [
            (b"1", None, 7_000), (b"22", "ccc", 6_000), (b"3", "d", 6_000),
        ]  # fmt: skip
        assert [dict(one.headers) for one in records] == [{"h": "x"}, {}, {}]
        assert [one.payload for one in store.log("out", bytes).records(1)] == [b"0", b"1", b"22", b"3", b"4"]

    def test_what_was_discarded_leaves_nothing(self, store: LogStore) -> None:
        store.create("out")
        stage = store.stage("out")
        stage.append([(0, NewRecords([b"1"]))])
        staged = stage.close()
        store.discard(staged)
        store.discard(staged)
        assert stored(store, "out") == []

    def test_many_stage_at_once(self, store: LogStore) -> None:
        store.create("out")
        stages = [store.stage("out") for _ in range(6)]
        for turn in range(3):
            for rank, stage in enumerate(stages):
                stage.append([(0, NewRecords([b"%d" % (10 * rank + turn)]))])
        staged = [stage.close() for stage in stages]
        with store.transaction(producer="query", sequence=1) as tx:
            tx.append_staged(*staged)
            tx.commit()
        assert stored(store, "out") == [10 * rank + turn for rank in range(6) for turn in range(3)]

"""Producers: exclusive appenders, sequences that make appends repeatable, fencing."""

from __future__ import annotations

import pytest
from tests.contract.log.shorthand import LogContract, OpenLogs, needs, stored

from penstock.errors import AppenderTaken, BadInput, Conflict, Fenced, Unsupported
from penstock.log.store import LogStore


class TestExclusive(LogContract):
    """A log kept to one appender."""

    def test_a_second_appender_is_refused(self, store: LogStore, open_logs: OpenLogs) -> None:
        needs(store, "exclusive")
        store.create("log")
        with store.appender("log", exclusive=True) as out:
            out.append(1)
            for handle in (store, open_logs()):
                for exclusive in (True, False):
                    with pytest.raises(AppenderTaken):
                        handle.appender("log", exclusive=exclusive)
        with open_logs().appender("log") as out, store.appender("log") as other:
            out.append(2)
            other.append(3)
            with pytest.raises(AppenderTaken):
                store.appender("log", exclusive=True)
        with store.appender("log", exclusive=True):
            pass
        assert stored(store) == [1, 2, 3]

    def test_others_say_so(self, store: LogStore) -> None:
        if store.capabilities.exclusive:
            pytest.skip("the store declares exclusive=True")
        store.create("log")
        with pytest.raises(Unsupported):
            store.appender("log", exclusive=True)


class TestSequences(LogContract):
    """Appends that may be repeated."""

    @pytest.fixture(autouse=True)
    def able(self, store: LogStore) -> None:
        """Only where producers may number their appends."""
        needs(store, "sequences")
        store.create("log", partitions=2)

    def test_a_repeated_sequence_is_one_append(self, store: LogStore, open_logs: OpenLogs) -> None:
        with store.appender("log", producer="importer") as out:
            first = out.append("a", partition=0, sequence=1)
            assert out.append("a", partition=0, sequence=1) == first
            batch = out.append_many(["b", "c"], partition=0, sequence=5)
            assert list(out.append_many(["b", "c"], partition=0, sequence=5)) == list(batch)
            assert out.last_sequence(0) == 5
            assert out.last_sequence(1) is None
        with open_logs().appender("log", producer="importer") as out:
            assert out.last_sequence(0) == 5, "known after a restart"
            assert list(out.append_many(["b", "c"], partition=0, sequence=5)) == list(batch)
            out.append("d", partition=0, sequence=6)
        assert stored(store) == ["a", "b", "c", "d"]

    def test_producers_and_partitions_count_apart(self, store: LogStore) -> None:
        with store.appender("log", producer="one") as one, store.appender("log", producer="two") as two:
            one.append("a", partition=0, sequence=1)
            two.append("b", partition=0, sequence=1)
            one.append("c", partition=1, sequence=1)
            one.append("free", partition=0)
        assert (stored(store), stored(store, partition=1)) == (["a", "b", "free"], ["c"])

    def test_a_batch_over_partitions_fills_what_is_missing(self, store: LogStore) -> None:
        keys = [f"k{number}" for number in range(10)]
        with store.appender("log", producer="p") as out:
            first = out.append_many(range(10), keys=keys, sequence=3)
            assert list(out.append_many(range(10), keys=keys, sequence=3)) == list(first)
            one = out.append("x", sequence=8)
            assert out.append("x", sequence=8) == one, "also without a key the second goes where the first went"
        assert sum(len(stored(store, partition=one.partition)) for one in store.bounds("log")) == 11

    def test_too_old_a_sequence_is_told(self, store: LogStore) -> None:
        with store.appender("log", producer="p") as out:
            for sequence in range(1, 20):
                out.append(sequence, partition=0, sequence=sequence)
            with pytest.raises(Conflict, match="at sequence 19; 2 is too long ago"):
                out.append(2, partition=0, sequence=2)
            with pytest.raises(Conflict):
                out.append(0, partition=0, sequence=0)
        assert len(stored(store)) == 19

    def test_the_newest_appender_of_a_producer_fences_the_others(self, store: LogStore, open_logs: OpenLogs) -> None:
        old = store.appender("log", producer="p")
        old.append("a", partition=0)
        new = open_logs().appender("log", producer="p")
        with pytest.raises(Fenced):
            old.append("late", partition=0)
        with pytest.raises(Fenced):
            old.append("late", partition=1, sequence=4)
        new.append("b", partition=0)
        old.close()
        assert (stored(store), stored(store, partition=1)) == (["a", "b"], [])

    def test_bad_sequences(self, store: LogStore) -> None:
        with store.appender("log") as out, pytest.raises(BadInput, match="needs a producer"):
            out.append(1, sequence=1)
        with store.appender("log", producer="p") as out:
            for sequence in (-1, 1.5, True, "1", 1 << 63):
                with pytest.raises(BadInput):
                    out.append(1, sequence=sequence)  # type: ignore[arg-type]

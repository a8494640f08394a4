"""Offsets, lags and what append_many gives."""

import pytest

from penstock.errors import BadInput
from penstock.log import Bounds, Lag, Offset, Partition
from penstock.log.record import Appended, ListBatch


def test_how_they_print() -> None:
    assert str(Partition("log", 7)) == "log-07"
    assert str(Offset("log", 7, 123)) == "log-07:+123"
    assert str(Partition("log", 1234)) == "log-1234"


def test_offsets_have_an_order_within_a_partition() -> None:
    one, two = Offset("log", 0, 1), Offset("log", 0, 1 << 40)
    assert one < two
    assert two >= one
    assert max(one, two) == two
    for other in (Offset("log", 1, 0), Offset("other", 0, 0)):
        with pytest.raises(BadInput, match="cannot be compared"):
            assert one < other
    assert Offset("log", 0, 1) != Offset("log", 1, 1)
    assert len({one, Offset("log", 0, 1)}) == 1


def test_lag_counts_what_is_there() -> None:
    assert Lag.of(Bounds(0, 10, 20), None) == Lag(10, 20, 10)
    assert Lag.of(Bounds(0, 10, 20), 15) == Lag(15, 20, 5)
    assert Lag.of(Bounds(0, 10, 20), 20).lag == 0
    assert Lag.of(Bounds(0, 10, 20), 4) == Lag(4, 20, 10, 6), "what retention took is told, not hidden"
    assert Lag.of(Bounds(0, 0, 5), 9).lag == 0
    assert Lag.total([Lag(1, 4, 3), Lag(2, 2, 0, 1)]) == Lag(3, 6, 3, 1)
    assert Lag.total([]) == Lag(0, 0, 0)


def test_appended_is_a_sequence_of_offsets() -> None:
    made = Appended("log", {0: range(5, 7), 2: range(1, 2)}, [(0, 0), (2, 0), (0, 1)])
    assert len(made) == 3
    assert list(made) == [Offset("log", 0, 5), Offset("log", 2, 1), Offset("log", 0, 6)]
    assert list(Appended("log", {})) == []


def test_times_beyond_all_bounds_are_columns_too() -> None:
    """Brokers keep milliseconds of 64 bits; as microseconds they need more."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed here")
    times = [(1 << 63) * 1000, -(1 << 63) * 1000, 17]
    batch = ListBatch(Partition("log", 0), range(3), [b""] * 3, times, [None] * 3, [{}] * 3)
    assert [record.time.year for record in batch.records()] == [9999, 1, 1970]
    column = batch.arrow().column("time").cast("int64").to_pylist()
    assert column == [(1 << 63) - 1, -(1 << 63) + 1, 17]

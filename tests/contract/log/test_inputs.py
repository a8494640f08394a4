"""Inputs: what is refused, with a typed error that names the thing, the cause and the next step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.contract.log.shorthand import LogContract, filled

from penstock.clock import FakeClock
from penstock.errors import (
    BadInput,
    Closed,
    LogNotFound,
    PartitionNotFound,
    PayloadTooLarge,
    PenstockError,
    Unsupported,
    WrongType,
)
from penstock.log.record import Offset, Partition
from penstock.log.store import LogStore


class TestInputs(LogContract):
    """Bad input."""

    def test_unknown_logs(self, store: LogStore, clock: FakeClock) -> None:
        place = Partition("nowhere", 0)
        calls: list[Callable[[], Any]] = [
            lambda: store.settings("nowhere"),
            lambda: store.identity("nowhere"),
            lambda: store.log("nowhere"),
            lambda: store.appender("nowhere"),
            lambda: store.tailer("nowhere", "g"),
            lambda: store.tailer(place, "g"),
            lambda: store.subscribe("nowhere", "g"),
            lambda: store.bounds("nowhere"),
            lambda: store.partitions("nowhere"),
            lambda: store.groups("nowhere"),
            lambda: store.lag("nowhere", "g"),
            lambda: store.latency("nowhere", "g"),
            lambda: store.committed("nowhere", "g"),
            lambda: store.batches(place),
            lambda: store.offset_at(place, clock.now()),
            lambda: store.wait_for(Offset("nowhere", 0, 0), "g"),
            lambda: store.reset("g", {place: 0}),
            lambda: store.forget("g", "nowhere"),
        ]
        for call in calls:
            with pytest.raises(LogNotFound, match="no log 'nowhere'") as caught:
                call()
            assert caught.value.hint
        assert store.names() == []

    @pytest.mark.parametrize("limit", [0, -1, "5s", 1.5, None])
    def test_reads_of_nothing(self, store: LogStore, limit: Any) -> None:
        filled(store, partitions=1, count=1)
        with store.tailer("log", "g") as tailer, pytest.raises(BadInput, match=r"reads nothing.*timeout="):
            tailer.read(limit)

    def test_partitions_out_of_range(self, store: LogStore) -> None:
        filled(store, partitions=2, count=2)
        with store.appender("log") as out:
            for number in (2, -1, "0", True, 1.0):
                with pytest.raises(PartitionNotFound) as caught:
                    out.append(1, partition=number)  # type: ignore[arg-type]
                assert "0 to 1" in str(caught.value)
                with pytest.raises(PartitionNotFound):
                    out.append_many([1], partition=number)  # type: ignore[arg-type]
        for call in (
            lambda: store.tailer(Partition("log", 2), "g"),
            lambda: store.log("log").tailer("g", [5]),
            lambda: store.batches(Partition("log", 9)),
        ):
            with pytest.raises(PartitionNotFound):
                call()
        with store.tailer("log", "g") as tail:
            assert len(tail.assignment()) == 2, "a refused tailer holds nothing"

    def test_closed_things(self, store: LogStore) -> None:
        filled(store)
        out, tail = store.appender("log"), store.tailer("log", "g")
        out.close()
        out.close()
        tail.close()
        tail.close()
        closed: list[Callable[[], Any]] = [
            lambda: out.append(1), lambda: out.append_many([1]), lambda: out.send(1), out.flush, tail.read, tail.next,
            tail.commit, tail.to_start, tail.positions, lambda: tail.seek(Offset("log", 0, 0)), tail.read_batches,
        ]  # fmt: skip
        for call in closed:
            with pytest.raises(Closed):
                call()
        store.close()
        for call in (store.names, lambda: store.create("x"), lambda: store.log("log"), lambda: store.bounds("log")):
            with pytest.raises(Closed):
                call()

    def test_records_over_the_limit(self, store: LogStore) -> None:
        store.create("log")
        with store.appender("log", bytes) as out:
            large = b"x" * (store.record_limit + 1)
            for call in (lambda: out.append(large), lambda: out.append_many([b"ok", large])):
                with pytest.raises(PayloadTooLarge, match="over the limit"):
                    call()
        assert store.bounds("log")[0].end == 0, "nothing of the refused batch is there"

    def test_names(self, store: LogStore) -> None:
        filled(store)
        names: list[Any] = ["", "..", "a/b", "a b", "x" * 129, None, 5, "-x"]
        for name in names:
            calls: list[Callable[[Any], Any]] = [
                store.create,
                store.exists,
                store.identity,
                lambda name: store.tailer("log", name),
                lambda name: store.appender("log", producer=name or ""),
                lambda name: store.lag("log", name),
            ]
            for call in calls:
                with pytest.raises(BadInput):
                    call(name)

    def test_settings(self, store: LogStore) -> None:
        bad: list[dict[str, Any]] = [
            {"partitions": 0}, {"partitions": -1}, {"partitions": 1.5}, {"partitions": True}, {"partitions": 10_001},
            {"partitioner": "md5"}, {"segment_bytes": 10}, {"segment_age": "soon"}, {"compression": "zip"},
            {"codec": "avro"}, {"nosuch": 1},
        ]  # fmt: skip
        for options in bad:
            with pytest.raises(BadInput) as caught:
                store.create("log", **options)
            assert caught.value.hint
        assert store.names() == []

    def test_appends(self, store: LogStore, clock: FakeClock) -> None:
        store.create("log", partitions=2)
        with store.appender("log") as out:
            bad: list[dict[str, Any]] = [
                {"key": [5]}, {"key": float("nan")}, {"key": "\ud800"},
                {"timestamp": clock.now().replace(tzinfo=None)}, {"timestamp": "now"},
                {"headers": {"a": 1}}, {"headers": {1: "a"}},
            ]  # fmt: skip
            for options in bad:
                with pytest.raises(BadInput):
                    out.append("x", **options)
            for options in ({"keys": ["a"]}, {"timestamps": [1, 2, 3]}, {"headers": [{"a": "b"}]}):
                with pytest.raises(BadInput, match="one for each value"):
                    out.append_many(["x", "y"], **options)
            with pytest.raises(BadInput):
                out.append_many(["x", "y"], keys=["a", [5]])  # type: ignore[list-item]
            with pytest.raises(WrongType):
                out.append(object())
        with store.appender("log", bytes) as raw, pytest.raises(WrongType):
            raw.append_many([b"x", "y"])
        assert sum(one.count for one in store.bounds("log")) == 0

    def test_tailers(self, store: LogStore) -> None:
        filled(store)
        with pytest.raises(BadInput, match="given twice"):
            store.tailer(["log", Partition("log", 0)], "g")
        with pytest.raises(BadInput):
            store.tailer("log", "g", out_of_range="whatever")
        with pytest.raises(BadInput):
            store.tailer([("log", 0)], "g")  # type: ignore[list-item]
        with store.tailer("log", "g") as tail:
            for call in (
                lambda: tail.read(0), lambda: tail.read(timeout=5), lambda: tail.seek(3),  # type: ignore[arg-type]
            ):  # fmt: skip
                with pytest.raises(BadInput):
                    call()

    def test_what_a_store_excludes_it_refuses(self, store: LogStore) -> None:
        store.create("log")
        excluded: dict[str, Callable[[], Any]] = {
            "copies": lambda: store.backup("x"),
            "staging": lambda: store.stage("log"),
            "retention": lambda: store.enforce_retention("log"),
            "exclusive": lambda: store.appender("log", exclusive=True),
        }
        for flag, call in excluded.items():
            if not getattr(store.capabilities, flag):
                with pytest.raises(Unsupported) as caught:
                    call()
                assert isinstance(caught.value, PenstockError)

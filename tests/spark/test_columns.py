"""Computations over Arrow columns in Spark's workers."""

from pathlib import Path

import msgspec
import pytest
from tests.contract.stream.shorthand import Run, drained
from tests.spark.runners import clock, logs, patience, runner
from tests.unit.stream import column_flows

import penstock
from penstock import LogStore
from penstock.stream import LocalRunner, Topology

__all__ = ["clock", "logs", "patience", "runner"]
pytestmark = pytest.mark.timeout(300)


def fill(store: LogStore) -> Topology:
    for log, values in (
        ("orders", [{"item": f"i{number}", "amount": number % 11} for number in range(300)]),
        ("numbers", list(range(300))),
    ):
        store.create(log, 2)
        with store.appender(log, bytes) as out:
            out.append_many(
                [msgspec.json.encode(value) for value in values],
                keys=[f"k{rank % 7}" for rank in range(300)],
                timestamps=[1000 + rank for rank in range(300)],
            )
            out.append(b"{", key="k1", timestamp=2000)
    return column_flows.orders()


def found(store: LogStore) -> dict[str, list[tuple[str | None, int, bytes]]]:
    return {
        log: sorted(
            (record.key, record.time_us, record.payload)
            for place in store.partitions(log)
            for record in store.log(log, bytes).records(place.index)
        )
        for log in ("bills", "small", "doubles", "bill.dead", "doubled.dead")
    }


def test_columns_come_to_the_same_as_on_a_local_runner(logs: LogStore, runner: Run, tmp_path: Path) -> None:
    drained(runner, fill(logs))
    with penstock.open_logs(f"file://{tmp_path / 'local'}?durability=fast") as local:
        assert LocalRunner(fill(local), local).start().drain("60s", final=True)
        assert found(logs) == found(local)
    assert len(found(logs)["doubles"]) == 300
    assert len(found(logs)["doubled.dead"]) == 1

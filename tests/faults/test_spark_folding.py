"""Window folds of many records at once come to what a local runner comes to, record by record."""

import random
from typing import Any

import pytest
from tests.contract.stream.shorthand import Row, Run, drained, fill, rows
from tests.spark.conftest import spark
from tests.spark.runners import clock, logs, patience, runner

import penstock
from penstock import LogStore
from penstock.stream import LocalRunner, Policy, Sliding, Topology, Tumbling, windowed_count, windowed_fold
from penstock.stream.windows import Session

__all__ = ["clock", "logs", "patience", "runner", "spark"]
pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

SECOND = 1_000_000
STREAMS = ("counted", "slid", "late", "summed", "longest", "gathered", "passed", "sessions", "picky.dead", "slide.dead")
CONTINUE = Policy(on_failure="continue")


def picky(total: int, value: int) -> int:
    if value % 50 == 7:
        raise ValueError(f"not {value}")
    return total + value


def gather(held: list[int], value: int) -> list[int]:
    held.append(value)  # folds may change what they are given
    return held


def folds() -> Topology:
    made = Topology("folds", partitions=2)
    made.stream("in", int)
    for name in STREAMS[:-2]:
        made.stream(name)
    made.add(windowed_count("count", "in", "counted", Tumbling("10s"), policy=CONTINUE))
    made.add(windowed_count("slide", "in", "slid", Sliding("10s", "4s"), late="late", policy=CONTINUE))
    made.add(windowed_fold("sum", "in", "summed", Tumbling("10s"), initial=0, fold=add, policy=CONTINUE))
    made.add(windowed_fold("max", "in", "longest", Sliding("9s", "3s"), initial=0, fold=max, policy=CONTINUE))
    made.add(windowed_fold("gather", "in", "gathered", Tumbling("30s"), initial=[], fold=gather, policy=CONTINUE))
    made.add(windowed_fold("picky", "in", "passed", Tumbling("10s"), initial=0, fold=picky, policy=CONTINUE))
    return made.add(windowed_count("visit", "in", "sessions", Session("2s"), policy=CONTINUE))


def add(total: int, value: int) -> int:
    return total + value


def given(seed: int, begin: int, count: int = 120) -> list[Row]:
    rng = random.Random(seed)
    times = [begin * SECOND + rng.randrange(60 * SECOND) for _ in range(count)]
    return [(rng.choice(["a", "b", "c", "", None]), rng.randrange(200), at) for at in times]


def run(logs: LogStore, run: Run) -> dict[str, list[Any]]:
    """Twice, the second time with records that are late, and one that nobody can read in between."""
    fill(logs, "in", given(1, 100), partitions=2)
    with logs.appender("in", bytes) as out:
        out.append(b"{", key="a", timestamp=130 * SECOND)
    drained(run, folds(), final=False)
    fill(logs, "in", given(2, 130), partitions=2)
    drained(run, folds())
    found: dict[str, list[Any]] = {name: rows(logs, name) for name in STREAMS[:-2]}
    for name in STREAMS[-2:]:
        log = logs.log(name, bytes)
        found[name] = sorted(one.payload for place in log.partitions for one in log.records(place.index))
    return found


def test_equal_to_a_local_runner(logs: LogStore, runner: Run) -> None:
    with penstock.open_logs("memory://") as store:
        wanted = run(store, lambda topology, **options: LocalRunner(topology, store, **options))
    assert all(wanted[name] for name in STREAMS)
    assert run(logs, runner) == wanted

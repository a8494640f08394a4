"""The pieces come to the same on every runner, at whatever speed, and with restarts in between."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.stream.shorthand import told
from tests.unit.stream import pieces

import penstock
from penstock import LogStore
from penstock.ids import new_id
from penstock.stream import LocalRunner, ProcessRunner, Runner

Make = Callable[[LogStore, str, dict[str, Any]], Runner]


def local(logs: LogStore, url: str, options: dict[str, Any]) -> Runner:
    return LocalRunner(pieces.topology(), logs, **options)


def processes(logs: LogStore, url: str, options: dict[str, Any]) -> Runner:
    return ProcessRunner("tests.unit.stream.pieces:topology", logs, url, processes=2, **options)


def spark(logs: LogStore, url: str, options: dict[str, Any]) -> Runner:
    pytest.importorskip("pyspark", reason="pyspark is not installed here")
    from tests.spark.in_process import InProcess

    from penstock.spark import SparkRunner

    return SparkRunner(pieces.topology(), logs, InProcess(), **options)


def run(make: Make, logs: LogStore, url: str, legs: list[Any], **options: Any) -> dict[str, Any]:
    for number, leg in enumerate(legs):
        pieces.put(logs, leg)
        runner = make(logs, url, options).start()
        assert runner.drain("60s", final=number == len(legs) - 1), told(runner)
    return pieces.results(logs)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (local, {"checkpoint_records": 7, "read": 5}),
        (processes, {"checkpoint_records": 30}),
        (spark, {"checkpoint_records": 40}),
    ],
    ids=["local", "processes", "spark"],
)
def test_every_runner_comes_to_the_same(tmp_path: Path, seed: int, make: Make, options: dict[str, Any]) -> None:
    legs = pieces.legs(seed)
    with penstock.open_logs(f"memory://{new_id()}") as logs:
        # All at once, but for the rules: they have no order beside the records that they are for.
        whole = {stream: [row for leg in legs[1:] for row in leg[stream]] for stream in ("in", "other")}
        expected = run(local, logs, "", [legs[0], whole])
    assert all(expected.values())
    url = f"file://{tmp_path / 'logs'}?durability=fast"
    with penstock.open_logs(url) as logs:
        found = run(make, logs, url, legs, **options)
    for stream, wanted in expected.items():
        assert found[stream] == wanted, stream

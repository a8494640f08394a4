"""SparkRunner under the stream contract."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.stream import shorthand

import penstock
from penstock import LogStore
from penstock.spark import SparkRunner
from penstock.stream.runner import Runner
from penstock.stream.topology import Topology
from penstock.testing import FakeClock

# A batch takes some tenths of a second whatever is in it; smaller checkpoints would only make the tests longer.
LEAST = 20


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shorthand, "PATIENCE", 120.0)


@pytest.fixture
def logs(tmp_path: Path, clock: FakeClock) -> Iterator[LogStore]:
    with penstock.open_logs(f"file://{tmp_path / 'logs'}?durability=fast", clock=clock) as store:
        yield store


@pytest.fixture
def runner(spark: Any, logs: LogStore) -> Iterator[Callable[..., Runner]]:
    made: list[Runner] = []

    def make(topology: Topology, **options: Any) -> Runner:
        if "checkpoint_records" in options:
            options["checkpoint_records"] = max(LEAST, options["checkpoint_records"])
        made.append(SparkRunner(topology, logs, spark, **options))
        return made[-1]

    yield make
    for one in made:
        if not one.is_terminated:
            one.shutdown()


def without(suite: type, reasons: dict[str, str]) -> type:
    """A suite less the tests that cannot be true on Spark; each with its reason."""
    missing = [name for name in reasons if not hasattr(suite, name)]
    assert not missing, f"{suite.__name__} has no {missing}"
    return type(suite.__name__, (suite,), dict.fromkeys(reasons))

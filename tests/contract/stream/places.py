"""Every runner under the stream contract: a new one gets a line in RUNNERS, and its name is in every test's id."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import LogStore
from penstock.ids import new_id
from penstock.stream.local.runner import LocalRunner
from penstock.stream.runner import Runner
from penstock.stream.topology import Topology
from penstock.testing import FakeClock

Servers = Callable[[str], Any]

# A runner and where its logs are.
RUNNERS: dict[str, tuple[Callable[..., Runner], Callable[[Path, Servers], str]]] = {
    "local-memory": (LocalRunner, lambda folder, servers: f"memory://{new_id()}"),
    "local-file": (LocalRunner, lambda folder, servers: f"file://{folder / 'logs'}?durability=fast"),
}
# Joining a group takes seconds there: test_streams_kafka.py chooses what it runs.
KAFKA = "local-kafka"
ALL = {**RUNNERS, KAFKA: (LocalRunner, lambda folder, servers: f"{servers('kafka').url}/{new_id()}")}


@pytest.fixture(params=list(RUNNERS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def logs(kind: str, tmp_path: Path, servers: Servers, clock: FakeClock) -> Iterator[LogStore]:
    with penstock.open_logs(ALL[kind][1](tmp_path, servers), clock=clock) as store:
        yield store


@pytest.fixture
def runner(kind: str, logs: LogStore) -> Iterator[Callable[..., Runner]]:
    made: list[Runner] = []

    def make(topology: Topology, **options: Any) -> Runner:
        made.append(ALL[kind][0](topology, logs, **options))
        return made[-1]

    yield make
    for one in made:
        if not one.is_terminated:
            one.shutdown()

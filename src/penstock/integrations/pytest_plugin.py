"""The pytest plugin: fixtures with the prefix ``penstock_``, found by pytest without being asked for.

Stores are in memory, one per test, and use a clock that stands still until the test moves it. Nothing of
Penstock is imported before a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock import aio
    from penstock.clock import FakeClock
    from penstock.log.store import LogStore
    from penstock.queue.queues import QueueStore
    from penstock.stream.topology import Topology


@pytest.fixture
def penstock_clock() -> FakeClock:
    """A clock that stands still until the test moves it."""
    from penstock.clock import FakeClock

    return FakeClock()


@pytest.fixture
def penstock_queues(penstock_clock: FakeClock) -> Iterator[QueueStore]:
    """A queue store in memory."""
    from penstock.opening import open_queues

    with open_queues("memory://", clock=penstock_clock) as store:
        yield store


@pytest.fixture
def penstock_logs(penstock_clock: FakeClock) -> Iterator[LogStore]:
    """A log store in memory."""
    from penstock.opening import open_logs

    with open_logs("memory://", clock=penstock_clock) as store:
        yield store


@pytest.fixture
def penstock_drain(penstock_queues: QueueStore) -> Callable[..., int]:
    """Handle all that is due in ``penstock_queues``, in the calling thread. Returns how many times a handler ran."""
    from penstock.queue.worker import Worker

    def drain(*queues: Any, limit: int | None = None) -> int:
        return Worker(penstock_queues, queues or None).drain(limit=limit)

    return drain


@pytest.fixture
def penstock_run(penstock_logs: LogStore) -> Callable[..., None]:
    """Run a topology over ``penstock_logs`` until it has read everything; ``final=True`` ends event time."""
    from penstock.stream import LocalRunner

    def run(topology: Topology, *, final: bool = False) -> None:
        runner = LocalRunner(topology, penstock_logs).start()
        if not runner.drain(final=final):
            pytest.fail(f"the topology {topology.name} did not come to its end: {runner.status()}")

    return run


@pytest.fixture
def penstock_aio_queues(penstock_queues: QueueStore) -> aio.QueueStore:
    """The store of ``penstock_queues`` with calls to await, in whatever event loop the test runs."""
    from penstock import aio

    return aio.QueueStore(penstock_queues)


@pytest.fixture
def penstock_aio_logs(penstock_logs: LogStore) -> aio.LogStore:
    """The store of ``penstock_logs`` with calls to await."""
    from penstock import aio

    return aio.LogStore(penstock_logs)

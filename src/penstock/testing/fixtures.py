"""A pytest plugin, opt-in with ``pytest_plugins = ["penstock.testing.fixtures"]``: clock, queues and drain."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock.clock import FakeClock
from penstock.opening import open_queues
from penstock.queue.queues import QueueStore
from penstock.testing.drained import drain as drain_all


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still until the test moves it."""
    return FakeClock()


@pytest.fixture
def queues(clock: FakeClock) -> Iterator[QueueStore]:
    """A queue store in memory for this test alone, on the fixture ``clock``."""
    with open_queues("memory://", clock=clock) as store:
        yield store


@pytest.fixture
def drain(queues: QueueStore) -> Callable[..., int]:
    """Handle all due work of ``queues`` in the calling thread; takes what :func:`penstock.testing.drain` takes."""

    def drain_here(*chosen: object, limit: int | None = None) -> int:
        return drain_all(queues, *chosen, limit=limit)  # type: ignore[arg-type]

    return drain_here

"""A queue store in memory whose clock the test moves; a test file may have another one of its own."""

from collections.abc import Iterator

import pytest

from penstock import QueueStore, open_queues
from penstock.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> Iterator[QueueStore]:
    with open_queues("memory://", clock=clock) as made:
        yield made

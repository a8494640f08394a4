"""What tests of several stores share."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import QueueStore, open_queues


@pytest.fixture
def opened() -> Iterator[Callable[..., Any]]:
    """Opens stores, and closes them when the test is over."""
    made: list[QueueStore] = []

    def open_one(address: str, **options: Any) -> QueueStore:
        made.append(open_queues(address, **options))
        return made[-1]

    yield open_one
    for store in made:
        store.close()

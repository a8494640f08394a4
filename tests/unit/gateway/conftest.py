"""A backend that does what it is told."""

from collections.abc import Iterator

import pytest
from tests.backends import Backend, backend


@pytest.fixture
def far() -> Iterator[Backend]:
    with backend() as made:
        yield made

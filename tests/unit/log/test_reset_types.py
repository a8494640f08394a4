"""Offsets of a reset that are not numbers."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock.errors import BadInput
from penstock.log import Partition


@pytest.mark.parametrize("offset", ["x", 0.5, None, True])
def test_reset_refuses_an_offset_that_is_not_a_number(offset: Any) -> None:
    """The error is ours and names the partition."""
    with penstock.open_logs("memory://") as store:
        store.create("clicks")
        with pytest.raises(BadInput, match="clicks-00"):
            store.reset("billing", {Partition("clicks", 0): offset})

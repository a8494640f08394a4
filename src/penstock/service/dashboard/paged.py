"""Long lists, a page at a time: a page that is open is read again every few seconds, and sent whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import msgspec

from penstock.service.dashboard.formatting import whole_number

T = TypeVar("T")

ON_A_PAGE = 50


class Paged(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list."""

    rows: Sequence[T]
    number: int
    total: int

    @property
    def first(self) -> int:
        """The place of its first row in the list, from 0."""
        return self.number * ON_A_PAGE

    @property
    def has_more(self) -> bool:
        """Whether another page follows."""
        return self.first + ON_A_PAGE < self.total


def paged(rows: Sequence[T], given: str) -> Paged[T]:
    """The page that an address asks for, or the nearest one that there is.

    >>> page = paged(range(120), "2")
    >>> page.first, len(page.rows), page.has_more
    (100, 20, False)
    """
    number = max(0, min(whole_number(given) or 0, (len(rows) - 1) // ON_A_PAGE))
    return Paged(rows[number * ON_A_PAGE : (number + 1) * ON_A_PAGE], number, len(rows))

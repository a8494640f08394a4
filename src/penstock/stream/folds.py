"""Count, sum, least and greatest as folds; a runner that knows them may compute them in its own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Of = Callable[[Any], Any]


def one_more(count: int, _value: Any) -> int:
    """Counts."""
    return count + 1


def added(one: Any, other: Any) -> Any:
    """Puts two counts or sums together."""
    return one + other


def least(one: Any, other: Any) -> Any:
    """The smaller one; there may be none yet."""
    return other if one is None else one if other is None else min(one, other)


def greatest(one: Any, other: Any) -> Any:
    """The larger one; there may be none yet."""
    return other if one is None else one if other is None else max(one, other)


class Taking:
    """A fold of what ``of`` takes out of every value, or of the values themselves."""

    def __init__(self, together: Callable[[Any, Any], Any], of: Of | None) -> None:
        """``together`` makes one of two."""
        self.together = together
        self.of = of

    def __call__(self, held: Any, value: Any) -> Any:
        """One more value."""
        return self.together(held, value if self.of is None else self.of(value))

"""The first few of every window by rank: :func:`windowed_top`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, Unpack

import msgspec

from penstock.errors import BadInput
from penstock.log.record import Record
from penstock.stream.operators import check_arguments
from penstock.stream.windows import RecordFold, Window, WindowOptions, windowed_fold

Ties = Literal["cut", "keep"]


class Ranked(msgspec.Struct, array_like=True):
    """A record among the first of a window."""

    score: Any
    time: int
    payload: bytes


class TopFold(RecordFold):
    """Holds the first ``n`` records by score, the highest first; of equal scores the earlier, then by payload."""

    def __init__(self, n: int, by: Callable[[Any], Any] | None, ties: Ties) -> None:
        """``ties="keep"``: also those behind the last of them that have its score."""
        self.n = n
        self.by = by
        self.ties = ties

    def __call__(self, held: list[Ranked], record: Record[Any]) -> list[Ranked]:
        """Fold in one more record."""
        value = record.value
        score = _checked(value if self.by is None else self.by(value))
        return self._first([*held, Ranked(score, record.time_us, record.payload)])

    def merge(self, held: list[Ranked], other: list[Ranked]) -> list[Ranked]:
        """Merge two sessions."""
        return self._first([*held, *other])

    def finish(self, held: list[Ranked], decode: Callable[[bytes], Any]) -> list[Any]:
        """The values in their order."""
        return [decode(ranked.payload) for ranked in held]

    def _first(self, candidates: Iterable[Ranked]) -> list[Ranked]:
        ordered = sorted(candidates, key=lambda ranked: (ranked.time, ranked.payload))
        ordered.sort(key=lambda ranked: ranked.score, reverse=True)  # equal scores stay in the order they have
        if self.ties == "cut" or len(ordered) <= self.n:
            return ordered[: self.n]
        last = ordered[self.n - 1].score
        return [ranked for rank, ranked in enumerate(ordered) if rank < self.n or ranked.score == last]


def windowed_top(
    name: str, source: str, to: str, window: Window, n: int, *, by: Callable[[Any], Any] | None = None,
    ties: Ties = "cut", **options: Unpack[WindowOptions],
) -> windowed_fold:  # fmt: skip
    """The values of each key and window that score highest, as a list, the highest first.

    Of equal values the one with the earlier event time comes first.

    Args:
        n: how many
        by: the score of a value: a number, a text, or a tuple of them; by default the value itself
        ties: ``"cut"`` gives at most ``n`` (in SQL, ROW_NUMBER), ``"keep"`` also those that are equal to the last of
            them (RANK, or FETCH FIRST … WITH TIES)
        **options: those of :class:`windowed_fold`
    """
    check_arguments(windowed_top, name=name, source=source, to=to, by=by)
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise BadInput(f"{name} was asked for the first {n!r} of a window.", hint="Give n=1 or more.")
    if ties not in ("cut", "keep"):
        raise BadInput(f"{name} was given ties={ties!r}.", hint="Use 'cut' or 'keep'.")
    fold = TopFold(n, by, ties)
    return windowed_fold(
        name, source, to, window, initial=[], fold=fold, merge=fold.merge, accumulator=list[Ranked], **options
    )


def _checked(score: Any) -> Any:
    """A score that can be compared, and is the same when it comes back from the state."""
    if isinstance(score, list | tuple):
        return [_checked(part) for part in score]
    if isinstance(score, int | str) or (isinstance(score, float) and not math.isnan(score)):
        return score
    raise BadInput(f"{score!r} has no rank.", hint="Let by= give a number, a text, or a tuple of them.")

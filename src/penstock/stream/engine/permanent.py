"""Errors that end a computation: another attempt would begin at the same offset, and meet them again."""

from __future__ import annotations

from penstock.errors import (
    BadInput,
    ComputationFailed,
    Conflict,
    MissingExtra,
    OffsetOutOfRange,
    PenstockError,
    SchemaMismatch,
    StoreCorrupt,
    Unsupported,
)
from penstock.log.record import Partition

PERMANENT = (BadInput, ComputationFailed, MissingExtra, SchemaMismatch, StoreCorrupt, Unsupported)
Position = tuple[Partition, int] | None


def is_permanent(error: BaseException, *, again: bool = False) -> bool:
    """Whether no retry would help; ``again``: the attempt before this one has failed too.

    A missing offset may come from a reader that was too slow: the next one begins at the committed offset. Only plain
    conflicts are permanent; others (partitions that another member holds) pass.
    """
    if isinstance(error, OffsetOutOfRange):
        return again
    return isinstance(error, PERMANENT) or type(error) is Conflict


def failed_at(computation: str, error: BaseException, position: Position = None) -> ComputationFailed:
    """The error that ends a computation: what went wrong, and where.

    ``position`` is where the computation is; a position in the error itself takes precedence.
    """
    if isinstance(error, ComputationFailed):
        return error
    partition, offset = ("", None) if position is None else (str(position[0]), position[1])
    message, hint = str(error), ""
    if isinstance(error, PenstockError):
        message, hint = error.message, error.hint
        if error.partition:
            partition, offset = error.partition, error.offset
    where = f" at {partition}" if partition else ""
    where += "" if offset is None else f", offset {offset}"
    return ComputationFailed(
        f"{computation} has stopped{where}: {type(error).__name__}: {message}", hint=hint, partition=partition,
        offset=offset,
    )  # fmt: skip

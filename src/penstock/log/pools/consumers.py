"""Consumers: what a :class:`ConsumerPool` drives, and two that call a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from penstock.log.record import Record

T = TypeVar("T")


class Consumer(Protocol[T]):
    """What a pool calls for every batch; :func:`per_record` and :func:`per_batch` make one from a function."""

    def begin(self) -> None:
        """A batch begins."""

    def accept(self, record: Record[T]) -> None:
        """Take one record of the batch.

        Args:
            record: the next one
        """

    def commit(self) -> None:
        """Make the batch final. If this raises, the batch is replayed."""

    def rollback(self) -> None:
        """Discard the batch."""

    def close(self) -> None:
        """The pool ends."""


def per_record(function: Callable[[Record[T]], object]) -> Consumer[T]:
    """A consumer that calls a function for every record.

    Args:
        function: called with the record
    """
    return _PerRecord(function)


def per_batch(function: Callable[[list[Record[T]]], object]) -> Consumer[T]:
    """A consumer that calls a function for every complete batch.

    Args:
        function: called with the records
    """
    return _PerBatch(function)


class _PerRecord(Generic[T]):
    def __init__(self, function: Callable[[Record[T]], object]) -> None:
        self._function = function

    def begin(self) -> None: ...

    def accept(self, record: Record[T]) -> None:
        self._function(record)

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


class _PerBatch(Generic[T]):
    def __init__(self, function: Callable[[list[Record[T]]], object]) -> None:
        self._function = function
        self._records: list[Record[T]] = []

    def begin(self) -> None:
        self._records.clear()

    def accept(self, record: Record[T]) -> None:
        self._records.append(record)

    def commit(self) -> None:
        self._function(list(self._records))

    def rollback(self) -> None:
        self._records.clear()

    def close(self) -> None: ...

"""Log: a typed handle on a log."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar, Unpack, cast

from penstock.clock import Duration
from penstock.codec import Codec, codec_for
from penstock.errors import BadInput, Conflict
from penstock.log.appender import Appender, AppendManyOptions, AppendOptions
from penstock.log.record import Appended, Bounds, Lag, Latency, Offset, Partition, Record, RecordBatch
from penstock.log.routing import check_codec
from penstock.log.settings import LogSettings, check_index
from penstock.log.store import LogStore
from penstock.log.tailer import Tailer

T = TypeVar("T")


class Log(Generic[T]):
    """A typed handle on one log: its records, its lag, and appenders and tailers that know its type."""

    def __init__(
        self,
        store: LogStore,
        name: str,
        type: Any = Any,
        *,
        partitions: int | None = None,
        codec: Codec[T] | None = None,
    ) -> None:
        """Open the handle; the log must exist."""
        self.store = store
        self.settings: LogSettings = store.settings(name)
        self.name = name
        self.codec: Codec[T] = codec or codec_for(type)
        check_codec(self.settings, self.codec)
        if partitions is not None and partitions != self.settings.partitions:
            raise Conflict(
                f"log {name} has {self.settings.partitions} partitions, not {partitions}.",
                hint="The number is fixed when a log is created; copy it into a new log to change it.",
            )
        self._lock = threading.Lock()
        self._shared: Appender[T] | None = None

    def __repr__(self) -> str:
        """Name, type and store."""
        return f"<log {self.name} of {self.codec.type_name} in {self.store!r}>"

    @property
    def partitions(self) -> list[Partition]:
        """Its partitions."""
        return [Partition(self.name, index) for index in range(self.settings.partitions)]

    def partition(self, index: int) -> Partition:
        """One of its partitions.

        Args:
            index: its number
        """
        return Partition(self.name, check_index(self.settings, index))

    def append(self, value: T, **options: Unpack[AppendOptions]) -> Offset:
        """Append a record through the handle's own appender.

        Args:
            **options: those of :meth:`Appender.append`
        """
        return self._own_appender().append(value, **options)

    def append_many(self, values: Iterable[T], **options: Unpack[AppendManyOptions]) -> Appended:
        """Append records in one call.

        Args:
            **options: those of :meth:`Appender.append_many`
        """
        return self._own_appender().append_many(values, **options)

    def appender(self, **options: Any) -> Appender[T]:
        """A new appender.

        Args:
            **options: those of :class:`penstock.Appender`
        """
        return Appender(self.store, self.name, codec=self.codec, **options)

    def tailer(self, group: str, partitions: Iterable[int] | None = None, **options: Any) -> Tailer[T]:
        """A tailer of all partitions, or of the given ones.

        Args:
            partitions: their numbers
            **options: those of :meth:`LogStore.tailer`
        """
        chosen = self.partitions if partitions is None else [self.partition(index) for index in partitions]
        return cast("Tailer[T]", Tailer.manual(self.store, chosen, group, codec=self.codec, **options))

    def subscribe(self, group: str, **options: Any) -> Tailer[T]:
        """A tailer that shares the partitions with the group's other subscribers.

        Args:
            **options: those of :meth:`LogStore.subscribe`
        """
        return cast("Tailer[T]", Tailer.subscribed(self.store, self.name, group, codec=self.codec, **options))

    def batches(
        self, partition: int | None = None, start: int | None = None, stop: int | None = None
    ) -> Iterator[RecordBatch]:
        """The records of a partition as batches, without a group; see :meth:`records`."""
        for batch in self._raw_batches(partition, start, stop):
            batch.codec = self.codec
            yield batch

    def records(
        self, partition: int | None = None, start: int | None = None, stop: int | None = None
    ) -> Iterator[Record[T]]:
        """The records of a partition, or else of all partitions, one after the other; without a group.

        ``start`` and ``stop`` are offsets of the partition, so they need one.
        """
        for batch in self.batches(partition, start, stop):
            yield from batch.records()

    def payloads(
        self, partition: int | None = None, start: int | None = None, stop: int | None = None
    ) -> Iterator[bytes]:
        """The stored bytes of the values, for the same records as :meth:`records`."""
        for batch in self._raw_batches(partition, start, stop):
            yield from batch.payloads()

    def _raw_batches(self, partition: int | None, start: int | None, stop: int | None) -> Iterator[RecordBatch]:
        if partition is None and (start is not None or stop is not None):
            raise BadInput(
                f"start and stop were given for all partitions of log {self.name}; each has its own offsets.",
                hint="Name the partition, or read the whole log without start and stop.",
            )
        chosen = self.partitions if partition is None else [self.partition(partition)]
        for chosen_partition in chosen:
            yield from self.store.batches(chosen_partition, start, stop)

    def bounds(self) -> list[Bounds]:
        """The bounds of every partition."""
        return self.store.bounds(self.name)

    def lag(self, group: str) -> Lag:
        """The lag of a group."""
        return self.store.lag(self.name, group)

    def latency(self, group: str) -> Latency:
        """The age of the last record that a group committed."""
        return self.store.latency(self.name, group)

    def wait_for(self, offset: Offset, group: str, timeout: Duration = "0s") -> bool:
        """Wait until a group has committed past a record of this log."""
        if offset.log != self.name:
            raise BadInput(f"{offset} is not in log {self.name}.", hint="Ask the log it is in.")
        return self.store.wait_for(offset, group, timeout)

    def close(self) -> None:
        """Close the handle's own appender, if it has one; the next append opens another."""
        with self._lock:
            if self._shared is not None:
                self._shared.close()

    def __enter__(self) -> Log[T]:
        """For ``with``."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _own_appender(self) -> Appender[T]:
        with self._lock:
            if self._shared is None or self._shared.closed:
                self._shared = self.appender()
            return self._shared

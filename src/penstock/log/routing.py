"""Router and LingerBuffer: encoding values, choosing their partitions, and buffering them."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from penstock.codec import BytesCodec, Codec
from penstock.errors import WrongType
from penstock.log.partitioner import partitioner
from penstock.log.protocol import Sink
from penstock.log.record import Headers, Moment, NewRecords, key_bytes, micros
from penstock.log.settings import LogSettings, check_index
from penstock.log.store import LogStore
from penstock.scalars import Scalar, canonical_text

OnAppended = Callable[[int, int, int], None]  # partition, first offset, count
_BYTES_ONLY = frozenset({bytes})
_TEXT_OR_BYTES = frozenset({str, bytes, type(None)})


def key_text(key: Scalar | bytes) -> str | bytes | None:
    """A key as a log stores it: text, bytes and None as they are, other scalars as their canonical text."""
    return key if key is None or isinstance(key, str | bytes) else canonical_text(key)


class Router:
    """Encodes values and chooses their partitions, for appenders and transactions."""

    def __init__(self, store: LogStore, settings: LogSettings, codec: Codec[Any]) -> None:
        """For a log and a codec."""
        check_codec(settings, codec)
        self.store = store
        self.settings = settings
        self.codec = codec
        self._raw = isinstance(codec, BytesCodec)
        self._hash = partitioner(settings.partitioner)
        self._appends = itertools.count()

    def route_one(
        self,
        value: Any,
        *,
        key: Scalar | bytes,
        partition: int | None,
        timestamp: Moment | None,
        headers: Headers | None,
        sequence: int | None = None,
    ) -> tuple[int, NewRecords]:
        """Encode one record. Returns its partition and the record."""
        headers = self.traced(headers)
        key = key_text(key)
        if partition is not None:
            check_index(self.settings, partition)
        elif key is not None:
            key_bytes(key)
            partition = self._hash(key, self.settings.partitions)
        else:
            partition = self._next_partition(sequence)
        records = NewRecords(
            (self.codec.encode(value),),
            None if key is None else (key,),
            None if timestamp is None else (micros(timestamp),),
            None if not headers else (headers,),
        )
        self.store.check_records(self.settings.name, records)
        return partition, records

    def route_many(
        self,
        values: Iterable[Any],
        *,
        keys: Sequence[Scalar | bytes] | None,
        partition: int | None,
        timestamps: Sequence[Moment] | None,
        headers: Sequence[Headers | None] | None,
        sequence: int | None = None,
    ) -> tuple[list[tuple[int, NewRecords]], list[tuple[int, int]] | None]:
        """Encode records by partition. Also returns each value's partition and rank, or None if all are in one."""
        encoded = self._encoded(values)
        texts = cast("Sequence[str | bytes | None] | None", keys)
        if keys is not None and not _TEXT_OR_BYTES.issuperset(map(type, keys)):
            texts = [key_text(key) for key in keys]
        if self.store.tracing is not None:
            headers = [self.traced(own) for own in headers or [None] * len(encoded)]
        whole = NewRecords(
            encoded,
            texts,
            None if timestamps is None else list(map(micros, timestamps)),
            headers if headers is None or any(headers) else None,
        )
        self.store.check_records(self.settings.name, whole)
        if not whole.values:
            return [], None
        if partition is not None:
            return [(check_index(self.settings, partition), whole)], None
        if keys is None:
            return [(self._next_partition(sequence), whole)], None
        if self.settings.partitions == 1:
            return [(0, whole)], None
        return self._spread(whole, whole.keys or ())

    def _encoded(self, values: Iterable[Any]) -> Sequence[bytes]:
        if self._raw:
            encoded = values if isinstance(values, list | tuple) else list(values)
            # Checking all types at once is much cheaper than a call per value.
            if _BYTES_ONLY.issuperset(map(type, encoded)):
                return encoded
            values = encoded
        return [self.codec.encode(value) for value in values]

    def _spread(
        self, whole: NewRecords, keys: Sequence[str | bytes | None]
    ) -> tuple[list[tuple[int, NewRecords]], list[tuple[int, int]]]:
        count, hashed = self.settings.partitions, self._hash
        chosen: dict[int, list[int]] = {}
        ranks = []
        for index, key in enumerate(keys):
            if key is None:
                number = self._next_partition(None)
            else:
                try:
                    number = hashed(key, count)
                except (UnicodeEncodeError, TypeError):
                    key_bytes(key)
                    raise
            indexes = chosen.setdefault(number, [])
            ranks.append((number, len(indexes)))
            indexes.append(index)
        return [(number, whole.take(indexes)) for number, indexes in chosen.items()], ranks

    def traced(self, headers: Headers | None) -> Headers | None:
        """The headers with the current trace context, if tracing is on."""
        tracing = self.store.tracing
        return headers if tracing is None else tracing.inject(dict(headers or {}), self.settings.name)

    def partition_of(self, key: Scalar | bytes, partition: int | None) -> int:
        """The partition of a record."""
        if partition is not None:
            return check_index(self.settings, partition)
        key = key_text(key)
        if key is None:
            return self._next_partition(None)
        key_bytes(key)
        return self._hash(key, self.settings.partitions)

    def _next_partition(self, sequence: int | None) -> int:
        if sequence is not None:  # a repeated append must go to the same partition as the first
            return sequence % self.settings.partitions
        return next(self._appends) % self.settings.partitions


class LingerBuffer:
    """Records that were sent and are appended together after a while."""

    def __init__(self, router: Router, sink: Sink, linger: float, size: int, on_appended: OnAppended) -> None:
        """Hold records for at most ``linger`` seconds and ``size`` bytes."""
        self._router = router
        self._sink = sink
        self._linger = linger
        self._limit = size
        self._on_appended = on_appended
        self._lock = threading.Condition()
        self._waiting: list[tuple[Any, ...]] = []
        self._size = 0
        self._since = 0.0
        self._flushing = threading.Lock()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._ended = False

    def add(self, *record: Any) -> None:
        """Buffer a record: value, key, partition, timestamp, headers."""
        if self._error is not None:
            self._raise_error()
        payload = self._router.codec.encode(record[0])
        with self._lock:
            key, partition, timestamp, headers = record[1:]
            self._waiting.append((payload, key_text(key), partition, timestamp, self._router.traced(headers)))
            self._size += len(payload)
            is_full = self._size >= self._limit
            if len(self._waiting) == 1:
                self._since = time.monotonic()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="penstock-linger", daemon=True)
                    self._thread.start()
                else:
                    self._lock.notify()
        if is_full:
            self.flush()

    def flush(self) -> None:
        """Append the buffered records. Raises what has failed since the last call."""
        self._write()
        self._raise_error()

    def close(self) -> None:
        """Flush and stop the thread."""
        with self._lock:
            self._ended = True
            self._lock.notify()
        self.flush()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _write(self) -> None:
        with self._flushing:  # one thread at a time, to keep the order
            with self._lock:
                waiting, self._waiting, self._size = self._waiting, [], 0
            if not waiting:
                return
            try:
                self._append(waiting)
            except BaseException as error:
                self._error = error

    def _append(self, waiting: list[tuple[Any, ...]]) -> None:
        router = self._router
        rows_by_partition: dict[int, list[tuple[Any, ...]]] = {}
        for payload, key, partition, timestamp, headers in waiting:
            number = router.partition_of(key, partition)
            rows_by_partition.setdefault(number, []).append((payload, key, timestamp, headers))
        parts = []
        for number, rows in rows_by_partition.items():
            values, keys, times, headers = map(list, zip(*rows, strict=True))
            dated = any(time_ is not None for time_ in times)
            now = router.store.now() if dated else 0
            records = NewRecords(
                values,
                keys if any(key is not None for key in keys) else None,
                [now if time_ is None else micros(time_) for time_ in times] if dated else None,
                headers if any(headers) else None,
            )
            router.store.check_records(router.settings.name, records)
            parts.append((number, records))
        for (number, records), span in zip(parts, self._sink.append(parts), strict=True):
            self._on_appended(number, span[0], len(records))

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._waiting and not self._ended:
                    self._lock.wait()
                if self._ended:
                    return
                left = self._since + self._linger - time.monotonic()
                if left > 0:
                    self._lock.wait(left)
                    if not self._waiting or self._since + self._linger > time.monotonic():
                        continue
            self._write()


def check_codec(settings: LogSettings, codec: Codec[Any]) -> None:
    """Raise ``WrongType`` if the log was created for another codec; bytes are always allowed."""
    if settings.codec is not None and codec.name not in (settings.codec, "bytes"):
        raise WrongType(
            f"log {settings.name} keeps {settings.codec}, not {codec.name}.", hint="Open it with a type of its codec."
        )

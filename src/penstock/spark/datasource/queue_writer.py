"""Writing to queues: tasks put entries whose ids follow from the write and the row, so a repeat puts nothing twice.

A row's id is made of (query, batch, task, content, how often the task has seen this content). It does not depend on
the order of rows, which Spark does not promise to keep when it repeats a task behind a shuffle. A column ``id`` takes
its place where the rows have ids of their own. Rows are checked as ``Queue.put`` checks its arguments.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock import failpoints
from penstock.clock import check_time
from penstock.codec import BYTES, JSON, codec_for
from penstock.errors import BadInput, Undecodable
from penstock.ids import derived_id
from penstock.names import check_name, did_you_mean
from penstock.queue.options import check_headers, check_id, check_labels, check_priority, read_unique
from penstock.queue.protocol import NewEntry, PutResult
from penstock.queue.queues import QueueStore
from penstock.spark.datasource.options import Options
from penstock.spark.datasource.payloads import type_of
from penstock.spark.datasource.query_identity import Writing, one_write, streams_batch, task_number
from penstock.spark.stores import queues_at

CHUNK = 1000
CHUNK_BYTES = 8 * 1024 * 1024
SHOWN = 200  # characters of what is wrong with a row
T = TypeVar("T")
_TEXT = ((t.StringType,), "STRING")
_MAP = ((t.MapType,), "MAP<STRING, STRING>")
COLUMNS: dict[str, tuple[tuple[type[t.DataType], ...], str]] = {
    "payload": ((t.StringType, t.BinaryType), "STRING (JSON) or BINARY"),
    "queue": _TEXT,
    "id": _TEXT,
    "due": ((t.TimestampType,), "TIMESTAMP"),
    "priority": ((t.IntegerType, t.LongType, t.ShortType, t.ByteType), "INT"),
    "unique": _TEXT,
    "labels": _MAP,
    "headers": _MAP,
}


class EntriesPut(WriterCommitMessage):
    """A task's message to the driver: how many entries it put."""

    def __init__(self, rows: int, created: int) -> None:
        """``created`` is less than ``rows`` after a repeat."""
        self.rows = rows
        self.created = created


class _QueueWriting:
    """The common part of batches and streams."""

    def __init__(self, options: Options, schema: t.StructType) -> None:
        """Check the columns, and that the store is there."""
        self.options = options
        _check_columns(schema, options.queue)
        self.text = isinstance(schema["payload"].dataType, t.StringType)
        if options.type is not None:
            type_of(options.type)
        queues_at(options.url)

    def put(self, batches: Iterable[pa.RecordBatch], writing: Writing) -> EntriesPut:
        """In a task."""
        store = queues_at(self.options.url)
        maker = EntryMaker(store, self.options, writing, task_number(), is_text=self.text)
        rows = created = 0
        for chunk in chunks(maker.entry(row) for batch in batches for row in rows_of(batch)):
            created += sum(put.created for put in put_chunk(store, chunk))
            rows += len(chunk)
        return EntriesPut(rows, created)


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Convert rows to Python; due times become microseconds, since Python lacks some of Spark's times."""
    if "due" in batch.schema.names:
        index = batch.schema.get_field_index("due")
        batch = batch.set_column(index, "due", batch.column(index).cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()))
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def chunks(entries: Iterable[NewEntry]) -> Iterator[list[NewEntry]]:
    """Cut entries into chunks that a store takes in one step."""
    held: list[NewEntry] = []
    size = 0
    for entry in entries:
        if held and (len(held) >= CHUNK or size + len(entry.payload) > CHUNK_BYTES):
            yield held
            held, size = [], 0
        held.append(entry)
        size += len(entry.payload)
    if held:
        yield held


def put_chunk(store: QueueStore, entries: list[NewEntry]) -> Sequence[PutResult]:
    """Put a chunk in one step, all or none."""
    failpoints.point("spark.put.before")
    done = store.driver.put(entries)
    failpoints.point("spark.put.after")
    return done


class QueueWriter(_QueueWriting, DataSourceArrowWriter):
    """A DataFrame into queues."""

    def __init__(self, options: Options, schema: t.StructType) -> None:
        """Name the write here: every task gets a copy of this object."""
        super().__init__(options, schema)
        self.writing = one_write(options.producer, options.sequence)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        return self.put(iterator, self.writing)


class QueueStreamWriter(_QueueWriting, DataSourceStreamArrowWriter):
    """A stream into queues."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        return self.put(iterator, streams_batch())


class EntryMaker:
    """Makes entries from rows."""

    def __init__(self, store: QueueStore, options: Options, writing: Writing, task: int, *, is_text: bool) -> None:
        """``is_text``: payloads are JSON, not bytes."""
        self._store = store
        self._queue = options.queue
        self._codec = JSON if is_text else BYTES
        reader = codec_for(Any) if options.type is None else codec_for(type_of(options.type))
        self._type = reader.type_name if is_text else "bytes"
        self._decode = reader.decode if is_text else None
        self._write = (writing.producer, str(writing.sequence), str(task))
        self._seen: Counter[bytes] = Counter()

    def entry(self, row: dict[str, Any]) -> NewEntry:
        """The entry of a row from :func:`rows_of`. Raises for a row that no put would accept."""
        queue = row["queue"] if self._queue is None else self._queue
        if queue is None:
            raise BadInput("a row names no queue: its column queue is null.", hint="Say for every row where it goes.")
        _checked("queue", check_name, queue)
        payload = row["payload"]
        if payload is None:
            raise BadInput(f"an entry for queue {queue} has no payload.", hint='Leave it out: "payload IS NOT NULL".')
        raw = payload.encode() if isinstance(payload, str) else payload
        if len(raw) > self._store.driver.payload_limit:
            raise self._store.driver.too_large(len(raw))
        if self._decode is not None:
            self._check_payload(raw)
        due_us, unique, given, priority = row.get("due"), row.get("unique"), row.get("id"), row.get("priority") or 0
        labels, headers = dict(row.get("labels") or ()), dict(row.get("headers") or ())
        if due_us is not None:
            _checked("due", lambda value: check_time(value, name=f"{value} microseconds since 1970"), due_us)
        _checked("priority", check_priority, priority)
        _checked("labels", check_labels, labels)
        _checked("headers", check_headers, headers)
        holder = None if unique is None else _checked("unique", read_unique, unique)
        if given is None:
            id_ = self._id((queue, raw, due_us, row.get("priority"), unique, labels, headers))
        else:
            id_ = _checked("id", check_id, given)
        return NewEntry(
            id_, queue, raw, self._codec, self._type, priority=priority, due_us=due_us, labels=labels,
            headers=headers, unique=holder, repeat=True,
        )  # fmt: skip

    def _check_payload(self, raw: bytes) -> None:
        try:
            if self._decode is not None:
                self._decode(raw)
        except Undecodable as error:
            raise Undecodable(
                f"column payload: {raw[:SHOWN]!r} cannot be read as {self._type}: {error.__cause__}.",
                hint="Text has to be JSON: to_json(...). Anything else goes as BINARY.",
            ) from error

    def _id(self, content: tuple[Any, ...]) -> str:
        packed = msgspec.msgpack.encode(content, order="deterministic")
        digest = hashlib.blake2b(packed, digest_size=16).digest()
        self._seen[digest] += 1
        return derived_id(*self._write, digest.hex(), str(self._seen[digest]))


def _checked(column: str, check: Callable[[Any], T], value: Any) -> T:
    """Check an argument of a put. Errors name its column and do not repeat long values."""
    try:
        return check(value)
    except BadInput as error:
        said = error.message if len(error.message) <= SHOWN else f"{error.message[:SHOWN]} …"
        raise type(error)(f"column {column}: {said}", hint=error.hint) from error


def _check_columns(schema: t.StructType, queue: str | None) -> None:
    names = schema.fieldNames()
    if "payload" not in names:
        raise BadInput(
            f"the rows have no column payload (they have {', '.join(names)}).",
            hint="Make one: to_json(struct('*')).alias('payload').",
        )
    for field in schema.fields:
        if field.name not in COLUMNS:
            meant = did_you_mean(field.name, COLUMNS)
            raise BadInput(
                f"an entry has no column {field.name!r}.", hint=f"{meant}Known: {', '.join(COLUMNS)}; drop the others."
            )
        kinds, words = COLUMNS[field.name]
        kind = field.dataType
        if not isinstance(kind, kinds) or (isinstance(kind, t.MapType) and not _is_text_map(kind)):
            raise BadInput(f"column {field.name} is {kind.simpleString()}.", hint=f"An entry needs {words} there.")
    if queue is None and "queue" not in names:
        raise BadInput("no target was named.", hint='Add .option("queue", NAME), or a column queue.')
    if queue is not None and "queue" in names:
        raise BadInput(
            f"the option queue={queue} and a column queue both say where the rows go.",
            hint='Give one of them: leave the option out, or .drop("queue").',
        )


def _is_text_map(kind: t.MapType) -> bool:
    return isinstance(kind.keyType, t.StringType) and isinstance(kind.valueType, t.StringType)

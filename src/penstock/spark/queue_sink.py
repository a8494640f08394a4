"""Writing to queues: tasks put entries whose ids follow from the write and the row, so a repeat puts nothing twice.

A row's id is made of (query, batch, task, content, how often the task has seen this content). It does not depend on
the order of rows, which Spark does not promise to keep when it repeats a task behind a shuffle. A column ``id`` takes
its place where the rows have ids of their own.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock import chaos
from penstock.codec import BYTES, JSON, codec_for
from penstock.errors import BadInput
from penstock.ids import derived_id
from penstock.names import check_name, did_you_mean
from penstock.queue.entry import Unique
from penstock.queue.store import NewEntry
from penstock.spark.identity import Writing, one_write, streams_batch, task_number
from penstock.spark.options import Options
from penstock.spark.payloads import type_of
from penstock.spark.stores import queues_at

CHUNK = 1000
CHUNK_BYTES = 8 * 1024 * 1024
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
    """What a task tells the driver."""

    def __init__(self, rows: int, created: int) -> None:
        """``created`` is less than ``rows`` after a repeat."""
        self.rows = rows
        self.created = created


class _QueueWriting:
    """What batches and streams share."""

    def __init__(self, options: Options, schema: t.StructType) -> None:
        """Check the columns, and that the store is there."""
        self.options = options
        _check_columns(schema, routed=options.queue is None)
        self.text = isinstance(schema["payload"].dataType, t.StringType)
        if options.type is not None:
            type_of(options.type)
        queues_at(options.url)

    def put(self, batches: Iterable[pa.RecordBatch], writing: Writing) -> EntriesPut:
        """In a task."""
        store = queues_at(self.options.url)
        maker = _Maker(self.options, writing, task_number(), is_text=self.text)
        rows = created = size = 0
        waiting: list[NewEntry] = []

        def flush() -> int:
            chaos.point("spark.put.before")
            made = sum(put.created for put in store.put(waiting)) if waiting else 0
            chaos.point("spark.put.after")
            waiting.clear()
            return made

        for batch in batches:
            for row in batch.to_pylist():
                entry = maker.entry(row)
                waiting.append(entry)
                size += len(entry.payload)
                rows += 1
                if len(waiting) >= CHUNK or size >= CHUNK_BYTES:
                    created += flush()
                    size = 0
        created += flush()
        return EntriesPut(rows, created)


class QueueWriter(_QueueWriting, DataSourceArrowWriter):
    """A DataFrame into queues."""

    def __init__(self, options: Options, schema: t.StructType) -> None:
        """Give the write its name here: every task gets a copy of this object."""
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


class _Maker:
    """Makes entries of rows."""

    def __init__(self, options: Options, writing: Writing, task: int, *, is_text: bool) -> None:
        self._queue = options.queue
        self._codec = JSON if is_text else BYTES
        reader = codec_for(Any) if options.type is None else codec_for(type_of(options.type))
        self._type = reader.type_name if is_text else "bytes"
        self._decode = reader.decode if is_text else None
        self._write = (writing.producer, str(writing.sequence), str(task))
        self._seen: Counter[bytes] = Counter()

    def entry(self, row: dict[str, Any]) -> NewEntry:
        """The entry of a row; raises for one that nobody could read again."""
        queue = row.get("queue") or self._queue
        if queue is None:
            raise BadInput("a row names no queue: its column queue is null.", hint="Say for every row where it goes.")
        payload = row["payload"]
        if payload is None:
            raise BadInput(f"an entry for queue {queue} has no payload.", hint='Leave it out: "payload IS NOT NULL".')
        raw = payload.encode() if isinstance(payload, str) else payload
        if self._decode is not None:
            self._decode(raw)
        due = row.get("due")
        unique = row.get("unique")
        labels, headers = dict(row.get("labels") or {}), dict(row.get("headers") or {})
        due_us = None if due is None else round(due.timestamp() * 1_000_000)
        content = (queue, raw, due_us, row.get("priority"), unique, labels, headers)
        return NewEntry(
            row.get("id") or self._id(content), check_name(queue), raw, self._codec, self._type,
            priority=row.get("priority") or 0, due_us=due_us, labels=labels, headers=headers,
            unique=None if unique is None else Unique(unique), repeat=True,
        )  # fmt: skip

    def _id(self, content: tuple[Any, ...]) -> str:
        packed = msgspec.msgpack.encode(content, order="deterministic")
        digest = hashlib.blake2b(packed, digest_size=16).digest()
        self._seen[digest] += 1
        return derived_id(*self._write, digest.hex(), str(self._seen[digest]))


def _check_columns(schema: t.StructType, *, routed: bool) -> None:
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
        if not isinstance(field.dataType, kinds):
            raise BadInput(
                f"column {field.name} is {field.dataType.simpleString()}.", hint=f"An entry needs {words} there."
            )
    if routed and "queue" not in names:
        raise BadInput("no target was named.", hint='Add .option("queue", NAME), or a column queue.')

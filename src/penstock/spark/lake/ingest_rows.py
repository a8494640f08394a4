"""Turn the rows of an import into records of a log or entries of a queue, or give a reason why not.

It runs in Spark's tasks, with the checks that an append or a put makes, so that an invalid row is set aside
instead of ending the import. Records are checked many at a time, in columns. If one of them is invalid, they
are checked row by row, to say which and why. Both ways msgspec judges what JSON is.

A row comes as ``text`` (what is stored) with ``key``, ``time`` and ``fault`` as far as Spark knows them, ``raw`` (what
a person should see) and ``file``; of JSON the rest is found here.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.clock import Micros, check_time, to_micros
from penstock.errors import BadInput, Conflict, PenstockError
from penstock.ids import derived_id
from penstock.log.limits import check_records
from penstock.log.record import NewRecords
from penstock.queue.protocol import NewEntry
from penstock.queue.queues import QueueStore
from penstock.spark.datasource.options import Options
from penstock.spark.datasource.query_identity import Writing
from penstock.spark.datasource.queue_writer import EntryMaker, chunks, put_chunk
from penstock.spark.lake.ingest_source import LocalSource, is_open_to, path_of_url, tail_of
from penstock.spark.stores import queues_at

ASIDE = "reason STRING, raw STRING, file STRING"
RECORDS = f"{ASIDE}, value BINARY, key STRING, time TIMESTAMP"
_ASIDE = pa.schema([("reason", pa.string()), ("raw", pa.string()), ("file", pa.string())])
_RECORDS = pa.schema([*_ASIDE, ("value", pa.binary()), ("key", pa.string()), ("time", pa.timestamp("us", tz="UTC"))])
_BOM = b"\xef\xbb\xbf"
_SHOWN = 40  # characters of a value in a reason
TOGETHER = 1000  # rows that are taken in columns; if one of them cannot be, so many are looked at one by one
_decode = msgspec.json.Decoder().decode


class Reading(msgspec.Struct, frozen=True):
    """How rows are read: ``key`` and ``time`` name what is a row's key and its time."""

    is_json: bool
    key: str | None
    time: str | None
    tails: dict[str, bytes] | None = None  # how files of CSV end that a task cannot open

    def read(self, row: dict[str, Any]) -> tuple[bytes, str | None, Micros | None]:
        """The payload, key and time of a row. Raises for an invalid row, with the reason."""
        if not self.is_json and row["suspect"] and _is_open(row, self.tails):
            raise BadInput("a quote is never closed")
        if row["fault"] is not None:
            raise BadInput(row["fault"])
        text, key, time = row["text"], row["key"], row["time"]
        if self.is_json:
            text = text.removeprefix(_BOM)
            document = _document(text, is_suspect=row["suspect"])
            key = None if self.key is None else _plain(self.key, document.get(self.key))
            time = None if self.time is None else document.get(self.time)
        if self.key is not None and key is None:
            raise BadInput(f"no {self.key}")
        return text, key, None if self.time is None else _moment(self.time, time)


def take_records(batches: Iterable[pa.RecordBatch], reading: Reading, log: str, limit: int) -> Iterator[pa.RecordBatch]:
    """Records for the sink, and the rows that it must not see, with the reason."""
    for batch in batches:
        for begin in range(0, batch.num_rows, TOGETHER):
            part = batch.slice(begin, TOGETHER)
            taken = _columns(part, reading, limit)
            yield _row_by_row(part, reading, log, limit) if taken is None else taken


def _columns(part: pa.RecordBatch, reading: Reading, limit: int) -> pa.RecordBatch | None:
    """The records of rows that can all be taken, or None if one of them cannot, or has to be looked at."""
    count = part.num_rows
    if part.column("fault").null_count < count or pc.any(part.column("suspect")).as_py():
        return None
    texts, keys, times = part.column("text"), part.column("key"), part.column("time").to_pylist()
    try:
        if reading.is_json:
            documents = list(map(_decode, texts.to_pylist()))
            if set(map(type, documents)) != {dict}:
                return None
            if reading.key is not None:
                keys = pa.array([_plain(reading.key, document.get(reading.key)) for document in documents], pa.string())
            if reading.time is not None:
                times = [document.get(reading.time) for document in documents]
        moments = None if reading.time is None else _moments(reading.time, times)
    except Exception:  # the check row by row will find the row that it comes from
        return None
    if reading.key is not None and keys.null_count:
        return None
    if sum(pc.max(pc.binary_length(column)).as_py() or 0 for column in (texts, keys)) > limit:
        return None
    nothing = pa.nulls(count, pa.string())
    moment = pa.array([None] * count if moments is None else moments, _RECORDS.field("time").type)
    return pa.RecordBatch.from_arrays([nothing, nothing, nothing, texts, keys, moment], schema=_RECORDS)


def _row_by_row(part: pa.RecordBatch, reading: Reading, log: str, limit: int) -> pa.RecordBatch:
    records: list[dict[str, Any]] = []
    for row in part.to_pylist():
        try:
            value, key, time = reading.read(row)
            check_records(log, NewRecords([value], [key], None if time is None else [time]), limit)
            records.append({"value": value, "key": key, "time": time})
        except PenstockError as error:
            records.append(_aside(row, error))
    return pa.RecordBatch.from_pylist(records, schema=_RECORDS)


def take_entries(
    batches: Iterable[pa.RecordBatch], reading: Reading, url: str, queue: str, name: str
) -> Iterator[pa.RecordBatch]:
    """Put the entries, and give for every row the reason why it was not put, or none.

    The store itself says whether an id belongs to another entry, so the answer is the same when the batch comes again.
    Rows without an id get one from ``name``, the file, the content, and the row's ordinal among identical rows there.
    """
    store = queues_at(url)
    maker = EntryMaker(store, Options(url=url, queue=queue), Writing(name, 0), 0, is_text=True)
    for batch in batches:
        rows: list[dict[str, Any]] = batch.to_pylist()
        answers: list[dict[str, Any]] = [{} for _ in rows]
        entries: list[NewEntry] = []
        places: list[int] = []
        for rank, row in enumerate(rows):
            try:
                text, key, time = reading.read(row)
                id_ = _id(name, row, text) if key is None else key
                entries.append(maker.entry({"payload": text, "id": id_, "due": time}))
                places.append(rank)
            except PenstockError as error:
                answers[rank] = _aside(row, error)
        for rank, refused in zip(places, _put(store, entries), strict=True):
            if refused is not None:
                answers[rank] = _aside(rows[rank], refused)
        yield pa.RecordBatch.from_pylist(answers, schema=_ASIDE)


def _put(store: QueueStore, entries: Sequence[NewEntry]) -> Iterator[PenstockError | None]:
    """Put many entries at once. If that is refused, put them one by one, so that one row does not stop the others."""
    for chunk in chunks(entries):
        try:
            put_chunk(store, chunk)
            yield from [None] * len(chunk)
        except (BadInput, Conflict):
            for entry in chunk:
                try:
                    put_chunk(store, [entry])
                    yield None
                except (BadInput, Conflict) as error:
                    yield error


def _id(name: str, row: dict[str, Any], text: bytes) -> str:
    return derived_id(name, row["file"], hashlib.blake2b(text, digest_size=16).hexdigest(), str(row["nth"]))


def _aside(row: dict[str, Any], error: PenstockError) -> dict[str, Any]:
    raw = row["raw"]
    if raw is None:
        raw = row["text"].decode(errors="replace")
    return {"reason": error.message.removesuffix("."), "raw": raw, "file": path_of_url(row["file"])}


def _is_open(row: dict[str, Any], tails: dict[str, bytes] | None) -> bool:
    """Whether a CSV row spans lines only because a quote was not closed: it holds all that follows."""
    if row["fault"] is not None:
        return bool(row["raw"].count('"') % 2)
    *_, last = msgspec.json.decode(row["text"]).values()
    return is_open_to(_local_tail(path_of_url(row["file"])) if tails is None else tails[row["file"]], last)


def _local_tail(path: str) -> bytes:
    status = os.stat(path)
    return _tail(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=64)
def _tail(path: str, size: int, changed: int) -> bytes:
    """The end of a file, cached by size and time: a worker lives long, and a repaired file may replace another."""
    return tail_of(LocalSource(Path(path)), "")


# --- JSON ---------------------------------------------------------------------------------------------------


def _document(text: bytes, *, is_suspect: bool) -> dict[str, Any]:
    if not text.strip():
        raise BadInput("an empty line")
    try:
        document = _decode(text)
    except Exception as cause:  # also what is too deep
        raise BadInput(f"not JSON: {cause}") from cause
    if not isinstance(document, dict):
        raise BadInput(f"not a JSON object but {_kind(document)}")
    if is_suspect:  # if a field comes twice, msgspec silently takes the last
        try:
            json.loads(text, object_pairs_hook=_once_each)
        except RecursionError as cause:
            raise BadInput("nested too deeply") from cause
    return document


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for rank, name in enumerate(names) if name in names[:rank])
        raise BadInput(f"the field {twice[:_SHOWN]!r} comes twice")
    return fields


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return "an array"
    return "a text" if isinstance(value, str) else "true or false" if isinstance(value, bool) else "a number"


def _plain(name: str, value: Any) -> str | None:
    """A key: text as it is, a number as JSON writes it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict | list):
        raise BadInput(f"{name} is neither text nor a number")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _moments(name: str, given: Sequence[Any]) -> list[Micros]:
    """The times of many rows; raises if one of them has none."""
    if set(map(type, given)) != {int}:
        return [_moment(name, value) for value in given]
    for seconds in (min(given), max(given)):
        _moment(name, seconds)
    return [seconds * 1_000_000 for seconds in given]


def _moment(name: str, given: Any) -> Micros:
    """Numbers are seconds since 1970, everything else is a time as people write it; without a zone it is UTC."""
    if given is None:
        raise BadInput(f"no {name}")
    shown = str(given)[:_SHOWN]
    said = f"{name} {shown}"
    try:
        if isinstance(given, bool | list | dict):
            raise ValueError
        try:
            seconds = given if isinstance(given, int) else float(given)
        except ValueError:
            moment = datetime.fromisoformat(given.strip())
            micros = to_micros(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))
        else:
            if not math.isfinite(seconds):
                raise ValueError
            micros = round(seconds * 1_000_000)
            said += ", in seconds since 1970,"
    except (ValueError, OverflowError) as cause:
        raise BadInput(f"{name} is not a time: {shown!r}") from cause
    check_time(micros, name=said)  # also of a text: its zone may carry it over the edge
    return micros

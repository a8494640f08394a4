"""Bulk import: folders of CSV, JSON lines or Parquet, of any size, on any file system, into a log or a queue.

The driver writes down which files a batch has, reads them with Spark, and commits the rows under the batch's number. So
an import can be interrupted and started again: every row is taken once, and the next run takes the files that came
later. Rows that cannot be taken are set aside with the reason. ``ingest_files`` says what is there, ``ingest_batches``
which files belong together, and ``ingest_rows`` what becomes of a row.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import BadInput, Conflict
from penstock.ids import new_nonce
from penstock.location import read_url
from penstock.names import check_name, did_you_mean
from penstock.spark.datasource.options import absolute
from penstock.spark.errors import spark_errors
from penstock.spark.lake.ingest_batches import FileBatch, ImportState
from penstock.spark.lake.ingest_files import (
    Files,
    Form,
    check_folder,
    look,
    parquet_fault,
    read_note,
    write_note,
)
from penstock.spark.lake.ingest_source import Source, path_of_url, source_at, tail_of
from penstock.spark.session import check_installed
from penstock.spark.stores import logs_at, queues_at

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from penstock.spark.lake.ingest_rows import Reading

FILES_AT_ONCE = 64
GONE = "the file is gone, and was not taken"
NO_FIT = "the row does not fit its columns"

Progress = Callable[[int, int], object]


class Import(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is imported, and where to.

    ``source`` is a path, or a URL that Spark can read. ``target`` is ``log:NAME`` or ``queue:NAME``. ``key`` names the
    column (or JSON field) that is the key of a record or the id of an entry, ``time`` the one with its time. ``state``
    is the folder that remembers what has been taken: with it a second run does nothing twice, without it everything
    would come again. Rejected rows go to ``rejected``.
    """

    source: str
    url: str
    target: str
    form: Form | None = None
    key: str | None = None
    time: str | None = None
    schema: str | None = None  # DDL of CSV columns; by default all are text
    state: Path | None = None
    rejected: Path | None = None
    files_at_once: int = FILES_AT_ONCE


class ImportPlan(msgspec.Struct, frozen=True):
    """An import that passed all checks that need no Spark."""

    order: Import
    kind: str  # log or queue
    name: str
    url: str
    files: Files
    state: Path
    aside: Path
    limit: int  # the most bytes of a record or a payload
    id: str

    @property
    def producer(self) -> str:
        """The name under which the store knows this import; its batches are numbered."""
        return f"import-{self.id}"


class Imported(msgspec.Struct, frozen=True):
    """The result of a run, and of all runs with this state together."""

    taken: int
    rejected: int
    state: Path
    aside: Path
    all_taken: int
    all_rejected: int


def run(spark: SparkSession, order: Import, progress: Progress = lambda taken, rejected: None) -> Imported:
    """Take everything that has not been taken yet; ``progress`` gets the sums after every batch."""
    return take(spark, prepare(order, spark), progress)


def prepare(order: Import, spark: SparkSession | None = None) -> ImportPlan:
    """Check everything that can be checked before Spark is started, and note what the state folder is for.

    Files that are not on a disk of this host are read through the session, so it has to exist.
    """
    check_installed()
    kind, name = _target(order.target)
    files = look(source_at(order.source, spark), order.form)
    if order.schema is not None and files.form != "csv":
        raise BadInput(f"a schema is for CSV, and {files.source} is {files.form}.", hint="Leave it out.")
    if files.form == "csv" and files.header:
        _check_columns(order, list(files.header), files.folders)
        _csv_columns(files.header, order.schema)
    if order.files_at_once < 1:
        raise BadInput(f"files_at_once={order.files_at_once} takes nothing.", hint="Use 1 or more.")
    url = absolute(order.url)
    if kind == "log":
        logs = logs_at(url)
        logs.settings(name)
        limit, identity = logs.record_limit, logs.identity(name)
    else:
        queues = queues_at(url)
        limit, identity = queues.driver.payload_limit, queues.driver.identity()
    state = (order.state or _default_state(files.source, url, order)).absolute()
    check_folder(state, name="state")
    if order.rejected is not None:
        check_folder(order.rejected.absolute(), name="rejected")
    id_ = _remember(state, order, files, url, identity)
    aside = state / "rejected" if order.rejected is None else order.rejected.absolute() / f"import-{id_}"
    return ImportPlan(order, kind, name, url, files, state, aside, limit, id_)


def take(spark: SparkSession, plan: ImportPlan, progress: Progress = lambda taken, rejected: None) -> Imported:
    """Take what has not been taken yet, batch by batch."""
    taken = rejected = 0
    state = ImportState(plan.state)
    if not plan.files.is_empty:
        with spark_errors("the import"):
            source = source_at(plan.files.source, spark)
            columns = _parquet_columns(spark, plan) if plan.files.form == "parquet" else None
            for batch in state.batches(source, plan.files.endings, plan.order.files_at_once):
                good, bad = _take_batch(spark, plan, source, batch, columns)
                if batch.missing:
                    _keep_missing(plan, source, batch)
                    bad += len(batch.missing)
                state.end(batch.number, good, bad)
                taken += good
                rejected += bad
                progress(taken, rejected)
    return Imported(taken, rejected, plan.state, plan.aside, *state.sums())


def _take_batch(
    spark: SparkSession, plan: ImportPlan, source: Source, batch: FileBatch, columns: StructType | None
) -> tuple[int, int]:
    """Take the rows of a batch, once however often it is repeated; returns how many were taken and rejected."""
    from penstock.spark.lake.ingest_rows import Reading

    if not batch.files:
        return 0, 0
    rows = _shaped(*_read(spark, plan, [source.address_of(name) for name in batch.files], columns), plan)
    tails = _tails(spark, rows) if plan.files.form == "csv" and not plan.files.is_local else None
    reading = Reading(plan.files.form == "json", plan.order.key, plan.order.time, tails)
    if plan.kind == "log":
        return _into_log(rows, batch.number, reading, plan)
    return _into_queue(_numbered(rows) if reading.key is None else rows, batch.number, reading, plan)


def _into_log(rows: DataFrame, number: int, reading: Reading, plan: ImportPlan) -> tuple[int, int]:
    from penstock.spark.lake.ingest_rows import RECORDS, take_records

    name, limit = plan.name, plan.limit
    judged = rows.mapInArrow(lambda batches: take_records(batches, reading, name, limit), RECORDS).persist()
    try:
        good, bad = _counts(judged)
        _keep_aside(judged, bad, plan, number)
        if good:
            columns = ["value"] + ["key"] * (reading.key is not None) + ["time"] * (reading.time is not None)
            writer = judged.where("reason IS NULL").select(*columns).write.format("penstock")
            options = {"url": plan.url, "log": name, "producer": plan.producer, "sequence": str(number)}
            writer.options(**options).mode("append").save()
        return good, bad
    finally:
        judged.unpersist()


def _into_queue(rows: DataFrame, number: int, reading: Reading, plan: ImportPlan) -> tuple[int, int]:
    from penstock.spark.lake.ingest_rows import ASIDE, take_entries

    url, name, producer = plan.url, plan.name, plan.producer
    put = rows.mapInArrow(lambda batches: take_entries(batches, reading, url, name, producer), ASIDE).persist()
    try:
        good, bad = _counts(put)
        _keep_aside(put, bad, plan, number)
        return good, bad
    finally:
        put.unpersist()


# --- what was asked for ------------------------------------------------------------------------------------


def _target(text: str) -> tuple[str, str]:
    kind, colon, name = text.partition(":")
    if kind not in ("log", "queue") or not colon:
        raise BadInput(f"target {text!r} cannot be read.", hint="Write log:NAME or queue:NAME.")
    return kind, check_name(name, kind=kind)


def _check_columns(order: Import, columns: list[str], folders: Sequence[str]) -> None:
    for wanted in (order.key, order.time):
        if wanted is not None and wanted not in columns:
            if wanted in folders:
                raise BadInput(
                    f"{wanted!r} is in the names of folders ({wanted}=…), which are not read as columns.",
                    hint="Write it into the files as a column.",
                )
            meant = did_you_mean(wanted, columns)
            raise BadInput(f"there is no column {wanted!r}.", hint=f"{meant}There are {', '.join(columns)}.")


def _default_state(source: str, url: str, order: Import) -> Path:
    digest = hashlib.blake2b(f"{source}\0{url}\0{order.target}".encode(), digest_size=6).hexdigest()
    return Path(".penstock") / f"import-{digest}"


def _remember(state: Path, order: Import, files: Files, url: str, identity: str) -> str:
    """Check that a state folder belongs to this import: its memory is about one target. Returns its id."""
    note = state / "import.json"
    masked = read_url(url).masked  # passwords are not kept
    mine: dict[str, str | None] = {
        "source": files.source,
        "target": order.target,
        "form": files.form,
        "url": masked,
    }
    mine |= {"key": order.key, "time": order.time, "schema": order.schema}
    stored = read_note(note)
    if stored is None:
        # A new id for every folder, also for one that was re-created: its batches are different ones.
        id_ = new_nonce()
        write_note(note, {**mine, "identity": identity, "id": id_})
        return id_
    # Fields that a folder of an earlier version lacks are not compared.
    other = [
        f"its {name} is {stored[name]!r}, not {mine[name]!r}"
        for name in mine
        if stored.get(name, mine[name]) != mine[name]
    ]
    if other or not isinstance(stored.get("id"), str):
        raise Conflict(
            f"{state} is the memory of another import: {'; '.join(other) or 'it has no id'}.",
            hint="Give this one a folder of its own: --state.",
        )
    if identity and stored.get("identity", "") not in ("", identity):
        raise Conflict(
            f"{order.target} was created again since: what {state} counts as taken is not in it.",
            hint="Name another folder with --state, or delete this one; then everything comes again.",
        )
    return str(stored["id"])


# --- rows ---------------------------------------------------------------------------------------------------


def _read(
    spark: SparkSession, plan: ImportPlan, addresses: list[str], columns: StructType | None
) -> tuple[DataFrame, list[str]]:
    """The rows of some files, and the names of their columns; in the rows columns are numbered, so any name will do."""
    names = list(plan.files.header)
    # Folders such as day=2026-03-02 are not columns.
    reader = spark.read.option("recursiveFileLookup", True)
    if plan.files.form == "json":
        rows = reader.text(addresses)
    elif columns is not None:
        rows = reader.schema(columns).parquet(*addresses)
        names = columns.fieldNames()
    else:
        # A field may hold line breaks, so a file is read from its beginning by one task.
        rows = reader.schema(_csv_columns(plan.files.header, plan.order.schema)).csv(
            addresses, header=True, multiLine=True, quote='"', escape='"', mode="PERMISSIVE",
            columnNameOfCorruptRecord="corrupt",
        )  # fmt: skip
    numbers = [f"c{rank}" for rank in range(len(rows.columns))]
    return rows.select("*", rows.metadataColumn("_metadata").getField("file_path")).toDF(*numbers, "file"), names


def _parquet_columns(spark: SparkSession, plan: ImportPlan) -> StructType:
    """The columns of all files. All footers are read here, so what is not Parquet is found before anything is taken."""
    files = plan.files
    reader = spark.read.options(recursiveFileLookup=True, mergeSchema=True)
    if files.names is not None:
        reader = reader.option("pathGlobFilter", files.names)
    try:
        columns = reader.parquet(files.address).schema
    except Exception as error:
        fault = parquet_fault(source_at(files.source, spark), files.endings)
        if fault is None:
            raise
        raise fault from error
    _check_columns(plan.order, columns.fieldNames(), files.folders)
    return columns


def _csv_columns(header: Sequence[str], ddl: str | None) -> StructType:
    """The columns of CSV by position, and the column where Spark keeps a row that does not fit."""
    from pyspark.sql import types as t

    from penstock.spark.datasource.schema import columns_of

    kinds: list[t.DataType] = [t.StringType()] * len(header)
    if ddl is not None:
        known = columns_of(ddl)
        if known.fieldNames() != list(header):
            raise BadInput(
                f"the schema has the columns {', '.join(known.fieldNames())}, and the files have {', '.join(header)}.",
                hint="Name all columns of the files, in their order.",
            )
        kinds = [field.dataType for field in known.fields]
        for name, kind in zip(header, kinds, strict=True):
            if isinstance(kind, t.ArrayType | t.MapType | t.StructType | t.BinaryType):
                raise BadInput(f"column {name} of CSV cannot be {kind.simpleString()}.", hint="Read it as STRING.")
    fields = [t.StructField(f"c{rank}", kind) for rank, kind in enumerate(kinds)]
    return t.StructType([*fields, t.StructField("corrupt", t.StringType())])


def _shaped(rows: DataFrame, names: list[str], plan: ImportPlan) -> DataFrame:
    """The columns that ``ingest_rows`` needs."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType

    nothing = f.lit(None).cast("string")
    order = plan.order
    if plan.files.form == "json":
        text: Column = f.col("c0").cast("binary")
        values = {"key": nothing, "time": nothing, "fault": nothing, "raw": nothing}
        suspect = f.try_parse_json("c0").isNull()  # it also sees fields that come twice
    else:
        places = {name: f.col(f"c{rank}") for rank, name in enumerate(names)}
        whole = f.to_json(f.struct(*(column.alias(name) for name, column in places.items())))
        text, suspect = whole.cast("binary"), f.lit(False)
        values = {
            "key": nothing if order.key is None else places[order.key].cast("string"),
            "time": nothing if order.time is None else _time(rows, names.index(order.time)),
            "fault": nothing,
            "raw": whole,
        }
        if plan.files.form == "csv":
            corrupt = f.col(f"c{len(names)}")
            values["raw"] = f.coalesce(corrupt, whole)
            not_text = values["raw"].contains("\ufffd")
            # What holds a line break may be the rest of the file, behind a quote that nobody closed.
            last = f.lit(False)
            if isinstance(rows.schema[len(names) - 1].dataType, StringType):
                last = f.coalesce(f.col(f"c{len(names) - 1}").contains("\n"), last)
            suspect = f.when(corrupt.isNotNull(), corrupt.contains("\n")).otherwise(last)
            values["fault"] = f.when(not_text, "the row is not UTF-8").when(corrupt.isNotNull(), NO_FIT)
    columns = [column.alias(name) for name, column in values.items()]
    return rows.select(text.alias("text"), *columns, suspect.alias("suspect"), "file")


def _time(rows: DataFrame, rank: int) -> Column:
    """A time as text; a timestamp as its seconds, so that the session's zone does not matter."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import TimestampType

    column = f.col(f"c{rank}")
    if isinstance(rows.schema[rank].dataType, TimestampType):
        column = f.unix_micros(column).cast("decimal(20, 0)") / f.lit(1_000_000)
    return column.cast("string")


def _numbered(frame: DataFrame) -> DataFrame:
    """The ordinal of a row among identical rows of its file: ids stay the same however Spark cuts files into tasks."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    same = Window.partitionBy("file", "text").orderBy("text")
    return frame.withColumn("nth", f.row_number().over(same))


def _tails(spark: SparkSession, frame: DataFrame) -> dict[str, bytes]:
    """The ends of files that workers cannot open by themselves, where a row needs them."""
    asking = frame.where("suspect AND fault IS NULL").select("file").distinct().collect()
    return {row.file: tail_of(source_at(path_of_url(row.file), spark), "") for row in asking}


def _counts(frame: DataFrame) -> tuple[int, int]:
    sums = frame.selectExpr("count_if(reason IS NULL)", "count_if(reason IS NOT NULL)").collect()[0]
    return sums[0], sums[1]


def _keep_aside(frame: DataFrame, count: int, plan: ImportPlan, number: int) -> None:
    """Write the rejected rows down here: a worker of a cluster would write them to a disk of its own."""
    if count:
        bad = frame.where("reason IS NOT NULL").selectExpr("reason", "raw AS row", "file")
        lines = (msgspec.json.encode(row.asDict()) for row in bad.toLocalIterator())
        _write_lines(plan.aside / f"batch={number}" / "rows.json", lines)


def _write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Write a file whole or not at all; a batch that is repeated writes it again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begun = path.with_suffix(".begun")
    with begun.open("wb") as out:
        out.writelines(line + b"\n" for line in lines)
        out.flush()
        os.fsync(out.fileno())
    begun.replace(path)


def _keep_missing(plan: ImportPlan, source: Source, batch: FileBatch) -> None:
    paths = [source.path(name) for name in batch.missing]
    lines = (msgspec.json.encode({"reason": GONE, "row": "", "file": path}) for path in paths)
    _write_lines(plan.aside / f"gone={batch.number}" / "files.json", lines)

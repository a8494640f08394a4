"""Bulk import: folders of CSV, JSON lines or Parquet, of any size, into a log or a queue.

It is a stream over the files, so it can be broken off and started again: what is in, is in once, and files that come
later are taken by the next run. What cannot be taken is kept aside with the reason.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from penstock.errors import BadInput, Conflict
from penstock.ids import new_nonce
from penstock.names import check_name
from penstock.spark.explaining import plain_errors
from penstock.spark.options import absolute

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Form = Literal["csv", "json", "parquet"]
FORMS: tuple[Form, ...] = get_args(Form)
ENDINGS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"}
FILES_AT_ONCE = 64
BAD = "_bad"

Progress = Callable[[int, int], object]


class Import(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is imported, and where to.

    ``target`` is ``log:NAME`` or ``queue:NAME``. ``key`` names the column (or JSON field) that is the key of a record
    or the id of an entry, ``time`` the one with its time. ``state`` is the folder that remembers what has been taken:
    with it a second run does nothing twice, without it everything would come again. Rejected rows go to ``rejected``.
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


class Imported(msgspec.Struct, frozen=True):
    """What a run came to."""

    taken: int
    rejected: int
    state: Path
    aside: Path


def run(spark: SparkSession, order: Import, progress: Progress = lambda taken, rejected: None) -> Imported:
    """Take everything that has not been taken yet; ``progress`` is told the sums after every batch."""
    kind, name = _target(order.target)
    source = _existing(order.source)
    if order.form is not None and order.form not in FORMS:
        raise BadInput(f"form {order.form!r} is not known.", hint=f"There are {', '.join(FORMS)}.")
    form = order.form or _form(source)
    if form == "csv":
        _check_headers(source)
    state = (order.state or _default_state(source, order)).absolute()
    _remember(state, order, form)
    aside = (order.rejected or state / "rejected").absolute()
    taken = rejected = 0
    with plain_errors():
        rows = _shaped(_read(spark, source, form, order), form, order, kind)

        def batch(frame: DataFrame, number: int) -> None:
            nonlocal taken, rejected
            frame.persist()
            try:
                # First what is kept aside: it is written over when the batch comes again.
                bad = frame.where(f"{BAD} IS NOT NULL").selectExpr(f"{BAD} AS reason", "raw AS row", "file")
                bad_count = bad.count()
                if bad_count:
                    bad.write.mode("overwrite").json(f"file://{aside}/batch={number}")
                good = frame.where(f"{BAD} IS NULL").drop(BAD, "raw", "file")
                options = {"url": absolute(order.url), kind: name, "sequence": str(number)}
                good.write.format("penstock").options(producer=f"import-{_id(state)}", **options).mode("append").save()
                taken += good.count()
                rejected += bad_count
            finally:
                frame.unpersist()
            progress(taken, rejected)

        query = (
            rows.writeStream.foreachBatch(batch)
            .option("checkpointLocation", f"file://{state}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    return Imported(taken, rejected, state, aside)


# --- what was asked for ------------------------------------------------------------------------------------


def _target(text: str) -> tuple[str, str]:
    kind, colon, name = text.partition(":")
    if kind not in ("log", "queue") or not colon:
        raise BadInput(f"target {text!r} cannot be read.", hint="Write log:NAME or queue:NAME.")
    return kind, check_name(name, kind=kind)


def _existing(source: str) -> Path:
    path = Path(source)
    if not path.exists():
        raise BadInput(f"there is no {path} (seen from {Path.cwd()}).", hint="Name a file or a folder.")
    return path.absolute()


def _form(path: Path) -> Form:
    names = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    found = {ENDINGS[one.suffix] for one in names if one.suffix in ENDINGS}
    if len(found) != 1:
        said = " and ".join(sorted(found)) or "nothing that is known"
        raise BadInput(f"{path} holds {said}.", hint=f"Say which with --form {'|'.join(FORMS)}.")
    form: Any = found.pop()
    return form  # type: ignore[no-any-return]


def _check_headers(source: Path) -> None:
    """Spark goes by the place of a column, whatever a file calls it: files that differ would be mixed up."""
    first: tuple[Path, list[str]] | None = None
    for path in [source] if source.is_file() else sorted(source.rglob("*")):
        if path.name.startswith(("_", ".")) or not path.is_file():
            continue
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            header = next(csv.reader(file), None)
        if header is None:
            continue
        first = first or (path, header)
        if header != first[1]:
            raise BadInput(
                f"{path} has the columns {', '.join(header)}, and {first[0]} has {', '.join(first[1])}.",
                hint="Import files of different columns each by themselves.",
            )


def _default_state(source: Path, order: Import) -> Path:
    digest = hashlib.blake2b(f"{source}\0{absolute(order.url)}\0{order.target}".encode(), digest_size=6).hexdigest()
    return Path(".penstock") / f"import-{digest}"


def _remember(state: Path, order: Import, form: Form) -> None:
    """A state folder belongs to one import: with another target its memory would be a lie."""
    note = state / "import.json"
    mine = {
        "source": str(Path(order.source).absolute()), "target": order.target, "form": form, "url": absolute(order.url)
    }  # fmt: skip
    if note.exists():
        there = msgspec.json.decode(note.read_bytes())
        if {name: there.get(name) for name in mine} != mine:
            raise Conflict(
                f"{state} is the memory of another import: {there}.", hint="Give this one a folder of its own: --state."
            )
        return
    state.mkdir(parents=True, exist_ok=True)
    # Another one for every folder, also for one that was removed and made anew: its batches are others.
    note.write_bytes(msgspec.json.encode({**mine, "id": new_nonce()}))


def _id(state: Path) -> str:
    found: dict[str, str] = msgspec.json.decode((state / "import.json").read_bytes())
    return found["id"]


# --- rows ---------------------------------------------------------------------------------------------------


def _read(spark: SparkSession, source: Path, form: Form, order: Import) -> DataFrame:
    """A stream of rows, with the file each came from."""
    address = f"file://{source}"
    reader = spark.readStream.option("maxFilesPerTrigger", order.files_at_once).option("recursiveFileLookup", True)
    reader = reader.option("maxFileAge", "36500d")  # Spark passes over what is a week older than the newest
    if form == "json":
        return reader.text(address, wholetext=False).selectExpr("value", "_metadata.file_path AS file")
    if form == "parquet":
        known = spark.read.option("recursiveFileLookup", True).parquet(address).schema
        return reader.schema(known).parquet(address).selectExpr("*", "_metadata.file_path AS file")
    if order.schema is None:
        known = spark.read.option("recursiveFileLookup", True).csv(address, header=True).schema
    else:
        known = spark.createDataFrame([], order.schema).schema
    columns = known.add("_corrupt", "string")
    rows = reader.schema(columns).csv(
        address, header=True, mode="PERMISSIVE", columnNameOfCorruptRecord="_corrupt", multiLine=False
    )
    return rows.selectExpr("*", "_metadata.file_path AS file")


def _shaped(rows: DataFrame, form: Form, order: Import, kind: str) -> DataFrame:
    """The columns that the sink wants, and for rows that it must not have: why, and what they were."""
    from pyspark.sql import functions as f

    if form == "json":
        text = f.col("value")
        bad: Column = f.when(f.trim(text) == "", "an empty line").when(f.try_parse_json(text).isNull(), "not JSON")
        raw = text

        def field(name: str) -> Column:
            return f.get_json_object(text, f"$.{name}")
    else:
        plain = [name for name in rows.columns if name not in ("_corrupt", "file")]
        raw = f.to_json(f.struct(*plain))
        text = raw
        bad = f.lit(None).cast("string")
        if "_corrupt" in rows.columns:
            raw = f.coalesce(f.col("_corrupt"), raw)
            bad = f.when(f.col("_corrupt").isNotNull(), "the row does not fit its columns")
        for wanted in (order.key, order.time):
            if wanted is not None and wanted not in plain:
                raise BadInput(f"there is no column {wanted!r}.", hint=f"There are {', '.join(plain)}.")

        def field(name: str) -> Column:
            return f.col(name).cast("string")

    made = {"value" if kind == "log" else "payload": text}
    if order.key is not None:
        key = field(order.key)
        bad = f.coalesce(bad, f.when(key.isNull(), f"no {order.key}"))
        made["key" if kind == "log" else "id"] = key
    if order.time is not None:
        # Numbers are seconds since 1970, everything else is a time as text.
        given = field(order.time)
        seconds = f.expr("try_cast(_given AS DOUBLE)")
        rows = rows.withColumn("_given", given)
        moment = f.coalesce(f.timestamp_seconds(seconds), f.expr("try_cast(_given AS TIMESTAMP)"))
        bad = f.coalesce(bad, f.when(moment.isNull(), f"{order.time} is no time"))
        made["time" if kind == "log" else "due"] = moment
    return rows.select(*(column.alias(name) for name, column in made.items()), bad.alias(BAD), raw.alias("raw"), "file")

"""The history pipeline: what queues, logs and circuits did, into a lake of Parquet files, and from there into tables.

Every run takes what is new since the last one. Rows go to ``history/day=…/queue=…/run=…``, where a run that is repeated
writes over its own files; then the tables of the days that got new rows, and of no others, are made anew. So late rows
find their day, a row that comes twice counts once, and a run without new rows changes nothing.

A source is a store at its URL, told apart by its identity from what was there before: a database or a log that was made
anew is another source, whose numbers begin anew, and the rows of the old one stay.

=============  =======================================================================================
table          a row
=============  =======================================================================================
``hours``      per queue and hour: attempts by their outcome, waiting and processing times in seconds
``errors``     per queue, day and error: how often
``lag``        per log, group and hour: how far behind, at most and at last
``circuits``   per circuit and time it was open: from when to when, and why
=============  =======================================================================================
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.breaker.breaker import Breaker
from penstock.breaker.settings import BreakerConfig
from penstock.clock import from_micros
from penstock.errors import BadInput, CannotOpen
from penstock.location import read_url
from penstock.opening import open_logs, open_queues
from penstock.spark.datasource.options import absolute
from penstock.spark.errors import plain_errors
from penstock.spark.stores import logs_at, queues_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Of an attempt; not its payload, which may be large and secret.
NAMES = ("queue", "log", "store")  # columns that are also folders
COLUMNS = "seq,id,queue,state,generation,attempt,created,due,started,ended,owner,error,labels"
ERROR_LENGTH = 200
LAG_SCHEMA = "at TIMESTAMP, log STRING, `group` STRING, lag BIGINT"
ROWS_AT_ONCE = 2_000_000


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """Where a pipeline reads: queue stores, and logs of lag samples as ``(url, log)``."""

    queues: tuple[str, ...] = ()
    lags: tuple[tuple[str, str], ...] = ()


def check_sources(sources: Sources) -> None:
    """Raise for what is not there; it needs no Spark."""
    for url in sources.queues:
        queues_at(absolute(url))
    for url, log in sources.lags:
        logs_at(absolute(url)).settings(log)


class Ran(msgspec.Struct, frozen=True):
    """What a run came to: new rows per source, and the days whose tables were made anew."""

    rows: dict[str, int]
    days: tuple[str, ...]


class Pipeline:
    """One lake, and what feeds it."""

    def __init__(
        self, spark: SparkSession, lake: Path, sources: Sources, progress: Callable[[str], object] = lambda text: None
    ) -> None:
        """Nothing is read before :meth:`run`."""
        if not sources.queues and not sources.lags:
            raise BadInput("a pipeline without sources has nothing to do.", hint="Name queue stores or lag logs.")
        self.spark = spark
        self.lake = lake.absolute()
        self.sources = sources
        self.progress = progress

    def run(self) -> Ran:
        """Take in what is new, then make the tables of the days that it belongs to."""
        check_sources(self.sources)
        try:
            self.lake.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise CannotOpen(f"{self.lake} is no place for a lake: {cause.strerror}.", hint="Name a folder.") from cause
        rows = {}
        with plain_errors():
            for url in self.sources.queues:
                rows[read_url(url).masked] = self._take_history(absolute(url))
                self._take_circuits(absolute(url))
            for url, log in self.sources.lags:
                rows[f"{read_url(url).masked} {log}"] = self._take_lag(absolute(url), log)
            days = self._touched()
            if days:
                self.progress(f"making the tables of {len(days)} days")
                self._make_tables(days)
                self._forget_touched()
        return Ran(rows, tuple(days))

    # --- taking in ---------------------------------------------------------------------------------

    def _take_history(self, url: str) -> int:
        queues_at(url)  # raises where there is none; opening would make one
        with open_queues(url) as there:
            store = self._named(
                "history",
                url,
                there.driver.identity(),
                lambda offset: int(offset["after"]) <= there.driver.mark("history"),
            )
        reader = self.spark.readStream.format("penstock").options(url=url, kind="history", columns=COLUMNS)
        kept = (
            reader.option("limit", ROWS_AT_ONCE)
            .load()
            .selectExpr("*", f"'{store}' AS store", "to_date(ended) AS day", "date_trunc('hour', ended) AS hour")
        )
        return self._take(kept, f"history-{store}", "history", ("day", "queue"))

    def _take_lag(self, url: str, log: str) -> int:
        logs_at(url)
        with open_logs(url) as there:
            source = self._named(
                "lag", f"{url} {log}", there.identity(log),
                lambda offset: _is_within(offset["offsets"], [one.end for one in there.bounds(log)]),
            )  # fmt: skip
        reader = self.spark.readStream.format("penstock").options(url=url, log=log, schema=LAG_SCHEMA)
        frame = reader.option("limit", ROWS_AT_ONCE).load().where("bad IS NULL AND data.at IS NOT NULL")
        kept = frame.selectExpr(
            "data.at", "data.log", "data.`group`", "data.lag", f"'{source}' AS store", "partition", "offset",
            "to_date(data.at) AS day", "date_trunc('hour', data.at) AS hour",
        )  # fmt: skip
        return self._take(kept, f"lag-{source}", "lag_samples", ("day",))

    def _named(self, kind: str, url: str, identity: str, fits: Callable[[Any], bool]) -> str:
        """What a source is called in the lake; lakes that are older than identities know it by its URL alone."""
        plain = _short(url)
        state = self.lake / "_state" / f"{kind}-{plain}"
        if not identity:
            return plain
        if state.exists():
            note = state.with_suffix(".identity")
            if not note.exists():
                last = _last_offset(state)
                if last is None or last.get("id", "") == identity or (not last.get("id") and fits(last)):
                    note.write_text(identity, encoding="utf-8")
            if note.exists() and note.read_text(encoding="utf-8") == identity:
                return plain
        return _short(url, identity)

    def _take(self, rows: DataFrame, source: str, folder: str, parts: Sequence[str]) -> int:
        """Append rows, each once; and note which days they belong to, before anything can forget it."""
        taken = 0
        notes = self.lake / "_state" / "touched"

        def batch(frame: DataFrame, number: int) -> None:
            nonlocal taken
            named = frame.selectExpr("*", f"'{source}-{number}' AS run").persist()
            try:
                days = [str(one.day) for one in named.select("day").distinct().collect()]
                notes.mkdir(parents=True, exist_ok=True)
                (notes / f"{source}-{number}.json").write_bytes(msgspec.json.encode({"days": days, "what": folder}))
                self._write(named, folder, (*parts, "run"))
                taken += named.count()
                self.progress(f"{source}: {taken:,} rows")
            finally:
                named.unpersist()

        query = (
            rows.writeStream.foreachBatch(batch)
            .option("checkpointLocation", f"file://{self.lake}/_state/{source}")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return taken

    def _take_circuits(self, url: str) -> None:
        """The last transitions of every circuit; the lake keeps what the store forgets."""
        with open_queues(url) as store:
            found = [
                (_short(url), one.circuit, from_micros(change.at_us), change.state, change.why)
                for one in Breaker(store, BreakerConfig()).circuits()
                for change in one.transitions
            ]
        if found:
            frame = self.spark.createDataFrame(
                found, "store STRING, circuit STRING, at TIMESTAMP, state STRING, why STRING"
            )
            there = self._read("transitions")
            merged = frame if there is None else there.unionByName(frame, allowMissingColumns=True)
            merged = merged.dropDuplicates(["store", "circuit", "at", "state"]).localCheckpoint()
            self._swap(merged, "transitions")
            self._make_circuits(merged)

    # --- tables ------------------------------------------------------------------------------------

    def _make_tables(self, days: Sequence[str]) -> None:
        listed = ", ".join(f"DATE'{day}'" for day in days)
        history = self._read("history")
        if history is not None:
            rows = history.where(f"day IN ({listed})").dropDuplicates(["store", "seq"]).persist()
            try:
                self._write(_hours(rows), "tables/hours", ("day",))
                self._write(_errors(rows), "tables/errors", ("day",))
            finally:
                rows.unpersist()
        lag = self._read("lag_samples")
        if lag is not None:
            rows = lag.where(f"day IN ({listed})").dropDuplicates(["store", "partition", "offset"])
            self._write(_lag(rows), "tables/lag", ("day",))

    def _make_circuits(self, transitions: DataFrame) -> None:
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        order = Window.partitionBy("store", "circuit").orderBy("at")
        # Half open is a try, not an end: what was open is over when it closes.
        edges = transitions.where("state IN ('open', 'closed')")
        edges = edges.withColumn("before", f.lag("state").over(order)).where("before IS NULL OR before <> state")
        periods = edges.withColumn("until", f.lead("at").over(order)).where("state = 'open'")
        table = periods.selectExpr(
            "store", "circuit", "at AS since", "until", "why", "cast(until AS DOUBLE) - cast(at AS DOUBLE) AS seconds"
        )
        self._swap(table.localCheckpoint(), "tables/circuits")

    # --- files -------------------------------------------------------------------------------------

    def _read(self, folder: str) -> DataFrame | None:
        path = self.lake / folder
        old = path.with_name(f".{path.name}.old")
        if old.exists() and not path.exists():
            old.rename(path)  # whoever was putting the new one in its place has died
        if not any(path.rglob("*.parquet")):
            return None
        # Columns that later versions have added are null in older files.
        from pyspark.sql.types import StringType, StructField, StructType

        found = self.spark.read.option("mergeSchema", True).parquet(f"file://{path}")
        # Names of folders that look like numbers are names nevertheless.
        types = StructType(
            [StructField(one.name, StringType()) if one.name in NAMES else one for one in found.schema.fields]
        )
        return found if types == found.schema else self.spark.read.schema(types).parquet(f"file://{path}")

    def _write(self, frame: DataFrame, folder: str, parts: Sequence[str]) -> None:
        """Only the partitions that the rows belong to are written over."""
        writer = frame.write.mode("overwrite").option("partitionOverwriteMode", "dynamic").partitionBy(*parts)
        writer.parquet(f"file://{self.lake / folder}")

    def _swap(self, frame: DataFrame, folder: str) -> None:
        """The new beside the old, which goes when the new is whole: of some there is no other copy."""
        path = self.lake / folder
        fresh, old = path.with_name(f".{path.name}.new"), path.with_name(f".{path.name}.old")
        frame.coalesce(1).write.mode("overwrite").parquet(f"file://{fresh}")
        shutil.rmtree(old, ignore_errors=True)
        if path.exists():
            path.rename(old)
        fresh.rename(path)
        shutil.rmtree(old, ignore_errors=True)

    def _touched(self) -> list[str]:
        found = set()
        for note in (self.lake / "_state" / "touched").glob("*.json"):
            found.update(msgspec.json.decode(note.read_bytes())["days"])
        return sorted(found)

    def _forget_touched(self) -> None:
        shutil.rmtree(self.lake / "_state" / "touched")


def _hours(rows: DataFrame) -> DataFrame:
    """One row per queue and hour: how many attempts ended how, and how long entries waited and took."""
    states = ("done", "retried", "dead", "reaped", "expired", "cancelled")
    counts = [f"count_if(state = '{one}') AS {one}" for one in states]
    waited = "CASE WHEN attempt = 1 AND started IS NOT NULL THEN {} END".format(_seconds("due", "started"))
    ran = "CASE WHEN started IS NOT NULL THEN {} END".format(_seconds("started", "ended"))
    quantiles = "array(0.5, 0.95, 0.99), 1000"
    grouped = rows.selectExpr("day", "hour", "queue", "state", f"{waited} AS waited", f"{ran} AS ran").groupBy(
        "day", "hour", "queue"
    )
    from pyspark.sql import functions as f

    made = grouped.agg(
        f.expr("count(*) AS attempts"),
        *(f.expr(one) for one in counts),
        f.expr(f"percentile_approx(waited, {quantiles}) AS waiting"),
        f.expr(f"percentile_approx(ran, {quantiles}) AS processing"),
    )
    named = [
        f"{kind}[{index}] AS {kind}_p{name}"
        for kind in ("waiting", "processing")
        for index, name in enumerate((50, 95, 99))
    ]
    return made.selectExpr("day", "hour", "queue", "attempts", *states, *named).coalesce(1)


def _errors(rows: DataFrame) -> DataFrame:
    first_line = f"left(split(error, '\\n')[0], {ERROR_LENGTH})"
    return (
        rows.where("error IS NOT NULL")
        .selectExpr("day", "queue", f"{first_line} AS error")
        .groupBy("day", "queue", "error")
        .count()
        .coalesce(1)
    )


def _lag(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    grouped = rows.groupBy("day", "hour", "log", "group")
    return grouped.agg(f.max("lag").alias("most"), f.max_by("lag", "at").alias("last")).coalesce(1)


def _seconds(start: str, end: str) -> str:
    return f"greatest(0D, cast({end} AS DOUBLE) - cast({start} AS DOUBLE))"


def _last_offset(checkpoint: Path) -> dict[str, Any] | None:
    """How far a query has read, as Spark keeps it; None: nowhere yet."""
    numbers = [int(path.name) for path in (checkpoint / "offsets").glob("*") if path.name.isdecimal()]
    if not numbers:
        return None
    # A version, what belongs to the batch, and a line for each source.
    line = (checkpoint / "offsets" / str(max(numbers))).read_text(encoding="utf-8").splitlines()[-1]
    found: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    return found


def _is_within(offsets: dict[str, int], ends: Sequence[int]) -> bool:
    return all(int(index) < len(ends) and at <= ends[int(index)] for index, at in offsets.items())


def _short(text: str, identity: str = "") -> str:
    """A store in a file name: what it is called with its password left out, and what tells it apart, hashed."""
    plain = read_url(text.split(" ", maxsplit=1)[0]).masked + text.partition(" ")[2] + identity
    return hashlib.blake2b(plain.encode(), digest_size=5).hexdigest()


def tables(lake: Path) -> dict[str, Any]:
    """The tables of a lake as Arrow tables, without Spark."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    found: dict[str, Any] = {}
    for name in ("hours", "errors", "lag", "circuits"):
        folder = lake / "tables" / name
        if any(folder.rglob("*.parquet")):
            parts = None if name == "circuits" else ds.partitioning(pa.schema([("day", pa.date32())]), flavor="hive")
            table = ds.dataset(folder, format="parquet", partitioning=parts, exclude_invalid_files=True)
            # Columns that later versions have added are null in the tables of older days.
            shapes = [table.schema, *(one.physical_schema for one in table.get_fragments())]
            all_fields = pa.unify_schemas(shapes, promote_options="permissive")
            found[name] = table.replace_schema(pa.schema([one.with_nullable(True) for one in all_fields])).to_table()
    if not found:
        raise BadInput(f"{lake} has no tables.", hint="Run the pipeline first: penstock pipeline run.")
    return found

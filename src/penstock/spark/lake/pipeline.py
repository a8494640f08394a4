"""The history pipeline: what queues, logs and circuits did, into the tables of a lake.

A run reads what is new since the last one, writes it to new files, adds it to the tables of the days it belongs to,
and commits rows, tables and positions in one step. So every row counts once, late ones find their day, a
run that is killed leaves nothing, and one without new rows changes nothing. Its cost depends on what is new, not on the
size of the lake: history is not read again, and small files of a day are merged as they become many.

A source is a store at its URL, known by its identity: a database or a log that was re-created is another
source, whose numbers start again, and the rows of the old one stay.

===============  =====================================================================================
table            a row
===============  =====================================================================================
``history``      an attempt that has ended, without its payload
``lag_samples``  how far a group was behind at some time
``transitions``  a circuit changed its state
``hours``        per queue and hour: attempts by their outcome, waiting and processing times in seconds
``errors``       per queue, day and error: how often
``lag``          per log, group and hour: how far behind, at most and at last
``circuits``     per circuit and time it was open: from when to when, and why
===============  =====================================================================================
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.breaker.breaker import Breaker
from penstock.breaker.settings import BreakerConfig
from penstock.clock import from_micros
from penstock.errors import BadInput
from penstock.location import read_url
from penstock.opening import open_logs, open_queues
from penstock.spark.datasource.options import absolute
from penstock.spark.errors import spark_errors
from penstock.spark.lake import tables
from penstock.spark.lake.lake import Lake, Run
from penstock.spark.lake.manifest import DataFile, Position
from penstock.spark.stores import logs_at, queues_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Of an attempt; not its payload, which may be large and secret.
COLUMNS = "seq,id,queue,state,generation,attempt,created,due,started,ended,owner,error,labels"
LAG_SCHEMA = "at TIMESTAMP, log STRING, `group` STRING, lag BIGINT"
TRANSITIONS = "store STRING, circuit STRING, at TIMESTAMP, state STRING, why STRING"
MANY = 8  # small files of one day, after which they are merged
LARGE = 128 * 1024 * 1024  # bytes from which on a file is left as it is


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """Where a pipeline reads: queue stores, and logs of lag samples as ``(url, log)``."""

    queues: tuple[str, ...] = ()
    lags: tuple[tuple[str, str], ...] = ()


def check_sources(sources: Sources) -> None:
    """Raise for sources that do not exist. It needs no Spark."""
    for url in sources.queues:
        queues_at(absolute(url))
    for url, log in sources.lags:
        logs_at(absolute(url)).settings(log)


class New(NamedTuple):
    """What a source has since the last run."""

    source: str  # its name in the lake
    table: str
    position: Position  # how far this run reads
    rows: DataFrame | None  # up to there, or None for no rows


class Ran(msgspec.Struct, frozen=True):
    """The result of a run: new rows per source, and the days whose tables have changed."""

    rows: dict[str, int]
    days: tuple[str, ...]


class Pipeline:
    """One lake and its sources."""

    def __init__(
        self,
        spark: SparkSession,
        lake: str | Path,
        sources: Sources,
        progress: Callable[[str], object] = lambda text: None,
        *,
        file_format: str | None = None,
    ) -> None:
        """``lake`` is a folder, or a URL of a file system that Spark knows. Nothing is read before :meth:`run`.

        ``file_format`` is that of the files of a new lake, ``parquet`` (the default) or ``orc``.
        """
        if not sources.queues and not sources.lags:
            raise BadInput("a pipeline without sources has nothing to do.", hint="Name queue stores or lag logs.")
        self.spark = spark
        self.lake = Lake(spark, lake, file_format=file_format)
        self.sources = sources
        self.progress = progress

    def run(self) -> Ran:
        """Read what is new and add it to the tables, all or nothing."""
        check_sources(self.sources)
        self.spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        rows: dict[str, int] = {}
        days: set[str] = set()
        with spark_errors("the pipeline"), self.lake.change() as run:
            history: list[DataFile] = []
            samples: list[DataFile] = []
            for url in self.sources.queues:
                history += self._take(run, rows, read_url(url).masked, self._history(run, absolute(url)))
                self._take_transitions(run, absolute(url))
            for url, log in self.sources.lags:
                samples += self._take(run, rows, f"{read_url(url).masked} {log}", self._lag(run, absolute(url), log))
            if history:
                days |= self._add_history(run, history)
            if samples:
                days |= self._add_lag(run, samples)
            for table in ("history", "lag_samples"):
                for day in sorted(days):
                    self._merge_small_files(run, table, day)
        return Ran(rows, tuple(sorted(days)))

    # --- what is new -------------------------------------------------------------------------------

    def _history(self, run: Run, url: str) -> New:
        queues_at(url)  # raises where there is none; opening would create one
        with open_queues(url) as store:
            name = f"history-{_short(url, store.driver.identity())}"
            after = run.sources.get(name, Position()).after
            until = store.driver.mark("history", after=after)
        reader = self.spark.read.format("penstock").options(url=url, kind="history", columns=COLUMNS)
        rows = None
        if until > after:
            frame = reader.options(start=after + 1, stop=until + 1).load()
            rows = tables.by_time(frame.selectExpr("*", f"'{name}' AS store"))
        return New(name, "history", Position(read_url(url).masked, after=max(after, until)), rows)

    def _lag(self, run: Run, url: str, log: str) -> New:
        logs_at(url)
        with open_logs(url) as logs:
            name = f"lag-{_short(url, log, logs.identity(log))}"
            bounds = logs.bounds(log)
        known = run.sources.get(name, Position()).offsets
        # Skip what retention has deleted meanwhile.
        first = {
            str(number): max(known.get(str(number), 0), partition.start) for number, partition in enumerate(bounds)
        }
        end = {str(number): max(partition.end, first[str(number)]) for number, partition in enumerate(bounds)}
        rows = None
        if end != first:
            reader = self.spark.read.format("penstock").options(url=url, log=log, schema=LAG_SCHEMA)
            places = {"start": msgspec.json.encode(first).decode(), "stop": msgspec.json.encode(end).decode()}
            frame = reader.options(**places).load().where("bad IS NULL AND data.at IS NOT NULL")
            named = frame.selectExpr(
                "data.at", "data.log", "data.`group`", "data.lag", f"'{name}' AS store", "partition", "offset"
            )
            rows = tables.by_time(named, "at")
        return New(name, "lag_samples", Position(read_url(url).masked, offsets=end), rows)

    def _take(self, run: Run, counts: dict[str, int], shown: str, new: New) -> list[DataFile]:
        """Write new rows, and their number into ``counts``."""
        counts[shown] = 0
        if new.rows is None:
            return []
        files = run.add(new.table, new.rows)
        if files:
            counts[shown] = self.lake.of_files(new.table, files).count()
        run.sources[new.source] = new.position
        self.progress(f"{shown}: {counts[shown]:,} rows")
        return files

    def _take_transitions(self, run: Run, url: str) -> None:
        """Add the last transitions of every circuit; the lake keeps those that the store forgets."""
        with open_queues(url) as store:
            name = _short(url)
            transitions = [
                (name, circuit.circuit, from_micros(change.at_us), change.state, change.why)
                for circuit in Breaker(store, BreakerConfig()).circuits()
                for change in circuit.transitions
            ]
        if not transitions:
            return
        known = self.lake.of_files("transitions", run.files("transitions")).persist()
        try:
            merged = known.unionByName(self.spark.createDataFrame(transitions, TRANSITIONS))
            merged = merged.dropDuplicates(["store", "circuit", "at", "state"]).coalesce(1).persist()
            if merged.count() > known.count():
                run.replace("transitions", merged)
                run.replace("circuits", tables.circuits(merged).coalesce(1))
            merged.unpersist()
        finally:
            known.unpersist()

    # --- into the tables -----------------------------------------------------------------------------

    def _add_history(self, run: Run, files: list[DataFile]) -> set[str]:
        days = {file.day for file in files}
        rows = self.lake.of_files("history", files)
        self.progress(f"adding to the tables of {len(days)} days")
        self._add(run, "hours", days, tables.hours(rows), tables.merge_hours)
        self._add(run, "errors", days, tables.errors(rows), tables.merge_errors)
        return days

    def _add_lag(self, run: Run, files: list[DataFile]) -> set[str]:
        days = {file.day for file in files}
        self._add(run, "lag", days, tables.lag(self.lake.of_files("lag_samples", files)), tables.merge_lag)
        return days

    def _add(
        self, run: Run, table: str, days: set[str], new: DataFrame, merge: Callable[[DataFrame], DataFrame]
    ) -> None:
        existing = [file for file in run.files(table) if file.day in days]
        rows = new if not existing else merge(self.lake.of_files(table, existing).unionByName(new))
        run.replace(table, rows.coalesce(1), days)

    def _merge_small_files(self, run: Run, table: str, day: str) -> None:
        """Merge files of similar size, so that a row is written again a few times in all, however many runs come."""
        small = sorted(
            (file for file in run.files(table) if file.day == day and file.bytes < LARGE), key=lambda file: file.bytes
        )
        chosen: list[DataFile] = []
        total = 0
        for file in small:
            if len(chosen) >= MANY and file.bytes > total:
                break
            chosen.append(file)
            total += file.bytes
        if len(chosen) > MANY:
            run.merge(table, chosen, parts=-(-total // LARGE))


def _short(url: str, *more: str) -> str:
    """A short name of a source for file names: a hash of its masked URL and its identity."""
    plain = "\0".join((read_url(url).masked, *more))
    return hashlib.blake2b(plain.encode(), digest_size=5).hexdigest()

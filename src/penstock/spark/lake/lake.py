"""A lake: tables of Parquet or ORC files below one URL, changed by runs that are seen whole or not at all.

==================================  ============================================================================
``_manifests/0000000012.json``      names all files of the lake, and how far its sources were read
``data/TABLE/run=ID/day=…/…``       the files of a run; those that no manifest names do not count
==================================  ============================================================================

Nothing is renamed and nothing is overwritten, so any file system does that Hadoop knows: a disk, HDFS, S3, ABFS, GCS.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.clock import SystemClock
from penstock.errors import BadInput, Conflict
from penstock.ids import new_nonce
from penstock.spark.lake import manifest
from penstock.spark.lake.filesystem import FileSystem, lake_url
from penstock.spark.lake.formats import FORMATS, check_format
from penstock.spark.lake.manifest import DataFile, Manifest, Position
from penstock.spark.lake.tables import SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEPT = 10  # manifests that are kept: readers of one of them still find its files
CUT_OFF_MS = 10 * 60 * 1000  # during which an incomplete manifest may still be under way
ABANDONED_MS = 24 * 60 * 60 * 1000  # after which the files of a run that never committed are deleted


class Lake:
    """The tables of one lake, for Spark."""

    def __init__(self, spark: SparkSession, place: str | Path, *, file_format: str | None = None) -> None:
        """Look up the file system; nothing is read yet. ``file_format`` is for a new lake; the default is Parquet."""
        self._wanted_format = None if file_format is None else check_format(file_format, "a lake")
        self.spark = spark
        self.url = lake_url(place)
        self.files = FileSystem(spark, self.url)

    @cached_property
    def file_format(self) -> str:
        """The format of all files; ``Conflict`` if the lake exists with another one than was asked for."""
        current = self.now()
        if not current.number:
            return self._wanted_format or FORMATS[0]
        if self._wanted_format not in (None, current.file_format):
            raise Conflict(
                f"the lake {self.url} has files of format {current.file_format}, not {self._wanted_format}.",
                hint="Leave the format out, or name another folder for a lake of the other format.",
            )
        return current.file_format

    def now(self) -> Manifest:
        """The current manifest, or an empty one for a lake without any."""
        for number in manifest.numbers(self.files.names(manifest.FOLDER)):
            current = self._read(number)
            if current is not None:
                return current
        return Manifest()

    def frame(self, table: str, days: Iterable[str] | None = None) -> DataFrame:
        """A table as it is now, of some days or of all; without rows while nothing was written into it."""
        if table not in SCHEMAS:
            raise BadInput(f"a lake has no table {table!r}.", hint=f"There are {', '.join(SCHEMAS)}.")
        current = self.now()
        return self.of_files(table, current.files.get(table, []) if days is None else current.days_of(table, set(days)))

    def of_files(self, table: str, files: Iterable[DataFile]) -> DataFrame:
        """Some files of a table; columns that older ones do not have are null."""
        schema = SCHEMAS[table]
        paths = [f"{self.url}/{file.path}" for file in files]
        if not paths:
            return self.spark.createDataFrame([], schema)
        base = f"{self.url}/data/{table}"
        frame = self.spark.read.schema(schema).option("basePath", base).format(self.file_format).load(paths)
        return frame.drop("run")

    @contextmanager
    def change(self) -> Iterator[Run]:
        """Start a run. Its files are committed when the block ends, and do not count if it raises."""
        with self.files.alone():
            run = Run(self)
            yield run
            run.commit()

    def sweep(self) -> int:
        """Delete the folders of runs that were killed at least a day ago. Returns how many."""
        with self.files.alone():
            used = {path.rpartition("/day=")[0] or path.rpartition("/")[0] for path in self._kept_paths()}
            swept = 0
            for table in self.files.names("data"):
                for run in self.files.names(f"data/{table}"):
                    folder = f"data/{table}/{run}"
                    is_old = self.files.modified_ms(folder) < _now_ms() - ABANDONED_MS
                    if is_old and not any(path.startswith(folder) for path in used):
                        self.files.delete(folder)
                        swept += 1
            return swept

    def _kept_paths(self) -> set[str]:
        manifests = [self._read(number) for number in manifest.numbers(self.files.names(manifest.FOLDER))]
        return set().union(*(each.paths() for each in manifests if each is not None))

    def _read(self, number: int) -> Manifest | None:
        name = manifest.name_of(number)
        return manifest.decode(self.files.read(name), name=f"{self.url}/{name}")


class Run:
    """One change of a lake: new files beside the old, and the manifest that makes them count."""

    def __init__(self, lake: Lake) -> None:
        """Begin with the lake as it is now."""
        self.lake = lake
        self.id = new_nonce()
        _ = lake.file_format  # another one than the lake has is refused here
        self.base = lake.now()
        self.sources: dict[str, Position] = dict(self.base.sources)
        self._files: dict[str, list[DataFile]] = {table: list(files) for table, files in self.base.files.items()}
        self._written: list[str] = []
        self._writes = 0

    def files(self, table: str) -> list[DataFile]:
        """A table as this run would leave it."""
        return self._files.get(table, [])

    def add(self, table: str, frame: DataFrame) -> list[DataFile]:
        """Add rows to a table. Returns the new files."""
        files = self._write(table, frame)
        self._files[table] = self.files(table) + files
        return files

    def replace(self, table: str, frame: DataFrame, days: set[str] | None = None) -> None:
        """Write rows in place of a table's, or of those of some days."""
        others = [file for file in self.files(table) if days is not None and file.day not in days]
        self._files[table] = others + self._write(table, frame)

    def merge(self, table: str, files: list[DataFile], parts: int) -> None:
        """Write the rows of some files of one day into fewer."""
        gone = {file.path for file in files}
        frame = self.lake.of_files(table, files).coalesce(parts)
        self._files[table] = [file for file in self.files(table) if file.path not in gone] + self._write(table, frame)

    def commit(self) -> None:
        """Commit what was written, if anything has changed; ``Conflict`` if another run was faster."""
        if self._files == self.base.files and self.sources == self.base.sources:
            return
        files = self.lake.files
        files.make_durable(self._written)
        after = Manifest(
            self.base.number + 1, sources=self.sources, files=self._files, file_format=self.lake.file_format
        )
        name = manifest.name_of(after.number)
        numbers = manifest.numbers(files.names(manifest.FOLDER))
        if after.number in numbers and self._was_cut_off(name):
            files.delete(name)
        try:
            files.write_new(name, manifest.encode(after))
        except Conflict:
            raise Conflict(
                f"another run has changed {self.lake.url} meanwhile; nothing of this one counts.", hint="Run it again."
            ) from None
        files.make_durable([name])
        self._forget([number for number in numbers if number < after.number], after)

    def _was_cut_off(self, name: str) -> bool:
        """Whether this manifest is incomplete because its writer was killed, and not just now."""
        if manifest.decode(self.lake.files.read(name), name=name) is not None:
            return False
        return self.lake.files.modified_ms(name) < _now_ms() - CUT_OFF_MS

    def _forget(self, numbers: list[int], after: Manifest) -> None:
        """Delete old manifests, and the files that only they name."""
        old = numbers[KEPT - 1 :]
        if not old:
            return
        needed = after.paths().union(*(self._paths(number) for number in numbers[: KEPT - 1]))
        for number in old:
            for path in self._paths(number) - needed:
                self.lake.files.delete(path)
            self.lake.files.delete(manifest.name_of(number))

    def _paths(self, number: int) -> set[str]:
        name = manifest.name_of(number)
        stored = manifest.decode(self.lake.files.read(name), name=name)
        return set() if stored is None else stored.paths()

    def _write(self, table: str, frame: DataFrame) -> list[DataFile]:
        self._writes += 1
        folder = f"data/{table}/run={self.id}{self._writes}"
        by_day = "day" in frame.columns
        writer = frame.write.partitionBy("day") if by_day else frame.write
        writer.format(self.lake.file_format).save(f"{self.lake.url}/{folder}")
        files = self.lake.files.files(folder, f".{self.lake.file_format}")
        self._written += [file.path for file in files]
        return [DataFile(file.path, file.bytes, _day(file.path) if by_day else "") for file in files]


def _day(path: str) -> str:
    return path.rpartition("/day=")[2].partition("/")[0]


def _now_ms() -> int:
    return SystemClock().micros() // 1000

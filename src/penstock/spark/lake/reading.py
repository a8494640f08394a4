"""A lake without Spark: its tables as Arrow tables, on a local disk or wherever pyarrow has a file system."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from penstock.errors import BadInput, CannotOpen
from penstock.spark.lake import manifest
from penstock.spark.lake.filesystem import lake_url
from penstock.spark.lake.manifest import Manifest

TABLES = ("hours", "errors", "lag", "circuits")
_DAYS = ds.partitioning(pa.schema([("run", pa.string()), ("day", pa.date32())]), flavor="hive")


class LakeReader:
    """The tables of one lake as they were when it was opened."""

    def __init__(self, place: str | Path) -> None:
        """Raises if there is no lake."""
        self.url = lake_url(place)
        try:
            self._files, self._root = fs.FileSystem.from_uri(self.url)
            self.manifest = self._newest()
        except (OSError, ValueError, pa.ArrowException) as cause:
            raise CannotOpen(
                f"the lake {self.url} cannot be read: {str(cause).splitlines()[0]}.",
                hint="Name its folder, or a URL that pyarrow reads too.",
            ) from cause
        if not self.manifest.number:
            raise BadInput(f"{self.url} has no tables.", hint="Run the pipeline first: penstock pipeline run.")

    def tables(self) -> dict[str, Any]:
        """The tables that have rows."""
        read = {name: self.table(name) for name in TABLES if self.manifest.files.get(name)}
        return {name: table for name, table in read.items() if table.num_rows}

    def table(self, name: str, *, columns: list[str] | None = None, days: Iterable[str] | None = None) -> Any:
        """One table, or some columns or days of it; columns that older files do not have are null."""
        wanted = None if days is None else set(days)
        paths = [
            f"{self._root}/{file.path}"
            for file in self.manifest.files.get(name, [])
            if wanted is None or file.day in wanted
        ]
        dataset = ds.dataset(
            paths, format=self.manifest.file_format, filesystem=self._files, partitioning=_DAYS,
            partition_base_dir=f"{self._root}/data/{name}",
        )  # fmt: skip
        shapes = [dataset.schema, *(fragment.physical_schema for fragment in dataset.get_fragments())]
        fields = pa.unify_schemas(shapes, promote_options="permissive")
        whole = dataset.replace_schema(
            pa.schema([field.with_nullable(True) for field in fields if field.name != "run"])
        )
        return whole.to_table(columns=columns)

    def _newest(self) -> Manifest:
        folder = fs.FileSelector(f"{self._root}/{manifest.FOLDER}", allow_not_found=True)
        names = [info.base_name for info in self._files.get_file_info(folder)]
        for number in manifest.numbers(names):
            name = manifest.name_of(number)
            with self._files.open_input_stream(f"{self._root}/{name}") as file:
                newest = manifest.decode(file.read(), name=f"{self.url}/{name}")
            if newest is not None:
                return newest
        return Manifest()


def tables(place: str | Path) -> dict[str, Any]:
    """The tables of a lake that have rows, by name."""
    return LakeReader(place).tables()

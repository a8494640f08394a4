"""The batches of an import: their files are written down before they are read, so that a repeated batch reads the same.

The state folder holds two notes for each batch: ``batches/N.files.json`` names its files before it runs, and
``batches/N.json`` what came of it. A batch with the first note alone was interrupted, and runs again under its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from penstock.spark.lake.ingest_files import read_note, write_note
from penstock.spark.lake.ingest_source import Source


class FileBatch(msgspec.Struct, frozen=True):
    """The files of one batch, by their names below the source."""

    number: int
    files: tuple[str, ...]
    missing: tuple[str, ...] = ()  # planned before the batch was interrupted, and removed since


class ImportState:
    """What the state folder knows of the batches of an import."""

    def __init__(self, folder: Path) -> None:
        """The folder may be new."""
        self._folder = folder / "batches"

    def batches(self, source: Source, endings: tuple[str, ...] | None, files_at_once: int) -> Iterator[FileBatch]:
        """The batches to run: one that was interrupted, then those of files that no batch has named yet."""
        planned = self._planned()
        present = set(source.visible())
        for number, names in sorted(planned.items()):
            if not self._result(number).exists():
                files = tuple(name for name in names if name in present)
                yield FileBatch(number, files, tuple(name for name in names if name not in present))
        known = {name for names in planned.values() for name in names}
        fresh = [name for name in source.visible(endings) if name not in known]
        for begin in range(0, len(fresh), files_at_once):
            number = max(planned, default=-1) + 1
            planned[number] = fresh[begin : begin + files_at_once]
            write_note(self._plan(number), {"files": planned[number]})
            yield FileBatch(number, tuple(planned[number]))

    def end(self, number: int, taken: int, rejected: int) -> None:
        """Remember what came of a batch; written again when it runs again, so the sums are right after any crash."""
        write_note(self._result(number), {"taken": taken, "rejected": rejected})

    def sums(self) -> tuple[int, int]:
        """The rows taken and rejected by all batches that have ended."""
        notes = [read_note(self._result(number)) or {} for number in self._planned()]
        return sum(note.get("taken", 0) for note in notes), sum(note.get("rejected", 0) for note in notes)

    def _planned(self) -> dict[int, Sequence[str]]:
        plans = {int(path.name.partition(".")[0]): read_note(path) for path in self._folder.glob("*.files.json")}
        return {number: tuple(note["files"]) for number, note in plans.items() if note is not None}

    def _plan(self, number: int) -> Path:
        return self._folder / f"{number}.files.json"

    def _result(self, number: int) -> Path:
        return self._folder / f"{number}.json"

"""The files of an import: which ones there are, and what form they have."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

import msgspec

from penstock.errors import BadInput, Conflict
from penstock.spark.lake.ingest_source import MEANS_SOMETHING, PACKED, Source, is_hidden

Form = Literal["csv", "json", "parquet"]
FORMS: tuple[Form, ...] = get_args(Form)
ENDINGS: dict[str, Form] = {
    ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"
}  # fmt: skip


class Files(msgspec.Struct, frozen=True):
    """The files to import. ``endings`` are those of the files that are meant, if the endings decide the form."""

    source: str  # a path, or a URL
    address: str  # the same for Spark
    form: Form
    endings: tuple[str, ...] | None
    is_local: bool
    is_empty: bool  # no file has columns; lines of JSON need none
    header: tuple[str, ...] = ()  # of CSV; empty if no file has one
    folders: tuple[str, ...] = ()  # what folders like day=2026-03-02 name; the rows do not have it

    @property
    def names(self) -> str | None:
        """The pattern of the files that are meant, or None for all."""
        return None if self.endings is None else f"*{{{','.join(self.endings)}}}"


def look(source: Source, form: Form | None) -> Files:
    """Look at the files of a source."""
    if form is not None and form not in FORMS:
        raise BadInput(f"form {form!r} is not known.", hint=f"There are {', '.join(FORMS)}.")
    if source.is_file and is_hidden(source.shown.rpartition("/")[2]):
        raise BadInput(
            f"{source.shown} would be passed over: to Spark, names that begin with _ or . or end with ._COPYING_ are "
            "hidden.",
            hint="Rename it.",
        )
    endings = None
    if form is None:
        form, endings = _guess(source)
    visible = list(source.visible(endings))
    _check_colons(source, visible)
    header = _header(source, visible) if form == "csv" else ()
    is_empty = not header if form == "csv" else form == "parquet" and not visible
    folders = {part for name in visible for part in name.split("/")[:-1]}
    named = tuple(sorted({part.partition("=")[0] for part in folders if "=" in part}))
    return Files(source.shown, source.address, form, endings, source.is_local, is_empty, header, named)


def parquet_fault(source: Source, endings: tuple[str, ...] | None) -> BadInput | None:
    """The error for valid Parquet files with types that Spark cannot read; Spark names the type, but not the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    first: dict[str, tuple[str, str]] = {}
    for each in source.visible(endings):
        path = source.path(each)
        try:
            with source.open(each) as file:
                schema = pq.read_metadata(file).schema
        except (OSError, pa.ArrowException):  # of that Spark has more to say
            return None
        here: dict[str, str] = {}
        for rank in range(len(schema)):
            name, kind = schema.column(rank).path, _kind(schema.column(rank))
            if "nanoseconds" in kind and kind.startswith("Timestamp"):
                return BadInput(
                    f"{path}: column {name!r} holds times with nanoseconds, which Spark cannot read.",
                    hint='Write it with microseconds; in pandas: to_parquet(…, coerce_timestamps="us").',
                )
            twin = here.setdefault(name.lower(), name)
            if twin != name:
                return BadInput(
                    f"{path}: Spark cannot tell the columns {twin!r} and {name!r} apart.", hint="Rename one."
                )
            kind = kind.partition("(")[0] if kind.startswith("Timestamp") else kind  # all other units are one to Spark
            known, where = first.setdefault(name, (kind, path))
            if known != kind:
                return BadInput(
                    f"column {name!r} is {known} in {where} and {kind} in {path}.",
                    hint="Write it alike in all files, or import the files each by themselves.",
                )
    return None


def _kind(column: Any) -> str:
    """The logical type of a Parquet column, or its physical type if it has no other."""
    meant = str(column.logical_type)
    return str(column.physical_type) if meant == "None" else meant


def read_note(path: Path) -> dict[str, Any] | None:
    """Read a folder's note about itself. Returns None if the folder is new."""
    try:
        note: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return None
    except OSError as cause:
        raise BadInput(f"{path} cannot be read: {cause.strerror}.", hint="Name another folder.") from cause
    except msgspec.DecodeError as cause:
        raise Conflict(
            f"{path} is broken, so what this folder was for is not known.",
            hint="Name another folder, or delete this one; either way everything comes again.",
        ) from cause
    return note


def write_note(path: Path, what: dict[str, Any]) -> None:
    """Write a note atomically, even if the process is killed or the power fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(msgspec.json.encode(what))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as cause:
        raise BadInput(f"{path} cannot be written: {cause.strerror}.", hint="Name another folder.") from cause


def check_folder(path: Path, *, name: str) -> None:
    """Refuse what is not a folder and cannot become one."""
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not existing.is_dir():
        raise BadInput(f"{name} {path} cannot be: {existing} is not a folder.", hint="Name a folder.")


def _check_colons(source: Source, names: Sequence[str]) -> None:
    """Spark takes the text before a colon for the scheme of a URL."""
    for name in names:
        if ":" in source.path(name).rpartition("/")[2]:
            raise BadInput(
                f"{source.path(name)} cannot be read by Spark: there is a colon in its name.", hint="Rename it."
            )
    if source.is_local and ":" in source.shown and MEANS_SOMETHING.search(source.shown):
        raise BadInput(
            f"{source.shown} cannot be read by Spark: there is a colon in its path, and one of \\ {{ }} [ ] * ? , ^.",
            hint="Rename the folders.",
        )


def _guess(source: Source) -> tuple[Form, tuple[str, ...] | None]:
    forms: set[Form] = set()
    for name in source.visible():
        path = PurePosixPath(source.path(name))
        form = ENDINGS.get(PurePosixPath(path.stem).suffix if path.suffix in PACKED else path.suffix)
        if form is not None:
            forms.add(form)
    if len(forms) != 1:
        said = " and ".join(sorted(forms)) or "nothing that is known"
        raise BadInput(f"{source.shown} holds {said}.", hint=f"Say which with --form {'|'.join(FORMS)}.")
    form = forms.pop()
    if source.is_file:
        return form, None
    return form, tuple(
        ending + packed for ending, known in ENDINGS.items() if known == form for packed in ("", *PACKED)
    )


def _header(source: Source, names: Sequence[str]) -> tuple[str, ...]:
    """The columns of all files. Spark matches columns by position, not by name, so every file needs the same ones."""
    first: tuple[str, list[str]] | None = None
    for name in names:
        path, header = source.path(name), _first_row(source, name)
        if header is None:
            continue
        if first is None:
            _check_names(path, header)
            first = (path, header)
        if header != first[1]:
            raise BadInput(
                f"{path} has the columns {', '.join(header)}, and {first[0]} has {', '.join(first[1])}.",
                hint="Import files of different columns each by themselves.",
            )
    return () if first is None else tuple(first[1])


def _first_row(source: Source, name: str) -> list[str] | None:
    try:
        with source.unpacked(name) as raw:
            text = TextIOWrapper(raw, newline="", encoding="utf-8-sig", errors="replace")
            return next((row for row in csv.reader(text) if row), None)
    except (OSError, EOFError, csv.Error) as cause:
        path = source.path(name)
        raise BadInput(f"{path} cannot be read: {cause}.", hint="Mend it or move it away, and run again.") from cause


def _check_names(path: str, header: list[str]) -> None:
    for rank, name in enumerate(header):
        if not name.strip():
            raise BadInput(f"{path}: column {rank + 1} has no name.", hint="The first row has to name the columns.")
        if name in header[:rank]:
            raise BadInput(f"{path}: two columns are named {name!r}.", hint="Give every column a name of its own.")

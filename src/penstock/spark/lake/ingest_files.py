"""The files of an import: which ones there are, what form they have, and how Spark is told of them."""

from __future__ import annotations

import bz2
import csv
import gzip
import os
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Literal, get_args
from urllib.parse import unquote

import msgspec

from penstock.errors import BadInput, Conflict

Form = Literal["csv", "json", "parquet"]
FORMS: tuple[Form, ...] = get_args(Form)
ENDINGS: dict[str, Form] = {
    ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"
}  # fmt: skip
PACKED: dict[str, Callable[..., IO[str]]] = {".gz": gzip.open, ".bz2": bz2.open}
_MEANS_SOMETHING = re.compile(r"([\\{}\[\]*?,^])")
_TAIL = 256  # bytes of the end of a file


class Files(msgspec.Struct, frozen=True):
    """What there is to import. ``names`` is the pattern of those that are meant, where the form was guessed by it."""

    source: Path
    form: Form
    names: str | None
    header: tuple[str, ...] = ()  # of CSV; empty if no file has one
    folders: tuple[str, ...] = ()  # what folders like day=2026-03-02 name; the rows do not have it

    @property
    def address(self) -> str:
        """For Spark, to which some characters mean patterns: here each means itself."""
        return "file://" + _MEANS_SOMETHING.sub(r"\\\1", str(self.source))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that has columns; lines of JSON need none."""
        if self.form == "csv":
            return not self.header
        return self.form == "parquet" and next(visible(self.source, self.names), None) is None


def look(source: str, form: Form | None) -> Files:
    """See what is there, before any Spark is started."""
    path = Path(source)
    if not path.exists():
        raise BadInput(f"there is no {path} (seen from {Path.cwd()}).", hint="Name a file or a folder.")
    if form is not None and form not in FORMS:
        raise BadInput(f"form {form!r} is not known.", hint=f"There are {', '.join(FORMS)}.")
    path = path.absolute()
    if path.is_file() and _is_hidden(path.name):
        raise BadInput(
            f"{path} would be passed over: to Spark, names that begin with _ or . or end with ._COPYING_ are hidden.",
            hint="Rename it.",
        )
    names = None
    if form is None:
        form, names = _guess(path)
    _check_colons(path, names)
    header = _header(path, names) if form == "csv" else ()
    return Files(path, form, names, header, _named_by_folders(path, names))


def visible(path: Path, names: str | None = None) -> Iterator[Path]:
    """The files that Spark reads: below a folder all but those that are hidden, or in a hidden folder."""
    if path.is_file():
        yield path
        return
    endings = None if names is None else tuple(names.removeprefix("*{").removesuffix("}").split(","))
    for one in sorted(path.rglob("*")):
        parts = one.relative_to(path).parts
        if not one.is_file() or any(_is_hidden(part) for part in parts):
            continue
        if endings is None or one.name.endswith(endings):
            yield one


def runs_to_the_end(path: Path, field: str) -> bool:
    """Whether this field of a CSV file is quoted and goes on to the end of the file, with no quote to close it."""
    stat = path.stat()
    tail = _tail(path, stat.st_size, stat.st_mtime_ns)
    # Spark gives all line ends as one kind.
    raw = ('"' + field.replace('"', '""')).encode()[-_TAIL:]
    return tail.replace(b"\r\n", b"\n").endswith(raw.replace(b"\r\n", b"\n"))


@lru_cache(maxsize=64)
def _tail(path: Path, size: int, changed: int) -> bytes:
    """The end of a file as it was then: a worker lives for long, and a file may be replaced by a mended one."""
    opened: Callable[..., IO[bytes]] | None = PACKED.get(path.suffix)  # type: ignore[assignment]
    if opened is None:
        with path.open("rb") as file:
            file.seek(max(0, size - 2 * _TAIL))
            return file.read()
    end = b""
    with opened(path, "rb") as packed:
        while more := packed.read(1 << 20):
            end = (end + more)[-2 * _TAIL :]
    return end


def parquet_fault(source: Path, names: str | None) -> BadInput | None:
    """What Spark cannot read of Parquet files that are whole; it says which type, and not where."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    first: dict[str, tuple[str, Path]] = {}
    for path in visible(source, names):
        try:
            schema = pq.read_metadata(path).schema
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
    """The type of a Parquet column: what it means, or how it lies there if it means nothing else."""
    meant = str(column.logical_type)
    return str(column.physical_type) if meant == "None" else meant


def read_note(path: Path) -> dict[str, Any] | None:
    """What a folder remembers of itself, or None if it is new."""
    try:
        found: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return None
    except OSError as cause:
        raise BadInput(f"{path} cannot be read: {cause.strerror}.", hint="Name another folder.") from cause
    except msgspec.DecodeError as cause:
        raise Conflict(
            f"{path} is broken, so what this folder was for is not known.",
            hint="Name another folder, or delete this one; either way everything comes again.",
        ) from cause
    return found


def write_note(path: Path, what: dict[str, Any]) -> None:
    """All of it or nothing, whenever the process is killed or the power goes."""
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
    there = next(one for one in (path, *path.parents) if one.exists())
    if not there.is_dir():
        raise BadInput(f"{name} {path} cannot be: {there} is not a folder.", hint="Name a folder.")


class Gone(msgspec.Struct, frozen=True):
    """Files of a batch that was begun and not ended, which somebody has taken away since."""

    batch: int
    paths: tuple[str, ...]


class _Planned(msgspec.Struct):
    path: str
    batchId: int


class _Offset(msgspec.Struct):
    logOffset: int


def gone(checkpoint: Path) -> Gone | None:
    """What Spark's notes of a broken off import name and nobody can read any more."""
    begun = _numbers(checkpoint / "offsets")
    if not begun or begun[-1] in _numbers(checkpoint / "commits"):
        return None
    after = -1 if len(begun) == 1 else _offset(checkpoint, begun[-2])
    until = _offset(checkpoint, begun[-1])
    missing = []
    for number in range(after + 1, until + 1):
        note = checkpoint / "sources" / "0" / str(number)
        if not note.exists():  # every tenth one holds all that came before
            note = note.with_name(f"{number}.compact")
        for line in note.read_bytes().splitlines()[1:]:
            one = msgspec.json.decode(line, type=_Planned)
            path = unquote(one.path).removeprefix("file://")
            if one.batchId == number and not Path(path).exists():
                missing.append(path)
    return Gone(begun[-1], tuple(missing)) if missing else None


def _numbers(folder: Path) -> list[int]:
    return sorted(int(one.name) for one in folder.glob("*") if one.name.isdecimal())


def _offset(checkpoint: Path, batch: int) -> int:
    lines = (checkpoint / "offsets" / str(batch)).read_bytes().splitlines()
    return msgspec.json.decode(lines[-1], type=_Offset).logOffset


def _is_hidden(name: str) -> bool:
    """As Spark sees it: what writers keep for themselves."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def _named_by_folders(source: Path, names: str | None) -> tuple[str, ...]:
    folders = {part for path in visible(source, names) for part in path.relative_to(source).parts[:-1]}
    return tuple(sorted({part.partition("=")[0] for part in folders if "=" in part}))


def _check_colons(source: Path, names: str | None) -> None:
    """Spark takes what stands before a colon for the scheme of a URL."""
    for path in visible(source, names):
        if ":" in path.name:
            raise BadInput(f"{path} cannot be read by Spark: there is a colon in its name.", hint="Rename it.")
    if ":" in str(source) and _MEANS_SOMETHING.search(str(source)):
        raise BadInput(
            f"{source} cannot be read by Spark: there is a colon in its path, and one of \\ {{ }} [ ] * ? , ^.",
            hint="Rename the folders.",
        )


def _guess(path: Path) -> tuple[Form, str | None]:
    found: set[Form] = set()
    for one in visible(path):
        form = ENDINGS.get(Path(one.stem).suffix if one.suffix in PACKED else one.suffix)
        if form is not None:
            found.add(form)
    if len(found) != 1:
        said = " and ".join(sorted(found)) or "nothing that is known"
        raise BadInput(f"{path} holds {said}.", hint=f"Say which with --form {'|'.join(FORMS)}.")
    form = found.pop()
    if path.is_file():
        return form, None
    endings = [ending + packed for ending, one in ENDINGS.items() if one == form for packed in ("", *PACKED)]
    return form, f"*{{{','.join(endings)}}}"


def _header(source: Path, names: str | None) -> tuple[str, ...]:
    """The columns of all files. Spark goes by their place, whatever a file calls them: others would be mixed up."""
    first: tuple[Path, list[str]] | None = None
    for path in visible(source, names):
        header = _first_row(path)
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


def _first_row(path: Path) -> list[str] | None:
    opened = PACKED.get(path.suffix, open)
    try:
        with opened(path, "rt", newline="", encoding="utf-8-sig", errors="replace") as file:
            return next((row for row in csv.reader(file) if row), None)
    except (OSError, EOFError, csv.Error) as cause:
        raise BadInput(f"{path} cannot be read: {cause}.", hint="Mend it or move it away, and run again.") from cause


def _check_names(path: Path, header: list[str]) -> None:
    for rank, name in enumerate(header):
        if not name.strip():
            raise BadInput(f"{path}: column {rank + 1} has no name.", hint="The first row has to name the columns.")
        if name in header[:rank]:
            raise BadInput(f"{path}: two columns are named {name!r}.", hint="Give every column a name of its own.")

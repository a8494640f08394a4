"""The files of an import: which ones there are, what form they have, and how Spark is told of them."""

from __future__ import annotations

import bz2
import csv
import gzip
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Literal, get_args
from urllib.parse import unquote

import msgspec

from penstock.errors import BadInput

Form = Literal["csv", "json", "parquet"]
FORMS: tuple[Form, ...] = get_args(Form)
ENDINGS: dict[str, Form] = {
    ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet"
}  # fmt: skip
PACKED: dict[str, Callable[..., IO[str]]] = {".gz": gzip.open, ".bz2": bz2.open}
_MEANS_SOMETHING = re.compile(r"([\\{}\[\]*?,^])")


class Files(msgspec.Struct, frozen=True):
    """What there is to import. ``names`` is the pattern of those that are meant, where the form was guessed by it."""

    source: Path
    form: Form
    names: str | None
    header: tuple[str, ...] = ()  # of CSV; empty if no file has one

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
    names = None
    if form is None:
        form, names = _guess(path)
    header = _header(path, names) if form == "csv" else ()
    return Files(path, form, names, header)


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

"""Named statements, read from ``.sql`` files, and how a database wants them sent.

In every file a parameter is written ``%(name)s``, whatever the driver wants; ``{space}`` is the space's name.
"""

from __future__ import annotations

import pkgutil
import re
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from penstock.queue.protocol import Find

if TYPE_CHECKING:
    from penstock.queue.drivers.sql.session import Session

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_PARAMETER = re.compile(r"%\((\w+)\)s")
_EACH = "-- each"
_HOP = "-- hop"


class Statement(Protocol):
    """A statement that is ready to be run."""

    def run(self, cursor: Any, parameters: dict[str, Any]) -> None:
        """Run it; the cursor has the result."""


class Dialect(Protocol):
    """How a database wants statements written; searches are put together from these pieces."""

    def statement(self, text: str) -> Statement:
        """A statement with parameters written as ``%(name)s``."""

    def among(self, column: str, parameter: str) -> str:
        """The condition that a text column has one of the values of a list."""

    def label(self, labels: str, parameter: str) -> str:
        """The value of the label that a parameter names, in a column of labels."""

    def candidates(self, id_: str, count: int) -> list[str]:
        """Conditions that find ids by so many labels they have had; the row decides whether it has them."""

    def guide(self, session: Session, where: Find, values: dict[str, Any]) -> list[str]:
        """Further conditions of a search for live entries, which change nothing but the way it takes."""


def read_statements(file: str, space: str) -> dict[str, str]:
    """The statements of a file by name, for one space; the space was checked to be a plain identifier."""
    text = (pkgutil.get_data(__package__, f"queries/{file}") or b"").decode()
    parts = _NAME.split(text.replace("{space}", space))
    return {name: _without_comments(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _without_comments(text: str) -> str:
    """The server parses what it is sent, and has no use for our words."""
    lines = [line.split(" -- ", 1)[0].rstrip() for line in text.splitlines() if not _is_comment(line)]
    return "\n".join(line for line in lines if line)


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("--") and line.strip() not in (_EACH, _HOP)


class Catalogue:
    """All statements of a database, for one space."""

    def __init__(self, dialect: Dialect, file: str, space: str) -> None:
        """Read them from a file."""
        self.dialect = dialect
        self.space = space
        self._texts = read_statements(file, space)
        self.statements = {name: dialect.statement(text) for name, text in self._texts.items()}

    def text(self, name: str) -> str:
        """A statement, or a part of one, as it is written in the file."""
        return self._texts[name]

    def add(self, name: str, statement: Statement) -> None:
        """Take in a statement that needs more than SQL."""
        self.statements[name] = statement

    def search(self, name: str, tail: str) -> Statement:
        """A statement that the caller extends with conditions, at its end or wherever it says ``{tail}``."""
        text, conditions = self._texts[name], tail.replace("{space}", self.space)
        whole = text.replace("{tail}", conditions) if "{tail}" in text else f"{text} {conditions}"
        return self.dialect.statement(whole)


# --- one statement with numbered parameters --------------------------------------------------------------------------


class Numbered(NamedTuple):
    """A statement whose parameters are numbered, and their names in that order."""

    text: str
    names: tuple[str, ...]

    def run(self, cursor: Any, parameters: dict[str, Any]) -> None:
        """Run it; lists are arrays of the database."""
        cursor.execute(self.text, [parameters[name] for name in self.names])


def numbered(text: str) -> Numbered:
    """A statement whose parameters are ``$1``, ``$2``…"""
    numbers: dict[str, int] = {}
    whole = _PARAMETER.sub(lambda match: f"${numbers.setdefault(match[1], len(numbers) + 1)}", text)
    return Numbered(whole, tuple(numbers))


# --- several statements, for databases without arrays and without writes inside a query ------------------------------


class Script(NamedTuple):
    """Statements that run in order inside a transaction; the last one gives the result."""

    parts: tuple[_Part, ...]

    def run(self, cursor: Any, parameters: dict[str, Any]) -> None:
        """Run them; a list is JSON, except where a statement runs once for each of its values."""
        given = {name: _as_json(value) for name, value in parameters.items()}
        for part in self.parts:
            if part.each:
                cursor.executemany(part.text, _rows(part.names, parameters))
            else:
                cursor.execute(part.text, given)


class _Part(NamedTuple):
    text: str
    each: bool
    names: tuple[str, ...]


def script(text: str, mark: str) -> Script:
    """Statements that end with a line that ends in ``;``. ``mark`` says how a parameter is written, as ``:{}``.

    A statement after a line ``-- each`` runs once for each value of the lists among its parameters.
    """
    return Script(tuple(_part(part, mark) for part in text.rstrip(";\n").split(";\n")))


def _part(text: str, mark: str) -> _Part:
    each, bare = text.lstrip().startswith(_EACH), text.replace(_EACH, "").strip()
    names = dict.fromkeys(_PARAMETER.findall(bare))
    return _Part(_PARAMETER.sub(lambda match: mark.format(match[1]), bare), each, tuple(names))


def _as_json(value: Any) -> Any:
    return msgspec.json.encode(value).decode() if isinstance(value, list | tuple) else value


def _rows(names: tuple[str, ...], parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """One row of parameters per value of the lists; what is not a list is the same in each."""
    lists = [name for name in names if isinstance(parameters[name], list | tuple)]
    same = {name: parameters[name] for name in names if name not in lists}
    columns = zip(*(parameters[name] for name in lists), strict=True)
    return [{**same, **dict(zip(lists, values, strict=True))} for values in columns]

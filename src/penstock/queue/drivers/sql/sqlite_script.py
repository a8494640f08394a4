"""Scripts as SQLite takes them fastest: parameters bound by their order, and rows of parameters as tuples."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

import msgspec

from penstock.queue.drivers.sql.statements import Statement, script

_encode = msgspec.json.encode
_NAME = re.compile(r"(?<![:\w]):([a-z_][a-z_0-9]*)\b")


class OneStatement(NamedTuple):
    """A single statement, which most scripts are."""

    text: str
    names: tuple[str, ...]
    order: tuple[int, ...]  # the places of the names, one for each placeholder

    def run(self, cursor: sqlite3.Cursor, parameters: dict[str, Any]) -> None:
        """Run it; a list is JSON."""
        values = [parameters[name] for name in self.names]
        bound = [_encode(value).decode() if type(value) is list else value for value in values]
        cursor.execute(self.text, bound if len(self.order) == len(bound) else [bound[place] for place in self.order])


class ForEach(NamedTuple):
    """A statement that runs once for each value of the lists among its parameters."""

    text: str
    names: tuple[str, ...]  # one for each placeholder

    def run(self, cursor: sqlite3.Cursor, parameters: dict[str, Any]) -> None:
        """Run it; what is not a list is the same each time."""
        values = [parameters[name] for name in self.names]
        columns = [value if type(value) is list else repeat(value) for value in values]
        cursor.executemany(self.text, zip(*columns, strict=False))


class Several(NamedTuple):
    """Statements that run in order; the last one gives the result."""

    parts: Sequence[Statement]

    def run(self, cursor: sqlite3.Cursor, parameters: dict[str, Any]) -> None:
        """Run them all."""
        for part in self.parts:
            part.run(cursor, parameters)


def sqlite_script(text: str) -> Statement:
    """Statements as they are written in the files.

    Placeholders are plain question marks: numbered ones cannot be bound by a sequence from Python 3.14 on.
    """
    parts: list[Statement] = []
    for part in script(text, ":{}").parts:
        used = tuple(re.findall(_NAME, part.text))
        names = tuple(dict.fromkeys(used))
        bare = re.sub(_NAME, "?", part.text)
        order = tuple(names.index(name) for name in used)
        parts.append(ForEach(bare, used) if part.each else OneStatement(bare, names, order))
    return parts[0] if len(parts) == 1 else Several(parts)

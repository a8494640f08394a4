"""Scripts as SQLite takes them fastest: parameters bound by number, and rows of parameters as tuples."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

import msgspec

from penstock.queue.drivers.sql.statements import Statement, script

_encode = msgspec.json.encode


class OneStatement(NamedTuple):
    """A single statement, which most scripts are."""

    text: str
    names: tuple[str, ...]

    def run(self, cursor: sqlite3.Cursor, parameters: dict[str, Any]) -> None:
        """Run it; a list is JSON."""
        values = [parameters[name] for name in self.names]
        cursor.execute(self.text, [_encode(value).decode() if type(value) is list else value for value in values])


class ForEach(NamedTuple):
    """A statement that runs once for each value of the lists among its parameters."""

    text: str
    names: tuple[str, ...]

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
    """Statements as they are written in the files."""
    parts: list[Statement] = []
    for part in script(text, ":{}").parts:
        bare = part.text
        for number, name in enumerate(part.names, 1):
            bare = re.sub(rf":{name}\b", f"?{number}", bare)
        parts.append(ForEach(bare, part.names) if part.each else OneStatement(bare, part.names))
    return parts[0] if len(parts) == 1 else Several(parts)

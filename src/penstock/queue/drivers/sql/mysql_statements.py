"""How MariaDB and MySQL want statements: lists written out, several in one message, many rows in one INSERT."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import pymysql
import pymysql.cursors
from pymysql.constants import CLIENT, SERVER_STATUS

from penstock.queue.drivers.sql import guidance
from penstock.queue.drivers.sql.session import Session
from penstock.queue.drivers.sql.statements import Catalogue
from penstock.queue.protocol import Find

MOST_BYTES = 1_000_000  # of one statement that inserts many rows
_PARAMETER = re.compile(r"%\((\w+)\)s")
_LISTED = re.compile(r"\bIN %\((\w+)\)s")
_VALUES = re.compile(r"((?:INSERT|REPLACE)\b.*?\bVALUES)\s*(\(.*\))", re.DOTALL)
_DUPLICATE = re.compile(r"Duplicate entry '(.*)-0' for key")
_TAKEN = 1062


class _Json(str):
    """A text that is JSON."""

    __slots__ = ()


class Cursor:
    """A cursor that gives tuples, whatever the caller's own connection gives."""

    def __init__(self, connection: pymysql.Connection[Any], most_bytes: int = MOST_BYTES) -> None:
        """``most_bytes`` is what the server takes in one message."""
        self.connection = connection
        self.most_bytes = most_bytes
        self._cursor = connection.cursor(pymysql.cursors.Cursor)
        self._rows: list[tuple[Any, ...]] = []
        self.rowcount = 0

    def execute(self, text: str, parameters: dict[str, Any] | Sequence[Any] | None = None) -> Cursor:
        """Run a statement, or several of one message; what they give is read."""
        cursor = self._cursor
        cursor.execute(text, parameters)
        self._rows = list(cursor.fetchall())
        while cursor.nextset():
            self._rows += cursor.fetchall()
        self.rowcount = cursor.rowcount
        return self

    def fetchall(self) -> list[tuple[Any, ...]]:
        """What the last message gave."""
        return self._rows

    def fetchone(self) -> tuple[Any, ...] | None:
        """The first row of it."""
        rows = self.fetchall()
        return rows[0] if rows else None

    def give(self, rows: list[tuple[Any, ...]]) -> None:
        """Let what several statements gave be the result."""
        self._rows = rows

    def written(self, text: str, parameters: dict[str, Any]) -> str:
        """A statement with its parameters in it, quoted."""
        quoted = self.connection.escape
        return text % {
            name: self._quoted_json(value) if type(value) is _Json else quoted(value)
            for name, value in parameters.items()
        }

    def _quoted_json(self, text: str) -> str:
        """As the driver would, at a fraction of the cost: JSON has no control characters, but many double quotes."""
        if not self.connection.server_status & SERVER_STATUS.SERVER_STATUS_NO_BACKSLASH_ESCAPES:
            text = text.replace("\\", "\\\\")
        return "'" + text.replace("'", "''") + "'"

    def run_together(self, texts: Sequence[str]) -> None:
        """Run statements in order: in one message if the connection is ours, for a caller's takes one at a time."""
        if self.connection.client_flag & CLIENT.MULTI_STATEMENTS:
            self.execute(";\n".join(texts))
            return
        for text in texts:
            self.execute(text)

    def messages(self, head: str, rows: Iterable[str]) -> Iterator[tuple[str, int]]:
        """An INSERT or REPLACE of many rows as messages that the server takes, with the number of rows in each."""
        size = 0
        batch: list[str] = []
        for row in rows:
            length = len(row.encode("utf-8", "surrogateescape")) + 2
            if batch and size + length > self.most_bytes:
                yield f"{head} {', '.join(batch)}", len(batch)
                size, batch = 0, []
            batch.append(row)
            size += length
        if batch:
            yield f"{head} {', '.join(batch)}", len(batch)


class MysqlDialect:
    """MariaDB's and MySQL's words."""

    def candidates(self, id_: str, count: int) -> list[str]:
        """A list of ids for each label."""
        return guidance.each_label(id_, count)

    def guide(self, session: Session, where: Find, values: dict[str, Any]) -> list[str]:
        """The page first, in the narrow tables; what has labels is found by them."""
        return self.candidates("e.id", len(where.labels)) or guidance.by_page(guidance.MYSQL, session, where)

    def statement(self, text: str) -> Script:
        """Statements that end with a line that ends in ``;``."""
        return Script(tuple(_part(part) for part in text.rstrip(";\n").split(";\n")))

    def among(self, column: str, parameter: str) -> str:
        """The column is in a list, which the driver writes out."""
        return f"{column} IN %({parameter})s"

    def label(self, labels: str, parameter: str) -> str:
        """A member of an object, compared bytewise."""
        path = f"concat('$.\"', %({parameter})s, '\"')"
        return f"CAST(json_unquote(json_extract({labels}, {path})) AS binary)"


class Script(NamedTuple):
    """Statements that run in order; the last one gives the result."""

    parts: tuple[_Part, ...]

    def run(self, cursor: Cursor, parameters: dict[str, Any]) -> None:
        """Run them, as many as possible in one message."""
        together: list[str] = []
        for part in self.parts:
            if part.kind == "plain":
                together.append(cursor.written(part.text, part.values(parameters)))
                continue
            if together:
                cursor.run_together(together)
                together = []
            if part.kind == "each":
                run_each(cursor, part.text, _rows(part.names, parameters))
            else:
                parameters = {**parameters, "hopped": _hop(cursor, part, parameters)}
        if together:
            cursor.run_together(together)


class _Part(NamedTuple):
    text: str
    kind: str  # plain, each or hop
    names: tuple[str, ...]
    listed: frozenset[str]  # the parameters that are written out; other lists are JSON

    def values(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """The parameters as the driver wants them."""
        return {name: self._value(name, parameters.get(name)) for name in self.names}

    def _value(self, name: str, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        if name in self.listed:
            return tuple(value) or (None,)  # a list that nothing is in
        return _Json(msgspec.json.encode(value), "utf-8")


def _part(text: str) -> _Part:
    bare = text.strip()
    kind = "plain"
    for mark in ("each", "hop"):
        if bare.startswith(f"-- {mark}\n"):
            kind, bare = mark, bare.partition("\n")[2].strip()
    names = dict.fromkeys(_PARAMETER.findall(bare))
    return _Part(bare, kind, tuple(names), frozenset(_LISTED.findall(bare)))


def _rows(names: tuple[str, ...], parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """One row of parameters per value of the lists; what is not a list is the same in each."""
    lists = [name for name in names if isinstance(parameters[name], list | tuple)]
    same = {name: parameters[name] for name in names if name not in lists}
    columns = zip(*(parameters[name] for name in lists), strict=True)
    return [{**same, **dict(zip(lists, values, strict=True))} for values in columns]


def _hop(cursor: Cursor, part: _Part, parameters: dict[str, Any]) -> list[Any]:
    """Go on from the last row found until nothing is found; the first column is where each row is."""
    rows: list[tuple[Any, ...]] = []
    after = None
    while True:
        cursor.execute(part.text, part.values({**parameters, "after": after}))
        more = cursor.fetchall()
        if not more:
            break
        rows += more
        after = more[-1][0]
    cursor.give([row[1:] for row in rows])
    return [row[0] for row in rows]


def run_each(cursor: Cursor, text: str, rows: list[dict[str, Any]]) -> None:
    """Run a statement for every row of parameters."""
    changed = 0
    insert = _VALUES.fullmatch(text)
    if insert is None:
        for row in rows:
            changed += cursor.execute(text, row).rowcount
    else:
        for message, _ in cursor.messages(insert[1], (cursor.written(insert[2], row) for row in rows)):
            changed += cursor.execute(message).rowcount
    cursor.rowcount = changed


class PutMany:
    """Puts entries in their order; those whose id is taken are passed over. The rowcount tells how many were put."""

    def __init__(self, catalogue: Catalogue) -> None:
        """Find the statements."""
        bodies: Any = catalogue.statements["put_bodies"]
        [self._bodies] = bodies.parts
        self._waiting = catalogue.statements["put_waiting"]
        self._taken = catalogue.statements["taken_ids"]

    def run(self, cursor: Cursor, parameters: dict[str, Any]) -> None:
        """Insert the bodies, then what waits, as many at once as the server takes."""
        head, template = self._bodies.text.split("\nVALUES ")
        rows = _rows(self._bodies.names, parameters)
        fifo = {number for number, is_fifo in zip(parameters["numbers"], parameters["fifos"], strict=True) if is_fifo}
        texts = [(row["ids"], cursor.written(template, row)) for row in rows]
        begin = count = 0
        for _, size in cursor.messages(head, (text for _, text in texts)):
            put = self._insert(cursor, f"{head} VALUES", texts[begin : begin + size])
            if put:
                self._waiting.run(cursor, {"ids": put, "fifo_numbers": [0, *fifo]})
            begin += size
            count += len(put)
        cursor.rowcount = count

    def _insert(self, cursor: Cursor, head: str, texts: list[tuple[str, str]]) -> list[str]:
        """Insert what can be inserted in one message. Returns the ids of what was inserted."""
        while texts:
            try:
                cursor.execute(f"{head} {', '.join(text for _, text in texts)}")
                break
            except pymysql.err.IntegrityError as error:
                if error.args[0] != _TAKEN:
                    raise
                untaken = self._untaken(cursor, texts, str(error.args[1]))
                if len(untaken) == len(texts):
                    raise
                texts = untaken
        return [id_ for id_, _ in texts]

    def _untaken(self, cursor: Cursor, texts: list[tuple[str, str]], message: str) -> list[tuple[str, str]]:
        """Without those whose ids are taken. One that a caller's snapshot does not show is named by the error."""
        self._taken.run(cursor, {"ids": [id_ for id_, _ in texts]})
        taken = {id_ for (id_,) in cursor.fetchall()}
        untaken: dict[str, str] = {}
        for id_, text in texts:
            if id_ not in taken:
                untaken.setdefault(id_, text)
        named = _DUPLICATE.search(message)
        if len(untaken) == len(texts) and named is not None:
            untaken.pop(named[1], None)
        return list(untaken.items())

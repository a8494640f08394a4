"""Statements as the drivers of database servers want them: parameters in their form and order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from penstock.queue.stores.sql.dialect import Dialect

_PARAMETER = re.compile(r"\?(\d*)")


class ServerDialect(Dialect):
    """A dialect whose driver writes parameters as ``%s``, in the order in which they are used."""

    mark = "%s"

    def __init__(self) -> None:
        """Remember which parameter goes where, for statements that use one twice."""
        self.orders: dict[str, tuple[int, ...]] = {}

    def translated(self, text: str) -> str:
        """A template in this dialect, parameters in the driver's form."""
        text = super().translated(text)
        numbers = _PARAMETER.findall(text)
        made = _PARAMETER.sub("%s", text.replace("%", "%%"))
        if any(numbers):
            self.orders[made] = tuple(int(number) - 1 for number in numbers)
        return made


class Db:
    """A driver's connection with the two methods that operations use."""

    def __init__(self, connection: Any, dialect: ServerDialect) -> None:
        """Wrap a DB-API connection."""
        self.connection = connection
        self._orders = dialect.orders

    def execute(self, text: str, parameters: Any = ()) -> Any:
        """Run a statement; the cursor."""
        cursor = self._cursor()
        cursor.execute(text, self.ordered(text, parameters) or None)
        return cursor

    def ordered(self, text: str, parameters: Any) -> Any:
        """A statement's parameters in the order in which the driver wants them."""
        order = self._orders.get(text)
        return parameters if order is None else [parameters[index] for index in order]

    def _cursor(self) -> Any:
        """A cursor that gives tuples, whatever the caller's own connection gives."""
        return self.connection.cursor()

    def executemany(self, text: str, rows: Any) -> Any:
        """Run a statement for many rows; the cursor with the sum of rows changed."""
        cursor = self._cursor()
        cursor.executemany(text, rows)
        return cursor


def with_fixed(marks: str, rows: Iterable[Sequence[Any]]) -> Iterator[list[Any]]:
    """Rows for an insert with VALUES (``marks``), with the numbers that stand there between the parameters."""
    given = [mark.strip() for mark in marks.split(",")]
    fixed = [(index, int(mark)) for index, mark in enumerate(given) if mark != "%s"]
    for row in rows:
        values = list(row)
        for index, value in fixed:
            values.insert(index, value)
        yield values

"""Scripts: named statements for databases without arrays, run on SQLite."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator

import pytest

from penstock.queue.drivers.sql.sqlite_script import sqlite_script
from penstock.queue.drivers.sql.statements import numbered, read_statements, script


@pytest.fixture
def cursor() -> Iterator[sqlite3.Cursor]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, owner TEXT, body BLOB)")
    yield connection.cursor()
    connection.close()


def test_parts_run_in_order_and_the_last_one_gives_the_result(cursor: sqlite3.Cursor) -> None:
    text = "INSERT INTO items (id, owner) VALUES (%(id)s, %(owner)s);\nSELECT owner FROM items WHERE id = %(id)s;\n"
    script(text, ":{}").run(cursor, {"id": 7, "owner": "ann"})
    assert cursor.fetchall() == [("ann",)]


def test_a_list_is_json(cursor: sqlite3.Cursor) -> None:
    cursor.executemany("INSERT INTO items (id) VALUES (?)", [(1,), (2,), (3,)])
    text = "DELETE FROM items WHERE id IN (SELECT value FROM json_each(%(ids)s))"
    script(text, ":{}").run(cursor, {"ids": [1, 3, 9]})
    assert cursor.rowcount == 2
    assert cursor.execute("SELECT id FROM items").fetchall() == [(2,)]


def test_each_runs_once_per_value_and_repeats_what_is_no_list(cursor: sqlite3.Cursor) -> None:
    text = "-- each\nINSERT INTO items (id, owner, body) VALUES (%(ids)s, %(owner)s, %(bodies)s)"
    script(text, ":{}").run(cursor, {"ids": [1, 2], "owner": "ann", "bodies": [b"\x00\xff", None]})
    assert cursor.rowcount == 2
    assert cursor.execute("SELECT * FROM items ORDER BY id").fetchall() == [(1, "ann", b"\x00\xff"), (2, "ann", None)]


def test_each_refuses_lists_of_different_lengths(cursor: sqlite3.Cursor) -> None:
    text = "-- each\nINSERT INTO items (id, owner) VALUES (%(ids)s, %(owners)s)"
    with pytest.raises(ValueError, match="shorter"):
        script(text, ":{}").run(cursor, {"ids": [1, 2], "owners": ["ann"]})


def test_numbered_parameters_have_one_number_however_often_they_are_used() -> None:
    statement = numbered("SELECT %(a)s, %(b)s, %(a)s")
    assert statement.text == "SELECT $1, $2, $1"
    assert statement.names == ("a", "b")


def test_placeholders_of_sqlite_are_bound_by_their_order(cursor: sqlite3.Cursor) -> None:
    """Numbered ones warn from Python 3.12 on and fail from 3.14 on."""
    statement = sqlite_script("SELECT %(b)s, %(a)s, %(b)s, (SELECT count(*) FROM json_each(%(many)s)), %(a)s")
    statement.run(cursor, {"a": 1, "b": "x", "many": [1, 2, 3]})
    assert cursor.fetchall() == [("x", 1, "x", 3, 1)]
    each = sqlite_script("-- each\nINSERT INTO items (id, owner, body) VALUES (%(ids)s, %(owner)s, %(owner)s)")
    each.run(cursor, {"ids": [1, 2], "owner": "ann"})
    assert cursor.execute("SELECT * FROM items ORDER BY id").fetchall() == [(1, "ann", "ann"), (2, "ann", "ann")]


def test_no_statement_of_sqlite_has_numbered_placeholders() -> None:
    texts = read_statements("sqlite.sql", "space")
    assert texts
    for text in texts.values():
        statement = sqlite_script(text)
        for part in getattr(statement, "parts", [statement]):
            assert not re.search(r"\?\d|(?<![:\w]):[a-z]", part.text)

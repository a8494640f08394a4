"""Migrations in two parts: what comes before the code is upgraded everywhere, and what comes after."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from sqlalchemy.dialects.sqlite import dialect

from penstock import SchemaMismatch
from penstock.queue.stores.sql.migrations import Migration, migrate, migrations, stored_version

SPACE = "shop"


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    yield connection
    connection.close()


def steps() -> list[Migration]:
    second = Migration(
        2,
        "rename a table",
        pre=["CREATE TABLE IF NOT EXISTS new_name (x)"],
        post=["DROP TABLE IF EXISTS old_name"],
    )
    return [*migrations(SPACE, dialect()), second]


def tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def run(db: sqlite3.Connection, phase: str, known: list[Migration] | None = None) -> list[str]:
    return migrate(db, SPACE, dialect(), version=stored_version(db, SPACE), phase=phase, steps=known)  # type: ignore[arg-type]


def test_old_code_goes_on_between_the_two_parts(db: sqlite3.Connection) -> None:
    run(db, "all")
    db.execute("CREATE TABLE old_name (x)")
    assert run(db, "pre", steps()) == ["2 pre: rename a table"]
    assert {"old_name", "new_name"} <= tables(db)
    assert run(db, "post", steps()) == ["2 post: rename a table"]
    assert "old_name" not in tables(db)


def test_the_second_part_waits_for_the_first(db: sqlite3.Connection) -> None:
    run(db, "all")
    assert run(db, "post", steps()) == []
    assert stored_version(db, SPACE) == 1


def test_both_at_once_and_once_only(db: sqlite3.Connection) -> None:
    assert run(db, "all", steps()) == ["1 pre: create the tables", "2 pre: rename a table", "2 post: rename a table"]
    assert run(db, "all", steps()) == []


def test_a_migration_that_died_is_simply_run_again(db: sqlite3.Connection) -> None:
    for statement in migrations(SPACE, dialect())[0].pre[:7]:
        db.execute(statement)
    assert run(db, "all") == ["1 pre: create the tables"]


def test_a_newer_schema_is_refused(db: sqlite3.Connection) -> None:
    run(db, "all", steps())
    with pytest.raises(SchemaMismatch, match=r"version 2.*up to 1.*Upgrade Penstock"):
        run(db, "all")

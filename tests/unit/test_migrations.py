"""Migrations in two parts: what comes before the code is upgraded everywhere, and what comes after."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from sqlalchemy.dialects.sqlite import dialect

from penstock import SchemaMismatch
from penstock.queue.drivers.sql.migrations import Migration
from penstock.queue.stores.sql.migrations import migrate, migrations, stored_version
from penstock.queue.stores.sql.schema import VERSION

SPACE = "shop"
NEXT = VERSION + 1
OURS = [f"{step.number} pre: {step.what}" for step in migrations(SPACE, dialect())]


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    yield connection
    connection.close()


def steps() -> list[Migration]:
    next_one = Migration(
        NEXT,
        "rename a table",
        pre=["CREATE TABLE IF NOT EXISTS new_name (x)"],
        post=["DROP TABLE IF EXISTS old_name"],
    )
    return [*migrations(SPACE, dialect()), next_one]


def tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def run(db: sqlite3.Connection, phase: str, known: list[Migration] | None = None) -> list[str]:
    return migrate(db, SPACE, dialect(), version=stored_version(db, SPACE), phase=phase, steps=known)  # type: ignore[arg-type]


def test_old_code_goes_on_between_the_two_parts(db: sqlite3.Connection) -> None:
    run(db, "all")
    db.execute("CREATE TABLE old_name (x)")
    assert run(db, "pre", steps()) == [f"{NEXT} pre: rename a table"]
    assert {"old_name", "new_name"} <= tables(db)
    assert run(db, "post", steps()) == [f"{NEXT} post: rename a table"]
    assert "old_name" not in tables(db)


def test_the_second_part_waits_for_the_first(db: sqlite3.Connection) -> None:
    run(db, "all")
    assert run(db, "post", steps()) == []
    assert stored_version(db, SPACE) == VERSION


def test_both_at_once_and_once_only(db: sqlite3.Connection) -> None:
    theirs = [f"{NEXT} pre: rename a table", f"{NEXT} post: rename a table"]
    assert run(db, "all", steps()) == [*OURS, *theirs]
    assert run(db, "all", steps()) == []


def test_a_migration_that_died_is_simply_run_again(db: sqlite3.Connection) -> None:
    for statement in migrations(SPACE, dialect())[0].pre[:7]:
        db.execute(statement)
    assert run(db, "all") == OURS


def test_a_newer_schema_is_refused(db: sqlite3.Connection) -> None:
    run(db, "all", steps())
    with pytest.raises(SchemaMismatch, match=rf"version {NEXT}.*up to {VERSION}.*Upgrade Penstock"):
        run(db, "all")


def test_a_space_of_the_first_version_gets_its_documents(db: sqlite3.Connection) -> None:
    first = migrations(SPACE, dialect())[:1]
    run(db, "all", first)
    db.execute(f"DROP TABLE {SPACE}_documents")
    assert stored_version(db, SPACE) == 1
    assert run(db, "all") == ["2 pre: documents"]
    assert f"{SPACE}_documents" in tables(db)

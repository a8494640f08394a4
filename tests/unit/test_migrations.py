"""Migrations in two parts: what comes before the code is upgraded everywhere, and what comes after."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Literal

import pytest

from penstock.errors import SchemaMismatch
from penstock.queue.drivers.sql import schema
from penstock.queue.drivers.sql.migrations import Migration, Migrator, Version
from penstock.queue.drivers.sql.sqlite_errors import is_already_there

SPACE = "shop"
OURS = schema.steps("sqlite_schema.sql", SPACE)
NEXT = schema.VERSION + 1
THEIRS = [
    *OURS,
    Migration(
        NEXT,
        "rename a table",
        pre=["CREATE TABLE IF NOT EXISTS new_name (x)"],
        post=["DROP TABLE IF EXISTS old_name"],
    ),
]
CREATED = [f"{step.number} pre: {step.what}" for step in OURS]


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    yield connection
    connection.close()


def tables(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def version(db: sqlite3.Connection) -> Version:
    return Migrator(db, SPACE).version() if f"{SPACE}_meta" in tables(db) else Version()


def run(
    db: sqlite3.Connection, phase: Literal["pre", "post", "all"], known: list[Migration] | None = None
) -> list[str]:
    return Migrator(db, SPACE, is_already_there).migrate(known or OURS, version=version(db), phase=phase)


def test_old_code_goes_on_between_the_two_parts(db: sqlite3.Connection) -> None:
    run(db, "all")
    db.execute("CREATE TABLE old_name (x)")
    assert run(db, "pre", THEIRS) == [f"{NEXT} pre: rename a table"]
    assert {"old_name", "new_name"} <= tables(db)
    schema.check(version(db), SPACE)
    assert run(db, "all") == [], "old code finds nothing to do"
    assert run(db, "post", THEIRS) == [f"{NEXT} post: rename a table"]
    assert "old_name" not in tables(db)
    with pytest.raises(SchemaMismatch, match=rf"version {NEXT}.*up to {schema.VERSION}.*Upgrade Penstock"):
        schema.check(version(db), SPACE)


def test_the_second_part_waits_for_the_first(db: sqlite3.Connection) -> None:
    run(db, "all")
    assert run(db, "post", THEIRS) == []
    assert version(db) == (schema.VERSION, schema.VERSION)


def test_both_at_once_and_once_only(db: sqlite3.Connection) -> None:
    theirs = [f"{NEXT} pre: rename a table", f"{NEXT} post: rename a table"]
    assert run(db, "all", THEIRS) == [*CREATED, *theirs]
    assert run(db, "all", THEIRS) == []


def test_a_migration_that_died_is_simply_run_again(db: sqlite3.Connection) -> None:
    for statement in OURS[0].pre[:7]:
        db.execute(statement)
    assert run(db, "all") == CREATED


def test_a_newer_schema_is_refused(db: sqlite3.Connection) -> None:
    run(db, "all", THEIRS)
    with pytest.raises(SchemaMismatch, match=rf"version {NEXT}.*up to {schema.VERSION}.*Upgrade Penstock"):
        run(db, "all")

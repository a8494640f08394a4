"""Numbered steps from one schema version to the next: *pre* before the code is upgraded everywhere, *post* after.

Old code runs on the new schema between a step's *pre* and *post* parts, so workers can be upgraded one by one. Every
statement may be run again, so a migration that was killed half-way is simply started once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy.engine import Dialect

from penstock import chaos
from penstock.errors import SchemaMismatch
from penstock.queue.stores.sql.schema import VERSION, ddl


class Migration(NamedTuple):
    """One step: its number and the statements of its two parts."""

    number: int
    what: str
    pre: list[str]
    post: list[str]


def migrations(space: str, dialect: Dialect) -> list[Migration]:
    """All steps, in order. The first creates the schema."""
    return [Migration(1, "create the tables", pre=ddl(space, dialect), post=[])]


def stored_version(db: Any, space: str) -> int:
    """The version the tables of a space have; 0 when there are none."""
    there = db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (f"{space}_meta",)).fetchone()
    if there is None:
        return 0
    row = db.execute(f"SELECT value FROM {space}_meta WHERE name = 'schema'").fetchone()
    return int(row[0]) if row else 0


def migrate(
    db: Any,
    space: str,
    dialect: Dialect,
    *,
    version: int,
    already_there: Callable[[BaseException], bool] = lambda _: False,
) -> list[str]:
    """Bring a space from its version to this one's schema; what was done. Raises for a schema newer than this code."""
    check_version(version, space)
    done = []
    for step in migrations(space, dialect):
        if step.number > version:
            for statement in (*step.pre, *step.post):
                try:
                    db.execute(statement)
                except Exception as error:
                    if not already_there(error):
                        raise
                chaos.point("migrate.statement")
            db.execute(f"DELETE FROM {space}_meta WHERE name = 'schema'")
            db.execute(f"INSERT INTO {space}_meta (name, value) VALUES ('schema', '{step.number}')")
            done.append(f"{step.number}: {step.what}")
    return done


def check_version(version: int, space: str) -> None:
    """Refuse a schema that a newer Penstock wrote."""
    if version > VERSION:
        raise SchemaMismatch(
            f"space {space!r} has schema version {version}, but this Penstock knows only up to {VERSION}.",
            hint="Upgrade Penstock here: pip install --upgrade penstock",
        )

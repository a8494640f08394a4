"""Numbered steps from one schema version to the next: *pre* before the code is upgraded everywhere, *post* after.

Old code runs on the new schema between a step's *pre* and *post* parts, so workers can be upgraded one by one. Every
statement may be run again, so a migration that was killed half-way is simply started once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, cast

from sqlalchemy.engine import Dialect

from penstock import failpoints
<<<<<<< HEAD
from penstock.queue.drivers.sql.migrations import Migration
=======
from penstock.queue.drivers.version import check_version
>>>>>>> f2f8bc8 (ZooKeeper on the four collections: a claim is one node, multi first)
from penstock.queue.stores.sql.schema import ddl, ddl_of

Phase: TypeAlias = Literal["pre", "post", "all"]
_MARKS = {"pre": "schema", "post": "schema_post"}  # how far each part has come, in <space>_meta


def migrations(space: str, dialect: Dialect) -> list[Migration]:
    """All steps, in order. The first creates the schema."""
    return [
        Migration(1, "create the tables", pre=ddl(space, dialect), post=[]),
        Migration(2, "documents", pre=ddl_of(space, "documents", dialect), post=[]),
    ]


def stored_version(db: Any, space: str) -> int:
    """The version the tables of a space have; 0 when there are none."""
    there = db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (f"{space}_meta",)).fetchone()
    if there is None:
        return 0
    return _noted(db, space, "pre")


def migrate(
    db: Any,
    space: str,
    dialect: Dialect | None,
    *,
    version: int,
    phase: Phase = "all",
    steps: list[Migration] | None = None,
    already_there: Callable[[BaseException], bool] = lambda _: False,
) -> list[str]:
    """Bring a space from its version to this one's schema; what was done. Raises for a schema newer than this code.

    ``phase="pre"`` does what has to be there before the code is upgraded, ``"post"`` what only the new code bears.
    """
    if steps is None:
        steps = migrations(space, cast(Dialect, dialect))
    check_version(version, space, steps[-1].number)
    done = []

    def run(step: Migration, part: str, statements: list[str]) -> None:
        for statement in statements:
            try:
                db.execute(statement)
            except Exception as error:
                if not already_there(error):
                    raise
            failpoints.point("migrate.statement")
        _note(db, space, part, step.number)
        if statements:
            done.append(f"{step.number} {part}: {step.what}")

    if phase in ("pre", "all"):
        for step in steps:
            if step.number > version:
                run(step, "pre", step.pre)
                version = step.number
    if phase in ("post", "all"):
        reached = _noted(db, space, "post")
        for step in steps:
            if reached < step.number <= version:
                run(step, "post", step.post)
    return done


def _noted(db: Any, space: str, part: str) -> int:
    row = db.execute(f"SELECT value FROM {space}_meta WHERE name = '{_MARKS[part]}'").fetchone()
    return int(row[0]) if row else 0


def _note(db: Any, space: str, part: str, number: int) -> None:
    db.execute(f"DELETE FROM {space}_meta WHERE name = '{_MARKS[part]}'")
    db.execute(f"INSERT INTO {space}_meta (name, value) VALUES ('{_MARKS[part]}', '{number}')")

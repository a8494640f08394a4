"""Numbered steps from one schema version to the next: *pre* before the code is upgraded everywhere, *post* after.

Old code runs on the new schema between a step's *pre* and *post* parts, so workers can be upgraded one by one. Every
statement may be run again, so a migration that was killed half-way is simply started once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from penstock import failpoints
from penstock.queue.drivers.version import check_version

Phase: TypeAlias = Literal["pre", "post", "all"]
_MARKS = {"pre": "schema", "post": "schema_post"}  # how far each part has come, in <space>_meta


class Version(NamedTuple):
    """How far the tables of a space have come: the last step whose *pre* part was run, and the last whose *post* was.

    Code that knows the steps up to ``post`` can work with them, although newer code may have begun with later ones.
    """

    pre: int = 0
    post: int = 0


class Migration(NamedTuple):
    """One step: its number and the statements of its two parts."""

    number: int
    what: str
    pre: list[str]
    post: list[str]


class Migrator:
    """Takes the tables of one space through steps, on one connection."""

    def __init__(self, db: Any, space: str, already_there: Callable[[BaseException], bool] = lambda _: False) -> None:
        """``already_there`` knows the errors of a database that cannot create something unless it exists."""
        self._db = db
        self._space = space
        self._already_there = already_there

    def version(self) -> Version:
        """How far the space has come; its tables are there."""
        return Version(self._reached("pre"), self._reached("post"))

    def migrate(self, steps: list[Migration], *, version: Version, phase: Phase = "all") -> list[str]:
        """Bring the space from its version to that of the last step. Returns what was done.

        ``phase="pre"`` does what has to be there before the code is upgraded, ``"post"`` what only the new code bears.
        """
        check_version(version.post, self._space, steps[-1].number)
        done: list[str] = []
        reached = version.pre
        if phase in ("pre", "all"):
            for step in steps:
                if step.number > reached:
                    done += self._run(step, "pre", step.pre)
                    reached = step.number
        if phase in ("post", "all"):
            for step in steps:
                if version.post < step.number <= reached:
                    done += self._run(step, "post", step.post)
        return done

    def _run(self, step: Migration, part: str, statements: list[str]) -> list[str]:
        for statement in statements:
            try:
                self._db.execute(statement)
            except Exception as error:
                if not self._already_there(error):
                    raise
            failpoints.point("migrate.statement")
        self._db.execute(f"DELETE FROM {self._space}_meta WHERE name = '{_MARKS[part]}'")
        self._db.execute(f"INSERT INTO {self._space}_meta (name, value) VALUES ('{_MARKS[part]}', '{step.number}')")
        return [f"{step.number} {part}: {step.what}"] if statements else []

    def _reached(self, part: str) -> int:
        row = self._db.execute(f"SELECT value FROM {self._space}_meta WHERE name = '{_MARKS[part]}'").fetchone()
        return int(row[0]) if row else 0

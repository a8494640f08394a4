"""The tables of a space: their version, and the steps from one version to the next."""

from __future__ import annotations

from penstock.errors import SchemaMismatch
from penstock.queue.drivers.sql.migrations import Migration, Version
from penstock.queue.drivers.sql.statements import read_statements
from penstock.queue.drivers.version import check_version

VERSION = 5
OLDEST = 3  # below it the tables were others, which no release ever had


def steps(file: str, space: str) -> list[Migration]:
    """All steps for a space, in order, in the words of one database. The first creates the tables of its file."""
    return [
        Migration(OLDEST, "create the tables", pre=_statements(file, space), post=[]),
        Migration(4, "add links and results", pre=_statements(file.replace(".sql", "_4.sql"), space), post=[]),
        Migration(5, "add where results are from", pre=_statements(file.replace(".sql", "_5.sql"), space), post=[]),
    ]


def _statements(file: str, space: str) -> list[str]:
    parts = read_statements(file, space).values()
    return [statement.strip() for part in parts for statement in part.rstrip(";\n").split(";\n")]


def check(version: Version, space: str) -> None:
    """Refuse tables that this code cannot work with."""
    check_version(version.post, space, VERSION)
    if 0 < version.pre < OLDEST:
        raise SchemaMismatch(
            f"space {space!r} has the tables of an early layout (version {version.pre}), which was never released.",
            hint="Use another space (?space=NAME), or drop these tables.",
        )

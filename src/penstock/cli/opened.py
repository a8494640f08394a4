"""From ``--url`` to a store that is already there: a slip in a URL must not make a new one."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from penstock.errors import BadInput, CannotOpen
from penstock.location import Location, read_url
from penstock.opening import open_queues
from penstock.queue.store import QueueStore

Url = Annotated[
    str, typer.Option("--url", envvar="PENSTOCK_URL", metavar="URL", help='The store, such as "sqlite:///shop.db".')
]
UrlArgument = Annotated[
    str, typer.Argument(envvar="PENSTOCK_URL", metavar="URL", help='The store, such as "sqlite:///shop.db".')
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Yes = Annotated[bool, typer.Option("--yes", help="Really do it; without, only say what would be done.")]


def open_existing(url: str) -> QueueStore:
    """Open a store that has been used before."""
    location = read_url(url)
    if location.scheme == "memory":
        raise BadInput(
            "a memory:// store lives inside one process; no command can see it.",
            hint="Use a store with a place of its own.",
        )
    if location.scheme == "sqlite" and stored_schema(location) == 0:
        raise CannotOpen(
            f"{sqlite_path(location)} has no space {location.space!r}.",
            hint=f"Check ?space= in the URL, or create it: penstock schema migrate {quote(location.masked)}",
        )
    return open_queues(url)


def sqlite_path(location: Location, *, must_exist: bool = True) -> Path:
    """The file behind a ``sqlite:///`` URL."""
    path = Path(location.path[1:])
    if must_exist and not path.is_file():
        raise CannotOpen(
            f"there is no store {path} (seen from {Path.cwd()}).",
            hint=f"Check the path; to create one: penstock schema migrate {quote(location.masked)}",
        )
    return path


def stored_schema(location: Location) -> int:
    """The schema version of an existing SQLite file's space, 0 when the space is not there; creates nothing."""
    from penstock.queue.stores.sql.migrations import stored_version
    from penstock.queue.stores.sql.sqlite_file import SqliteFile

    file = SqliteFile(sqlite_path(location).absolute(), synchronous="FULL")
    try:
        with file.reading() as db:
            return stored_version(db, location.space)
    finally:
        file.close()

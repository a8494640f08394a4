"""From ``--url`` to an existing store: a typo in a URL must not create a new one."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from penstock.cli.printing import count
from penstock.cli.reading import name as read_name
from penstock.errors import BadInput, CannotOpen, EntryNotFound
from penstock.location import Location, read_url
from penstock.names import did_you_mean
from penstock.opening import QUEUE_STORES, open_queues, store_module
from penstock.queue.queue import Queue
from penstock.queue.queues import QueueStore
from penstock.queue.removal import is_deleted

Url = Annotated[
    str, typer.Option("--url", envvar="PENSTOCK_URL", metavar="URL", help='The store, such as "sqlite:///shop.db".')
]
UrlArgument = Annotated[
    str, typer.Argument(envvar="PENSTOCK_URL", metavar="URL", help='The store, such as "sqlite:///shop.db".')
]
OptionalUrl = Annotated[
    str, typer.Argument(envvar="PENSTOCK_URL", metavar="[URL]", help='The store, such as "sqlite:///shop.db".')
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
    if location.scheme == "sqlite":
        sqlite_path(location)  # the error names the missing file
    if not is_there(location):
        where = sqlite_path(location) if location.scheme == "sqlite" else location.masked
        raise CannotOpen(f"{where} has no space {location.space!r}.", hint=_how_to_make(location))
    return open_queues(url)


def is_there(location: Location) -> bool:
    """Whether a space has been used before. Creates nothing; a store that cannot tell counts as used."""
    if location.scheme == "sqlite":
        sqlite_path(location, must_exist=False)  # the error says that it is a folder
    look = getattr(store_module(location, QUEUE_STORES, "queue"), "is_there", None)
    return look is None or bool(look(location))


def _how_to_make(location: Location) -> str:
    check = "Check ?space= in the URL"
    if location.scheme in ("redis", "rediss", "zookeeper", "zk"):
        return f"{check}, and the number or path before it; the first put of a program makes it."
    return f"{check}, or create it: penstock schema migrate {quote(location.masked)}"


def open_queue(store: QueueStore, name: str, *, or_deleted: bool = False) -> Queue[Any]:
    """An existing queue: a typo in a name must not look like an empty queue."""
    queue: Queue[Any] = store.queue(read_name(name))
    if queue.exists():
        return queue
    if not is_deleted(store, name):
        raise EntryNotFound(f"there is no queue {name!r}.", hint=suggestion(store, name))
    if not or_deleted:
        raise EntryNotFound(
            f"queue {name!r} was deleted.",
            hint="A put brings it back; an entry that ended in it: penstock queue entry ID",
        )
    return queue


def suggestion(store: QueueStore, name: str) -> str:
    """A hint with similar names."""
    known = [counts.queue for counts in store.counts() if counts.queue != name]
    close, members = did_you_mean(name, known), [member for member in known if member.startswith(name)]
    if members and (not close or not name[-1].isalnum()):
        return f"Of its family there are {count(len(members), 'queue')}: penstock queue list --family {quote(name)}"
    return f"{close}See: penstock queue list"


def sqlite_path(location: Location, *, must_exist: bool = True) -> Path:
    """The file behind a ``sqlite:///`` URL."""
    path = location.file
    if path.is_dir():
        raise CannotOpen(f"{path} is a folder, not a store (seen from {Path.cwd()}).", hint="Name a file.")
    if must_exist and not path.is_file():
        raise CannotOpen(
            f"there is no store {path} (seen from {Path.cwd()}).",
            hint=f"Check the path; to create one: penstock schema migrate {quote(location.masked)}",
        )
    return path

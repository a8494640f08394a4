"""Stores in the processes of Spark: opened once in each, and never made by accident."""

from __future__ import annotations

import socket
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import CannotOpen, Unsupported
from penstock.location import Location, read_url
from penstock.opening import open_logs, open_queues
from penstock.process import Process, this_process

if TYPE_CHECKING:
    from penstock.log.store import LogStore
    from penstock.queue.queues import QueueStore

# Python workers live for many tasks; a store is kept open for the next one.
KEPT = 16


def logs_at(url: str) -> LogStore:
    """The log store behind a URL, opened in this process."""
    location = read_url(url)
    file = None
    if location.scheme == "file":
        make = f"penstock log create NAME --url {location.masked}"
        file = _there(location, Path(location.path) / "penstock-logs.json", "folder of logs", make)
    return _logs(url, this_process(), file)


def queues_at(url: str) -> QueueStore:
    """The queue store behind a URL, opened in this process."""
    location = read_url(url)
    if location.scheme in ("zookeeper", "zk"):
        raise Unsupported(
            f"{location.masked}: Spark does not read or write queues in ZooKeeper.",
            hint="Use SQLite, PostgreSQL, MariaDB or Redis; `penstock queue copy` moves a space.",
        )
    file = None
    if location.scheme == "sqlite":
        file = _there(location, location.file, "database", f"penstock schema migrate {location.masked}")
    return _queues(url, this_process(), file)


def _there(location: Location, path: Path, what: str, make: str) -> int:
    """The inode of the store's file. A re-created store has another one, so a cached handle to the old is not reused.

    Raises if the file is missing: opening would create an empty store, on the wrong machine or under the wrong name.
    """
    try:
        return path.stat().st_ino
    except OSError as cause:
        raise CannotOpen(
            f"there is no {what} at {location.masked} on host {socket.gethostname()}.",
            hint=f"Check the URL, or make it: {make}. Executors on other hosts need a server, Kafka, or a shared disk.",
        ) from cause


@lru_cache(maxsize=KEPT)
def _logs(url: str, process: Process, file: int | None) -> LogStore:
    return open_logs(url)


@lru_cache(maxsize=KEPT)
def _queues(url: str, process: Process, file: int | None) -> QueueStore:
    return open_queues(url)

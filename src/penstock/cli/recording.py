"""Who changed what from the command line: stored for the dashboard's page of changes."""

from __future__ import annotations

import getpass
import os
import socket

import typer

from penstock.cli.opened import open_existing
from penstock.errors import PenstockError
from penstock.queue.changes import Change, record_change
from penstock.queue.queues import QueueStore

QUEUES = "PENSTOCK_URL"


def who() -> str:
    """The user of this shell."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container with a user that has no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def record(store: QueueStore, did: str, target: str, before: str, after: str, *, why: str = "") -> None:
    """Record what was done. If recording fails, the change stays done: the failure is only printed."""
    try:
        record_change(store, Change(who(), did, target, before, after, why))
    except PenstockError as error:
        typer.echo(f"done, but not recorded: {error}", err=True)


def record_for_logs(did: str, target: str, before: str, after: str) -> None:
    """Record what was done to logs or a topology, in the queue store that ``PENSTOCK_URL`` names.

    Without that variable a line says so, unless nothing existed before that a record could be about.
    """
    url = os.environ.get(QUEUES)
    if not url:
        if before:
            typer.echo(f"this change is not recorded: set {QUEUES} to the queue store that keeps changes", err=True)
        return
    try:
        with open_existing(url) as store:
            record_change(store, Change(who(), did, target, before, after))
    except PenstockError as error:
        typer.echo(f"done, but not recorded: {error}", err=True)

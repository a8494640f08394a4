"""The version of a space's keys and of what is in them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from penstock.errors import SchemaMismatch, StoreReadOnly
from penstock.queue.drivers.redis.connection import Server
from penstock.queue.drivers.version import check_version

VERSION = 4
OLDEST = 2  # from which on a space can be used; what differs is its dead letters, which have no numbers yet


def check_or_set(server: Server, prefix: str, space: str, number_letters: Callable[[], object]) -> None:
    """Write our version where there is none. A replica has the version of its primary, and cannot be written to.

    ``number_letters`` numbers the dead letters of a space of an earlier version.
    """
    key = f"{prefix}schema"
    version = server.ask("GET", key)
    if version is None:
        with suppress(StoreReadOnly):
            server.ask("SET", key, VERSION, "NX")
        return
    check_version(int(version), space, VERSION)
    if OLDEST <= int(version) < VERSION:
        # From now on older releases, which know nothing of links, are refused.
        with suppress(StoreReadOnly):
            number_letters()
            server.ask("SET", key, VERSION)
    elif int(version) < OLDEST:
        raise SchemaMismatch(
            f"space {space!r} has schema version {int(version)}, which this Penstock no longer reads.",
            hint="Copy it with the Penstock that wrote it (penstock queue copy), or take another space.",
        )

"""The nodes of a space: their version, and making them."""

from __future__ import annotations

from penstock.errors import SchemaMismatch
from penstock.queue.drivers.version import check_version
from penstock.queue.drivers.zookeeper.connection import Connection
from penstock.queue.drivers.zookeeper.layout import Layout

VERSION = 4  # of the nodes and what is in them; 3 brought the four collections, 4 links and results
OLDEST = 3


def prepare(connection: Connection, layout: Layout, space: str) -> None:
    """Make the nodes of a space that is not there; refuse one in another layout."""
    [node] = connection.read_many([layout.schema])
    if node is None:
        connection.make(layout.root, layout.folders)
        connection.write(layout.schema, str(VERSION).encode())  # last: it says that all is there
        return
    version = int(node[0])
    check_version(version, space, VERSION)
    if version == OLDEST:
        connection.make(layout.root, layout.folders_of_links)
        connection.write(layout.schema, str(VERSION).encode())  # older releases, which know no links, are refused now
    elif version < OLDEST:
        raise SchemaMismatch(
            f"space {space!r} has schema version {version}, which this Penstock no longer reads.",
            hint="Copy it with the Penstock that wrote it (penstock queue copy), or take another space.",
        )

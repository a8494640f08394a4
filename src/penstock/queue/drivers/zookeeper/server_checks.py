"""What ``doctor`` says about the servers: version, session, latency, room, who may read."""

from __future__ import annotations

import time

from kazoo.exceptions import KazooException

from penstock.queue.drivers.zookeeper.connection import Connection
from penstock.queue.drivers.zookeeper.mirror import CAPACITY, Mirror
from penstock.queue.protocol import Finding

SLOW_SECONDS = 0.1


def findings(connection: Connection, mirror: Mirror, path: str, payload_limit: int) -> list[Finding]:
    """One line for everything that was looked at."""
    return [
        _version(connection),
        _latency(connection, path),
        _timeout(connection),
        _room(mirror),
        _access(connection),
        Finding(
            "unknown", "durability",
            "ZooKeeper syncs its log before it answers unless zookeeper.forceSync=no; clients cannot read that setting",
        ),
        Finding(
            "good", "limits",
            f"payloads up to {payload_limit:,} bytes, a step up to 900,000 bytes with all its nodes, "
            f"{CAPACITY:,} live entries per queue; meant for small queues",
        ),
    ]  # fmt: skip


def _version(connection: Connection) -> Finding:
    try:
        numbers = connection.client.server_version()
    except (KazooException, OSError, ValueError, TypeError):
        return Finding("unknown", "server", "the servers do not answer srvr (see 4lw.commands.whitelist)")
    text = ".".join(map(str, numbers))
    if tuple(numbers[:2]) < (3, 5):
        return Finding("warning", "server", f"version {text}; 3.5 or newer is what we know")
    return Finding("good", "server", f"version {text}")


def _latency(connection: Connection, path: str) -> Finding:
    begin = time.monotonic()
    connection.write(path, b"")
    seconds = time.monotonic() - begin
    return Finding("good" if seconds < SLOW_SECONDS else "warning", "latency", f"a write took {seconds * 1000:.1f} ms")


def _timeout(connection: Connection) -> Finding:
    granted = connection.granted
    if abs(granted - connection.address.session) > 0.001:
        return Finding(
            "warning", "session",
            f"the servers granted {granted:g}s, not {connection.address.session:g}s (see maxSessionTimeout)",
        )  # fmt: skip
    return Finding("good", "session", f"{granted:g}s: so long after a process died its locks are gone")


def _room(mirror: Mirror) -> Finding:
    queue, count = max(
        ((queue.name, queue.live) for queue in mirror.state.ready_queues.queues.values()), key=lambda pair: pair[1],
        default=("", 0),
    )  # fmt: skip
    if not count:
        return Finding("good", "room", f"no live entries; up to {CAPACITY:,} per queue")
    said = f"the fullest queue, {queue}, holds {count:,} of {CAPACITY:,} live entries"
    return Finding("good" if count < 0.8 * CAPACITY else "warning", "room", said)


def _access(connection: Connection) -> Finding:
    if connection.address.login is None:
        return Finding(
            "warning", "access", "nodes are open to everybody who reaches the servers; give user:password@ in the URL"
        )
    return Finding("good", "access", f"only user {connection.address.login[0]} may read or write the nodes (digest)")

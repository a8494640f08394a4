"""What ``doctor`` says about the servers: version, session, latency, room, who may read."""

from __future__ import annotations

import time

from kazoo.exceptions import KazooException

from penstock.queue.store import Finding
from penstock.queue.stores.zookeeper.mirror import CAP, Mirror
from penstock.queue.stores.zookeeper.session import Session

SLOW_SECONDS = 0.1


def findings(session: Session, mirror: Mirror, path: str, payload_limit: int) -> list[Finding]:
    """One line for everything that was looked at."""
    return [
        _version(session),
        _latency(session, path),
        _timeout(session),
        _room(mirror),
        _access(session),
        Finding(
            "unknown", "durability",
            "ZooKeeper syncs its log before it answers unless zookeeper.forceSync=no; clients cannot read that setting",
        ),
        Finding(
            "good", "limits",
            f"payloads up to {payload_limit:,} bytes, a step up to 900,000 bytes with all its nodes, "
            f"{CAP:,} live entries per queue; meant for small queues",
        ),
    ]  # fmt: skip


def _version(session: Session) -> Finding:
    try:
        numbers = session.client.server_version()
    except (KazooException, OSError, ValueError, TypeError):
        return Finding("unknown", "server", "the servers do not answer srvr (see 4lw.commands.whitelist)")
    text = ".".join(map(str, numbers))
    if tuple(numbers[:2]) < (3, 5):
        return Finding("warning", "server", f"version {text}; 3.5 or newer is what we know")
    return Finding("good", "server", f"version {text}")


def _latency(session: Session, path: str) -> Finding:
    begin = time.monotonic()
    session.write(path, b"")
    seconds = time.monotonic() - begin
    return Finding("good" if seconds < SLOW_SECONDS else "warning", "latency", f"a write took {seconds * 1000:.1f} ms")


def _timeout(session: Session) -> Finding:
    granted = session.granted
    if abs(granted - session.address.session) > 0.001:
        return Finding(
            "warning", "session",
            f"the servers granted {granted:g}s, not {session.address.session:g}s (see maxSessionTimeout)",
        )  # fmt: skip
    return Finding("good", "session", f"{granted:g}s: so long after a process died its locks are gone")


def _room(mirror: Mirror) -> Finding:
    queue, count = max(
        ((queue.name, len(queue.items)) for queue in mirror.lineup.queues.values()), key=lambda one: one[1],
        default=("", 0),
    )  # fmt: skip
    if not count:
        return Finding("good", "room", f"no live entries; up to {CAP:,} per queue")
    said = f"the fullest queue, {queue}, holds {count:,} of {CAP:,} live entries"
    return Finding("good" if count < 0.8 * CAP else "warning", "room", said)


def _access(session: Session) -> Finding:
    if session.address.login is None:
        return Finding(
            "warning", "access", "nodes are open to everybody who reaches the servers; give user:password@ in the URL"
        )
    return Finding("good", "access", f"only user {session.address.login[0]} may read or write the nodes (digest)")

"""Loading a mirror from the nodes: what the log does not tell any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.queue.drivers.zookeeper import serialization
from penstock.queue.drivers.zookeeper.connection import Connection
from penstock.queue.drivers.zookeeper.layout import Layout
from penstock.queue.drivers.zookeeper.mirror import Mirror
from penstock.queue.drivers.zookeeper.serialization import Change
from penstock.queue.rules.rows import Live

Nodes = list[tuple[str, bytes]]  # names and data


class Loading:
    """Reads nodes into a mirror. They are not read in one moment; the log tells what happened meanwhile."""

    def __init__(self, connection: Connection, layout: Layout, mirror: Mirror) -> None:
        """Read nothing yet."""
        self._connection = connection
        self._layout = layout
        self._mirror = mirror

    def load(self) -> None:
        """Read the whole space."""
        connection, layout, mirror = self._connection, self._layout, self._mirror
        folders = {"links": layout.links, "wait": layout.waits, "result": layout.results}
        names = connection.list_many([layout.queues, layout.schedules, layout.documents, *folders.values()])
        queues, schedules, documents, *by_id = names
        if queues is None or schedules is None or documents is None or None in by_id:
            raise connection.away("its nodes were removed")
        for queue in set(mirror.heads) - set(queues):
            with mirror.following():
                mirror.forget_queue(queue)
        self.load_queues(queues)
        with mirror.following():
            self._load_named("schedule", set(mirror.state.schedules), schedules, layout.schedule)
            self._load_named("document", set(mirror.state.documents), documents, layout.document)
            state = mirror.state
            known = (set(state.links), set(state.waits), set(state.results))
            for kind, ids, listed in zip(folders, known, by_id, strict=True):
                self._load_by_id(kind, ids, folders[kind], listed or [])
            [subscriptions] = connection.read_many([layout.subscriptions])
            if subscriptions is not None:
                mirror.set_subscriptions(subscriptions[0], subscriptions[1].version)

    def _load_named(self, kind: str, known: set[str], names: list[str], path: Callable[[str], str]) -> None:
        """Read schedules or documents."""
        stored = dict(zip(names, self._connection.read_many([path(name) for name in names]), strict=True))
        for name in known | set(names):
            node = stored.get(name)
            self._mirror.follow(Change(kind, "", name, node and node[0], node[1].version if node else 0))

    def _load_by_id(self, kind: str, known: set[str], folder: str, names: list[str]) -> None:
        """Read what is kept for entries besides their queues."""
        read = self._connection.read_many([f"{folder}/{name}" for name in names])
        stored = dict(zip(map(self._layout.id_of, names), read, strict=True))
        for id_ in known | set(stored):
            node = stored.get(id_)
            self._mirror.follow(Change(kind, "", id_, node and node[0], node[1].version if node else 0))

    def load_queues(self, queues: list[str]) -> None:
        """Read queues: heads first, so that a head is never newer than what is read below it."""
        connection, layout, mirror = self._connection, self._layout, self._mirror
        heads = connection.read_many([layout.queue(queue) for queue in queues])
        with mirror.following():
            for queue, head in zip(queues, heads, strict=True):
                mirror.forget_queue(queue)
                if head is not None:
                    mirror.set_head(queue, head[1].version, serialization.read_head(head[0]))
        folders = {folder: self._read_folder(queues, folder) for folder in ("ready", "claims", "history", "unique")}
        bucketed = {folder: self._read_buckets(queues, folder) for folder in ("entries", "dead")}
        for queue in queues:
            with mirror.following():
                self._load_queue(queue, {name: nodes.get(queue, []) for name, nodes in (folders | bucketed).items()})

    def _load_queue(self, queue: str, nodes: dict[str, list[tuple[str, bytes, Any]]]) -> None:
        """Bodies, then what refers to them; what nothing refers to waits as it was put."""
        mirror = self._mirror
        as_put: dict[int, Live] = {}
        for _, data, _ in nodes["entries"]:
            live = mirror.read_put(queue, data, with_payload=True)
            as_put[live.body.number] = live
            current = mirror.state.entries.get(live.body.id)
            mirror.bodies[live.body.number] = live.body
            if current is None or current.queue != queue or current.number < live.body.number:
                mirror.state.entries[live.body.id] = live.body
        for name, data, stat in nodes["claims"]:
            claim_id, part = self._layout.claim_of(name)
            mirror.follow(Change("claim", queue, f"{claim_id}~{part}", data, stat.version))
        for _, data, _ in nodes["ready"]:
            live_now = serialization.read_live(data, mirror.bodies.get)
            if live_now is not None:
                mirror.set_ready(live_now.id, live_now, is_stored=True)
        for _, data, _ in nodes["dead"]:
            letter = serialization.read_dead(data, mirror.bodies.get)
            if letter is not None:
                mirror.state.dead[letter.live.id] = letter
        for name, data, _ in sorted(nodes["history"], key=_name):
            mirror.add_page((queue, name), *serialization.read_page(queue, data, mirror.bodies.get))
        for number in set(as_put) - self._referred_to(queue):
            mirror.set_ready(as_put[number].id, as_put[number])
        mirror.push_out(queue)
        for name, data, _ in nodes["unique"]:
            mirror.follow(Change("hold", queue, self._layout.key(name), data))

    def _referred_to(self, queue: str) -> set[int]:
        """Numbers of bodies that are claimed, wait in another form, are dead, or have ended."""
        mirror, state = self._mirror, self._mirror.state
        known = state.ready_queues.queue(queue)
        numbers = {live.body.number for live in known.waiting.values()}
        numbers |= {live.body.number for claim in known.claims.values() for live in claim.held.values()}
        numbers |= {letter.live.body.number for letter in state.dead.values() if letter.live.queue == queue}
        for name in mirror.pages_of.get(queue, ()):
            numbers |= {row.live.body.number for row in mirror.pages[queue, name].rows}
        return numbers

    # --- nodes -------------------------------------------------------------------------------------------

    def _read_folder(self, queues: list[str], folder: str) -> dict[str, list[tuple[str, bytes, Any]]]:
        """Names, data and stats of the nodes in a folder, by queue."""
        folders = [(queue, self._layout.folder(queue, folder)) for queue in queues]
        return self._read_all(folders)

    def _read_buckets(self, queues: list[str], folder: str) -> dict[str, list[tuple[str, bytes, Any]]]:
        """The same for the nodes in the buckets of a folder."""
        folders = [self._layout.folder(queue, folder) for queue in queues]
        buckets = [
            (queue, f"{path}/{name}")
            for queue, path, names in zip(queues, folders, self._connection.list_many(folders), strict=True)
            for name in sorted(names or ())
        ]
        return self._read_all(buckets)

    def _read_all(self, folders: Iterable[tuple[str, str]]) -> dict[str, list[tuple[str, bytes, Any]]]:
        folders = list(folders)
        listed = self._connection.list_many([path for _, path in folders])
        places = [
            (queue, path, name)
            for (queue, path), names in zip(folders, listed, strict=True)
            for name in sorted(names or ())
        ]
        nodes: dict[str, list[tuple[str, bytes, Any]]] = {}
        read = self._connection.read_many([f"{path}/{name}" for _, path, name in places])
        for (queue, _, name), node in zip(places, read, strict=True):
            if node is not None:  # otherwise the log tells what became of it
                nodes.setdefault(queue, []).append((name, *node))
        return nodes


def _name(node: tuple[str, bytes, Any]) -> str:
    return node[0]

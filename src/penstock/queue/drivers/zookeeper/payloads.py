"""Payloads: in the mirror a digest stands for each, and the bytes are read from ZooKeeper when somebody needs them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from penstock.errors import EntryNotFound
from penstock.queue.drivers.zookeeper import serialization
from penstock.queue.drivers.zookeeper.connection import Connection
from penstock.queue.drivers.zookeeper.layout import Layout
from penstock.queue.drivers.zookeeper.serialization import number_of
from penstock.queue.entry import Entry, HistoryRow
from penstock.queue.protocol import NewEntry, Step, TransferRow
from penstock.queue.rules.rows import Body

REMEMBERED_BYTES = 16 * 1024 * 1024


class Payloads:
    """Payloads on their way in and out, and those put or claimed here lately: they are asked for again soon."""

    def __init__(self, connection: Connection, layout: Layout) -> None:
        """Start empty."""
        self._connection = connection
        self._layout = layout
        self._call: dict[bytes, bytes] = {}  # of the call under way
        self._recent: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0

    def begin(self) -> None:
        """Forget the payloads of the last call, except those that may be asked for soon."""
        self._call = {}

    # --- in ----------------------------------------------------------------------------------------------

    def take(self, payload: bytes) -> bytes:
        """Keep a payload for the call under way. Returns its digest."""
        digest = serialization.digest(payload)
        self._call[digest] = payload
        self.remember(digest, payload)
        return digest

    def take_entry(self, entry: NewEntry) -> NewEntry:
        """A new entry with the digest in the payload's place."""
        return replace(entry, payload=self.take(entry.payload))

    def take_steps(self, steps: Sequence[Step]) -> list[Step]:
        """Steps with digests in the payloads' places."""
        return [
            step if not step.puts and not step.events else replace(
                step,
                puts=tuple([self.take_entry(entry) for entry in step.puts]),
                events=tuple([replace(event, template=self.take_entry(event.template)) for event in step.events]),
            )
            for step in steps
        ]  # fmt: skip

    # --- for a commit ------------------------------------------------------------------------------------

    def _known(self, digest: bytes) -> bytes | None:
        payload = self._call.get(digest)
        return self._recent.get(digest) if payload is None else payload

    def of(self, body: Body) -> bytes:
        """The payload of a body that is being written."""
        payload = self._known(body.payload)
        if payload is None:
            raise EntryNotFound(
                f"the payload of entry {body.id} is not kept any more.",
                hint="Of ended entries ZooKeeper keeps the last 100 per queue; dead letters are all kept.",
            )
        return payload

    def fetch(self, body: Body) -> None:
        """Have the payload of a stored body at hand for the call under way."""
        if self._known(body.payload) is None:
            [node] = self._connection.read_many([self._path(body)])
            if node is not None:
                self.take(serialization.read_body(node[0])[1])

    # --- out ---------------------------------------------------------------------------------------------

    def _path(self, body: Body) -> str:
        return self._layout.body(body.queue, number_of(body.number))

    def read(self, bodies: Iterable[Body]) -> dict[int, bytes]:
        """The payloads of bodies by their numbers; those that are gone are left out."""
        payloads: dict[int, bytes] = {}
        missing: list[Body] = []
        for body in bodies:
            payload = self._known(body.payload)
            if payload is None:
                missing.append(body)
            else:
                payloads[body.number] = payload
        for body, node in zip(missing, self._connection.read_many(list(map(self._path, missing))), strict=True):
            if node is not None:
                payloads[body.number] = payload = serialization.read_body(node[0])[1]
                self.remember(body.payload, payload)
        return payloads

    def fill(self, entries: Sequence[Entry[Any]], bodies: Sequence[Body]) -> list[Entry[Any]]:
        """Entries with their payloads; those that are gone meanwhile are left out."""
        payloads = self.read(bodies)
        filled = []
        for entry, body in zip(entries, bodies, strict=True):
            payload = payloads.get(body.number)
            if payload is not None:
                entry.payload = payload
                filled.append(entry)
        return filled

    def fill_rows(self, rows: Sequence[HistoryRow], bodies: Sequence[Body]) -> list[HistoryRow]:
        """Rows with the payloads that they show."""
        payloads = self.read([body for row, body in zip(rows, bodies, strict=True) if row.payload is not None])
        for row, body in zip(rows, bodies, strict=True):
            row.payload = None if row.payload is None else payloads.get(body.number)
        return list(rows)

    def fill_transfer_rows(self, rows: Sequence[TransferRow], bodies: Sequence[Body]) -> list[TransferRow]:
        """TransferRow with its payloads."""
        payloads = self.read(bodies)
        for item, body in zip(rows, bodies, strict=True):
            item.payload = None if item.payload is None else payloads.get(body.number)
        return list(rows)

    def remember(self, digest: bytes, payload: bytes) -> None:
        """Keep a payload at hand for a while."""
        if digest not in self._recent:
            self._recent[digest] = payload
            self._bytes += len(payload)
        self._recent.move_to_end(digest)
        while self._bytes > REMEMBERED_BYTES and len(self._recent) > 1:
            _, oldest = self._recent.popitem(last=False)
            self._bytes -= len(oldest)

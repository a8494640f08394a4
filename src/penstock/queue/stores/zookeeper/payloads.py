"""Payloads: in the mirror a digest stands for each, and the bytes are read from ZooKeeper when somebody needs them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from penstock.errors import EntryNotFound
from penstock.queue.entry import Entry, HistoryRow
from penstock.queue.store import NewEntry, Step
from penstock.queue.stores.memory.lanes import Item
from penstock.queue.stores.zookeeper import records
from penstock.queue.stores.zookeeper.layout import Layout
from penstock.queue.stores.zookeeper.mirror import Mirror
from penstock.queue.stores.zookeeper.session import Session

REMEMBERED_BYTES = 16 * 1024 * 1024


class Payloads:
    """Payloads on their way in and out, and those of claimed entries, which will be needed again at their end."""

    def __init__(self, session: Session, layout: Layout) -> None:
        """Start empty."""
        self._session = session
        self._layout = layout
        self._call: dict[bytes, bytes] = {}  # of the call under way
        self._recent: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = 0

    def begin(self) -> None:
        """Forget what the last call brought."""
        self._call = {}

    # --- in ----------------------------------------------------------------------------------------------

    def taken(self, payload: bytes) -> bytes:
        """Keep a payload for the call under way; its digest."""
        digest = records.digest(payload)
        self._call[digest] = payload
        return digest

    def in_entry(self, new: NewEntry) -> NewEntry:
        """A new entry with the digest in the payload's place."""
        return replace(new, payload=self.taken(new.payload))

    def in_steps(self, steps: Sequence[Step]) -> list[Step]:
        """Steps with digests in the payloads' places."""
        return [
            step if not step.puts and not step.events else replace(
                step,
                puts=tuple(self.in_entry(new) for new in step.puts),
                events=tuple(replace(event, template=self.in_entry(event.template)) for event in step.events),
            )
            for step in steps
        ]  # fmt: skip

    # --- for a commit ------------------------------------------------------------------------------------

    def known(self, digest: bytes) -> bytes | None:
        """A payload, if it is at hand."""
        found = self._call.get(digest)
        return self._recent.get(digest) if found is None else found

    def of(self, item: Item) -> bytes:
        """The payload of an entry that is being written."""
        found = self.known(item.payload)
        if found is None:
            raise EntryNotFound(
                f"the payload of entry {item.id} is not kept any more.",
                hint="Of ended entries ZooKeeper keeps the last 100 per queue; dead letters are all kept.",
            )
        return found

    def prefetch(self, mirror: Mirror, differences: dict[tuple[str, Any], tuple[Any, Any]]) -> None:
        """Read the payloads that the changes move from one node to another."""
        whole: list[str] = []
        kept: list[str] = []
        for (table, key), (old, new) in differences.items():
            if table != "live":
                continue
            if old is not None and new is None and self.known(old.payload) is None:
                whole.append(self._layout.item(old.queue, records.number_of(old.seq)))
            if new is not None and self.known(new.payload) is None and (old is None or old.payload != new.payload):
                dead, _ = differences.get(("dead", key), (None, None))
                if dead is not None:
                    whole.append(self._layout.dlq(dead.queue, records.number_of(dead.seq)))
                elif key in mirror.page_of:
                    kept.append(self._layout.kept(*mirror.page_of[key]))
        for one in self._session.read_many(whole):
            if one is not None:
                self.taken(records.decode(one[0])[1])
        for one in self._session.read_many(list(dict.fromkeys(kept))):
            for payload in records.decode(one[0]).values() if one is not None else ():
                self.taken(payload)

    # --- out ---------------------------------------------------------------------------------------------

    def fill(self, entries: Iterable[Entry[Any]], *, dead: bool = False, remember: bool = False) -> list[Entry[Any]]:
        """Entries with their payloads; those that are gone or changed meanwhile are left out."""
        entries = list(entries)
        path = self._layout.dlq if dead else self._layout.item
        found = {entry.id: self.known(entry.payload) for entry in entries}
        missing = [entry for entry in entries if found[entry.id] is None]
        read = self._session.read_many([path(one.queue, records.number_of(one.seq)) for one in missing])
        for entry, one in zip(missing, read, strict=True):
            payload = None if one is None else records.decode(one[0])[1]
            if payload is not None and records.digest(payload) == entry.payload:
                found[entry.id] = payload
        for entry in entries:
            payload = found[entry.id]
            if payload is not None:
                if remember:
                    self._remember(entry.payload, payload)
                entry.payload = payload
        return [entry for entry in entries if found[entry.id] is not None]

    def fill_rows(self, rows: list[HistoryRow], mirror: Mirror) -> list[HistoryRow]:
        """Rows with their payloads, as far as these are kept."""
        pages = {row.seq: mirror.row_page[row.seq] for row in rows if row.payload and row.seq in mirror.row_page}
        wanted = list(dict.fromkeys(pages.values()))
        read = self._session.read_many([self._layout.kept(*page) for page in wanted])
        kept = {page: records.decode(one[0]) for page, one in zip(wanted, read, strict=True) if one is not None}
        for row in rows:
            row.payload = kept.get(pages.get(row.seq, ("", "")), {}).get(row.id)
        return rows

    def _remember(self, digest: bytes, payload: bytes) -> None:
        if digest not in self._recent:
            self._recent[digest] = payload
            self._bytes += len(payload)
        self._recent.move_to_end(digest)
        while self._bytes > REMEMBERED_BYTES and len(self._recent) > 1:
            _, old = self._recent.popitem(last=False)
            self._bytes -= len(old)

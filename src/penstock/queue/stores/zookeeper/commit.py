"""From a draft to a multi: what a call changed in the mirror, as operations that happen together or not at all.

Every queue that is touched has its head set with a version check, so a draft made on an old view of it is refused;
every lease that is settled or prolonged has its guard node deleted or checked, so a stale owner is refused.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from penstock.errors import UnitTooLarge
from penstock.queue.entry import HistoryRow
from penstock.queue.stores.memory.lanes import Item
from penstock.queue.stores.memory.state import Hold
from penstock.queue.stores.zookeeper import records
from penstock.queue.stores.zookeeper.layout import BUCKET, Layout
from penstock.queue.stores.zookeeper.mirror import Mirror
from penstock.queue.stores.zookeeper.payloads import Payloads
from penstock.queue.stores.zookeeper.records import Change, Head, Record
from penstock.queue.stores.zookeeper.session import PACKET, PER_OP, Op

KEPT_PAYLOAD = 64 * 1024  # a larger payload is not kept with an ended entry
_FEW = 20


class Commit:
    """The operations of one call, and what the mirror has to remember when they happened."""

    def __init__(self, mirror: Mirror, layout: Layout, payloads: Payloads, handle: str, op: str) -> None:
        """Work out the operations; ``ops`` is empty when nothing changed."""
        self._mirror = mirror
        self._layout = layout
        self._payloads = payloads
        self._first: list[Op] = []
        self._ops: list[Op] = []
        self._changes: list[Change] = []
        self._heads: dict[str, tuple[int, Head]] = {}
        self._buckets: dict[str, set[int]] = {}
        self._metas: list[tuple[str, bool]] = []
        self._pages: dict[str, tuple[str, list[HistoryRow], list[Item], dict[str, bytes]]] = {}
        self._versions: dict[str, int] = {}
        self._documents: dict[str, int] = {}
        differences = mirror.differences()
        payloads.prefetch(mirror, differences)
        for (table, key), (old, new) in differences.items():
            match table:
                case "live":
                    self._live(key, old, new)
                case "dead":
                    self._dead(old, new)
                case "holds":
                    self._hold(key, old, new)
                case "schedules":
                    self._schedule(key, old, new)
                case "documents":
                    self._document(key, old, new)
        self._history(differences)
        self._subscriptions()
        self._write_heads(mirror.touched | {queue for change in self._changes if (queue := change.queue)})
        self.ops = self._finish(handle, op) if self._ops or self._heads else []

    def _add(self, verb: Any, path: str, data: bytes = b"", version: int = -1) -> None:
        self._ops.append(Op(verb, path, data, version))

    # --- entries -----------------------------------------------------------------------------------------

    def _live(self, id_: str, old: Item | None, new: Item | None) -> None:
        if old is not None and (new is None or (new.queue, new.seq) != (old.queue, old.seq)):
            self._end(old)
            if new is None or new.queue != old.queue:
                self._changes.append(Change("live", old.queue, id_, None))
            old = None
            self._metas.append((id_, False))
        if new is None:
            return
        layout, number = self._layout, records.number_of(new.seq)
        data = records.write_item(new)
        has_meta = old is not None or new.lease is not None
        if old is None:
            self._buckets.setdefault(new.queue, set()).add(number // BUCKET)
            put = replace(new, state="waiting", lease=None)
            self._add("create", layout.item(new.queue, number), records.write_whole(put, self._payloads.of(new)))
        elif old.payload != new.payload:
            self._add("set", layout.item(new.queue, number), records.write_whole(new, self._payloads.of(new)))
        if has_meta:
            verb = "set" if old is not None and id_ in self._mirror.with_meta else "create"
            self._add(verb, layout.meta(new.queue, number), data)
            self._metas.append((id_, True))
        self._relock(old, new)
        self._changes.append(Change("live", new.queue, id_, data, int(has_meta)))

    def _end(self, old: Item) -> None:
        number = records.number_of(old.seq)
        self._relock(old, None)
        self._add("delete", self._layout.item(old.queue, number))
        if old.id in self._mirror.with_meta:
            self._add("delete", self._layout.meta(old.queue, number))

    def _relock(self, old: Item | None, new: Item | None) -> None:
        before = old.lease if old is not None else None
        after = new.lease if new is not None else None
        if before is not None and old is not None and before.entry not in self._mirror.vanished:
            number = records.number_of(old.seq)
            guard = self._layout.guard(old.queue, number, before.token)
            if after is not None and after.token == before.token:
                self._add("check", guard)
                return
            self._add("delete", guard)
            self._add("delete", self._layout.lock(old.queue, number))
        if after is not None and new is not None:
            number = records.number_of(new.seq)
            self._add("ephemeral", self._layout.lock(new.queue, number), after.owner.encode())
            self._add("ephemeral", self._layout.guard(new.queue, number, after.token))

    def _dead(self, old: Item | None, new: Item | None) -> None:
        if old is not None:
            self._add("delete", self._layout.dlq(old.queue, records.number_of(old.seq)))
            self._changes.append(Change("dead", old.queue, old.id, None))
        if new is not None:
            number = records.number_of(new.seq)
            # An entry that died here has its bucket; a letter that came from another store brings a new one.
            self._buckets.setdefault(new.queue, set()).add(number // BUCKET)
            self._add("create", self._layout.dlq(new.queue, number), records.write_whole(new, self._payloads.of(new)))
            self._changes.append(Change("dead", new.queue, new.id, records.write_item(new)))

    def _hold(self, scope: tuple[str, str], old: Hold | None, new: Hold | None) -> None:
        path = self._layout.hold(*scope)
        data = None if new is None else records.write_hold(new)
        if data is None:
            self._add("delete", path)
        else:
            self._add("create" if old is None else "set", path, data)
        self._changes.append(Change("hold", *scope, data))

    # --- history -----------------------------------------------------------------------------------------

    def _history(self, differences: dict[tuple[str, Any], tuple[Any, Any]]) -> None:
        mirror = self._mirror
        rows: dict[str, list[HistoryRow]] = {}
        ended: dict[str, list[Item]] = {}
        pruned: dict[tuple[str, str], None] = {}
        for (table, key), (_, new) in differences.items():
            if table == "history" and new is not None:
                rows.setdefault(new.queue, []).append(new)
            elif table == "history" and key in mirror.row_page:
                pruned[mirror.row_page[key]] = None
            elif table == "ended" and new is not None:
                ended.setdefault(new.queue, []).append(new)
        for place in pruned:
            self._rewrite(*place)
        for queue, page in mirror.swept:
            self._remove(queue, page)
        for queue in rows | ended:
            self._page(queue, rows.get(queue, []), ended.get(queue, []))

    def _page(self, queue: str, rows: list[HistoryRow], ended: list[Item]) -> None:
        page = f"page-{records.number_of(next(self._mirror.ticks)):012d}"
        data = records.write_page(rows, ended)
        self._add("create", self._layout.ended(queue, page), data)
        kept = {row.id: found for row in rows if row.payload and (found := self._payloads.known(row.payload))}
        small = {id_: payload for id_, payload in kept.items() if len(payload) <= KEPT_PAYLOAD}
        self._pages[queue] = (page, rows, ended, small)
        self._changes.append(Change("page", queue, page, data))
        gone = [
            old
            for old in self._mirror.pushed_out(queue, sum(row.payload is not None for row in rows))
            if self._mirror.pages[queue][old].kept
        ]
        for old in gone[-_FEW:]:
            self._add("delete", self._layout.kept(queue, old))
            self._changes.append(Change("kept", queue, old, None))

    def _rewrite(self, queue: str, page: str) -> None:
        """Leave on a page what has not been pruned."""
        mirror = self._mirror
        known = mirror.pages[queue][page]
        rows = [mirror.history[seq] for seq in known.rows if seq in mirror.history]
        here = [id_ for id_ in known.ended if mirror.page_of.get(id_) == (queue, page)]
        ended = [mirror.ended[id_] for id_ in here if id_ in mirror.ended]
        if not rows and not ended:
            self._remove(queue, page)
            return
        data = records.write_page(rows, ended)
        self._add("set", self._layout.ended(queue, page), data)
        self._changes.append(Change("page", queue, page, data, int(known.kept)))

    def _remove(self, queue: str, page: str) -> None:
        self._add("delete", self._layout.ended(queue, page))
        if self._mirror.pages[queue][page].kept:
            self._add("delete", self._layout.kept(queue, page))
        self._changes.append(Change("page", queue, page, None))

    # --- what belongs to no entry ------------------------------------------------------------------------

    def _schedule(self, name: str, old: Any, new: Any) -> None:
        version = self._mirror.schedule_versions.get(name, 0)
        data, self._versions[name] = self._checked(self._layout.schedule(name), version, old, new)
        self._changes.append(Change("schedule", "", name, data, self._versions[name]))

    def _document(self, name: str, old: Any, new: Any) -> None:
        version = self._mirror.document_versions.get(name, 0)
        data, self._documents[name] = self._checked(self._layout.document(name), version, old, new)
        self._changes.append(Change("document", "", name, data, self._documents[name]))

    def _checked(self, path: str, version: int, old: Any, new: Any) -> tuple[bytes | None, int]:
        """Change a node that is as it was read; its data and version now."""
        data = None if new is None else records.encode(new)
        if old is None:
            self._add("create", path, data or b"")
            return data, 0
        if data is None:
            self._add("delete", path, version=version)
            return data, version
        self._add("set", path, data, version)
        return data, version + 1

    def _subscriptions(self) -> None:
        mirror = self._mirror
        if mirror.subscriptions_changed:
            data = records.encode(sorted(mirror.subscriptions.values(), key=lambda one: one.name))
            self._add("set", self._layout.subscriptions, data, mirror.subscriptions_version)
            self._changes.append(Change("subscriptions", "", "", data, mirror.subscriptions_version + 1))
        elif mirror.publishes:
            self._first.append(Op("check", self._layout.subscriptions, version=mirror.subscriptions_version))

    def _write_heads(self, queues: set[str]) -> None:
        mirror, layout = self._mirror, self._layout
        changed = {change.queue for change in self._changes}
        for queue in sorted(queues):
            version, stored = mirror.heads.get(queue, (-1, Head()))
            fresh = sorted(self._buckets.get(queue, set()).difference(stored.buckets))
            emptied = mirror.emptied.get(queue, [])
            buckets = [*(bucket for bucket in stored.buckets if bucket not in emptied), *fresh]
            tick = mirror.ticks.tick if queue in changed else stored.tick
            head = records.head_of(mirror.lineup.queues.get(queue), tick, buckets)
            if queue not in changed and head == stored:
                continue
            path, data = layout.queue(queue), records.encode(head)
            if queue in mirror.heads:
                self._first.append(Op("set", path, data, version))
            else:
                self._first.append(Op("create", path, data))
                self._first += [Op("create", folder) for folder in layout.queue_nodes(queue)]
            self._first += [Op("create", node) for bucket in fresh for node in layout.bucket_nodes(queue, bucket)]
            self._first += [Op("delete", node) for bucket in emptied for node in layout.bucket_nodes(queue, bucket)]
            self._heads[queue] = (version + 1, head)

    def _finish(self, handle: str, op: str) -> list[Op]:
        ops = self._first + self._ops
        if self._mirror.rang:
            ops.append(Op("set", self._layout.bell))
        room = PACKET - sum(one.size for one in ops) - 2 * PER_OP - len(self._layout.log)
        record = Record(handle, op, self._heads, self._changes)
        told = records.encode(record)
        if len(told) > room:
            record = Record(handle, op, {}, [one for one in self._changes if not one.queue], sorted(self._heads))
            told = records.encode(record)
        room -= len(told)
        if room < 0:
            raise UnitTooLarge(
                f"a step of {PACKET - room:,} bytes with all its nodes is over what ZooKeeper takes ({PACKET:,}).",
                hint="Split it, for put_many with chunk=.",
            )
        for queue, (page, _, _, payloads) in self._pages.items():
            for id_, payload in sorted(payloads.items(), key=lambda one: len(one[1])):
                room -= len(payload) + len(id_) + 20
                if room < 500:
                    del payloads[id_]
            if payloads:
                ops.append(Op("create", self._layout.kept(queue, page), records.encode(payloads)))
                for change in self._changes:
                    if change.kind == "page" and (change.queue, change.key) == (queue, page):
                        change.extra = 1
        ops.append(Op("append", f"{self._layout.log}/c-", records.encode(record)))
        return ops

    # --- afterwards --------------------------------------------------------------------------------------

    def accept(self) -> None:
        """It happened: the mirror keeps its draft, and remembers what is where."""
        mirror = self._mirror
        mirror.accept()
        mirror.heads.update(self._heads)
        for id_, there in self._metas:
            mirror.note_meta(id_, there=there)
            mirror.vanished.discard(id_)
        for change in self._changes:
            if change.kind == "page" and change.data is None:
                mirror.drop_page(change.queue, change.key)
            elif change.kind == "kept":
                mirror.pages[change.queue][change.key].kept = False
            elif change.kind == "subscriptions":
                mirror.subscriptions_version = change.extra
            elif change.kind == "page" and change.key in mirror.pages[change.queue]:
                self._note_rewritten(change.queue, change.key)
        mirror.schedule_versions.update(self._versions)
        mirror.document_versions.update(self._documents)
        for queue, (page, rows, ended, payloads) in self._pages.items():
            mirror.note_page(queue, page, rows, ended, kept=bool(payloads))

    def _note_rewritten(self, queue: str, page: str) -> None:
        mirror = self._mirror
        known = mirror.pages[queue][page]
        known.rows = [seq for seq in known.rows if seq in mirror.history]
        known.ended = [id_ for id_ in known.ended if mirror.page_of.get(id_) == (queue, page) and id_ in mirror.ended]

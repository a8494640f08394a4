"""From a draft to a multi: what a call changed in the mirror, as operations that happen together or not at all.

Every queue that is touched has its head set with a version check, so a draft made on an old view of it is refused. A
claim's node is changed with a version check, and the node of its session is checked, so a stale owner is refused.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import UnitTooLarge
from penstock.queue.drivers.zookeeper import serialization
from penstock.queue.drivers.zookeeper.connection import PACKET, PER_OP, Op
from penstock.queue.drivers.zookeeper.layout import BUCKET, Layout
from penstock.queue.drivers.zookeeper.mirror import Mirror, Page, PageKey
from penstock.queue.drivers.zookeeper.payloads import Payloads
from penstock.queue.drivers.zookeeper.serialization import Change, Head, Record, number_of
from penstock.queue.rules.rows import Body, Claim, ClaimKey, Dead, Hold, Live

SMALL_PAYLOAD = 1024  # bytes; one of no more is in the log, too
MOST_GONE = 1000  # bodies removed by one commit; others go with their page

Pairs = dict[Any, tuple[Any, Any]]


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
        self._sessions: set[str] = set()
        self._queues: set[str] = set(mirror.touched)
        self._heads: dict[str, tuple[int, Head]] = {}
        self._buckets: dict[str, set[int]] = {}
        # What accept() takes over.
        self._bodies: list[Body] = []
        self._gone: list[int] = []
        self._ready_nodes: dict[str, int | None] = {}
        self._claims: dict[ClaimKey, int | None] = {}
        self._schedules: dict[str, int] = {}
        self._documents: dict[str, int] = {}
        self._links: dict[str, int] = {}
        self._waits: dict[str, int] = {}
        self._results: dict[str, int] = {}
        self._guarded: set[str] = set()  # queues whose heads are set although nothing of them changed
        self._subscriptions: int | None = None
        differences = mirror.differences()
        self._work_out(differences)
        self.ops = self._finish(handle, op) if self._ops or self._heads else []

    def _work_out(self, differences: dict[str, Pairs]) -> None:
        """In the order in which a following mirror has to apply them."""
        mirror = self._mirror
        none: Pairs = {}
        entries, history, pages = (differences.get(table, none) for table in ("entries", "history", "pages"))
        fresh = self._write_bodies(entries)
        for key, (old, new) in differences.get("claims", none).items():
            self._write_claim(key, old, new)
        for id_, (old, new) in differences.get("ready", none).items():
            self._write_ready(id_, old, new, fresh)
        for old, new in differences.get("dead", none).values():
            self._write_dead(old, new)
        for scope, (old, new) in differences.get("unique", none).items():
            self._write_hold(scope, old, new)
        if history or pages:
            self._write_pages(pages, history)
        self._remove_bodies(entries, history, pages)
        for name, (old, new) in differences.get("schedules", none).items():
            self._write_schedule(name, old, new)
        for name, (old, new) in differences.get("documents", none).items():
            self._write_document(name, old, new)
        self._write_links(differences.get("links", none))
        self._write_by_id("wait", differences.get("waits", none), mirror.wait_versions, self._waits)
        self._write_by_id("result", differences.get("results", none), mirror.result_versions, self._results)
        self._write_subscriptions("subscriptions" in differences)
        self._write_heads()

    def _add(self, verb: Any, path: str, data: bytes = b"", version: int = -1) -> None:
        self._ops.append(Op(verb, path, data, version))

    # --- entries -----------------------------------------------------------------------------------------

    def _write_bodies(self, entries: Pairs) -> set[str]:
        """Write new bodies. Returns the ids of entries that wait as they were put."""
        state, fresh = self._mirror.state, set()
        for id_, (_, body) in entries.items():
            if body is None or body.number in self._mirror.bodies:
                continue
            waiting = state.ready.get(id_)
            is_fresh = waiting is not None and waiting.body is body and waiting.seq == body.number
            live = waiting if is_fresh and waiting is not None else Live(body, body.number, 0, 0, 0)
            number = number_of(body.number)
            self._buckets.setdefault(body.queue, set()).add(number // BUCKET)
            data, payload = serialization.write_put(live), self._payloads.of(body)
            node = serialization.write_body(data, payload)
            self._add("create", self._layout.body(body.queue, number), node)
            kind = "put" if is_fresh else "body"
            if len(payload) <= SMALL_PAYLOAD:
                # Whoever follows the log and claims the entry need not read it.
                self._changes.append(Change(kind, body.queue, "", node, 1))
            else:
                self._changes.append(Change(kind, body.queue, "", data))
            self._bodies.append(body)
            self._queues.add(body.queue)
            if is_fresh:
                fresh.add(id_)
        return fresh

    def _remove_bodies(self, entries: Pairs, history: Pairs, pages: Pairs) -> None:
        """Remove bodies that neither an entry nor a row that is shown refers to any more."""
        left = [old for old, _ in entries.values() if old is not None]
        left += [old.live.body for old, new in history.values() if old is not None and new is None]
        left += [row.live.body for old, new in pages.values() if new is None and old is not None for row in old.rows]
        for body in {body.number: body for body in left}.values():
            if len(self._gone) < MOST_GONE and body.number in self._mirror.bodies and not self._is_used(body):
                self._add("delete", self._layout.body(body.queue, number_of(body.number)))
                self._changes.append(Change("gone", body.queue, "", None, body.number))
                self._gone.append(body.number)
                self._queues.add(body.queue)

    def _is_used(self, body: Body) -> bool:
        state = self._mirror.state
        current = state.entries.get(body.id)
        if current is not None and current.number == body.number:
            return True
        return any(state.history[seq].live.body.number == body.number for seq in state.rows_of.get(body.id, ()))

    def _write_ready(self, id_: str, old: Live | None, new: Live | None, fresh: set[str]) -> None:
        live = new or old
        if live is None:
            return
        queue, before = live.body.queue, self._mirror.ready_nodes.get(id_)
        if id_ in fresh and before is None:
            return
        number = None if new is None or id_ in fresh else number_of(new.seq)
        if before is not None and before != number:
            self._add("delete", self._layout.ready(old.queue if old is not None else queue, before))
        if new is not None and number is not None:
            data = serialization.write_live(new)
            self._add("set" if before == number else "create", self._layout.ready(queue, number), data)
            self._changes.append(Change("ready", queue, id_, data))
        elif new is None and id_ not in self._mirror.state.holder_of:
            self._changes.append(Change("ready", queue, id_, None))
        self._ready_nodes[id_] = number
        self._queues.add(queue)

    def _write_claim(self, key: ClaimKey, old: Claim | None, new: Claim | None) -> None:
        mirror, path = self._mirror, self._layout.claim(*key)
        for claim in (old, new):
            if claim is not None and claim.session not in mirror.vanished:
                self._sessions.add(claim.session)
        version = mirror.claim_versions.get(key, 0)
        data = None if new is None else serialization.write_claim(new)
        if data is None:
            self._add("delete", path, version=version)
            self._claims[key] = None
        elif old is None:
            self._add("create", path, data)
            self._claims[key] = 0
        else:
            self._add("set", path, data, version)
            self._claims[key] = version + 1
        self._changes.append(Change("claim", key[0], f"{key[1]}~{key[2]}", data, self._claims[key] or 0))
        if not mirror.only_extends:
            self._queues.add(key[0])

    def _write_dead(self, old: Dead | None, new: Dead | None) -> None:
        if old is not None:
            self._add("delete", self._layout.dead(old.live.queue, number_of(old.live.body.number)))
            self._changes.append(Change("dead", old.live.queue, old.live.id, None))
        if new is not None:
            queue, number = new.live.queue, number_of(new.live.body.number)  # as in `entries`
            self._buckets.setdefault(queue, set()).add(number // BUCKET)
            data = serialization.write_dead(new)
            self._add("create", self._layout.dead(queue, number), data)
            self._changes.append(Change("dead", queue, new.live.id, data))
        self._queues.update(letter.live.queue for letter in (old, new) if letter is not None)

    def _write_hold(self, scope: tuple[str, str], old: Hold | None, new: Hold | None) -> None:
        path = self._layout.hold(*scope)
        data = None if new is None else serialization.write_hold(new)
        if data is None:
            self._add("delete", path)
        else:
            self._add("create" if old is None else "set", path, data)
        self._changes.append(Change("hold", *scope, data))
        self._queues.add(scope[0])

    # --- history -----------------------------------------------------------------------------------------

    def _write_pages(self, pages: Pairs, history: Pairs) -> None:
        """New pages, pages that are swept, and pages of which some rows were pruned."""
        mirror = self._mirror
        for key, (old, new) in pages.items():
            if old is None and new is not None:
                self._write_page("create", key, new)
            elif new is None:
                self._remove_page(key)
        hidden = {key for key, (old, new) in pages.items() if old is not None and new is not None and not new.shown}
        pruned = {mirror.page_of[seq] for seq, (_, new) in history.items() if new is None and seq in mirror.page_of}
        for key in sorted(pruned - hidden):
            page = mirror.pages[key]
            rows = tuple(row for row in page.rows if row.seq in mirror.state.history)
            if rows or page.settled:
                mirror.pages[key] = pruned_page = Page(page.at_us, rows, page.settled)
                self._write_page("set", key, pruned_page)
            else:
                del mirror.pages[key]
                self._remove_page(key)

    def _write_page(self, verb: str, key: PageKey, page: Page) -> None:
        data = serialization.write_page(page.at_us, page.rows, page.settled)
        self._add(verb, self._layout.page(*key), data)
        self._changes.append(Change("page", *key, data))
        self._queues.add(key[0])

    def _remove_page(self, key: PageKey) -> None:
        self._add("delete", self._layout.page(*key))
        self._changes.append(Change("page", *key, None))
        self._queues.add(key[0])

    # --- what belongs to no entry ------------------------------------------------------------------------

    def _write_schedule(self, name: str, old: Any, new: Any) -> None:
        version = self._mirror.schedule_versions.get(name, 0)
        data, self._schedules[name] = self._checked(self._layout.schedule(name), version, old, new)
        self._changes.append(Change("schedule", "", name, data, self._schedules[name]))

    def _write_document(self, name: str, old: Any, new: Any) -> None:
        version = self._mirror.document_versions.get(name, 0)
        data, self._documents[name] = self._checked(self._layout.document(name), version, old, new)
        self._changes.append(Change("document", "", name, data, self._documents[name]))

    def _write_links(self, links: Pairs) -> None:
        """Write links; who ends one of their sources on an old view of its queue is refused."""
        self._write_by_id("links", links, self._mirror.link_versions, self._links)
        for id_ in links:
            body = self._mirror.state.entries.get(id_)
            if body is not None:
                self._queues.add(body.queue)
                self._guarded.add(body.queue)

    def _write_by_id(self, kind: str, pairs: Pairs, known: dict[str, int], versions: dict[str, int]) -> None:
        folders = {"links": self._layout.links, "wait": self._layout.waits, "result": self._layout.results}
        for id_, (old, new) in pairs.items():
            data, versions[id_] = self._checked(self._layout.of_id(folders[kind], id_), known.get(id_, 0), old, new)
            self._changes.append(Change(kind, "", id_, data, versions[id_]))

    def _checked(self, path: str, version: int, old: Any, new: Any) -> tuple[bytes | None, int]:
        """Change a node that is as it was read. Returns its data and version now."""
        data = None if new is None else serialization.encode(new)
        if old is None:
            self._add("create", path, data or b"")
            return data, 0
        if data is None:
            self._add("delete", path, version=version)
            return data, version
        self._add("set", path, data, version)
        return data, version + 1

    def _write_subscriptions(self, changed: bool) -> None:
        mirror, path = self._mirror, self._layout.subscriptions
        if changed:
            subscriptions = [subscription for _, subscription in sorted(mirror.state.subscriptions.items())]
            data = serialization.encode(subscriptions)
            self._add("set", path, data, mirror.subscriptions_version)
            self._subscriptions = mirror.subscriptions_version + 1
            self._changes.append(Change("subscriptions", "", "", data, self._subscriptions))
        elif mirror.publishes:
            self._first.append(Op("check", path, version=mirror.subscriptions_version))

    def _write_heads(self) -> None:
        mirror, layout = self._mirror, self._layout
        changed = {change.queue for change in self._changes} | self._guarded
        for queue in sorted(self._queues):
            version, stored = mirror.heads.get(queue, (-1, Head()))
            fresh = sorted(self._buckets.get(queue, set()).difference(stored.buckets))
            emptied = mirror.emptied.get(queue, [])
            buckets = [*(bucket for bucket in stored.buckets if bucket not in emptied), *fresh]
            tick = mirror.ticks.tick if queue in changed else stored.tick
            head = serialization.head_of(mirror.state.ready_queues.queues.get(queue), tick, buckets)
            if queue not in changed and head == stored:
                continue
            path, data = layout.queue(queue), serialization.encode(head)
            if queue in mirror.heads:
                self._first.append(Op("set", path, data, version))
            else:
                self._first.append(Op("create", path, data))
                self._first += [Op("create", folder) for folder in layout.queue_nodes(queue)]
            self._first += [Op("create", node) for bucket in fresh for node in layout.bucket_nodes(queue, bucket)]
            self._heads[queue] = (version + 1, head)
            # A bucket goes last, when what was in it is gone.
            self._ops += [Op("delete", node) for bucket in emptied for node in layout.bucket_nodes(queue, bucket)]

    def _finish(self, handle: str, op: str) -> list[Op]:
        sessions = [Op("check", self._layout.session(session)) for session in sorted(self._sessions)]
        ops = sessions + self._first + self._ops
        if self._mirror.state.rang:
            ops.append(Op("set", self._layout.bell))
        room = PACKET - sum(operation.size for operation in ops) - 2 * PER_OP - len(self._layout.log)
        data = serialization.encode(Record(handle, op, self._heads, self._changes))
        if len(data) > room:
            others = [change for change in self._changes if not change.queue]
            reload = sorted({change.queue for change in self._changes if change.queue} | set(self._heads))
            data = serialization.encode(Record(handle, op, {}, others, reload))
        if len(data) > room:
            size = PACKET - room + len(data)
            raise UnitTooLarge(
                f"a step of {size:,} bytes with all its nodes is over what ZooKeeper takes ({PACKET:,}).",
                hint="Split it, for put_many with chunk=.",
            )
        ops.append(Op("append", f"{self._layout.log}/c-", data))
        return ops

    # --- afterwards --------------------------------------------------------------------------------------

    def accept(self) -> None:
        """It happened: the mirror keeps its draft, and remembers what is where."""
        mirror = self._mirror
        mirror.accept()
        mirror.heads.update(self._heads)
        for body in self._bodies:
            mirror.bodies[body.number] = body
        for number in self._gone:
            del mirror.bodies[number]
        _take_over(mirror.ready_nodes, self._ready_nodes)
        _take_over(mirror.claim_versions, self._claims)
        mirror.schedule_versions.update(self._schedules)
        mirror.document_versions.update(self._documents)
        mirror.link_versions.update(self._links)
        mirror.wait_versions.update(self._waits)
        mirror.result_versions.update(self._results)
        if self._subscriptions is not None:
            mirror.subscriptions_version = self._subscriptions


def _take_over(known: dict[Any, int], changes: dict[Any, int | None]) -> None:
    for key, value in changes.items():
        if value is None:
            known.pop(key, None)
        else:
            known[key] = value

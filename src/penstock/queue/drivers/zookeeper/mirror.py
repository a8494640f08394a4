"""The mirror: one space of ZooKeeper in this process's memory, on which the rules are run.

What a call changes is *drafted*: the call runs on the mirror, the difference is sent as one multi, and when that is
refused the mirror goes back to where it was. Payloads stay in ZooKeeper; here their digests stand for them.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from penstock.clock import Micros
from penstock.queue.drivers.zookeeper import serialization
from penstock.queue.drivers.zookeeper.serialization import Change, Head, Settled
from penstock.queue.protocol import Document, KeptResult, Link, Schedule, Subscription, Wait
from penstock.queue.rules.repeats import STATES
from penstock.queue.rules.rows import Attempt, Body, ClaimKey, Live, Settlement
from penstock.queue.rules.state import State
from penstock.queue.rules.table import Table

CAPACITY = 10_000  # live entries per queue
WAITERS = 3_000  # entries that may wait for one: as many links as one node, and the log's record of it, have room for
FAN_OUT = 250  # links that one commit consumes; the rest follows in further ones
SHOWN = 100  # ended entries per queue that the history shows
_OUTCOMES = {state: outcome for outcome, state in STATES.items()}
PageKey = tuple[str, str]  # queue and name


class Ticks:
    """Sequence numbers: they rise over all that this mirror has seen, and end in the number of the handle."""

    def __init__(self) -> None:
        """Start below all numbers."""
        self.tick = 0
        self.handle = 0

    def __iter__(self) -> Iterator[int]:
        """Endless."""
        return self

    def __next__(self) -> int:
        """The next number."""
        self.tick += 1
        return self.tick << 16 | self.handle


class Page(msgspec.Struct, frozen=True):
    """Attempts of one queue that ended in one commit, and what was settled without one."""

    at_us: Micros  # when that was
    rows: tuple[Attempt, ...]
    settled: tuple[Settled, ...]
    shown: bool = True  # whether its rows are in the history

    @property
    def ends(self) -> int:
        """How many entries ended for good."""
        return sum(row.is_last for row in self.rows)


class Mirror:
    """Everything in one space except payloads, and the draft of the call that is under way."""

    def __init__(self, on_payload: Callable[[bytes, bytes], None]) -> None:
        """Start empty. ``on_payload`` gets digests and payloads that come with followed commits."""
        self._on_payload = on_payload
        self.state = state = State()
        self.ticks = Ticks()
        state.seqs = state.row_seqs = self.ticks
        state.capacity, state.waiters, state.fan_out = CAPACITY, WAITERS, FAN_OUT
        state.keeps_purged = True
        self.pages: Table[PageKey, Page] = Table("pages", state.changes, self._follow_page)
        self.pages_of: defaultdict[str, list[str]] = defaultdict(list)  # by queue, the oldest first
        self.page_of: dict[int, PageKey] = {}  # by row
        # What is stored, and cannot be seen in the state.
        self.heads: dict[str, tuple[int, Head]] = {}  # with their versions
        self.bodies: dict[int, Body] = {}
        self.ready_nodes: dict[str, int] = {}  # numbers of waiting entries that are not as they were put
        self.claim_versions: dict[ClaimKey, int] = {}
        self.schedule_versions: dict[str, int] = {}
        self.document_versions: dict[str, int] = {}  # of their nodes, which those of documents do not follow
        self.link_versions: dict[str, int] = {}
        self.wait_versions: dict[str, int] = {}
        self.result_versions: dict[str, int] = {}
        # By the kind of a change: what belongs to no queue, the versions of its nodes, and its type.
        self._of_space: dict[str, tuple[Table[str, Any], dict[str, int], Any]] = {
            "schedule": (state.schedules, self.schedule_versions, Schedule),
            "document": (state.documents, self.document_versions, Document),
            "links": (state.links, self.link_versions, tuple[Link, ...]),
            "wait": (state.waits, self.wait_versions, Wait),
            "result": (state.results, self.result_versions, KeptResult),
        }
        self.subscriptions_version = 0
        self.vanished: set[str] = set()  # sessions that are gone, and whose claims are not taken back yet
        # Of the draft.
        self.touched: set[str] = set()  # queues whose head may have changed though none of their entries has
        self.publishes = False
        self.only_extends = False
        self.swept: list[PageKey] = []
        self.emptied: dict[str, list[int]] = {}  # buckets to be removed

    # --- the draft -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start to draft."""
        self.state.changes.clear()
        self.state.drafting = True
        self.state.rang = self.publishes = self.only_extends = False
        self.touched = set()
        self.swept = []
        self.emptied = {}

    def finish_draft(self) -> None:
        """Write what ended on new pages. Pages beyond what the history shows leave it."""
        rows: dict[str, list[Attempt]] = {}
        settled: dict[str, list[Settled]] = {}
        state = self.state
        for table, key, before in list(state.changes):
            if before is None and table is state.history and key in state.history:
                rows.setdefault(state.history[key].live.body.queue, []).append(state.history[key])
            elif before is None and table is state.settled and key in state.settled:
                id_, token = key
                queue = state.entries[id_].queue
                settled.setdefault(queue, []).append((id_, token, state.settled[key].outcome))
        for queue in rows | settled:
            name = f"page-{serialization.number_of(next(self.ticks)):012d}"
            ended = tuple(rows.get(queue, ()))
            given_back = tuple(settled.get(queue, ()))
            at = ended[-1].ended_us if ended else state.settled[given_back[-1][:2]].at_us
            self.pages[queue, name] = Page(at, ended, given_back)
            self.push_out(queue)

    def differences(self) -> dict[str, dict[Any, tuple[Any, Any]]]:
        """Old and new value of everything that the call changed, by table and key."""
        before: dict[str, dict[Any, Any]] = {}
        tables: dict[str, Table[Any, Any]] = {}
        for table, key, old in self.state.changes:
            tables[table.name] = table
            before.setdefault(table.name, {}).setdefault(key, old)
        return {
            name: {key: (old, new) for key, old in keys.items() if (new := tables[name].get(key)) is not old}
            for name, keys in before.items()
        }

    def accept(self) -> None:
        """The call happened."""
        self.state.drafting = False
        self.state.changes.clear()

    def reject(self) -> None:
        """The call did not happen: go back to what is stored."""
        changed = {_queue_in(table.name, key, old, table.get(key)) for table, key, old in self.state.changes}
        self.state.drafting = False
        self.state.changes.undo()
        for queue in (changed | self.touched) - {""}:
            self.restore_head(queue)

    # --- following what is stored ------------------------------------------------------------------------

    @contextmanager
    def following(self) -> Iterator[None]:
        """Take over stored values. None of this is a draft, and what is stored is never refused."""
        with self.state.atomic():
            yield

    def restore_head(self, queue: str) -> None:
        """Make a queue what its stored head says."""
        _, head = self.heads.get(queue, (0, Head()))
        known = self.state.ready_queues.queue(queue)
        serialization.restore(known, head)
        self.state.ready_queues.note(known)

    def set_head(self, queue: str, version: int, head: Head) -> None:
        """Follow the head of a queue."""
        self.heads[queue] = (version, head)
        self.ticks.tick = max(self.ticks.tick, head.tick)
        self.restore_head(queue)

    def follow(self, change: Change) -> None:
        """Follow one stored change."""
        state, queue, data = self.state, change.queue, change.data
        match change.kind:
            case "put" if data is not None:
                live = self.read_put(queue, data, with_payload=bool(change.extra))
                self.add_body(live.body)
                state.ready[live.body.id] = live
            case "body" if data is not None:
                self.add_body(self.read_put(queue, data, with_payload=bool(change.extra)).body)
            case "claim":
                self._follow_claim(queue, change)
            case "ready":
                self._follow_ready(change)
            case "dead":
                state.dead.set(change.key, data and serialization.read_dead(data, self.bodies.get))  # type: ignore[arg-type]
            case "hold":
                state.unique.set((queue, change.key), data and serialization.read_hold(data))  # type: ignore[arg-type]
            case "page":
                self.drop_page((queue, change.key))
                if data is not None:
                    self.add_page((queue, change.key), *serialization.read_page(queue, data, self.bodies.get))
                    self.push_out(queue)
            case "gone":
                self._drop_body(change.extra)
            case "subscriptions" if data is not None:
                self.set_subscriptions(data, change.extra)
            case kind if kind in self._of_space:
                table, versions, stored = self._of_space[kind]
                table.set(change.key, None if data is None else serialization.decode(data, type=stored))
                versions[change.key] = change.extra

    def read_put(self, queue: str, data: bytes, *, with_payload: bool) -> Live:
        """The entry as it was put. A payload that comes with it will be asked for soon."""
        if not with_payload:
            return serialization.read_put(queue, data)
        put, payload = serialization.read_body(data)
        live = serialization.read_put(queue, put)
        self._on_payload(live.body.payload, payload)
        return live

    def add_body(self, body: Body) -> None:
        """Follow a body that is stored: the current one of its entry."""
        self.bodies[body.number] = body
        self.state.entries[body.id] = body

    def _drop_body(self, number: int) -> None:
        body = self.bodies.pop(number, None)
        if body is not None and self.state.entries.get(body.id) is body:
            del self.state.entries[body.id]

    def _follow_claim(self, queue: str, change: Change) -> None:
        state = self.state
        claim_id, _, part = change.key.rpartition("~")
        key = (queue, claim_id, int(part))
        if change.data is None:
            state.claims.set(key, None)
            self.claim_versions.pop(key, None)
            return
        claim = serialization.read_claim(queue, claim_id, change.data, self.bodies.get)
        for id_ in claim.held:
            self.set_ready(id_, None)
        state.claims[key] = claim
        self.claim_versions[key] = change.extra

    def _follow_ready(self, change: Change) -> None:
        live = None if change.data is None else serialization.read_live(change.data, self.bodies.get)
        self.set_ready(change.key, live, is_stored=True)

    def set_ready(self, id_: str, live: Live | None, *, is_stored: bool = False) -> None:
        """Follow a waiting entry; ``is_stored`` says that it has a node, because it has changed since it was put."""
        self.state.ready.set(id_, live)
        if live is not None and is_stored:
            self.ready_nodes[id_] = serialization.number_of(live.seq)
        else:
            self.ready_nodes.pop(id_, None)

    def set_subscriptions(self, data: bytes, version: int) -> None:
        """Follow the list of subscriptions."""
        stored = serialization.decode(data, type=list[Subscription]) if data else []
        table = self.state.subscriptions
        for name in set(table) - {subscription.name for subscription in stored}:
            del table[name]
        for subscription in stored:
            table[subscription.name] = subscription
        self.subscriptions_version = version

    # --- pages -------------------------------------------------------------------------------------------

    def _follow_page(self, key: PageKey, old: Page | None, new: Page | None) -> None:
        queue, name = key
        if old is None and new is not None:
            insort(self.pages_of[queue], name)
        elif new is None and old is not None:
            self.pages_of[queue].remove(name)
            if not self.pages_of[queue]:
                del self.pages_of[queue]
        for row in old.rows if old is not None else ():
            self.page_of.pop(row.seq, None)
        for row in new.rows if new is not None else ():
            self.page_of[row.seq] = key

    def add_page(self, key: PageKey, at_us: Micros, rows: Iterable[Attempt], settled: Iterable[Settled]) -> None:
        """Follow a stored page."""
        state = self.state
        page = self.pages[key] = Page(at_us, tuple(rows), tuple(settled))
        for row in page.rows:
            state.history[row.seq] = row
            body = row.live.body
            if body.number in self.bodies and body.id not in state.entries:
                state.entries[body.id] = body
        for id_, token, outcome in page.settled:
            state.settled[id_, token] = Settlement(outcome, at_us)

    def push_out(self, queue: str) -> None:
        """Let the pages leave the history that newer ones push out of what it shows."""
        ends = 0
        for name in reversed(self.pages_of.get(queue, ())):
            page = self.pages[queue, name]
            if not page.shown:
                break
            if ends >= SHOWN:
                self._hide((queue, name), page)
            ends += page.ends

    def _hide(self, key: PageKey, page: Page) -> None:
        state = self.state
        self.pages[key] = msgspec.structs.replace(page, shown=False)
        for row in page.rows:
            state.history.set(row.seq, None)
            if row.token is not None:
                state.settled[row.live.body.id, row.token] = Settlement(_OUTCOMES[row.state], row.ended_us)
            end = state.forgotten.get(row.live.body.id)
            if row.is_last and (end is None or end.seq < row.seq):
                state.forgotten[row.live.body.id] = row
        for row in page.rows:
            state.drop_unused(row.live.body.id)

    def drop_page(self, key: PageKey) -> None:
        """Forget a page that is gone, or about to be read again."""
        page = self.pages.get(key)
        if page is None:
            return
        state = self.state
        del self.pages[key]
        for id_, token, _ in page.settled:
            state.settled.set((id_, token), None)
        for row in page.rows:
            id_ = row.live.body.id
            state.history.set(row.seq, None)
            if row.token is not None:
                state.settled.set((id_, row.token), None)
            end = state.forgotten.get(id_)
            if end is not None and end.seq == row.seq:
                del state.forgotten[id_]
        for row in page.rows:
            state.drop_unused(row.live.body.id)

    def forget_queue(self, queue: str) -> None:
        """Forget all of a queue, to read it again."""
        state = self.state
        known = state.ready_queues.queue(queue)
        for key in list(known.claims):
            del state.claims[key]
            self.claim_versions.pop(key, None)
        for id_ in list(known.waiting):
            self.set_ready(id_, None)
        for id_ in [id_ for id_, letter in state.dead.items() if letter.live.queue == queue]:
            del state.dead[id_]
        for scope in [scope for scope in state.unique if scope[0] == queue]:
            del state.unique[scope]
        for name in list(self.pages_of.get(queue, ())):
            self.drop_page((queue, name))
        for number in [number for number, body in self.bodies.items() if body.queue == queue]:
            self._drop_body(number)
        for id_ in [id_ for id_, body in state.entries.items() if body.queue == queue]:
            del state.entries[id_]
        self.heads.pop(queue, None)
        self.restore_head(queue)


def _queue_in(table: str, key: Any, old: Any, new: Any) -> str:
    """The queue whose head may have been changed with a value."""
    if table in ("claims", "unique", "pages"):
        return str(key[0])
    value = new if old is None else old
    if value is None:
        return ""
    if table == "ready":
        return str(value.queue)
    return str(value.live.queue) if table in ("dead", "history") else ""

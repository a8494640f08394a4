"""The mirror: one space of ZooKeeper in this process's memory, on which the contract's rules are run.

It is the memory store's state, so both stores have the same rules. What a call changes is *drafted*: the call runs on
the mirror, the difference is sent as one multi, and when that is refused the mirror goes back to where it was.
Payloads stay in ZooKeeper; here their digests stand for them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import msgspec

from penstock.clock import Micros
from penstock.errors import StoreFull
from penstock.queue.entry import FINAL, HistoryRow
from penstock.queue.store import Document, Schedule, Subscription
from penstock.queue.stores.memory.lanes import Item
from penstock.queue.stores.memory.lineup import Lineup
from penstock.queue.stores.memory.state import Hold, MemoryState, Table
from penstock.queue.stores.zookeeper import records
from penstock.queue.stores.zookeeper.records import Change, Head

CAP = 10_000  # live entries per queue
SHOWN = 100  # ended entries per queue that the history shows


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


class LiveTable(Table[str, Item]):
    """The live entries; a queue takes no more than the cap."""

    lineup: Lineup

    def __init__(self, follow: Any) -> None:
        """Start empty."""
        super().__init__(follow)
        self.cap = CAP
        self._fresh: Counter[str] = Counter()

    def __setitem__(self, id_: str, item: Item) -> None:
        """Set, unless it is one too many."""
        if id_ not in self:
            queue = self.lineup.queues.get(item.queue)
            if (0 if queue is None else len(queue.items)) + self._fresh[item.queue] >= self.cap:
                raise StoreFull(
                    f"queue {item.queue} holds {self.cap:,} live entries, as many as one queue may in ZooKeeper.",
                    hint="Let workers catch up, spread over several queues, or use another store for a backlog.",
                )
            self._fresh[item.queue] += 1
        super().__setitem__(id_, item)

    def keep(self) -> None:
        """Make the changes final."""
        self._fresh.clear()
        super().keep()

    def undo(self) -> None:
        """Take the changes back."""
        self._fresh.clear()
        super().undo()


class Page(msgspec.Struct):
    """What the mirror knows of one page of the history: rows and remembered ids of one commit in one queue."""

    rows: list[int]
    ended: list[str]
    finals: int
    newest_us: Micros
    kept: bool  # whether there are payloads to it
    shown: bool = True


class Mirror(MemoryState):
    """Everything in one space except payloads, and the draft of the call that is under way."""

    def __init__(self) -> None:
        """Start empty."""
        super().__init__()
        self.ticks = Ticks()
        self.seqs = self._row_seqs = self.ticks
        self.live: Table[str, Item] = LiveTable(self._follow_live)
        self.ended: Table[str, Item] = Table(lambda *change: self._note("ended", *change))
        self.schedules: Table[str, Schedule] = Table(lambda *change: self._note("schedules", *change))
        self.documents: Table[str, Document] = Table(lambda *change: self._note("documents", *change))
        self._tables = (
            self.live, self.dead, self.ended, self.history, self.holds, self.schedules, self.documents,
        )  # fmt: skip
        self.live.lineup = self.lineup
        self.heads: dict[str, tuple[int, Head]] = {}  # as stored, with their versions
        self.schedule_versions: dict[str, int] = {}
        self.document_versions: dict[str, int] = {}  # of their nodes, which those of documents do not follow
        self.subscriptions_version = 0
        self.with_meta: set[str] = set()  # live entries that have a meta node
        self.pages: defaultdict[str, dict[str, Page]] = defaultdict(dict)  # by queue, the oldest first
        self.page_of: dict[str, tuple[str, str]] = {}  # by ended id
        self.row_page: dict[int, tuple[str, str]] = {}  # by row
        self.vanished: set[str] = set()  # leased entries whose locks went with their session
        self.draft: dict[tuple[str, Any], Any] | None = None
        self.touched: set[str] = set()  # queues whose head may have changed though none of their entries has
        self.publishes = False
        self.swept: list[tuple[str, str]] = []  # pages to be removed
        self.emptied: dict[str, list[int]] = {}  # buckets to be removed
        self.rang = False
        self._subscriptions_before: dict[str, Subscription] = {}

    # --- the draft -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start to draft."""
        self.draft = {}
        self.touched = set()
        self.swept = []
        self.emptied = {}
        self.publishes = self.rang = False
        self._subscriptions_before = dict(self.subscriptions)

    @property
    def subscriptions_changed(self) -> bool:
        """Whether the call made or removed a subscription."""
        return self.subscriptions != self._subscriptions_before

    def differences(self) -> dict[tuple[str, Any], tuple[Any, Any]]:
        """Old and new value of everything that the call changed, by table and key."""
        return {
            (table, key): (old, new)
            for (table, key), old in (self.draft or {}).items()
            if (new := getattr(self, table).get(key)) is not old
        }

    def accept(self) -> None:
        """The call happened."""
        self.draft = None

    def reject(self) -> None:
        """The call did not happen: go back to what is stored."""
        draft, self.draft = self.draft or {}, None
        queues = {_queue_in(name, key, old, getattr(self, name).get(key)) for (name, key), old in draft.items()}
        for (name, key), old in draft.items():
            self._set(getattr(self, name), key, old)
        self.subscriptions = self._subscriptions_before
        for queue in (queues | self.touched) - {""}:
            self.restore_head(queue)

    def _set(self, table: Table[Any, Any], key: Any, value: Any) -> None:
        if value is None:
            if key in table:
                del table[key]
        else:
            # What is stored already is never one too many.
            Table.__setitem__(table, key, value)
        table.keep()

    def _note(self, table: str, key: Any, old: Any, new: Any) -> None:
        if self.draft is not None:
            self.draft.setdefault((table, key), old)

    def _follow_live(self, id_: str, old: Item | None, new: Item | None) -> None:
        self._note("live", id_, old, new)
        super()._follow_live(id_, old, new)

    def _follow_dead(self, id_: str, old: Item | None, new: Item | None) -> None:
        self._note("dead", id_, old, new)
        super()._follow_dead(id_, old, new)

    def _follow_history(self, seq: int, old: HistoryRow | None, new: HistoryRow | None) -> None:
        self._note("history", seq, old, new)
        super()._follow_history(seq, old, new)

    def _follow_hold(self, scope: tuple[str, str], old: Hold | None, new: Hold | None) -> None:
        self._note("holds", scope, old, new)
        super()._follow_hold(scope, old, new)

    def ring(self) -> None:
        """Remember that others have to be woken; the store rings when it is stored."""
        self.rang = True

    # --- following what is stored ------------------------------------------------------------------------

    @contextmanager
    def following(self) -> Iterator[None]:
        """Take over stored values: nothing of this is a draft."""
        draft, self.draft = self.draft, None
        try:
            yield
        finally:
            self.draft = draft

    def restore_head(self, queue: str) -> None:
        """Make a queue what its stored head says."""
        _, head = self.heads.get(queue, (0, Head()))
        known = self.lineup.queue(queue)
        records.restore(known, head)
        self.lineup.note(known)

    def set_head(self, queue: str, version: int, head: Head) -> None:
        """Follow the head of a queue."""
        self.heads[queue] = (version, head)
        self.ticks.tick = max(self.ticks.tick, head.tick)
        self.restore_head(queue)

    def follow(self, change: Change) -> None:
        """Follow one stored change."""
        data = change.data
        match change.kind:
            case "live":
                self._set(self.live, change.key, None if data is None else records.read_item(data))
                self.note_meta(change.key, there=data is not None and bool(change.extra))
                if data is not None:
                    self._set(self.ended, change.key, None)
                self.vanished.discard(change.key)
            case "dead":
                self._set(self.dead, change.key, None if data is None else records.read_item(data))
            case "hold":
                self._set(self.holds, (change.queue, change.key), None if data is None else records.read_hold(data))
            case "page":
                self.drop_page(change.queue, change.key)
                if data is not None:
                    self.take_page(change.queue, change.key, *records.read_page(data), kept=bool(change.extra))
            case "kept":
                if change.key in self.pages[change.queue]:
                    self.pages[change.queue][change.key].kept = False
            case "schedule":
                self._set(self.schedules, change.key, None if data is None else records.decode(data, type=Schedule))
                self.schedule_versions[change.key] = change.extra
            case "document":
                self._set(self.documents, change.key, None if data is None else records.decode(data, type=Document))
                self.document_versions[change.key] = change.extra
            case "subscriptions" if data is not None:
                self.set_subscriptions(data, change.extra)

    def note_meta(self, id_: str, *, there: bool) -> None:
        """Remember whether an entry has a meta node."""
        if there:
            self.with_meta.add(id_)
        else:
            self.with_meta.discard(id_)

    def set_subscriptions(self, data: bytes, version: int) -> None:
        """Follow the list of subscriptions."""
        known = records.decode(data, type=list[Subscription]) if data else []
        self.subscriptions = {subscription.name: subscription for subscription in known}
        self.subscriptions_version = version

    # --- pages -------------------------------------------------------------------------------------------

    def take_page(self, queue: str, page: str, rows: list[HistoryRow], ended: list[Item], *, kept: bool) -> None:
        """Follow a stored page; a live entry is no ended one, and of two ends of an id the later counts."""
        for row in rows:
            if row.seq not in self.history:
                self._set(self.history, row.seq, row)
        for item in ended:
            if item.id not in self.live and page >= self.page_of.get(item.id, ("", ""))[1]:
                self._set(self.ended, item.id, item)
        self.note_page(queue, page, rows, ended, kept=kept)

    def note_page(self, queue: str, page: str, rows: list[HistoryRow], ended: list[Item], *, kept: bool) -> None:
        """Remember what is on which page, and forget rows beyond those that are shown."""
        finals = sum(row.state in FINAL for row in rows)
        newest = max((row.ended_us for row in rows), default=0)
        pages = self.pages[queue]
        pages[page] = Page([row.seq for row in rows], [item.id for item in ended], finals, newest, kept)
        if len(pages) > 1 and page < list(islice(reversed(pages), 2))[1]:
            self.pages[queue] = pages = dict(sorted(pages.items()))
        for item in ended:
            if page >= self.page_of.get(item.id, ("", ""))[1]:
                self.page_of[item.id] = (queue, page)
        for row in rows:
            self.row_page[row.seq] = (queue, page)
        for old in self.pushed_out(queue):
            pages[old].shown = False
            for seq in pages[old].rows:
                self._set(self.history, seq, None)

    def pushed_out(self, queue: str, fresh: int = 0) -> list[str]:
        """The pages shown so far that newer ones, and so many ends to come, push out of what the history shows."""
        pages = self.pages[queue]
        found = []
        for page in reversed(pages):
            if not pages[page].shown:
                break
            if fresh >= SHOWN:
                found.append(page)
            fresh += pages[page].finals
        return found

    def drop_page(self, queue: str, page: str) -> None:
        """Forget a page that is gone."""
        known = self.pages[queue].pop(page, None)
        if known is None:
            return
        for seq in known.rows:
            self.row_page.pop(seq, None)
            self._set(self.history, seq, None)
        for id_ in known.ended:
            if self.page_of.get(id_) == (queue, page):
                del self.page_of[id_]
                self._set(self.ended, id_, None)

    def forget_queue(self, queue: str) -> None:
        """Forget all of a queue, to read it anew."""
        known = self.lineup.queues.get(queue)
        for id_ in list(known.items) if known is not None else ():
            self._set(self.live, id_, None)
            self.note_meta(id_, there=False)
            self.vanished.discard(id_)
        for id_ in [id_ for id_, item in self.dead.items() if item.queue == queue]:
            self._set(self.dead, id_, None)
        for scope in [scope for scope in self.holds if scope[0] == queue]:
            self._set(self.holds, scope, None)
        for page in list(self.pages[queue]):
            self.drop_page(queue, page)
        self.heads.pop(queue, None)
        self.restore_head(queue)


def _queue_in(table: str, key: Any, old: Any, new: Any) -> str:
    if table == "holds":
        return str(key[0])
    if table in ("live", "dead", "history", "ended"):
        return str((old or new).queue) if (old or new) is not None else ""
    return ""

"""The state that the handles of one memory store share: tables that change atomically, and the way out of them.

The tables are the truth and the line-up of queues follows them. Every change runs inside :meth:`MemoryState.atomic`:
all of it is kept when the block ends well, none of it when it does not.
"""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from penstock.clock import Micros
from penstock.queue.entry import FINAL, AttemptState, Entry, HistoryRow
from penstock.queue.store import Document, Schedule, Subscription
from penstock.queue.stores.memory.lanes import Item, Ranking
from penstock.queue.stores.memory.lineup import Lineup

K = TypeVar("K")
V = TypeVar("V")

_fields = attrgetter(*Entry.__struct_fields__)


def handed_out(item: Item) -> Entry[Any]:
    """The entry as callers see it: a copy, so that nobody changes the store by changing what was read."""
    entry: Entry[Any] = Entry(*_fields(item))
    entry.labels = dict(item.labels)
    entry.headers = dict(item.headers)
    return entry


class Hold(msgspec.Struct, frozen=True):
    """Who holds a unique id, and until when if that is a matter of time."""

    id: str
    until_us: Micros | None = None


class Table(dict[K, V], Generic[K, V]):
    """A dict whose changes can be taken back until they are kept; keeping them tells whoever follows it."""

    def __init__(self, follow: Callable[[K, V | None, V | None], None] | None = None) -> None:
        """Start empty; ``follow`` is told key, old and new value of each kept change."""
        super().__init__()
        self._follow = follow
        self._was: dict[K, V | None] = {}

    def __setitem__(self, key: K, value: V) -> None:
        """Set, and remember what was there."""
        self._was.setdefault(key, self.get(key))
        super().__setitem__(key, value)

    def __delitem__(self, key: K) -> None:
        """Delete, and remember what was there."""
        self._was.setdefault(key, self.get(key))
        super().__delitem__(key)

    def keep(self) -> None:
        """Make the changes final."""
        if self._was:
            was, self._was = self._was, {}
            if self._follow is not None:
                for key, old in was.items():
                    self._follow(key, old, self.get(key))

    def undo(self) -> None:
        """Take the changes back."""
        was, self._was = self._was, {}
        for key, old in was.items():
            if old is None:
                self.pop(key, None)
            else:
                super().__setitem__(key, old)


class MemoryState:
    """The tables and the doorbell. Whoever uses them holds ``bell``."""

    def __init__(self) -> None:
        """Start empty."""
        self.handles = 0
        self.bell = threading.Condition(threading.RLock())
        self.rings = 0
        self.lineup = Lineup()
        self.live: Table[str, Item] = Table(self._follow_live)
        self.dead: Table[str, Item] = Table(self._follow_dead)
        self.ended: Table[str, Item] = Table()  # the last end of each id, for as long as its history row is kept
        self.history: Table[int, HistoryRow] = Table(self._follow_history)
        self.rows_of: defaultdict[str, list[int]] = defaultdict(list)  # keys of the history, by entry
        self.holds: Table[tuple[str, str], Hold] = Table(self._follow_hold)
        self.period_ends: Ranking[tuple[str, str]] = Ranking()  # of holds
        self.schedules: Table[str, Schedule] = Table()
        self.documents: Table[str, Document] = Table()
        self.subscriptions: dict[str, Subscription] = {}
        self.nodes: dict[str, Micros] = {}
        self.latest: Micros = 0  # time of the last claim
        self.seqs: Iterator[int] = itertools.count(1)
        self._row_seqs: Iterator[int] = itertools.count(1)
        self._tables: tuple[Table[Any, Any], ...] = (
            self.live, self.dead, self.ended, self.history, self.holds, self.schedules, self.documents,
        )  # fmt: skip

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Keep the changes made inside, or none of them."""
        try:
            yield
        except BaseException:
            for table in self._tables:
                table.undo()
            raise
        for table in self._tables:
            table.keep()

    def ring(self) -> None:
        """Wake all who wait for work."""
        self.rings += 1
        self.bell.notify_all()

    def _follow_live(self, id_: str, old: Item | None, new: Item | None) -> None:
        if old is not None and new is not None and old.queue != new.queue:
            # A step ended it and put another one under its id.
            self._follow_live(id_, old, None)
            old = None
        item = new or old
        if item is None:
            return
        queue = self.lineup.change(item.queue, id_, old, new)
        waits = new is not None and new.lease is None
        opens_queue = new is None and queue.narrow
        # Until a suspect is out of the way, workers that hold something get nothing.
        frees_others = old is not None and old.lease is None and old.suspect
        if waits or opens_queue or frees_others:
            self.ring()

    def _follow_dead(self, _: str, old: Item | None, new: Item | None) -> None:
        for item, by in ((old, -1), (new, 1)):
            if item is not None:
                queue = self.lineup.queue(item.queue)
                queue.dead += by
                self.lineup.note(queue)

    def _follow_history(self, seq: int, old: HistoryRow | None, new: HistoryRow | None) -> None:
        if new is not None:
            self.rows_of[new.id].append(seq)
        elif old is not None:
            self.rows_of[old.id].remove(seq)
            if not self.rows_of[old.id]:
                del self.rows_of[old.id]

    def _follow_hold(self, scope: tuple[str, str], _: Hold | None, new: Hold | None) -> None:
        self.period_ends.set(scope, (new.until_us,) if new is not None and new.until_us is not None else None)

    # --- what several calls do to an entry; all inside atomic() --------------------------------------

    def wait(self, item: Item, **changes: Any) -> None:
        """Let an entry wait again."""
        self.live[item.id] = replace(item, state="waiting", lease=None, **changes)

    def finish(
        self,
        item: Item,
        state: Literal["done", "dead", "cancelled", "expired"],
        now: Micros,
        *,
        error: str | None = None,
        started_us: Micros | None = None,
    ) -> None:
        """End an entry: the one way out of the live ones."""
        self.record(item, state, now, error=error, started_us=started_us)
        last_error = item.error if error is None else error
        ended = replace(item, state=state, lease=None, ended_us=now, error=last_error, suspect=False)
        del self.live[item.id]
        self.ended[item.id] = ended
        if state == "dead":
            self.dead[item.id] = ended
        if item.mode != "period":
            self.let_go(item)

    def record(
        self, item: Item, state: AttemptState, now: Micros, *, error: str | None, started_us: Micros | None = None
    ) -> None:
        """Write the row of the attempt that ends, or of an entry that ends with nobody working on it."""
        lease = item.lease
        if lease is not None and started_us is None:
            started_us = lease.claimed_us
        self.add_row(HistoryRow(
            seq=0, id=item.id, queue=item.queue, generation=item.generation,
            attempt=item.attempt + 1 if lease is None else item.attempt,
            state=state, owner=None if lease is None else lease.owner,
            created_us=item.created_us, due_us=item.due_us, started_us=started_us, ended_us=now, error=error,
            labels=item.labels, headers=item.headers, codec=item.codec, type=item.type,
            payload=item.payload if state in FINAL and state != "dead" else None,
        ))  # fmt: skip

    def add_row(self, row: HistoryRow) -> None:
        """Write a row of the history under the next number."""
        row.seq = next(self._row_seqs)
        self.history[row.seq] = row

    def holder(self, queue: str, key: str, now: Micros) -> Hold | None:
        """Who holds a unique id now."""
        hold = self.holds.get((queue, key))
        return None if hold is None or (hold.until_us is not None and hold.until_us <= now) else hold

    def hold(self, item: Item, now: Micros) -> None:
        """Let an entry take its unique id, if it has one, which is free."""
        if item.unique is not None:
            until = now + item.period_us if item.mode == "period" else None
            self.holds[item.queue, item.unique] = Hold(item.id, until)

    def let_go(self, item: Item) -> None:
        """Let an entry give up its unique id, if it still has it."""
        if item.unique is not None:
            scope = (item.queue, item.unique)
            if scope in self.holds and self.holds[scope].id == item.id:
                del self.holds[scope]

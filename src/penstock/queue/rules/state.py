"""The collections of one space, and the indexes that follow them.

Every change runs inside :meth:`State.atomic`: all of it stays when the block ends well, none of it when it does not.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from types import TracebackType

from penstock.clock import Micros
from penstock.errors import StoreFull
from penstock.queue.entry import HistoryRow, Lease
from penstock.queue.protocol import Document, KeptResult, Link, Schedule, Subscription, Wait
from penstock.queue.rules.ranking import Ranking
from penstock.queue.rules.ready_queues import ReadyQueues
from penstock.queue.rules.rows import Attempt, Body, Claim, ClaimKey, Dead, Hold, Live, Settlement
from penstock.queue.rules.table import Changes, Table


class State:
    """Everything in one space. Whoever uses it sees to it that nobody else does meanwhile."""

    def __init__(self) -> None:
        """Start empty."""
        self.changes = changes = Changes()
        # Entries: the current body of every id that is known.
        self.entries: Table[str, Body] = Table("entries", changes, self._follow_entry)
        # Ready: who waits, by id. Claims: who is held.
        self.ready: Table[str, Live] = Table("ready", changes, self._follow_ready)
        self.claims: Table[ClaimKey, Claim] = Table("claims", changes, self._follow_claim)
        # History: attempts that ended. Dead letters are kept apart from it, whatever happens to it.
        self.history: Table[int, Attempt] = Table("history", changes, self._follow_history)
        self.dead: Table[str, Dead] = Table("dead", changes, self._follow_dead)
        # Settled: by id and token, what left no row in the history, or whose row is gone.
        self.settled: Table[tuple[str, str], Settlement] = Table("settled", changes)
        # Forgotten: the ends of ids whose bodies are gone, where a store keeps no full history.
        self.forgotten: Table[str, Attempt] = Table("forgotten", changes)
        self.unique: Table[tuple[str, str], Hold] = Table("unique", changes, self._follow_unique)
        # Links by their sources, and what the entries that wait need and have counted.
        self.links: Table[str, tuple[Link, ...]] = Table("links", changes, self._follow_links)
        self.waits: Table[str, Wait] = Table("waits", changes)
        self.results: Table[str, KeptResult] = Table("results", changes)
        # Cascaded: queue and reason of what was cancelled because of others, until it is announced.
        self.cascaded: Table[str, tuple[str, str]] = Table("cascaded", changes)
        self.schedules: Table[str, Schedule] = Table("schedules", changes)
        self.documents: Table[str, Document] = Table("documents", changes)
        self.subscriptions: Table[str, Subscription] = Table("subscriptions", changes)
        self.nodes: dict[str, Micros] = {}
        # Indexes.
        self.ready_queues = ReadyQueues()
        self.holder_of: dict[str, ClaimKey] = {}  # who holds an entry
        self.rows_of: defaultdict[str, list[int]] = defaultdict(list)  # keys of the history, by entry
        self.labelled: defaultdict[tuple[str, str], set[str]] = defaultdict(set)  # ids by label
        self.postponed: dict[str, None] = {}  # keys of links whose sources have ended
        self.period_ends: Ranking[tuple[str, str]] = Ranking()  # of unique ids
        self.seqs: Iterator[int] = itertools.count(1)
        self.row_seqs: Iterator[int] = itertools.count(1)
        self.latest: Micros = 0  # time of the last claim
        self.rang = False  # something may have become claimable
        self.capacity: int | None = None  # live entries per queue
        self.fan_out: int | None = None  # links that one step consumes
        self.waiters: int | None = None  # entries that may wait for one
        self.session = ""  # to which claims made here are bound
        self.keeps_purged = False  # bodies are never rewritten: readers do not see those of purged dead letters
        self.drafting = False  # what is changed may still be undone as a whole
        self._atomic = _Atomic(self)

    def atomic(self) -> _Atomic:
        """Keep the changes made inside, or none of them; may be nested."""
        return self._atomic

    # --- looking up --------------------------------------------------------------------------------------

    def live(self, id_: str) -> tuple[Live, Claim | None] | None:
        """A live entry, and the claim that holds it."""
        waiting = self.ready.get(id_)
        if waiting is not None:
            return waiting, None
        key = self.holder_of.get(id_)
        if key is None:
            return None
        claim = self.claims[key]
        return claim.held[id_], claim

    def held(self, lease: Lease) -> tuple[Live, ClaimKey] | None:
        """The entry of a lease, if that is the current one. The token decides, never the clock."""
        key = self.holder_of.get(lease.entry)
        if key is None:
            return None
        claim = self.claims[key]
        live = claim.held[lease.entry]
        return (live, key) if claim.token(live) == lease.token else None

    def last_end(self, id_: str) -> Attempt | None:
        """How an entry ended the last time."""
        rows = (self.history[seq] for seq in reversed(self.rows_of.get(id_, ())))
        return next((row for row in rows if row.is_last), None) or self.forgotten.get(id_)

    def shown(self, row: Attempt) -> HistoryRow:
        """A row of the history as users see it."""
        shown = row.history()
        if self.keeps_purged and self.is_purged(row.live.id):
            shown.payload = None
        return shown

    def is_purged(self, id_: str) -> bool:
        """Whether an entry's dead letter was removed for good: nobody may see any more what it was."""
        end = self.last_end(id_)
        return end is not None and end.state == "dead" and id_ not in self.dead and self.live(id_) is None

    def known(self, id_: str) -> Body | None:
        """What was put under an id, live or ended."""
        body = self.entries.get(id_)
        if body is not None:
            return body
        end = self.forgotten.get(id_)
        return None if end is None else end.live.body

    def holder(self, queue: str, key: str, now: Micros) -> Hold | None:
        """Who holds a unique id now."""
        hold = self.unique.get((queue, key))
        return None if hold is None or (hold.until_us is not None and hold.until_us <= now) else hold

    # --- what several calls do; all inside atomic() ----------------------------------------------------

    def add_ready(self, live: Live) -> None:
        """Let one more entry live."""
        if self.capacity is not None:
            queue = self.ready_queues.queues.get(live.body.queue)
            if queue is not None and queue.live >= self.capacity:
                raise StoreFull(
                    f"queue {queue.name} holds {self.capacity:,} live entries, as many as one queue may here.",
                    hint="Let workers catch up, spread over several queues, or use another store for a backlog.",
                )
        self.ready[live.body.id] = live

    def hold_unique(self, body: Body, now: Micros) -> None:
        """Let an entry take its unique id, if it has one, which is free."""
        if body.unique is not None:
            until = now + body.period_us if body.unique_mode == "period" else None
            self.unique[body.queue, body.unique] = Hold(body.id, until)

    def release_unique(self, body: Body) -> None:
        """Let an entry give up its unique id, if it still has it."""
        if body.unique is not None:
            scope = (body.queue, body.unique)
            if scope in self.unique and self.unique[scope].id == body.id:
                del self.unique[scope]

    def drop_unused(self, id_: str) -> None:
        """Forget what was put under an id when nothing refers to it any more."""
        body = self.entries.get(id_)
        if body is None or id_ in self.ready or id_ in self.holder_of or id_ in self.dead or id_ in self.rows_of:
            return
        hold = None if body.unique is None else self.unique.get((body.queue, body.unique))
        if hold is None or hold.id != id_:
            del self.entries[id_]
            self.drop_wait(id_)

    def drop_wait(self, id_: str) -> None:
        """Forget what a forgotten entry needed, unless entries still have links to it."""
        wait = self.waits.get(id_)
        if wait is not None and not wait.needs and id_ not in self.entries:
            del self.waits[id_]

    def take_cascaded(self) -> list[tuple[str, str, str]]:
        """Id, queue and reason of what was cancelled because of others since the last call."""
        if not self.cascaded:
            return []
        cascaded = [(id_, *cause) for id_, cause in self.cascaded.items()]
        self.cascaded.clear()
        return cascaded

    # --- indexes -----------------------------------------------------------------------------------------

    def _follow_entry(self, id_: str, old: Body | None, new: Body | None) -> None:
        if old is not None and old.labels:
            for label in old.labels.items():
                self.labelled[label].discard(id_)
                if not self.labelled[label]:
                    del self.labelled[label]
        if new is not None and new.labels:
            for label in new.labels.items():
                self.labelled[label].add(id_)

    def _follow_ready(self, _: str, old: Live | None, new: Live | None) -> None:
        self.ready_queues.follow_ready(old, new)
        # Until a suspect is out of the way, workers that hold something get nothing.
        if new is not None or (old is not None and old.suspect):
            self.rang = True

    def _follow_claim(self, key: ClaimKey, old: Claim | None, new: Claim | None) -> None:
        before = {} if old is None else old.held
        after = {} if new is None else new.held
        if before is not after:
            for id_ in before:
                if id_ not in after and self.holder_of.get(id_) == key:
                    del self.holder_of[id_]
            for id_ in after:
                self.holder_of[id_] = key
        queue = self.ready_queues.follow_claim(key, old, new)
        if queue.narrow and len(after) < len(before):
            self.rang = True

    def _follow_dead(self, _: str, old: Dead | None, new: Dead | None) -> None:
        for letter, by in ((old, -1), (new, 1)):
            if letter is not None:
                queue = self.ready_queues.queue(letter.live.body.queue)
                queue.dead += by
                self.ready_queues.note(queue)

    def _follow_history(self, seq: int, old: Attempt | None, new: Attempt | None) -> None:
        if old is not None:
            rows = self.rows_of[old.live.body.id]
            rows.remove(seq)
            if not rows:
                del self.rows_of[old.live.body.id]
        if new is not None:
            rows = self.rows_of[new.live.body.id]
            rows.append(seq)
            if len(rows) > 1 and rows[-2] > seq:
                rows.sort()

    def _follow_links(self, key: str, _: tuple[Link, ...] | None, new: tuple[Link, ...] | None) -> None:
        if is_postponed(key):
            if new is None:
                self.postponed.pop(key, None)
            else:
                self.postponed[key] = None

    def _follow_unique(self, scope: tuple[str, str], _: Hold | None, new: Hold | None) -> None:
        self.period_ends.set(scope, (new.until_us,) if new is not None and new.until_us is not None else None)


def postponed_key(source: str, number: int, state: str) -> str:
    """The key of links whose source has ended like this."""
    return f"{source}\n{number}\n{state}"


def is_postponed(key: str) -> bool:
    """Whether a key of links is one of those, and not the id of a source that has not ended."""
    return "\n" in key


def state_in(key: str) -> str:
    """How the source of postponed links has ended."""
    return key.rpartition("\n")[2]


class _Atomic:
    """The blocks of one state whose changes stay or go together."""

    __slots__ = ("_marks", "_state")

    def __init__(self, state: State) -> None:
        self._state = state
        self._marks: list[int] = []

    def __enter__(self) -> None:
        self._marks.append(len(self._state.changes))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        mark = self._marks.pop()
        if kind is not None:
            self._state.changes.undo(mark)
        elif not self._marks and not self._state.drafting:
            self._state.changes.clear()

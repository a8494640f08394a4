"""What steps do, in terms of the statements: endings, puts and events, inside a transaction of the caller's."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from penstock import failpoints
from penstock.clock import Micros, duration_micros
from penstock.errors import (
    PenstockError,
)
from penstock.queue import refusals
from penstock.queue.drivers.sql.rows import puts_for, write_map
from penstock.queue.entry import Lease
from penstock.queue.store import (
    Definition,
    Ending,
    NewEntry,
    Note,
    PutResult,
    Step,
    StepDone,
    Subscription,
    due_at,
    expires_at,
)
from penstock.queue.stores.sql.clocks import TransactionClock
from penstock.queue.stores.sql.repeats import done_before
from penstock.queue.stores.sql.rows import Ref, Row
from penstock.queue.stores.sql.schema import LEASED, SUSPECT, WAITING
from penstock.queue.stores.sql.statements import Statements


class Lane(msgspec.Struct):
    """A queue's row: without a node, or that of one node's sticky entries."""

    lane: int
    queue: str
    node: str
    next_due: Micros | None
    fifo: int
    rate_count: int | None
    rate_period: Micros | None
    rate_next: Micros | None
    limit_label: str | None
    limit_count: int | None


class Steps:
    """Steps on one connection, in one transaction."""

    def __init__(self, db: Any, sql: Statements, clock: TransactionClock, *, repeat: bool = False) -> None:
        """Bind connection, statements and time; made anew for every call. ``repeat``: this call was sent before."""
        self.repeat = repeat
        self.db = db
        self.sql = sql
        self.clock = clock
        self.rings = False  # whether something became claimable
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._fifo_lanes: set[int] = set()

    @property
    def now(self) -> Micros:
        """The store's time, after whatever has been waited for so far."""
        return self.clock.now()

    # --- lanes -------------------------------------------------------------------------------------

    def lane(self, queue: str, node: str = "", *, fresh: bool = False) -> Lane:
        """The lane of a queue, made when missing; a node's lane follows its queue's settings."""
        key = (queue, node)
        known = self._lanes.get(key)
        if known is not None and not fresh:
            return known
        row = self.db.execute(self.sql.lane, key).fetchone()
        if row is None:
            base = self.lane(queue) if node else None
            settings: tuple[Any, ...] = (0, None, None, None, None)
            if base is not None:
                settings = (base.fifo, base.rate_count, base.rate_period, base.limit_label, base.limit_count)
            self.db.execute(self.sql.add_lane, (queue, node, queue, *settings))
            # What another one has just made is not in the snapshot that a caller's transaction may read from.
            row = self.db.execute(self.sql.lane_now, key).fetchone()
        made = self._lanes[key] = Lane(*row)
        return made

    def hold_lanes(self, queue: str) -> None:
        """Keep others from changing a queue's locks until the end of the transaction: who counts them must see all."""
        self.db.execute(self.sql.hold_lanes, (queue,)).fetchall()

    def sooner(self, lane: int, due: Micros, *, fifo: bool) -> None:
        """Something in the lane may be claimable from ``due`` on."""
        self.rings = True
        if fifo:
            self._fifo_lanes.add(lane)
        else:
            self.db.execute(self.sql.lane_sooner, (due, lane, due))

    def fifo_changed(self, lane: int) -> None:
        """The head of a FIFO lane may be another now."""
        self._fifo_lanes.add(lane)

    def flush(self) -> None:
        """Set right what several changes of one transaction touched: once, at its end."""
        if self._fifo_lanes:
            self.db.execute(self.sql.fifo_next, (self.sql.dialect.listed(sorted(self._fifo_lanes)),))
            self._fifo_lanes.clear()

    def define(self, queue: str, definition: Definition) -> None:
        """Keep how a queue behaves."""
        lane = self.lane(queue)
        fifo = lane.fifo if definition.fifo is None else int(definition.fifo)
        if fifo != lane.fifo and self.db.execute(self.sql.lane_holds_any, (queue,)).fetchone():
            raise refusals.fifo_fixed(queue)
        rate: tuple[int | None, Micros | None] = (lane.rate_count, lane.rate_period)
        if definition.rate is not None:
            rate = (definition.rate.count, definition.rate.period) if definition.rate.count else (None, None)
        limit: tuple[str | None, int | None] = (lane.limit_label, lane.limit_count)
        if definition.label_limit is not None:
            limit = definition.label_limit if definition.label_limit[1] else (None, None)
        wanted = (fifo, *rate, *limit)
        if wanted != (lane.fifo, lane.rate_count, lane.rate_period, lane.limit_label, lane.limit_count):
            self.db.execute(self.sql.define, (*wanted, queue))
            self.define_lanes(queue)
            self.rings = True

    def define_lanes(self, queue: str) -> None:
        """What a limit held back may be claimable now: every lane of the queue is looked at again."""
        self.db.execute(self.sql.lanes_sooner, (self.now, queue, self.now))

    # --- steps -------------------------------------------------------------------------------------

    def steps(self, steps: Sequence[Step]) -> list[StepDone | PenstockError]:
        """Do each step; plain successes together, the others one by one."""
        plain = [step for step in steps if is_plain(step)]
        distinct = len({step.endings[0].lease.entry for step in plain}) == len(plain)
        if len(plain) == len(steps) > 0 and distinct:
            return self.after_finish(plain, self._finish_many(plain))
        return [self._guarded(step) for step in steps]

    def after_finish(self, steps: Sequence[Step], finished: Collection[int]) -> list[StepDone | PenstockError]:
        """The results of plain successes of which those with these numbers are ended; the others go the longer way."""
        for step in steps:
            ref: Ref = step.endings[0].lease.ref
            if ref.fifo and ref.seq in finished:
                self._fifo_lanes.add(ref.lane)
                self.rings = True
        if len(finished) == len(steps):
            return [StepDone()] * len(steps)
        return [StepDone() if step.endings[0].lease.ref.seq in finished else self._guarded(step) for step in steps]

    def _finish_many(self, steps: Sequence[Step]) -> Collection[int]:
        """End entries as done in two statements; the numbers of those ended: all, or none if a lease is not current."""
        if len(steps) == 1:
            ending = steps[0].endings[0]
            seq = ending.lease.ref.seq
            if not self.changed(self.sql.finish_one, (ending.started_us, self.now, seq, ending.lease.token)):
                return ()
            failpoints.point("finish.recorded")
            self.db.execute(self.sql.delete, (seq,))
            return (seq,)
        rows = [finish_row(step) for step in steps]
        self.db.execute("SAVEPOINT finish")
        if self.db.execute(self.sql.finish_many, (self.sql.dialect.settled(rows), self.now)).rowcount != len(steps):
            self.db.execute("ROLLBACK TO SAVEPOINT finish")
            self.db.execute("RELEASE SAVEPOINT finish")
            return ()
        failpoints.point("finish.recorded")
        seqs = [row[0] for row in rows]
        self.db.execute(self.sql.delete_many, (self.sql.dialect.listed(seqs),))
        self.db.execute("RELEASE SAVEPOINT finish")
        return set(seqs)

    def _guarded(self, step: Step) -> StepDone | PenstockError:
        self.db.execute("SAVEPOINT step")
        try:
            done = self.step(step)
        except PenstockError as error:
            self.db.execute("ROLLBACK TO SAVEPOINT step")
            self.db.execute("RELEASE SAVEPOINT step")
            # A lane that the step made went with it, and its number will be another's.
            self._lanes.clear()
            return error
        except BaseException:
            # The database may have given up the whole transaction, and the savepoint with it: that is what counts then.
            with contextlib.suppress(Exception):
                self.db.execute("ROLLBACK TO SAVEPOINT step")
                self.db.execute("RELEASE SAVEPOINT step")
            raise
        self.db.execute("RELEASE SAVEPOINT step")
        return done

    def step(self, step: Step) -> StepDone:
        """Endings, then puts, then events; raises before anything of the step is left behind."""
        rows = [self.row(self.sql.by_seq, ending.lease.ref.seq) for ending in step.endings]
        held = [_is_held(row, ending.lease) for row, ending in zip(rows, step.endings, strict=True)]
        if step.repeat and not any(held) and (done := done_before(self, step)) is not None:
            return done
        for row, ending in zip(rows, step.endings, strict=True):
            self._end(row, ending)
        puts = self.put(step.puts, repeat=step.repeat)
        published: list[tuple[PutResult, ...]] = []
        if step.events:
            subscriptions = self.subscriptions()
            for event in step.events:
                published.append(tuple(self.put(puts_for(event, subscriptions), repeat=step.repeat)))
        return StepDone(tuple(puts), tuple(published))

    def subscriptions(self) -> list[Subscription]:
        """All subscriptions, by name."""
        rows = self.db.execute(self.sql.subscriptions).fetchall()
        return [Subscription(name, queue, tuple(msgspec.json.decode(types))) for name, queue, types in rows]

    # --- documents ---------------------------------------------------------------------------------

    def write(self, note: Note, *, more: bool = False) -> bool:
        """Write a document if its version is the one given; whether it was. ``more``: other statements will follow."""
        name, value, version, sql = note.name, note.value, note.version, self.sql
        # What cannot be refused need not be waited for, where a driver can send it with the next statement.
        send = getattr(self.db, "send_with_next", self.db.execute) if more else self.db.execute
        if value is None:
            if version is None:
                send(sql.drop_document, (name,))
                return True
            gone = self.changed(sql.drop_document_at, (name, version))
            return gone or self.db.execute(sql.document, (name,)).fetchone() is None
        if version is None:
            send(sql.write_document, (name, self.now, value))
            return True
        if version == 0:
            written = self.changed(sql.new_document, (name, self.now, value))
        else:
            written = self.changed(sql.change_document, (self.now, value, name, version))
        if written:
            return True
        there = self.db.execute(sql.document, (name,)).fetchone()
        # Its own value, one version on, is what this very write has left before.
        return there is not None and there[0] == version + 1 and bytes(there[1]) == value

    # --- endings -----------------------------------------------------------------------------------

    def _end(self, row: Row | None, ending: Ending) -> None:
        """Apply an ending to the row that its lease was given for."""
        if row is None or not _is_held(row, ending.lease):
            raise refusals.lease_lost(ending.lease)
        if ending.outcome in ("done", "dead"):
            self.end(row, ending.outcome, started=ending.started_us, error=ending.error)
            return
        due = row.due
        if ending.outcome != "release":
            due = self.now + ending.delay_us if ending.due_us is None else ending.due_us
        if ending.outcome == "retry":
            self.record(row, "retried", ending.started_us, ending.error)
            failpoints.point("retry.recorded")
        # Released means untouched: nothing has shown that a suspect is harmless.
        suspect = ending.outcome == "release" and bool(row.suspect)
        self.give_back(row, due, error=ending.error, unspent=ending.outcome != "retry", suspect=suspect)

    def end(
        self, row: Row, state: str, *, started: Micros | None = None, error: str | None = None, ran: bool = True
    ) -> None:
        """Move a live entry to where ended ones are; ``ran`` says whether an attempt ended with it."""
        now = self.now
        # An entry that ends between two attempts is recorded under the attempt it did not get.
        extra = 0 if ran else 1
        self.db.execute(self.sql.to_history, (state, started, now, extra, error, state != "dead", row.seq))
        if state == "dead":
            self.db.execute(self.sql.to_dead, (started, now, error, row.seq))
        failpoints.point("end.recorded")
        self.db.execute(self.sql.delete, (row.seq,))
        if row.unique_key is not None and row.unique_mode != "period":
            self.db.execute(self.sql.unique_release, (row.queue, row.unique_key, row.id))
        self._lane_freed(row)

    def give_back(self, row: Row, due: Micros, *, error: str | None, unspent: bool, suspect: bool = False) -> None:
        state = SUSPECT if suspect else WAITING
        self.db.execute(self.sql.give_back, (state, int(suspect), due, int(unspent), error, row.seq))
        self.sooner(row.lane, due, fifo=bool(row.fifo))
        self._lane_freed(row)

    def _lane_freed(self, row: Row) -> None:
        """An entry is no longer in flight: the next of a FIFO queue or of a label's limit may come."""
        if row.fifo:
            self.sooner(row.lane, self.now, fifo=True)
        elif row.labels is not None and self.lane(row.queue).limit_label is not None:
            # A label's value may wait in the lane of any node.
            self.rings = True
            self.define_lanes(row.queue)

    def record(self, row: Row, state: str, started: Micros | None, error: str | None) -> None:
        """Write down an attempt after which the entry lives on."""
        self.db.execute(self.sql.to_history, (state, started, self.now, 0, error, False, row.seq))

    # --- puts --------------------------------------------------------------------------------------

    def put(self, entries: Sequence[NewEntry], *, repeat: bool = False) -> list[PutResult]:
        """Put entries in order; raises at the first that cannot be."""
        results: list[PutResult] = []
        batch: list[tuple[Any, ...]] = []
        labels: list[tuple[str, str, str]] = []
        soonest: dict[int, tuple[Micros, bool]] = {}
        lanes = [self._lane_for(entry) for entry in entries]
        now = self.now
        for entry, lane in zip(entries, lanes, strict=True):
            due = due_at(entry, now)
            if not repeat and entry.unique is None and not entry.repeat:
                batch.append(_insert_row(entry, lane, due, now))
                labels += [(name, value, entry.id) for name, value in entry.labels.items()]
                results.append(PutResult(entry.id, entry.queue, True, due))
            else:
                self._insert_batch(batch, entries)
                batch = []
                results.append(self._put_one(entry, lane, repeat=repeat or entry.repeat))
                due = results[-1].due_us
            there = soonest.get(lane.lane)
            if there is None or due < there[0]:
                soonest[lane.lane] = (due, bool(lane.fifo))
        self._insert_batch(batch, entries)
        if labels:
            self.db.executemany(self.sql.add_label, labels)
        failpoints.point("put.inserted")
        for lane_id, (due, fifo) in soonest.items():
            self.sooner(lane_id, due, fifo=fifo)
        return results

    def _lane_for(self, entry: NewEntry) -> Lane:
        lane = self.lane(entry.queue, entry.node or "")
        if lane.fifo and (entry.priority or entry.node):
            raise refusals.not_for_fifo(entry.queue)
        return lane

    def _insert_batch(self, batch: list[tuple[Any, ...]], entries: Sequence[NewEntry]) -> None:
        if not batch:
            return
        if self.db.executemany(self.sql.insert, batch).rowcount != len(batch):
            # An id was there already: see whether each one is what is meant by it, or another entry.
            for entry in entries:
                self._is_known(entry, ended=False)

    def _put_one(self, entry: NewEntry, lane: Lane, *, repeat: bool) -> PutResult:
        if self._is_known(entry, ended=repeat):
            return PutResult(entry.id, entry.queue, True, due_at(entry, self.now))
        if entry.unique is not None and (kept := self._unique_conflict(entry)) is not None:
            return kept
        now = self.now  # its unique id may have been waited for
        due = due_at(entry, now)
        self.db.execute(self.sql.insert, _insert_row(entry, lane, due, now))
        self.add_labels(entry.id, entry.labels)
        return PutResult(entry.id, entry.queue, True, due)

    def _is_known(self, entry: NewEntry, *, ended: bool) -> bool:
        row = self.db.execute(self.sql.known_live, (entry.id,)).fetchone()
        if row is None and ended:
            row = self.db.execute(self.sql.known_ended, (entry.id,)).fetchone()
        if row is None:
            return False
        queue, payload, _ = row
        if queue != entry.queue or (payload is not None and payload != entry.payload):
            raise refusals.id_taken(entry.id, queue)
        return True

    def _unique_conflict(self, entry: NewEntry) -> PutResult | None:
        """What a taken unique id means; None when it was free and is now held."""
        unique = entry.unique
        if unique is None:
            return None
        until = None if unique.period is None else self.now + duration_micros(unique.period)
        holder = self.hold(entry.queue, unique.key, entry.id, until)
        if holder is None:
            return None
        if unique.on_conflict == "raise":
            raise refusals.unique_held(entry.queue, unique.key, holder)
        if unique.on_conflict == "keep":
            found = self.db.execute(self.sql.due_of, (holder,)).fetchone()
            return PutResult(holder, entry.queue, False, due_at(entry, self.now) if found is None else found[0])
        # The entry's row first, then its unique id: the order in which an ending takes them.
        row = self.row(self.sql.by_id, holder)
        still = self.db.execute(self.sql.unique_holder_now, (entry.queue, unique.key)).fetchone()
        if still is None or still[0] != holder:
            return self._unique_conflict(entry)
        due = due_at(entry, self.now)
        if row is None:
            return PutResult(holder, entry.queue, False, due)
        if row.state == LEASED:
            raise refusals.unique_held(entry.queue, unique.key, holder)
        self.db.execute(
            self.sql.replace,
            (entry.payload, entry.codec, entry.type, write_map(entry.labels), write_map(entry.headers), entry.priority,
             due, due, expires_at(entry, self.now), row.seq),
        )  # fmt: skip
        self.add_labels(holder, entry.labels)
        self.sooner(row.lane, due, fifo=bool(row.fifo))  # its own lane, which the new entry need not have named
        return PutResult(holder, entry.queue, False, due)

    def hold(self, queue: str, key: str, id_: str, until: Micros | None) -> str | None:
        """Take a unique id; None when it was free, or who holds it. Of several who try at once, one gets it."""
        while not self.changed(self.sql.unique_hold, (queue, key, id_, until)):
            asked = (queue, key)
            found = self.db.execute(self.sql.unique_holder, asked).fetchone()
            if found is None:  # its holder ended in between, or the caller's transaction reads from an older snapshot
                found = self.db.execute(self.sql.unique_holder_now, asked).fetchone()
            if found is None:
                continue
            holder, held_until = found
            if held_until is None or held_until > self.now:
                return str(holder)
            if self.changed(self.sql.unique_take, (id_, until, queue, key, held_until)):
                break
        return None

    def add_labels(self, id_: str, labels: dict[str, str]) -> None:
        if labels:
            self.db.executemany(self.sql.add_label, [(name, value, id_) for name, value in labels.items()])

    # --- inside ------------------------------------------------------------------------------------

    def changed(self, statement: str, parameters: tuple[Any, ...]) -> bool:
        """Run a statement; whether it changed anything."""
        return bool(self.db.execute(statement, parameters).rowcount > 0)

    def row(self, statement: str, key: Any) -> Row | None:
        found = self.db.execute(statement, (key,)).fetchone()
        return None if found is None else Row(*found)

    def rows(self, statement: str, parameters: tuple[Any, ...]) -> list[Row]:
        return [Row(*found) for found in self.db.execute(statement, parameters).fetchall()]


def _insert_row(entry: NewEntry, lane: Lane, due: Micros, now: Micros) -> tuple[Any, ...]:
    unique = entry.unique
    return (
        entry.id, lane.queue, lane.node, lane.lane, lane.fifo, 1, entry.priority, now, due, due, 0,
        write_map(entry.labels), write_map(entry.headers), unique and unique.key, unique and unique.mode,
        expires_at(entry, now), entry.codec, entry.type, entry.payload,
    )  # fmt: skip


def _is_held(row: Row | None, lease: Lease) -> bool:
    """Whether the row is the entry of this lease, and the lease is its current one."""
    return row is not None and row.id == lease.entry and row.state == LEASED and row.token == lease.token


def is_plain(step: Step) -> bool:
    """One success and nothing else: what workers send by the hundred."""
    endings = step.endings
    return (
        len(endings) == 1
        and not step.puts
        and not step.events
        and endings[0].outcome == "done"
        and endings[0].error is None  # which the quick statements do not write
        and endings[0].lease.ref.plain
    )


def is_plain_put(step: Step) -> bool:
    """New entries and nothing else, with nothing to look up first."""
    return not step.endings and not step.events and not step.repeat and all(map(_is_plain_entry, step.puts))


def _is_plain_entry(entry: NewEntry) -> bool:
    return entry.unique is None and not entry.labels and not entry.repeat


def finish_row(step: Step) -> tuple[int, str, Micros | None]:
    """What the statements that end plain successes are told of one."""
    ending = step.endings[0]
    return ending.lease.ref.seq, ending.lease.token, ending.started_us

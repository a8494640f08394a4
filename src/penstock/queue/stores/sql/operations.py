"""What steps, changes and reaping do, in terms of the statements, inside a transaction of the caller's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock import chaos
from penstock.clock import Micros, duration_micros
from penstock.errors import (
    BadInput,
    Conflict,
    EntryLeased,
    EntryNotFound,
    LeaseLost,
    PenstockError,
    UniqueHeld,
)
from penstock.queue.entry import Lease
from penstock.queue.store import (
    Changes,
    Definition,
    Ending,
    NewEntry,
    PutResult,
    Reaped,
    Scope,
    Step,
    StepDone,
    Subscription,
    due_at,
    expires_at,
)
from penstock.queue.stores.sql.rows import Ended, Ref, Row, puts_for, write_map
from penstock.queue.stores.sql.schema import LEASED, SUSPECT, WAITING
from penstock.queue.stores.sql.statements import Statements

NO_ATTEMPTS = "no attempts left"
RAN_OUT = "lease ran out"
_SETTLED_AS = {"done": "done", "dead": "dead", "retry": "retried"}


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


class Operations:
    """One transaction's worth of work on one connection, at one moment of the store's time."""

    def __init__(self, db: Any, sql: Statements, now: Micros, *, repeat: bool = False) -> None:
        """Bind connection, statements and time; made anew for every call. ``repeat``: this call was sent before."""
        self.repeat = repeat
        self.db = db
        self.sql = sql
        self.now = now
        self.rings = False  # whether something became claimable
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._fifo_lanes: set[int] = set()

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
            row = self.db.execute(self.sql.lane, key).fetchone()
        made = self._lanes[key] = Lane(*row)
        return made

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
            raise Conflict(
                f"queue {queue!r} cannot change to fifo={bool(fifo)} while it holds entries.",
                hint="Let it run empty first, or use another queue.",
            )
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
        plain = [step for step in steps if _is_plain(step)]
        distinct = len({step.endings[0].lease.entry for step in plain}) == len(plain)
        if len(plain) == len(steps) > 0 and distinct and self._finish_many(plain):
            return [StepDone()] * len(steps)
        return [self._guarded(step) for step in steps]

    def _finish_many(self, steps: Sequence[Step]) -> bool:
        """End many entries as done in two statements; False (and nothing changed) if any lease is not current."""
        if len(steps) == 1:
            ending = steps[0].endings[0]
            seq = ending.lease.ref.seq
            if self.sql.dialect.locks_first:
                self.db.execute(self.sql.by_seq, (seq,))
            if not self.changed(self.sql.finish_one, (ending.started_us, self.now, seq, ending.lease.token)):
                return False
            chaos.point("finish.recorded")
            if not self.sql.dialect.moves:
                self.db.execute(self.sql.delete, (seq,))
        else:
            rows = [_finish_row(step.endings[0]) for step in steps]
            self.db.execute("SAVEPOINT finish")
            if self.sql.dialect.locks_first:
                self.db.execute(self.sql.lock_many, (self.sql.dialect.listed([row[0] for row in rows]),))
            settled = self.sql.dialect.settled(rows)
            if self.db.execute(self.sql.finish_many, (settled, self.now)).rowcount != len(steps):
                self.db.execute("ROLLBACK TO SAVEPOINT finish")
                self.db.execute("RELEASE SAVEPOINT finish")
                return False
            chaos.point("finish.recorded")
            if not self.sql.dialect.moves:
                self.db.execute(self.sql.delete_many, (self.sql.dialect.listed([row[0] for row in rows]),))
            self.db.execute("RELEASE SAVEPOINT finish")
        for step in steps:
            ref: Ref = step.endings[0].lease.ref
            if ref.fifo:
                self._fifo_lanes.add(ref.lane)
                self.rings = True
        return True

    def _guarded(self, step: Step) -> StepDone | PenstockError:
        self.db.execute("SAVEPOINT step")
        try:
            done = self.step(step)
        except PenstockError as error:
            self.db.execute("ROLLBACK TO SAVEPOINT step")
            self.db.execute("RELEASE SAVEPOINT step")
            return error
        except BaseException:
            self.db.execute("ROLLBACK TO SAVEPOINT step")
            self.db.execute("RELEASE SAVEPOINT step")
            raise
        self.db.execute("RELEASE SAVEPOINT step")
        return done

    def step(self, step: Step) -> StepDone:
        """Endings, then puts, then events; raises before anything of the step is left behind."""
        already = [self._end(ending, repeat=step.repeat) for ending in step.endings]
        if any(already):
            return self._recalled(step)
        puts = self.put(step.puts, repeat=step.repeat)
        published: list[tuple[PutResult, ...]] = []
        if step.events:
            subscriptions = self.subscriptions()
            for event in step.events:
                published.append(tuple(self.put(puts_for(event, subscriptions), repeat=step.repeat)))
        return StepDone(tuple(puts), tuple(published))

    def _recalled(self, step: Step) -> StepDone:
        """The results of a step that happened whole before: nothing is put again, whatever has ended since."""
        puts = tuple(self._recall(entry) for entry in step.puts)
        made = [puts_for(event, self.subscriptions()) for event in step.events]
        # A subscription made since then got nothing of it.
        published = tuple(tuple(done for one in some if (done := self._recall(one)).created) for some in made)
        return StepDone(puts, published)

    def _recall(self, entry: NewEntry) -> PutResult:
        due = due_at(entry, self.now)
        # Known is enough: what was put may have been updated or replaced since.
        known = any(self.db.execute(one, (entry.id,)).fetchone() for one in (self.sql.known_live, self.sql.known_ended))
        if known or entry.unique is None:
            return PutResult(entry.id, entry.queue, known, due)
        held = self.db.execute(self.sql.unique_holder, (entry.queue, entry.unique.key)).fetchone()
        return PutResult(held[0] if held else entry.id, entry.queue, False, due)

    def subscriptions(self) -> list[Subscription]:
        """All subscriptions, by name."""
        rows = self.db.execute(self.sql.subscriptions).fetchall()
        return [Subscription(name, queue, tuple(msgspec.json.decode(types))) for name, queue, types in rows]

    # --- endings -----------------------------------------------------------------------------------

    def _end(self, ending: Ending, *, repeat: bool) -> bool:
        """Apply an ending; True if it had happened before (a repeat)."""
        lease = ending.lease
        row = self._row(self.sql.by_seq, lease.ref.seq)
        if row is None or row.id != lease.entry or row.state != LEASED or row.token != lease.token:
            if repeat and self._was_settled(ending):
                return True
            raise lease_lost(lease)
        if ending.outcome in ("done", "dead"):
            self.end(row, ending.outcome, started=ending.started_us, error=ending.error)
            return False
        due = row.due
        if ending.outcome != "release":
            due = self.now + ending.delay_us if ending.due_us is None else ending.due_us
        if ending.outcome == "retry":
            self._history(row, "retried", ending.started_us, ending.error)
            chaos.point("retry.recorded")
        # Released means untouched: nothing has shown that a suspect is harmless.
        suspect = ending.outcome == "release" and bool(row.suspect)
        self._give_back(row, due, error=ending.error, unspent=ending.outcome != "retry", suspect=suspect)
        return False

    def _was_settled(self, ending: Ending) -> bool:
        lease = ending.lease
        state = _SETTLED_AS.get(ending.outcome)
        if state is not None:
            found = self.db.execute(self.sql.was_settled, (lease.entry, lease.token, state)).fetchone()
            return found is not None
        row = self._row(self.sql.by_id, lease.entry)
        return row is not None and row.settled == lease.token

    def end(
        self, row: Row, state: str, *, started: Micros | None = None, error: str | None = None, ran: bool = True
    ) -> None:
        """Move a live entry to where ended ones are; ``ran`` says whether an attempt ended with it."""
        # An entry that ends between two attempts is recorded under the attempt it did not get.
        self._history(row, state, started, error, keep_payload=state != "dead", extra=0 if ran else 1)
        if state == "dead":
            self.db.execute(self.sql.to_dead, (started, self.now, error, row.seq))
        chaos.point("end.recorded")
        self.db.execute(self.sql.delete, (row.seq,))
        if row.unique_key is not None and row.unique_mode != "period":
            self.db.execute(self.sql.unique_release, (row.queue, row.unique_key, row.id))
        self._lane_freed(row)

    def _give_back(self, row: Row, due: Micros, *, error: str | None, unspent: bool, suspect: bool = False) -> None:
        state = SUSPECT if suspect else WAITING
        self.db.execute(self.sql.give_back, (state, int(suspect), due, int(unspent), error, row.seq))
        self.sooner(row.lane, due, fifo=bool(row.fifo))
        self._lane_freed(row)

    def _lane_freed(self, row: Row) -> None:
        """An entry is no longer in flight: the next of a FIFO queue or of a label's limit may come."""
        if row.fifo:
            self.sooner(row.lane, self.now, fifo=True)
        elif row.labels is not None and self.lane(row.queue).limit_label is not None:
            for node in {"", row.node}:
                self.sooner(self.lane(row.queue, node).lane, self.now, fifo=False)

    def _history(
        self,
        row: Row,
        state: str,
        started: Micros | None,
        error: str | None,
        *,
        keep_payload: bool = False,
        extra: int = 0,
    ) -> None:
        self.db.execute(self.sql.to_history, (state, started, self.now, extra, error, keep_payload, row.seq))

    # --- puts --------------------------------------------------------------------------------------

    def put(self, entries: Sequence[NewEntry], *, repeat: bool = False) -> list[PutResult]:
        """Put entries in order; raises at the first that cannot be."""
        results: list[PutResult] = []
        batch: list[tuple[Any, ...]] = []
        soonest: dict[int, tuple[Micros, bool]] = {}
        for entry in entries:
            lane = self._lane_for(entry)
            due = due_at(entry, self.now)
            if not repeat and _is_plain_entry(entry):
                batch.append(self._insert_row(entry, lane, due))
                results.append(PutResult(entry.id, entry.queue, True, due))
            else:
                self._insert_batch(batch, entries)
                batch = []
                results.append(self._put_one(entry, lane, due, repeat=repeat or entry.repeat))
                due = results[-1].due_us
            there = soonest.get(lane.lane)
            if there is None or due < there[0]:
                soonest[lane.lane] = (due, bool(lane.fifo))
        self._insert_batch(batch, entries)
        chaos.point("put.inserted")
        for lane_id, (due, fifo) in soonest.items():
            self.sooner(lane_id, due, fifo=fifo)
        return results

    def _lane_for(self, entry: NewEntry) -> Lane:
        lane = self.lane(entry.queue, entry.node or "")
        if lane.fifo and (entry.priority or entry.node):
            raise BadInput(
                f"queue {entry.queue!r} is FIFO: its order is that of the puts, so priority and sticky mean nothing.",
                hint="Leave them out, or use a queue without fifo.",
            )
        return lane

    def _insert_row(self, entry: NewEntry, lane: Lane, due: Micros) -> tuple[Any, ...]:
        unique = entry.unique
        return (
            entry.id, lane.queue, lane.node, lane.lane, lane.fifo, 1, entry.priority, self.now, due, due, 0,
            write_map(entry.labels), write_map(entry.headers), unique and unique.key, unique and unique.mode,
            expires_at(entry, self.now), entry.codec, entry.type, entry.payload,
        )  # fmt: skip

    def _insert_batch(self, batch: list[tuple[Any, ...]], entries: Sequence[NewEntry]) -> None:
        if not batch:
            return
        if self.db.executemany(self.sql.insert, batch).rowcount != len(batch):
            # An id was there already: see whether each one is what is meant by it, or another entry.
            for entry in entries:
                self._is_known(entry, ended=False)

    def _put_one(self, entry: NewEntry, lane: Lane, due: Micros, *, repeat: bool) -> PutResult:
        if self._is_known(entry, ended=repeat):
            return PutResult(entry.id, entry.queue, True, due)
        if entry.unique is not None:
            kept = self._unique_conflict(entry, lane, due)
            if kept is not None:
                return kept
        self.db.execute(self.sql.insert, self._insert_row(entry, lane, due))
        self._add_labels(entry.id, entry.labels)
        return PutResult(entry.id, entry.queue, True, due)

    def _is_known(self, entry: NewEntry, *, ended: bool) -> bool:
        row = self.db.execute(self.sql.known_live, (entry.id,)).fetchone()
        if row is None and ended:
            row = self.db.execute(self.sql.known_ended, (entry.id,)).fetchone()
        if row is None:
            return False
        queue, payload, _ = row
        if queue != entry.queue or (payload is not None and payload != entry.payload):
            raise Conflict(
                f"id {entry.id!r} is already taken by another entry of queue {queue!r}.",
                hint="Use a fresh id, or leave it out to have one made.",
            )
        return True

    def _unique_conflict(self, entry: NewEntry, lane: Lane, due: Micros) -> PutResult | None:
        """What a taken unique id means; None when it was free and is now held."""
        unique = entry.unique
        if unique is None:
            return None
        until = None if unique.period is None else self.now + duration_micros(unique.period)
        holder = self._hold(entry.queue, unique.key, entry.id, until)
        if holder is None:
            return None
        if unique.on_conflict == "raise":
            raise unique_held(entry.queue, unique.key, holder)
        row = self._row(self.sql.by_id, holder)
        if unique.on_conflict == "keep" or row is None:
            return PutResult(holder, entry.queue, False, due if row is None else row.due)
        if row.state == LEASED:
            raise unique_held(entry.queue, unique.key, holder)
        self.db.execute(
            self.sql.replace,
            (entry.payload, entry.codec, entry.type, write_map(entry.labels), write_map(entry.headers), entry.priority,
             due, due, expires_at(entry, self.now), row.seq),
        )  # fmt: skip
        self._add_labels(holder, entry.labels)
        self.sooner(row.lane, due, fifo=bool(row.fifo))  # its own lane, which the new entry need not have named
        return PutResult(holder, entry.queue, False, due)

    def _hold(self, queue: str, key: str, id_: str, until: Micros | None) -> str | None:
        """Take a unique id; None when it was free, or who holds it. Of several who try at once, one gets it."""
        if self.changed(self.sql.unique_hold, (queue, key, id_, until)):
            return None
        holder, held_until = self.db.execute(self.sql.unique_holder, (queue, key)).fetchone()
        if held_until is not None and held_until <= self.now:
            self.db.execute(self.sql.unique_take, (id_, until, queue, key))
            return None
        return str(holder)

    def _add_labels(self, id_: str, labels: dict[str, str]) -> None:
        if labels:
            self.db.executemany(self.sql.add_label, [(name, value, id_) for name, value in labels.items()])

    # --- changing ----------------------------------------------------------------------------------

    def cancel(self, ids: Sequence[str], *, force: bool, scope: Scope | None) -> list[tuple[str, str]]:
        """End entries as cancelled, all or none."""
        ended = []
        for id_ in ids:
            row = self._within(scope, id_)
            if row is None:
                if self.db.execute(self.sql.was_cancelled, (id_,)).fetchone():
                    continue
                raise not_found(id_)
            self._check_leased(row, force)
            running = row.state == LEASED
            self.end(row, "cancelled", started=row.claimed, ran=running)
            ended.append((id_, row.queue))
        return ended

    def update(self, id_: str, changes: Changes, *, force: bool, scope: Scope | None) -> str:
        """Change an entry; its queue's name."""
        row = self._within(scope, id_)
        if row is None:
            raise not_found(id_)
        self._check_leased(row, force)
        if changes.priority and row.fifo:
            raise BadInput(f"queue {row.queue!r} is FIFO and has no priorities.", hint="Leave priority out.")
        if row.state == LEASED:
            self.db.execute(self.sql.void, (row.seq,))
            self._history(row, "retried", row.claimed, "taken away by an update")
            self._give_back(row, row.due, error=None, unspent=False)
        due = row.due
        if changes.due_us is not None or changes.delay_us is not None:
            due = changes.due_us if changes.due_us is not None else self.now + (changes.delay_us or 0)
        self.db.execute(
            self.sql.update,
            (
                row.payload if changes.payload is None else changes.payload,
                changes.codec or row.codec,
                changes.type or row.type,
                row.labels if changes.labels is None else write_map(changes.labels),
                row.priority if changes.priority is None else changes.priority,
                due,
                row.first_due if changes.due_us is None and changes.delay_us is None else due,
                row.seq,
            ),
        )
        if changes.labels is not None:
            self._add_labels(id_, changes.labels)
        self.sooner(row.lane, due, fifo=bool(row.fifo))
        return row.queue

    def replay(self, ids: Sequence[str], *, scope: Scope | None) -> list[tuple[str, str]]:
        """Put ended entries back as a new generation, all or none."""
        replayed = []
        for id_ in ids:
            if self._row(self.sql.by_id, id_) is not None:
                continue
            found = self.db.execute(self.sql.dead_by_id, (id_,)).fetchone()
            if found is not None:
                self.db.execute(self.sql.delete_dead, (found[0],))
            else:
                found = self.db.execute(self.sql.last_by_id, (id_,)).fetchone()
            if found is None or (scope is not None and not scope.covers(found[2])):
                raise EntryNotFound(
                    f"no ended entry {id_!r} is kept.", hint="History is pruned after a while; dead letters are not."
                )
            chaos.point("replay.taken")
            self._revive(Ended(*found))
            replayed.append((id_, found[2]))
        return replayed

    def _revive(self, ended: Ended) -> None:
        if ended.unique_key is not None and ended.unique_mode != "period":
            holder = self._hold(ended.queue, ended.unique_key, ended.id, None)
            if holder is not None:
                raise unique_held(ended.queue, ended.unique_key, holder)
        lane = self.lane(ended.queue, ended.node)
        self.db.execute(
            self.sql.insert,
            (ended.id, lane.queue, lane.node, lane.lane, lane.fifo, ended.generation + 1, ended.priority, ended.created,
             self.now, self.now, ended.fence, ended.labels, ended.headers, ended.unique_key, ended.unique_mode, None,
             ended.codec, ended.type, ended.payload),
        )  # fmt: skip
        self.sooner(lane.lane, self.now, fifo=bool(lane.fifo))

    # --- reaping -----------------------------------------------------------------------------------

    def reap(self, node: str, sticky_after_us: Micros, limit: int) -> Reaped:
        """Take back what vanished workers held, end what is out of time, free what vanished nodes kept."""
        found = Reaped([], [], [], [], [])
        for row in self._rows(self.sql.run_out, (self.now, limit)):
            self.db.execute(self.sql.void, (row.seq,))
            if row.max_attempts is not None and row.attempt >= row.max_attempts:
                self.end(row, "dead", started=row.claimed, error=RAN_OUT)
                found.dead.append((row.id, row.queue))
            else:
                self._history(row, "reaped", row.claimed, RAN_OUT)
                chaos.point("reap.recorded")
                self._give_back(row, self.now, error=RAN_OUT, unspent=False, suspect=True)
                found.reaped.append((row.id, row.queue))
        for row in self._rows(self.sql.expired, (self.now, limit)):
            self.end(row, "expired", ran=False)
            found.expired.append((row.id, row.queue))
        cutoff = self.now - sticky_after_us
        for id_, queue, owner, seq, due in self.db.execute(self.sql.overdue_sticky, (cutoff, limit, node)).fetchall():
            if owner == node:
                found.late.append((id_, queue))
            else:
                base = self.lane(queue)
                self.db.execute(self.sql.move_lane, (base.lane, seq))
                self.sooner(base.lane, due, fifo=False)
                found.freed.append((id_, queue))
        self.db.execute(self.sql.unique_sweep, (self.now,))
        return found

    # --- inside ------------------------------------------------------------------------------------

    def changed(self, statement: str, parameters: tuple[Any, ...]) -> bool:
        """Run a statement; whether it changed anything."""
        return bool(self.db.execute(statement, parameters).rowcount > 0)

    def _within(self, scope: Scope | None, id_: str) -> Row | None:
        row = self._row(self.sql.by_id, id_)
        return row if row is None or scope is None or scope.covers(row.queue) else None

    def _row(self, statement: str, key: Any) -> Row | None:
        found = self.db.execute(statement, (key,)).fetchone()
        return None if found is None else Row(*found)

    def _rows(self, statement: str, parameters: tuple[Any, ...]) -> list[Row]:
        return [Row(*found) for found in self.db.execute(statement, parameters).fetchall()]

    def _check_leased(self, row: Row, force: bool) -> None:
        if row.state == LEASED and not force:
            raise EntryLeased(
                f"entry {row.id} of queue {row.queue!r} is being worked on by {row.owner}.",
                hint="Wait for it, or pass force=True to take it away from its worker.",
            )


def lease_lost(lease: Lease) -> LeaseLost:
    """The answer to a late owner."""
    return LeaseLost(
        f"entry {lease.entry} of queue {lease.queue!r} is no longer held with token {lease.token}.",
        hint="Its lease ran out or was voided; nothing was changed, another worker has it or had it.",
    )


def not_found(id_: str) -> EntryNotFound:
    """The answer to an unknown id."""
    return EntryNotFound(f"no live entry {id_!r}.", hint="It may have ended: see history() and dead().")


def unique_held(queue: str, key: str, holder: str) -> UniqueHeld:
    """The answer to a taken unique id."""
    return UniqueHeld(
        f"unique id {key!r} of queue {queue!r} is held by entry {holder}.",
        hint="Wait until it is released, or use on_conflict='keep'.",
    )


def _is_plain(step: Step) -> bool:
    """One success and nothing else: what workers send by the hundred."""
    endings = step.endings
    return (
        len(endings) == 1
        and not step.puts
        and not step.events
        and endings[0].outcome == "done"
        and endings[0].lease.ref.plain
    )


def is_plain_put(step: Step) -> bool:
    """New entries and nothing else, with nothing to look up first."""
    return not step.endings and not step.events and not step.repeat and all(map(_is_plain_entry, step.puts))


def _is_plain_entry(entry: NewEntry) -> bool:
    return entry.unique is None and not entry.labels and not entry.repeat


def _finish_row(ending: Ending) -> tuple[int, str, Micros | None]:
    return ending.lease.ref.seq, ending.lease.token, ending.started_us

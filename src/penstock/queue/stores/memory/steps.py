"""Steps on a memory store: endings, puts and events that happen together or not at all."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.clock import Micros, duration_micros
from penstock.errors import BadInput, PenstockError
from penstock.ids import derived_id
from penstock.queue import refusals
from penstock.queue.entry import Lease, Unique
from penstock.queue.store import (
    Document,
    Ending,
    NewEntry,
    NewEvent,
    Note,
    PutResult,
    Schedule,
    Step,
    StepDone,
    due_at,
    expires_at,
)
from penstock.queue.stores.memory.lanes import Item, Receipt
from penstock.queue.stores.memory.state import MemoryState


def take_step(state: MemoryState, step: Step, now: Micros) -> StepDone | PenstockError:
    """Do a step whole, or nothing of it and say why."""
    if step.repeat and (done := _done_before(state, step, now)) is not None:
        return done
    receipt = Receipt({ending.lease.entry: (ending.lease.token, ending.outcome) for ending in step.endings})
    try:
        with state.atomic():
            for ending in step.endings:
                _end(state, ending, receipt, now)
            puts = tuple(put(state, new, now, repeat=step.repeat) for new in step.puts)
            published = tuple(_publish(state, event, now, repeat=step.repeat) for event in step.events)
            receipt.done = StepDone(puts, published)
            return receipt.done
    except PenstockError as error:
        return error


def _done_before(state: MemoryState, step: Step, now: Micros) -> StepDone | None:
    """What the step gave when it happened already: none of its leases is held, and what it left behind is there."""
    if any(held(state, ending.lease) for ending in step.endings):
        return None
    events = [_puts_for(state, event) for event in step.events]
    entries = [*step.puts, *(new for news in events for new in news)]
    known = {new.id: item for new in entries if (item := _known(state, new.id)) is not None}
    # Only this very step can have put an id that was made for it.
    if not any(new.id in known and not new.repeat for new in entries):
        # The same lease may have come with another step: a unit whose commit was in doubt is rolled back.
        missing = any(new.unique is None and new.id not in known for new in step.puts)
        if missing or not any(_was_settled(state, ending) for ending in step.endings):
            return None
    for ending in step.endings:
        item = _known(state, ending.lease.entry)
        if item and item.receipt and item.receipt.settled[item.id] == (ending.lease.token, ending.outcome):
            done = item.receipt.done
            return done if (len(done.puts), len(done.published)) == (len(step.puts), len(step.events)) else None
    puts = tuple(_recall(state, new, now) for new in step.puts)
    published = (tuple(_recall(state, new, now) for new in news if new.id in known) for news in events)
    return StepDone(puts, tuple(published))


def _known(state: MemoryState, id_: str) -> Item | None:
    return state.live.get(id_) or state.ended.get(id_) or state.dead.get(id_)


def _was_settled(state: MemoryState, ending: Ending) -> bool:
    item = _known(state, ending.lease.entry)
    return item is not None and (ending.lease.token, ending.outcome) in item.settlements()


def _recall(state: MemoryState, new: NewEntry, now: Micros) -> PutResult:
    """What a put gave that happened before."""
    if (item := _known(state, new.id)) is not None:
        return PutResult(item.id, item.queue, created=True, due_us=item.first_due_us)
    hold = None if new.unique is None else state.holder(new.queue, new.unique.key, now)
    return PutResult(new.id if hold is None else hold.id, new.queue, created=False, due_us=due_at(new, now))


def held(state: MemoryState, lease: Lease) -> Item | None:
    """The entry, if this lease on it is the current one. The token decides, never the clock."""
    item = state.live.get(lease.entry)
    return item if item is not None and item.lease is not None and item.lease.token == lease.token else None


def _end(state: MemoryState, ending: Ending, receipt: Receipt, now: Micros) -> None:
    item = held(state, ending.lease)
    if item is None:
        raise refusals.lease_lost(ending.lease)
    item = replace(item, receipt=receipt)
    error = item.error if ending.error is None else ending.error
    back = now + ending.delay_us if ending.due_us is None else ending.due_us
    match ending.outcome:
        case "done" | "dead":
            state.finish(item, ending.outcome, now, error=ending.error, started_us=ending.started_us)
        case "retry":
            state.record(item, "retried", now, error=ending.error, started_us=ending.started_us)
            state.wait(item, due_us=back, error=error, suspect=False)
        case "snooze":
            state.wait(item, due_us=back, error=error, suspect=False, attempt=item.attempt - 1)
        case "release":
            # As if never claimed; so a suspect stays one, nothing has cleared it.
            state.wait(item, error=error, attempt=item.attempt - 1)


def put(state: MemoryState, new: NewEntry, now: Micros, *, repeat: bool = False) -> PutResult:
    """Put an entry; to be called inside ``atomic()``."""
    known = state.live.get(new.id)
    if known is None and (repeat or new.repeat):
        known = state.ended.get(new.id) or state.dead.get(new.id)
    if known is not None:
        if (known.queue, known.payload) != (new.queue, new.payload):
            raise refusals.id_taken(new.id, known.queue)
        return PutResult(known.id, known.queue, created=True, due_us=known.first_due_us)
    check_place(state, new.queue, new.priority, new.node)
    if new.unique is not None and (met := _meet_holder(state, new, new.unique, now)) is not None:
        return met
    due = due_at(new, now)
    item = Item(
        id=new.id, queue=new.queue, state="waiting", payload=new.payload, codec=new.codec, type=new.type,
        seq=next(state.seqs), priority=new.priority, created_us=now, due_us=due, first_due_us=due, attempt=0,
        generation=1, labels=dict(new.labels), headers=dict(new.headers), expires_us=expires_at(new, now),
        node=new.node,
    )  # fmt: skip
    if new.unique is not None:
        item.unique = new.unique.key
        item.mode = new.unique.mode
        item.period_us = 0 if new.unique.period is None else duration_micros(new.unique.period)
        state.hold(item, now)
    state.live[item.id] = item
    return PutResult(item.id, item.queue, created=True, due_us=due)


def check_place(state: MemoryState, queue: str, priority: int, node: str | None = None) -> None:
    """Refuse what the queue cannot order."""
    if not -100 <= priority <= 100:
        raise BadInput(f"priority {priority} is not allowed.", hint="Use -100 to 100; higher goes first.")
    known = state.lineup.queues.get(queue)
    if known is not None and known.fifo and (priority != 0 or node is not None):
        raise refusals.not_for_fifo(queue)


def _meet_holder(state: MemoryState, new: NewEntry, unique: Unique, now: Micros) -> PutResult | None:
    """What a put gives whose unique id is held; None when it is free."""
    hold = state.holder(new.queue, unique.key, now)
    if hold is None:
        return None
    if unique.on_conflict == "raise":
        raise refusals.unique_held(new.queue, unique.key, hold.id)
    holder = state.live.get(hold.id)  # None: it has ended, and its period still runs
    if unique.on_conflict == "replace" and holder is not None:
        if holder.lease is not None:
            raise refusals.unique_held(new.queue, unique.key, hold.id)
        due = due_at(new, now)
        holder = state.live[hold.id] = replace(
            holder, payload=new.payload, codec=new.codec, type=new.type, labels=dict(new.labels),
            headers=dict(new.headers), priority=new.priority, due_us=due, first_due_us=due,
            expires_us=expires_at(new, now), attempt=0, error=None, suspect=False,
            # The rows of its earlier attempts stay apart from those to come.
            generation=holder.generation + (holder.attempt > 0),
        )  # fmt: skip
    return PutResult(hold.id, new.queue, created=False, due_us=now if holder is None else holder.due_us)


def _puts_for(state: MemoryState, event: NewEvent) -> list[NewEntry]:
    """One put per subscription that wants the event, with an id that a repeat gives again."""
    return [
        replace(event.template, id=derived_id(event.template.id, name), queue=subscription.queue)
        for name, subscription in sorted(state.subscriptions.items())
        if not set(event.types).isdisjoint(subscription.types)
    ]


def _publish(state: MemoryState, event: NewEvent, now: Micros, *, repeat: bool) -> tuple[PutResult, ...]:
    return tuple(put(state, new, now, repeat=repeat) for new in _puts_for(state, event))


def fire(state: MemoryState, schedule: Schedule, next_us: Micros, entry: NewEntry | None, now: Micros) -> bool:
    """Move a schedule on and put its entry, if it has one this time, unless somebody else has."""
    stored = state.schedules.get(schedule.name)
    if stored is None or (stored.next_us, stored.version) != (schedule.next_us, schedule.version):
        return False
    with state.atomic():
        state.schedules[schedule.name] = replace(stored, next_us=next_us)
        if entry is not None:
            put(state, entry, now)
    return True


def write_notes(state: MemoryState, notes: Sequence[Note], now: Micros) -> list[bool]:
    """Write documents, each if its version is the one given; which were."""
    if not notes:
        return []
    with state.atomic():
        return [_write(state, note, now) for note in notes]


def _write(state: MemoryState, note: Note, now: Micros) -> bool:
    there = state.documents.get(note.name)
    version = 0 if there is None else there.version
    if note.version is not None and note.version != version:
        # Gone is what a removal wants; its own value, one version on, is what this very write has left before.
        return there is None if note.value is None else version == note.version + 1 and _value(there) == note.value
    if note.value is not None:
        state.documents[note.name] = Document(note.name, note.value, version + 1, now)
    elif there is not None:
        del state.documents[note.name]
    return True


def _value(there: Document | None) -> bytes | None:
    return None if there is None else there.value

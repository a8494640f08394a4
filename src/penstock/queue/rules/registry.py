"""What a space keeps besides entries: its queues' settings, locks, schedules, subscriptions, documents."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from penstock.clock import Micros
from penstock.queue import refusals
from penstock.queue.entry import Lock
from penstock.queue.protocol import Definition, Document, DocumentWrite, NewEntry, Schedule, Subscription
from penstock.queue.rules.put import put
from penstock.queue.rules.state import State


def define(state: State, name: str, definition: Definition) -> None:
    """Keep how a queue behaves."""
    queue = state.ready_queues.queue(name)
    if definition.fifo is not None and definition.fifo != queue.fifo and queue.live:
        raise refusals.fifo_fixed(name)
    if not definition.empty:
        queue.define(definition)
    state.ready_queues.note(queue)
    state.rang = True


# --- locks ---------------------------------------------------------------------------------------------


def lock(state: State, name: str, holder: str, reason: str, now: Micros) -> None:
    """Stop claims from a queue on behalf of one holder."""
    queue = state.ready_queues.queue(name)
    before = queue.locks.get(holder)
    queue.locks[holder] = Lock(name, holder, reason, before.since_us if before else now)
    state.ready_queues.note(queue)


def unlock(state: State, name: str, holder: str) -> bool:
    """Take one holder's lock away."""
    queue = state.ready_queues.queues.get(name)
    if queue is None or queue.locks.pop(holder, None) is None:
        return False
    state.ready_queues.note(queue)
    state.rang = True
    return True


def locks(state: State, queue: str | None) -> list[Lock]:
    """Locks on one queue, or all, by queue and holder."""
    every = [lock for known in state.ready_queues.queues.values() for lock in known.locks.values()]
    return sorted((lock for lock in every if queue in (None, lock.queue)), key=lambda lock: (lock.queue, lock.holder))


# --- schedules -----------------------------------------------------------------------------------------


def set_schedule(state: State, schedule: Schedule) -> bool:
    """Keep a schedule unless a higher version is there."""
    stored = state.schedules.get(schedule.name)
    if stored is not None and stored.version > schedule.version:
        return False
    if stored is not None and stored.is_paused:  # a new version changes what it does, not that it is paused
        schedule = replace(schedule, next_us=stored.next_us)
    if stored is None or replace(stored, next_us=schedule.next_us) != schedule:
        with state.atomic():
            state.schedules[schedule.name] = schedule
    return True


def remove_schedule(state: State, name: str) -> bool:
    """Forget a schedule. Returns whether it was there."""
    with state.atomic():
        known = name in state.schedules
        state.schedules.set(name, None)
    return known


def fire(state: State, schedule: Schedule, next_us: Micros, entry: NewEntry | None, now: Micros) -> bool:
    """Move a schedule on and put its entry, if it has one this time, unless somebody else has."""
    stored = state.schedules.get(schedule.name)
    if stored is None or (stored.next_us, stored.version) != (schedule.next_us, schedule.version):
        return False
    with state.atomic():
        state.schedules[schedule.name] = replace(stored, next_us=next_us)
        if entry is not None:
            put(state, entry, now)
    return True


# --- subscriptions -------------------------------------------------------------------------------------


def subscribe(state: State, subscription: Subscription) -> None:
    """Keep a subscription."""
    with state.atomic():
        state.subscriptions[subscription.name] = subscription


def unsubscribe(state: State, name: str) -> bool:
    """Forget a subscription. Returns whether it was there."""
    with state.atomic():
        known = name in state.subscriptions
        state.subscriptions.set(name, None)
    return known


# --- documents -----------------------------------------------------------------------------------------


def documents(state: State, prefix: str, since_us: Micros) -> list[Document]:
    """Documents by name."""
    every = state.documents.values()
    wanted = [document for document in every if document.name.startswith(prefix) and document.changed_us >= since_us]
    return sorted(wanted, key=lambda document: document.name)


def write_documents(state: State, writes: Sequence[DocumentWrite], now: Micros) -> list[bool]:
    """Write documents, each if its version is the one given. Returns which were written."""
    if not writes:
        return []
    with state.atomic():
        return [_write(state, write, now) for write in writes]


def _write(state: State, write: DocumentWrite, now: Micros) -> bool:
    stored = state.documents.get(write.name)
    version = 0 if stored is None else stored.version
    if write.version is not None and write.version != version:
        # Gone is what a removal wants; its own value, one version on, is what this very write has left before.
        if write.value is None:
            return stored is None
        return stored is not None and version == write.version + 1 and stored.value == write.value
    if write.value is not None:
        state.documents[write.name] = Document(write.name, write.value, version + 1, now)
    elif stored is not None:
        del state.documents[write.name]
    return True

"""Put: new entries, changed entries, and ended entries that are put again. All inside atomic()."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from penstock.clock import Micros, duration_micros
from penstock.errors import BadInput
from penstock.queue import refusals
from penstock.queue.entry import HELD, Unique
from penstock.queue.protocol import Changes, NewEntry, PutResult, Scope, due_at, expires_at
from penstock.queue.rules.endings import take_away
from penstock.queue.rules.repeats import known_put
from penstock.queue.rules.rows import Body, Claim, Live
from penstock.queue.rules.state import State

_CONTENT = ("payload", "codec", "type", "labels")


def put(state: State, entry: NewEntry, now: Micros) -> PutResult:
    """Put an entry."""
    known = state.known(entry.id)
    if known is not None:
        if known.queue != entry.queue or (known.payload != entry.payload and not known.stripped):
            raise refusals.id_taken(entry.id, known.queue)
        return known_put(state, entry, now)
    check_place(state, entry.queue, entry.priority, entry.node)
    unique = entry.unique
    if unique is not None:
        conflict = _unique_conflict(state, entry, unique, now)
        if conflict is not None:
            return conflict
    due, number = due_at(entry, now), next(state.seqs)
    body = Body(
        number, entry.id, entry.queue, entry.payload, entry.codec, entry.type, now, dict(entry.labels),
        dict(entry.headers),
    )  # fmt: skip
    if unique is not None:
        period = 0 if unique.period is None else duration_micros(unique.period)
        body = replace(body, unique=unique.key, unique_mode=unique.mode, period_us=period)
        state.hold_unique(body, now)
    state.entries[entry.id] = body
    state.add_ready(Live(body, number, entry.priority, due, due, expires_us=expires_at(entry, now), node=entry.node))
    return PutResult(entry.id, entry.queue, True, due)


def check_place(state: State, queue: str, priority: int, node: str | None = None) -> None:
    """Refuse what the queue cannot order."""
    if not -100 <= priority <= 100:
        raise BadInput(f"priority {priority} is not allowed.", hint="Use -100 to 100; higher goes first.")
    known = state.ready_queues.queues.get(queue)
    if known is not None and known.fifo and (priority != 0 or node is not None):
        raise refusals.not_for_fifo(queue)


def _unique_conflict(state: State, entry: NewEntry, unique: Unique, now: Micros) -> PutResult | None:
    """What a put comes to whose unique id is held, or None when it is free."""
    hold = state.holder(entry.queue, unique.key, now)
    if hold is None:
        return None
    if unique.on_conflict == "raise":
        raise refusals.unique_held(entry.queue, unique.key, hold.id)
    holder = state.live(hold.id)
    if holder is None:  # it has ended, and its period still runs
        return PutResult(hold.id, entry.queue, created=False, due_us=now)
    live, claim = holder
    if unique.on_conflict == "replace":
        if claim is not None:
            raise refusals.unique_held(entry.queue, unique.key, hold.id)
        due = own_due = due_at(entry, now)
        if live.is_held:
            due = HELD
        body = _rewrite(
            state, live.body, payload=entry.payload, codec=entry.codec, type=entry.type, labels=dict(entry.labels),
            headers=dict(entry.headers),
        )  # fmt: skip
        live = state.ready[hold.id] = replace(
            live, body=body, priority=entry.priority, due_us=due, first_due_us=own_due, attempt=0, error=None,
            expires_us=expires_at(entry, now), suspect=False,
            # The rows of its earlier attempts stay apart from those to come.
            generation=live.generation + (live.attempt > 0),
        )  # fmt: skip
    return PutResult(hold.id, entry.queue, False, live.first_due_us if live.is_held else live.due_us)


def _rewrite(state: State, body: Body, **content: Any) -> Body:
    """Give an entry another body; attempts that ended keep the one they saw."""
    if all(getattr(body, name) == value for name, value in content.items()):
        return body
    state.entries[body.id] = replaced = replace(body, number=next(state.seqs), **content)
    return replaced


# --- changes -------------------------------------------------------------------------------------------


def update(state: State, id_: str, changes: Changes, now: Micros, *, force: bool, scope: Scope | None) -> str:
    """Change an entry. Returns its queue's name."""
    live, claim = changeable(state, id_, force=force, scope=scope)
    if changes.priority is not None:
        check_place(state, live.queue, changes.priority)
    if claim is not None:
        take_away(state, live, state.holder_of[id_], now, error="taken away by an update")
        live = state.ready[id_]
    content = {name: value for name in _CONTENT if (value := getattr(changes, name)) is not None}
    if changes.labels is not None:
        content["labels"] = dict(changes.labels)
    fields: dict[str, Any] = {"body": _rewrite(state, live.body, **content)}
    if changes.priority is not None:
        fields["priority"] = changes.priority
    if changes.due_us is not None or changes.delay_us is not None:
        due = (now if changes.due_us is None else changes.due_us) + (changes.delay_us or 0)
        fields["due_us"] = HELD if live.is_held else due
        fields["first_due_us"] = due
    state.ready[id_] = replace(live, **fields)
    return live.queue


def changeable(state: State, id_: str, *, force: bool, scope: Scope | None) -> tuple[Live, Claim | None]:
    """A live entry that may be changed, and the claim that holds it."""
    known = state.live(id_)
    if known is None or (scope is not None and not scope.covers(known[0].queue)):
        raise refusals.not_live(id_)
    live, claim = known
    if claim is not None and not force:
        raise refusals.entry_leased(id_, live.queue, claim.owner)
    return live, claim


def replay(state: State, ids: Sequence[str], now: Micros, *, scope: Scope | None) -> list[tuple[str, str]]:
    """Put ended entries back as a new generation."""
    return [(id_, _replay_one(state, id_, now, scope)) for id_ in ids if state.live(id_) is None]


def _replay_one(state: State, id_: str, now: Micros, scope: Scope | None) -> str:
    letter = state.dead.get(id_)
    end = state.last_end(id_)
    live = letter.live if letter is not None else None if end is None else end.live
    body = state.entries.get(id_)
    # A purged entry is gone for good, although the history still shows it.
    if live is None or body is None or state.is_purged(id_) or (scope is not None and not scope.covers(live.queue)):
        raise refusals.not_ended(id_)
    # A period counts from the put, whatever happens to the entry afterwards.
    if body.unique is not None and body.unique_mode != "period":
        hold = state.holder(body.queue, body.unique, now)
        if hold is not None and hold.id != id_:
            raise refusals.unique_held(body.queue, body.unique, hold.id)
        state.hold_unique(body, now)
    if letter is not None:
        del state.dead[id_]
    state.results.set(id_, None)  # what its generation before returned is not the result of the one to come
    wait = state.waits.get(id_)
    due = HELD if wait is not None and wait.needs else now
    if due == HELD and state.ready_queues.queue(live.queue).fifo:
        raise refusals.held_in_fifo(live.queue)
    # Its old expiry has passed or soon will; who replays it wants it done now.
    state.add_ready(
        Live(live.body, next(state.seqs), live.priority, due, now, live.generation + 1, 0, live.fence, node=live.node)
    )
    return live.queue

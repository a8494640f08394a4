"""One entry: its life as a timeline, the traceback of each failed attempt, and all its fields."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Response

from penstock.clock import Micros
from penstock.queue.entry import Entry, HistoryRow
from penstock.queue.held import reasons
from penstock.queue.results import kept_value, progress_of
from penstock.service.access import check_queue
from penstock.service.dashboard.formatting import Pieces, headers_shown, span, trace_id, value_pieces
from penstock.service.dashboard.frame import PageRoute, Visiting
from penstock.service.dashboard.queues import QueueName
from penstock.service.schemas import ID

router = APIRouter(include_in_schema=False, route_class=PageRoute)

WORDS = {
    "done": ("ok", "done", "Done"),
    "dead": ("bad", "dead", "Dead letter"),
    "retried": ("bad wait", "dead", "Failed"),
    "reaped": ("warn wait", "gone", "Lease taken back: the worker had vanished"),
    "cancelled": ("", "cancel", "Cancelled"),
    "expired": ("warn", "delayed", "Expired: nobody claimed it in time"),
}


class Event(msgspec.Struct, frozen=True):
    """One point of a life."""

    at_us: Micros | None
    look: str
    icon: str
    what: str
    detail: str = ""
    error: str = ""
    traceback: str = ""
    gap: str = ""
    saw: Pieces | None = None  # the payload of this attempt, where the entry has another one now


class Generation(msgspec.Struct):
    """From a put or a replay to the end."""

    number: int
    events: list[Event]
    pieces: list[tuple[str, float, float]] = []  # kind, from and width in percent
    begin_us: Micros = 0
    end_us: Micros = 0
    in_workers_us: Micros = 0


@router.get("/ui/queues/{queue}/entries/{id:path}")
def show_entry(visiting: Visiting, queue: QueueName, id: Annotated[str, Path(max_length=64, pattern=ID)]) -> Response:
    """Show an entry, live, dead or ended."""
    reading = visiting.reading
    entry, rows = reading.entry(check_queue(visiting.key, queue), id)
    now = reading.now()
    state = entry.state if entry is not None else rows[-1].state
    last = entry if entry is not None else rows[-1]
    payload = entry.payload if entry is not None else next((row.payload for row in reversed(rows) if row.payload), None)
    result = kept_value(reading.queues, rows[-1]) if entry is None else None
    failed = next((row for row in reversed(rows) if row.error), None)
    return visiting.page(
        "entry.html",
        "queues",
        live="#entry-state,#life",
        name=queue,
        id=id,
        entry=entry,
        state=_state(entry, state, now),
        raw_state=state,
        rows=rows,
        generations=life(entry, rows, now, payload),
        labels=last.labels,
        headers=headers_shown(last.headers),
        trace=trace_id(last.headers),
        type=last.type,
        codec=last.codec,
        pieces=None if payload is None else value_pieces(payload, last.codec, last.type),
        payload_size=0 if payload is None else len(payload),
        last_error=(entry.error if entry is not None else None) or (failed.error if failed else None),
        created_us=last.created_us,
        waits_for=_waits_for(visiting, id) if state == "held" else [],
        progress=None if entry is None else progress_of(reading.queues, entry),
        result=None if result is None else value_pieces(result, "json", "Any"),
    )


def _waits_for(visiting: Visiting, id_: str) -> list[str]:
    """Why an entry is held; a key that sees only some queues gets the number of entries it waits for."""
    queues = visiting.reading.queues
    waits = queues.driver.waits([id_])
    if visiting.key.prefix:
        return [f"waits for {wait.needs:,} entries" for wait in waits]
    return [line for wait in waits for line in reasons(queues, wait)]


def _state(entry: Entry[Any] | None, state: str, now: Micros) -> tuple[str, str, str]:
    """The look, icon and word of a state."""
    if state == "waiting" and entry is not None:
        if entry.due_us > now:
            return ("warn", "retry", "retrying") if entry.attempt else ("", "delayed", "delayed")
        return "", "ready", "ready"
    return {
        "held": ("", "lock", "held"),
        "leased": ("ok", "leased", "leased"),
        "done": ("ok", "done", "done"),
        "dead": ("bad", "dead", "dead letter"),
        "cancelled": ("", "cancel", "cancelled"),
        "expired": ("warn", "delayed", "expired"),
        "retried": ("warn", "retry", "retrying"),
        "reaped": ("warn", "gone", "taken back"),
    }.get(state, ("", "ready", state))


def life(entry: Entry[Any] | None, rows: list[HistoryRow], now: Micros, payload: bytes | None) -> list[Generation]:
    """The generations of an entry, each with its events in the order they happened; ``payload`` is its own now."""
    by_number: dict[int, list[HistoryRow]] = {}
    for row in rows:
        by_number.setdefault(row.generation, []).append(row)
    if entry is not None:
        by_number.setdefault(entry.generation, [])
    return [_generation(number, by_number[number], entry, now, payload) for number in sorted(by_number)]


def _generation(
    number: int, rows: list[HistoryRow], entry: Entry[Any] | None, now: Micros, payload: bytes | None
) -> Generation:
    current = entry if entry is not None and entry.generation == number else None
    events: list[Event] = []
    runs: list[tuple[Micros, Micros]] = []
    first_run = next((row.started_us for row in rows if row.started_us is not None), None)
    begin = rows[0].created_us if rows else (current.created_us if current else now)
    if number > 1:  # a replay makes an entry due at once
        due = rows[0].due_us if rows else (current.due_us if current else now)
        begin = due if first_run is None else min(due, first_run)
    waited = None if first_run is None else first_run - begin
    what = "Put" if number == 1 else "Replayed"
    events.append(Event(begin, "wait", "put" if number == 1 else "replay", what, gap=_after("waited", waited)))
    for place, row in enumerate(rows):
        if row.started_us is not None:
            ran = row.ended_us - row.started_us
            runs.append((row.started_us, row.ended_us))
            events.append(
                Event(
                    row.started_us,
                    "run",
                    "leased",
                    f"Claimed by {_worker(row.owner)}: attempt {row.attempt}",
                    gap=_after("ran", ran),
                )
            )
        look, icon, word = WORDS.get(row.state, ("", "done", row.state))
        following = rows[place + 1].started_us if place + 1 < len(rows) else None
        if following is None and current is not None and current.state == "waiting":
            following = current.due_us
        gap = _after("again after", following - row.ended_us) if following is not None and "wait" in look else ""
        events.append(
            Event(
                row.ended_us,
                look,
                icon,
                word,
                error=row.error or "",
                traceback=row.traceback or "",
                gap=gap,
                saw=None
                if row.payload is None or row.payload == payload
                else value_pieces(row.payload, row.codec, row.type),
            )
        )
    if current is not None:
        events += _present(current, rows, now)
    ended = [event.at_us for event in events if event.at_us is not None]
    generation = Generation(number, events, begin_us=begin, end_us=max(ended, default=begin))
    _draw(generation, runs)
    return generation


def _present(entry: Entry[Any], rows: list[HistoryRow], now: Micros) -> list[Event]:
    """The current event of a life: what happens to the entry now."""
    if entry.state == "leased" and entry.lease is not None:
        lease = entry.lease
        return [
            Event(
                lease.claimed_us,
                "run",
                "leased",
                f"Claimed by {_worker(lease.owner)}: attempt {entry.attempt}",
                detail=f"runs for {span(now - lease.claimed_us)}; "
                f"its lease lasts another {span(max(0, lease.until_us - now))}",
            )
        ]
    if entry.state == "held":
        return [Event(None, "", "lock", "Held: it waits for other entries")]
    if entry.state == "waiting":
        is_due = entry.due_us <= now
        word = "Ready: it can be claimed" if is_due else f"Due in {span(entry.due_us - now)}"
        return [Event(entry.due_us, "", "ready" if is_due else "delayed", word)]
    if entry.state == "dead" and not any(row.state == "dead" for row in rows):
        return [
            Event(
                entry.ended_us, "bad", "dead", "Dead letter", error=entry.error or "", traceback=entry.traceback or ""
            )
        ]
    return []


def _draw(generation: Generation, runs: list[tuple[Micros, Micros]]) -> None:
    """Compute the bar: when the entry waited and when it was in a worker."""
    whole = generation.end_us - generation.begin_us
    if whole <= 0:
        return
    generation.in_workers_us = sum(end - begin for begin, end in runs)
    for begin, end in runs:
        start = 100 * (begin - generation.begin_us) / whole
        generation.pieces.append(("b-acc", round(max(0.0, start), 2), round(max(0.4, 100 * (end - begin) / whole), 2)))


def _after(word: str, length: Micros | None) -> str:
    return "" if length is None else f"{word} {span(max(0, length))}"


def _worker(owner: str | None) -> str:
    """Node and process of an owner ``node/pid-nonce``."""
    node, slash, rest = (owner or "somebody").partition("/")
    process = rest.partition("-")[0]
    return f"{node}, process {process}" if slash and process.isdigit() else owner or "somebody"

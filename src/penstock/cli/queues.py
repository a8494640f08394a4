"""``penstock queue``: look into queues, put, lock and unlock."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli.completing import queue_names
from penstock.cli.help import App
from penstock.cli.opened import AsJson, Url, open_existing, open_queue, suggestion
from penstock.cli.printing import (
    add,
    console,
    iso,
    pairs,
    payload,
    preview,
    print_json,
    span,
    table,
    when,
    without,
)
from penstock.cli.reading import labels as read_labels
from penstock.cli.reading import length, moment
from penstock.cli.reading import name as read_name
from penstock.cli.recording import record
from penstock.cli.watching import watchable
from penstock.clock import SECOND, Micros
from penstock.errors import BadInput, EntryNotFound
from penstock.gateway.item import masked_payload
from penstock.queue.entry import Counts, Entry, HistoryRow
from penstock.queue.queue import OPERATOR
from penstock.queue.queues import QueueStore

app = App(help="Look into queues and change them.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The queue.", autocompletion=queue_names)]
NUMBERS = ("ready", "delayed", "retrying", "leased", "dead", "attempt", "generation", "priority")
MOST = 1_000_000


# --- looking ---------------------------------------------------------------------------------------


@app.command("list")
@watchable
def list_(
    url: Url,
    family: Annotated[str, typer.Option(help="Only queues whose name starts with this.")] = "",
    as_json: AsJson = False,
) -> None:
    """What every queue holds, how long the oldest ready entry waits, who holds locks, and when a schedule puts next."""
    with open_existing(url) as store:
        now = store.now()
        fires: dict[str, Micros] = {}
        for schedule in store.schedules():
            if schedule.queue.startswith(family) and not schedule.is_paused:
                fires[schedule.queue] = min(schedule.next_us, fires.get(schedule.queue, schedule.next_us))
        known = {counts.queue: counts for counts in store.counts(family=family or None)}
        # A queue that a schedule will fill is listed even before the first fire.
        rows = [known.get(name) or Counts(name) for name in sorted({*known, *fires})]
        if as_json:
            print_json([_counts_json(row, now) | {"next_fire": iso(fires.get(row.queue))} for row in rows])
            return
        if not rows:
            typer.echo("There is no queue yet." if not family else f"No queue starts with {family!r}.")
            return
        more: dict[str, Callable[[Counts], str]] = {"locks": _locks_text}
        if any(row.held for row in rows):
            more["held"] = lambda row: str(row.held or "")
        if fires:
            more["next fire"] = lambda row: when(fires[row.queue], now) if row.queue in fires else ""
        shown = table("queue", *NUMBERS[:5], "oldest ready", *more, numbers=(*NUMBERS, "oldest ready"))
        for row in rows:
            add(
                shown, row.queue + (" (fifo)" if row.fifo else ""), row.ready, row.delayed, row.retrying, row.leased,
                row.dead, "" if row.oldest_ready_us is None else span(now - row.oldest_ready_us),
                *(cell(row) for cell in more.values()), style="yellow" if row.locks else "red" if row.dead else "",
            )  # fmt: skip
        console().print(shown)


@app.command()
@watchable
def show(  # noqa: PLR0917 - one parameter per option
    name: Name,
    url: Url,
    limit: Annotated[int, typer.Option(min=1, help="Rows of each kind.")] = 10,
    label: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="Only what has this label; may be repeated.")
    ] = None,
    traceback: Annotated[bool, typer.Option("--traceback", help="Also the tracebacks of failed attempts.")] = False,
    as_json: AsJson = False,
) -> None:
    """One queue: its counts, first entries, dead letters and last history."""
    with open_existing(url) as store:
        queue, wanted = open_queue(store, name), read_labels(label)
        now, counts = store.now(), queue.counts()
        entries, dead = queue.find(labels=wanted, limit=limit), queue.dead(labels=wanted, limit=limit)
        history = queue.history(labels=wanted, limit=limit, newest_first=True)
        if as_json:
            print_json(
                _counts_json(counts, now)
                | {
                    "entries": [entry_json(entry) for entry in entries],
                    "dead_letters": [entry_json(entry) for entry in dead],
                    "history": [history_json(row) for row in history],
                }
            )
            return
        typer.echo(
            f"{name}{' (fifo)' if counts.fifo else ''}: {counts.ready} ready, {counts.delayed} delayed, "
            f"{counts.retrying} retrying, {counts.leased} leased, {counts.dead} dead"
            f"{f', {counts.held} held' if counts.held else ''}"
        )
        for lock in counts.locks:
            typer.echo(f"locked by {lock.holder} {when(lock.since_us, now)}: {lock.reason or 'no reason given'}")
        _print_rows("entries", _ENTRY, entries, now)
        _print_rows("dead letters", _DEAD, dead, now)
        _print_rows("last history", _ROW, history, now)
        if traceback:
            _print_tracebacks([*dead, *history])


Cells = dict[str, Callable[[Any, Micros], object]]


def shown_payload(row: Entry[Any] | HistoryRow) -> bytes | None:
    """The payload, without the credentials of a queued request."""
    return None if row.payload is None else masked_payload(row.payload, row.type)


# Empty columns are left out; generation 1 and priority 0 count as empty.
_ENTRY: Cells = {
    "id": lambda row, now: row.id,
    "state": lambda row, now: f"leased by {row.lease.owner}" if row.lease else row.state,
    "due": lambda row, now: "until " + when(row.lease.until_us, now) if row.lease else when(row.due_us, now),
    "attempt": lambda row, now: row.attempt,
    "generation": lambda row, now: row.generation if row.generation > 1 else "",
    "priority": lambda row, now: row.priority or "",
    "labels": lambda row, now: pairs(row.labels),
    "error": lambda row, now: row.error or "",
    "payload": lambda row, now: preview(shown_payload(row)),
}
_DEAD: Cells = {
    "id": _ENTRY["id"],
    "died": lambda row, now: "" if row.ended_us is None else when(row.ended_us, now),
    "attempt": _ENTRY["attempt"],
    "generation": _ENTRY["generation"],
    "labels": _ENTRY["labels"],
    "error": _ENTRY["error"],
    "payload": _ENTRY["payload"],
}
_ROW: Cells = {
    "id": _ENTRY["id"],
    "ended": lambda row, now: when(row.ended_us, now),
    "as": lambda row, now: row.state,
    "attempt": _ENTRY["attempt"],
    "generation": _ENTRY["generation"],
    "took": lambda row, now: "" if row.started_us is None else span(row.ended_us - row.started_us),
    "labels": _ENTRY["labels"],
    "error": _ENTRY["error"],
}


def _print_rows(title: str, cells: Cells, rows: Sequence[Any], now: Micros) -> None:
    if not rows:
        return
    chosen = without({name: partial(_cell, cell, now) for name, cell in cells.items()}, list(rows))
    shown = table(*chosen, title=title, numbers=NUMBERS)
    for row in rows:
        add(shown, *(cell(row) for cell in chosen.values()))
    console().print(shown)


def _print_tracebacks(rows: Sequence[Entry[Any] | HistoryRow]) -> None:
    """One per attempt, also if a dead letter and its last row of the history have the same."""
    seen = set()
    for row in rows:
        attempt = (row.id, row.generation, row.attempt)
        if row.traceback is not None and attempt not in seen:
            seen.add(attempt)
            typer.echo(f"\n{row.id}, attempt {row.attempt}: {row.error}\n{row.traceback.rstrip()}")


def _cell(cell: Callable[[Any, Micros], object], now: Micros, row: Any) -> object:
    return cell(row, now)


# --- putting and locking ---------------------------------------------------------------------------


@app.command()
def put(  # noqa: PLR0917 - one parameter per option
    name: Name,
    value: Annotated[str, typer.Argument(metavar="JSON", help="The payload; - reads it from standard input.")],
    url: Url,
    delay: Annotated[str | None, typer.Option(help="Due after this long, such as 45m.")] = None,
    due: Annotated[str | None, typer.Option(help="Due at this time, such as 2026-05-01T08:00:00+02:00.")] = None,
    priority: Annotated[int, typer.Option(help="-100 to 100; higher is sooner.")] = 0,
    unique: Annotated[str | None, typer.Option(help="Put nothing while an entry with this unique id lives.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A label; may be repeated.")] = None,
    fifo: Annotated[bool, typer.Option("--fifo", help="Make the queue a FIFO queue.")] = False,
) -> None:
    """Put one entry; prints its id."""
    try:
        decoded = msgspec.json.decode(sys.stdin.buffer.read() if value == "-" else value)
    except msgspec.DecodeError as cause:
        raise BadInput(f"the payload is not JSON: {cause}.", hint="""In a shell, text is '"hello"'.""") from cause
    with open_existing(url) as store:
        known = store.queue(read_name(name)).exists()
        queue = store.queue(name, fifo=True if fifo else None)
        result = queue.put(
            decoded,
            delay=None if delay is None else timedelta(microseconds=length(delay, "delay")),
            due=None if due is None else moment(due, "due"),
            priority=priority,
            unique=unique,
            labels=read_labels(label),
        )
        typer.echo(result.id)
        if result.created:
            record(store, "put", name, "", result.id)
        if not known:
            typer.echo(f"{name} is a new queue. {suggestion(store, name)}", err=True)
        if not result.created:
            typer.echo(f"kept: this entry of {name} holds the unique id {unique!r} already; nothing was put", err=True)


@app.command("pause", help="Stop claims from a queue; another name for lock.")
@app.command()
def lock(
    name: Name,
    url: Url,
    holder: Annotated[str, typer.Option(help="On whose behalf.")] = OPERATOR,
    reason: Annotated[str, typer.Option(help="Why, for people who look at it.")] = "",
    create: Annotated[bool, typer.Option("--create", help="Also a queue that does not exist yet.")] = False,
) -> None:
    """Stop claims from a queue; work in hand continues."""
    with open_existing(url) as store:
        queue = store.queue(read_name(name))
        if not queue.exists() and not create:
            hint = f"{suggestion(store, name)}, or add --create to lock it before its first entry."
            raise EntryNotFound(f"there is no queue {name!r}.", hint=hint)
        before = _holders(store, name)
        former = [lock.reason for lock in store.locks(name) if lock.holder == holder and lock.reason != reason]
        queue.lock(holder=read_name(holder, "holder"), reason=reason)
        record(store, "lock", name, _locked(before), _locked(_holders(store, name)), why=reason)
        typer.echo(f"{name} is locked by {_holders(store, name)}")
        if former:
            typer.echo(f"the reason of {holder} was {former[0] or 'not given'!r} before and is replaced", err=True)


@app.command("resume", help="Take one holder's lock away; another name for unlock.")
@app.command()
def unlock(
    name: Name, url: Url, holder: Annotated[str, typer.Option(help="Whose lock to take away.")] = OPERATOR
) -> None:
    """Take one holder's lock away; without the last lock the queue continues."""
    with open_existing(url) as store:
        before = _holders(store, name)
        held = open_queue(store, name).unlock(holder=holder)
        left = _holders(store, name)
        if not held:
            typer.echo(f"{holder} held no lock on {name}; it is {f'locked by {left}' if left else 'not locked'}")
            raise typer.Exit(1)
        record(store, "unlock", name, _locked(before), _locked(left))
        typer.echo(f"{name} is still locked by {left}" if left else f"{name} is unlocked")


# --- inside ----------------------------------------------------------------------------------------


def _holders(store: QueueStore, name: str) -> str:
    return ", ".join(f"{lock.holder} ({lock.reason})" if lock.reason else lock.holder for lock in store.locks(name))


def _locked(holders: str) -> str:
    return f"locked by {holders}" if holders else "not locked"


def _locks_text(counts: Counts) -> str:
    return ", ".join(f"{lock.holder}: {lock.reason}" if lock.reason else lock.holder for lock in counts.locks)


def _counts_json(counts: Counts, now: Micros) -> dict[str, Any]:
    oldest = counts.oldest_ready_us
    return {
        "queue": counts.queue,
        "ready": counts.ready,
        "delayed": counts.delayed,
        "retrying": counts.retrying,
        "leased": counts.leased,
        "dead": counts.dead,
        "held": counts.held,
        "fifo": counts.fifo,
        "oldest_ready_seconds": None if oldest is None else (now - oldest) / SECOND,
        "locks": [{"holder": lock.holder, "reason": lock.reason, "since": iso(lock.since_us)} for lock in counts.locks],
    }


def entry_json(entry: Entry[Any]) -> dict[str, Any]:
    """An entry for scripts."""
    return {
        "id": entry.id,
        "state": entry.state,
        "attempt": entry.attempt,
        "generation": entry.generation,
        "priority": entry.priority,
        "created": iso(entry.created_us),
        "due": iso(entry.due_us),
        "ended": iso(entry.ended_us),
        "owner": entry.lease.owner if entry.lease else None,
        "unique": entry.unique,
        "labels": entry.labels,
        "error": entry.error,
        "traceback": entry.traceback,
        "payload": payload(shown_payload(entry), entry.codec),
    }


def history_json(row: HistoryRow) -> dict[str, Any]:
    """An ended attempt for scripts."""
    return {
        "id": row.id,
        "state": row.state,
        "attempt": row.attempt,
        "generation": row.generation,
        "owner": row.owner,
        "started": iso(row.started_us),
        "ended": iso(row.ended_us),
        "error": row.error,
        "traceback": row.traceback,
        "labels": row.labels,
        "payload": payload(shown_payload(row), row.codec),
        "gap": row.gap,
    }

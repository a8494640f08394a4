"""``penstock queue``: look into queues, put, lock and unlock, bring back and remove what has ended."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli.opened import AsJson, Url, Yes, open_existing
from penstock.cli.printing import (
    add,
    console,
    count,
    iso,
    pairs,
    payload,
    preview,
    print_json,
    span,
    table,
    when,
)
from penstock.clock import SECOND, Micros, duration_micros, from_micros, to_micros
from penstock.errors import BadInput, Conflict, EntryNotFound, PenstockError
from penstock.queue.entry import Counts, Entry, HistoryRow
from penstock.queue.queue import OPERATOR, Queue
from penstock.queue.store import Find, QueueStore

app = typer.Typer(help="Look into queues and change them.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The queue.")]
NUMBERS = ("ready", "delayed", "retrying", "leased", "dead", "attempt", "priority")
AT_ONCE = 500  # entries replayed in one step
MOST = 1_000_000


# --- looking ---------------------------------------------------------------------------------------


@app.command("list")
def list_(
    url: Url,
    family: Annotated[str, typer.Option(help="Only queues whose name starts with this.")] = "",
    as_json: AsJson = False,
) -> None:
    """What every queue holds, how long the oldest ready entry waits, and who holds locks."""
    with open_existing(url) as store:
        now = store.now()
        found = sorted(store.counts(family=family or None), key=lambda one: one.queue)
        if as_json:
            print_json([_counts_json(one, now) for one in found])
            return
        if not found:
            typer.echo("There is no queue yet." if not family else f"No queue starts with {family!r}.")
            return
        shown = table("queue", *NUMBERS[:5], "oldest ready", "locks", numbers=(*NUMBERS, "oldest ready"))
        for one in found:
            add(
                shown, one.queue + (" (fifo)" if one.fifo else ""), one.ready, one.delayed, one.retrying, one.leased,
                one.dead, "" if one.oldest_ready_us is None else span(now - one.oldest_ready_us), _locks_text(one),
                style="yellow" if one.locks else "red" if one.dead else "",
            )  # fmt: skip
        console().print(shown)


@app.command()
def show(
    name: Name,
    url: Url,
    limit: Annotated[int, typer.Option(min=1, help="Rows of each kind.")] = 10,
    as_json: AsJson = False,
) -> None:
    """One queue: its counts, first entries, dead letters and last history."""
    with open_existing(url) as store:
        queue = store.queue(name)
        now, counts = store.now(), queue.counts()
        entries, dead = queue.find(limit=limit), queue.dead(limit=limit)
        history = queue.history(limit=limit, newest_first=True)
        if as_json:
            print_json(
                _counts_json(counts, now)
                | {
                    "entries": [_entry_json(one) for one in entries],
                    "dead_letters": [_entry_json(one) for one in dead],
                    "history": [_history_json(one) for one in history],
                }
            )
            return
        out = console()
        typer.echo(
            f"{name}{' (fifo)' if counts.fifo else ''}: {counts.ready} ready, {counts.delayed} delayed, "
            f"{counts.retrying} retrying, {counts.leased} leased, {counts.dead} dead"
        )
        for lock in counts.locks:
            typer.echo(f"locked by {lock.holder} {when(lock.since_us, now)}: {lock.reason or 'no reason given'}")
        if entries:
            shown = table(
                "id", "state", "due", "attempt", "priority", "labels", "payload", title="entries", numbers=NUMBERS
            )
            for one in entries:
                state = f"leased by {one.lease.owner}" if one.lease else one.state
                due = "until " + when(one.lease.until_us, now) if one.lease else when(one.due_us, now)
                add(shown, one.id, state, due, one.attempt, one.priority, pairs(one.labels), preview(one.payload))
            out.print(shown)
        if dead:
            shown = table("id", "died", "attempt", "error", "payload", title="dead letters", numbers=NUMBERS)
            for one in dead:
                died = "" if one.ended_us is None else when(one.ended_us, now)
                add(shown, one.id, died, one.attempt, one.error or "", preview(one.payload))
            out.print(shown)
        if history:
            shown = table("id", "ended", "as", "attempt", "took", "error", title="last history", numbers=NUMBERS)
            for row in history:
                took = "" if row.started_us is None else span(row.ended_us - row.started_us)
                add(shown, row.id, when(row.ended_us, now), row.state, row.attempt, took, row.error or "")
            out.print(shown)


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
        queue = store.queue(name, fifo=True if fifo else None)
        result = queue.put(
            decoded, delay=delay, due=None if due is None else _moment(due, "due"), priority=priority, unique=unique,
            labels=_labels(label or []),
        )  # fmt: skip
        typer.echo(result.id)
        if not result.created:
            typer.echo(f"kept: this entry of {name} holds the unique id {unique!r} already; nothing was put", err=True)


@app.command()
def lock(
    name: Name,
    url: Url,
    holder: Annotated[str, typer.Option(help="On whose behalf.")] = OPERATOR,
    reason: Annotated[str, typer.Option(help="Why, for whoever looks at it.")] = "",
) -> None:
    """Stop claims from a queue; work in hand goes on."""
    with open_existing(url) as store:
        store.queue(name).lock(holder=holder, reason=reason)
        typer.echo(f"{name} is locked by {_holders(store, name)}")


@app.command()
def unlock(
    name: Name, url: Url, holder: Annotated[str, typer.Option(help="Whose lock to take away.")] = OPERATOR
) -> None:
    """Take one holder's lock away; the queue goes on when it was the last."""
    with open_existing(url) as store:
        held = store.queue(name).unlock(holder=holder)
        left = _holders(store, name)
        if not held:
            typer.echo(f"{holder} held no lock on {name}; it is {f'locked by {left}' if left else 'not locked'}")
            raise typer.Exit(1)
        typer.echo(f"{name} is still locked by {left}" if left else f"{name} is unlocked")


# --- bringing back and removing --------------------------------------------------------------------


@app.command()
def replay(
    name: Name,
    url: Url,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Ended entries to bring back.")] = None,
    dead: Annotated[bool, typer.Option("--dead", help="All dead letters of the queue; needs --yes.")] = False,
    yes: Yes = False,
) -> None:
    """Put ended entries back to the tail of their queue, as a new generation of the same id."""
    if bool(ids) == dead:
        raise BadInput("replay needs ids or --dead.", hint="Give exactly one of them; `queue show` lists ids.")
    with open_existing(url) as store:
        queue = store.queue(name)
        if ids:
            _check_ended(queue, ids)
            typer.echo(f"replayed {count(queue.replay(*ids), 'entry', 'entries')} of {name}")
            return
        letters = queue.dead(limit=MOST)
        _announce("replay", letters, name, store.now())
        if letters and not yes:
            _needs_yes()
        done, refused = _replay_all(queue, [one.id for one in letters])
        typer.echo(f"replayed {count(done, 'dead letter')} of {name}")
        for id_, why in refused:
            typer.echo(f"not replayed: {id_}: {why}", err=True)
        if refused:
            raise typer.Exit(1)


@app.command()
def purge(
    name: Name,
    url: Url,
    dead: Annotated[bool, typer.Option("--dead", help="The dead letters; nothing else can be purged.")] = False,
    before: Annotated[
        str | None, typer.Option(help="Only those that died before this time, or longer ago than this, such as 30d.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Remove dead letters for good."""
    if not dead:
        raise BadInput("purge needs --dead.", hint="Only dead letters can be purged; live entries are cancelled.")
    with open_existing(url) as store:
        queue = store.queue(name)
        # What dies while the operator reads the list is not on it, so it stays.
        limit_us = store.now() if before is None else _before(before, store.now())
        letters = [one for one in queue.dead(limit=MOST) if (one.ended_us or 0) < limit_us]
        _announce("purge", letters, name, store.now())
        if letters and not yes:
            _needs_yes()
        gone = queue.purge_dead(before=from_micros(limit_us)) if letters else 0
        typer.echo(f"purged {count(gone, 'dead letter')} of {name}")


@app.command()
def prune(
    url: Url,
    older_than: Annotated[str, typer.Option(help="Remove history that ended longer ago than this.")] = "7d",
    yes: Yes = False,
) -> None:
    """Remove old history of all queues; live entries and dead letters stay. Workers do this by themselves."""
    older_than_us = duration_micros(older_than, name="older-than")
    with open_existing(url) as store:
        found = len(store.history(Find(before_us=store.now() - older_than_us, limit=10_001)))
        rows = count(found, "history row") if found <= 10_000 else "more than 10,000 history rows"
        if found and not yes:
            typer.echo(f"would prune {rows}, older than {older_than}")
            _needs_yes()
        gone = 0
        while (batch := store.prune(older_than_us=older_than_us, limit=1000)) > 0:
            gone += batch
        typer.echo(f"pruned {count(gone, 'history row')}")


# --- inside ----------------------------------------------------------------------------------------


def _needs_yes() -> None:
    typer.echo("Nothing was changed; add --yes to do it.")
    raise typer.Exit(1)


def _announce(verb: str, letters: list[Entry[Any]], name: str, now: Micros) -> None:
    if not letters:
        typer.echo(f"{name} has no such dead letters")
        return
    typer.echo(f"{verb} {count(len(letters), 'dead letter')} of {name}:")
    shown = table("id", "died", "attempt", "error", numbers=NUMBERS)
    for one in letters[:10]:
        add(shown, one.id, "" if one.ended_us is None else when(one.ended_us, now), one.attempt, one.error or "")
    console().print(shown)
    if len(letters) > 10:
        typer.echo(f"... and {len(letters) - 10:,} more")


def _replay_all(queue: Queue[Any], ids: list[str]) -> tuple[int, list[tuple[str, str]]]:
    """Replay in steps; where a step is refused as a whole, one by one, so that one entry stops no other."""
    done, refused = 0, []
    for start in range(0, len(ids), AT_ONCE):
        part = ids[start : start + AT_ONCE]
        try:
            done += queue.replay(*part)
        except (Conflict, EntryNotFound):
            for id_ in part:
                try:
                    done += queue.replay(id_)
                except PenstockError as error:
                    refused.append((id_, str(error)))
    return done, refused


def _check_ended(queue: Queue[Any], ids: list[str]) -> None:
    """An id of another queue is a slip, not a wish."""
    where = Find(queue=queue.name, ids=tuple(ids), limit=MOST)
    known = {one.id for one in queue.store.dead(where)} | {row.id for row in queue.store.history(where)}
    for id_ in ids:
        if id_ not in known:
            raise EntryNotFound(
                f"queue {queue.name!r} has no ended entry {id_!r}.", hint=f"See: penstock queue show {queue.name}"
            )


def _holders(store: QueueStore, name: str) -> str:
    return ", ".join(f"{one.holder} ({one.reason})" if one.reason else one.holder for one in store.locks(name))


def _moment(text: str, option: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as cause:
        raise BadInput(f"--{option} {text!r} is not a time.", hint="Write it as 2026-05-01T08:00:00+02:00.") from cause


def _before(text: str, now: Micros) -> Micros:
    """A time, or how long ago."""
    try:
        return now - duration_micros(text, name="before")
    except BadInput:
        return to_micros(_moment(text, "before"), name="before")


def _labels(texts: list[str]) -> dict[str, str]:
    labels = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise BadInput(f"label {text!r} has no value.", hint="Write it as --label customer=ann.")
        labels[key] = value
    return labels


def _locks_text(counts: Counts) -> str:
    return ", ".join(f"{one.holder}: {one.reason}" if one.reason else one.holder for one in counts.locks)


def _counts_json(counts: Counts, now: Micros) -> dict[str, Any]:
    oldest = counts.oldest_ready_us
    return {
        "queue": counts.queue,
        "ready": counts.ready,
        "delayed": counts.delayed,
        "retrying": counts.retrying,
        "leased": counts.leased,
        "dead": counts.dead,
        "fifo": counts.fifo,
        "oldest_ready_seconds": None if oldest is None else (now - oldest) / SECOND,
        "locks": [{"holder": one.holder, "reason": one.reason, "since": iso(one.since_us)} for one in counts.locks],
    }


def _entry_json(entry: Entry[Any]) -> dict[str, Any]:
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
        "payload": payload(entry.payload, entry.codec),
    }


def _history_json(row: HistoryRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "state": row.state,
        "attempt": row.attempt,
        "generation": row.generation,
        "owner": row.owner,
        "started": iso(row.started_us),
        "ended": iso(row.ended_us),
        "error": row.error,
        "labels": row.labels,
    }

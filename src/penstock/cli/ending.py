"""``penstock queue cancel``, ``replay``, ``purge``, ``prune``: end what lives, bring back and remove what has ended."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.opened import Url, Yes, open_existing, open_queue
from penstock.cli.printing import add, console, count, pairs, preview, table, when
from penstock.cli.queues import MOST, NUMBERS, Name
from penstock.cli.reading import before as read_before
from penstock.cli.reading import labels as read_labels
from penstock.cli.reading import length
from penstock.clock import Micros, from_micros
from penstock.errors import BadInput, Conflict, EntryNotFound, PenstockError
from penstock.queue.driver import REMEMBERED
from penstock.queue.entry import Entry
from penstock.queue.protocol import Find
from penstock.queue.queue import Queue
from penstock.queue.queues import QueueStore
from penstock.requests.item import masked_payload

AT_ONCE = 500  # entries replayed in one step
SHOWN = 10
MOST_COUNTED = 10_000


def cancel(  # noqa: PLR0917 - one parameter per option
    name: Name,
    url: Url,
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Live entries to end.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="All waiting entries with this label; may be repeated.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also those that a worker has; it loses them.")] = False,
    yes: Yes = False,
) -> None:
    """End entries as cancelled, by id or by label; what a worker has is left to it unless forced."""
    if bool(ids) == bool(label):
        raise BadInput("cancel needs ids or --label.", hint="Give exactly one of them; `queue show` lists ids.")
    with open_existing(url) as store:
        queue = open_queue(store, name)
        if ids:
            found = [queue.get(id_) for id_ in ids]
        else:
            found = queue.find(labels=read_labels(label), state=None if force else "waiting", limit=MOST)
        _list_entries("cancel", found, name, store.now())
        if found and not yes:
            needs_yes()
        done = 0
        for one in found:
            try:
                done += queue.cancel(one.id, force=force)
            except PenstockError as error:
                typer.echo(f"not cancelled: {one.id}: {error}", err=True)
        typer.echo(f"cancelled {count(done, 'entry', 'entries')} of {name}")
        if done < len(found):
            raise typer.Exit(1)


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
        queue = open_queue(store, name)
        if ids:
            _check_ended(queue, ids)
            typer.echo(f"replayed {count(queue.replay(*ids), 'entry', 'entries')} of {name}")
            return
        letters = queue.dead(limit=MOST)
        _announce("replay", letters, name, store.now())
        if letters and not yes:
            needs_yes()
        done, refused = _replay_all(queue, [one.id for one in letters])
        typer.echo(f"replayed {count(done, 'dead letter')} of {name}")
        for id_, why in refused:
            typer.echo(f"not replayed: {id_}: {why}", err=True)
        if refused:
            raise typer.Exit(1)


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
        queue = open_queue(store, name)
        # What dies while the operator reads the list is not on it, so it stays.
        limit_us = store.now() if before is None else read_before(before, store.now())
        letters = [one for one in queue.dead(limit=MOST) if (one.ended_us or 0) < limit_us]
        _announce("purge", letters, name, store.now())
        if letters and not yes:
            needs_yes()
        gone = queue.purge_dead(before=from_micros(limit_us)) if letters else 0
        typer.echo(f"purged {count(gone, 'dead letter')} of {name}")


def prune(
    url: Url,
    older_than: Annotated[str, typer.Option(help="Remove history that ended longer ago than this.")] = "7d",
    yes: Yes = False,
) -> None:
    """Remove old history of all queues; live entries and dead letters stay. Workers do this by themselves.

    What ended in the last 15 minutes is always kept: by it a call is recognised that is repeated after a lost reply.
    """
    asked_us = length(older_than, "older-than")
    older_than_us = max(asked_us, REMEMBERED)
    with open_existing(url) as store:
        now = store.now()
        old = _history_rows(store, Find(before_us=now - older_than_us, limit=MOST_COUNTED + 1))
        recent = (
            ""
            if asked_us >= older_than_us
            else _history_rows(
                store, Find(from_us=now - older_than_us, before_us=now - asked_us, limit=MOST_COUNTED + 1)
            )
        )
        if old and not yes:
            typer.echo(f"would prune {old}, older than {older_than if asked_us == older_than_us else '15m'}")
            _tell_kept(recent)
            needs_yes()
        gone = 0
        while (batch := store.driver.prune(older_than_us=older_than_us, limit=1000)) > 0:
            gone += batch
        typer.echo(f"pruned {count(gone, 'history row')}")
        _tell_kept(recent)


# --- inside ----------------------------------------------------------------------------------------


def _history_rows(store: QueueStore, where: Find) -> str:
    """How many rows there are, in words; empty for none."""
    found = len(store.driver.history(where))
    if found > MOST_COUNTED:
        return f"more than {MOST_COUNTED:,} history rows"
    return count(found, "history row") if found else ""


def _tell_kept(rows: str) -> None:
    if rows:
        typer.echo(
            f"{rows} of the last 15 minutes kept: a call whose reply was lost is recognised by them when it is repeated"
        )


def needs_yes() -> None:
    """Nothing is done without it."""
    typer.echo("Nothing was changed; add --yes to do it.")
    raise typer.Exit(1)


def _announce(verb: str, letters: list[Entry[Any]], name: str, now: Micros) -> None:
    if not letters:
        typer.echo(f"{name} has no such dead letters")
        return
    typer.echo(f"{verb} {count(len(letters), 'dead letter')} of {name}:")
    shown = table("id", "died", "attempt", "error", numbers=NUMBERS)
    for one in letters[:SHOWN]:
        add(shown, one.id, "" if one.ended_us is None else when(one.ended_us, now), one.attempt, one.error or "")
    console().print(shown)
    if len(letters) > SHOWN:
        typer.echo(f"... and {len(letters) - SHOWN:,} more")


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
    known = {one.id for one in queue.store.driver.dead(where)} | {row.id for row in queue.store.driver.history(where)}
    for id_ in ids:
        if id_ not in known:
            raise EntryNotFound(
                f"queue {queue.name!r} has no ended entry {id_!r}.", hint=f"See: penstock queue show {queue.name}"
            )


def _list_entries(verb: str, entries: list[Entry[Any]], name: str, now: Micros) -> None:
    if not entries:
        typer.echo(f"{name} has no such entries")
        return
    typer.echo(f"{verb} {count(len(entries), 'entry', 'entries')} of {name}:")
    shown = table("id", "state", "due", "labels", "payload")
    for one in entries[:SHOWN]:
        add(
            shown,
            one.id,
            one.state,
            when(one.due_us, now),
            pairs(one.labels),
            preview(masked_payload(one.payload, one.type)),
        )
    console().print(shown)
    if len(entries) > SHOWN:
        typer.echo(f"... and {len(entries) - SHOWN:,} more")

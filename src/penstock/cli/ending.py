"""``penstock queue cancel``, ``replay``, ``delete``, ``purge``, ``prune``: end what lives, bring back what ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from penstock.cli.choosing import All, Choice, Chosen, Error, Ids, Label, announce, chosen_from
from penstock.cli.opened import Url, Yes, open_existing, open_queue
from penstock.cli.printing import count, needs_yes
from penstock.cli.queues import Name
from penstock.cli.reading import before as read_before
from penstock.cli.reading import labels as read_labels
from penstock.cli.reading import length
from penstock.cli.recording import record
from penstock.clock import from_micros
from penstock.errors import BadInput, Conflict, EntryLeased, EntryNotFound, PenstockError
from penstock.queue.forgetting import REMEMBERED
from penstock.queue.protocol import Find
from penstock.queue.queue import Queue
from penstock.queue.queues import QueueStore
from penstock.queue.refusals import entry_leased
from penstock.queue.removal import check_deletable

AT_ONCE = 500  # entries that one step changes
ENTRIES, DEAD = ("entry", "entries"), ("dead letter", "dead letters")
MOST_COUNTED = 10_000


def cancel(  # noqa: PLR0917 - one parameter per option
    name: Name,
    url: Url,
    ids: Ids = None,
    label: Label = None,
    error: Error = "",
    all_: All = False,
    force: Annotated[bool, typer.Option("--force", help="Also those that a worker has; it loses them.")] = False,
    yes: Yes = False,
) -> None:
    """End live entries as cancelled; leased ones are left to their workers unless forced."""
    choice = Choice(ids=ids or [], labels=read_labels(label), error=error, everything=all_)
    choice.check("cancel")
    with open_existing(url) as store:
        queue = open_queue(store, name)
        chosen, leased = Chosen([], []), []
        if choice.ids:
            for entry in [queue.get(id_) for id_ in choice.resolve(store, name)]:
                if entry.lease is not None and not force:
                    leased.append((entry.id, str(entry_leased(entry.id, name, entry.lease.owner))))
                else:
                    chosen.take(entry)
        else:
            states = None if force else ("waiting",)
            chosen = chosen_from(store.driver.find, Find(queue=name, states=states), choice)
        if chosen.ids or not leased:
            announce("cancel", chosen, ENTRIES, name, store.now())
        if chosen.ids and not yes:
            _print_refused("cancelled", leased)
            needs_yes()
        done, refused = _in_steps(lambda *some: queue.cancel(*some, force=force), chosen.ids)
        if done:
            record(store, "cancelling", name, f"{count(done, *ENTRIES)} ({choice.in_words()})", "cancelled")
        typer.echo(f"cancelled {count(done, *ENTRIES)} of {name}")
        _tell_refused("cancelled", leased + refused)


def replay(  # noqa: PLR0917 - one parameter per option
    name: Name,
    url: Url,
    ids: Ids = None,
    label: Label = None,
    error: Error = "",
    all_: All = False,
    yes: Yes = False,
) -> None:
    """Put ended entries back to the tail of their queue, as a new generation of the same id.

    By id whatever has ended; by label, by error or all: dead letters.
    """
    choice = Choice(ids=ids or [], labels=read_labels(label), error=error, everything=all_)
    choice.check("replay")
    with open_existing(url) as store:
        queue = open_queue(store, name, or_deleted=True)
        if choice.ids:
            whole = choice.resolve(store, name)
            _check_ended(queue, whole)
            done = queue.replay(*whole)
            record(store, "replay", name, f"{count(done, *ENTRIES)}: {' '.join(whole)}", "ready")
            typer.echo(f"replayed {count(done, *ENTRIES)} of {name}")
            return
        chosen = chosen_from(store.driver.dead, Find(queue=name), choice)
        announce("replay", chosen, DEAD, name, store.now())
        if chosen.ids and not yes:
            needs_yes()
        done, refused = _in_steps(queue.replay, chosen.ids)
        if done:
            record(store, "replay", name, f"{count(done, *DEAD)} ({choice.in_words()})", "ready")
        typer.echo(f"replayed {count(done, *DEAD)} of {name}")
        _tell_refused("replayed", refused)


def delete(name: Name, url: Url, yes: Yes = False) -> None:
    """Take an empty queue off the lists and forget its settings and locks; a put brings it back."""
    with open_existing(url) as store:
        locks = open_queue(store, name).locks()
        check_deletable(store, name)
        if not yes:
            typer.echo(f"would delete the empty queue {name} and {count(len(locks), 'lock')} on it")
            needs_yes()
        store.queue(name).delete()
        record(store, "deletion of queue", name, f"empty, {count(len(locks), 'lock')}", "deleted")
        typer.echo(f"deleted {name}")


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
        everything = Choice(ids=[], labels={}, error="", everything=True)
        letters = chosen_from(store.driver.dead, Find(queue=name, before_us=limit_us), everything)
        announce("purge", letters, DEAD, name, store.now())
        if letters.ids and not yes:
            needs_yes()
        gone = queue.purge_dead(before=from_micros(limit_us)) if letters.ids else 0
        if gone:
            record(store, "purge of dead letters", name, count(gone, *DEAD), "removed")
        typer.echo(f"purged {count(gone, 'dead letter')} of {name}")


def prune(
    url: Url,
    older_than: Annotated[str, typer.Option(help="Remove history that ended longer ago than this.")] = "7d",
    yes: Yes = False,
) -> None:
    """Remove old history of all queues; live entries and dead letters stay. Workers do this by themselves.

    The last 15 minutes are always kept: they show whether a call is a repetition after a lost reply.
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
        if gone:
            record(store, "pruning of history", "(all queues)", count(gone, "history row"), "removed")
        typer.echo(f"pruned {count(gone, 'history row')}")
        _tell_kept(recent)


# --- inside ----------------------------------------------------------------------------------------


def _history_rows(store: QueueStore, where: Find) -> str:
    """The number of rows, in words; empty for none."""
    number = len(store.driver.history(where))
    if number > MOST_COUNTED:
        return f"more than {MOST_COUNTED:,} history rows"
    return count(number, "history row") if number else ""


def _tell_kept(rows: str) -> None:
    if rows:
        typer.echo(f"{rows} of the last 15 minutes kept: they show whether a call is repeated after a lost reply")


def _in_steps(act: Callable[..., int], ids: list[str]) -> tuple[int, list[tuple[str, str]]]:
    """Act on many entries at a time; if that is refused, one by one, so that one does not stop the others."""
    done, refused = 0, []
    for start in range(0, len(ids), AT_ONCE):
        part = ids[start : start + AT_ONCE]
        try:
            done += act(*part)
        except (Conflict, EntryLeased, EntryNotFound):
            for id_ in part:
                try:
                    done += act(id_)
                except PenstockError as error:
                    refused.append((id_, str(error)))
    return done, refused


def _print_refused(done: str, refused: list[tuple[str, str]]) -> None:
    for id_, why in refused:
        typer.echo(f"not {done}: {id_}: {why}", err=True)


def _tell_refused(done: str, refused: list[tuple[str, str]]) -> None:
    _print_refused(done, refused)
    if refused:
        raise typer.Exit(1)


def _check_ended(queue: Queue[Any], ids: list[str]) -> None:
    """Refuse ids that have not ended in this queue: they are probably typos, or live again already."""
    where = Find(queue=queue.name, ids=tuple(ids), limit=100 * len(ids))
    for entry in queue.store.driver.find(where):
        raise EntryNotFound(
            f"queue {queue.name!r} has no ended entry {entry.id!r}: it is {entry.state}.",
            hint="Only what has ended can be replayed.",
        )
    known = {entry.id for entry in queue.store.driver.dead(where)} | {
        row.id for row in queue.store.driver.history(where)
    }
    for id_ in ids:
        if id_ not in known:
            raise EntryNotFound(
                f"queue {queue.name!r} has no ended entry {id_!r}.", hint=f"See: penstock queue show {queue.name}"
            )

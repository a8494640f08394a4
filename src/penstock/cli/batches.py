"""``penstock batch``: what is held, what has become of a batch, and cancelling one."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from penstock.cli.help import App
from penstock.cli.opened import AsJson, Url, Yes, open_existing
from penstock.cli.printing import add, console, count, iso, needs_yes, print_json, table, when
from penstock.cli.recording import record
from penstock.cli.watching import watchable
from penstock.queue.batch import BatchLine, batch_status, cancel_batch, held_batches
from penstock.queue.held import reasons
from penstock.queue.search import resolve_id

app = App(help="Look at batches, and cancel them.")

Id = Annotated[str, typer.Argument(metavar="ID", help="Of the batch: that of the entry which waits, or a part of it.")]


@app.command("list")
@watchable
def list_held(
    url: Url,
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Of this queue only.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="How many at most.")] = 100,
    as_json: AsJson = False,
) -> None:
    """What is held, in the order it was put: batches, chains, and entries put after others."""
    with open_existing(url) as store:
        lines, now = held_batches(store, queue=queue, limit=limit), store.now()
    if as_json:
        print_json([_line_json(line) for line in lines])
        return
    shown = table("id", "queue", "put", "to go", "ended", numbers=("to go",))
    for line in lines:
        ended = ", ".join(f"{count:,} {state}" for state, count in line.tally.items() if count)
        add(shown, line.id, line.queue, when(line.created_us, now), f"{line.needs:,}", ended or "none yet")
    console().print(shown)


def _line_json(line: BatchLine) -> dict[str, Any]:
    shown = msgspec.structs.asdict(line)
    del shown["created_us"]
    return {**shown, "created": iso(line.created_us)}


@app.command()
@watchable
def show(id: Id, url: Url, as_json: AsJson = False) -> None:
    """A batch: what its entry waits for, how members ended, and how many are in which state."""
    with open_existing(url) as store:
        status = batch_status(store, resolve_id(store, id))
        waits = store.driver.waits([status.id]) if status.state == "held" else []
        lines = [line for wait in waits for line in reasons(store, wait)]
    if as_json:
        print_json({**msgspec.structs.asdict(status), "waits_for": lines})
        return
    typer.echo(f"batch {status.id}: its entry in queue {status.queue} is {status.state}")
    tally = ", ".join(f"{count:,} {state}" for state, count in status.tally.items() if count)
    typer.echo(f"  ended    {tally or 'none yet'}; {status.needs:,} to go")
    members = ", ".join(f"{count:,} {state}" for state, count in sorted(status.members.items()))
    typer.echo(f"  members  {members or 'none are kept'}")
    for line in lines:
        typer.echo(f"  held     {line}")


@app.command()
def cancel(id: Id, url: Url, yes: Yes = False) -> None:
    """Cancel what is left of a batch: the entry that waits, then its members, also those that run."""
    with open_existing(url) as store:
        status = batch_status(store, resolve_id(store, id))
        left = sum(status.members.get(state, 0) for state in ("waiting", "held", "leased"))
        if status.state != "held" and not left:
            typer.echo(f"batch {status.id} has ended: its entry in queue {status.queue} is {status.state}.")
            return
        if not yes:
            verb = "has" if left == 1 else "have"
            typer.echo(f"batch {status.id}: its entry is {status.state}, {count(left, 'member')} {verb} not ended.")
            needs_yes()
        cancelled = cancel_batch(store, status.id)
        record(
            store, "cancel of batch", status.id, f"{status.state}, {left:,} members left", f"{cancelled:,} cancelled"
        )
        typer.echo(f"{cancelled:,} cancelled")

"""``penstock batch``: what has become of a batch, and cancelling one."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from penstock.cli.help import App
from penstock.cli.opened import AsJson, Url, open_existing
from penstock.cli.printing import print_json
from penstock.cli.watching import watchable
from penstock.queue.batch import batch_status, cancel_batch, reasons
from penstock.queue.search import resolve_id

app = App(help="Look at batches, and cancel them.")

Id = Annotated[str, typer.Argument(metavar="ID", help="Of the batch: that of the entry which waits, or a part of it.")]


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
def cancel(
    id: Id, url: Url, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")] = False
) -> None:
    """Cancel what is left of a batch: the entry that waits, then its members, also those that run."""
    with open_existing(url) as store:
        status = batch_status(store, resolve_id(store, id))
        left = sum(status.members.get(state, 0) for state in ("waiting", "held", "leased"))
        if not yes:
            typer.confirm(f"Cancel batch {status.id} with {left:,} members that have not ended?", abort=True)
        typer.echo(f"{cancel_batch(store, status.id):,} cancelled")

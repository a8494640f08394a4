"""``penstock changes``: who changed what by hand, from the command line, over HTTP or in the dashboard."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.opened import AsJson, Url, open_existing
from penstock.cli.printing import add, console, iso, print_json, table, when
from penstock.cli.watching import watchable
from penstock.queue.changes import recent_changes


@watchable
def changes(
    url: Url,
    target: Annotated[str | None, typer.Option(help="Only those of this queue, log, schedule or circuit.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Who changed what by hand in the last 30 days, with the state before and after it."""
    with open_existing(url) as store:
        now, listed = store.now(), recent_changes(store, target)[:limit]
    if as_json:
        print_json(
            [
                {
                    "at": iso(change.at_us), "by": change.by, "did": change.did, "target": change.target,
                    "before": change.before, "after": change.after, "why": change.why,
                }
                for change in listed
            ]
        )  # fmt: skip
        return
    if not listed:
        typer.echo("Nobody has changed anything by hand in the last 30 days.")
        return
    shown = table("when", "who", "what", "target", "before", "after", "why")
    for change in listed:
        at = when(change.at_us, now)
        add(shown, at, change.by, change.did, change.target, change.before, change.after, change.why)
    console().print(shown)

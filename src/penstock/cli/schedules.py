"""``penstock schedule`` and ``penstock bus``: what puts entries by itself."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.opened import AsJson, Url, Yes, open_existing
from penstock.cli.printing import add, console, iso, payload, preview, print_json, span, table, when
from penstock.errors import EntryNotFound
from penstock.queue.protocol import Schedule

app = typer.Typer(help="Cron lines and intervals that put entries.", no_args_is_help=True)
bus_app = typer.Typer(help="Subscriptions of the bus.", no_args_is_help=True)


@app.command("list")
def list_(url: Url, as_json: AsJson = False) -> None:
    """All schedules and when they fire next."""
    with open_existing(url) as store:
        now, found = store.now(), store.schedules()
        if as_json:
            print_json(
                [
                    {
                        "name": one.name,
                        "queue": one.queue,
                        "when": one.spec,
                        "zone": one.zone,
                        "version": one.version,
                        "next": iso(one.next_us),
                        "catch_up": one.catch_up,
                        "payload": payload(one.payload, one.codec),
                    }
                    for one in found
                ]
            )
            return
        if not found:
            typer.echo("There is no schedule.")
            return
        shown = table("name", "queue", "when", "next", "version", "catch up", "payload", numbers=("version",))
        for one in found:
            add(
                shown, one.name, one.queue, _when_text(one), when(one.next_us, now), one.version, one.catch_up,
                preview(one.payload),
            )  # fmt: skip
        console().print(shown)


@app.command()
def remove(name: Annotated[str, typer.Argument(help="The schedule.")], url: Url, yes: Yes = False) -> None:
    """Forget a schedule; entries it has put stay."""
    with open_existing(url) as store:
        there = [one for one in store.schedules() if one.name == name]
        if not there:
            raise EntryNotFound(f"there is no schedule {name!r}.", hint="See: penstock schedule list")
        if not yes:
            typer.echo(f"would remove the schedule {name}: {_when_text(there[0])} into {there[0].queue}")
            typer.echo("Nothing was changed; add --yes to do it.")
            raise typer.Exit(1)
        store.remove_schedule(name)
        typer.echo(f"removed the schedule {name}")


@bus_app.command("list")
def list_subscriptions(url: Url, as_json: AsJson = False) -> None:
    """All subscriptions, the event types they want and what their queues hold."""
    with open_existing(url) as store:
        found = [(one, store.counts(queue=one.queue)[0]) for one in store.driver.subscriptions()]
        if as_json:
            print_json(
                [
                    {"name": one.name, "queue": one.queue, "types": one.types, "live": held.live, "dead": held.dead}
                    for one, held in found
                ]
            )
            return
        if not found:
            typer.echo("There is no subscription.")
            return
        shown = table("subscription", "queue", "event types", "live", "dead", numbers=("live", "dead"))
        for one, held in found:
            add(shown, one.name, one.queue, ", ".join(one.types), held.live, held.dead)
        console().print(shown)


def _when_text(schedule: Schedule) -> str:
    kind, _, rest = schedule.spec.partition(":")
    return f"every {span(int(rest))}" if kind == "every" else f"{rest} ({schedule.zone})"

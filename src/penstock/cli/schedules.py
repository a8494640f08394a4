"""``penstock schedule`` and ``penstock bus``: schedules and subscriptions put entries by themselves."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import msgspec
import typer

from penstock.cli.completing import queue_names, schedule_names
from penstock.cli.help import App
from penstock.cli.opened import AsJson, Url, Yes, open_existing
from penstock.cli.printing import add, console, iso, needs_yes, payload, preview, print_json, span, table, when
from penstock.cli.reading import labels as read_labels
from penstock.cli.reading import name as read_name
from penstock.cli.recording import record
from penstock.cli.watching import watchable
from penstock.clock import Micros
from penstock.errors import BadInput, Conflict
from penstock.names import did_you_mean
from penstock.queue.protocol import Schedule
from penstock.queue.queues import QueueStore
from penstock.queue.schedule import pause_schedule, resume_schedule, run_schedule_now, stored_schedule

app = App(help="Cron lines and intervals that put entries.")
bus_app = App(help="Subscriptions of the bus.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.", autocompletion=schedule_names)]
QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="Where it puts.", autocompletion=queue_names)]


@app.command("list")
@watchable
def list_(url: Url, as_json: AsJson = False) -> None:
    """All schedules and when they fire next, or that they are paused."""
    with open_existing(url) as store:
        now, schedules = store.now(), store.schedules()
    if as_json:
        print_json([_as_json(schedule) for schedule in schedules])
        return
    if not schedules:
        typer.echo("There is no schedule.")
        return
    shown = table("name", "queue", "when", "next", "version", "catch up", "payload", numbers=("version",))
    for schedule in schedules:
        add(
            shown, schedule.name, schedule.queue, _times(schedule), _next(schedule, now), schedule.version,
            schedule.catch_up, preview(schedule.payload), style="yellow" if schedule.is_paused else "",
        )  # fmt: skip
    console().print(shown)


@app.command("add")
def add_(  # noqa: PLR0917 - one parameter per option
    name: Annotated[str, typer.Argument(metavar="NAME", help="The schedule.")],
    queue: QueueName,
    value: Annotated[str, typer.Argument(metavar="JSON", help="What it puts.")],
    url: Url,
    cron: Annotated[str | None, typer.Option(metavar="LINE", help='A cron line, such as "0 3 * * *".')] = None,
    every: Annotated[str | None, typer.Option(metavar="TIME", help="An interval instead, such as 30s.")] = None,
    zone: Annotated[str, typer.Option(metavar="ZONE", help="Of the cron line, such as Europe/Zurich.")] = "UTC",
    catch_up: Annotated[
        str, typer.Option(metavar="HOW", help="For missed times: one entry for all (one), one each (all) or none.")
    ] = "one",
    label: Annotated[list[str] | None, typer.Option(metavar="K=V", help="A label; may be repeated.")] = None,
    priority: Annotated[int, typer.Option(help="-100 to 100; higher is sooner.")] = 0,
) -> None:
    """Put a value into a queue at the times of a cron line or an interval, once for all workers."""
    try:
        decoded = msgspec.json.decode(value)
    except msgspec.DecodeError as cause:
        raise BadInput(f"the payload is not JSON: {cause}.", hint="""In a shell, text is '"hello"'.""") from cause
    with open_existing(url) as store:
        if any(schedule.name == name for schedule in store.schedules()):
            raise Conflict(f"there is a schedule {name!r} already.", hint="Choose another name, or remove it first.")
        known = store.queue(read_name(queue)).exists()
        store.queue(queue).schedule(
            name, decoded, cron=cron, every=every, zone=zone, labels=read_labels(label), priority=priority,
            catch_up=cast(Literal["one", "all", "none"], catch_up), on_conflict="raise",
        )  # fmt: skip
        added = stored_schedule(store, name)
        record(store, "adding of schedule", name, "", f"{_times(added)} into {queue}")
        typer.echo(f"{name} puts into {queue} {_next(added, store.now())}")
        if not known:
            hint = did_you_mean(queue, [counts.queue for counts in store.counts()])
            typer.echo(f"{queue} is a new queue. {hint}".rstrip(), err=True)


@app.command()
def pause(name: Name, url: Url) -> None:
    """Let a schedule put nothing until it is resumed; what it misses is not caught up."""
    with open_existing(url) as store:
        before = _there(store, name)
        if before.is_paused:
            typer.echo(f"{name} is paused already")
            raise typer.Exit(1)
        pause_schedule(store, name)
        record(store, "pausing of schedule", name, f"next {iso(before.next_us)}", "paused")
        typer.echo(f"{name} is paused")


@app.command()
def resume(name: Name, url: Url) -> None:
    """Resume a paused schedule, from its next time on."""
    with open_existing(url) as store:
        if not _there(store, name).is_paused:
            typer.echo(f"{name} is not paused")
            raise typer.Exit(1)
        after = resume_schedule(store, name)
        record(store, "resuming of schedule", name, "paused", f"next {iso(after.next_us)}")
        typer.echo(f"{name} continues, {_next(after, store.now())}")


@app.command()
def run(name: Name, url: Url) -> None:
    """Put the entry of a schedule now, whether or not it is paused; prints its id. Its times stay as they are."""
    with open_existing(url) as store:
        schedule = _there(store, name)
        id_ = run_schedule_now(store, name)
        record(store, "running of schedule", name, "", f"entry {id_} in {schedule.queue}")
        typer.echo(id_)


@app.command()
def remove(name: Name, url: Url, yes: Yes = False) -> None:
    """Forget a schedule; entries it has put stay."""
    with open_existing(url) as store:
        schedule = _there(store, name)
        what = f"{_times(schedule)} into {schedule.queue}"
        if not yes:
            typer.echo(f"would remove the schedule {name}: {what}")
            needs_yes()
        store.remove_schedule(name)
        record(store, "removal of schedule", name, what, "removed")
        typer.echo(f"removed the schedule {name}")


@bus_app.command("list")
@watchable
def list_subscriptions(url: Url, as_json: AsJson = False) -> None:
    """All subscriptions, the event types they want and what their queues hold."""
    with open_existing(url) as store:
        subscriptions = [
            (subscription, store.counts(queue=subscription.queue)[0]) for subscription in store.driver.subscriptions()
        ]
    if as_json:
        print_json(
            [
                {
                    "name": subscription.name,
                    "queue": subscription.queue,
                    "types": subscription.types,
                    "live": held.live,
                    "dead": held.dead,
                }
                for subscription, held in subscriptions
            ]
        )
        return
    if not subscriptions:
        typer.echo("There is no subscription.")
        return
    shown = table("subscription", "queue", "event types", "live", "dead", numbers=("live", "dead"))
    for subscription, held in subscriptions:
        add(shown, subscription.name, subscription.queue, ", ".join(subscription.types), held.live, held.dead)
    console().print(shown)


# --- inside ----------------------------------------------------------------------------------------


def _there(store: QueueStore, name: str) -> Schedule:
    """A schedule that exists. The error for a misspelt name suggests a similar one."""
    names = [schedule.name for schedule in store.schedules()]
    if name not in names:
        raise BadInput(
            f"there is no schedule {name!r}.", hint=f"{did_you_mean(name, names)}See: penstock schedule list"
        )
    return stored_schedule(store, name)


def _as_json(schedule: Schedule) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "queue": schedule.queue,
        "when": schedule.spec,
        "zone": schedule.zone,
        "version": schedule.version,
        "next": None if schedule.is_paused else iso(schedule.next_us),
        "paused": schedule.is_paused,
        "catch_up": schedule.catch_up,
        "payload": payload(schedule.payload, schedule.codec),
    }


def _next(schedule: Schedule, now: Micros) -> str:
    return "paused" if schedule.is_paused else when(schedule.next_us, now)


def _times(schedule: Schedule) -> str:
    kind, _, rest = schedule.spec.partition(":")
    return f"every {span(int(rest))}" if kind == "every" else f"{rest} ({schedule.zone})"

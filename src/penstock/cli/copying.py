"""``penstock queue copy``: move a whole space to another store, with a progress bar."""

from __future__ import annotations

from typing import Annotated, get_type_hints

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from penstock.cli.opened import AsJson, Yes, is_there, open_existing
from penstock.cli.printing import add, console, count, needs_yes, print_json, table
from penstock.cli.recording import record
from penstock.clock import SystemClock
from penstock.location import read_url
from penstock.opening import QUEUE_STORES, open_queues, store_module
from penstock.queue.driver import Driver
from penstock.queue.drivers.memory import MemoryDriver
from penstock.queue.queues import QueueStore
from penstock.queue.transfer import FEATURES, HOLDER, Copied, Copy

Source = Annotated[str, typer.Argument(metavar="SRC_URL", help="The store to copy from; its queues stay locked.")]
Target = Annotated[str, typer.Argument(metavar="DST_URL", help="The store to copy to; its space has to be empty.")]
LeaveOut = Annotated[
    list[str] | None, typer.Option(help=f"What the target may do without ({', '.join(FEATURES)}); may be repeated.")
]
Wait = Annotated[str, typer.Option(help="How long to wait for entries that are being worked on.")]


def copy(  # noqa: PLR0917 - typer reads options from the arguments
    source_url: Source,
    target_url: Target,
    leave_out: LeaveOut = None,
    wait: Wait = "5m",
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Move a space to another store: entries, dead letters, history, unique ids, subscriptions, schedules, locks.

    The queues of the source are locked by the holder "copy" and stay so. If interrupted, it resumes when started again.
    """
    with open_existing(source_url) as source, open_target(target_url, make=yes) as target:
        work = Copy(source, target, leave_out=leave_out or (), wait=wait)
        if not yes:
            was_done = work.check()
            _say_what_would_be(source, target, was_done=was_done)
            if was_done:
                raise typer.Exit(1)
            needs_yes()
        copied = work.run() if as_json else _with_progress(work)
        if not copied.was_done:
            what = ", ".join(f"{total.count:,} {name}" for name, total in copied.sums.items())
            record(target, "copy of space", target.space, f"from {source.name}", what)
        if as_json:
            print_json(_as_json(copied))
            return
        if copied.was_done:
            typer.echo(f"The copy to {target.name} was finished before; nothing was carried again.")
        else:
            _print(copied)
        typer.echo(f"The source stays locked by {HOLDER!r}: use the target from now on.")


def open_target(url: str, *, make: bool) -> QueueStore:
    """The target; for a dry run on a space that is not there an empty one that can do what it could."""
    location = read_url(url)
    if make or is_there(location):
        return open_queues(url)
    stand_in = MemoryDriver(
        "", location.space, SystemClock(), location.masked, payload_limit=MemoryDriver.payload_limit
    )
    kind = get_type_hints(store_module(location, QUEUE_STORES, "queue").open_driver).get("return", Driver)
    stand_in.capabilities = kind.capabilities
    return QueueStore(stand_in)


def _say_what_would_be(source: QueueStore, target: QueueStore, *, was_done: bool) -> None:
    if was_done:
        typer.echo(f"The copy to {target.name} was finished before; there is nothing to carry.")
        return
    counts = source.counts()
    live, dead = sum(queue.live for queue in counts), sum(queue.dead for queue in counts)
    typer.echo(
        f"Would lock {count(len(counts), 'queue')} of {source.name} and move "
        f"{count(live, 'live entry', 'live entries')}, {count(dead, 'dead letter')} and the history "
        f"to {target.name}, space {target.space}."
    )


def _with_progress(work: Copy) -> Copied:
    columns = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console()) as bar:
        tasks: dict[str, TaskID] = {}

        def report(part: str, done: int, total: int | None) -> None:
            if part not in tasks:
                tasks[part] = bar.add_task(part, total=total)
            bar.update(tasks[part], completed=done, total=total)

        work.report = report
        return work.run()


def _print(copied: Copied) -> None:
    shown = table("what", "there", "carried now", "checksum", numbers=("there", "carried now"))
    for name, total in copied.sums.items():
        add(shown, name, total.count, copied.carried.get(name, ""), total.checksum[:16])
    console().print(shown)
    typer.echo("Counts and checksums of both sides are equal.")


def _as_json(copied: Copied) -> dict[str, object]:
    return {
        "was_done": copied.was_done,
        "carried": copied.carried,
        "sums": {name: {"count": total.count, "checksum": total.checksum} for name, total in copied.sums.items()},
        "left_out": list(copied.left_out),
    }

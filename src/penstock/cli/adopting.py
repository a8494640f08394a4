"""``penstock adopt``: take over what lives in a seed system."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from penstock.adopt import Adopted, Adoption, Plan, open_source
from penstock.cli.copying import open_target
from penstock.cli.opened import AsJson, Yes
from penstock.cli.printing import add, console, count, needs_yes, print_json, table
from penstock.cli.recording import record
from penstock.queue.queues import QueueStore

NUMBERS = ("ready", "delayed", "retrying", "dead", "history", "locks")


class Seed(StrEnum):
    """The systems that can be taken over."""

    KILLBILL = "killbill"
    DELAYEDQUEUE = "delayedqueue"
    ZKQUEUE = "zkqueue"
    REDISQUES = "redisques"


def adopt(
    seed: Annotated[Seed, typer.Argument(help="killbill, delayedqueue, zkqueue or redisques.")],
    source_url: Annotated[str, typer.Argument(metavar="URL", help="Where it lives; it is only read.")],
    *,
    to: Annotated[str, typer.Option("--to", envvar="PENSTOCK_URL", metavar="URL", help="The store to take it into.")],
    tables: Annotated[
        list[str] | None, typer.Option("--table", metavar="NAME", help="killbill: a live table; may be repeated.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(metavar="TEXT", help="delayedqueue, redisques: how the keys begin.")
    ] = None,
    family: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="redisques: how the names of the queues begin here.")
    ] = None,
    leave_out: Annotated[list[str] | None, typer.Option(help="What to leave there: history.")] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Take over the entries of killbill-queue, delayedQueue, ZkQueue or redisques; nothing is changed there.

    Stop its nodes first. If interrupted, it resumes when started again.
    """
    name = seed.value
    source = open_source(name, source_url, tables=tables, prefix=prefix, family=family)
    try:
        with open_target(to, make=yes) as target:
            work = Adoption(source, target, leave_out=leave_out or ())
            if not yes:
                _say_what_would_be(work, target, as_json=as_json)
                if work.was_done:
                    raise typer.Exit(1)
                needs_yes(is_said=not as_json)
            adopted = work.run() if as_json else _with_progress(work)
            if not adopted.was_done:
                live = sum(queue.live for queue in adopted.plan.queues)
                record(
                    target,
                    f"adoption of {name}",
                    target.space,
                    f"from {source.name}",
                    count(live, "live entry", "live entries"),
                )
            _say_what_was_done(adopted, source.name, as_json=as_json)
    finally:
        source.close()


def _say_what_would_be(work: Adoption, target: QueueStore, *, as_json: bool) -> None:
    plan = work.plan()
    if as_json:
        print_json(_as_json(plan, was_done=work.was_done, carried=0))
        return
    if work.was_done:
        typer.echo(f"{work.source.name} was taken over before; there is nothing to carry.")
        return
    _print(plan)
    typer.echo(f"Would take this over from {work.source.name} into {target.name}, space {target.space}.")
    if shown := work.source.running():
        typer.echo(f"Somebody still works there: {shown}. Stop the nodes first.")


def _with_progress(work: Adoption) -> Adopted:
    total = sum(queue.live + queue.dead + queue.history for queue in work.plan().queues)
    with Progress(TextColumn("rows"), BarColumn(), MofNCompleteColumn(), console=console()) as bar:
        task = bar.add_task("rows", total=total)
        work.report = lambda rows: bar.update(task, completed=rows)
        return work.run()


def _say_what_was_done(adopted: Adopted, name: str, *, as_json: bool) -> None:
    if as_json:
        print_json(_as_json(adopted.plan, was_done=adopted.was_done, carried=adopted.carried))
        return
    if adopted.was_done:
        typer.echo(f"{name} was taken over before; nothing was carried again.")
        return
    _print(adopted.plan)
    typer.echo(f"Counts and checksums of both sides are equal; this run carried {count(adopted.carried, 'row')}.")
    typer.echo(f"{name} is as it was: do not start its nodes again, or its entries are handled twice.")


def _print(plan: Plan) -> None:
    shown = table("queue", *NUMBERS, "bodies", numbers=NUMBERS)
    for queue in plan.queues:
        locks = ", ".join(lock.reason for lock in plan.locks if lock.queue == queue.queue)
        add(
            shown, queue.queue, queue.ready, queue.delayed, queue.retrying, queue.dead, queue.history, locks,
            queue.bodies[:16],
        )  # fmt: skip
    console().print(shown)
    for note in plan.notes:
        typer.echo(f"note: {note}")


def _as_json(plan: Plan, *, was_done: bool, carried: int) -> dict[str, Any]:
    return {"was_done": was_done, "carried": carried, **msgspec.to_builtins(plan)}

"""The root command: all subcommands, and how an error becomes one line and an exit code."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import penstock
from penstock.cli import (
    adopting,
    batches,
    breaker,
    bulk,
    changes,
    completing,
    copying,
    doctor,
    ending,
    entries,
    logs,
    pipeline,
    queues,
    schedules,
    schema,
    serve,
    streams,
    top,
    worker,
)
from penstock.cli.help import App, Group
from penstock.cli.log_lines import report_error
from penstock.errors import CannotOpen, PenstockError, StoreReadOnly, StoreUnavailable


class Commands(Group):
    """Commands whose Penstock errors end in one clear line: the thing, the cause and the next step."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except PenstockError as error:
            report_error(error)
            raise typer.Exit(3 if _unanswered(error) else 2) from error


def _unanswered(error: BaseException | None) -> bool:
    """Whether a store did not answer, now or when it was opened."""
    if isinstance(error, CannotOpen):
        error = error.__cause__
    return isinstance(error, StoreUnavailable) and not isinstance(error, StoreReadOnly)


app = App(
    cls=Commands,
    help="Durable queues, logs and streams: look at a store, change it, run what works on it.",
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Durable queues, logs and streams: look at a store, change it, run what works on it."""


app.command("worker")(worker.worker)
app.command("health", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(worker.health)
app.command("workers")(worker.workers)
app.command("changes")(changes.changes)
app.command("top")(top.top)
app.command("serve")(serve.serve)
app.command("import")(bulk.import_)
app.command("export")(bulk.export)
app.command("adopt")(adopting.adopt)
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(serve.app, name="key")
queues.app.command("copy")(copying.copy)
for command in (entries.entry, entries.find, ending.cancel, ending.replay, ending.delete, ending.purge, ending.prune):
    queues.app.command()(command)
app.add_typer(queues.app, name="queue")
app.add_typer(batches.app, name="batch")
app.add_typer(logs.app, name="log")
app.add_typer(streams.app, name="stream")
app.add_typer(schedules.app, name="schedule")
app.add_typer(schedules.bus_app, name="bus")
app.add_typer(breaker.app, name="breaker")
app.add_typer(schema.app, name="schema")
app.command("doctor")(doctor.doctor)
app.command("completion")(completing.completion)

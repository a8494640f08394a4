"""``penstock import`` and ``penstock export``: files into a log or a queue, and a log into Parquet, on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.printing import count

if TYPE_CHECKING:
    from penstock.spark.lake.ingest import ImportPlan

Url = Annotated[str, typer.Option("--url", envvar="PENSTOCK_URL", metavar="URL", help="The store of the log or queue.")]
Master = Annotated[str | None, typer.Option("--master", help="Of Spark: local[*] unless told otherwise.")]


def import_(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A file, a folder, or a URL for Spark: CSV, JSON lines or Parquet.")
    ],
    url: Url,
    *,
    to: Annotated[str, typer.Option("--to", metavar="log:NAME|queue:NAME", help="Where the rows go.")],
    form: Annotated[str | None, typer.Option("--form", help="csv, json or parquet; by default from the names.")] = None,
    key: Annotated[
        str | None, typer.Option("--key", help="The column that is a record's key or an entry's id.")
    ] = None,
    time: Annotated[str | None, typer.Option("--time", help="The column that is its time.")] = None,
    schema: Annotated[str | None, typer.Option("--schema", help='Of CSV columns: "id BIGINT, name STRING".')] = None,
    state: Annotated[
        Path | None, typer.Option("--state", metavar="FOLDER", help="What remembers what was taken.")
    ] = None,
    rejected: Annotated[
        Path | None, typer.Option("--rejected", metavar="FOLDER", help="Where rows go that cannot be taken.")
    ] = None,
    master: Master = None,
) -> None:
    """Take files of any size into a log or a queue; run again, it takes what is new, and nothing twice."""
    from penstock.spark.lake.ingest import Import, prepare, take
    from penstock.spark.lake.ingest_source import is_elsewhere

    order = Import(
        source=source, url=url, target=to, form=form, key=key, time=time, schema=schema,  # type: ignore[arg-type]
        state=state, rejected=rejected,
    )  # fmt: skip
    plan = None if is_elsewhere(source) else prepare(order)  # report errors before a JVM is started
    if plan is not None:
        _note_folders(plan)
    with quiet_spark(master) as spark:
        if plan is None:
            plan = prepare(order, spark)
            _note_folders(plan)
        done = take(spark, plan, lambda taken, bad: typer.echo(f"{taken:,} taken, {bad:,} rejected", err=True))
    typer.echo(f"{count(done.taken, 'row')} taken into {to}, {done.rejected:,} rejected")
    if (done.all_taken, done.all_rejected) != (done.taken, done.rejected):
        typer.echo(f"with all earlier runs: {done.all_taken:,} taken, {done.all_rejected:,} rejected")
    if done.rejected:
        typer.echo(f"why, and the rows themselves: {done.aside}", err=True)
        raise typer.Exit(1)


def _note_folders(plan: ImportPlan) -> None:
    if plan.files.folders:
        named = ", ".join(f"{folder}=…" for folder in plan.files.folders)
        typer.echo(f"note: what the names of folders say ({named}) is not taken; only what is in the files", err=True)


def export(
    log: Annotated[str, typer.Argument(metavar="LOG", help="The log.")],
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Where the files go, by day: a folder, or a URL for Spark.")
    ],
    url: Annotated[str, typer.Option("--url", envvar="PENSTOCK_LOGS_URL", metavar="URL", help="The log store.")],
    *,
    schema: Annotated[str | None, typer.Option("--schema", help='Of the payload: "page STRING, ms BIGINT".')] = None,
    type_: Annotated[str | None, typer.Option("--type", metavar="MODULE:TYPE", help="The payload's type.")] = None,
    file_format: Annotated[str, typer.Option("--format", help="Of the files: parquet or orc.")] = "parquet",
    master: Master = None,
) -> None:
    """Write a log to Parquet or ORC; run again, it adds what has come since."""
    from penstock.spark.lake.export import export as write
    from penstock.spark.lake.export import prepare

    # Report errors before a JVM is started.
    prepare(url, log, folder, schema=schema, type=type_, file_format=file_format)
    with quiet_spark(master) as spark:
        done = write(spark, url, log, folder, schema=schema, type=type_, file_format=file_format)
    typer.echo(f"{count(done.records, 'record')} written to {done.folder}")


class quiet_spark:  # used like a function
    """A session that says nothing and ends with the command."""

    def __init__(self, master: str | None) -> None:
        """``master`` as Spark knows it."""
        self.master = master

    def __enter__(self) -> Any:
        """Start it."""
        from penstock.spark import session

        self.session = session("penstock", master=self.master, settings={"spark.ui.showConsoleProgress": False})
        self.session.sparkContext.setLogLevel("OFF")
        return self.session

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self.session.stop()

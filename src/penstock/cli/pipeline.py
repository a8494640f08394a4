"""``penstock pipeline``: the history of queues into a lake of files, tables, and a report."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.bulk import Master, quiet_spark
from penstock.cli.help import App
from penstock.errors import BadInput, MissingExtra

app = App(help="History into tables and a report, on Spark.")

Lake = Annotated[
    str, typer.Argument(metavar="LAKE", help="A folder, or a URL of a file system that Spark knows (s3a://, hdfs://).")
]
REPORT_NEEDS = ("pyarrow", "matplotlib", "datasketches")


@app.command("run")
def run_(
    lake: Lake,
    queues: Annotated[
        list[str] | None, typer.Option("--queues", metavar="URL", help="A queue store; may be repeated.")
    ] = None,
    lag: Annotated[
        list[str] | None, typer.Option("--lag", metavar="URL#LOG", help="A log of lag samples; may be repeated.")
    ] = None,
    file_format: Annotated[
        str | None, typer.Option("--format", help="Of the files of a new lake: parquet (the default) or orc.")
    ] = None,
    master: Master = None,
) -> None:
    """Read what is new and add it to the tables of its days; without anything new, nothing changes."""
    from penstock.spark.session import check_installed

    check_installed()
    from penstock.spark.lake.pipeline import Pipeline, Sources, check_sources

    sources = Sources(queues=tuple(queues or ()), lags=tuple(_lag(text) for text in lag or ()))
    check_sources(sources)  # before the JVM starts
    with quiet_spark(master) as spark:
        ran = Pipeline(spark, lake, sources, lambda text: typer.echo(text, err=True), file_format=file_format).run()
    for source, rows in ran.rows.items():
        typer.echo(f"{source}: {rows:,} new rows")
    typer.echo(f"tables of {len(ran.days)} days changed")


@app.command()
def sweep(lake: Lake, master: Master = None) -> None:
    """Delete the files of runs that were killed a day ago or earlier; no table needs them."""
    from penstock.spark.session import check_installed

    check_installed()
    from penstock.spark.lake.lake import Lake as Opened

    with quiet_spark(master) as spark:
        swept = Opened(spark, lake).sweep()
    typer.echo(f"{swept} folders deleted")


@app.command()
def report(
    lake: Lake, out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where.")] = Path("report.html")
) -> None:
    """Write one self-contained HTML page with the charts; it needs no Spark."""
    missing = [name for name in REPORT_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtra(f"a report needs {', '.join(missing)}.", hint='Install the extra "report".')
    from penstock.spark.lake.report import write_report

    charts = write_report(lake, out)
    typer.echo(f"{charts} charts in {out.absolute()}")


def _lag(text: str) -> tuple[str, str]:
    url, hash_, log = text.rpartition("#")
    if not hash_ or not url or not log:
        raise BadInput(f"lag log {text!r} cannot be read.", hint='Write it as "file:///var/lib/shop/logs#lag".')
    return url, log

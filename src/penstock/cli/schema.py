"""``penstock schema``: the tables of a space: print them, check them, bring them up to date."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.help import App
from penstock.cli.opened import UrlArgument, open_existing, sqlite_path
from penstock.cli.recording import record
from penstock.clock import SystemClock
from penstock.errors import BadInput, PenstockError, UnknownScheme
from penstock.location import Location, read_url
from penstock.names import did_you_mean
from penstock.opening import QUEUE_STORES, store_module

if TYPE_CHECKING:
    from penstock.queue.drivers.sql.migrations import Migration

_SCHEMAS = {
    "sqlite": "sqlite_schema.sql",
    "postgresql": "postgres_schema.sql",
    "postgres": "postgres_schema.sql",
    "mysql": "mysql_schema.sql",
    "mariadb": "mysql_schema.sql",
}

app = App(help="The tables of a space.")


@app.command("print")
def print_(url: UrlArgument) -> None:
    """Print the SQL that creates the tables of the URL's space; needs no store."""
    location = read_url(url)
    if location.scheme not in _SCHEMAS:
        raise BadInput(f"a {location.scheme}:// store has no SQL schema.", hint=f"Known: {', '.join(_SCHEMAS)}.")
    for step in _steps(location):
        for part, statements in (("pre", step.pre), ("post", step.post)):
            if statements:
                typer.echo(f"-- {step.number} {part}: {step.what}")
            for statement in statements:
                typer.echo(f"{statement.rstrip(';')};")


@app.command()
def check(url: UrlArgument) -> None:
    """Compare the stored schema with what this Penstock needs; exit code 1 if they differ."""
    location = _sql(url)
    needed = _steps(location)[-1].number
    with _tables(location) as tables:
        version = tables.schema_version()
    if version.post > needed:
        advice = f", this Penstock knows up to {needed}: upgrade Penstock"
    elif version.pre < needed:
        advice = f", {needed} is needed: penstock schema migrate"
    elif version.post < version.pre:
        advice = (
            ": up to date for this Penstock; when no older one runs any more, the newest one continues with "
            "penstock schema migrate --post"
        )
    else:
        advice = ": up to date"
    typer.echo(f"space {location.space} has schema version {version.pre}{advice}")
    if version.post <= needed <= version.pre:
        return
    raise typer.Exit(1)


@app.command()
def migrate(
    url: UrlArgument,
    pre: Annotated[bool, typer.Option("--pre", help="Only what has to be there before the code is upgraded.")] = False,
    post: Annotated[bool, typer.Option("--post", help="Only what comes after all code is upgraded.")] = False,
) -> None:
    """Create the tables of the space or bring them to this version."""
    location = _sql(url)
    with _tables(location, make=True) as tables:
        done = tables.migrate("all" if pre == post else "pre" if pre else "post")
    for step in done:
        typer.echo(f"done {step}")
    if done:
        _record_migration(url, [str(step) for step in done])
    else:
        typer.echo(f"space {location.space} is up to date")


def _record_migration(url: str, steps: list[str]) -> None:
    """Record the steps in the store. Opening it runs no ``--post`` part that was not asked for."""
    try:
        with open_existing(url) as store:
            record(store, "migration of tables", store.name, "", ", ".join(steps))
    except PenstockError as error:
        typer.echo(f"done, but not recorded: {error}", err=True)


def _steps(location: Location) -> list[Migration]:
    """The steps to the tables of a space, in its database's own words."""
    from penstock.queue.drivers.sql import schema

    return schema.steps(_SCHEMAS[location.scheme], location.space)


@contextmanager
def _tables(location: Location, *, make: bool = False) -> Iterator[Any]:
    """A store whose tables are left alone."""
    if location.scheme == "sqlite":
        sqlite_path(location, must_exist=not make)
    store = store_module(location, QUEUE_STORES, "queue").open_driver(location, SystemClock(), prepare=False)
    try:
        yield store
    finally:
        store.close()


def _sql(url: str) -> Location:
    location = read_url(url)
    if location.scheme not in _SCHEMAS:
        if location.scheme in QUEUE_STORES:
            raise BadInput(f"a {location.scheme}:// store has no schema.", hint="Only stores in a database have one.")
        meant = did_you_mean(location.scheme, list(_SCHEMAS), "{}://")
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMAS)
        raise UnknownScheme(f"no schema is known for {location.scheme}://.", hint=f"{meant}Known: {known}.")
    return location

"""``penstock serve`` and ``penstock key``: the service, and who may use it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.application import import_from_here
from penstock.cli.help import App
from penstock.cli.log_lines import SERVICE_LINE, LogFormat, LogFormatOption, write_logs
from penstock.cli.opened import is_there
from penstock.cli.printing import console, table
from penstock.errors import BadInput
from penstock.location import read_url
from penstock.queue.queues import default_node

logger = logging.getLogger("penstock.cli.serve")

app = App(help="API keys of the service.")

KeysFile = Annotated[Path, typer.Option("--keys", metavar="FILE", help="The file with the hashes of the API keys.")]


UrlOption = Annotated[
    str, typer.Option("--url", envvar="PENSTOCK_URL", metavar="URL", help='The queues: "sqlite:///shop.db".')
]
LogsOption = Annotated[
    str | None, typer.Option("--logs", envvar="PENSTOCK_LOGS_URL", metavar="URL", help="The logs, if any.")
]
ServedKeys = Annotated[Path | None, typer.Option("--keys", metavar="FILE", help="API keys; see `penstock key`.")]
Topologies = Annotated[list[str] | None, typer.Option(metavar="MODULE:TOPOLOGY", help="May be repeated.")]
RoutesFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Routes of queued requests: JSON {pattern: backend}.")
]
SplittingFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Which of their queues are split: JSON {pattern: postfixes}.")
]
LagLog = Annotated[str | None, typer.Option(metavar="LOG", help="Append samples of all lags to this log.")]
LeaseOption = Annotated[
    str, typer.Option(help="How long what a killed process was sending waits until another one sends it.")
]
UnroutedFor = Annotated[
    str, typer.Option(help="How long queued requests that no route leads to wait until they are dead letters.")
]
CircuitPrefix = Annotated[str, typer.Option(metavar="PATH", help="Where gateleen's circuit API is served.")]
RedisquesPath = Annotated[
    str | None, typer.Option(metavar="PATH", help="Where redisques' interface is served, such as /queuing.")
]
Origins = Annotated[list[str] | None, typer.Option(metavar="ORIGIN", help="May be repeated.")]
OpenapiKey = Annotated[bool, typer.Option("--openapi-key", help="Show it only to those with an API key.")]


def serve(
    url: UrlOption,
    *,
    logs: LogsOption = None,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8080,
    keys: ServedKeys = None,
    topology: Topologies = None,
    routes: RoutesFile = None,
    splitting: SplittingFile = None,
    lag_log: LagLog = None,
    deliver: Annotated[bool, typer.Option(help="Also send queued requests on.")] = True,
    lease: LeaseOption = "60s",
    unrouted_for: UnroutedFor = "24h",
    circuit_prefix: CircuitPrefix = "/playground/server/queuecircuitbreaker/circuit",
    redisques: RedisquesPath = None,
    cors_origin: Origins = None,
    openapi: Annotated[bool, typer.Option(help="Show what there is at /openapi.json.")] = True,
    openapi_key: OpenapiKey = False,
    metrics: Annotated[bool, typer.Option(help="Show figures for Prometheus at /metrics.")] = True,
    dashboard: Annotated[bool, typer.Option(help="Show pages for people at /.")] = True,
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Serve the stores over HTTP. Topologies can be imported from the current directory."""
    from penstock.service import ServiceSettings
    from penstock.service import serve as run

    settings = ServiceSettings(
        queues=url, logs=logs, host=host, port=port, keys=keys, topologies=tuple(topology or ()),
        cors_origins=tuple(cors_origin or ()), routes=routes, deliver=deliver, lag_log=lag_log,
        circuit_prefix=circuit_prefix, lease=lease, splitting=splitting, unrouted_for=unrouted_for, openapi=openapi,
        redisques=redisques, openapi_key=openapi_key, metrics=metrics, dashboard=dashboard,
    )  # fmt: skip
    import_from_here()
    lines = write_logs(log_format, SERVICE_LINE)
    lines.fields = {"space": read_url(url).space, "node": default_node()}
    _tell_what_is_new(url, logs)
    # It would log whole addresses, with their query strings.
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    # For scripts, the first word of the line is the address.
    run(settings, lambda where: typer.echo(_told(where, url, openapi, dashboard)))


def _told(where: str, url: str, openapi: bool, dashboard: bool) -> str:
    pages = f"; open it in a browser: {where}/" if dashboard else ""
    api = f"; its API: {where}/openapi.json" if openapi else ""
    return f"{where} serves {read_url(url).masked}{pages}{api}"


def _tell_what_is_new(url: str, logs: str | None) -> None:
    """Log what is created: a service may begin with an empty store, but a typo in a URL must be visible."""
    location = read_url(url)
    if location.scheme != "memory" and not is_there(location):
        logger.info("%s has no space %r yet; creating it.", location.masked, location.space)
    folder = None if logs is None else read_url(logs)
    if folder is not None and folder.scheme == "file" and not Path(folder.path).is_dir():
        logger.info("folder %s does not exist yet; creating it.", folder.path)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Whose key it is.")],
    keys: KeysFile,
    scope: Annotated[list[str], typer.Option(help="read, produce, consume or admin; may be repeated.")],
    prefix: Annotated[str, typer.Option(help="Only queues and logs whose name begins so.")] = "",
) -> None:
    """Make an API key; it is printed this once."""
    from penstock.service.keys import new_key

    typer.echo(new_key(keys, name, tuple(scope), prefix=prefix))


@app.command()
def remove(name: Annotated[str, typer.Argument(help="Whose key it is.")], keys: KeysFile) -> None:
    """Take an API key away; a running service notices."""
    from penstock.service.keys import remove_key

    if not remove_key(keys, name):
        raise BadInput(f"{keys} has no key {name!r}.", hint=f"penstock key list --keys {keys} shows what there is.")


@app.command("list")
def list_keys(keys: KeysFile) -> None:
    """Show whose keys there are, and what they may do; the keys themselves are nowhere."""
    from penstock.service.keys import read_keys

    shown = table("name", "scopes", "prefix")
    for key in read_keys(keys):
        shown.add_row(key.name, ", ".join(key.scopes), key.prefix)
    console().print(shown)

"""``penstock stream``: draw a topology, run it, look at how far it is, begin a computation again."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from penstock.cli.application import import_from_here
from penstock.cli.help import App
from penstock.cli.log_lines import WORKER_LINE, LogFormat, LogFormatOption, write_logs
from penstock.cli.logs import open_existing
from penstock.cli.opened import AsJson
from penstock.cli.printing import add, console, iso, print_json, table
from penstock.cli.probing import HealthPath, Host, Port, check_probes, probed
from penstock.cli.recording import record_for_logs
from penstock.cli.watching import watchable
from penstock.log.maintenance.lag_samples import LagSampler
from penstock.queue.queues import default_node
from penstock.stream.internal_logs import reset
from penstock.stream.local.process import load_topology
from penstock.stream.local.process_runner import ProcessRunner
from penstock.stream.local.runner import LocalRunner
from penstock.stream.progress import progress_of
from penstock.stream.runner import Runner, Status
from penstock.stream.topology import Topology, unknown

logger = logging.getLogger("penstock.cli.streams")

app = App(help="Topologies of computations over logs.")

UrlArgument = Annotated[
    str,
    typer.Argument(
        envvar="PENSTOCK_LOGS_URL", metavar="URL", help='The log store, such as "file:///var/lib/shop/logs".'
    ),
]
TopologyArgument = Annotated[str, typer.Argument(metavar="MODULE:TOPOLOGY", help="A topology, or what returns one.")]


@app.command()
def draw(
    topology: TopologyArgument,
    form: Annotated[str, typer.Option("--form", help="mermaid, plantuml or text.")] = "mermaid",
) -> None:
    """Print a picture of a topology."""
    typer.echo(_topology(topology).check().draw(form), nl=False)  # type: ignore[arg-type]


@app.command()
def run(  # noqa: PLR0917 - a command's options
    topology: TopologyArgument,
    url: UrlArgument,
    processes: Annotated[int, typer.Option("--processes", help="More than 1: for work that keeps a core busy.")] = 1,
    drain: Annotated[bool, typer.Option("--drain", help="End when what is there now has gone through.")] = False,
    final: Annotated[bool, typer.Option("--final", help="The input has ended: fire all event-time timers.")] = False,
    timeout: Annotated[str, typer.Option("--timeout", help="How long a drain may take.")] = "1h",
    lag_log: Annotated[
        str | None, typer.Option("--lag-log", metavar="LOG", help="Append samples of all lags to this log.")
    ] = None,
    log_format: LogFormatOption = LogFormat.TEXT,
    port: Port = None,
    host: Host = "127.0.0.1",
    health_file: HealthPath = None,
) -> None:
    """Run a topology until Ctrl-C or SIGTERM, or until its input has gone through."""
    lines = write_logs(log_format, WORKER_LINE)
    check_probes(drain=drain or final, port=port, health_file=health_file)
    loaded = _topology(topology)
    lines.fields = {"topology": loaded.name, "node": default_node()}
    with open_existing(url) as store:
        prepare = f"penstock.cli.log_lines:write_{log_format.value}_logs"
        runner: Runner = (
            LocalRunner(loaded, store)
            if processes == 1
            else ProcessRunner(topology, store, url, processes=processes, prepare=prepare)
        )
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        sampler = None if lag_log is None else LagSampler(store, lag_log)
        runner.start()
        _say(log_format, f"{loaded.name} runs: {', '.join(loaded.nodes)}")
        if drain or final:
            good = runner.drain(timeout, final=final)
        else:
            with _telling(runner, host, port, health_file):
                while not stop.wait(0.2) and not runner.is_terminated:
                    pass
            good = runner.stop() and not any(instance.state == "failed" for instance in runner.status())
        for instance in runner.status():
            _say(log_format, _counts_of(instance))
        if sampler is not None:
            sampler.close()
    if not good:
        raise typer.Exit(1)


@app.command()
@watchable
def lag(topology: TopologyArgument, url: UrlArgument, as_json: AsJson = False) -> None:
    """Print how far each computation is behind in each of its inputs."""
    loaded = _topology(topology)
    with open_existing(url) as store:
        rows = [
            (node.name, stream, store.lag(stream, node.name).lag if store.exists(stream) else 0)
            for node in loaded.order()
            for stream in node.inputs.values()
        ]
    if as_json:
        print_json([{"computation": name, "stream": stream, "lag": behind} for name, stream, behind in rows])
        return
    shown = table("computation", "stream", "lag", numbers=("lag",))
    for row in rows:
        add(shown, *row)
    console().print(shown)


@app.command()
@watchable
def status(topology: TopologyArgument, url: UrlArgument, as_json: AsJson = False) -> None:
    """Print how far each computation is, in records and in event time, and who holds event time back."""
    loaded = _topology(topology)
    with open_existing(url) as store:
        rows = progress_of(store, loaded)
    if as_json:
        print_json([{**msgspec.structs.asdict(row), "watermark": iso(row.watermark)} for row in rows])
        return
    shown = table("computation", "lag", "watermark", "waits for", numbers=("lag",))
    for row in rows:
        add(shown, row.computation, row.lag, iso(row.watermark) or "", row.held_by or "")
    console().print(shown)
    for problem in [row.problem for row in rows if row.problem is not None]:
        typer.echo(problem)


@app.command("reset")
def reset_(
    topology: TopologyArgument,
    url: UrlArgument,
    computation: Annotated[str, typer.Argument(help="Which computation.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Forget a computation's offsets and state, so that it starts over; its outputs stay."""
    loaded = _topology(topology)
    if computation not in loaded.nodes:
        raise unknown(computation, loaded.nodes, "computation", loaded.name)
    if not yes:
        typer.confirm(f"Forget offsets and state of {computation}?", abort=True)
    with open_existing(url) as store:
        reset(store, loaded.nodes[computation], loaded.name)
        record_for_logs("reset of computation", f"{loaded.name}.{computation}", "offsets and state", "forgotten")
    typer.echo(f"{computation} starts over")


def _topology(name: str) -> Topology:
    import_from_here()
    return load_topology(name)


@contextmanager
def _telling(runner: Runner, host: str, port: int | None, health_file: Path | None) -> Iterator[None]:
    """Serve the health and the metrics of a topology to probes and Prometheus."""
    if port is None and health_file is None:
        yield
        return
    from penstock.telemetry.streams import StreamMetrics

    with probed(StreamMetrics(runner), host, port, health_file):
        yield


def _say(log_format: LogFormat, text: str) -> None:
    """Tell people, or whatever reads the log lines."""
    if log_format is LogFormat.JSON:
        logger.info("%s", text)
    else:
        typer.echo(text, err=True)


def _counts_of(instance: Status) -> str:
    has_failed = instance.error and instance.state == "failed"
    state = f"{instance.state}: {instance.error}" if has_failed else instance.state
    return (
        f"{instance.computation}\t{instance.instance}\t{instance.records} records\t{instance.produced} produced\t"
        f"{instance.checkpoints} checkpoints\t{instance.skipped} skipped\t{state}"
    )

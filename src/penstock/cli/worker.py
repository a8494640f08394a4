"""``penstock worker MODULE:APP``: run the handlers of an application's store, in one process or several.

Exit codes: 0 stopped in order; 1 handlers were still running after the grace time, their entries were released; 2 the
application cannot be loaded; 3 the store did not answer; 130 and 143 a ``--drain`` was ended by SIGINT or SIGTERM.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, cast

import typer

from penstock.cli.application import load
from penstock.cli.children import Children
from penstock.cli.health import main as probe
from penstock.cli.log_lines import (
    WORKER_LINE,
    LineFormatter,
    LogAttempts,
    LogFormat,
    LogFormatOption,
    NameAttempt,
    write_logs,
)
from penstock.cli.opened import AsJson, Url, open_existing
from penstock.cli.printing import add, console, count, iso, print_json, span, table, when
from penstock.cli.probing import HealthPath, Host, Port, check_probes, probed
from penstock.cli.reading import length
from penstock.cli.watching import watchable
from penstock.clock import SECOND
from penstock.errors import BadInput
from penstock.queue.handling.handler import Handler
from penstock.queue.queues import QueueStore
from penstock.queue.worker import Worker
from penstock.queue.worker.maintenance import Reaper
from penstock.queue.worker.presence import KnownWorker, Serving, known_workers

if TYPE_CHECKING:
    # Commands and workers without probes do not need them.
    from penstock.telemetry.health import HealthState
    from penstock.telemetry.reporting import Reports
    from penstock.telemetry.snapshot import Snapshot

logger = logging.getLogger("penstock.cli.worker")


AppArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:APP", help="A store with handlers, declared queues, or a function that returns one."
    ),
]
DeclaredUrl = Annotated[
    str | None, typer.Option(envvar="PENSTOCK_URL", metavar="URL", help="Where to open queues that are only declared.")
]
OnlyQueues = Annotated[
    list[str] | None, typer.Option(help="Only this queue or family; may be repeated. Default: all with a handler.")
]
Grace = Annotated[str, typer.Option(help="What running handlers get to end, on SIGTERM or SIGINT.")]
KeepDead = Annotated[str, typer.Option(help='How long dead letters are kept, such as "90d"; "" forever.')]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log every ended attempt; show where loading failed.")]


def worker(  # noqa: PLR0917 - one parameter per option
    context: typer.Context,
    app: AppArgument,
    url: DeclaredUrl = None,
    processes: Annotated[int, typer.Option(min=1, help="How many worker processes.")] = 1,
    queue: OnlyQueues = None,
    grace: Grace = "15s",
    lease: Annotated[str, typer.Option(help="How long an entry is held without a heartbeat.")] = "60s",
    reap_every: Annotated[str, typer.Option(help="How often run-out leases are taken back.")] = "15s",
    keep_dead: KeepDead = "",
    drain: Annotated[bool, typer.Option("--drain", help="Handle what is due now, then end.")] = False,
    verbose: Verbose = False,
    log_format: LogFormatOption = LogFormat.TEXT,
    port: Port = None,
    host: Host = "127.0.0.1",
    health_file: HealthPath = None,
    lifeline: Annotated[int | None, typer.Option(hidden=True)] = None,
    report_to: Annotated[int | None, typer.Option(hidden=True)] = None,
    is_url_asked: Annotated[bool, typer.Option("--url-asked", hidden=True)] = False,
) -> None:
    """Run handlers until SIGTERM or SIGINT; a second signal ends at once.

    The current directory can be imported from. With several processes a parent restarts those that die.
    """
    lines = write_logs(log_format, WORKER_LINE)
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    length(grace, "grace")
    length(lease, "lease", least="1s")
    length(reap_every, "reap-every", least="100ms")
    if keep_dead:
        length(keep_dead, "keep-dead", least="1m")
    check_probes(drain=drain, port=port, health_file=health_file)
    options = _Options(
        app=app, url=url, is_url_asked=is_url_asked or _is_option(context, "url"), queues=queue or [], grace=grace,
        lease=lease, reap_every=reap_every, keep_dead=keep_dead, verbose=verbose, log_format=log_format, port=port,
        host=host, health_file=health_file,
    )  # fmt: skip
    if processes > 1:
        if drain:
            raise BadInput("--drain works in one process.", hint="Leave --processes out.")
        raise typer.Exit(_run_children(options, processes))
    if lifeline is not None:
        _follow_parent(lifeline)
    _run_here(options, lines, report_to, drain=drain)


class _Options(NamedTuple):
    """What was asked for on the command line."""

    app: str
    url: str | None
    is_url_asked: bool
    queues: list[str]
    grace: str
    lease: str
    reap_every: str
    keep_dead: str
    verbose: bool
    log_format: LogFormat
    port: int | None
    host: str
    health_file: Path | None


def _run_children(options: _Options, processes: int) -> int:
    """Run as many processes with the same options, and return the exit code."""
    command = [sys.executable, "-m", "penstock", "worker", options.app, "--grace", options.grace]
    command += ["--lease", options.lease, "--keep-dead", options.keep_dead, "--reap-every", options.reap_every]
    command += ["--log-format", options.log_format.value]
    command += [*(["--verbose"] if options.verbose else []), *(["--url-asked"] if options.is_url_asked else [])]
    if options.url is not None:
        os.environ["PENSTOCK_URL"] = options.url  # not as an argument, where every user could read its password
    command += [part for name in options.queues for part in ("--queue", name)]
    is_watched = options.port is not None or options.health_file is not None
    reports = _reports_of(processes) if is_watched else None
    children = Children(command, processes, grace_seconds=length(options.grace, "grace") / SECOND, reports=reports)
    with nullcontext() if reports is None else probed(reports, options.host, options.port, options.health_file):
        return children.run()


def _run_here(options: _Options, lines: LineFormatter, report_to: int | None, *, drain: bool) -> None:
    """Run the handlers in this process."""
    store = load(options.app, url=options.url, is_url_asked=options.is_url_asked, verbose=options.verbose)
    try:
        chosen = _chosen(store, options.queues)
        runner = Worker(
            store,
            [handler.queue for handler in chosen],
            lease=options.lease,
            grace=options.grace,
            reaper=Reaper(store, every=options.reap_every, keep_dead=options.keep_dead or None),
            middleware=[NameAttempt()] if options.log_format is LogFormat.JSON else [],
        )
        lines.fields = {"space": store.space, "worker": runner.owner, "node": store.node}
        if options.verbose:
            runner.add_counter(LogAttempts(logger))
        logger.info("working on %s in %s", ", ".join(_title(handler) for handler in chosen), store.name)
        if drain:
            logger.info("drained: %s", count(runner.drain(), "handler run"))
            runner.write_figures()
            return
        with _telling(runner, report_to, options):
            in_order = runner.run()
        logger.info("stopped after %s", count(store.signals.totals.get("settled", 0), "settled attempt"))
        if not in_order:
            # Their entries are released: threads that still run must not keep the process alive.
            logging.shutdown()
            _flush(store)
            os._exit(1)
    finally:
        _flush(store)
        store.close()


def _is_option(context: typer.Context, parameter: str) -> bool:
    """Whether a parameter was given as an option, and not by the environment."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def _reports_of(processes: int) -> Reports:
    from penstock.telemetry.reporting import Reports

    return Reports(processes)


def _flush(store: QueueStore) -> None:
    """Flush the spans of the last attempts before the process ends."""
    if store.driver.tracing is not None:
        store.driver.tracing.flush()


class _Watch:
    """The health and the metrics of a worker in this process."""

    def __init__(self, runner: Worker) -> None:
        from penstock.telemetry.health import WorkerHealth
        from penstock.telemetry.metrics import WorkerMetrics

        self._health = WorkerHealth(runner)
        self._metrics = WorkerMetrics(runner)

    def state(self) -> HealthState:
        return self._health.state()

    def snapshot(self) -> Snapshot:
        snapshot = self._metrics.snapshot()
        snapshot.add("penstock_processes", (), 1)
        return snapshot

    def report(self) -> Snapshot:
        return self._metrics.snapshot()

    def close(self) -> None:
        self._health.close()
        self._metrics.close()


@contextmanager
def _telling(runner: Worker, report_to: int | None, options: _Options) -> Iterator[None]:
    """Serve the worker's health and metrics to a parent process, probes and Prometheus."""
    if report_to is None and options.port is None and options.health_file is None:
        yield
        return
    with closing(_Watch(runner)) as watch:
        if report_to is None:
            with probed(watch, options.host, options.port, options.health_file):
                yield
        else:
            from penstock.telemetry.reporting import Reporter

            with closing(Reporter(report_to, watch.report, watch.state)):
                yield


def health(context: typer.Context) -> None:
    """Ask a worker (its health file or port) or a service whether it is live, with --ready whether it is ready."""
    raise typer.Exit(probe(context.args))


@watchable
def workers(url: Url, as_json: AsJson = False) -> None:
    """The workers that live, what they serve and how busy they are; one that was killed is shown as lost for a day."""
    with open_existing(url) as store:
        now, known = store.now(), known_workers(store)
    if as_json:
        print_json([_for_scripts(worker) for worker in known])
        return
    if not known:
        typer.echo("No worker runs. Start one: penstock worker MODULE:APP")
        return
    shown = table("node", "pid", "state", "busy", "serves", "since", "heard of", "version", numbers=("pid", "busy"))
    for worker in known:
        record = worker.record
        serves = ", ".join(f"{_name(serving)} {serving.busy}/{serving.slots}" for serving in record.serving)
        add(
            shown, record.node, record.pid, worker.state, f"{worker.busy}/{worker.slots}", serves,
            span(now - record.started_us), when(worker.seen_us, now), record.version,
            style="red" if worker.state == "lost" else "",
        )  # fmt: skip
    console().print(shown)


def _name(serving: Serving) -> str:
    return f"{serving.queue}*" if serving.is_family else serving.queue


def _for_scripts(worker: KnownWorker) -> dict[str, object]:
    record = worker.record
    return {
        "owner": record.owner, "node": record.node, "pid": record.pid, "state": worker.state, "busy": worker.busy,
        "slots": worker.slots, "started": iso(record.started_us), "seen": iso(worker.seen_us),
        "version": record.version,
        "serving": [
            {"queue": serving.queue, "family": serving.is_family, "busy": serving.busy, "slots": serving.slots}
            for serving in record.serving
        ],
    }  # fmt: skip


def _chosen(store: QueueStore, names: list[str]) -> list[Handler]:
    handlers = cast(dict[tuple[str, bool], Handler], store.handlers)
    known = {name for name, _ in handlers}
    for name in names:
        if name not in known:
            raise BadInput(f"queue {name!r} has no handler.", hint=f"Those with one: {', '.join(sorted(known))}.")
    return [handler for (name, _), handler in handlers.items() if not names or name in names]


def _title(handler: Handler) -> str:
    return f"{handler.queue.name}* (family)" if handler.queue.is_family else handler.queue.name


def _follow_parent(lifeline: int) -> None:
    """Stop in order when the parent is gone: its end of the pipe closes, however it ended."""
    os.set_inheritable(lifeline, False)

    def wait() -> None:
        os.read(lifeline, 1)
        logger.warning("the parent process is gone; stopping")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="penstock-lifeline", daemon=True).start()

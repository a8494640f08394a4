"""What telemetry costs a drain: each kind against none, in short interleaved runs, in CPU time an entry.

python -m benchmarks.telemetry [--pairs N] [--kinds a,b] [--against SOURCE-FOLDER] [URL-TEMPLATE ...]

A template has {name} where each run has a space of its own; without one SQLite and memory are measured. The handler
does nothing, or keeps the processor busy for a millisecond. ``--against`` also compares telemetry that is off with the
source of another checkout, such as one from before it was built in; those runs are processes of their own.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import penstock
from benchmarks.measure import conditions, folder, quantile, timed
from penstock import Worker

TEMPLATES = [argument for argument in sys.argv[1:] if "://" in argument]
# Entries of one run, by how long the handler keeps the processor busy; so few that a run is seldom interrupted.
COUNTS = {0.0: 50, 0.001: 5}
KINDS = {
    "figures": "the figures for charts (in `off`, too)",
    "prometheus": "metrics for Prometheus, scraped between runs",
    "json": "what a handler logs names its entry (JSON lines)",
    "api": "traced, without an SDK",
    "otel": "traced, all spans to a no-op exporter",
    "sampled": "traced, one trace of ten",
}


def option(name: str, default: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


class Drained:
    """A store with one kind of telemetry, or with none."""

    def __init__(self, kind: str, url: str, busy: float) -> None:
        self._busy = busy
        self._count = COUNTS[busy]
        self.store = penstock.open_queues(url)
        middleware: list[Any] = []
        if kind == "json":
            from penstock.cli.log_lines import NameAttempt

            middleware.append(NameAttempt())
        if kind in ("api", "otel", "sampled"):
            from penstock import telemetry

            telemetry.trace(self.store, provider=None if kind == "api" else provider_of(kind))
        self._queue = self.store.queue("q", dict)
        self._queue.add_handler(self._handle)
        self._worker = Worker(self.store, middleware=middleware)
        self._scrape: Callable[[], object] = lambda: None
        if kind == "no figures":
            self._worker._loop.counters.clear()  # noqa: SLF001 - there is no such option
        if kind == "prometheus":
            from penstock.telemetry.metrics import WorkerMetrics

            metrics = WorkerMetrics(self._worker)
            self._scrape = lambda: metrics.snapshot().text()

    def _handle(self, _: Any) -> None:
        if self._busy:
            until = time.thread_time() + self._busy
            while time.thread_time() < until:
                pass

    def run(self) -> float:
        """The CPU time of an entry, in microseconds."""
        self._queue.put_many([{"number": number} for number in range(self._count)])
        # In one thread: how threads take turns on a busy machine would be measured otherwise.
        cost = timed(self._count, self._worker.drain).cpu_us
        self._scrape()
        return cost


def provider_of(kind: str) -> Any:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    class Nowhere(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider(sampler=ParentBased(TraceIdRatioBased(0.1)) if kind == "sampled" else None)
    provider.add_span_processor(BatchSpanProcessor(Nowhere(), max_queue_size=100_000))
    return provider


def in_process_of_its_own(source: str, url: str, busy: float) -> float:
    """The CPU time of an entry with another source: the best tenth of a hundred runs."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.telemetry", "--run", str(busy), url],
        env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{Path.cwd()}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(ended.stdout)


def compare(what: str, ways: tuple[Callable[[], float], Callable[[], float]], pairs: int) -> str:
    """Runs without and with it, in turn; the median of the ratios."""
    costs: tuple[list[float], list[float]] = [], []
    for number in range(pairs):
        for way in (0, 1) if number % 2 else (1, 0):  # who is first may find a warmer machine
            costs[way].append(ways[way]())
    ratios = [with_it / without for without, with_it in zip(*costs, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    # The tenth of the runs that a busy machine has disturbed least.
    least = quantile(costs[0], 0.1), quantile(costs[1], 0.1)
    return (
        f"{what:<80} {(middle - 1) * 100:+5.1f} % (half of {pairs} pairs: {(low - 1) * 100:+.1f} to "
        f"{(high - 1) * 100:+.1f} %); least: {least[0]:.1f} µs an entry without, {least[1]:.1f} with it, "
        f"{(least[1] / least[0] - 1) * 100:+.1f} %"
    )


def compare_kind(template: str, kind: str, busy: float, pairs: int) -> str:
    without, with_it = ("no figures", "off") if kind == "figures" else ("off", kind)
    stores = [Drained(each, template.format(name=f"{kind}{busy}{place}".replace(".", "")), busy)
              for place, each in enumerate((without, with_it))]  # fmt: skip
    try:
        for one in stores * 5:
            one.run()
        return compare(f"{_title(template, busy)} {KINDS[kind]}", (stores[0].run, stores[1].run), pairs)
    finally:
        for one in stores:
            one.store.close()


def _title(template: str, busy: float) -> str:
    handler = f"handler busy {busy * 1000:g} ms," if busy else "handler does nothing,"
    return f"{template.partition(':')[0]:<7} {handler:<23}"


def main() -> None:
    if "--run" in sys.argv:
        drained = Drained("off", TEMPLATES[0], float(option("--run", "0")))
        print(quantile([drained.run() for _ in range(100)], 0.1))
        drained.store.close()
        return
    print(conditions())
    pairs, against = int(option("--pairs", "300")), option("--against", "")
    kinds = option("--kinds", ",".join(KINDS)).split(",")
    with folder() as path:
        for template in TEMPLATES or [f"sqlite:///{path.absolute()}/{{name}}.db", "memory://{name}"]:
            for busy in COUNTS:
                for kind in kinds if kinds != ["none"] else ():
                    print(compare_kind(template, kind, busy, pairs), flush=True)
                if against:
                    ways = tuple(partial(in_process_of_its_own, source, template.format(name=f"n{number}"), busy)
                                 for number, source in enumerate((against, str(Path.cwd() / "src"))))  # fmt: skip
                    what = f"{_title(template, busy)} off, against {against}"
                    print(compare(what, ways, min(pairs, 15)), flush=True)
    print("load at the end", ", ".join(f"{load:.2f}" for load in os.getloadavg()))


if __name__ == "__main__":
    main()

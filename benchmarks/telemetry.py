"""What telemetry costs a drain: each kind against none, in CPU time an entry, and whether that is within its bar.

python -m benchmarks.telemetry [--pairs N] [--kinds a,b] [--against SOURCE-FOLDER] [URL-TEMPLATE ...]

Each pair is made of short runs without and with it, in turn; the median of the pairs counts.

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
from typing import Any, NamedTuple

import penstock
from benchmarks.measure import Bar, conditions, folder, quantile, report, timed
from penstock import Worker

TEMPLATES = [argument for argument in sys.argv[1:] if "://" in argument]
# Entries of one run, by how long the handler keeps the processor busy; so few that a run is seldom interrupted.
COUNTS = {0.0: 50, 0.001: 5}
PAIRS = 15
ROUNDS = 20  # short runs of each side of a pair
MOST = {"figures": 3.0}  # per cent of the CPU time of an entry
MOST_OTHERS = 5.0
KINDS = {
    "figures": "the figures for charts (in `off`, too)",
    "prometheus": "metrics for Prometheus, scraped between runs",
    "json": "what a handler logs names its entry (JSON lines)",
    "api": "traced, without an SDK",
    "otel": "traced, all spans to a no-op exporter",
    "span": "traced, against a bare span of the SDK around the handler",
    "sampled": "traced, one trace of ten",
}
AGAINST = {"figures": ("no figures", "off"), "span": ("bare", "otel")}


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
        if kind == "bare":
            middleware.append(bare_span(provider_of(kind)))
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


def bare_span(provider: Any) -> Callable[[Any, Callable[[], Any]], Any]:
    """A middleware with a span like ours by the SDK alone: what tracing an attempt costs at least."""
    from opentelemetry import context, trace

    tracer, nothing = trace.get_tracer("bare", None, provider), context.Context()
    creation = trace.SpanContext(1 << 100, 1 << 40, is_remote=True, trace_flags=trace.TraceFlags(1))

    def around(ctx: Any, call_next: Callable[[], Any]) -> Any:
        attributes = {
            "messaging.system": "penstock", "messaging.operation.name": "handle",
            "messaging.operation.type": "process", "messaging.destination.name": "q",
            "messaging.message.id": ctx.entry.id, "penstock.entry.attempt": 1, "penstock.entry.generation": 1,
        }  # fmt: skip
        span = tracer.start_span("handle q", nothing, trace.SpanKind.CONSUMER, attributes, (trace.Link(creation),))
        token = context.attach(trace.set_span_in_context(span, nothing))
        result = call_next()
        context.detach(token)
        span.end()
        return result

    return around


def in_process_of_its_own(source: str, url: str, busy: float) -> float:
    """The CPU time of an entry with another source: the best tenth of a hundred runs."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.telemetry", "--run", str(busy), url],
        env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{Path.cwd()}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(ended.stdout)


class Compared(NamedTuple):
    """What something adds, in per cent: the median of the pairs and where half of them are; the least costs seen."""

    middle: float
    low: float
    high: float
    without: float
    with_it: float
    pairs: int

    def __str__(self) -> str:
        return (
            f"{self.middle:+.1f} % (half of {self.pairs} pairs: {self.low:+.1f} to {self.high:+.1f} %); least: "
            f"{self.without:.1f} µs an entry without, {self.with_it:.1f} with it"
        )


def compare(without: Callable[[], float], with_it: Callable[[], float], pairs: int, rounds: int = ROUNDS) -> Compared:
    """Runs of both in turn, so that whatever disturbs the machine disturbs both sides of a pair."""
    ways, all_costs = (without, with_it), ([], [])
    ratios = []
    for _ in range(pairs):
        costs: tuple[list[float], list[float]] = [], []
        for number in range(rounds):
            for way in (0, 1) if number % 2 else (1, 0):  # who is first may find a warmer machine
                costs[way].append(ways[way]())
        ratios.append((sum(costs[1]) / sum(costs[0]) - 1) * 100)
        for way in (0, 1):
            all_costs[way].extend(costs[way])
    low, middle, high = statistics.quantiles(ratios, n=4)
    # The tenth of the runs that a busy machine has disturbed least.
    return Compared(middle, low, high, quantile(all_costs[0], 0.1), quantile(all_costs[1], 0.1), pairs)


def bar_of(what: str, compared: Compared, most: float) -> Bar:
    return Bar(what, f"at most {most:g} %", str(compared), compared.middle <= most)


def compare_kind(template: str, kind: str, busy: float, pairs: int) -> Bar:
    without, with_it = AGAINST.get(kind, ("off", kind))
    stores = [Drained(each, template.format(name=f"{kind}{busy}{place}".replace(".", "")), busy)
              for place, each in enumerate((without, with_it))]  # fmt: skip
    try:
        for one in stores * 5:
            one.run()
        compared = compare(stores[0].run, stores[1].run, pairs)
        return bar_of(f"{_title(template, busy)} {KINDS[kind]}", compared, MOST.get(kind, MOST_OTHERS))
    finally:
        for one in stores:
            one.store.close()


def _title(template: str, busy: float) -> str:
    handler = f"handler busy {busy * 1000:g} ms," if busy else "handler does nothing,"
    return f"{template.partition(':')[0]:<7} {handler:<23}"


def main() -> int:
    if "--run" in sys.argv:
        drained = Drained("off", TEMPLATES[0], float(option("--run", "0")))
        print(quantile([drained.run() for _ in range(100)], 0.1))
        drained.store.close()
        return 0
    conditions()  # of the machine before it is busy with this
    pairs, against = int(option("--pairs", str(PAIRS))), option("--against", "")
    kinds = option("--kinds", ",".join(KINDS)).split(",")
    bars: list[Bar] = []
    with folder() as path:
        for template in TEMPLATES or [f"sqlite:///{path.absolute()}/{{name}}.db", "memory://{name}"]:
            for busy in COUNTS:
                bars += [compare_kind(template, kind, busy, pairs) for kind in kinds if kind in KINDS]
                if against:
                    ways = [partial(in_process_of_its_own, source, template.format(name=f"n{number}"), busy)
                            for number, source in enumerate((against, str(Path.cwd() / "src")))]  # fmt: skip
                    compared = compare(ways[0], ways[1], pairs, rounds=1)
                    bars.append(bar_of(f"{_title(template, busy)} off, against {against}", compared, 1.0))
    ended = ", ".join(f"{load:.2f}" for load in os.getloadavg())
    note = "figures are always on; a traced attempt costs what the SDK takes for a span, so short handlers are sampled"
    return int(not report("Telemetry of a drain", bars, [note, f"load at the end {ended}", conditions()]))


if __name__ == "__main__":
    sys.exit(main())

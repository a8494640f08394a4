"""What processes report: metrics for Prometheus, health for probes, traces and metrics for OpenTelemetry.

catalog    every metric: its name, labels and meaning
snapshot   the values of metrics at one moment, and how Prometheus reads them
metrics    what is counted in a process
health     whether a worker is live and ready
streams    metrics and health of a topology
exposing   /metrics, /live and /ready on a port
reporting  what worker processes report to their parent
tracing    spans and metrics by the conventions of OpenTelemetry
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from penstock.errors import MissingExtra

if TYPE_CHECKING:
    from penstock.log.store import LogStore
    from penstock.queue.queues import QueueStore
    from penstock.telemetry.tracing import Tracer

__all__ = ["trace"]


def trace(
    store: QueueStore | LogStore,
    *,
    provider: Any = None,
    meter_provider: Any = None,
    relate: Literal["link", "child"] = "link",
    each: bool = False,
    baggage: bool = False,
) -> Tracer:
    """Trace a queue store or a log store with OpenTelemetry, from now on; workers created later are traced, too.

    Args:
        store: what to trace
        provider, meter_provider: the global ones by default
        relate: a span that handles an entry links to the one that put it; ``"child"`` makes it its child as well, on
            first attempts
        each: a span for every entry of a ``put_many`` or unit
        baggage: carry the baggage along

    Returns:
        what ends it with ``close()``
    """
    try:
        from penstock.telemetry.tracing import Tracer
    except ImportError as cause:
        raise MissingExtra(
            f"tracing needs {cause.name}, which is not installed.", hint='Run: pip install "penstock[otel]"'
        ) from cause
    return Tracer(store, provider=provider, meter_provider=meter_provider, relate=relate, each=each, baggage=baggage)

"""Is it alive, is it ready, and its figures for Prometheus."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.to_thread
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from penstock.breaker.breaker import Breaker
from penstock.errors import PenstockError
from penstock.log.store import LogStore
from penstock.queue.queues import QueueStore
from penstock.service.access import Reader, caller
from penstock.service.keys import ApiKey
from penstock.service.problems import problem, responses

router = APIRouter(tags=["health"])

READY_SECONDS = 5.0
MOST_QUEUES = 1000


class Health(BaseModel):
    """All is well."""

    status: str


@router.get("/live")
async def live() -> Health:
    """The process runs; says nothing of the stores."""
    return Health(status="ok")


@router.get("/ready", response_model=Health, responses={503: responses()[503]})
async def ready(request: Request) -> Any:
    """The stores answer."""
    state = request.app.state
    try:
        with anyio.fail_after(READY_SECONDS):
            await anyio.to_thread.run_sync(functools.partial(_ask, state.queues, state.logs), abandon_on_cancel=True)
    except (PenstockError, TimeoutError):
        return problem(503, "A store does not answer.", hint="`penstock doctor URL` says more.")
    return Health(status="ok")


def _ask(queues: QueueStore, logs: LogStore | None) -> None:
    queues.locks("none")
    if logs is not None:
        logs.exists("none")


@router.get("/openapi.json", include_in_schema=False)
def openapi(request: Request) -> Response:
    """What the service offers, for tools."""
    settings = request.app.state.settings
    if not settings.openapi:
        raise HTTPException(404, "This service does not show its OpenAPI.")
    if settings.openapi_key:
        caller(request)
    return JSONResponse(request.app.openapi())


@router.get("/metrics", responses=responses(404), response_class=Response)
def metrics(request: Request, key: Reader) -> Response:
    """Figures in the form that Prometheus reads; a key with a prefix sees those of its queues and logs."""
    if not request.app.state.settings.metrics:
        raise HTTPException(404, "This service shows no figures.")
    from prometheus_client import CollectorRegistry
    from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest

    registry = CollectorRegistry()
    state = request.app.state
    registry.register(Figures(state.queues, state.logs, state.breaker, key))
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return Response(text, media_type=CONTENT_TYPE_LATEST)


class Figures:
    """What is read from the stores for each scrape; queues beyond the first thousand are left out."""

    def __init__(self, queues: QueueStore, logs: LogStore | None, breaker: Breaker, key: ApiKey) -> None:
        """Nothing is read before :meth:`collect`."""
        self.queues = queues
        self.logs = logs
        self.breaker = breaker
        self.key = key

    def collect(self) -> Iterator[Any]:
        """The families of metrics."""
        if not self.key.prefix:
            yield from self._of_all()
        yield from self._of_queues()
        if self.logs is not None:
            yield self._of_logs(self.logs)

    def _of_all(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        told = CounterMetricFamily("penstock_signals", "What happened through this process.", labels=["store", "kind"])
        stores = (("queues", self.queues), ("logs", self.logs))
        for name, store in stores:
            for kind, count in sorted(store.signals.totals.items()) if store is not None else ():
                told.add_metric([name, kind], count)
        yield told
        states = GaugeMetricFamily(
            "penstock_circuit_state", "1 for the state a circuit is in.", labels=["circuit", "state"]
        )
        for circuit in self.breaker.circuits():
            states.add_metric([circuit.circuit, circuit.state], 1)
        yield states

    def _of_queues(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        entries = GaugeMetricFamily("penstock_queue_entries", "Entries by state.", labels=["queue", "state"])
        locked = GaugeMetricFamily("penstock_queue_locks", "Holders that lock a queue.", labels=["queue"])
        oldest = GaugeMetricFamily(
            "penstock_queue_oldest_ready_seconds", "For how long the oldest ready entry has waited.", labels=["queue"]
        )
        now = self.queues.now()
        for one in self.queues.driver.page(prefix=self.key.prefix, limit=MOST_QUEUES):
            for state in ("ready", "delayed", "retrying", "leased", "dead"):
                entries.add_metric([one.queue, state], getattr(one, state))
            locked.add_metric([one.queue], len(one.locks))
            waited = 0 if one.oldest_ready_us is None else max(0, now - one.oldest_ready_us) / 1e6
            oldest.add_metric([one.queue], waited)
        yield from (entries, locked, oldest)

    def _of_logs(self, logs: LogStore) -> Any:
        from prometheus_client.core import GaugeMetricFamily

        lag = GaugeMetricFamily("penstock_log_lag", "Records a group is behind.", labels=["log", "group"])
        for log in filter(self.key.sees, logs.names()):
            for group in logs.groups(log):
                lag.add_metric([log, group], logs.lag(log, group).lag)
        return lag

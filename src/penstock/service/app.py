"""The whole service as one ASGI application."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import anyio.to_thread
from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.params import Depends

import penstock
from penstock.breaker.breaker import Breaker
from penstock.breaker.settings import BreakerConfig
from penstock.clock import duration
from penstock.errors import BadInput
from penstock.gateway.delivery import Deliverer
from penstock.gateway.intake import Gateway
from penstock.gateway.queuing import Queuing
from penstock.gateway.routes import Routes
from penstock.gateway.splitting import Splitter
from penstock.log.maintenance.lag_samples import LagSampler
from penstock.log.store import LogStore
from penstock.queue.queues import QueueStore
from penstock.queue.worker import Worker
from penstock.queue.worker.maintenance import Reaper
from penstock.service import (
    changes,
    circuits,
    dashboard,
    gateway,
    health,
    leases,
    logs,
    problems,
    queues,
    scale,
    schedules,
    signals,
    topologies,
    workers,
)
from penstock.service.access import Shares
from penstock.service.gateleen_circuits import seed_router
from penstock.service.keys import Keys
from penstock.service.limits import Limits
from penstock.service.redisques_api import redisques_router
from penstock.service.settings import ServiceSettings
from penstock.stream.topology import Topology
from penstock.telemetry.metrics import StoreMetrics, WorkerMetrics

logger = logging.getLogger("penstock.service")

REAP_EVERY = timedelta(seconds=5)


def create_app(
    settings: ServiceSettings,
    queue_store: QueueStore,
    log_store: LogStore | None = None,
    topology_list: tuple[Topology, ...] = (),
    dependencies: Sequence[Depends] = (),
) -> FastAPI:
    """Create the service over open stores, which the caller closes; ``dependencies`` apply to every request."""
    app = FastAPI(
        title="Penstock",
        version=penstock.__version__,
        description="Queues, logs and streams over HTTP.",
        # The pages of FastAPI load code from elsewhere; the OpenAPI itself is enough for every tool.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # health.openapi serves it
        redirect_slashes=False,  # a redirect would name whatever the Host header says
        lifespan=_lifespan,
        dependencies=dependencies,
    )
    app.state.settings = settings
    app.state.queues = queue_store
    app.state.logs = log_store
    app.state.ending = threading.Event()
    app.state.keys = None if settings.keys is None else Keys(settings.keys)
    app.state.topologies = {topology.name: topology for topology in topology_list}
    app.state.appenders = logs.Appenders()
    # Waiting claims have threads of their own: they must not keep other requests from theirs.
    app.state.waiting = anyio.CapacityLimiter(settings.waiting_claims)
    app.state.waiting_by_key = Shares(min(settings.waiting_claims_per_key, settings.waiting_claims), "waiting claims")
    app.state.streams_by_key = Shares(settings.streams_per_key, "live pages or streams of signals")
    app.state.breaker = Breaker(queue_store, BreakerConfig())
    app.state.gateway = None
    app.state.metrics = None  # what this process does, once it serves
    for part in (queues, leases, schedules, workers, scale, changes, logs, topologies, circuits, signals, health):
        app.include_router(part.router)
    app.include_router(seed_router(settings.circuit_prefix))
    if settings.redisques is not None:
        app.state.queuing = Queuing(queue_store)
        app.include_router(redisques_router(settings.redisques))
    if settings.dashboard:
        dashboard.install(app)
    if settings.routes is not None:
        splitter = Splitter() if settings.splitting is None else read_splitting(settings.splitting)
        app.state.gateway = Gateway(queue_store, read_routes(settings.routes), splitter=splitter)
        app.include_router(gateway.router)  # the last one: it takes all other paths
    problems.install(app, page=dashboard.problem_page if settings.dashboard else None)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.cors_origins), allow_methods=["*"], allow_headers=["*"]
        )
    app.add_middleware(Limits, settings=settings)
    return app


def read_routes(path: Path) -> Routes:
    """The routes of queued requests."""
    try:
        return Routes.read(path.read_bytes())
    except OSError as cause:
        raise BadInput(
            f"the routes in {path} cannot be read: {cause.strerror}.", hint="It is JSON: {pattern: target}."
        ) from cause


def read_splitting(path: Path) -> Splitter:
    """How the queues of queued requests are split."""
    try:
        return Splitter(path.read_bytes())
    except OSError as cause:
        raise BadInput(
            f"the splitting in {path} cannot be read: {cause.strerror}.", hint="It is JSON: {pattern: {...}}."
        ) from cause


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    # For workers of other languages nothing else takes back expired leases and fires schedules. A short lease
    # is useless if nothing checks whether it has run out.
    reaper = Reaper(app.state.queues, every=min(duration(app.state.settings.lease) / 4, REAP_EVERY))
    delivering = _Delivering(app, reaper) if app.state.gateway is not None and app.state.settings.deliver else None
    app.state.metrics = StoreMetrics(app.state.queues) if delivering is None else WorkerMetrics(delivering.worker)
    if delivering is not None:
        await anyio.to_thread.run_sync(delivering.start)
    else:
        await anyio.to_thread.run_sync(app.state.breaker.begin)
        reaper.start()
    if app.state.gateway is not None and not app.state.breaker.config.circuit_check_enabled:
        logger.warning("the breaker is off: queued requests are tried again and again. PUT /v1/breaker/config sets it.")
    lag_log, log_store = app.state.settings.lag_log, app.state.logs
    sampler = LagSampler(log_store, lag_log) if lag_log is not None and log_store is not None else None
    try:
        yield
    finally:
        if sampler is not None:
            sampler.close()
        app.state.metrics.close()
        with anyio.CancelScope(shield=True):
            if delivering is not None:
                await anyio.to_thread.run_sync(delivering.stop)
            else:
                await anyio.to_thread.run_sync(reaper.stop)
                await anyio.to_thread.run_sync(app.state.breaker.end)
        app.state.appenders.close()


class _Delivering:
    """The worker that sends queued requests on, beside the service."""

    def __init__(self, app: FastAPI, reaper: Reaper) -> None:
        settings = app.state.settings
        self.deliverer = Deliverer(app.state.gateway, app.state.breaker, unrouted_for=settings.unrouted_for)
        store, lease = app.state.queues, duration(app.state.settings.lease)
        self.worker = Worker(store, [app.state.gateway.family], lease=lease, reaper=reaper)

    def start(self) -> None:
        self.worker.start()

    def stop(self) -> None:
        self.worker.stop()
        self.deliverer.close()

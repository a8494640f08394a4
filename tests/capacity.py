"""Many active queues, a backend that goes down and comes back: the seed's example of the edge of capacity."""

import os
import time
from dataclasses import dataclass

from tests.backends import Backend, backend

from penstock import Breaker, Retry, Worker, open_queues
from penstock.breaker import BreakerConfig
from penstock.gateway.delivery import Deliverer
from penstock.gateway.intake import Gateway
from penstock.gateway.routes import Routes

CONCURRENCY = 20
SAMPLES = 100
PACE_MS = 10


@dataclass
class Run:
    """What was seen."""

    calls_until_open: int
    locked: int
    unlock_seconds: float
    seconds: float
    grown_mb: float
    taken: dict[str, list[str]]


def play(url: str, queues: int, each: int, patience: float) -> Run:
    """All queues full, backend down; once it is open and everything locked, the backend comes back."""
    with backend() as far, open_queues(url) as store:
        far.mode = 503
        gateway = Gateway(store, Routes.read({"/crm/(.*)": f"{far.url}/$1"}))
        config = BreakerConfig.active(
            min_queue_sample_count=SAMPLES,
            error_threshold_percentage=80,
            entries_max_age_ms=300_000,
            max_queue_sample_count=4000,
            open_to_half_open=1000,
            unlock_queues=PACE_MS,
            unlock_sample_queues=200,
        )
        breaker = Breaker(store, config)
        retry = Retry(attempts=None, delays=["1s"])
        deliverer = Deliverer(gateway, breaker, concurrency=CONCURRENCY, retry=retry, timeout=30.0)
        for index in range(each):
            for number in range(queues):
                name = f"q{number}"
                headers = [("x-queue", name), ("x-name", name), ("x-rp-unique_id", f"{name}-{index}")]
                gateway.accept("PUT", "/crm/r", headers, str(index).encode())
        opened: list[int] = []
        store.signals.subscribe(
            lambda one: opened.append(len(far.calls)) if one.data["state"] == "open" else None, "circuit"
        )
        before, began = _resident_mb(), time.monotonic()
        worker = Worker(store)
        worker.start()
        try:
            _until(lambda: len(store.locks()) >= queues - CONCURRENCY, patience, "the locks")
            locked = len(store.locks())
            far.mode = 200
            _until(lambda: breaker.circuit("/crm/(.*)").state == "closed", patience, "the closing")
            closing = time.monotonic()
            _until(lambda: not store.locks(), patience, "the unlocking")
            unlocking = time.monotonic() - closing
            _until(lambda: gateway.family.counts().live == 0, patience, "all deliveries")
        finally:
            worker.stop()
            deliverer.close()
        return Run(opened[0], locked, unlocking, time.monotonic() - began, _resident_mb() - before, _settled(far))


def check(run: Run, queues: int, each: int) -> None:
    """Nothing lost, order kept, opened within the samples, back at the pace."""
    assert len(run.taken) == queues
    for bodies in run.taken.values():
        assert list(dict.fromkeys(bodies)) == [str(index) for index in range(each)]
    assert run.calls_until_open <= SAMPLES + 3 * CONCURRENCY
    wanted = run.locked * PACE_MS / 1000
    assert run.unlock_seconds >= 0.8 * wanted - 1
    assert run.unlock_seconds <= 3 * wanted + 10


def _settled(far: Backend) -> dict[str, list[str]]:
    with far.lock:
        return {name: list(bodies) for name, bodies in far.taken.items()}


def _until(wanted: object, patience: float, what: str) -> None:
    deadline = time.monotonic() + patience
    while not wanted():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)


def _resident_mb() -> float:
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

"""Routes and circuits over the life of services: others begin with other routes, circuits are opened and removed."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient
from tests.backends import Backend, backend

from penstock import QueueStore
from penstock.breaker.settings import BreakerConfig

CRM = "/crm/(.*)"


@pytest.fixture
def far() -> Iterator[Backend]:
    with backend() as made:
        yield made


@pytest.fixture
def routed(serving: Callable[..., TestClient], far: Backend, tmp_path: Path) -> Callable[..., TestClient]:
    """A service with routes of these patterns to the backend."""

    def start(*patterns: str, **settings: Any) -> TestClient:
        file = tmp_path / f"routes-{time.monotonic_ns()}.json"
        file.write_text(json.dumps(dict.fromkeys(patterns, far.url)))
        return serving(routes=file, **settings)

    return start


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def quick() -> dict[str, Any]:
    return BreakerConfig.active(
        min_queue_sample_count=3, error_threshold_percentage=50, open_to_half_open=60_000, unlock_queues=20,
        unlock_sample_queues=60_000,
    ).resource()  # fmt: skip


def stop(client: TestClient) -> None:
    client.__exit__(None, None, None)
    client.__exit__ = lambda *_: None  # type: ignore[method-assign,assignment]


def lock_all(service: TestClient, far: Backend, queues: QueueStore) -> None:
    """Let the backend fail until the circuit holds some queues."""
    assert service.put("/v1/breaker/config", json=quick()).status_code == 200
    far.mode = 503
    for number in range(6):
        assert service.put(f"/crm/{number}", headers={"x-queue": f"q{number}"}).status_code == 202
    until(lambda: len(queues.locks()) == 6, "all queues are locked")


def test_a_request_waits_for_a_process_that_knows_its_route(
    routed: Callable[..., TestClient], far: Backend, queues: QueueStore
) -> None:
    routed("/other/(.*)")
    takes_in = routed("/new/(.*)", deliver=False)
    told: list[Any] = []
    queues.signals.subscribe(told.append, "unrouted")
    assert takes_in.put("/new/1", headers={"x-queue": "n"}).status_code == 202
    until(lambda: told, "the one that delivers does not know the route")
    assert takes_in.get("/v1/queues/requests.n").json()["dead"] == 0
    assert far.calls == []


def test_a_route_that_vanished_between_two_services_frees_its_queues(
    routed: Callable[..., TestClient], far: Backend, queues: QueueStore
) -> None:
    first = routed(CRM)
    lock_all(first, far, queues)
    stop(first)
    far.mode = 200
    second = routed("/crm/(.+)")
    until(lambda: len(far.taken) == 6, "everything is delivered under the new pattern")
    assert CRM not in {one["circuit"] for one in second.get("/v1/circuits").json()["items"]}


def test_a_breaker_that_is_reset_strands_no_queue(
    routed: Callable[..., TestClient], far: Backend, queues: QueueStore
) -> None:
    service = routed(CRM)
    lock_all(service, far, queues)
    far.mode = 200
    off = {**quick(), "circuitCheckEnabled": False, "unlockQueues": {"enabled": False, "interval": 20}}
    assert service.put("/v1/breaker/config", json=off).status_code == 200
    until(lambda: len(far.taken) == 6, "everything is delivered")
    assert queues.locks() == []


def test_opening_by_hand(routed: Callable[..., TestClient]) -> None:
    service = routed(CRM)
    name = quote(CRM, safe="")
    refused = service.put(f"/v1/circuits/{name}/state", json={"state": "open"})
    assert (refused.status_code, "off" in refused.text) == (409, True)
    service.put("/v1/breaker/config", json=quick())
    assert service.put("/v1/circuits/deadbeef/state", json={"state": "open"}).status_code == 404
    assert service.get("/v1/circuits").json()["items"] == []
    opened = service.put(f"/v1/circuits/{name}/state", json={"state": "open"})
    assert (opened.status_code, opened.json()["state"]) == (200, "open")


def test_a_circuit_is_removed(routed: Callable[..., TestClient], far: Backend, queues: QueueStore) -> None:
    service = routed(CRM)
    lock_all(service, far, queues)
    far.mode = 200
    [circuit] = service.get("/v1/circuits").json()["items"]
    assert service.delete(f"/v1/circuits/{circuit['hash']}").status_code == 204
    assert service.delete("/v1/circuits/deadbeef").status_code == 404
    until(lambda: len(far.taken) == 6, "its queues are free")

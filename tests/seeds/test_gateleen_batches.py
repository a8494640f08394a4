"""gateleen-queue's promises in our words: several queued requests delivered as one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.backends import Backend, backend
from tests.store_urls import STORES, Place, Servers

from penstock import Breaker, QueueStore, Retry, Worker
from penstock.breaker import BreakerConfig
from penstock.gateway.delivery import Deliverer
from penstock.gateway.intake import Gateway
from penstock.gateway.routes import Routes
from penstock.testing import FakeClock

RULE = "/playground/(.*)"
AT_ONCE = Retry(attempts=None, delays=["0s"])


@pytest.fixture(params=list(STORES))
def place(request: pytest.FixtureRequest, tmp_path: Any, servers: Servers) -> Place:
    """Also ZooKeeper: what batches need of a store, all have."""
    return STORES[request.param](tmp_path, servers)


@pytest.fixture
def far() -> Iterator[Backend]:
    with backend() as made:
        yield made


class Desk:
    def __init__(self, store: QueueStore, far: Backend, **batch: Any) -> None:
        given = {"most": 3, **batch}
        self.gateway = Gateway(store, Routes.read({RULE: {"target": f"{far.url}/$1", "batch": given}}))
        self.breaker = Breaker(store, BreakerConfig.active(min_queue_sample_count=3))
        self.deliverer = Deliverer(self.gateway, self.breaker, retry=AT_ONCE, timeout=5.0)
        self.worker = Worker(store)

    def send(self, *values: Any, uri: str = "/playground/r", method: str = "PUT", **headers: str) -> None:
        given = [("x-queue", "q"), *((name.replace("_", "-"), value) for name, value in headers.items())]
        for value in values:
            self.gateway.accept(method, uri, given, json.dumps(value).encode())


def bodies(far: Backend) -> list[Any]:
    return [json.loads(body) for *_, body in far.calls]


@pytest.fixture
def desk(store: QueueStore, far: Backend) -> Iterator[Desk]:
    made = Desk(store, far)
    yield made
    made.deliverer.close()


@pytest.mark.seed("G84")
def test_two_are_one_request(desk: Desk, store: QueueStore, far: Backend) -> None:
    desk.send({"a": 1}, {"b": "é"}, content_type="application/json")
    desk.worker.drain()
    [(method, path, headers, body)] = far.calls
    assert (method, path, json.loads(body)) == ("PUT", "/r", [{"a": 1}, {"b": "é"}])
    assert headers["Content-Length"] == str(len(body))
    assert headers["content-type"] == "application/json"
    assert desk.gateway.family.counts().live == 0
    assert store.driver.documents("batch.") == []


@pytest.mark.seed("G85")
def test_what_has_expired_is_left_out(desk: Desk, far: Backend, clock: FakeClock) -> None:
    desk.send(1, 2, x_queue_expire_after="5")
    clock.advance("6s")
    desk.worker.drain()
    assert far.calls == []
    desk.send(3)
    desk.send(4, x_queue_expire_after="5")
    desk.send(5)
    clock.advance("6s")
    desk.worker.drain()
    assert bodies(far) == [[3, 5]]
    assert desk.gateway.family.counts().live == 0


@pytest.mark.seed("G157")
def test_how_far_a_batch_reaches(desk: Desk, far: Backend) -> None:
    desk.send(*range(7))
    desk.send(7, method="POST")
    desk.send(8, uri="/playground/other")
    desk.send(9)
    queue = desk.gateway.store.queue(desk.gateway.queue_name("q"), bytes, fifo=True)
    queue.put(b'{"method":"PUT"}')  # no address: a dead letter, and no part of any batch
    desk.send(10)
    desk.worker.drain()
    assert bodies(far) == [[0, 1, 2], [3, 4, 5], 6, 7, 8, 9, 10]
    assert len(queue.dead()) == 1


@pytest.mark.seed("G157")
def test_a_failure_keeps_all(desk: Desk, far: Backend) -> None:
    desk.send(0, 1, 2, 3)
    far.mode = 500
    desk.worker.drain(limit=2)
    assert bodies(far) == [[0, 1, 2], [0, 1, 2]]
    assert [entry.attempt for entry in desk.gateway.family.find()] == [2, 0, 0, 0]
    far.mode = 200
    desk.worker.drain()
    assert bodies(far)[2:] == [[0, 1, 2], 3]
    assert [row.state for row in desk.gateway.family.history() if row.state == "done"] == ["done"] * 4


@pytest.mark.seed("G157")
def test_a_minimum_waits_and_time_ends_the_waiting(store: QueueStore, far: Backend, clock: FakeClock) -> None:
    desk = Desk(store, far, least=3, wait="10s")
    desk.send(0, 1)
    desk.worker.drain()
    assert far.calls == []
    desk.send(2)
    clock.advance("2s")
    desk.worker.drain()
    assert bodies(far) == [[0, 1, 2]]
    desk.send(3, 4)
    for _ in range(12):
        desk.worker.drain()
        clock.advance("1s")
    assert bodies(far)[1:] == [[3, 4]]
    desk.send(5)
    desk.send(6, uri="/playground/other")  # nothing that could come would still go with the first
    desk.worker.drain()
    assert bodies(far)[2:3] == [5]
    desk.deliverer.close()


def test_another_process_ends_what_was_delivered(
    desk: Desk, far: Backend, store: QueueStore, open_store: Callable[..., QueueStore]
) -> None:
    desk.send(0, 1, 2, 3)
    desk.worker.drain(limit=1)
    assert bodies(far) == [[0, 1, 2]]
    desk.gateway.family.remove_handler()
    other = Desk(open_store(node="two"), far)
    other.worker.drain()
    assert bodies(far) == [[0, 1, 2], 3]
    assert store.driver.documents("batch.") == []
    other.deliverer.close()


def test_a_process_that_dies_before_it_settles(
    desk: Desk, far: Backend, store: QueueStore, open_store: Callable[..., QueueStore], clock: FakeClock
) -> None:
    desk.send(0, 1)
    real, died = store.driver._settle, RuntimeError("died")

    def die(steps: Any, *rest: Any) -> Any:
        if any(one.outcome == "done" for step in steps for one in step.endings):
            raise died
        return real(steps, *rest)

    store.driver._settle = die  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="died"):
        desk.worker.drain()
    store.driver._settle = real  # type: ignore[method-assign]
    clock.advance("2m")
    desk.gateway.family.remove_handler()
    other = Desk(open_store(node="two"), far)
    other.worker.drain()
    other.worker.drain()
    other.deliverer.close()
    assert bodies(far) == [[0, 1]], "the document was written before: nothing is sent twice"
    assert desk.gateway.family.counts().live == 0

"""Queued requests from intake to a real backend and back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.backends import Backend, backend, free_port

from penstock import (
    BadInput,
    Breaker,
    BreakerConfig,
    FakeClock,
    PayloadTooLarge,
    QueueStore,
    Retry,
    Worker,
    open_queues,
)
from penstock.requests.deliverer import Deliverer
from penstock.requests.gateway import Gateway
from penstock.requests.routes import Routes

AT_ONCE = Retry(attempts=None, delays=["0s"])


@pytest.fixture
def far() -> Iterator[Backend]:
    with backend() as made:
        yield made


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> Iterator[QueueStore]:
    with open_queues("memory://", clock=clock) as made:
        yield made


class Desk:
    """A gateway, a deliverer and a worker on one store."""

    def __init__(self, store: QueueStore, target: str, **options: Any) -> None:
        self.gateway = Gateway(store, Routes.read({"/crm/(.*)": f"{target}/api/$1"}))
        self.breaker = options.pop("breaker", None)
        self.deliverer = Deliverer(self.gateway, self.breaker, **{"retry": AT_ONCE, "timeout": 2.0, **options})
        self.worker = Worker(store)

    def send(self, queue: str, body: str = "x", method: str = "PUT", uri: str = "/crm/a", **headers: str) -> Any:
        given = [("x-queue", queue), *((name.replace("_", "-"), value) for name, value in headers.items())]
        return self.gateway.accept(method, uri, given, body.encode())

    def drain(self, limit: int | None = None) -> int:
        return self.worker.drain(limit=limit)


@pytest.fixture
def desk(store: QueueStore, far: Backend) -> Iterator[Desk]:
    made = Desk(store, far.url)
    yield made
    made.deliverer.close()


def test_a_request_is_stored_and_delivered(desk: Desk, far: Backend) -> None:
    accepted = desk.send("client:one", "hello", uri="/crm/a?b=c", content_type="text/plain", x_repeated="1")
    assert (accepted.queue, accepted.duplicate) == ("client:one", False)
    assert far.calls == []
    desk.drain()
    [(method, path, headers, body)] = far.calls
    assert (method, path, body) == ("PUT", "/api/a?b=c", b"hello")
    assert headers["x-originally-queued"] == "true"
    assert "x-queue" not in {name.lower() for name in headers}
    assert headers["x-server-timestamp"] == headers["x-server-arrival-timestamp"]
    assert desk.gateway.family.counts().live == 0


def test_the_stored_form_is_the_seeds(desk: Desk, store: QueueStore, clock: FakeClock) -> None:
    desk.send("q", "body?>", content_type="text/plain")
    [entry] = desk.gateway.family.find()
    stored = json.loads(entry.payload)
    assert (stored["method"], stored["uri"], stored["payload"]) == ("PUT", "/crm/a", "Ym9keT8+")
    assert stored["queueTimestamp"] == clock.micros() // 1000
    assert ["content-type", "text/plain"] in stored["headers"]


def test_only_what_asks_for_it_is_queued(desk: Desk) -> None:
    wants = desk.gateway.wants
    assert wants("PUT", [("X-Queue", "q")])
    assert not wants("GET", [("x-queue", "q")])
    assert not wants("PUT", [("x-queue", "")])
    assert not wants("PUT", [])


@pytest.mark.parametrize(
    ("method", "uri", "headers", "message"),
    [
        ("TRACE", "/crm/a", [("x-queue", "q")], "not queued"),
        ("CONNECT", "/crm/a", [("x-queue", "q")], "not queued"),
        ("GET", "/crm/a", [("x-queue", "q")], "not queued"),
        ("PUT", "/crm/a", [("x-queue", "  ")], "names no queue"),
        ("PUT", "/crm/a", [], "names no queue"),
        ("PUT", "/elsewhere", [("x-queue", "q")], "no route"),
        ("PUT", "http://169.254.169.254/latest", [("x-queue", "q")], "no route"),
        ("PUT", "/crm/" + "a" * 9000, [("x-queue", "q")], "characters"),
        ("PUT", "/crm/a", [("x-queue", "q"), ("bad header", "1")], "cannot be sent on"),
        ("PUT", "/crm/a", [("x-queue", "q"), ("x", "1\r\nhost: evil")], "cannot be sent on"),
        ("PUT", "/crm/a", [("x-queue", "n" * 300)], "name"),
        ("PUT", "/crm/a b", [("x-queue", "q")], "leads away"),
    ],
)
def test_what_cannot_be_queued_is_refused(
    desk: Desk, method: str, uri: str, headers: list[tuple[str, str]], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        desk.gateway.accept(method, uri, headers, b"")
    assert desk.gateway.family.find() == []


def test_a_body_that_is_too_large(desk: Desk) -> None:
    with pytest.raises(PayloadTooLarge, match="does not fit"):
        desk.send("q", "x" * 300_000)


def test_order_is_kept_behind_a_failure(desk: Desk, far: Backend) -> None:
    for queue in "ab":
        for number in range(3):
            desk.send(queue, f"{queue}{number}", x_name=queue)
    refused = {"a0": 2}

    def flaky(path: str, body: bytes) -> int:
        text = body.decode()
        if refused.get(text, 0):
            refused[text] -= 1
            return 500
        return 200

    far.mode = flaky
    desk.drain()
    assert dict(far.taken) == {"a": ["a0", "a1", "a2"], "b": ["b0", "b1", "b2"]}


@pytest.mark.parametrize("mode", ["hang", "garbage", "cut", "drip", 500, 404, 301])
def test_whatever_a_backend_does_the_request_stays(store: QueueStore, far: Backend, mode: Any) -> None:
    desk = Desk(store, far.url, timeout=0.3, breaker=Breaker(store, BreakerConfig.active()))
    far.mode = mode
    desk.send("q", "precious")
    desk.drain(limit=1)
    [entry] = desk.gateway.family.find()
    assert (entry.state, entry.attempt) == ("waiting", 1)
    assert "/crm/a" in (entry.error or "")
    assert desk.breaker.circuit("/crm/(.*)").failures == 1
    far.mode = 200
    far.hold.set()
    desk.drain()
    assert set(list(far.taken.values())[-1]) == {"precious"}  # on a busy machine an answer may come too late
    desk.deliverer.close()


def test_nobody_listens_there(store: QueueStore) -> None:
    desk = Desk(store, f"http://127.0.0.1:{free_port()}")
    desk.send("q")
    desk.drain(limit=1)
    [entry] = desk.gateway.family.find()
    assert "ConnectError" in (entry.error or "")
    desk.deliverer.close()


def test_a_conflict_counts_as_delivered(store: QueueStore, far: Backend) -> None:
    desk = Desk(store, far.url, breaker=Breaker(store, BreakerConfig.active()))
    far.mode = 409
    desk.send("q")
    desk.drain()
    assert desk.gateway.family.find() == []
    assert desk.breaker.circuit("/crm/(.*)").successes == 1
    desk.deliverer.close()


@pytest.mark.parametrize(
    ("status", "headers", "calls"),
    [
        (503, {"x_queue_retry_503": "0"}, 1),
        (503, {"x_queue_retry_5xx": "0"}, 1),
        (503, {"X_QUEUE_RETRY_503": "2"}, 3),
        (503, {"x_queue_retry_503": "3", "x_queue_retry_5xx": "0"}, 4),
        (400, {"x_queue_retry_4xx": "1"}, 2),
    ],
)
def test_retries_are_counted(desk: Desk, far: Backend, status: int, headers: dict[str, str], calls: int) -> None:
    far.mode = status
    desk.send("q", **headers)
    desk.drain(limit=20)
    assert len(far.calls) == calls
    assert desk.gateway.family.counts().live == 0
    assert desk.gateway.family.counts().dead == 0


def test_what_is_given_up_may_go_to_the_dead_letters(store: QueueStore, far: Backend) -> None:
    desk = Desk(store, far.url, give_up="dead", breaker=Breaker(store, BreakerConfig.active()))
    far.mode = 503
    desk.send("q", x_queue_retry_503="0")
    desk.drain()
    [letter] = desk.gateway.family.dead()
    assert "503" in (letter.error or "")
    # The entry's fate is one thing, the backend's state another.
    assert desk.breaker.circuit("/crm/(.*)").failures == 1
    far.mode = 404
    desk.send("q", x_queue_retry_4xx="0", x_rp_unique_id="expected")
    desk.drain()
    assert desk.breaker.circuit("/crm/(.*)").failures == 1
    desk.deliverer.close()


def test_retry_after_is_honoured(desk: Desk, far: Backend, clock: FakeClock) -> None:
    far.mode, far.headers = 503, {"retry-after": "30"}
    desk.send("q")
    desk.drain()
    assert len(far.calls) == 1
    [entry] = desk.gateway.family.find()
    assert entry.due_us - clock.micros() == 30_000_000


def test_expiry(desk: Desk, far: Backend, clock: FakeClock) -> None:
    desk.send("q", "gone", x_expire_after="100", x_queue_expire_after="5")
    desk.send("q", "kept", x_expire_after="100")
    desk.send("q", "never", x_expire_after="5", x_queue_expire_after="-1")
    clock.advance("6s")
    desk.drain()
    assert [body for *_, body in far.calls] == [b"kept", b"never"]
    assert far.calls[0][2]["x-expire-after"] == "100"
    assert [row.state for row in desk.gateway.family.history()] == ["expired", "done", "done"]


def test_duplicates(desk: Desk, far: Backend, clock: FakeClock) -> None:
    first = desk.send("q", "same", x_duplicate_check="10")
    again = desk.send("q", "same", x_duplicate_check="10")
    assert (again.duplicate, again.id) == (True, first.id)
    assert not desk.send("q", "other", x_duplicate_check="10").duplicate
    desk.drain()
    assert desk.send("q", "same", x_duplicate_check="10").duplicate
    clock.advance("11s")
    assert not desk.send("q", "same", x_duplicate_check="bad number").duplicate
    desk.drain()
    assert [body for *_, body in far.calls] == [b"same", b"other", b"same"]


def test_a_time_limit_of_its_own(desk: Desk, far: Backend) -> None:
    far.mode = "slow"
    desk.send("q", x_timeout="100")
    desk.drain(limit=1)
    [entry] = desk.gateway.family.find()
    assert "ReadTimeout" in (entry.error or "")


def test_a_malformed_item_is_a_dead_letter_and_blocks_nobody(desk: Desk, store: QueueStore, far: Backend) -> None:
    queue = store.queue(desk.gateway.queue_name("q"), bytes, fifo=True)
    queue.put_many(
        [
            b"no json", b'{"method":"PUT"}', b'{"method":"FETCH","uri":"/crm/a"}', b"[]", b'{"method":"PUT","uri":""}',
            b'{"method":"PUT","uri":"/crm/a","payload":"%%%"}',
        ]
    )  # fmt: skip
    desk.send("q", "good")
    desk.drain()
    assert [body for *_, body in far.calls] == [b"good"]
    assert len(queue.dead()) == 6
    assert queue.counts().live == 0


def test_a_route_that_is_gone_ends_in_the_dead_letters(desk: Desk, far: Backend) -> None:
    desk.send("q")
    desk.gateway.routes = Routes.read({"/erp/(.*)": far.url})
    desk.drain()
    [letter] = desk.gateway.family.dead()
    assert "no route" in (letter.error or "")
    assert far.calls == []


def test_other_routes_close_the_circuits_of_those_that_vanished(store: QueueStore, far: Backend) -> None:
    breaker = Breaker(store, BreakerConfig.active(min_queue_sample_count=1))
    desk = Desk(store, far.url, breaker=breaker)
    far.mode = 500
    desk.send("q")
    desk.drain()
    assert (breaker.circuit("/crm/(.*)").state, len(store.locks())) == ("open", 1)
    assert desk.deliverer.reroute(Routes.read({"/erp/(.*)": far.url, "/crm/(.*)": far.url})) == []
    assert desk.deliverer.reroute(Routes.read({"/erp/(.*)": far.url})) == ["/crm/(.*)"]
    assert breaker.circuits() == []
    breaker.tick()
    assert store.locks() == []
    desk.deliverer.close()


def test_secrets_stay_here_unless_the_route_says_otherwise(store: QueueStore, far: Backend) -> None:
    desk = Desk(store, far.url)
    desk.send("q", authorization="Bearer s3cret", cookie="a=b")
    desk.drain()
    desk.gateway.routes = Routes.read({"/crm/(.*)": {"target": f"{far.url}/$1", "credentials": True}})
    desk.send("q", authorization="Bearer s3cret")
    desk.drain()
    sent = [{name.lower() for name in headers} for _, _, headers, _ in far.calls]
    assert [("authorization" in one, "cookie" in one) for one in sent] == [(False, False), (True, False)]
    desk.deliverer.close()


def test_a_circuit_opens_and_everything_comes_back(store: QueueStore, far: Backend, clock: FakeClock) -> None:
    config = BreakerConfig.active(min_queue_sample_count=4, error_threshold_percentage=50)
    breaker = Breaker(store, config)
    desk = Desk(store, far.url, breaker=breaker)
    far.mode = 500
    for number in range(6):
        desk.send(f"q{number}", "1", x_name=f"q{number}", x_rp_unique_id=f"id-{number}")
        desk.send(f"q{number}", "2", x_name=f"q{number}", x_rp_unique_id=f"id2-{number}")
    desk.drain()
    assert breaker.circuit("/crm/(.*)").state == "open"
    assert len(far.calls) == 4
    far.mode = 200
    clock.advance("2m")
    for _ in range(8):
        breaker.tick()
        desk.drain()
        clock.advance("10s")
    assert dict(far.taken) == {f"q{number}": ["1", "2"] for number in range(6)}
    assert store.locks() == []
    desk.deliverer.close()

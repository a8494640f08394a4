"""Queued requests from intake to a real backend and back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.backends import Backend, backend, free_port

from penstock import Breaker, QueueStore, Retry, Worker, open_queues
from penstock.breaker import BreakerConfig
from penstock.errors import BadInput, PayloadTooLarge
from penstock.gateway.delivery import Deliverer
from penstock.gateway.headers import retry_after
from penstock.gateway.intake import Gateway
from penstock.gateway.item import read_item
from penstock.gateway.routes import Routes
from penstock.testing import FakeClock

AT_ONCE = Retry(attempts=None, delays=["0s"])


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


def test_what_no_route_leads_to_here_waits_for_one_that_does(desk: Desk, far: Backend, clock: FakeClock) -> None:
    there = desk.gateway.routes
    told: list[Any] = []
    desk.gateway.store.signals.subscribe(told.append, "unrouted")
    desk.send("q", "1", uri="/crm/a?token=secret")
    desk.send("q", "2")
    desk.gateway.routes = Routes.read({"/erp/(.*)": far.url})
    desk.drain()
    clock.advance("23h")
    desk.drain()
    [entry, _] = desk.gateway.family.find()
    assert (entry.state, entry.attempt) == ("waiting", 0)
    assert [(one.ids, one.data) for one in told] == [((entry.id,), {"path": "/crm/a"})] * 2
    desk.gateway.routes = there  # as another process has them
    clock.advance("10s")
    desk.drain()
    assert [body for *_, body in far.calls] == [b"1", b"2"]


def test_a_route_that_is_gone_ends_in_the_dead_letters_in_the_end(
    store: QueueStore, far: Backend, clock: FakeClock
) -> None:
    desk = Desk(store, far.url, unrouted_for="1h")
    desk.send("q")
    clock.advance("2h")  # how long it has waited for other reasons does not count
    desk.gateway.routes = Routes.read({"/erp/(.*)": far.url})
    desk.drain()
    assert desk.gateway.family.dead() == []
    clock.advance("1h")
    desk.drain()
    [letter] = desk.gateway.family.dead()
    assert "no route" in (letter.error or "")
    assert far.calls == []
    desk.deliverer.close()


def test_routes_that_vanished_while_nobody_ran_leave_no_circuit(store: QueueStore, far: Backend) -> None:
    breaker = Breaker(store, BreakerConfig.active(min_queue_sample_count=1))
    breaker.report("of another program", "1", True)
    desk = Desk(store, far.url, breaker=breaker)
    far.mode = 500
    desk.send("q")
    desk.drain()
    desk.deliverer.close()
    assert (breaker.circuit("/crm/(.*)").state, len(store.locks())) == ("open", 1)
    far.mode = 200
    again = Breaker(store, BreakerConfig.active(min_queue_sample_count=1))
    gateway = Gateway(store, Routes.read({"/crm/(.+)": f"{far.url}/$1"}))
    deliverer = Deliverer(gateway, again, retry=AT_ONCE)
    assert [one.circuit for one in again.circuits()] == ["of another program"]
    again.tick()
    Worker(store).drain()
    assert (store.locks(), len(far.taken)) == ([], 1)
    deliverer.close()


@pytest.mark.parametrize("enabled", [True, False])
def test_a_removed_circuit_frees_its_queues(store: QueueStore, far: Backend, enabled: bool) -> None:
    breaker = Breaker(store, BreakerConfig.active(min_queue_sample_count=1))
    desk = Desk(store, far.url, breaker=breaker)
    far.mode = 500
    desk.send("q")
    desk.drain()
    breaker.tick()
    breaker.configure({**breaker.config.resource(), "unlockQueues": {"enabled": enabled, "interval": 10}})
    breaker.remove("/crm/(.*)")
    breaker.tick()
    assert store.locks() == []
    desk.deliverer.close()


BAD_ITEMS = [
    {"headers": [["bad name", "x"]]}, {"headers": [["x", "a\r\nb: c"]]}, {"headers": [["x", "\u20ac"]]},
    {"headers": [["\u20ac", "x"]]}, {"headers": [["x", "a\0b"]]}, {"uri": "/crm/x y"},
    {"uri": "/crm/../../admin"}, {"uri": "/crm/" + "a" * 70_000},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD_ITEMS, ids=range(len(BAD_ITEMS)))
def test_what_cannot_be_sent_is_a_dead_letter_and_no_verdict(store: QueueStore, far: Backend, bad: Any) -> None:
    desk = Desk(store, far.url, breaker=Breaker(store, BreakerConfig.active(min_queue_sample_count=1)))
    queue = store.queue(desk.gateway.queue_name("q"), dict[str, Any], fifo=True)
    queue.put({"method": "PUT", "uri": "/crm/x", "headers": [], "payload": "", **bad})
    desk.send("q", "good", x_rp_unique_id="good")
    desk.drain(limit=5)
    assert [body for *_, body in far.calls] == [b"good"]
    [letter] = queue.dead()
    assert "rejected" in (letter.error or "")
    view = desk.breaker.circuit("/crm/(.*)")
    assert (view.state, view.failures, view.successes) == ("closed", 0, 1)
    desk.deliverer.close()


def test_headers_arrive_in_the_bytes_in_which_they_came(desk: Desk, far: Backend) -> None:
    desk.send("q", x_name="J\xe9r\xf4me")
    desk.drain(limit=2)
    assert far.calls[0][2]["x-name"] == "J\xe9r\xf4me"


def test_a_client_that_was_closed_loses_nothing(desk: Desk) -> None:
    desk.send("q")
    for client in desk.deliverer._clients.values():
        client.close()
    desk.drain(limit=1)
    [entry] = desk.gateway.family.find()
    assert (entry.state, entry.attempt) == ("waiting", 0)


def test_a_retry_header_counts_its_own_answer(desk: Desk, store: QueueStore, far: Backend) -> None:
    answers = [500, 500, 503, 500, 503, 503, 200]
    far.mode = lambda path, body: answers[len(far.calls) - 1]
    desk.send("q", x_queue_retry_503="2")
    desk.drain(limit=20)
    assert len(far.calls) == 6, "the third 503 is one too many; the 500s are none of its business"
    assert desk.gateway.family.counts().live == 0
    assert store.driver.documents("answers.") == []


def test_counted_answers_are_of_one_request(desk: Desk, store: QueueStore, far: Backend) -> None:
    answers = [503, 200, 503, 503, 503]
    far.mode = lambda path, body: answers[len(far.calls) - 1]
    desk.send("q", "1", x_queue_retry_5xx="1")
    desk.send("q", "2", x_queue_retry_5xx="1")
    desk.drain(limit=20)
    assert [body for *_, body in far.calls] == [b"1", b"1", b"2", b"2"]
    assert store.driver.documents("answers.") == []


def test_another_method_is_no_duplicate(desk: Desk, far: Backend) -> None:
    desk.send("q", "", "PUT", x_duplicate_check="10")
    assert not desk.send("q", "", "DELETE", x_duplicate_check="10").duplicate
    desk.drain()
    assert [method for method, *_ in far.calls] == ["PUT", "DELETE"]


@pytest.mark.parametrize(
    "rest",
    [
        "../../admin", "a/../../b", "..", ".", "./a", "%2e%2e/admin", "%2E./admin", "..%2fadmin", "..;x=1/admin",
        "..%5cadmin", "%252e%252e/admin", "a/..?b=c",
    ],
)  # fmt: skip
def test_dot_segments_are_refused(desk: Desk, rest: str) -> None:
    with pytest.raises(BadInput, match="dots"):
        desk.send("q", uri=f"/crm/{rest}")


@pytest.mark.parametrize("rest", ["a..b", "...", "a?b=../c", ".well-known/x", "a%2fb"])
def test_other_dots_are_fine(desk: Desk, far: Backend, rest: str) -> None:
    desk.send("q", uri=f"/crm/{rest}")
    desk.drain()
    assert far.calls[0][1] == f"/api/{rest}"


def test_dots_that_only_the_route_puts_together_are_refused(store: QueueStore) -> None:
    gateway = Gateway(store, Routes.read({"/(.)/(.)/(.*)": "http://127.0.0.1:9/$1$2/$3"}))
    with pytest.raises(BadInput, match="dots"):
        gateway.accept("PUT", "/./_/x".replace("_", "."), [("x-queue", "q")])
    pair = Gateway(store, Routes.read({"/x(.)x(.)/(.*)": "http://127.0.0.1:9/a/$1$2/$3"}))
    with pytest.raises(BadInput, match="dots"):
        pair.accept("PUT", "/x.x./admin", [("x-queue", "q")])


def test_a_backend_that_hangs_does_not_stop_the_others(store: QueueStore, far: Backend) -> None:
    with backend() as stuck, open_queues("memory://") as real:
        stuck.mode = "hang"
        gateway = Gateway(real, Routes.read({"/stuck/(.*)": f"{stuck.url}/$1", "/crm/(.*)": f"{far.url}/$1"}))
        deliverer = Deliverer(gateway, retry=AT_ONCE, concurrency=4, timeout=20.0)
        worker = Worker(real)
        for number in range(30):
            gateway.accept("PUT", "/stuck/a", [("x-queue", f"s{number}"), ("x-timeout", "3600000")])
        worker.start()
        wait_for(lambda: len(stuck.calls) == 2)
        for number in range(10):
            gateway.accept("PUT", "/crm/a", [("x-queue", f"q{number}")])
        wait_for(lambda: len(far.calls) == 10)
        assert len(stuck.calls) == 2, "half of the slots, and no more"
        stuck.mode = 200
        stuck.hold.set()
        wait_for(lambda: gateway.family.counts().live == 0)
        worker.stop()
        deliverer.close()


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_request_cannot_ask_for_more_time_than_its_route_has(store: QueueStore, far: Backend) -> None:
    gateway = Gateway(store, Routes.read({"/crm/(.*)": {"target": far.url, "timeout": "200ms"}}))
    deliverer = Deliverer(gateway, retry=AT_ONCE)
    far.mode = "hang"
    gateway.accept("PUT", "/crm/a", [("x-queue", "q"), ("x-timeout", "9" * 400)])
    began = time.monotonic()
    Worker(store).drain(limit=1)
    assert time.monotonic() - began < 5
    [entry] = gateway.family.find()
    assert "ReadTimeout" in (entry.error or "")
    deliverer.close()


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("30", 30), ("9" * 5000, 3600), ("Thu, 01 Jan 2099 00:00:00 GMT", 3600), ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("soon", None), ("-5", None), ("", None), (None, None),
    ],
)  # fmt: skip
def test_retry_after_may_be_a_number_or_a_date(said: str | None, seconds: int | None) -> None:
    assert retry_after(said, datetime(2026, 1, 1, tzinfo=UTC)) == seconds


def test_a_date_is_that_far_away() -> None:
    assert retry_after("Thu, 01 Jan 2026 00:00:30 GMT", datetime(2026, 1, 1, tzinfo=UTC)) == 30


def test_secrets_in_queries_are_in_no_error(desk: Desk, far: Backend, caplog: pytest.LogCaptureFixture) -> None:
    far.mode = 500
    desk.send("q", uri="/crm/a?token=s3cret")
    desk.drain(limit=1)
    [entry] = desk.gateway.family.find()
    assert "/crm/a" in (entry.error or "")
    assert "s3cret" not in (entry.error or "") + "".join(
        one.getMessage() for one in caplog.records if one.name.startswith("penstock")
    )


def test_what_backends_must_not_believe_is_not_sent_although_it_was_stored(desk: Desk, far: Backend) -> None:
    """Whoever may put into the queues of requests writes the stored form, past the gateway."""
    desk.send("q", content_type="text/plain")
    [entry] = desk.gateway.family.find()
    stored = json.loads(entry.payload)
    stored["headers"] += [["X-Forwarded-For", "10.0.0.1"], ["x-http-method-override", "DELETE"]]
    member = desk.gateway.family.member(entry.queue)
    member.update(entry.id, read_item(json.dumps(stored).encode()))
    desk.drain()
    [(_, _, headers, _)] = far.calls
    names = {name.lower() for name in headers}
    assert "content-type" in names
    assert not names & {"x-forwarded-for", "x-http-method-override"}


def test_cookies_of_one_are_not_sent_for_another(desk: Desk, far: Backend) -> None:
    far.headers = {"set-cookie": "session=ann; path=/"}
    desk.send("a")
    desk.drain()
    desk.send("b")
    desk.drain()
    assert all("cookie" not in {name.lower() for name in headers} for _, _, headers, _ in far.calls)


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

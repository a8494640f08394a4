"""What goes into a batch, and what becomes of its parts when something else happens meanwhile."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from tests.backends import Backend

from penstock import Breaker, QueueStore, Retry, Worker
from penstock.breaker import BreakerConfig
from penstock.errors import BadInput, StoreUnavailable
from penstock.gateway import batches
from penstock.gateway.delivery import Deliverer
from penstock.gateway.intake import Gateway
from penstock.gateway.item import QueuedRequest
from penstock.gateway.routes import Batch, Routes
from penstock.queue.protocol import DocumentWrite
from penstock.testing import FakeClock

AT_ONCE = Retry(attempts=None, delays=["0s"])
RULE = "/a"


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Deliverers are closed when their test has ended."""
    yield
    while Desk.made:
        Desk.made.pop().deliverer.close()


class Desk:
    made: ClassVar[list[Desk]] = []

    def __init__(self, store: QueueStore, far: Backend, *, route: dict[str, Any] | None = None, **options: Any) -> None:
        self.gateway = Gateway(store, Routes.read({RULE: {"target": far.url, "batch": 10, **(route or {})}}))
        self.deliverer = Deliverer(self.gateway, **{"retry": AT_ONCE, "timeout": 2.0, **options})
        self.worker = Worker(store)
        self.queue = self.gateway.queue("q")
        Desk.made.append(self)

    def send(self, *bodies: bytes, **headers: str) -> None:
        given = [("x-queue", "q"), *((name.replace("_", "-"), value) for name, value in headers.items())]
        for body in bodies:
            self.gateway.accept("PUT", "/a", given, body)


def sent(far: Backend) -> list[bytes]:
    return [body for *_, body in far.calls]


def test_bodies_that_are_no_json_go_alone(store: QueueStore, far: Backend) -> None:
    desk = Desk(store, far)
    tricks = [b"", b"1],[2", b"1,2", b"\xff", b"NaN", b"{", b'"half']
    desk.send(b" 1 ", b"[2]", *tricks, b"3", b"4")
    desk.worker.drain()
    assert sent(far) == [b"[1,[2]]", *tricks, b"[3,4]"]


def test_numbers_arrive_as_they_were_sent(store: QueueStore, far: Backend) -> None:
    desk = Desk(store, far)
    desk.send(b"1.10", b"123456789012345678901234567890", b'{"a":1,"a":2}')
    desk.worker.drain()
    assert sent(far) == [b'[1.10,123456789012345678901234567890,{"a":1,"a":2}]']


def test_one_clients_body_does_not_go_in_anothers_name(store: QueueStore, far: Backend) -> None:
    desk = Desk(store, far, route={"credentials": True})
    desk.send(b"1", b"2", authorization="Bearer ann")
    desk.send(b"3", b"4", authorization="Bearer bob")
    desk.worker.drain()
    assert [(headers["authorization"], body) for _, _, headers, body in far.calls] == [
        ("Bearer ann", b"[1,2]"), ("Bearer bob", b"[3,4]"),
    ]  # fmt: skip
    desk.deliverer.close()
    plain = Desk(store, far)
    plain.send(b"5", authorization="Bearer ann")
    plain.send(b"6", authorization="Bearer bob")
    plain.worker.drain()
    assert sent(far)[2:] == [b"[5,6]"], "where nobody's name goes along, nobody's matters"


def test_a_batch_has_a_bearable_size(store: QueueStore, far: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MOST_BYTES", 10)
    monkeypatch.setattr(batches, "PAGE", 2)
    desk = Desk(store, far)
    desk.send(*[b"1234"] * 5)
    desk.worker.drain()
    assert sent(far) == [b"[1234,1234]", b"[1234,1234]", b"1234"]


@pytest.mark.parametrize("give_up", ["drop", "dead"])
def test_giving_up_the_head_concerns_the_head_alone(store: QueueStore, far: Backend, give_up: Any) -> None:
    desk = Desk(store, far, give_up=give_up)
    desk.send(b"1", b"2", x_queue_retry_400="1")
    far.mode = 400
    desk.worker.drain()
    assert sent(far) == [b"[1,2]", b"[1,2]", b"2", b"2"], "each has the retries it asked for"
    assert desk.gateway.family.counts().live == 0
    assert len(desk.queue.dead()) == (2 if give_up == "dead" else 0)


@pytest.mark.parametrize("give_up", ["drop", "dead"])
def test_no_request_is_lost_with_another_one(store: QueueStore, far: Backend, give_up: Any) -> None:
    desk = Desk(store, far, give_up=give_up)
    desk.send(b"0", x_queue_retry_503="0")
    desk.send(b"1", b"2")
    desk.send(b"3", x_queue_expire_after="60")
    far.mode = lambda path, body: 503 if len(far.calls) == 1 else 200
    desk.worker.drain()
    assert sent(far) == [b"0", b"[1,2]", b"3"]


def test_a_head_that_is_given_up_leaves_the_others_to_be_delivered(store: QueueStore, far: Backend) -> None:
    desk = Desk(store, far)
    desk.send(b"1", b"2", b"3", x_queue_retry_503="0")
    far.mode = lambda path, body: 503 if len(far.calls) == 1 else 200
    desk.worker.drain()
    assert sent(far) == [b"[1,2,3]", b"[2,3]"]
    assert desk.gateway.family.counts().live == 0


def test_a_batch_has_one_sender(store: QueueStore, far: Backend) -> None:
    desk = Desk(store, far)
    desk.send(b"1", x_tenant="ann", x_rp_unique_id="a")
    desk.send(b"2", x_tenant="ann", x_rp_unique_id="b")
    desk.send(b"3", b"4", x_tenant="bob")
    desk.worker.drain()
    assert [(headers["x-tenant"], body) for _, _, headers, body in far.calls] == [("ann", b"[1,2]"), ("bob", b"[3,4]")]


def test_json_that_is_too_deep_to_read_goes_alone(store: QueueStore, far: Backend) -> None:
    desk = Desk(store, far)
    deep = b"[" * 60_000 + b"]" * 60_000
    desk.send(deep, b"1", b"2")
    desk.worker.drain(limit=5)
    assert sent(far) == [deep, b"[1,2]"]


def test_a_document_that_cannot_be_read_blocks_nobody(store: QueueStore, far: Backend) -> None:
    desk = Desk(store, far)
    desk.send(b"1", b"2")
    store.driver.write([DocumentWrite(batches.document_of("batch", desk.queue.name), b"no json")])
    desk.worker.drain(limit=5)
    assert sent(far) == [b"[1,2]"]


def test_a_store_that_cannot_be_asked_says_nothing_about_the_backend(
    store: QueueStore, far: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaker = Breaker(store, BreakerConfig.active(min_queue_sample_count=1))
    desk = Desk(store, far, breaker=breaker)
    desk.send(b"1")

    def unavailable(find: object) -> None:
        raise StoreUnavailable("gone.", hint="")

    with monkeypatch.context() as patched:
        patched.setattr(store.driver, "find", unavailable)
        desk.worker.drain(limit=1)
    [entry] = desk.queue.find()
    assert (entry.attempt, breaker.report(RULE, "other", True).failures) == (0, 0)


def test_what_was_changed_meanwhile_is_another_request(store: QueueStore, far: Backend) -> None:
    desk = Desk(store, far)
    desk.send(b"1", b"2", b"3")
    desk.worker.drain(limit=1)
    assert sent(far) == [b"[1,2,3]"]
    two, three = desk.queue.find()
    desk.queue.update(two.id, QueuedRequest("PUT", "/a", (), b'"changed"'))
    desk.queue.cancel(three.id)
    desk.worker.drain()
    assert sent(far)[1:] == [b'"changed"']


def test_a_replay_is_sent_again(store: QueueStore, far: Backend) -> None:
    desk = Desk(store, far, give_up="dead")
    desk.send(b"1", b"2", x_queue_retry_400="0")
    far.mode = 400
    desk.worker.drain(limit=1)
    [letter] = desk.queue.dead()
    far.mode = 200
    desk.queue.replay(letter.id)
    desk.worker.drain()
    assert sent(far) == [b"[1,2]", b"[2,1]"]


def test_an_open_circuit_keeps_batches_back_and_followers_say_nothing(
    store: QueueStore, far: Backend, clock: FakeClock
) -> None:
    breaker = Breaker(store, BreakerConfig.active(min_queue_sample_count=1))
    desk = Desk(store, far, breaker=breaker)
    desk.send(b"1", b"2", b"3")
    desk.worker.drain(limit=1)
    assert breaker.circuit(RULE).successes == 1
    breaker.open(RULE)
    breaker.half_open(RULE)
    desk.worker.drain()
    assert desk.gateway.family.counts().live == 0
    assert breaker.circuit(RULE).state == "half_open", "no call was made that could have closed it"
    breaker.open(RULE)
    desk.send(b"4", b"5")
    desk.worker.drain()
    assert sent(far) == [b"[1,2,3]"]
    assert desk.gateway.family.counts().live == 2


def test_a_store_that_is_away_when_it_should_remember(
    store: QueueStore, far: Backend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(store, far)
    desk.send(b"1", b"2")

    def fail(*_: Any) -> Any:
        raise StoreUnavailable("the store is away.")

    monkeypatch.setattr(store.driver, "write", fail)
    desk.worker.drain()
    assert sent(far) == [b"[1,2]"]
    assert "could not be stored" in caplog.text


def test_queues_are_batches_of_their_own(store: QueueStore, far: Backend) -> None:
    desk = Desk(store, far)
    for number in range(6):
        desk.gateway.accept("PUT", "/a", [("x-queue", f"q{number % 2}")], json.dumps(number).encode())
    desk.worker.drain()
    assert sorted(sent(far)) == [b"[0,2,4]", b"[1,3,5]"]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (1, "cannot be delivered"), (0, "cannot be delivered"), (1001, "cannot be delivered"), (True, "bool"),
        ({"most": 5, "least": 6}, "cannot be delivered"), ({"most": 5, "least": 0}, "cannot be delivered"),
        ({"most": 5, "wait": "soon"}, "soon"), ({"least": 2}, "most"), ({"most": 5, "more": 1}, "more"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(wrong: Any, told: str) -> None:
    with pytest.raises(BadInput, match=re.escape(told)):
        Routes.read({"/a": {"target": "http://x", "batch": wrong}})


def test_a_number_is_enough() -> None:
    found = Routes.read({"/a": {"target": "http://x", "batch": 5}}).find("/a")
    assert found is not None
    assert found[0].batch == Batch(5)
    plain = Routes.read({"/a": "http://x"}).find("/a")
    assert plain is not None
    assert plain[0].batch is None

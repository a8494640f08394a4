"""gateleen-queue's promises in our words: requests that are queued, replayed, expired, retried and split."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from tests import capacity
from tests.backends import Backend, backend

from penstock import Breaker, QueueStore, Retry, Worker, open_queues
from penstock.breaker import BreakerConfig
from penstock.clock import SystemClock
from penstock.errors import BadInput, StoreUnavailable, Undecodable
from penstock.gateway.delivery import Deliverer
from penstock.gateway.headers import (
    EXPIRE_AFTER,
    QUEUE_EXPIRE_AFTER,
    expires_after,
    expiry,
    retries,
    unique_request_id,
)
from penstock.gateway.intake import Gateway
from penstock.gateway.item import QueuedRequest, RequestCodec, from_browsed, read_item
from penstock.gateway.routes import Routes
from penstock.gateway.splitting import Splitter
from penstock.testing import FakeClock

AT_ONCE = Retry(attempts=None, delays=["0s"])
RULE = "/playground/(.*)"


@pytest.fixture
def far() -> Iterator[Backend]:
    with backend() as made:
        yield made


class Desk:
    def __init__(self, store: QueueStore, far: Backend, config: BreakerConfig | None = None) -> None:
        self.gateway = Gateway(store, Routes.read({RULE: f"{far.url}/$1"}))
        self.breaker = Breaker(store, config or BreakerConfig.active(min_queue_sample_count=3))
        self.deliverer = Deliverer(self.gateway, self.breaker, retry=AT_ONCE, timeout=5.0)
        self.worker = Worker(store)

    def send(self, queue: str, body: str = "x", **headers: str) -> Any:
        given = [("x-queue", queue), *((name.replace("_", "-"), value) for name, value in headers.items())]
        return self.gateway.accept("PUT", "/playground/r", given, body.encode())


@pytest.fixture
def desk(store: QueueStore, far: Backend) -> Iterator[Desk]:
    made = Desk(store, far)
    yield made
    made.deliverer.close()


def request(**headers: str) -> QueuedRequest:
    return QueuedRequest("PUT", "/a", tuple((name.replace("_", "-"), value) for name, value in headers.items()))


# --- replay ------------------------------------------------------------------------------------------


@pytest.mark.seed("G77")
def test_delivery_is_started_and_stopped(desk: Desk, far: Backend) -> None:
    desk.send("q")
    desk.gateway.family.remove_handler()
    assert desk.worker.drain() == 0
    desk.gateway.family.add_handler(desk.deliverer.deliver)
    assert desk.worker.drain() == 1
    assert len(far.calls) == 1


@pytest.mark.seed("G78", "G79")
def test_an_open_circuit_refuses_unless_the_check_is_off(desk: Desk, far: Backend) -> None:
    desk.breaker.open(RULE)
    desk.send("q")
    desk.worker.drain()
    assert far.calls == []
    [entry] = desk.gateway.family.find()
    assert (entry.error, entry.attempt) == (f"circuit {RULE} is open", 0)
    desk.breaker.configure({**desk.breaker.config.resource(), "circuitCheckEnabled": False})
    for lock in desk.gateway.store.locks():
        desk.gateway.store.driver.unlock(lock.queue, lock.holder)
    desk.worker.drain()
    assert len(far.calls) == 1


@pytest.mark.seed("G80", "G81", "G82", "G83")
def test_what_answers_mean(desk: Desk, far: Backend) -> None:
    desk.send("fine")
    desk.worker.drain()
    assert desk.gateway.family.counts().live == 0
    far.mode = 400
    desk.send("bad")
    desk.worker.drain(limit=1)
    [entry] = desk.gateway.queue("bad").find()
    assert "400" in (entry.error or "")
    desk.gateway.queue("bad").cancel(entry.id)
    desk.send("unwanted", x_queue_retry_400="0")
    desk.worker.drain()
    assert desk.gateway.queue("unwanted").counts().live == 0
    far.mode = 503
    desk.send("other", x_queue_retry_400="0")
    desk.worker.drain(limit=1)
    [entry] = desk.gateway.queue("other").find()
    assert "503" in (entry.error or "")


@pytest.mark.seed("G86")
def test_very_large_items_can_be_read() -> None:
    body = b"\xfb\xff" * 12_000_000
    item = RequestCodec("url").encode(QueuedRequest("PUT", "/a", (), body, 1))
    assert read_item(item).body == body


@pytest.mark.parametrize("alphabet", ["standard", "url"])
def test_items_of_old_and_new_nodes(alphabet: Any) -> None:
    sent = QueuedRequest("POST", "/a?b=c", (("x", "1"), ("x", "2")), b"\xfb\xef\xff?", 1700000000000)
    item = RequestCodec(alphabet).encode(sent)
    assert read_item(item) == sent
    assert json.loads(item)["payload"] == ("++//Pw==" if alphabet == "standard" else "--__Pw")
    for text in ("++//Pw==", "++//Pw", "--__Pw==", "--__Pw"):
        assert read_item(json.dumps({"method": "PUT", "uri": "/a", "headers": [], "payload": text}).encode()).body == (
            b"\xfb\xef\xff?"
        )
    nested = b'{"method":' + b"[" * 100_000
    unknown = b'{"other":' + b"[" * 100_000
    for wrong in (
        b"",
        b"null",
        b"{}",
        b'{"method":"PUT","uri":"/a","payload":"a"}',
        b'{"method":1,"uri":"/a"}',
        nested,
        unknown,
    ):
        with pytest.raises(Undecodable):
            read_item(wrong)


def test_the_form_for_people() -> None:
    plain = QueuedRequest("PUT", "/a", (("content-type", "application/json"), ("Content-Length", "7")), b'{"a":1}', 5)
    shown = plain.browsed()
    assert shown["payloadObject"] == {"a": 1}
    shown["payloadObject"] = {"a": 22}
    assert from_browsed(shown).body == b'{"a":22}'
    assert from_browsed(shown).header("content-length") == "8"
    assert QueuedRequest("PUT", "/a", (("content-type", "text/plain"),), b"hi").browsed()["payloadString"] == "hi"
    assert QueuedRequest("PUT", "/a", (), b"\0").browsed()["payload"] == base64.b64encode(b"\0").decode()
    with pytest.raises(BadInput, match="headers"):
        from_browsed({"method": "PUT", "uri": "/a"})


def test_request_ids() -> None:
    assert unique_request_id(request(x_rp_unique_id="b"), "/a") == "b"
    both = QueuedRequest("PUT", "/a", (("x-rp-unique-id", "b"), ("x-rp-unique_id", "a")))
    assert unique_request_id(both, "/a") == "a"
    assert unique_request_id(request(), "/a?b") == "/a?b"


# --- the client's side -------------------------------------------------------------------------------


@pytest.mark.seed("G87", "G97")
def test_a_request_is_stored_and_counted(desk: Desk, store: QueueStore) -> None:
    before = store.signals.totals.get("put", 0)
    desk.send("q", "hello")
    assert store.signals.totals["put"] == before + 1
    [entry] = desk.gateway.queue("q").find()
    assert (entry.value.method, entry.value.body) == ("PUT", b"hello")


@pytest.mark.seed("G88", "G94", "G96", "G98")
def test_a_store_that_fails_is_told(desk: Desk, store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.send("q")
    before = dict(store.signals.totals)

    def fail(*arguments: Any, **options: Any) -> Any:
        raise StoreUnavailable("the store is away.")

    with monkeypatch.context() as patch:
        for name in ("_settle", "_put_plain", "_cancel", "_lock", "find"):
            patch.setattr(store.driver, name, fail)
        for call in (
            lambda: desk.send("q"),
            lambda: store.driver.lock("q", "me"),
            lambda: desk.gateway.queue("q").cancel("x"),
        ):
            with pytest.raises(StoreUnavailable, match="away"):
                call()
        assert store.signals.totals == before


@pytest.mark.seed("G89", "G90", "G91", "G92", "G93", "G95")
def test_locks_and_removal(desk: Desk, store: QueueStore) -> None:
    queue = desk.gateway.queue("q")
    queue.lock(holder="ann", reason="repair")
    desk.send("q")
    assert queue.cancel(*(one.id for one in queue.find())) == 1
    assert queue.locks() != []  # kept
    assert queue.cancel(*(one.id for one in queue.find())) == 0
    assert queue.unlock(holder="ann") is True
    assert queue.unlock(holder="ann") is False  # already gone


# --- headers -----------------------------------------------------------------------------------------


@pytest.mark.seed("G99", "G100", "G102", "G103", "G104")
@pytest.mark.parametrize(
    ("headers", "status", "wanted"),
    [
        ({}, 500, None),
        ({"x_queue_retry_500": "-1"}, 500, None),
        ({"x_queue_retry_503": "0"}, 500, None),
        ({"x_queue_retry_50x": "0"}, 500, None),
        ({"x_queue_retry": "0", "x_queue_retry_": "0"}, 500, None),
        ({"x_queue_retry_500": "7"}, 500, 7),
        ({"x_queue_retry_500": "0"}, 500, 0),
        ({"x_queue_retry_5xx": "0"}, 503, 0),
        ({"X_QUEUE_RETRY_5XX": "0"}, 503, 0),
        ({"x_queue_retry_5xx": "0", "X_Queue_Retry_503": "2"}, 503, 2),
    ],
)
def test_retry_headers(headers: dict[str, str], status: int, wanted: int | None) -> None:
    assert retries(request(**headers), status) == wanted


@pytest.mark.seed("G101")
def test_a_retry_header_that_is_no_number(caplog: pytest.LogCaptureFixture) -> None:
    assert retries(request(x_queue_retry_500="often"), 500) is None
    assert len(caplog.records) == 1


@pytest.mark.seed("G105", "G106")
@pytest.mark.parametrize("name", [EXPIRE_AFTER, QUEUE_EXPIRE_AFTER])
@pytest.mark.parametrize(
    ("value", "said", "meant"),
    [("120", 120, 120), ("0", 0, 0), (None, None, None), ("-1", -1, None), ("-2", None, None), ("soon", None, None)],
)
def test_expiry_headers(name: str, value: str | None, said: int | None, meant: int | None) -> None:
    asked = request(**({} if value is None else {name: value}))
    assert expiry(asked, name) == said
    assert expires_after(asked) == meant


@pytest.mark.seed("G107", "G114")
def test_times_are_told_with_their_zone(desk: Desk, far: Backend, clock: FakeClock) -> None:
    desk.send("q", x_expire_after="3600")
    desk.worker.drain()
    sent = far.calls[0][2]
    assert sent["x-server-timestamp"] == clock.now().isoformat(timespec="milliseconds")
    assert sent["x-server-timestamp"].endswith("+00:00")
    assert sent["x-expire-after"] == "3600"


# --- end to end --------------------------------------------------------------------------------------


@pytest.mark.seed("G108")
def test_a_queued_put_is_applied_soon(open_store: Callable[..., QueueStore], far: Backend) -> None:
    store = open_store(clock=SystemClock())
    desk = Desk(store, far)
    desk.worker.start()
    began = time.monotonic()
    desk.send("q", "now")
    while not far.calls and time.monotonic() - began < 2:
        time.sleep(0.005)
    desk.worker.stop()
    desk.deliverer.close()
    assert [call[3] for call in far.calls] == [b"now"]


@pytest.mark.seed("G109", "G110", "G111")
def test_lock_look_change_unlock_drain(desk: Desk, store: QueueStore, far: Backend) -> None:
    queue = desk.gateway.queue("q")
    queue.lock(holder="ann")
    for number in range(3):
        desk.send("q", str(number))
    assert [one.queue for one in store.locks()] == [queue.name]
    assert store.locks("requests.unknown") == []
    found = queue.find()
    assert [one.value.body for one in found] == [b"0", b"1", b"2"]
    queue.cancel(found[1].id)
    queue.update(found[2].id, QueuedRequest("PUT", "/playground/changed", (), b"2"))
    desk.worker.drain()
    assert far.calls == []
    assert queue.unlock(holder="ann") is True
    assert queue.unlock(holder="ann") is False
    desk.worker.drain()
    assert [(call[1], call[3]) for call in far.calls] == [("/r", b"0"), ("/changed", b"2")]
    assert queue.counts().live == 0


@pytest.mark.seed("G112", "G113")
def test_expired_items_are_passed_over(desk: Desk, far: Backend, clock: FakeClock) -> None:
    desk.send("q", "in time", x_expire_after="10")
    desk.send("q", "too late", x_expire_after="5")
    desk.send("q", "too late for the queue", x_expire_after="100", x_queue_expire_after="5")
    desk.send("q", "later")
    clock.advance("5s")
    clock.advance(timedelta(microseconds=1))
    desk.worker.drain()
    assert [call[3] for call in far.calls] == [b"in time", b"later"]


# --- splitting ---------------------------------------------------------------------------------------


def split(splitter: Splitter, queue: str, uri: str = "/a", **headers: str) -> str:
    return splitter.split(queue, uri, [(name.replace("_", "-"), value) for name, value in headers.items()])


@pytest.mark.seed("G115", "G124")
def test_no_splitting() -> None:
    assert split(Splitter(), "q") == "q"


@pytest.mark.seed("G116", "G119")
def test_static_postfixes() -> None:
    splitter = Splitter({"my-q-[0-9]+": {"postfixFromStatic": ["A", "B", "C"], "postfixDelimiter": "_"}})
    assert [split(splitter, "my-q-1") for _ in range(4)] == ["my-q-1_A", "my-q-1_B", "my-q-1_C", "my-q-1_A"]
    assert split(splitter, "my-q-1x") == "my-q-1x"


@pytest.mark.seed("G117", "G118")
def test_postfixes_from_the_request() -> None:
    header = Splitter({"q": {"postfixFromRequest": {"header": "X-Device"}}})
    assert split(header, "q", x_device="7") == "q-7"
    assert split(header, "q") == "q"
    both = Splitter({"q": {"postfixFromRequest": {"url": "/a/([0-9]+)/([a-z]+)/.*", "header": "x-device"}}})
    assert split(both, "q", "/a/12/b/c", x_device="7") == "q-12-b-7"
    assert split(both, "q", "/other") == "q"


@pytest.mark.seed("G120", "G121")
@pytest.mark.parametrize(
    "wrong",
    [
        "{", "[]", '{"q": {}}', '{"q": {"postfixFromStatic": []}}', '{"q": {"postfixFromStatic": ["A", "A"]}}',
        '{"q": {"postfixFromStatic": ["A"], "postfixFromRequest": {"header": "x"}}}',
        '{"q": {"postfixFromRequest": {}}}', '{"q": {"postfixFromStatic": ["A"], "more": 1}}',
        '{"(": {"postfixFromStatic": ["A"]}}', '{"q": {"postfixFromStatic": ["${unknown}"]}}',
    ],
)  # fmt: skip
def test_resources_that_cannot_be_used(wrong: str) -> None:
    with pytest.raises(BadInput):
        Splitter(wrong)


@pytest.mark.seed("G120", "G122")
def test_placeholders_and_changes() -> None:
    splitter = Splitter('{"q": {"postfixFromStatic": ["${first}", "B"]}}', first="A")
    assert split(splitter, "q") == "q-A"
    with pytest.raises(BadInput):
        splitter.configure("{")
    assert split(splitter, "q") == "q-B"  # as it was
    splitter.configure('{"q": {"postfixFromStatic": ["C"]}}')
    assert split(splitter, "q") == "q-C"
    splitter.configure(None)
    assert split(splitter, "q") == "q"


@pytest.mark.seed("G123")
def test_a_count_by_header() -> None:
    splitter = Splitter()
    name = "x_static_queue_count"
    assert [split(splitter, "q", **{name: "2"}) for _ in range(3)] == ["q-Q1", "q-Q2", "q-Q1"]
    assert split(splitter, "q") == "q-Q2"  # remembered
    assert split(splitter, "r") == "r"
    assert split(splitter, "q", **{name: "3"}) == "q-Q1"
    assert split(splitter, "q", **{name: "many"}) == "q-Q2"
    assert split(splitter, "q", **{name: "1"}) == "q"
    assert split(splitter, "q") == "q"
    split(splitter, "q", **{name: "2"})
    splitter.configure(None)
    assert split(splitter, "q") == "q"


def test_split_queues_are_queues_of_their_own(far: Backend) -> None:
    with open_queues("memory://") as store:
        gateway = Gateway(
            store, Routes.read({RULE: far.url}), splitter=Splitter({"q": {"postfixFromStatic": ["A", "B"]}})
        )
        names = [gateway.accept("PUT", "/playground/x", [("x-queue", "q")]).queue for _ in range(3)]
        assert names == ["q-A", "q-B", "q-A"]
        assert gateway.queue("q-A").counts().live == 2


@pytest.mark.seed("G125")
def test_gauges(store: QueueStore) -> None:
    breaker = Breaker(store, BreakerConfig.active(min_queue_sample_count=2, error_threshold_percentage=50))
    breaker.report("c", "1", True)
    assert (breaker.circuit("c").level, breaker.circuit("c").ratio) == (0, 0)
    breaker.report("c", "2", False)
    assert (breaker.circuit("c").level, breaker.circuit("c").ratio) == (2, 50)
    breaker.half_open("c")
    assert breaker.circuit("c").level == 1


# --- capacity ----------------------------------------------------------------------------------------


def test_hundreds_of_queues_there_and_back(tmp_path: Any) -> None:
    run = capacity.play(f"sqlite:///{tmp_path / 'store.db'}?durability=fast", queues=300, each=2, patience=40)
    capacity.check(run, queues=300, each=2)

"""redisques' HTTP interface: asked what the real one was asked, it answers as that did."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from starlette.testclient import TestClient
from tests import store_urls
from tests.adopt.layout import recording
from tests.backends import Backend
from tests.store_urls import Servers

from penstock import QueueStore, Worker, open_queues
from penstock.errors import BadInput
from penstock.gateway.item import read_item
from penstock.service import ServiceSettings, new_key
from penstock.service.app import create_app

Exchange = dict[str, Any]
USER = {"x-rp-usr": "ann"}
TEXT = {"method": "POST", "uri": "/shop/notes", "headers": [["content-type", "text/plain"]], "payloadString": "hello"}
# Where ours answers otherwise, and why.
OTHERWISE = {
    ("POST", "/locks?bulkDelete=true"): (400, "names that are not texts are refused here too, as in bulk locks"),
    ("GET", "/statistics?filter=*abc"): (400, "a bad pattern is the caller's mistake"),
    ("GET", "/speed?filter=*abc"): (400, "a bad pattern is the caller's mistake"),
}


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Iterator[QueueStore]:
    with open_queues(store_urls.STORES[request.param](tmp_path, servers).url) as opened:
        yield opened


@pytest.fixture
def serve(store: QueueStore) -> Iterator[Callable[..., TestClient]]:
    clients: list[TestClient] = []

    def start(**settings: Any) -> TestClient:
        app = create_app(ServiceSettings(queues=store.name, redisques="/queuing", **settings), store)
        client = TestClient(app, "http://127.0.0.1", raise_server_exceptions=False)
        client.__enter__()
        clients.append(client)
        return client

    yield start
    for client in clients:
        client.__exit__(None, None, None)


def ask(client: TestClient, method: str, path: str, body: Any = None, headers: dict[str, str] = USER) -> Any:
    content = None if body is None else body if isinstance(body, str) else json.dumps(body)
    return client.request(method, f"/queuing{path}", content=content, headers=headers)


def comparable(text: str) -> Any:
    """An answer without what is different every time: times, the order of names, and how an item's JSON is laid out."""
    try:
        read = json.loads(text)
    except ValueError:
        return text
    if "timestamp" in read:
        return {**read, "timestamp": 0}
    for names in ("queues", "locks"):
        if isinstance(read.get(names), list):
            read[names] = sorted(read[names], key=str)
    return {
        key: [json.loads(item) if isinstance(item, str) and item[:1] == "{" else item for item in value]
        if isinstance(value, list)
        else value
        for key, value in read.items()
    }


def says_only_its_status(exchange: Exchange) -> bool:
    """Whether the text of an answer is Java's own, or about redisques' own configuration."""
    text = exchange["answer"]
    if exchange["status"] == 400:
        return any(part in text for part in ("decode", "regex", "Cannot invoke"))
    return exchange["method"] == "GET" and exchange["path"].startswith("/configuration")


@pytest.mark.seed(
    "G171", "G172", "G173", "G174", "G175", "G176", "G178", "G179", "G180", "G181", "G182", "G183", "G184", "G185",
    "G186", "G187", "G188", "G189", "G191", "G192", "G193", "G199",
)  # fmt: skip
def test_it_answers_as_the_real_one_did(serve: Callable[..., TestClient]) -> None:
    client, deleted = serve(), False
    for exchange in recording("redisques-http"):
        method, path = exchange["method"], exchange["path"]
        answer = ask(client, method, path, exchange["body"])
        where = f"{method} {path} {exchange['body']}: {answer.text}"
        if (method, path) in OTHERWISE:
            assert answer.status_code == OTHERWISE[method, path][0], where
            continue
        assert answer.status_code == exchange["status"], where
        deleted = deleted or (method, path) == ("DELETE", "/queues/orders")
        if says_only_its_status(exchange):
            continue
        wanted = comparable(exchange["answer"])
        if deleted and path == "/queues/":
            wanted = {"queues": ["notes:ann"]}  # redisques goes on naming queues for a while that hold nothing
        assert comparable(answer.text) == wanted, where


def test_a_client_puts_and_the_service_delivers(serve: Callable[..., TestClient], tmp_path: Path) -> None:
    backend = Backend()
    try:
        (tmp_path / "routes.json").write_text(json.dumps({"/shop/(.*)": f"{backend.url}/$1"}))
        client = serve(routes=tmp_path / "routes.json")
        assert ask(client, "PUT", "/enqueue/ann/?locked", TEXT).status_code == 200
        assert ask(client, "PUT", "/enqueue/ann/", {**TEXT, "uri": "/shop/second"}).status_code == 200
        assert ask(client, "GET", "/queues/ann?count").json() == {"count": 2}
        assert backend.calls == []
        assert ask(client, "DELETE", "/locks/ann").status_code == 200
        backend.until(2)
        assert [call[1] for call in backend.calls] == ["/notes", "/second"]
    finally:
        backend.close()


@pytest.mark.seed("G198")
def test_names_with_slashes_and_other_letters(serve: Callable[..., TestClient]) -> None:
    client = serve()
    for sent, name in (("a%2Fb", "a/b"), ("k%C3%A4se", "käse"), ("%7Bbraces%7D", "{braces}"), ("a..b", "a..b")):
        assert ask(client, "PUT", f"/enqueue/{sent}/", TEXT).status_code == 200
        assert ask(client, "PUT", f"/locks/{sent}").status_code == 200
        assert name in ask(client, "GET", "/queues").json()["queues"]
        assert name in ask(client, "GET", "/locks").json()["locks"]
        assert list(ask(client, "GET", f"/queues/{sent}").json()) == [name]
        assert ask(client, "GET", f"/queues/{sent}/0").json()["payloadString"] == "hello"


@pytest.mark.seed("G177", "G190")
def test_a_lock_says_who_asked_for_it(serve: Callable[..., TestClient]) -> None:
    client = serve()
    for headers, user in (({}, "Unknown"), ({"x-user": "bob"}, "Unknown"), ({"x-rp-usr": "bob"}, "bob")):
        assert ask(client, "PUT", "/locks/a", headers=headers).status_code == 200
        assert ask(client, "PUT", "/enqueue/b/?locked", TEXT, headers=headers).status_code == 200
        for name in ("a", "b"):
            assert ask(client, "GET", f"/locks/{name}").json()["requestedBy"] == user
    assert ask(client, "PUT", "/enqueue/c/?locked", "{bad").status_code == 400
    assert ask(client, "GET", "/locks").json() == {"locks": ["a", "b"]}


def test_a_lock_of_somebody_else_is_shown_and_stays(serve: Callable[..., TestClient], store: QueueStore) -> None:
    client = serve()
    store.driver.lock("requests.ann", "breaker", "open")
    assert ask(client, "GET", "/locks/ann").json()["requestedBy"] == "breaker"
    assert ask(client, "PUT", "/locks/ann", headers={}).status_code == 200
    assert ask(client, "GET", "/locks/ann").json()["requestedBy"] == "Unknown"
    assert ask(client, "DELETE", "/locks").json() == {"deleted": 1}
    assert [lock.holder for lock in store.locks("requests.ann")] == ["breaker"]


def test_credentials_in_items_are_masked(serve: Callable[..., TestClient], store: QueueStore) -> None:
    client = serve()
    item = {**TEXT, "headers": [["Authorization", "Bearer secret"], ["content-type", "text/plain"]]}
    ask(client, "PUT", "/enqueue/ann/", item)
    for path in ("/queues/ann", "/queues/ann/0", "/monitor/ann"):
        answer = ask(client, "GET", path)
        assert "secret" not in answer.text
        assert "***" in answer.text
    ask(client, "PUT", "/locks/ann")
    shown = ask(client, "GET", "/queues/ann/0").json()
    assert ask(client, "PUT", "/queues/ann/0", {**shown, "payloadString": "changed"}).status_code == 200
    [entry] = store.queue("requests.ann", fifo=True).find()
    request = read_item(entry.payload)
    assert (request.body, request.header("authorization")) == (b"changed", "Bearer secret")


def test_headers_that_a_backend_would_believe_are_not_stored(serve: Callable[..., TestClient]) -> None:
    client = serve()
    item = {**TEXT, "headers": [["X-Forwarded-For", "10.0.0.1"], ["x-http-method-override", "DELETE"], ["x-a", "b"]]}
    ask(client, "PUT", "/enqueue/ann/", item)
    assert ask(client, "GET", "/queues/ann/0").json()["headers"] == [["x-a", "b"]]
    for headers in ([["x-a", "b\r\nx-c: d"]], [["x a", "b"]]):
        assert ask(client, "PUT", "/enqueue/ann/", {**TEXT, "headers": headers}).status_code == 400
    assert ask(client, "GET", "/queues/ann?count").json() == {"count": 1}


@pytest.mark.seed("G195", "G196")
def test_statistics_count_failures_and_speed(serve: Callable[..., TestClient], store: QueueStore) -> None:
    client = serve()
    for name in ("ann", "ann", "bob"):
        ask(client, "PUT", f"/enqueue/{name}/", TEXT)
    family = store.family("requests.", fifo=True)
    family.add_handler(lambda item, ctx: None if ctx.entry.queue.endswith("bob") else 1 / 0)
    Worker(store).drain(limit=2)
    [ann] = ask(client, "GET", "/statistics").json()["queues"]
    assert (ann["name"], ann["size"], ann["failures"], ann["speed"]) == ("ann", 2, 1, 0)
    assert ask(client, "GET", "/speed").json() == {"speed": 1, "unitSec": 60}
    assert ask(client, "GET", "/speed?filter=ann").json()["speed"] == 0
    assert ask(client, "GET", "/statistics/queuesize").json() == {"ann": 2, "bob": 0}


@pytest.mark.seed("G197")
def test_scopes_hold(serve: Callable[..., TestClient], tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    keys = {
        scope: {"Authorization": f"Bearer {new_key(file, scope, (scope,))}"} for scope in ("read", "produce", "admin")
    }
    client = serve(keys=file)
    wanted = {
        ("GET", "/queues"): "read", ("GET", "/queues/a/0"): "read", ("GET", "/locks/a"): "read", ("GET", "/"): "read",
        ("GET", "/monitor"): "read", ("GET", "/statistics"): "read", ("GET", "/configuration"): "read",
        ("PUT", "/enqueue/a/"): "produce", ("POST", "/queues/a/"): "produce", ("PUT", "/enqueue/a/?locked"): "admin",
        ("PUT", "/queues/a/0"): "admin", ("DELETE", "/queues/a/0"): "admin", ("DELETE", "/queues/a"): "admin",
        ("POST", "/queues?bulkDelete"): "admin", ("PUT", "/locks/a"): "admin", ("DELETE", "/locks/a"): "admin",
        ("POST", "/locks"): "admin", ("DELETE", "/locks"): "admin", ("POST", "/configuration"): "admin",
        ("GET", "/unknown"): "read",
    }  # fmt: skip
    for (method, path), scope in wanted.items():
        assert ask(client, method, path, TEXT, headers={}).status_code == 401, f"{method} {path}"
        for name, key in keys.items():
            refused = ask(client, method, path, TEXT, headers=key).status_code in (401, 403)
            assert refused == (name not in (scope, "admin")), f"{method} {path} with {name}"


def test_a_key_for_some_queues_sees_no_others(serve: Callable[..., TestClient], tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    root = {"Authorization": f"Bearer {new_key(file, 'root', ('admin',))}"}
    ann = {"Authorization": f"Bearer {new_key(file, 'ann', ('admin',), prefix='requests.ann')}"}
    client = serve(keys=file)
    for name in ("ann.1", "bob"):
        ask(client, "PUT", f"/enqueue/{name}/?locked", TEXT, headers=root)
    assert ask(client, "GET", "/queues", headers=ann).json() == {"queues": ["ann.1"]}
    assert ask(client, "GET", "/locks", headers=ann).json() == {"locks": ["ann.1"]}
    assert ask(client, "GET", "/queues/bob", headers=ann).status_code == 404
    assert ask(client, "PUT", "/locks/bob", headers=ann).status_code == 404
    assert ask(client, "POST", "/queues?bulkDelete", {"queues": ["bob"]}, headers=ann).json() == {"deleted": 0}
    assert ask(client, "DELETE", "/locks", headers=ann).json() == {"deleted": 1}
    assert ask(client, "GET", "/locks", headers=root).json() == {"locks": ["bob"]}


def test_an_item_with_the_callers_key_is_refused(serve: Callable[..., TestClient], tmp_path: Path) -> None:
    secret = new_key(tmp_path / "keys.json", "ann", ("produce",))
    client = serve(keys=tmp_path / "keys.json")
    item = {**TEXT, "payloadString": f"my key is {secret}"}
    answer = ask(client, "PUT", "/enqueue/a/", item, headers={"Authorization": f"Bearer {secret}"})
    assert answer.status_code == 400
    assert secret not in answer.text


def test_odd_input_is_refused_not_tripped_over(serve: Callable[..., TestClient]) -> None:
    client = serve()
    ask(client, "PUT", "/locks/q")
    calls = [
        ("PUT", "/enqueue/q/"), ("POST", "/queues/q/"), ("POST", "/locks"), ("POST", "/configuration"),
        ("POST", "/queues?bulkDelete"), ("PUT", "/queues/q/0"),
    ]  # fmt: skip
    for body in ("", "[]", "null", '"x"', "[" * 50_000, "\udcff".encode("utf-8", "surrogateescape").decode("latin-1"),
                 '{"headers": 1}', '{"headers": [["a"]]}', '{"method": "GO", "uri": "/", "headers": []}',
                 '{"method": "PUT", "uri": "/", "headers": [], "payload": "%%"}',
                 '{"\\ud800": ["\\ud800"]}'):  # fmt: skip
        for method, path in calls:
            assert ask(client, method, path, body).status_code == 400, f"{method} {path} {body[:50]}"
    for path in ("/queues?filter=(a%2B)%2B%24", "/queues?filter=(", "/locks?filter=%5B", "/monitor?filter=("):
        assert ask(client, "GET", path).status_code == 400
    for path in ("/queues/q/99999999999", "/queues/q/-1", "/queues/q/0/1", "/queues//0", "/locks/q/x", "//"):
        assert ask(client, "GET", path).status_code == 405, path
    assert ask(client, "GET", "/queues/" + "x" * 300).status_code == 400


@pytest.mark.parametrize("depth", [250, 986, 1200])
def test_a_body_that_is_nested_deep_can_be_looked_at(serve: Callable[..., TestClient], depth: int) -> None:
    client = serve()
    body = '{"a":' * depth + "1" + "}" * depth
    headers = [["content-type", "application/json"]]
    assert ask(client, "PUT", "/enqueue/a/", {**TEXT, "headers": headers, "payloadString": body}).status_code == 200
    shown = ask(client, "GET", "/queues/a/0").json()
    assert shown["payloadObject"] == json.loads(body) if depth < 255 else shown["payloadString"] == body
    assert ask(client, "PUT", "/locks/a").status_code == 200
    assert ask(client, "PUT", "/queues/a/0", shown).status_code == 200
    assert ask(client, "GET", "/queues/a/0").json() == shown


def test_items_are_shown_up_to_a_number_of_bytes(serve: Callable[..., TestClient]) -> None:
    client = serve(page_bytes=100_000)
    for number in range(40):
        ask(client, "PUT", "/enqueue/a/", {**TEXT, "uri": f"/{number}", "payloadString": "x" * 20_000})
    answer = ask(client, "GET", "/queues/a?limit=10000")
    assert len(answer.content) < 200_000
    shown = [json.loads(item)["uri"] for item in answer.json()["a"]]
    assert shown
    assert shown == [f"/{number}" for number in range(len(shown))]
    assert len(ask(serve(page_bytes=10), "GET", "/monitor/a").json()["a"]) == 1, "one is always shown"


def test_items_far_from_the_head_have_their_places(serve: Callable[..., TestClient]) -> None:
    client = serve()
    ask(client, "PUT", "/enqueue/a/", TEXT)
    requests = [
        read_item(json.dumps({"method": "PUT", "headers": [], "uri": f"/{number}"}).encode())
        for number in range(1, 450)
    ]
    client.app.state.queuing.queue("a").put_many(requests)  # type: ignore[attr-defined]
    for index in (1, 199, 200, 201, 399, 449):
        assert ask(client, "GET", f"/queues/a/{index}").json()["uri"] == f"/{index}"
    assert ask(client, "GET", "/queues/a/450").status_code == 404
    assert ask(client, "DELETE", "/queues/a").status_code == 200
    assert ask(client, "GET", "/queues/a?count").json() == {"count": 0}


@pytest.mark.seed("G194")
def test_a_full_store_is_told(tmp_path: Path, servers: Servers) -> None:
    with (
        open_queues(store_urls.STORES["redis"](tmp_path, servers).url) as store,
        redis.Redis(port=servers("redis").port) as server,
        TestClient(create_app(ServiceSettings(queues=store.name, redisques="/q"), store), "http://127.0.0.1") as client,
    ):
        assert client.put("/q/enqueue/a/", json=TEXT).status_code == 200
        server.config_set("maxmemory", 1)
        try:
            assert client.put("/q/enqueue/a/", json=TEXT).status_code == 507
        finally:
            server.config_set("maxmemory", 0)
        assert client.get("/q/queues/a?count").json() == {"count": 1}


def test_it_is_off_unless_asked_for(store: QueueStore) -> None:
    with TestClient(create_app(ServiceSettings(queues=store.name), store), "http://127.0.0.1") as client:
        assert ask(client, "GET", "/queues").status_code == 404


@pytest.mark.parametrize("prefix", ["/", "/a{b", "/v1/x", "queuing", "/playground", "/a b"])
def test_it_cannot_be_served_there(prefix: str) -> None:
    with pytest.raises(BadInput, match="interface cannot be served"):
        ServiceSettings(queues="memory://", redisques=prefix)

"""Circuits over HTTP: ours, and gateleen's exactly; queued requests through a real service to a real backend."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import QueueStore
from penstock.breaker.settings import BreakerConfig
from penstock.errors import BadInput
from penstock.service import new_key

SEED = "/playground/server/queuecircuitbreaker/circuit"


class Backend(ThreadingHTTPServer):
    """A far side that can be told to fail."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.seen: list[tuple[str, str, bytes]] = []
        self.authorizations: list[str | None] = []
        self.values: list[str] = []
        self.down = False
        self.refused = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Answering(BaseHTTPRequestHandler):
    server: Backend

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.authorizations.append(self.headers.get("authorization"))
        self.server.values += self.headers.values()
        if self.server.down:
            self.server.refused += 1
            self.send_response(503)
        else:
            self.server.seen.append((self.command, self.path, body))
            self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    do_PUT = do_POST = do_DELETE = answer

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def backend() -> Iterator[Backend]:
    made = Backend()
    yield made
    made.shutdown()
    made.server_close()


def until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


@pytest.fixture
def gateway(serving: Any, backend: Backend, tmp_path: Path) -> Any:
    routes = tmp_path / "routes.json"
    routes.write_text(json.dumps({"/crm/(.*)": f"{backend.url}/api/$1"}))
    return serving(routes=routes)


def quick() -> dict[str, Any]:
    config = BreakerConfig.active(min_queue_sample_count=3, error_threshold_percentage=50).resource()
    for name in ("openToHalfOpen", "unlockQueues", "unlockSampleQueues"):
        config[name] = {"enabled": True, "interval": 100}
    return config


def test_a_queued_request_is_taken_in_and_delivered(gateway: Any, backend: Backend, queues: QueueStore) -> None:
    for number in range(5):
        answer = gateway.put(f"/crm/customers/7?n={number}", content=f"{number}", headers={"x-queue": "ann"})
        assert (answer.status_code, answer.content) == (202, b"")
    until(lambda: len(backend.seen) == 5, "all delivered")
    assert backend.seen == [("PUT", f"/api/customers/7?n={n}", str(n).encode()) for n in range(5)]
    assert gateway.put("/elsewhere", headers={"x-queue": "ann"}).status_code == 400, "no route leads there"
    assert gateway.put("/crm/a").status_code == 404, "not asked to be queued"
    for path in ("/crm/a", "/orders", "/v1/queues/mails/entrys"):
        assert gateway.get(path, headers={"x-queue": "ann"}).status_code == 404
    assert gateway.request("PROPFIND", "/crm/a", headers={"x-queue": "ann"}).status_code == 405


def test_a_backend_goes_down_and_comes_back(gateway: Any, backend: Backend) -> None:
    assert gateway.put("/v1/breaker/config", json=quick()).status_code == 200
    backend.down = True
    for queue in range(4):
        for number in range(2):
            body = f"{queue}-{number}"
            headers = {"x-queue": f"q{queue}", "x-rp-unique_id": body}
            gateway.put("/crm/a", content=body, headers=headers)
    until(lambda: any(one["state"] != "closed" for one in gateway.get("/v1/circuits").json()["items"]), "it opens")
    [circuit] = gateway.get("/v1/circuits").json()["items"]
    assert circuit["circuit"] == "/crm/(.*)"
    assert {one["state"] for one in circuit["transitions"]} & {"open"}
    seed = gateway.get(SEED).json()
    assert seed[circuit["hash"]]["infos"]["circuit"] == "/crm/(.*)"
    assert gateway.get(f"{SEED}/{circuit['hash']}/status").json()["status"] in {"open", "half_open"}
    backend.down = False
    until(lambda: len(backend.seen) == 8, "everything arrives")
    for queue in range(4):
        mine = [body.decode() for _, _, body in backend.seen if body.decode().startswith(f"{queue}-")]
        assert mine == [f"{queue}-0", f"{queue}-1"], "in order"
    until(lambda: gateway.get(f"/v1/circuits/{circuit['hash']}").json()["state"] == "closed", "it closes")
    until(lambda: gateway.get("/v1/locks").json()["items"] == [], "and unlocks")


def test_gateleens_api_exactly(gateway: Any) -> None:
    for path in (SEED, f"{SEED}/", f"{SEED}/_all"):
        answer = gateway.get(path)
        assert (answer.status_code, answer.json()) == (200, {})
    assert gateway.get(f"{SEED}/unknown").json() == {"status": "closed", "info": {}}
    assert gateway.get(f"{SEED}/unknown/status").json() == {"status": "closed"}
    for path in (f"{SEED}/unknown/status", f"{SEED}/_all/status"):
        answer = gateway.put(path, content=b'{"status": "CLOSED"}')
        assert (answer.status_code, answer.content) == (200, b"")
        for body in (b"", b"{", b"{}", b'{"status": 1}', b'{"status": "ajar"}', b"[]"):
            answer = gateway.put(path, content=body)
            assert (answer.status_code, answer.text) == (400, "Body must contain a correct 'status' value"), body
        for state in ("open", "half_open", "OPEN"):
            answer = gateway.put(path, content=json.dumps({"status": state}))
            assert (answer.status_code, answer.text) == (403, "Status can be changed to 'CLOSED' only")
    for method, path in (
        ("GET", f"{SEED}/_all/status"), ("DELETE", SEED), ("POST", f"{SEED}/x"), ("GET", f"{SEED}/x/y/z"),
        ("PUT", f"{SEED}/x"), ("DELETE", f"{SEED}/x/status"),
    ):  # fmt: skip
        assert gateway.request(method, path).status_code == 405, f"{method} {path}"


def test_configuration_by_http(client: Any) -> None:
    config = client.get("/v1/breaker/config").json()
    assert config == BreakerConfig().resource()
    assert len(config) == 9
    for wrong in (
        {**config, "errorThresholdPercentage": 101},
        {**config, "more": 1},
        {},
        {**config, "unlockQueues": 1},
    ):
        answer = client.put("/v1/breaker/config", json=wrong)
        assert (answer.status_code, client.get("/v1/breaker/config").json()) == (400, config), wrong
    assert client.put("/v1/breaker/config", json={**config, "minQueueSampleCount": 7}).status_code == 200
    assert client.get("/v1/breaker/config").json()["minQueueSampleCount"] == 7
    assert client.delete("/v1/breaker/config").json() == config
    noted = client.get("/v1/breaker/changes").json()["items"]
    assert [one["by"] for one in noted] == ["anybody", "anybody"]
    settings = client.get("/v1/breaker/settings").json()
    assert client.put("/v1/breaker/settings", json=settings).status_code == 200
    assert client.put("/v1/breaker/settings", json={"nonsense": 1}).status_code == 400
    assert client.get("/v1/circuits/unknown").status_code == 404
    assert client.put("/v1/circuits/unknown/state", json={"state": "close"}).status_code in {200, 404}


def test_routes_that_cannot_be_read(serving: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        serving(routes=tmp_path / "none.json")
    (tmp_path / "bad.json").write_text('{"/(": "http://127.0.0.1/"}')
    with pytest.raises(BadInput):
        serving(routes=tmp_path / "bad.json")


def test_circuits_come_in_pages(client: Any, queues: QueueStore) -> None:
    client.put("/v1/breaker/config", json=BreakerConfig.active().resource())  # nothing moves on meanwhile
    breaker = client.app.state.breaker
    for name in ("/c", "/a", "/b"):
        breaker.open(name)
    mine = breaker.circuit("/a").hash
    for number in range(103):
        queues.driver.lock(f"q{number}", f"breaker.{mine}", "x")
    first = client.get("/v1/circuits", params={"limit": 2}).json()
    assert [one["circuit"] for one in first["items"]] == ["/a", "/b"]
    assert (len(first["items"][0]["locked"]), first["items"][0]["locked_count"]) == (100, 103)
    rest = client.get("/v1/circuits", params={"limit": 2, "after": first["next"]}).json()
    assert ([one["circuit"] for one in rest["items"]], rest["next"]) == (["/c"], None)
    figures = client.get("/metrics").text
    assert 'penstock_circuit_state{circuit="/a",state="' in figures


def test_one_idempotency_key_is_delivered_once(gateway: Any, backend: Backend) -> None:
    headers = {"x-queue": "ann", "idempotency-key": "k1"}
    first, second = (gateway.post("/crm/pay", content=b"10", headers=headers) for _ in range(2))
    other = gateway.post("/crm/pay", content=b"10", headers={**headers, "idempotency-key": "k2"})
    assert first.headers["x-penstock-entry"] == second.headers["x-penstock-entry"] != other.headers["x-penstock-entry"]
    until(lambda: len(backend.seen) == 2, "both delivered")
    again = gateway.post("/crm/pay", content=b"10", headers=headers)
    assert again.headers["x-penstock-entry"] == first.headers["x-penstock-entry"], "also after it was delivered"
    gateway.post("/crm/end", headers={"x-queue": "ann"})
    until(lambda: backend.seen[-1][1] == "/api/end", "the end")
    assert len(backend.seen) == 3


def test_with_keys_the_backend_has_credentials_of_its_own(serving: Any, backend: Backend, tmp_path: Path) -> None:
    secret = new_key(tmp_path / "keys.json", "ann", ("produce",))
    (tmp_path / "routes.json").write_text(
        json.dumps({"/crm/(.*)": {"target": f"{backend.url}/$1", "credentials": True}})
    )
    client = serving(routes=tmp_path / "routes.json", keys=tmp_path / "keys.json")
    ours = {"x-penstock-key": secret, "x-queue": "q", "authorization": "Basic for-the-backend"}
    assert client.put("/crm/1", headers=ours).status_code == 202
    assert client.put("/crm/2", headers={"authorization": f"Bearer {secret}", "x-queue": "q"}).status_code == 202
    until(lambda: len(backend.seen) == 2, "both delivered")
    assert backend.authorizations == ["Basic for-the-backend", None]
    assert not any(secret in one for one in backend.values)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(st.data())
def test_no_queued_request_finds_a_hole(gateway: Any, data: st.DataObject) -> None:
    """The addresses that the OpenAPI does not have: the gateway and gateleen's API."""
    values = st.one_of(
        st.sampled_from(
            ["--5", "9" * 5000, "-", "1e3", "-1", "0", "2147483648", "NaN", "", "..", "a/b", "%zz", "\xe9"]
        ),
        st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0", exclude_categories=("Cc",)), max_size=20),
    )
    names = st.sampled_from(
        ["x-static-queue-count", "x-queue-expire-after", "x-expire-after", "x-duplicate-check", "x-timeout",
         "x-queue-retry-503", "x-queue-retry-5xx", "idempotency-key", "x-rp-unique_id"]
    )  # fmt: skip
    headers = data.draw(st.dictionaries(names, values, max_size=3))
    headers["x-queue"] = data.draw(values)
    path = data.draw(
        st.sampled_from(["/crm/1", "/crm/%2e%2e/x", "/nowhere", SEED, f"{SEED}/%ff", f"{SEED}/_all/status"])
    )
    method = data.draw(st.sampled_from(["PUT", "POST", "DELETE", "PATCH", "HEAD", "OPTIONS", "GET"]))
    body = data.draw(st.sampled_from([b"", b'{"status": "closed"}', b'{"status": "\\ud800"}', b"[" * 50_000, b"\xff"]))
    sent = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    answer = gateway.request(method, path, content=body, headers=sent)
    assert answer.status_code < 500, answer.text


def test_queues_are_split_as_configured(serving: Any, tmp_path: Path, queues: QueueStore) -> None:
    (tmp_path / "routes.json").write_text('{"/crm/(.*)": "http://127.0.0.1:9/$1"}')
    (tmp_path / "split.json").write_text('{"ann.*": {"postfixFromStatic": ["A", "B"]}}')
    client = serving(routes=tmp_path / "routes.json", splitting=tmp_path / "split.json", deliver=False)
    for _ in range(2):
        assert client.put("/crm/1", headers={"x-queue": "ann"}).status_code == 202
    assert [one.queue for one in queues.driver.page()] == ["requests.ann-A", "requests.ann-B"]
    for text in (None, "{", '{"a": {}}'):
        (tmp_path / "split.json").unlink() if text is None else (tmp_path / "split.json").write_text(text)
        with pytest.raises(BadInput, match="splitting"):
            serving(routes=tmp_path / "routes.json", splitting=tmp_path / "split.json", deliver=False)

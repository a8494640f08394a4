"""Circuits over HTTP: ours, and gateleen's exactly; queued requests through a real service to a real backend."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from penstock import QueueStore
from penstock.breaker.settings import BreakerConfig

SEED = "/playground/server/queuecircuitbreaker/circuit"


class Backend(ThreadingHTTPServer):
    """A far side that can be told to fail."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.seen: list[tuple[str, str, bytes]] = []
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
    for path in ("/crm/a", "/", "/v1/queues/mails/entrys"):
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
    from penstock.errors import BadInput

    with pytest.raises(BadInput, match="cannot be read"):
        serving(routes=tmp_path / "none.json")
    (tmp_path / "bad.json").write_text('{"/(": "http://127.0.0.1/"}')
    with pytest.raises(BadInput):
        serving(routes=tmp_path / "bad.json")

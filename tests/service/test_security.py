"""Who may do what: a matrix over every address of the OpenAPI; headers, limits, and what is kept of keys."""

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BadInput
from penstock.service import ServiceSettings, new_key
from penstock.service.keys import SCOPES, Keys, remove_key

# Every address and the scope it asks for; one that is missing here fails the test below.
EXPECTED = {
    "GET /live": None, "GET /ready": None, "GET /metrics": "read",
    "GET /v1/queues": "read", "GET /v1/queues/{queue}": "read", "PATCH /v1/queues/{queue}": "admin",
    "POST /v1/queues/{queue}/entries": "produce", "POST /v1/queues/{queue}/entries/bulk": "produce",
    "GET /v1/queues/{queue}/entries": "read", "GET /v1/queues/{queue}/entries/{id}": "read",
    "PATCH /v1/queues/{queue}/entries/{id}": "admin", "DELETE /v1/queues/{queue}/entries/{id}": "admin",
    "POST /v1/queues/{queue}/cancel": "admin", "GET /v1/queues/{queue}/history": "read",
    "GET /v1/queues/{queue}/dead": "read", "DELETE /v1/queues/{queue}/dead": "admin",
    "POST /v1/queues/{queue}/replay": "admin", "GET /v1/locks": "read", "GET /v1/batches/{id}": "read",
    "GET /v1/queues/{queue}/results/{id}": "read",
    "PUT /v1/queues/{queue}/locks/{holder}": "admin", "DELETE /v1/queues/{queue}/locks/{holder}": "admin",
    "POST /v1/queues/{queue}/claims": "consume", "POST /v1/queues/{queue}/outcomes": "consume",
    "POST /v1/queues/{queue}/extend": "consume", "GET /v1/schedules": "read",
    "PUT /v1/schedules/{name}": "admin", "DELETE /v1/schedules/{name}": "admin",
    "POST /v1/schedules/{name}/pause": "admin", "POST /v1/schedules/{name}/resume": "admin",
    "POST /v1/schedules/{name}/run": "admin", "DELETE /v1/queues/{queue}": "admin",
    "GET /v1/workers": "read", "GET /v1/changes": "read", "GET /v1/figures": "read", "GET /v1/scale": "read",
    "GET /v1/logs": "read", "PUT /v1/logs/{log}": "admin", "GET /v1/logs/{log}": "read",
    "DELETE /v1/logs/{log}": "admin", "POST /v1/logs/{log}/records": "produce", "GET /v1/logs/{log}/records": "read",
    "GET /v1/logs/{log}/groups": "read", "GET /v1/logs/{log}/groups/{group}": "read",
    "PUT /v1/logs/{log}/groups/{group}": "admin", "DELETE /v1/logs/{log}/groups/{group}": "admin",
    "GET /v1/topologies": "read", "GET /v1/topologies/{name}": "read", "GET /v1/topologies/{name}/picture": "read",
    "GET /v1/signals": "read", "GET /v1/circuits": "read", "GET /v1/circuits/{circuit}": "read",
    "PUT /v1/circuits/{circuit}/state": "admin", "DELETE /v1/circuits/{circuit}": "admin",
    "GET /v1/breaker/config": "read", "PUT /v1/breaker/config": "admin",
    "DELETE /v1/breaker/config": "admin", "GET /v1/breaker/settings": "read", "PUT /v1/breaker/settings": "admin",
    "GET /v1/breaker/changes": "read",
}  # fmt: skip


@pytest.fixture
def secrets(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "keys.json"
    return {scope: new_key(file, scope, (scope,)) for scope in SCOPES}


@pytest.fixture
def guarded(serving: Any, secrets: dict[str, str], tmp_path: Path) -> Any:
    return serving(keys=tmp_path / "keys.json")


def addresses(client: Any) -> list[tuple[str, str]]:
    paths = client.get("/openapi.json").json()["paths"]
    return [(method.upper(), path) for path, one in paths.items() for method in one]


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_the_matrix_of_scopes(guarded: Any, secrets: dict[str, str]) -> None:
    found = addresses(guarded)
    assert {f"{method} {path}" for method, path in found} == set(EXPECTED), "a new address needs its line above"
    for method, path in found:
        wanted = EXPECTED[f"{method} {path}"]
        url = path.replace("{", "").replace("}", "")
        if wanted is None:
            assert guarded.request(method, url).status_code == 200
            continue
        assert guarded.request(method, url).status_code == 401, f"{method} {path} without a key"
        assert guarded.request(method, url, headers=bearer("psk_wrong")).status_code == 401
        for scope, secret in secrets.items():
            if path == "/v1/signals" and scope in {wanted, "admin"}:
                continue  # it never ends
            answer = guarded.request(method, url, headers=bearer(secret))
            allowed = scope in {wanted, "admin"}
            assert (answer.status_code not in {401, 403}) == allowed, f"{method} {path} with {scope}: {answer.text}"


def test_every_4xx_is_described(guarded: Any) -> None:
    spec = guarded.get("/openapi.json").json()
    for path, methods in spec["paths"].items():
        for method, one in methods.items():
            if EXPECTED[f"{method.upper()} {path}"] is not None:
                assert {"400", "401", "403", "413", "422", "503"} <= set(one["responses"]), f"{method} {path}"


def test_a_key_for_some_queues_sees_no_others(serving: Any, tmp_path: Path, queues: Any) -> None:
    secret = new_key(tmp_path / "keys.json", "ann", ("admin",), prefix="ann.")
    client = serving(keys=tmp_path / "keys.json")
    mine, other = queues.queue("ann.mails").put(1), queues.queue("bob.mails").put(1)
    headers = bearer(secret)
    assert client.get(f"/v1/queues/ann.mails/entries/{mine.id}", headers=headers).status_code == 200
    assert client.get(f"/v1/queues/bob.mails/entries/{other.id}", headers=headers).status_code == 404
    assert client.get(f"/v1/queues/ann.mails/entries/{other.id}", headers=headers).status_code == 404
    assert client.delete(f"/v1/queues/ann.mails/entries/{other.id}", headers=headers).status_code == 404
    replayed = client.post("/v1/queues/ann.mails/replay", json={"ids": [other.id]}, headers=headers)
    assert replayed.json() == {"count": 0}
    listed = client.get("/v1/queues", headers=headers).json()["items"]
    assert [one["queue"] for one in listed] == ["ann.mails"]
    assert client.get("/v1/queues", params={"prefix": "bob"}, headers=headers).json()["items"] == []
    assert queues.queue("bob.mails").counts().ready == 1


def test_only_hashes_are_kept_and_changes_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    secret = new_key(file, "ann", ("read",))
    assert secret not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    keys = Keys(file)
    found = keys.find(secret)
    assert found is not None
    assert found.name == "ann"
    second = new_key(file, "bob", ("admin",))
    assert keys.find(second) is not None
    assert remove_key(file, "ann")
    assert keys.find(secret) is None
    for scopes in ((), ("root",)):
        with pytest.raises(BadInput, match="scopes"):
            new_key(file, "eve", scopes)
    with pytest.raises(BadInput, match="already has"):
        new_key(file, "bob", ("read",))


def test_outside_only_with_keys(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1", "shop.example"):
        with pytest.raises(BadInput, match="penstock key new"):
            ServiceSettings(queues="memory://", host=host)
    for host in ("127.0.0.1", "::1", "localhost"):
        ServiceSettings(queues="memory://", host=host)
    new_key(tmp_path / "k.json", "ann", ("read",))
    ServiceSettings(queues="memory://", host="0.0.0.0", keys=tmp_path / "k.json")
    with pytest.raises(BadInput, match="every origin"):
        ServiceSettings(queues="memory://", cors_origins=("*",))


def test_what_browsers_are_told(client: Any, serving: Any) -> None:
    for path in ("/live", "/v1/queues", "/nowhere"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert headers["cache-control"] == "no-store"
    ask = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in client.options("/v1/queues", headers=ask).headers
    open_one = serving(cors_origins=("https://shop.example",))
    asked = {**ask, "Origin": "https://shop.example"}
    told = open_one.options("/v1/queues", headers=asked).headers
    assert told["access-control-allow-origin"] == "https://shop.example"
    assert "access-control-allow-origin" not in open_one.options("/v1/queues", headers=ask).headers


def test_limits_of_the_request(serving: Any, queues: Any) -> None:
    client = serving(body_bytes=1000)

    def parts() -> Any:
        for _ in range(20):
            yield b"x" * 100

    answer = client.post("/v1/queues/q/entries", content=parts(), headers={"content-type": "application/json"})
    assert answer.status_code == 413, "also without a Content-Length"
    assert answer.headers["connection"] == "close"
    many = {f"x-{number}": "1" for number in range(150)}
    assert client.get("/v1/queues", headers=many).status_code == 413
    deep = "[" * 400 + "]" * 400
    answer = client.post(
        "/v1/queues/q/entries", content=f'{{"value": {deep}}}', headers={"content-type": "application/json"}
    )
    assert answer.status_code in {201, 400, 422}
    assert queues.queue("q").counts().dead == 0


def test_administrators_are_written_down_and_secrets_are_not(
    guarded: Any, secrets: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    guarded.put("/v1/queues/q/locks/ann", headers=bearer(secrets["admin"]))
    guarded.get("/v1/queues", headers=bearer(secrets["read"]))
    noted = [one.getMessage() for one in caplog.records if one.name == "penstock.audit"]
    assert noted == ["PUT /v1/queues/q/locks/ann  by admin"]
    everything = json.dumps([one.getMessage() for one in caplog.records])
    for secret in secrets.values():
        assert secret not in everything


def test_a_prefix_holds_everywhere(serving: Any, tmp_path: Path, queues: Any, logs: Any) -> None:
    secret = new_key(tmp_path / "keys.json", "ann", ("admin",), prefix="requests.ann-")
    (tmp_path / "routes.json").write_text('{"/crm/(.*)": "http://127.0.0.1:9/$1"}')
    client = serving(keys=tmp_path / "keys.json", routes=tmp_path / "routes.json", deliver=False)
    mine = bearer(secret)
    assert client.put("/crm/1", headers={**mine, "x-queue": "bob-1"}).status_code == 403
    assert client.put("/crm/1", headers={**mine, "x-queue": "ann-1"}).status_code == 202
    queues.queue("secret").put(1)
    logs.create("hidden", 1)
    logs.log("hidden").append({"n": 1})
    figures = client.get("/metrics", headers=mine)
    assert figures.status_code == 200
    assert "requests.ann-1" in figures.text
    for word in ("secret", "hidden", "penstock_signals", "penstock_circuit"):
        assert word not in figures.text
    queues.queue("secret").schedule("nightly", 1, every="1d")
    taken = {"queue": "requests.ann-1", "every": "1s", "version": 2}
    assert client.put("/v1/schedules/nightly", json=taken, headers=mine).status_code == 400
    seed = "/playground/server/queuecircuitbreaker/circuit"
    for method, path in (
        ("GET", "/v1/circuits"), ("GET", "/v1/circuits/x"), ("PUT", "/v1/circuits/x/state"),
        ("DELETE", "/v1/circuits/x"), ("GET", seed), ("GET", f"{seed}/x/status"),
        ("PUT", f"{seed}/_all/status"), ("GET", "/v1/breaker/config"),
        ("PUT", "/v1/breaker/config"), ("DELETE", "/v1/breaker/config"), ("GET", "/v1/breaker/settings"),
        ("PUT", "/v1/breaker/settings"), ("GET", "/v1/breaker/changes"), ("GET", "/v1/topologies"),
    ):  # fmt: skip
        assert client.request(method, path, headers=mine).status_code == 403, f"{method} {path}"


def test_a_file_of_keys_that_is_gone_or_broken_lets_nobody_in(
    serving: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.json"
    headers = bearer(new_key(file, "ann", ("read",)))
    client, good = serving(keys=file), file.read_bytes()
    file.write_text("not json")
    assert client.get("/v1/queues", headers=headers).status_code == 200, "it may be about to be replaced"
    assert client.get("/v1/queues", headers=bearer("psk_other")).status_code == 401
    monkeypatch.setattr("penstock.service.keys.GRACE", 0.0)
    for broken in (b"not json", None, b"[]", b"x"):
        file.unlink() if broken is None else file.write_bytes(broken)
        answer = client.get("/v1/queues", headers=headers)
        assert answer.status_code == 401
        assert str(tmp_path) not in answer.text
    file.write_bytes(good)
    assert client.get("/v1/queues", headers=headers).status_code == 200


def test_a_stream_ends_with_its_key(serving: Any, tmp_path: Path, queues: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.service.signals.QUIET", 0.1)
    file = tmp_path / "keys.json"
    secret = new_key(file, "ann", ("read",))
    client = serving(keys=file)
    answers: list[Any] = []
    reading = threading.Thread(target=lambda: answers.append(client.get("/v1/signals", headers=bearer(secret))))
    reading.start()
    deadline = time.monotonic() + 10
    while not queues.signals.wants("pruned") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert reading.is_alive()
    remove_key(file, "ann")
    reading.join(10)
    assert not reading.is_alive()
    assert answers[0].status_code == 200
    assert answers[0].text.startswith(": listening")


def test_without_keys_only_this_machine_is_answered(client: Any, serving: Any, secrets: Any, tmp_path: Path) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:8080", "10.0.0.1", ""):
        answer = client.get("/v1/queues", headers={"host": host})
        assert (answer.status_code, answer.headers["content-type"]) == (421, "application/problem+json"), host
    for host in ("localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080", "127.1.2.3"):
        assert client.get("/v1/queues", headers={"host": host}).status_code == 200, host
    guarded = serving(keys=tmp_path / "keys.json")
    headers = {"host": "shop.example", **bearer(secrets["read"])}
    assert guarded.get("/v1/queues", headers=headers).status_code == 200


def test_the_audit_cannot_be_forged(guarded: Any, secrets: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    headers = {**bearer(secrets["admin"]), "host": "x/v1/harmless?"}
    guarded.delete("/v1/queues/a%0aDELETE%20by%20bob/dead?before=2020-01-01T00:00:00Z", headers=headers)
    asked, refused = [one.getMessage() for one in caplog.records if one.name == "penstock.audit"]
    assert asked.startswith("DELETE /v1/queues/a%0aDELETE%20by%20bob/dead ?before=")
    assert refused.startswith("refused: DELETE /v1/queues/a%0aDELETE%20by%20bob/dead by admin: ")


def test_where_the_store_is_stays_inside(client: Any, queues: Any, tmp_path: Path) -> None:
    answer = client.get("/v1/circuits/none")
    assert answer.status_code == 404
    assert str(tmp_path) not in answer.text
    queues.close()
    for path in ("/v1/queues", "/v1/circuits", "/playground/server/queuecircuitbreaker/circuit"):
        answer = client.get(path)
        assert answer.status_code >= 400
        assert str(tmp_path) not in answer.text, path


@pytest.mark.parametrize("prefix", ["/", "/a{b", "/c/{x}/{x}", "/v1", "a", "/a//b", "/a b"])
def test_circuits_cannot_be_served_there(prefix: str) -> None:
    with pytest.raises(BadInput, match="circuits cannot be served"):
        ServiceSettings(queues="memory://", circuit_prefix=prefix)


@pytest.mark.parametrize("origin", ["null", "shop.example", "https://shop.example/", "", "https://"])
def test_no_origin(origin: str) -> None:
    with pytest.raises(BadInput, match="is not an origin"):
        ServiceSettings(queues="memory://", cors_origins=(origin,))

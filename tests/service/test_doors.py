"""What gets in, what gets out, and who is asked first."""

import json
import logging
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.backends import Backend, backend

from penstock import LogStore, QueueStore, open_logs
from penstock.errors import BadInput, WrongType
from penstock.ids import derived_id
from penstock.service import ServiceSettings, new_key
from penstock.service.keys import Keys, remove_key

JSON = {"content-type": "application/json"}
SEED = "/playground/server/queuecircuitbreaker/circuit"
DEEP = {"lists": "[" * 256 + "]" * 256, "objects": '{"a":' * 255 + "[1]" + "}" * 255}


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@pytest.fixture
def keyed(serving: Callable[..., TestClient], tmp_path: Path) -> Callable[..., tuple[TestClient, list[str]]]:
    """A service with keys, each given as its scope and its prefix."""

    def start(*keys: tuple[str, str], **settings: Any) -> tuple[TestClient, list[str]]:
        file = tmp_path / "keys.json"
        secrets = [new_key(file, f"key{number}", (key[0],), prefix=key[1]) for number, key in enumerate(keys)]
        return serving(keys=file, **settings), secrets

    return start


def until(wanted: Callable[[], object], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.02)


# --- values that cannot be written back -----------------------------------------------------------------


@pytest.mark.parametrize("shape", DEEP)
def test_a_value_too_deep_to_be_read_is_refused_where_it_is_put(
    client: TestClient, queues: QueueStore, shape: str
) -> None:
    deep = DEEP[shape]
    client.put("/v1/logs/log", json={})
    client.post("/v1/queues/q/entries", json={"value": 1})
    for method, path, body in (
        ("POST", "/v1/queues/q/entries", '{"value": %s}'),
        ("POST", "/v1/queues/q/entries/bulk", '{"entries": [{"value": 2}, {"value": %s}]}'),
        ("PUT", "/v1/schedules/s", '{"queue": "q", "every": "1h", "value": %s}'),
        ("POST", "/v1/logs/log/records", '{"records": [{"value": %s}]}'),
    ):
        answer = client.request(method, path, content=(body % deep).encode(), headers=JSON)
        assert answer.status_code in (400, 422), f"{path}: {answer.status_code}"
    for path in ("/v1/queues/q/entries", "/v1/logs/log/records", "/v1/schedules", "/v1/queues/q/history"):
        assert client.get(path).status_code == 200, path
    claimed = client.post("/v1/queues/q/claims", json={"limit": 100})
    assert [entry["value"] for entry in claimed.json()["items"]] == [1]
    with pytest.raises(WrongType, match="255 deep"):
        queues.queue("q").put(json.loads(deep))


@pytest.mark.parametrize(
    "deepest", ["[" * 255 + "]" * 255, "[" * 255 + "1" + "]" * 255, '{"a":' * 255 + "1" + "}" * 255]
)
def test_the_deepest_value_that_is_taken_is_shown_everywhere(client: TestClient, deepest: str) -> None:
    value = json.loads(deepest)
    client.put("/v1/logs/log", json={})
    body = f'{{"value": {deepest}}}'
    put = client.post("/v1/queues/q/entries", content=body, headers=JSON)
    assert put.status_code == 201
    schedule = f'{{"queue": "q", "every": "1h", "value": {deepest}}}'
    assert client.put("/v1/schedules/s", content=schedule, headers=JSON).json()["value"] == value
    assert client.post("/v1/logs/log/records", content=f'{{"records": [{body}]}}', headers=JSON).status_code == 201
    assert client.get("/v1/queues/q/entries").json()["items"][0]["value"] == value
    assert client.get(f"/v1/queues/q/entries/{put.json()['id']}").json()["value"] == value
    assert client.get("/v1/schedules").json()["items"][0]["value"] == value
    assert client.get("/v1/logs/log/records").json()["items"][0]["value"] == value
    [entry] = client.post("/v1/queues/q/claims", json={}).json()["items"]
    assert entry["value"] == value
    outcome = {"id": entry["id"], "token": entry["token"], "outcome": "dead"}
    assert client.post("/v1/queues/q/outcomes", json={"outcomes": [outcome]}).json()["items"][0]["ok"]
    assert client.get("/v1/queues/q/dead").json()["items"][0]["value"] == value
    client.post("/v1/queues/q/entries", content=body, headers=JSON)
    [entry] = client.post("/v1/queues/q/claims", json={}).json()["items"]
    outcome = {"id": entry["id"], "token": entry["token"], "outcome": "done"}
    client.post("/v1/queues/q/outcomes", json={"outcomes": [outcome]})
    assert client.get("/v1/queues/q/history?state=done").json()["items"][0]["value"] == value


def test_what_is_deeper_in_a_store_is_shown_as_bytes(client: TestClient, logs: LogStore) -> None:
    logs.create("raw", 1)
    logs.appender("raw", bytes).append(DEEP["lists"].encode())
    answer = client.get("/v1/logs/raw/records")
    assert answer.status_code == 200
    assert answer.json()["items"][0]["bytes"]


# --- the key comes first --------------------------------------------------------------------------------


def test_without_a_key_no_body_is_parsed(keyed: Any) -> None:
    client, [reader] = keyed(("read", ""))
    paths = client.get("/openapi.json").json()["paths"]
    asked = 0
    for path, methods in paths.items():
        for method, operation in methods.items():
            if "requestBody" not in operation:
                continue
            asked += 1
            url = path.replace("{", "").replace("}", "")
            assert client.request(method, url, content=b"{broken", headers=JSON).status_code == 401, f"{method} {url}"
            answer = client.request(method, url, content=b"{broken", headers={**JSON, **bearer(reader)})
            assert answer.status_code == 403, f"{method} {url}"
    assert asked > 15


def test_no_address_leads_to_another_one_before_the_key_is_asked(keyed: Any) -> None:
    client, [reader] = keyed(("read", ""))
    for headers in ({}, bearer(reader)):
        for path in ("/v1/queues/", "/v1/logs/", "/metrics/"):
            answer = client.get(path, headers={**headers, "host": "evil.example"}, follow_redirects=False)
            assert answer.status_code in (401, 404), path
            assert "location" not in answer.headers


# --- prefixes -------------------------------------------------------------------------------------------


def test_ids_and_messages_do_not_cross_prefixes(keyed: Any) -> None:
    client, [ann, bob] = keyed(("admin", "a."), ("admin", "b."))
    first = client.post("/v1/queues/a.secret/entries", json={"value": 1, "id": "order-17"}, headers=bearer(ann))
    assert first.status_code == 201
    other = client.post("/v1/queues/b.q/entries", json={"value": 2, "id": "order-17"}, headers=bearer(bob))
    assert other.status_code == 201, "an id of one prefix is free in another one"
    assert client.get("/v1/queues/a.secret/entries/order-17", headers=bearer(ann)).json()["value"] == 1
    assert client.get("/v1/queues/b.q/entries/order-17", headers=bearer(bob)).json()["value"] == 2
    again = client.post("/v1/queues/a.secret/entries", json={"value": 1, "id": "order-17"}, headers=bearer(ann))
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    stolen = {"value": 3, "id": first.json()["id"]}
    answer = client.post("/v1/queues/b.q/entries", json=stolen, headers=bearer(bob))
    assert "secret" not in answer.text
    changed = client.patch("/v1/queues/a.secret/entries/order-17", json={"value": 5}, headers=bearer(ann))
    assert changed.json()["value"] == 5
    assert client.delete("/v1/queues/a.secret/entries/order-17", headers=bearer(ann)).json() == {"count": 1}


def test_nobody_takes_the_id_behind_the_idempotency_key_of_another_prefix(keyed: Any) -> None:
    client, [ann, bob] = keyed(("produce", "a."), ("produce", "b."))
    for number in ("0", "1"):
        taken = {"value": "mine", "id": derived_id("http", "a.orders", "order-17", number)}
        client.post("/v1/queues/b.q/entries", json=taken, headers=bearer(bob))
    headers = {**bearer(ann), "Idempotency-Key": "order-17"}
    assert client.post("/v1/queues/a.orders/entries", json={"value": 1}, headers=headers).status_code == 201


def test_names_of_schedules_do_not_cross_prefixes(keyed: Any, queues: QueueStore) -> None:
    client, [ann, bob, root] = keyed(("admin", "a."), ("admin", "b."), ("admin", ""))

    def names(secret: str) -> list[str]:
        return [item["name"] for item in client.get("/v1/schedules", headers=bearer(secret)).json()["items"]]

    hourly = {"queue": "a.q", "every": "1h"}
    assert client.put("/v1/schedules/a.s", json=hourly, headers=bearer(ann)).status_code == 200
    queues.queue("a.q").schedule("b.taken", 1, every="1h")
    queues.queue("a.q").schedule("nightly", 1, every="1h")
    problems = []
    for name in ("b.taken", "b.free", "nightly", "free"):
        answer = client.put(f"/v1/schedules/{name}", json=hourly, headers=bearer(ann))
        assert (answer.status_code, answer.json()["type"]) == (400, "urn:penstock:problem:bad-input")
        assert "'a.'" in answer.json()["hint"]
        problems.append(answer.text.replace(name, "NAME"))
    assert len(set(problems)) == 1, "the answer says nothing about which names are in use"
    assert names(ann) == ["a.s"]
    assert names(bob) == [], "the name is in reach, the queue is not"
    assert names(root) == ["a.s", "b.taken", "nightly"]
    for secret, name in ((ann, "b.taken"), (ann, "nightly"), (bob, "b.taken"), (bob, "a.s")):
        assert client.delete(f"/v1/schedules/{name}", headers=bearer(secret)).status_code == 404
    assert client.put("/v1/schedules/b.s", json=hourly, headers=bearer(bob)).status_code == 404, "a queue out of reach"
    assert client.delete("/v1/schedules/a.s", headers=bearer(ann)).status_code == 204
    assert client.delete("/v1/schedules/nightly", headers=bearer(root)).status_code == 204


@pytest.fixture
def ann(keyed: Any) -> tuple[Callable[..., Any], str]:
    """Calls a queue with a key that has a prefix; its entry has the id "same", and the stored id that is given."""
    client, [secret] = keyed(("admin", "a."))

    def call(method: str, path: str, json: Any = None) -> Any:
        return client.request(method, f"/v1/queues/a.q/{path}", json=json, headers=bearer(secret)).json()

    stored = call("POST", "entries", {"value": 1, "id": "same"})["id"]
    assert stored != "same"
    return call, stored


@pytest.mark.parametrize("named", ["given", "stored"])
def test_an_id_of_a_prefix_works_wherever_ids_are_taken(ann: Any, named: str) -> None:
    call, stored = ann
    id_ = "same" if named == "given" else stored

    def claimed() -> dict[str, str]:
        [item] = call("POST", "claims", {})["items"]
        return {"id": id_, "token": item["token"]}

    assert call("POST", "cancel", {"ids": [id_]}) == {"count": 1}
    assert [row["state"] for row in call("GET", f"history?id={id_}")["items"]] == ["cancelled"]
    assert call("POST", "replay", {"ids": [id_]}) == {"count": 1}
    lease = claimed()
    [extended] = call("POST", "extend", {"leases": [lease], "lease": "90s"})["items"]
    assert (extended["id"], extended["ok"]) == (id_, True)
    [wrong] = call("POST", "outcomes", {"outcomes": [{**lease, "token": "1-x", "outcome": "done"}]})["items"]
    assert (wrong["id"], wrong["ok"]) == (id_, False)
    [ended] = call("POST", "outcomes", {"outcomes": [{**lease, "outcome": "dead", "error": "no"}]})["items"]
    assert (ended["id"], ended["ok"]) == (id_, True)
    assert call("POST", "replay", {"ids": [id_]}) == {"count": 1}, "of a dead letter"
    assert call("POST", "outcomes", {"outcomes": [{**claimed(), "outcome": "done"}]})["items"][0]["ok"]
    assert call("POST", "replay", {"ids": [id_]}) == {"count": 1}, "of what was done"
    assert {row["id"] for row in call("GET", f"history?id={id_}")["items"]} == {stored}


def test_an_entry_may_be_named_by_both_of_its_ids_at_once(ann: Any) -> None:
    call, stored = ann
    both = ["same", stored]
    assert call("POST", "cancel", {"ids": both}) == {"count": 1}
    assert call("POST", "replay", {"ids": both}) == {"count": 1}
    [item] = call("POST", "claims", {})["items"]
    leases = [{"id": id_, "token": item["token"]} for id_ in both]
    assert all(one["ok"] for one in call("POST", "extend", {"leases": leases})["items"])
    outcomes = [{**lease, "outcome": "done"} for lease in leases]
    assert call("POST", "outcomes", {"outcomes": outcomes})["items"][0]["ok"]
    assert len(call("GET", "history?id=same&state=done")["items"]) == 1


def test_the_token_tells_which_entry_an_id_means(ann: Any, queues: QueueStore) -> None:
    call, stored = ann
    queues.queue("a.q").put(2, id="same")  # by somebody without a prefix
    items = call("POST", "claims", {"limit": 2})["items"]
    assert {item["id"] for item in items} == {stored, "same"}
    for item in items:
        outcome = {"id": "same", "token": item["token"], "outcome": "done"}
        assert call("POST", "outcomes", {"outcomes": [outcome]})["items"][0]["ok"], item["id"]
    assert {row["id"] for row in call("GET", "history")["items"]} == {stored, "same"}


# --- credentials ----------------------------------------------------------------------------------------


@pytest.fixture
def far() -> Iterator[Backend]:
    with backend() as made:
        yield made


@pytest.fixture
def routes(tmp_path: Path, far: Backend) -> Path:
    file = tmp_path / "routes.json"
    file.write_text(
        json.dumps({"/open/(.*)": f"{far.url}/$1", "/trusted/(.*)": {"target": f"{far.url}/$1", "credentials": True}})
    )
    return file


def test_credentials_are_stored_only_where_they_are_sent_and_shown_nowhere(
    keyed: Any, routes: Path, queues: QueueStore
) -> None:
    client, [producer, reader] = keyed(("produce", ""), ("read", ""), routes=routes, deliver=False)
    given = {"x-penstock-key": producer, "Authorization": "Basic s3cret", "Cookie": "session=s3cret"}
    for path in ("/open/1", "/trusted/1"):
        queue = path.split("/")[1]
        assert client.put(path, headers={**given, "x-queue": queue}).status_code == 202
    [plain] = queues.queue("requests.open").find()
    assert b"s3cret" not in plain.payload
    [trusted] = queues.queue("requests.trusted").find()
    assert b"Basic s3cret" in trusted.payload
    listed = client.get("/v1/queues/requests.trusted/entries", headers=bearer(reader))
    assert listed.status_code == 200
    assert "s3cret" not in listed.text
    assert ["authorization", "***"] in listed.json()["items"][0]["value"]["headers"]
    queues.queue("requests.trusted").cancel(trusted.id)
    history = client.get("/v1/queues/requests.trusted/history", headers=bearer(reader))
    assert "crm" in history.text or "trusted" in history.text
    assert "s3cret" not in history.text


@pytest.mark.parametrize("own", [{}, {"x-penstock-key": ""}, {"x-penstock-key": " "}, {"x-penstock-key": "SECRET"}])
def test_the_api_key_is_neither_stored_nor_sent_on(
    keyed: Any, routes: Path, queues: QueueStore, own: dict[str, str]
) -> None:
    client, [producer] = keyed(("produce", ""), routes=routes, deliver=False)
    headers = {
        "x-queue": "q",
        **bearer(producer),
        **{name: value.replace("SECRET", producer) for name, value in own.items()},
    }
    assert client.put("/trusted/1", headers=headers).status_code == 202
    [entry] = queues.queue("requests.q").find()
    assert producer.encode() not in entry.payload


@pytest.mark.parametrize("place", ["path", "query", "encoded query", "body", "encoded body"])
def test_a_request_with_the_api_key_in_it_is_refused(keyed: Any, routes: Path, queues: QueueStore, place: str) -> None:
    client, [producer] = keyed(("produce", ""), routes=routes, deliver=False)
    encoded = "".join(f"%{ord(char):02x}" for char in producer)
    address = {"path": f"/trusted/{producer}", "query": f"/trusted/1?key={producer}",
               "encoded query": f"/trusted/1?key={encoded}"}.get(place, "/trusted/1")  # fmt: skip
    body = {"body": f'{{"key": "{producer}"}}', "encoded body": f"key={encoded}"}.get(place, "")
    for headers in (bearer(producer), {"x-penstock-key": producer}):
        answer = client.put(address, content=body, headers={**headers, "x-queue": "q"})
        assert (answer.status_code, answer.json()["type"]) == (400, "urn:penstock:problem:bad-input")
        assert "x-penstock-key" in answer.json()["hint"]
        assert producer not in answer.text
        assert encoded not in answer.text
    assert not queues.queue("requests.q").find()
    assert client.put("/trusted/1", content="psk_", headers={**bearer(producer), "x-queue": "q"}).status_code == 202


@pytest.mark.parametrize("header", ["X-Api-Key", "Api-Key", "X-Auth-Token"])
def test_headers_that_carry_keys_are_credentials(keyed: Any, routes: Path, queues: QueueStore, header: str) -> None:
    client, [producer, reader] = keyed(("produce", ""), ("read", ""), routes=routes, deliver=False)
    for queue in ("open", "trusted"):
        headers = {**bearer(producer), header: "s3cret", "x-queue": queue}
        assert client.put(f"/{queue}/1", headers=headers).status_code == 202
    [plain] = queues.queue("requests.open").find()
    assert b"s3cret" not in plain.payload
    [trusted] = queues.queue("requests.trusted").find()
    assert b"s3cret" in trusted.payload
    listed = client.get("/v1/queues/requests.trusted/entries", headers=bearer(reader))
    assert "s3cret" not in listed.text
    assert [header.lower(), "***"] in listed.json()["items"][0]["value"]["headers"]


def test_headers_that_a_backend_would_believe_are_not_passed_on(serving: Any, routes: Path, queues: QueueStore) -> None:
    client = serving(routes=routes, deliver=False)
    odd = {
        "Connection": "X-Hop, keep-alive", "X-Hop": "1", "HTTP2-Settings": "AAA", "X-Forwarded-For": "10.0.0.1",
        "Forwarded": "for=10.0.0.1", "X-HTTP-Method-Override": "DELETE", "X-Original-URL": "/admin", "X-Mine": "yes",
    }  # fmt: skip
    assert client.put("/open/1", headers={**odd, "x-queue": "q"}).status_code == 202
    [entry] = queues.queue("requests.q").find()
    names = {name for name, _ in json.loads(entry.payload)["headers"]}
    assert "x-mine" in names
    assert not names & {name.lower() for name in odd if name != "X-Mine"}


# --- pages of other sites -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:3000"},
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
    ],
)  # fmt: skip
def test_without_keys_a_page_of_another_site_changes_nothing(
    client: TestClient, serving: Any, queues: QueueStore, headers: dict[str, str]
) -> None:
    answer = client.post("/v1/queues/q/entries", json={"value": 1}, headers=headers)
    assert answer.status_code == 403
    assert client.post("/v1/queues/q/claims", content=b"{}", headers={**headers, **JSON}).status_code == 403
    assert client.delete("/v1/schedules/s", headers=headers).status_code == 403
    assert not queues.queue("q").find()


def test_without_keys_own_pages_and_listed_ones_may(client: TestClient, serving: Any) -> None:
    for headers in ({}, {"Origin": "http://127.0.0.1", "Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}):
        assert client.post("/v1/queues/q/entries", json={"value": 1}, headers=headers).status_code == 201
    listed = serving(cors_origins=("https://shop.example",))
    headers = {"Origin": "https://shop.example", "Sec-Fetch-Site": "cross-site"}
    assert listed.post("/v1/queues/q/entries", json={"value": 1}, headers=headers).status_code == 201


@pytest.mark.parametrize(
    "headers",
    [
        [("Origin", "https://evil.example"), ("Origin", "http://127.0.0.1")],
        [("Origin", "http://127.0.0.1"), ("origin", "https://evil.example")],
        [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Site", "same-origin")],
        [("Host", "evil.example"), ("Host", "127.0.0.1")],
    ],
)
def test_without_keys_a_request_says_once_where_it_is_from(
    client: TestClient, queues: QueueStore, headers: list[tuple[str, str]]
) -> None:
    answer = client.post("/v1/queues/q/entries", content=b'{"value": 1}', headers=[*headers, *JSON.items()])
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert "more than once" in answer.json()["detail"]
    assert not queues.queue("q").find()


# --- bounds ---------------------------------------------------------------------------------------------


def test_waiting_claims_are_shared_between_keys(keyed: Any) -> None:
    client, [ann, bob] = keyed(("consume", "a."), ("consume", "b."), waiting_claims=4, waiting_claims_per_key=2)
    answers: list[Any] = []

    def wait(secret: str, queue: str) -> None:
        answers.append(client.post(f"/v1/queues/{queue}/claims?wait=20", json={}, headers=bearer(secret)))

    threads = [threading.Thread(target=wait, args=(ann, "a.q")) for _ in range(2)]
    for thread in threads:
        thread.start()
    shares = client.app.state.waiting
    until(lambda: shares.borrowed_tokens == 2, "both claims to wait")
    refused = client.post("/v1/queues/a.q/claims?wait=20", json={}, headers=bearer(ann))
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert client.post("/v1/queues/a.q/claims", json={}, headers=bearer(ann)).status_code == 200, "without waiting"
    assert client.post("/v1/queues/b.q/claims?wait=0.1", json={}, headers=bearer(bob)).status_code == 200
    client.app.state.queues.queue("a.q").put_many([1, 2])
    for thread in threads:
        thread.join(30)
    assert [answer.status_code for answer in answers] == [200, 200]


def test_a_waiting_claim_of_a_removed_key_ends_with_nothing(keyed: Any, tmp_path: Path, queues: QueueStore) -> None:
    client, [ann] = keyed(("consume", ""))
    answers: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answers.append(client.post("/v1/queues/q/claims?wait=20", json={}, headers=bearer(ann)))
    )
    waiting.start()
    until(lambda: client.app.state.waiting.borrowed_tokens == 1, "the claim to wait")
    assert remove_key(tmp_path / "keys.json", "key0")
    queues.queue("q").put(1)  # at once: it must not be taken although nobody has looked at the keys yet
    waiting.join(30)
    assert answers[0].json() == {"items": []}
    [entry] = queues.queue("q").find()
    assert (entry.state, entry.attempt) == ("waiting", 0)


def test_the_wait_of_a_removed_key_ends(keyed: Any, tmp_path: Path) -> None:
    client, [ann] = keyed(("consume", ""))
    waiting = threading.Thread(target=lambda: client.post("/v1/queues/q/claims?wait=20", json={}, headers=bearer(ann)))
    waiting.start()
    until(lambda: client.app.state.waiting.borrowed_tokens == 1, "the claim to wait")
    assert remove_key(tmp_path / "keys.json", "key0")
    until(lambda: client.app.state.waiting.borrowed_tokens == 0, "the wait to end", seconds=15)
    waiting.join(30)


def test_pages_and_claims_are_bounded_in_bytes(serving: Any, queues: QueueStore, logs: LogStore) -> None:
    client = serving(page_bytes=100_000)
    queues.queue("q").put_many(["x" * 30_000] * 40)
    logs.create("log", 1)
    logs.log("log").append_many(["x" * 30_000] * 40)
    for path, name in (("/v1/queues/q/entries", "after"), ("/v1/logs/log/records", "start")):
        count, place = 0, 0
        while place is not None and count < 40:
            answer = client.get(path, params={"limit": 1000, name: place})
            assert len(answer.content) < 200_000, path
            count, place = count + len(answer.json()["items"]), answer.json()["next"]
            assert answer.json()["items"]
        assert count == 40, path
    claimed = client.post("/v1/queues/q/claims", json={"limit": 1000})
    assert len(claimed.content) < 16 * 31_000 + 1000
    assert claimed.json()["items"]
    tiny = serving(page_bytes=10)
    assert len(tiny.get("/v1/queues/q/entries").json()["items"]) == 1, "one is always shown"


def test_what_comes_with_a_payload_counts_for_the_size_of_a_page(
    serving: Any, queues: QueueStore, logs: LogStore
) -> None:
    client = serving(page_bytes=100_000)
    labels, headers = {f"label-{number}": "x" * 250 for number in range(100)}, {"trace": "x" * 30_000}
    queues.queue("labels").put_many([1] * 40, labels=labels)
    queues.queue("headers").put_many([1] * 40, headers=headers)
    logs.create("log", 1)
    logs.log("log").append_many([1] * 40, headers=[headers] * 40)
    for path in ("/v1/queues/labels/entries", "/v1/queues/headers/entries", "/v1/logs/log/records"):
        answer = client.get(path, params={"limit": 1000})
        assert answer.json()["items"]
        assert len(answer.content) < 200_000, path
    for queue in ("labels", "headers"):
        claimed = client.post(f"/v1/queues/{queue}/claims", json={"limit": 1000})
        assert claimed.json()["items"]
        assert len(claimed.content) < 16 * 32_000


def test_many_errors_have_a_short_answer(client: TestClient) -> None:
    unknown = {f"field{number}": 1 for number in range(20_000)}
    many = {"entries": [{"value": 1, "priority": "high"}] * 1000}
    for path, body in (("entries", unknown), ("entries/bulk", many), ("entries", {"x" * 100_000: 1})):
        answer = client.post(f"/v1/queues/q/{path}", json=body)
        assert answer.status_code == 422
        assert len(answer.content) < 10_000
        assert answer.json()["errors"]
    long = client.post("/v1/queues/q/entries", json={"value": 1, "labels": {"a": "x" * 500_000}})
    assert long.status_code in (400, 422)
    assert len(long.content) < 10_000


@pytest.mark.parametrize("pattern", ["/(.*)/(.*)/(.*)/status", "/(a+)+b", "/(a|a)*b", "/(.*a){20}"])
def test_a_route_that_could_take_for_ever_is_refused_at_the_start(serving: Any, tmp_path: Path, pattern: str) -> None:
    file = tmp_path / "routes.json"
    file.write_text(json.dumps({pattern: "http://127.0.0.1:9"}))
    with pytest.raises(BadInput, match="too many choices"):
        serving(routes=file)


# --- odds and ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["0", "1700000000", "-1", "1.5", "1e9"])
def test_a_number_is_not_a_time(client: TestClient, queues: QueueStore, number: str) -> None:
    queues.queue("q").put(1)
    for method, path in (
        ("DELETE", "/v1/queues/q/dead?before="), ("GET", "/v1/queues/q/entries?due_from="),
        ("GET", "/v1/queues/q/history?since="),
    ):  # fmt: skip
        assert client.request(method, path + number).status_code == 422, path
    answer = client.post("/v1/queues/q/entries", content=f'{{"value": 1, "due": {number}}}', headers=JSON)
    assert answer.status_code == 422


def test_the_openapi_and_the_figures_can_be_switched_off(serving: Any, keyed: Any) -> None:
    off = serving(openapi=False, metrics=False)
    assert off.get("/openapi.json").status_code == 404
    assert off.get("/metrics").status_code == 404
    client, [reader] = keyed(("read", ""), openapi_key=True)
    assert client.get("/openapi.json").status_code == 401
    assert client.get("/openapi.json", headers=bearer(reader)).status_code == 200
    with pytest.raises(BadInput, match="no API keys"):
        ServiceSettings(queues="memory://", openapi_key=True)


def test_the_audit_names_what_the_address_does_not(
    client: TestClient, queues: QueueStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ids = [queues.queue("q").put(number).id for number in range(3)]
    client.post("/v1/queues/q/cancel", json={"ids": ids})
    client.post("/v1/queues/q/replay", json={"ids": ids})
    client.patch("/v1/queues/q", json={"rate": "7/s"})
    noted = [record.getMessage() for record in caplog.records if record.name == "penstock.audit"]
    for verb in ("cancel", "replay"):
        assert any(verb in line and all(id_ in line for id_ in ids) and "anybody" in line for line in noted), noted
    assert any("7/s" in line for line in noted)


def test_a_key_file_that_everybody_may_write_is_not_used(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    secret = new_key(file, "ann", ("read",))
    keys = Keys(file)
    file.chmod(0o666)
    with pytest.raises(BadInput, match="every user may write"):
        Keys(file)
    assert keys.find(secret) is not None, "it is known from before, for a moment"
    file.chmod(0o600)
    assert Keys(file).find(secret) is not None


def test_the_files_of_a_log_are_their_owners(tmp_path: Path) -> None:
    with open_logs(f"file://{tmp_path}/deep/logs") as logs:
        logs.create("log", 2)
        logs.log("log").append_many(range(10), keys=[str(number) for number in range(10)])
        with logs.tailer("log", "g") as tailer, logs.transaction() as transaction:
            tailer.read(timeout="5s")
            transaction.append("log", 11)
            transaction.commit_offsets(tailer)
            transaction.commit()
    for path in (tmp_path / "deep" / "logs", *(tmp_path / "deep" / "logs").rglob("*")):
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


# --- gateleen's circuit API -----------------------------------------------------------------------------


def test_gateleens_answers_to_what_is_not_allowed_and_to_trailing_slashes(client: TestClient) -> None:
    for method, path in (
        ("DELETE", ""), ("POST", ""), ("PUT", ""), ("POST", "/x"), ("DELETE", "/x"), ("PUT", "/x"), ("PUT", "/x/"),
        ("GET", "/_all/status"), ("GET", "/_all/status/"), ("DELETE", "/x/status"), ("GET", "/x/y"),
        ("PATCH", "/x/y"), ("GET", "/x/status/y"),
    ):  # fmt: skip
        answer = client.request(method, SEED + path)
        assert (answer.status_code, answer.text) == (405, "Method Not Allowed"), f"{method} {path}"
    for path in (f"{SEED}/", f"{SEED}/_all/", f"{SEED}/x/", f"{SEED}/x/status/"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()) == (200, client.get(path.rstrip("/")).json()), path
    assert client.put(f"{SEED}/x/status/", json={"status": "closed"}).status_code == 200


def test_a_configuration_that_is_not_json_is_a_bad_request(client: TestClient) -> None:
    for body in (b"no json", b"", b'"text"', b"[]", b"\xff"):
        assert client.put("/v1/breaker/config", content=body, headers=JSON).status_code == 400, body


def test_the_name_of_a_rules_figures_is_shown(serving: Any, tmp_path: Path, far: Backend) -> None:
    file = tmp_path / "routes.json"
    file.write_text(json.dumps({"/crm/(.*)": {"target": f"{far.url}/$1", "metricName": "crm"}}))
    client = serving(routes=file)
    config = {**client.get("/v1/breaker/config").json(), "circuitCheckEnabled": True, "statisticsUpdateEnabled": True}
    assert client.put("/v1/breaker/config", json=config).status_code == 200
    assert client.put("/crm/1", headers={"x-queue": "q"}).status_code == 202
    until(lambda: client.get(SEED).json(), "the circuit")
    [[hash_, circuit]] = client.get(SEED).json().items()
    assert circuit["infos"]["metricName"] == "crm"
    assert client.get(f"{SEED}/{hash_}").json()["info"]["metricName"] == "crm"

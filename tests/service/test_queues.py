"""Queues, entries, history, dead letters, locks, schedules and leases over HTTP."""

import base64
from pathlib import Path
from typing import Any

import pytest

from penstock import Queue, QueueStore, Retry, Worker


def put(client: Any, queue: str, value: Any, **more: Any) -> Any:
    answer = client.post(f"/v1/queues/{queue}/entries", json={"value": value, **more})
    assert answer.status_code in {200, 201}, answer.text
    return answer.json()


def test_put_and_look(client: Any, queues: QueueStore) -> None:
    made = put(client, "mails", {"to": "ann"}, labels={"customer": "ann"}, priority=5, headers={"trace": "1"})
    assert made["created"] is True
    seen = client.get(f"/v1/queues/mails/entries/{made['id']}").json()
    assert (seen["value"], seen["labels"], seen["priority"], seen["state"]) == (
        {"to": "ann"}, {"customer": "ann"}, 5, "waiting",
    )  # fmt: skip
    assert queues.queue("mails").get(made["id"]).value == {"to": "ann"}
    assert client.get("/v1/queues/mails").json()["ready"] == 1


def test_the_same_idempotency_key_stores_once(client: Any, queues: QueueStore) -> None:
    answers = [
        client.post("/v1/queues/q/entries", json={"value": 1}, headers={"Idempotency-Key": "k-1"}) for _ in range(3)
    ]
    assert [one.status_code for one in answers] == [201, 201, 201], "a repeat is answered as the first was"
    assert len({one.json()["id"] for one in answers}) == 1
    body = {"entries": [{"value": 1}, {"value": 2}]}
    for _ in range(2):
        assert client.post("/v1/queues/q/entries/bulk", json=body, headers={"Idempotency-Key": "b"}).status_code == 201
    assert queues.queue("q").counts().ready == 3
    kept = client.post("/v1/queues/q/entries", json={"value": 1, "unique": "u"})
    again = client.post("/v1/queues/q/entries", json={"value": 2, "unique": "u"})
    assert (again.status_code, again.json()) == (200, {**kept.json(), "created": False})


def test_bulk_is_all_or_none(client: Any, queues: QueueStore) -> None:
    put(client, "q", 0, unique="held")
    body = {"entries": [{"value": 1}, {"value": 2, "unique": "held", "on_conflict": "raise"}]}
    answer = client.post("/v1/queues/q/entries/bulk", json=body)
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:penstock:problem:unique-held")
    assert queues.queue("q").counts().ready == 1


def test_bytes_travel_as_base64(client: Any, queues: QueueStore) -> None:
    text = base64.b64encode(b"\x00\xff").decode()
    made = client.post("/v1/queues/raw/entries", json={"bytes": text}).json()
    assert queues.queue("raw", bytes).get(made["id"]).value == b"\x00\xff"
    assert client.get(f"/v1/queues/raw/entries/{made['id']}").json()["bytes"] == text
    assert client.post("/v1/queues/raw/entries", json={"bytes": "*"}).status_code == 400


def test_pages_and_filters(client: Any) -> None:
    for number in range(5):
        put(client, "q", number, labels={"odd": str(number % 2)})
    first = client.get("/v1/queues/q/entries", params={"limit": 2}).json()
    second = client.get("/v1/queues/q/entries", params={"limit": 2, "after": first["next"]}).json()
    assert [one["value"] for one in (*first["items"], *second["items"])] == [0, 1, 2, 3]
    odd = client.get("/v1/queues/q/entries", params={"label": "odd=1"}).json()
    assert [one["value"] for one in odd["items"]] == [1, 3]
    assert odd["next"] is None
    for name in ("a", "b", "c"):
        put(client, name, 1)
    page = client.get("/v1/queues", params={"limit": 2}).json()
    assert ([one["queue"] for one in page["items"]], page["next"]) == (["a", "b"], "b")
    rest = client.get("/v1/queues", params={"after": "b"}).json()
    assert ([one["queue"] for one in rest["items"]], rest["next"]) == (["c", "q"], None)


def test_change_move_cancel(client: Any, queues: QueueStore) -> None:
    made = put(client, "q", 1)
    where = f"/v1/queues/q/entries/{made['id']}"
    assert client.patch(where, json={"value": 2, "priority": 7}).json()["value"] == 2
    assert client.patch(where, json={"delay": "1h"}).status_code == 200
    assert queues.queue("q").counts().delayed == 1
    assert client.patch(where, json={"delay": "1h", "value": 3}).status_code == 400
    assert client.delete(where).json() == {"count": 1}
    assert client.get(where).status_code == 404
    [row] = client.get("/v1/queues/q/history").json()["items"]
    assert (row["state"], row["id"], row["value"]) == ("cancelled", made["id"], 2)


def test_dead_letters_replay_and_purge(client: Any, queues: QueueStore) -> None:
    made = put(client, "q", 1)
    [held] = client.post("/v1/queues/q/claims", json={}).json()["items"]
    outcome = {"id": held["id"], "token": held["token"], "outcome": "dead", "error": "no"}
    assert client.post("/v1/queues/q/outcomes", json={"outcomes": [outcome]}).json()["items"][0]["ok"]
    [dead] = client.get("/v1/queues/q/dead").json()["items"]
    assert (dead["id"], dead["error"], dead["state"]) == (made["id"], "no", "dead")
    assert client.post("/v1/queues/q/replay", json={"ids": [made["id"]]}).json() == {"count": 1}
    assert queues.queue("q").counts().ready == 1
    assert client.delete("/v1/queues/q/dead").status_code == 422, "never everything by accident"
    purged = client.delete("/v1/queues/q/dead", params={"before": "2100-01-01T00:00:00Z"})
    assert purged.json() == {"count": 0}


def test_claims_outcomes_and_lost_leases(client: Any, queues: QueueStore) -> None:
    for number in range(3):
        put(client, "q", number)
    held = client.post("/v1/queues/q/claims", json={"limit": 3, "lease": "30s"}).json()["items"]
    assert [one["value"] for one in held] == [0, 1, 2]
    outcomes = [
        {"id": held[0]["id"], "token": held[0]["token"], "outcome": "done"},
        {"id": held[1]["id"], "token": "forged", "outcome": "done"},
        {"id": held[2]["id"], "token": held[2]["token"], "outcome": "retry", "delay": "1h", "error": "later"},
        {"id": "unknown", "token": "x", "outcome": "done"},
    ]
    answers = client.post("/v1/queues/q/outcomes", json={"outcomes": outcomes}).json()["items"]
    assert [one["ok"] for one in answers] == [True, False, True, False]
    assert answers[1]["problem"] == "urn:penstock:problem:lease-lost"
    counts = queues.queue("q").counts()
    assert (counts.leased, counts.retrying) == (1, 1)
    lease = {"id": held[1]["id"], "token": held[1]["token"]}
    assert client.post("/v1/queues/q/extend", json={"leases": [lease], "lease": "5m"}).json()["items"][0]["ok"]
    other = client.post("/v1/queues/other/outcomes", json={"outcomes": [{**lease, "outcome": "done"}]}).json()
    assert not other["items"][0]["ok"], "a lease is ended through its own queue only"


def test_a_claim_waits_for_work(client: Any) -> None:
    assert client.post("/v1/queues/q/claims", json={}).json()["items"] == []
    put(client, "q", 1, delay="300ms")
    [held] = client.post("/v1/queues/q/claims", params={"wait": 10}, json={}).json()["items"]
    assert held["value"] == 1
    assert held["due"] > held["created"]


def test_what_python_handles_http_put(client: Any, queues: QueueStore) -> None:
    seen = []
    queues.queue("q").add_handler(seen.append)
    put(client, "q", {"n": 1})
    Worker(queues).drain()
    assert seen == [{"n": 1}]


def test_locks(client: Any, queues: QueueStore) -> None:
    put(client, "q", 1)
    assert client.put("/v1/queues/q/locks/ann", json={"reason": "repair"}).json()["reason"] == "repair"
    assert client.post("/v1/queues/q/claims", json={}).json()["items"] == []
    [lock] = client.get("/v1/locks").json()["items"]
    assert (lock["queue"], lock["holder"]) == ("q", "ann")
    assert client.delete("/v1/queues/q/locks/ann").status_code == 204
    assert client.delete("/v1/queues/q/locks/ann").status_code == 404
    assert len(client.post("/v1/queues/q/claims", json={}).json()["items"]) == 1


def test_definition(client: Any, queues: QueueStore) -> None:
    assert client.patch("/v1/queues/strict", json={"fifo": True}).json()["fifo"] is True
    put(client, "strict", 1)
    answer = client.patch("/v1/queues/strict", json={"fifo": False})
    assert (answer.status_code, answer.headers["content-type"]) == (409, "application/problem+json")
    assert client.patch("/v1/queues/strict", json={"rate": "nonsense"}).status_code == 400


def test_an_entry_that_ends_while_it_is_changed_was_changed(
    client: Any, queues: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = put(client, "q", 1)["id"]
    get = Queue.get

    def ended(queue: Queue[Any], id: str) -> Any:
        queue.cancel(id)  # somebody else is faster
        return get(queue, id)

    monkeypatch.setattr(Queue, "get", ended)
    assert client.patch(f"/v1/queues/q/entries/{id_}", json={"priority": 5}).status_code == 204


def test_schedules(client: Any) -> None:
    body = {"queue": "q", "value": {"n": 1}, "cron": "0 8 * * *", "zone": "Europe/Zurich"}
    assert client.put("/v1/schedules/daily", json=body).json()["spec"] == "cron:0 8 * * *"
    assert client.put("/v1/schedules/daily", json={**body, "cron": "0 9 * * *"}).status_code == 409
    assert [one["name"] for one in client.get("/v1/schedules").json()["items"]] == ["daily"]
    assert client.put("/v1/schedules/bad", json={**body, "cron": "nonsense"}).status_code == 400
    often = client.put("/v1/schedules/bad", json={"queue": "q", "every": "1ms"})
    assert (often.status_code, "too often" in often.text) == (400, True)
    assert client.delete("/v1/schedules/daily").status_code == 204
    assert client.delete("/v1/schedules/daily").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/queues/nope", None, 404),
        ("GET", "/v1/queues/nope/entries", None, 404),
        ("GET", "/v1/queues/no%20pe", None, 422),
        ("GET", "/v1/queues/a..b", None, 400),
        ("GET", "/nowhere", None, 404),
        ("TRACE", "/v1/queues", None, 405),
        ("POST", "/v1/queues/q/entries", {"value": 1, "prioritty": 2}, 422),
        ("POST", "/v1/queues/q/entries", {"value": 1, "delay": "soon"}, 400),
        ("POST", "/v1/queues/q/entries", {"value": 1, "due": "2026-01-01T00:00:00"}, 400),
        ("POST", "/v1/queues/q/entries", {"value": "x" * 300_000}, 413),
        ("POST", "/v1/queues/q/entries", {"value": "x" * 3_000_000}, 413),
        ("POST", "/v1/queues/q/entries", {"value": 1, "due": "0001-01-01T00:00:00+23:59"}, 400),
        ("POST", "/v1/queues/q/entries", {"value": 1, "due": "9999-12-31T23:59:59-23:59"}, 400),
        ("PATCH", "/v1/queues/q", {"rate": "99999999999999999999999/s"}, 400),
        ("PATCH", "/v1/queues/q", {"rate": "9" * 50 + "/s"}, 400),
        ("PATCH", "/v1/queues/q", {"in_flight": {"a": 10**30}}, 400),
        ("GET", "/v1/queues?limit=5000", None, 422),
    ],
)
def test_bad_input_is_a_problem(client: Any, method: str, path: str, body: Any, status: int) -> None:
    answer = client.request(method, path, json=body) if body is not None else client.request(method, path)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert problem["detail"]


@pytest.mark.parametrize(
    ("sent", "hint"),
    [
        ({"content": b'{"value": 1}'}, "content-type: application/json"),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, "one JSON document"),
        ({"json": {"to": "ann"}}, '{"value": ...}'),
        ({"json": {"value": 1, "priority": "high"}}, "/openapi.json"),
    ],
)
def test_a_wrong_form_is_told_with_the_right_one(client: Any, sent: dict[str, Any], hint: str) -> None:
    answer = client.post("/v1/queues/q/entries", **sent)
    assert answer.status_code == 422
    assert answer.json()["type"] == "urn:penstock:problem:wrong-form"
    assert hint in answer.json()["hint"]


def test_no_json_at_all(client: Any) -> None:
    answer = client.post("/v1/queues/q/entries", content=b"{", headers={"content-type": "application/json"})
    assert answer.status_code == 422


@pytest.mark.parametrize("routes", [None, "{}"], ids=["plain", "taking in only"])
def test_a_service_takes_back_leases_and_fires_schedules(serving: Any, tmp_path: Path, routes: str | None) -> None:
    if routes is not None:
        (tmp_path / "routes.json").write_text(routes)
    client = serving(lease="1s", routes=None if routes is None else tmp_path / "routes.json", deliver=False)
    put(client, "q", 1)
    assert client.post("/v1/queues/q/claims", json={"lease": "100ms"}).json()["items"]
    again = client.post("/v1/queues/q/claims", params={"wait": 15}, json={}).json()["items"]
    assert [one["attempt"] for one in again] == [2]
    assert client.put("/v1/schedules/often", json={"queue": "often", "every": "200ms", "value": 7}).status_code == 200
    assert client.post("/v1/queues/often/claims", params={"wait": 15}, json={}).json()["items"][0]["value"] == 7


def test_locks_come_in_pages(client: Any, queues: QueueStore) -> None:
    wanted = [(f"q{number}", holder) for number in range(3) for holder in ("ann", "bob")]
    for name, holder in reversed(wanted):
        queues.driver.lock(name, holder, "x")
    found, after = [], ""
    while after is not None:
        page = client.get("/v1/locks", params={"limit": 4, "after": after}).json()
        assert len(page["items"]) <= 4
        found += [(one["queue"], one["holder"]) for one in page["items"]]
        after = page["next"]
    assert found == wanted


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/breaker/settings", b'{"circuits": {"\\ud800": {}}}'),
        ("/v1/breaker/config", b'{"\\ud800": 1}'),
        ("/v1/queues/q/locks/ann", b'{"\\ud800": 1}'),
        ("/v1/schedules/often", b'{"queue": "q", "value": "\\ud800", "every": "1h"}'),
    ],
)
def test_what_is_no_unicode_is_told_and_not_stored(client: Any, path: str, body: bytes) -> None:
    answer = client.put(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code in {400, 422}, answer.text
    assert answer.json()["detail"]


def test_a_failed_attempt_is_answered_with_its_traceback(client: Any, queues: QueueStore) -> None:
    queue = queues.queue("q", str)

    def send_the_mail(mail: str) -> None:
        raise ConnectionError("nobody there")

    queue.add_handler(send_the_mail, retry=Retry(attempts=1))
    queue.put("x")
    Worker(queues).drain()
    [row] = client.get("/v1/queues/q/history").json()["items"]
    [letter] = client.get("/v1/queues/q/dead").json()["items"]
    for shown in (row, letter):
        assert shown["error"] == "ConnectionError: nobody there"
        assert "in send_the_mail" in shown["traceback"]


def test_the_history_shows_what_each_attempt_saw(client: Any, queues: QueueStore) -> None:
    queue = queues.queue("q", str)
    id_ = queue.put("first").id
    for value, outcome in (("second", "retry"), ("third", "dead")):
        [held] = client.post("/v1/queues/q/claims", json={}).json()["items"]
        ended = {"id": id_, "token": held["token"], "outcome": outcome, "error": "no"}
        client.post("/v1/queues/q/outcomes", json={"outcomes": [ended]})
        if outcome == "retry":
            queue.update(id_, value)
    shown = client.get("/v1/queues/q/history").json()["items"]
    assert [(row["value"], row["gap"]) for row in shown] == [("first", None), ("second", None)]
    queue.purge_dead()
    shown = client.get("/v1/queues/q/history").json()["items"]
    assert [(row["value"], row["gap"]) for row in shown] == [(None, "removed")] * 2


def test_the_trace_of_a_request_goes_with_what_it_puts(client: Any, queues: QueueStore, logs: Any) -> None:
    trace = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=b"}
    bodies = [{"value": 1}, {"value": 2, "headers": {"traceparent": "mine", "more": "1"}}]
    for body in bodies:
        assert client.post("/v1/queues/q/entries", json=body, headers=trace).status_code == 201
    assert client.post("/v1/queues/q/entries/bulk", json={"entries": bodies}, headers=trace).status_code == 201
    assert client.post("/v1/queues/q/entries", json={"value": 3}, headers={"tracestate": "a=b"}).status_code == 201
    given = {"traceparent": "mine", "more": "1"}
    assert [entry.headers for entry in queues.queue("q").find()] == [trace, given, trace, given, {}]
    logs.create("clicks", 1)
    records = {"records": [{"value": 1}, {"value": 2, "headers": {"traceparent": "mine"}}]}
    assert client.post("/v1/logs/clicks/records", json=records, headers=trace).status_code == 201
    named = [dict(record.headers) for record in logs.log("clicks").records(0)]
    assert named == [trace, {"traceparent": "mine"}]

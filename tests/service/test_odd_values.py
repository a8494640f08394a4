"""Odd values at every place of every request, on every store: wrong input is the caller's fault, never the service's.

And whatever was taken in can be shown: every list is read at the end.
"""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from tests.store_urls import STORES

from penstock import open_logs, open_queues
from penstock.service import ServiceSettings, create_app

KINDS = ["memory", "sqlite", "postgres", "mysql", "redis", "zookeeper"]
JSON = {"content-type": "application/json"}
LATE = "2030-01-31T12:00:00Z"


def nested(depth: int, *, objects: bool = False) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if objects else [value]
    return value


class Raw:
    """JSON, or nearly, that Python's own writer would not write."""

    def __init__(self, text: str) -> None:
        self.text = text


ODD: list[Any] = [
    None, True, 0, -1, 2**31, 2**63, 10**30, -(2**63) - 1, 1e308, "", "\0", "a\0b", "\ud800",
    "\u20ac" * 300, "x" * 5000, "99999999999d", "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00", "2030-01-31T12:00:00", "a\nb", [], {},
    ["\ud800"], {"": ""},
    {"\0": "\0"}, {"\ud800": 1}, {"a": "\ud800"}, nested(255), nested(256), nested(300, objects=True), Raw("NaN"),
    Raw("1e999"), Raw("9" * 5000), Raw("[" * 5000 + "]" * 5000), Raw('"\\ud800'), Raw("\xff"),
]  # fmt: skip
ODD_TEXT = [
    "%00", "a%00b", "%0a", "%2e%2e", "%ff", "%ed%a0%80", "x" * 300, "%25", "x%20y", "%F0%9F%98%80", "0", "-1", "1e3",
    "1.5", "9" * 30, str(2**31), str(2**63), "true", "2030-01-31T12:00:00", "0001-01-01T00:00:00%2b14:00", "a%3Db%00",
    "%27", "*", "", "nan", "inf",
]  # fmt: skip

NINE = {
    "circuitCheckEnabled": True, "statisticsUpdateEnabled": True, "errorThresholdPercentage": 90,
    "entriesMaxAgeMS": 86400000, "minQueueSampleCount": 100, "maxQueueSampleCount": 5000,
    "openToHalfOpen": {"enabled": True, "interval": 120000},
    "unlockQueues": {"enabled": True, "interval": 10000}, "unlockSampleQueues": {"enabled": True, "interval": 120000},
}  # fmt: skip
ENTRY = {
    "value": {"a": [1]}, "delay": "1s", "priority": 1, "unique": "u", "unique_period": "1s", "on_conflict": "keep",
    "labels": {"customer": "ann"}, "headers": {"trace": "1"}, "expires": "1h", "id": "one",
}  # fmt: skip
BODIES: list[tuple[str, str, Any]] = [
    ("PATCH", "/v1/queues/q", {"fifo": False, "rate": "100/s", "in_flight": {"customer": 2}}),
    ("POST", "/v1/queues/q/entries", ENTRY),
    ("POST", "/v1/queues/q/entries", {"value": 1, "due": LATE}),
    ("POST", "/v1/queues/b/entries", {"bytes": "YWJj"}),
    ("POST", "/v1/queues/q/entries/bulk", {"entries": [{"value": 1}, {"value": 2, "labels": {"a": "b"}}]}),
    ("PATCH", "/v1/queues/q/entries/ID", {"value": 1, "labels": {"a": "b"}, "priority": 3}),
    ("PATCH", "/v1/queues/q/entries/ID", {"due": LATE}),
    ("PATCH", "/v1/queues/q/entries/ID", {"delay": "1s"}),
    ("POST", "/v1/queues/q/cancel", {"ids": ["ID"]}),
    ("POST", "/v1/queues/q/replay", {"ids": ["ID"]}),
    ("PUT", "/v1/queues/q/locks/ann", {"reason": "why"}),
    ("POST", "/v1/queues/q/claims", {"limit": 1, "lease": "1s", "attempts": 3, "owner": "ann"}),
    ("POST", "/v1/queues/q/outcomes", {
        "outcomes": [{"id": "ID", "token": "1-a", "outcome": "retry", "delay": "1s", "error": "no"}]}),
    ("POST", "/v1/queues/q/extend", {"leases": [{"id": "ID", "token": "1-a"}], "lease": "1s"}),
    ("PUT", "/v1/schedules/s", {
        "queue": "q", "value": 1, "every": "1h", "zone": "UTC", "version": 1, "catch_up": "one", "labels": {"a": "b"},
        "priority": 1}),
    ("PUT", "/v1/schedules/c", {"queue": "q", "cron": "0 8 * * *"}),
    ("PUT", "/v1/logs/new", {"partitions": 1, "retention_age": "4d"}),
    ("POST", "/v1/logs/log/records", {"records": [{"value": 1, "key": "k", "headers": {"a": "b"}}]}),
    ("POST", "/v1/logs/log/records", {"records": [{"value": 1}], "partition": 0}),
    ("PUT", "/v1/logs/log/groups/g", {"offsets": {"0": 1}}),
    ("PUT", "/v1/logs/log/groups/g", {"time": LATE}),
    ("PUT", "/v1/circuits/x/state", {"state": "open", "why": "test"}),
    ("PUT", "/v1/breaker/config", NINE),
    ("PUT", "/v1/breaker/settings", {
        "statistics": "distinct", "locking": "lazy", "probes": 1, "successes": 1, "permit_ms": 1000, "ramp_up": False,
        "log_payload": True, "circuits": {"x": {"errorThresholdPercentage": 50, "minQueueSampleCount": 1}}}),
    ("PUT", "/playground/server/queuecircuitbreaker/circuit/x/status", {"status": "closed"}),
    ("PUT", "/queuing/enqueue/a/", {"method": "PUT", "uri": "/crm/1", "headers": [["a", "b"]], "payloadString": "x"}),
    ("PUT", "/queuing/queues/a/0", {"method": "PUT", "uri": "/crm/1", "headers": [["a", "b"]], "payloadObject": {}}),
    ("POST", "/queuing/queues/a/", {"method": "PUT", "uri": "/crm/1", "headers": [], "payload": "YQ=="}),
    ("POST", "/queuing/queues?bulkDelete", {"queues": ["x"]}),
    ("POST", "/queuing/locks", {"locks": ["a"]}),
    ("POST", "/queuing/configuration", {"processorDelayMax": 0}),
]  # fmt: skip
# What the OpenAPI does not describe, or describes as a text that has parts of its own.
ADDRESSES = [
    ("GET", "/v1/queues/q/entries?label=a={}"), ("GET", "/v1/queues/q/history?label=a={}"),
    ("GET", "/v1/queues/q/dead?label=a={}"), ("DELETE", "/v1/queues/q/dead?before=2000-01-01T00:00:00Z&label=a={}"),
    ("GET", "/{}"), ("PUT", "/{}"), ("PUT", "/crm/{}"),
    ("GET", "/playground/server/queuecircuitbreaker/circuit/{}"),
    ("GET", "/playground/server/queuecircuitbreaker/circuit/{}/status"),
    ("GET", "/queuing/queues/{}"), ("GET", "/queuing/queues/{}/0"), ("GET", "/queuing/queues/a/{}"),
    ("GET", "/queuing/queues?filter={}"), ("GET", "/queuing/monitor?limit={}"), ("GET", "/queuing/locks/{}"),
    ("PUT", "/queuing/locks/{}"), ("DELETE", "/queuing/queues/{}"), ("DELETE", "/queuing/locks/{}"),
    ("GET", "/ui/queues/{}"), ("GET", "/ui/queues/q?after={}"), ("GET", "/ui/queues/q?tab=history&after={}"),
    ("GET", "/ui/queues/q?label={}"), ("GET", "/ui/queues/q/entries/{}"), ("GET", "/ui/find?q={}"),
    ("GET", "/ui/logs/log?partition={}"), ("GET", "/ui/logs/log?offset={}"), ("GET", "/ui/logs/{}"),
]  # fmt: skip
NAMED = {"queue": "q", "log": "log", "group": "g", "name": "s", "holder": "ann", "circuit": "x", "id": "ID"}
LISTS = [
    "/v1/queues", "/v1/queues/q/entries", "/v1/queues/b/entries", "/v1/queues/q/dead", "/v1/queues/q/history",
    "/v1/locks",
    "/v1/schedules", "/v1/logs", "/v1/logs/log/records", "/v1/circuits", "/v1/breaker/changes", "/v1/breaker/settings",
    "/v1/breaker/config", "/metrics", "/playground/server/queuecircuitbreaker/circuit", "/queuing/queues",
    "/queuing/queues/a", "/queuing/queues/a/0", "/queuing/locks", "/queuing/statistics",
]  # fmt: skip


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, tmp_path: Path, servers: Any) -> Iterator[TestClient]:
    place = STORES[request.param](tmp_path, servers)
    (tmp_path / "routes.json").write_text('{"/crm/(.*)": "http://127.0.0.1:9/$1"}')
    with open_queues(place.url) as queues, open_logs(f"file://{tmp_path}/logs?durability=fast") as logs:
        logs.create("log", 1)
        logs.log("log").append({"n": 1})
        settings = ServiceSettings(
            queues=queues.name, routes=tmp_path / "routes.json", deliver=False, redisques="/queuing"
        )
        with TestClient(
            create_app(settings, queues, logs), "http://127.0.0.1", raise_server_exceptions=False
        ) as client:
            yield client


@pytest.mark.timeout(300)
def test_odd_values_in_bodies(client: TestClient) -> None:
    id_ = client.post("/v1/queues/q/entries", json={"value": 1, "delay": "1h"}).json()["id"]
    wrong = []
    for method, path, body in BODIES:
        good = json.loads(json.dumps(body).replace("ID", id_))
        for place in _places(good):
            for odd in ODD:
                text = _written(good, place, odd)
                answer = client.request(method, path.replace("ID", id_), content=text, headers=JSON)
                if answer.status_code >= 500:
                    wrong.append(f"{answer.status_code} {method} {path} {text[:120]!r}: {answer.text[:200]}")
    assert not wrong, "\n".join(wrong)
    _read_all(client)


@pytest.mark.timeout(300)
def test_odd_values_in_addresses_and_headers(client: TestClient) -> None:
    id_ = client.post("/v1/queues/q/entries", json={"value": 1}).json()["id"]
    described = list(_described(client.get("/openapi.json").json()["paths"]))
    assert len(described) > 80
    wrong = []
    for method, address in [*described, *ADDRESSES]:
        for odd in ODD_TEXT:
            if "signals" in address or (odd.isdecimal() and "wait" in address):
                continue  # they wait for something
            path = address.replace("ID", id_).replace("{}", odd)
            body = _good_body(method, address, id_)
            answer = client.request(method, path, content=None if method == "GET" else body, headers=JSON)
            if answer.status_code >= 500:
                wrong.append(f"{answer.status_code} {method} {path}: {answer.text[:200]}")
    for name in ("idempotency-key", "x-queue", "content-type", "authorization", "x-expire-after", "x-duplicate-check"):
        for value in ("", "\x7f", "\xff\xfe", "9" * 40, "-1", "x" * 5000, "a b", "..", "/", "%00"):
            headers = {**JSON, name.encode(): value.encode("latin-1")}  # type: ignore[dict-item]
            for method, path in (("POST", "/v1/queues/q/entries"), ("PUT", "/crm/x")):
                more = {} if name == "x-queue" else {"x-queue": "a"}
                answer = client.request(method, path, content=b'{"value": 1}', headers={**headers, **more})
                if answer.status_code >= 500:
                    wrong.append(f"{answer.status_code} {method} {path} {name}: {value!r}: {answer.text[:200]}")
    assert not wrong, "\n".join(wrong)
    _read_all(client)


def _described(paths: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every operation of the OpenAPI, once for each of its parameters in the address, with {} in the place of that."""
    for path, operations in paths.items():
        for method, operation in operations.items():
            for parameter in operation.get("parameters", ()):
                name = parameter["name"]
                odd = {name: "{}"} if parameter["in"] == "path" else {}
                address = re.sub(r"\{(\w+)\}", lambda match, odd=odd: {**NAMED, **odd}[match[1]], path)
                if parameter["in"] != "header":
                    yield method.upper(), address if odd else f"{address}?{name}={{}}"


def _good_body(method: str, address: str, id_: str) -> bytes:
    """A body that is right for the address, so that a request gets as far as the store."""
    path = address.partition("?")[0].split("/")
    for known_method, known, body in BODIES:
        parts = known.partition("?")[0].split("/")
        if method == known_method and len(parts) == len(path):
            fitting = all(part == given or "{}" in (part, given) for part, given in zip(parts, path, strict=True))
            if fitting:
                return json.dumps(body).replace("ID", id_).encode()
    return b"{}"


def _places(body: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside, the whole first."""
    yield at
    inside = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, value in inside:
        yield from _places(value, (*at, key))


def _written(body: Any, place: tuple[Any, ...], odd: Any) -> bytes:
    """A body with an odd value in the place of a good one."""
    body = deepcopy(body)
    mark = "put the odd value here"
    if place:
        *way, last = place
        inner = body
        for key in way:
            inner = inner[key]
        inner[last] = mark
    else:
        body = mark
    text = odd.text if isinstance(odd, Raw) else json.dumps(odd)
    return json.dumps(body).replace(json.dumps(mark), text).encode("latin-1", "replace")


def _read_all(client: TestClient) -> None:
    """Every list can be read to its end, and everything can be claimed."""
    for path in LISTS:
        after: Any = ""
        for _ in range(200):
            more = f"{'&' if '?' in path else '?'}limit=100"
            if after:
                more += f"&{'start' if path.endswith('/records') else 'after'}={after}"
            answer = client.get(path + more)
            assert answer.status_code in (200, 404), f"{path}: {answer.text[:300]}"
            page = answer.json() if "json" in answer.headers["content-type"] else {}
            following = page.get("next")
            if following in (None, after) or not page["items"]:
                break
            after = following
    for queue in ("q", "b"):
        assert client.post(f"/v1/queues/{queue}/claims", json={"limit": 1000}).status_code == 200

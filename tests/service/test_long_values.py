"""Long values that look like something for a while: no request takes the time of the others."""

import base64
import time
from typing import Any

import pytest

JSON = {"content-type": "application/json"}
SOON = 3.0  # seconds; where a text was looked at again and again, these took ten times as long

LONG = {
    "digits": "9" * 30_000 + "x",
    "digits and underscores": "9_" * 15_000 + "x",
    "blanks": "+" * 30_000 + "x",
}  # fmt: skip


@pytest.mark.parametrize("text", LONG.values(), ids=list(LONG))
def test_a_long_text_in_the_place_of_a_time(client: Any, text: str) -> None:
    client.post("/v1/queues/q/entries", json={"value": 1})
    began = time.monotonic()
    answers = [
        client.get(f"/v1/queues/q/history?since={text}"),
        client.post("/v1/queues/q/entries", json={"value": 1, "due": text.replace("+", " ")}),
    ]
    assert [answer.status_code for answer in answers] == [422, 422]
    assert time.monotonic() - began < SOON


def test_bytes_that_begin_a_text_and_never_end_it(client: Any) -> None:
    payload = b'"' + b'a\\"' * 40_000 + b"[" * 300
    client.put("/v1/logs/raw", json={"partitions": 1})
    body = {"records": [{"bytes": base64.b64encode(payload).decode()}]}
    assert client.post("/v1/logs/raw/records", json=body).status_code == 201
    began = time.monotonic()
    [record] = client.get("/v1/logs/raw/records").json()["items"]
    assert base64.b64decode(record["bytes"]) == payload
    assert time.monotonic() - began < SOON


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("PUT", "/v1/logs/log/groups/g", "offsets"),
        ("POST", "/v1/queues/q/entries", "labels"),
        ("PATCH", "/v1/queues/q", "in_flight"),
    ],
)
def test_more_names_than_anybody_needs(client: Any, method: str, path: str, field: str) -> None:
    client.put("/v1/logs/log", json={"partitions": 1})
    names = ",".join(f'"{number}":[]' for number in range(150_000))
    answer = client.request(method, path, content=f'{{"{field}":{{{names}}}}}', headers=JSON)
    assert answer.status_code == 422
    assert [error["what"] for error in answer.json()["errors"]] == [f"{field} has more than 10000 names"]


def test_a_value_may_have_as_many_names_as_fit(client: Any) -> None:
    value = dict.fromkeys(map(str, range(11_000)), 1)
    id_ = client.post("/v1/queues/q/entries", json={"value": value}).json()["id"]
    assert client.get(f"/v1/queues/q/entries/{id_}").json()["value"] == value


@pytest.mark.parametrize("text", ["a;" * 5_000, "a*" * 8_000], ids=["read for long", "refused in the end"])
def test_a_long_filter_is_refused(serving: Any, text: str) -> None:
    client = serving(redisques="/queuing")
    began = time.monotonic()
    answers = [client.get(f"/queuing/{path}", params={"filter": text}) for path in ("queues", "monitor", "locks")]
    assert {answer.status_code for answer in answers} == {400}
    assert "too long" in answers[0].text
    assert time.monotonic() - began < SOON
    assert client.get("/queuing/queues", params={"filter": "[[a]"}).status_code < 500, "Python warns of it"

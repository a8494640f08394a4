"""Long values that look like something for a while: no request takes the time of the others."""

import base64
import time
from typing import Any

import pytest

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

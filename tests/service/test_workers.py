"""Who works, and what workers did, over HTTP: within the reach of the key that asks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from starlette.testclient import TestClient

from penstock import QueueStore, Worker
from penstock.queue.protocol import DocumentWrite
from penstock.queue.worker.presence import Serving, WorkerRecord
from penstock.service.keys import new_key


@pytest.fixture
def busy(queues: QueueStore) -> QueueStore:
    """A store with one worker that lives, and figures of two handlers."""
    for name in ("mine.a", "yours.a"):
        queues.queue(name).add_handler(lambda _: None)
        queues.queue(name).put("x")
    worker = Worker(queues)
    worker.drain()
    worker.write_figures()
    serving = (Serving("mine.a", False, 1, 2), Serving("yours.a", False, 3, 4))
    record = WorkerRecord("n/1-x", "n", 1, "1.0", queues.now(), False, serving)
    queues.driver.write([DocumentWrite("penstock.worker.n.1-x", msgspec.json.encode(record))])
    return queues


def test_workers_and_figures_are_listed(busy: QueueStore, client: TestClient) -> None:
    [worker] = client.get("/v1/workers").json()["items"]
    assert (worker["owner"], worker["state"], worker["busy"], worker["slots"]) == ("n/1-x", "alive", 4, 6)
    figures = client.get("/v1/figures").json()
    assert [(one["queue"], one["done"]) for one in figures["items"]] == [("mine.a", 1), ("yours.a", 1)]
    [one] = client.get("/v1/figures", params={"queue": "yours.a", "minutes": 5}).json()["items"]
    assert sum(one["durations"]) == 1
    assert client.get("/v1/figures", params={"queue": "nobodys"}).json()["items"] == []
    assert client.get("/v1/figures", params={"minutes": 0}).status_code == 422


def test_a_key_sees_what_is_in_its_reach(busy: QueueStore, serving: Callable[..., TestClient], tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    mine = new_key(keys, "mine", ("read",), prefix="mine.")
    nobody = new_key(keys, "nobody", ("read",), prefix="nobody.")
    client = serving(keys=keys)
    assert client.get("/v1/workers").status_code == 401
    client.headers["authorization"] = f"Bearer {mine}"
    [worker] = client.get("/v1/workers").json()["items"]
    assert (worker["busy"], [one["queue"] for one in worker["serving"]]) == (1, ["mine.a"])
    assert {one["queue"] for one in client.get("/v1/figures").json()["items"]} == {"mine.a"}
    client.headers["authorization"] = f"Bearer {nobody}"
    assert client.get("/v1/workers").json()["items"] == []

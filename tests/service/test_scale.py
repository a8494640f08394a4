"""What an autoscaler is told: work that workers could do, and work that they are doing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import QueueStore
from penstock.service import new_key


@pytest.fixture
def filled(queues: QueueStore) -> QueueStore:
    queues.queue("mails", int).put_many(range(5))
    queues.queue("mails", int).put(9, delay="1h")
    queues.queue("customer.1", int).put_many(range(3))
    queues.queue("customer.2", int).put_many(range(2))
    queues.queue("customer.2", int).lock(reason="the mail server moves")
    return queues


def asked(client: Any, **names: Any) -> dict[str, Any]:
    answer = client.get("/v1/scale", params=names)
    assert answer.status_code == 200
    return answer.json()


def test_what_is_ready_and_what_is_running_count(client: Any, filled: QueueStore) -> None:
    assert asked(client, queue="mails")["backlog"] == 5
    with filled.unit() as unit:
        unit.take(filled.queue("mails", int), 5)
        said = asked(client, queue="mails")
        assert (said["backlog"], said["ready"], said["leased"]) == (5, 0, 5), "the last ones still run"
        unit.commit()
    said = asked(client, queue="mails")
    assert said == {"backlog": 0, "ready": 0, "leased": 0, "locked": 0, "wait_seconds": 0.0}, "delayed is not work yet"


def test_what_is_locked_does_not(client: Any, filled: QueueStore) -> None:
    said = asked(client, family="customer.")
    assert (said["backlog"], said["ready"], said["locked"]) == (3, 5, 2)
    assert asked(client, queue="customer.2")["wait_seconds"] == 0
    assert said["wait_seconds"] >= 0


def test_names_are_added_up_and_counted_once(client: Any, filled: QueueStore) -> None:
    assert asked(client, queue=["mails", "customer.1"], family="customer.")["backlog"] == 8
    assert asked(client)["backlog"] == 8
    assert asked(client, queue="nothing")["backlog"] == 0


def test_a_key_that_reads_its_prefix_is_enough(serving: Any, filled: QueueStore, tmp_path: Path) -> None:
    secret = new_key(tmp_path / "keys.json", "keda", ("read",), prefix="customer.")
    client = serving(keys=tmp_path / "keys.json")
    client.headers["authorization"] = f"Bearer {secret}"
    assert asked(client)["backlog"] == asked(client, family="c")["backlog"] == 3
    assert client.get("/v1/scale", params={"queue": "mails"}).status_code == 404
    del client.headers["authorization"]
    assert client.get("/v1/scale").status_code == 401


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 300])
def test_what_is_no_name_is_refused(client: Any, name: str) -> None:
    assert client.get("/v1/scale", params={"queue": name}).status_code == 422

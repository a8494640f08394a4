"""Held entries, batches and progress over HTTP and on the pages."""

from pathlib import Path
from typing import Any

import pytest
from tests.contract.queue.shorthand import end, take_one

from penstock import QueueStore
from penstock.queue.protocol import Find, NewResult
from penstock.queue.results import Progress, note_of
from penstock.service import new_key


def some_batch(queues: QueueStore) -> tuple[str, str]:
    work, then = queues.queue("work", int), queues.queue("then", str)
    with queues.batch(then=(then, "all"), on="ended") as batch:
        batch.put_many(work, [1, 2])
    end(queues, take_one(queues, "work"))
    [left] = work.find()
    return batch.id, left.id


def test_a_held_entry_says_whom_it_waits_for(client: Any, queues: QueueStore) -> None:
    batch, left = some_batch(queues)
    seen = client.get(f"/v1/queues/then/entries/{batch}").json()
    assert (seen["state"], seen["waits_for"]) == ("held", [f"waits for {left} of queue work to end: it is waiting"])
    assert client.get("/v1/queues/then").json()["held"] == 1
    assert [one["id"] for one in client.get("/v1/queues/then/entries?state=held").json()["items"]] == [batch]


def test_a_batch_is_shown(client: Any, queues: QueueStore) -> None:
    batch, _ = some_batch(queues)
    seen = client.get(f"/v1/batches/{batch}").json()
    assert (seen["state"], seen["needs"], seen["members"]) == ("held", 1, {"done": 1, "waiting": 1})
    assert client.get("/v1/batches/nothing").status_code == 404


def test_progress_is_shown(client: Any, queues: QueueStore) -> None:
    id_ = queues.queue("work").put(1).id
    entry = take_one(queues, "work")
    assert entry.lease is not None
    queues.driver.write([note_of(entry.lease, Progress(3, 10, "page 3"))])
    seen = client.get(f"/v1/queues/work/entries/{id_}").json()["progress"]
    assert (seen["done"], seen["total"], seen["text"]) == (3, 10, "page 3")
    assert "3 of 10: page 3" in client.get(f"/ui/queues/work/entries/{id_}").text


def test_the_page_of_an_ended_entry_shows_its_result(client: Any, queues: QueueStore) -> None:
    id_ = queues.queue("work").put(1).id
    end(queues, take_one(queues, "work"), result=NewResult(b'{"total": 4711}', "json", 60_000_000))
    page = client.get(f"/ui/queues/work/entries/{id_}").text
    assert "what its handler returned" in page
    assert "4711" in page


def test_the_pages_show_what_is_held_and_why(client: Any, queues: QueueStore) -> None:
    batch, left = some_batch(queues)
    page = client.get(f"/ui/queues/then/entries/{batch}").text
    assert "It is held" in page
    assert left in page
    tab = client.get("/ui/queues/then?tab=held").text
    assert batch in tab
    assert batch not in client.get("/ui/queues/then?tab=delayed").text
    assert 'penstock_queue_entries{queue="then",state="held"} 1' in client.get("/metrics").text


def test_a_key_for_other_queues_learns_nothing_of_a_batch(serving: Any, tmp_path: Path, queues: QueueStore) -> None:
    batch, _ = some_batch(queues)
    secret = new_key(tmp_path / "keys.json", "ann", ("read",), prefix="ann.")
    client = serving(keys=tmp_path / "keys.json")
    headers = {"Authorization": f"Bearer {secret}"}
    there, nowhere = (client.get(f"/v1/batches/{id_}", headers=headers) for id_ in (batch, "nothing"))
    assert there.status_code == nowhere.status_code == 404
    assert there.json()["detail"].replace(batch, "nothing") == nowhere.json()["detail"]


def test_a_result_is_read(client: Any, queues: QueueStore) -> None:
    id_ = queues.queue("work").put(1).id
    seen = client.get(f"/v1/queues/work/results/{id_}").json()
    assert seen == {"id": id_, "state": "waiting", "error": None, "available": False, "value": None}
    end(queues, take_one(queues, "work"), result=NewResult(b'{"total": null}', "json", 60_000_000))
    seen = client.get(f"/v1/queues/work/results/{id_}").json()
    assert (seen["state"], seen["available"], seen["value"]) == ("done", True, {"total": None})
    assert client.get("/v1/queues/work/results/nothing").status_code == 404
    assert client.get(f"/v1/queues/other/results/{id_}").status_code == 404


def test_entries_are_put_after_others_and_into_batches(client: Any, queues: QueueStore) -> None:
    batch, left = some_batch(queues)
    put = client.post("/v1/queues/then/entries", json={"value": "later", "after": [left], "on": "ended"})
    assert put.status_code == 201
    assert client.get(f"/v1/queues/then/entries/{put.json()['id']}").json()["state"] == "held"
    many = client.post("/v1/queues/work/entries/bulk", json={"entries": [{"value": 3, "batch": batch}] * 2})
    assert many.status_code == 201
    assert client.get(f"/v1/batches/{batch}").json()["needs"] == 3
    assert client.post("/v1/queues/work/entries", json={"value": 4, "batch": left}).status_code == 409
    assert client.post("/v1/queues/work/entries", json={"value": 4, "after": ["nothing"]}).status_code == 404
    assert client.post("/v1/queues/work/entries", json={"value": 4, "after": left}).status_code == 422
    body, headers = {"value": 5, "batch": batch}, {"Idempotency-Key": "once"}
    repeated = [client.post("/v1/queues/work/entries", json=body, headers=headers).json()["id"] for _ in range(2)]
    assert repeated[0] == repeated[1]
    assert client.get(f"/v1/batches/{batch}").json()["needs"] == 4


def test_a_key_waits_for_nothing_that_it_does_not_see(serving: Any, tmp_path: Path, queues: QueueStore) -> None:
    batch, left = some_batch(queues)
    secret = new_key(tmp_path / "keys.json", "ann", ("read", "produce"), prefix="ann.")
    client = serving(keys=tmp_path / "keys.json")
    client.headers["Authorization"] = f"Bearer {secret}"
    for links in ({"after": [left]}, {"batch": batch}):
        there = client.post("/v1/queues/ann.work/entries", json={"value": 1, **links})
        nowhere = client.post("/v1/queues/ann.work/entries", json={"value": 1, **_unknown(links)})
        assert there.status_code == nowhere.status_code == 404
        assert there.json()["detail"].replace(left, "nothing").replace(batch, "nothing") == nowhere.json()["detail"]
    assert client.post("/v1/queues/ann.work/entries", json={"value": 1, "id": "own"}).status_code == 201
    after = client.post("/v1/queues/ann.work/entries", json={"value": 2, "after": ["own"]})
    assert client.get(f"/v1/queues/ann.work/entries/{after.json()['id']}").json()["state"] == "held"


def _unknown(links: dict[str, Any]) -> dict[str, Any]:
    return {name: ["nothing"] if isinstance(value, list) else "nothing" for name, value in links.items()}


@pytest.fixture
def ann(serving: Any, tmp_path: Path) -> Any:
    """A client whose key has a prefix."""
    secret = new_key(tmp_path / "keys.json", "ann", ("read", "produce"), prefix="ann.")
    client = serving(keys=tmp_path / "keys.json")
    client.headers["Authorization"] = f"Bearer {secret}"
    return client


def test_a_batch_is_shown_under_the_id_that_a_key_with_a_prefix_gave_it(ann: Any) -> None:
    first = ann.post("/v1/queues/ann.q/entries", json={"value": 1, "id": "first"})
    then = ann.post("/v1/queues/ann.q/entries", json={"value": 2, "id": "then", "after": ["first"]})
    assert first.status_code == then.status_code == 201
    for id_ in ("then", then.json()["id"]):
        seen = ann.get(f"/v1/batches/{id_}").json()
        assert (seen.get("id"), seen.get("needs")) == (then.json()["id"], 1)
    assert ann.get("/v1/batches/nothing").json()["detail"] == "no batch 'nothing' is known."


def test_entries_that_a_key_with_a_prefix_puts_together_wait_for_each_other(ann: Any, queues: QueueStore) -> None:
    other = queues.queue("ann.q").put(0, id="first").id  # of somebody without a prefix
    together = [{"value": 1, "id": "first"}, {"value": 2, "id": "then", "after": ["first"]}]
    put = ann.post("/v1/queues/ann.q/entries/bulk", json={"entries": together})
    assert put.status_code == 201, put.text
    first, then = (one["id"] for one in put.json()["items"])
    assert first != other
    [waits] = queues.driver.waits([then])
    assert [known.id for known in queues.driver.find(Find(ids=(then,)))] == [then]
    end(queues, take_one(queues, "ann.q"))
    assert queues.driver.find(Find(ids=(then,)))[0].state == "held", "what was waited for is not the other one"
    end(queues, take_one(queues, "ann.q"))
    assert queues.driver.find(Find(ids=(then,)))[0].state == "waiting"
    assert waits.needs == 1
    alone = ann.post("/v1/queues/ann.q/entries", json={"value": 3, "id": "alone", "after": ["alone"]})
    assert (alone.status_code, alone.json()["type"]) == (400, "urn:penstock:problem:bad-input")

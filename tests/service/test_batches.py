"""Held entries, batches and progress over HTTP and on the pages."""

from pathlib import Path
from typing import Any

from tests.contract.queue.asking import end, take_one

from penstock import QueueStore
from penstock.queue.protocol import NewResult
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

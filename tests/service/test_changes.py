"""Who changed what by hand, over HTTP: within the reach of the key that asks."""

from collections.abc import Callable
from pathlib import Path

from starlette.testclient import TestClient

from penstock import QueueStore
from penstock.queue.changes import Change, record_change
from penstock.service.keys import new_key


def test_changes_are_listed_to_whom_they_concern(
    queues: QueueStore, serving: Callable[..., TestClient], tmp_path: Path
) -> None:
    for target in ("mine.a", "yours.a", "mine.b"):
        record_change(queues, Change("ann@host", "lock", target, "open", "locked", "a deploy"))
    keys = tmp_path / "keys.json"
    everybody, mine = new_key(keys, "all", ("read",)), new_key(keys, "mine", ("read",), prefix="mine.")
    client = serving(keys=keys)
    assert client.get("/v1/changes").status_code == 401
    client.headers["authorization"] = f"Bearer {everybody}"
    changes = client.get("/v1/changes").json()["items"]
    assert sorted(change["target"] for change in changes) == ["mine.a", "mine.b", "yours.a"]
    assert (changes[0]["by"], changes[0]["did"], changes[0]["why"]) == ("ann@host", "lock", "a deploy")
    assert [change["at"] for change in changes] == sorted((change["at"] for change in changes), reverse=True)
    assert len(client.get("/v1/changes", params={"limit": 2}).json()["items"]) == 2
    client.headers["authorization"] = f"Bearer {mine}"
    seen = client.get("/v1/changes").json()["items"]
    assert sorted(change["target"] for change in seen) == ["mine.a", "mine.b"]
    assert client.get("/v1/changes", params={"target": "yours.a"}).json()["items"] == []
    assert len(client.get("/v1/changes", params={"target": "mine.b"}).json()["items"]) == 1

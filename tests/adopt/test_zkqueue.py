"""ZkQueue's documented layout in a real ZooKeeper, taken over; its code is not public."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.store_urls import Place, Servers

from penstock import QueueStore, Worker
from penstock.ids import new_nonce

Open = Callable[[str], QueueStore]
Zookeeper = tuple[str, Any]


@pytest.fixture
def zookeeper(servers: Servers) -> Iterator[Zookeeper]:
    """A root of its own with two queues, as the documentation draws them: its URL, and a client chrooted there."""
    from kazoo.client import KazooClient

    server, root = servers("zookeeper"), f"/zms{new_nonce()}"
    with_root = KazooClient(f"127.0.0.1:{server.port}")
    with_root.start()
    with_root.ensure_path(root)
    with_root.stop()
    with_root.close()
    client = KazooClient(f"127.0.0.1:{server.port}{root}")
    client.start()
    for folder in ("items", "locks", "meta", "dlq"):
        client.ensure_path(f"/mails/{folder}")
        client.ensure_path(f"/other queue/{folder}")
    for text in ("Hello, ann", '{"to": "bob"}', "Hello, ünal"):
        client.create("/mails/items/item-", text.encode(), sequence=True)
    client.create("/mails/meta/meta-0000000001", b"2")
    client.create("/mails/meta/meta-0000000002", b"\xac\xed something else")
    client.create("/mails/dlq/item-0000000042", b"rejected")
    yield f"zookeeper://127.0.0.1:{server.port}{root}", client
    client.stop()
    client.close()


def znodes(client: Any, path: str = "") -> dict[str, tuple[bytes, int]]:
    data, stat = client.get(path or "/")
    found = {path or "/": (data, stat.mzxid)}
    for name in client.get_children(path or "/"):
        found |= znodes(client, f"{path}/{name}")
    return found


def test_every_store_takes_it_over_with_equal_counts_and_checksums(
    zookeeper: Zookeeper, any_target: Place, adopt: Any, opened: Open
) -> None:
    url, client = zookeeper
    before = znodes(client)
    [plan] = adopt("zkqueue", url, "--to", any_target.url, "--json", code=4).json()["queues"]
    assert (plan["queue"], plan["ready"], plan["retrying"], plan["dead"]) == ("mails", 1, 2, 1)
    assert adopt("zkqueue", url, "--to", any_target.url, "--yes", "--json").json()["carried"] == 4
    assert znodes(client) == before
    store = opened(any_target.url)
    entries = store.queue("mails").find()
    assert [one.payload.decode() for one in entries] == ["Hello, ann", '{"to": "bob"}', "Hello, ünal"]
    assert [(one.attempt, one.codec) for one in entries] == [(0, "bytes"), (2, "json"), (1, "bytes")]
    assert entries[0].created_us == client.get("/mails/items/item-0000000000")[1].ctime * 1000
    assert entries[2].headers["zkqueue_item"] == "0000000002"
    [dead] = store.queue("mails").dead()
    assert (dead.payload, dead.error) == (b"rejected", "rejected by ZkQueue's redelivery policy")
    assert "nothing was carried again" in adopt("zkqueue", url, "--to", any_target.url, "--yes").out


def test_workers_handle_what_was_taken_over(zookeeper: Zookeeper, target: str, adopt: Any, opened: Open) -> None:
    url, client = zookeeper
    client.delete("/mails/items/item-0000000001")
    adopt("zkqueue", url, "--to", target, "--yes")
    store, seen = opened(target), []
    store.queue("mails", bytes).add_handler(seen.append)
    Worker(store).drain()
    assert seen == [b"Hello, ann", "Hello, ünal".encode()]


def test_an_item_that_a_consumer_holds_stops_it(zookeeper: Zookeeper, target: str, adopt: Any) -> None:
    url, client = zookeeper
    client.create("/mails/locks/lock-0000000001", ephemeral=True)
    assert "Somebody still works there" in adopt("zkqueue", url, "--to", target, code=4).out
    refused = adopt("zkqueue", url, "--to", target, "--yes", code=2)
    assert "locks/lock-0000000001 is held by a session" in refused.err
    client.delete("/mails/locks/lock-0000000001")
    adopt("zkqueue", url, "--to", target, "--yes")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/strange", "it has nothing below it"),
        ("/mails/other", "it has dlq, items, locks, meta, other below it"),
        ("/mails/items/thing-0000000001", "its name is another one"),
        ("/mails/meta/meta-1", "its name is another one"),
    ],
)
def test_znodes_that_are_not_what_is_documented_are_refused(
    zookeeper: Zookeeper, target: str, adopt: Any, path: str, said: str
) -> None:
    url, client = zookeeper
    client.create(path)
    refused = adopt("zkqueue", url, "--to", target, code=2)
    assert said in refused.err
    assert "nothing was changed" in refused.err


def test_nothing_and_nobody_there(zookeeper: Zookeeper, target: str, adopt: Any) -> None:
    url, client = zookeeper
    assert "it does not exist" in adopt("zkqueue", f"{url}/nowhere", "--to", target, code=2).err
    client.create("/nothing")
    assert "holds nothing to take over" in adopt("zkqueue", f"{url}/nothing", "--to", target, code=2).err
    down = adopt("zkqueue", "zookeeper://127.0.0.1:1/zms?timeout=1s", "--to", target, code=3)
    assert "Is the server up" in down.err

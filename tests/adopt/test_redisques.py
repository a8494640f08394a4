"""What redisques 3.1.0 wrote into Redis, taken over."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.adopt.conftest import everything, fill
from tests.adopt.layout import recording
from tests.store_urls import Place

from penstock import QueueStore, Worker
from penstock.adopt.opening import open_source
from penstock.errors import MissingExtra
from penstock.gateway.item import QueuedRequest, RequestCodec

Open = Callable[[str], QueueStore]
Redis = tuple[str, Any]
OWNED = "redisques:consumers:"


def test_every_store_takes_it_over_with_equal_counts_and_checksums(
    any_target: Place, redis_source: Redis, adopt: Any, opened: Open
) -> None:
    url, client = redis_source
    fill(client, "redisques", without=OWNED)
    before = everything(client)
    plan = adopt("redisques", url, "--to", any_target.url, "--json", code=4).json()
    shown = [(one["queue"], one["ready"] + one["retrying"]) for one in plan["queues"]]
    assert shown == [
        ("requests.empty", 0), ("requests.free", 3), ("requests.notes%3Aann", 3), ("requests.orders", 5),
    ]  # fmt: skip
    assert adopt("redisques", url, "--to", any_target.url, "--yes", "--json").json()["carried"] == 11
    assert everything(client) == before
    store = opened(any_target.url)
    items = recording("redisques")
    for name in ("free", "notes:ann", "orders"):
        queue = store.queue(f"requests.{name.replace(':', '%3A')}", fifo=True)
        assert [one.payload.decode() for one in queue.find()] == items[f"redisques:queues:{name}"]["value"]
    locks = {(lock.queue, lock.holder, lock.reason) for lock in store.locks()}
    assert locks == {(f"requests.{name}", "redisques", "ann") for name in ("empty", "notes%3Aann", "orders")}
    again = adopt("redisques", url, "--to", any_target.url, "--yes")
    assert "nothing was carried again" in again.out


def test_requests_are_read_as_requests_and_locked_queues_wait(
    redis_source: Redis, target: str, adopt: Any, opened: Open
) -> None:
    url, client = redis_source
    fill(client, "redisques", without=OWNED)
    adopt("redisques", url, "--to", target, "--yes")
    store, seen = opened(target), []
    family = store.family("requests.", QueuedRequest, fifo=True, codec=RequestCodec())
    family.add_handler(lambda request: seen.append(request.uri))
    Worker(store).drain()
    assert seen == ["/shop/notes/0", "/shop/notes/1", "/shop/notes/2"]
    store.driver.unlock("requests.orders", "redisques")
    Worker(store).drain()
    assert seen[3:] == [f"/shop/orders/{number}" for number in range(5)]


def test_failures_count_as_attempts_of_the_head(redis_source: Redis, target: str, adopt: Any, opened: Open) -> None:
    url, client = redis_source
    fill(client, "redisques", without=OWNED)
    failures = json.loads(client.hget("redisques:stats", "free"))["failures"]
    assert failures > 0
    adopt("redisques", url, "--to", target, "--yes")
    assert [one.attempt for one in opened(target).queue("requests.free", fifo=True).find()] == [failures, 0, 0]


def test_expiry_counts_from_when_it_was_queued(redis_source: Redis, target: str, adopt: Any, opened: Open) -> None:
    url, client = redis_source
    item = '{"method":"PUT","uri":"/a","headers":[["x-queue-expire-after","60"]],"payload":"","queueTimestamp":%d}'
    client.rpush("redisques:queues:q", item % 1_600_000_000_000, "plain text", "[1]")
    adopt("redisques", url, "--to", target, "--yes", "--family", "old.")
    first, text, other = opened(target).queue("old.q", fifo=True).find()
    assert first.expires_us == 1_600_000_060_000_000
    assert (text.codec, text.payload, other.codec) == ("bytes", b"plain text", "json")


def test_a_node_that_still_owns_queues_is_not_taken_over_from(
    redis_source: Redis, target: str, adopt: Any, opened: Open
) -> None:
    url, client = redis_source
    fill(client, "redisques")
    assert "Somebody still works there" in adopt("redisques", url, "--to", target, code=4).out
    refused = adopt("redisques", url, "--to", target, "--yes", code=2)
    assert "says that a node owns this queue" in refused.err
    assert opened(target).counts() == []


NESTED = '{"deep":' + "[" * 100_000


def fail(client: Any, times: int) -> None:
    client.rpush("redisques:queues:q", "x")
    client.hset("redisques:stats", "q", f'{{"failures":{times}}}')


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda client: client.set("redisques:queues:q", "x"), "key redisques:queues:q: it is a string"),
        (lambda client: client.hset("redisques:locks", "q", "ann"), "key redisques:locks field q"),
        (lambda client: client.rpush("redisques:locks", "q"), "key redisques:locks: it is a list"),
        (lambda client: client.hset("redisques:stats", "q", "x"), "key redisques:stats field q"),
        (lambda client: client.hset("redisques:stats", "q", NESTED), "key redisques:stats field q"),
        (lambda client: client.hset("redisques:locks", "q", NESTED), "key redisques:locks field q"),
        (lambda client: fail(client, 10**25), f"key redisques:queues:q item 0: it counts {10**25} attempts"),
    ],
)
def test_keys_that_are_not_what_is_documented_are_refused(
    redis_source: Redis, target: str, adopt: Any, break_it: Callable[[Any], Any], said: str
) -> None:
    url, client = redis_source
    break_it(client)
    refused = adopt("redisques", url, "--to", target, code=2)
    assert said in refused.err
    assert "nothing was changed" in refused.err


def test_an_empty_database_holds_nothing_to_take_over(redis_source: Redis, target: str, adopt: Any) -> None:
    assert "holds nothing to take over" in adopt("redisques", redis_source[0], "--to", target, code=2).err


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(module: str) -> Any:
        raise ModuleNotFoundError("No module named 'httpcore2'", name="httpcore2")

    monkeypatch.setattr("penstock.adopt.opening.importlib.import_module", missing)
    with pytest.raises(MissingExtra, match=r"httpcore2 is needed.*penstock\[service\]"):
        open_source("redisques", "redis://localhost")


def test_an_item_that_is_nested_too_deeply_is_taken_as_it_is(
    redis_source: Redis, target: str, adopt: Any, opened: Open
) -> None:
    url, client = redis_source
    client.rpush("redisques:queues:q", NESTED)
    adopt("redisques", url, "--to", target, "--yes")
    [entry] = opened(target).queue("requests.q", bytes).find()
    assert entry.value == NESTED.encode()

"""What delayedQueue 0.5.1 wrote into Redis, taken over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.adopt.conftest import everything, fill
from tests.store_urls import Place

from penstock import QueueStore, Worker

Open = Callable[[str], QueueStore]
Redis = tuple[str, Any]
REMINDERS, CHECKS = "DelayedQueueWriter%24Reminder", "DelayedQueueWriter%24Check"


def test_every_store_takes_it_over_with_equal_counts_and_checksums(
    any_target: Place, redis_source: Redis, adopt: Any, opened: Open
) -> None:
    url, client = redis_source
    fill(client, "delayedqueue")
    before = everything(client)
    plan = adopt("delayedqueue", url, "--to", any_target.url, "--json", code=4).json()
    shown = [(one["queue"], one["ready"], one["delayed"], one["retrying"]) for one in plan["queues"]]
    assert shown == [(CHECKS, 2, 0, 0), (REMINDERS, 0, 3, 2)]
    assert adopt("delayedqueue", url, "--to", any_target.url, "--yes", "--json").json()["carried"] == 7
    assert everything(client) == before
    store = opened(any_target.url)
    assert [one.value for one in store.queue(CHECKS).find()] == [{"id": "ready-1"}, {"id": "ready-2"}]
    found = {one.value["id"]: one for one in store.queue(REMINDERS).find()}
    assert sorted(found) == ["failed-1", "failed-2", "later-1", "later-2", "later-3"]
    assert found["later-1"].value["text"] == "später"
    assert (found["failed-1"].attempt, found["later-1"].attempt) == (1, 0)
    score = client.zscore("de_delayed_events", "DelayedQueueWriter$Reminder###later-2")
    assert found["later-2"].due_us == int(score) * 1000
    again = adopt("delayedqueue", url, "--to", any_target.url, "--yes")
    assert "nothing was carried again" in again.out


def test_the_event_id_is_the_unique_id(redis_source: Redis, target: str, adopt: Any, opened: Open) -> None:
    url, client = redis_source
    fill(client, "delayedqueue")
    adopt("delayedqueue", url, "--to", target, "--yes")
    queue = opened(target).queue(REMINDERS, dict)
    assert queue.put({"id": "later-1", "text": "again"}, unique="later-1").created is False
    assert queue.put({"id": "new", "text": "again"}, unique="new").created is True


def test_an_event_pushed_several_times_is_one_entry(redis_source: Redis, target: str, adopt: Any, opened: Open) -> None:
    url, client = redis_source
    fill(client, "delayedqueue")
    [last, first] = client.lrange("de_check", 0, -1)
    client.lpush("de_check", first, last)
    client.hdel("de_events", "DelayedQueueWriter$Check###ready-1")  # its last attempt: it is in the list alone
    client.zrem("de_delayed_events", "DelayedQueueWriter$Check###ready-1")
    adopt("delayedqueue", url, "--to", target, "--yes")
    store, seen = opened(target), []
    store.queue(CHECKS, dict).add_handler(lambda event: seen.append(event["id"]))
    Worker(store).drain()
    assert seen == ["ready-1", "ready-2"]


def test_an_event_put_again_with_other_content_loses_neither(
    redis_source: Redis, target: str, adopt: Any, opened: Open
) -> None:
    url, client = redis_source
    fill(client, "delayedqueue")
    member = "DelayedQueueWriter$Check###ready-1"
    stored = client.hget("de_events", member)
    client.hset("de_events", member, stored.replace('"id":"ready-1"', '"id":"ready-1","new":true'))
    adopt("delayedqueue", url, "--to", target, "--yes")
    found = [one.value for one in opened(target).queue(CHECKS).find()]
    assert sorted(map(str, found)) == ["{'id': 'ready-1', 'new': True}", "{'id': 'ready-1'}", "{'id': 'ready-2'}"]


def test_halves_of_events_are_told(redis_source: Redis, target: str, adopt: Any, opened: Open) -> None:
    url, client = redis_source
    fill(client, "delayedqueue")
    client.hdel("de_events", "DelayedQueueWriter$Reminder###later-1")
    client.zrem("de_delayed_events", "DelayedQueueWriter$Reminder###later-2")
    done = adopt("delayedqueue", url, "--to", target, "--yes")
    assert "later-1 has a due time but no event" in done.out
    [dead] = opened(target).queue(REMINDERS).dead()
    assert (dead.value["id"], "without a due time" in (dead.error or "")) == ("later-2", True)


NOT_TEXT = [b'{"payload":{"id":"1","text":"\xff"},"type":"A","attempt":1}']


def put(client: Any, *, due: float | str = 1, attempt: int = 1) -> None:
    client.hset("de_events", "A###1", f'{{"payload":{{"id":"1"}},"type":"A","attempt":{attempt}}}')
    client.zadd("de_delayed_events", {"A###1": due})


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda client: client.set("de_events", "x"), "key de_events: it is a string"),
        (lambda client: client.rpush("de_delayed_events", "x"), "key de_delayed_events: it is a list"),
        (lambda client: client.hset("de_events", "A###1", "no JSON"), "key de_events A###1"),
        (lambda client: client.hset("de_events", "A###1", '{"payload":{},"type":"A","attempt":1}'), "`id`"),
        (lambda client: client.rpush("de_a", "[]"), "key de_a[0]"),
        (lambda client: put(client, due="inf"), "event A###1: its due time is outside of the calendar"),
        (lambda client: put(client, due=1e300), "event A###1: its due time is outside of the calendar"),
        (lambda client: put(client, attempt=10**25), f"event A###1: it counts {10**25 - 1} attempts"),
        (lambda client: client.lpush("de_a", *NOT_TEXT), "key de_a[0]: 'utf-8' codec"),
    ],
)
def test_keys_that_are_not_what_is_documented_are_refused(
    redis_source: Redis, target: str, adopt: Any, break_it: Callable[[Any], Any], said: str
) -> None:
    url, client = redis_source
    break_it(client)
    refused = adopt("delayedqueue", url, "--to", target, code=2)
    assert said in refused.err
    assert "nothing was changed" in refused.err


def test_nothing_and_nobody_there(redis_source: Redis, target: str, adopt: Any) -> None:
    url, client = redis_source
    fill(client, "delayedqueue")
    empty = adopt("delayedqueue", url, "--to", target, "--prefix", "other_", code=2)
    assert "holds nothing to take over" in empty.err
    down = adopt("delayedqueue", "redis://127.0.0.1:1/0", "--to", target, code=3)
    assert "Is the server up" in down.err
    wrong = adopt("delayedqueue", target, "--to", target, code=2)
    assert "is not a Redis server" in wrong.err
    unknown = adopt("delayedqueue", url, "--to", target, "--table", "x", code=2)
    assert "delayedqueue has no tables" in unknown.err

"""Puts: what is stored, ids that may be sent twice, sizes, text, spaces."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.contract.queue.shorthand import (
    MINUTE,
    Contract,
    OpenStore,
    end,
    in_threads,
    live,
    living,
    needs,
    new,
    put,
    take_one,
    tally,
    trail,
    values,
)

from penstock.clock import FakeClock
from penstock.errors import (
    Conflict,
    UniqueHeld,
    WrongType,
)
from penstock.queue.entry import Unique
from penstock.queue.protocol import Find, Step
from penstock.queue.queues import QueueStore


class TestPuts(Contract):
    """What a put leaves behind."""

    def test_new_entry_waits_with_everything_it_was_given(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("mails")
        result = queue.put(
            {"to": "ann"}, delay="45m", priority=7, unique="order-17", labels={"customer": "ann"},
            headers={"trace": "1"}, expires="2h",
        )  # fmt: skip
        assert (result.created, result.queue, result.due_us) == (True, "mails", clock.micros() + 45 * MINUTE)
        entry = queue.get(result.id)
        assert (entry.state, entry.lease, entry.error, entry.node) == ("waiting", None, None, None)
        assert (entry.attempt, entry.generation, entry.priority, entry.unique) == (0, 1, 7, "order-17")
        assert entry.created_us == clock.micros()
        assert entry.due_us == entry.first_due_us == clock.micros() + 45 * MINUTE
        assert entry.expires_us == clock.micros() + 120 * MINUTE
        assert (entry.labels, entry.headers) == ({"customer": "ann"}, {"trace": "1"})
        assert (entry.value, entry.codec, entry.type) == ({"to": "ann"}, "json", "Any")

    def test_put_without_options_is_due_now(self, store: QueueStore, clock: FakeClock) -> None:
        entry = living(store, put(store, "q"))
        assert entry.due_us == entry.created_us == clock.micros()
        assert (entry.labels, entry.headers, entry.unique, entry.expires_us) == ({}, {}, None, None)

    def test_absolute_due_and_expiry(self, store: QueueStore, clock: FakeClock) -> None:
        due = clock.now() + timedelta(days=400, microseconds=3)
        entry = living(store, put(store, "q", due=due, expires=due + timedelta(seconds=1)))
        assert entry.due == due
        assert entry.expires == due + timedelta(seconds=1)

    def test_another_handle_sees_it(self, store: QueueStore, open_store: OpenStore) -> None:
        id_ = put(store, "q", "seen")
        assert values([living(open_store(node="two"), id_)]) == ["seen"]

    def test_sequence_rises_in_the_order_of_puts(self, store: QueueStore) -> None:
        queue = store.queue("q")
        made = [queue.put(1).id, *(one.id for one in queue.put_many([2, 3, 4])), queue.put(5).id]
        found = queue.find()
        assert [entry.id for entry in found] == made
        assert [entry.seq for entry in found] == sorted({entry.seq for entry in found})

    def test_sequence_is_not_used_again_after_an_end(self, store: QueueStore) -> None:
        first = living(store, put(store, "q"))
        end(store, take_one(store, "q"))
        second = put(store, "q")
        assert living(store, second).seq > first.seq
        assert [one.id for one in store.driver.find(Find(queue="q", after=first.seq))] == [second]

    def test_put_many_keeps_order_and_is_one_unit(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.put("held", unique="u")
        with pytest.raises(UniqueHeld):
            store.driver.put([new("q", 1), new("q", 2, unique=Unique("u", on_conflict="raise")), new("q", 3)])
        assert values(queue.find()) == ["held"]
        assert len(queue.put_many(range(2000))) == 2000
        assert values(queue.find(limit=5000)) == ["held", *range(2000)]

    def test_put_many_without_chunk_stores_nothing_of_a_bad_lot(self, store: QueueStore) -> None:
        queue = store.queue("q", int)
        with pytest.raises(WrongType):
            queue.put_many([1, 2, "three"])  # type: ignore[list-item]
        assert queue.find() == []

    def test_put_many_in_chunks_is_openly_several_units(self, store: QueueStore) -> None:
        queue = store.queue("q", int)

        def lot() -> Iterator[int]:
            yield from (1, 2, 3)
            yield "four"  # type: ignore[misc]

        with pytest.raises(WrongType):
            queue.put_many(lot(), chunk=2)
        assert values(queue.find()) == [1, 2]
        assert queue.put_many([], chunk=2) == []

    def test_many_threads_put_at_once(self, store: QueueStore) -> None:
        queue = store.queue("q")
        made = in_threads(8, lambda index: [queue.put([index, number]).id for number in range(20)])
        assert sorted(entry.id for entry in queue.find()) == sorted(id_ for some in made for id_ in some)

    def test_sequence_follows_each_producer(self, store: QueueStore) -> None:
        queue = store.queue("q")
        in_threads(4, lambda index: [queue.put([index, number]) for number in range(15)])
        found = values(queue.find())
        for index in range(4):
            assert [number for producer, number in found if producer == index] == list(range(15))

    def test_raw_bytes_come_back_as_they_were(self, store: QueueStore) -> None:
        queue = store.queue("raw", bytes)
        blob = bytes(range(256)) * 3
        entry = queue.get(queue.put(blob).id)
        assert (entry.value, entry.codec) == (blob, "bytes")
        assert queue.get(queue.put(b"").id).value == b""

    def test_find_conditions(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        for number in range(5):
            queue.put(number, delay=timedelta(minutes=number), labels={"parity": "odd" if number % 2 else "even"})
        store.queue("other").put("elsewhere", labels={"parity": "odd"})
        later = clock.now() + timedelta(minutes=2)
        assert values(queue.find(due_from=later)) == [2, 3, 4]
        assert values(queue.find(due_before=later)) == [0, 1]
        third = queue.find(limit=3)[-1]
        assert values(queue.find(after=third.seq)) == [3, 4]
        assert values(queue.find(limit=2)) == [0, 1]
        assert values(store.driver.find(Find(newest_first=True, limit=2))) == ["elsewhere", 4]
        if store.capabilities.label_search:
            assert values(queue.find(labels={"parity": "odd"})) == [1, 3]
        take_one(store, "q")
        assert values(queue.find(state="leased")) == [0]
        assert values(queue.find(state="waiting")) == [1, 2, 3, 4]

    def test_find_by_labels_asks_for_all_of_them(self, store: QueueStore) -> None:
        needs(store, "label_search")
        queue = store.queue("q")
        queue.put("both", labels={"a": "1", "b": "2"})
        queue.put("one", labels={"a": "1"})
        assert values(queue.find(labels={"a": "1"})) == ["both", "one"]
        assert values(queue.find(labels={"a": "1", "b": "2"})) == ["both"]
        assert queue.find(labels={"a": "2"}) == []
        assert values(store.driver.find(Find(labels={"a": "1"}, family="q"))) == ["both", "one"]

    def test_counts_tell_ready_delayed_retrying_leased_and_dead(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        queue.put_many([1, 2, 3, 4])
        queue.put(5, delay="1h")
        end(store, take_one(store, "q"), "dead", error="no")
        end(store, take_one(store, "q"), "retry", delay_us=MINUTE)
        take_one(store, "q")
        assert tally(store, "q") == (1, 1, 1, 1, 1)
        assert queue.counts().live == 4
        assert queue.counts().oldest_ready_us == clock.micros()
        clock.advance("1m")
        assert tally(store, "q") == (2, 1, 0, 1, 1)
        assert store.queue("nothing-here").counts().live == 0

    def test_counts_of_a_family_and_of_all(self, store: QueueStore) -> None:
        for name in ("a.1", "a.2", "b.1"):
            put(store, name)
        assert [one.queue for one in store.counts(family="a.")] == ["a.1", "a.2"]
        assert [one.queue for one in store.counts()] == ["a.1", "a.2", "b.1"]
        assert store.family("a.").counts().ready == 2


class TestIds(Contract):
    """The same id twice: one effect, or a conflict."""

    def test_same_id_and_content_is_stored_once(self, store: QueueStore) -> None:
        queue = store.queue("q")
        first = queue.put("x", id="mine")
        take_one(store, "q")
        again = queue.put("x", id="mine", priority=3)
        assert (again.id, again.created) == (first.id, True)
        [entry] = queue.find()
        assert (entry.state, entry.attempt, entry.priority) == ("leased", 1, 0)

    @pytest.mark.parametrize("second", [new("q", "other", id="mine"), new("r", "x", id="mine")])
    def test_same_id_with_other_content_or_queue_is_a_conflict(self, store: QueueStore, second: Any) -> None:
        put(store, "q", "x", id="mine")
        with pytest.raises(Conflict):
            store.driver.put([new("q", "innocent"), second])
        assert values(store.driver.find(Find())) == ["x"]

    def test_live_id_is_known_without_asking_for_a_repeat(self, store: QueueStore) -> None:
        entry = new("q", "x", id="mine")
        for more in ({}, {"labels": {"a": "b"}}):
            assert store.driver.put([msgspec.structs.replace(entry, **more)])[0].created
            assert len(store.driver.find(Find())) == 1

    def test_same_id_twice_in_one_step(self, store: QueueStore) -> None:
        entry = new("q", "x", id="mine")
        done = store.driver.put([entry, new("q", "between"), entry])
        assert [one.id for one in done] == ["mine", done[1].id, "mine"]
        assert values(store.driver.find(Find())) == ["x", "between"]
        with pytest.raises(Conflict):
            store.driver.put([new("q", 1, id="twice"), new("q", 2, id="twice")])
        assert live(store, "twice") is None

    @pytest.mark.parametrize("ended", ["done", "dead", "cancelled"])
    def test_an_ended_id_is_known_to_a_repeat(self, store: QueueStore, clock: FakeClock, ended: str) -> None:
        queue = store.queue("q")
        queue.put("x", id="mine")
        if ended == "cancelled":
            queue.cancel("mine")
        else:
            end(store, take_one(store, "q"), ended)  # type: ignore[arg-type]
        before = trail(store, "mine")
        clock.advance("14m 59s")
        store.driver.prune(older_than_us=0)
        again = queue.put("x", id="mine")
        assert (again.id, again.created) == ("mine", True)
        assert (live(store, "mine"), trail(store, "mine")) == (None, before)
        with pytest.raises(Conflict):
            queue.put("other", id="mine")
        with pytest.raises(Conflict):
            store.queue("r").put("x", id="mine")
        assert store.driver.find(Find()) == []

    def test_an_ended_id_is_known_by_its_last_content(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.put("first", id="mine")
        end(store, take_one(store, "q"))
        store.driver.replay(["mine"])
        queue.update("mine", "second")
        end(store, take_one(store, "q"))
        assert queue.put("second", id="mine").created
        with pytest.raises(Conflict):
            queue.put("first", id="mine")
        assert store.driver.find(Find()) == []

    def test_a_repeat_of_something_new_is_put(self, store: QueueStore) -> None:
        assert store.driver.put([new("q", "x", id="fresh", repeat=True)])[0].created
        assert store.driver.commit(Step(puts=(new("q", "y", id="fresher"),), repeat=True)).puts[0].created
        assert values(store.driver.find(Find())) == ["x", "y"]

"""History: one row per ended attempt, searchable, pruned without touching what lives."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.contract.queue.shorthand import (
    MINUTE,
    SECOND,
    Contract,
    OpenStore,
    dead,
    end,
    live,
    living,
    needs,
    put,
    take,
    take_one,
    trail,
)

from penstock.clock import FakeClock
from penstock.queue import scans
from penstock.queue.drivers.sql import read
from penstock.queue.entry import HistoryRow
from penstock.queue.protocol import Find
from penstock.queue.queues import QueueStore

DAY = 24 * 60 * MINUTE


def finished(store: QueueStore, queue: str, *options: dict[str, object]) -> list[str]:
    """Put and finish one entry for each set of options."""
    made = []
    for each in options:
        made.append(put(store, queue, "x", **each))
        end(store, take_one(store, queue))
    return made


def found(rows: list[HistoryRow]) -> list[str]:
    """The ids of rows."""
    return [row.id for row in rows]


class TestCounting(Contract):
    """Exact totals by queue and outcome."""

    def test_all_that_ended_since_a_time_is_counted_whoever_ended_it(self, store: QueueStore, clock: FakeClock) -> None:
        if not store.capabilities.full_history:
            assert store.driver.count_ended(0) is None
            return
        assert store.driver.count_ended(0) == []
        finished(store, "q", *[{}] * 3)
        clock.advance("1h")
        since = clock.micros()
        finished(store, "q", {}, {})
        put(store, "q", "x")
        end(store, take_one(store, "q"), "retry")
        end(store, take_one(store, "q"), "dead")
        store.queue("r").cancel(put(store, "r"))
        put(store, "s", expires="1s")
        put(store, "t", "reaped")
        take_one(store, "t")
        clock.advance("5m")
        store.driver.reap(node="one")
        with store.unit() as unit:
            store.queue("u").put("in a unit")
            unit.take(store.queue("u"), limit=1)
            unit.commit()

        def counted(since_us: int) -> dict[tuple[str, str], int]:
            rows = store.driver.count_ended(since_us)
            assert rows is not None
            return {(row.queue, row.state): row.count for row in rows}

        last_hour = {
            ("q", "done"): 2, ("q", "retried"): 1, ("q", "dead"): 1, ("r", "cancelled"): 1, ("s", "expired"): 1,
            ("t", "reaped"): 1, ("u", "done"): 1,
        }  # fmt: skip
        assert counted(since) == last_hour
        assert counted(0) == {**last_hour, ("q", "done"): 5}
        assert counted(clock.micros() + 1) == {}

    def test_more_than_can_be_counted_is_not(self, store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
        needs(store, "full_history")
        for module in (scans, read):
            monkeypatch.setattr(module, "MOST_COUNTED", 50)
        finished(store, "q", {}, {})
        assert store.driver.count_ended(0) is not None
        finished(store, "q", *[{}] * 50)
        assert store.driver.count_ended(0) is None


class TestHistory(Contract):
    """Rows and their key."""

    def test_a_whole_life_has_one_row_per_attempt(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q")
        end(store, take_one(store, "q"), "retry", error="1")
        end(store, take_one(store, "q"), "snooze")
        end(store, take_one(store, "q"), "release")
        take_one(store, "q")
        clock.advance("2m")
        store.driver.reap(node="one")
        end(store, take_one(store, "q"), "dead", error="last")
        store.driver.replay([id_])
        end(store, take_one(store, "q"), "retry")
        end(store, take_one(store, "q"))
        assert trail(store, id_) == [
            (1, 1, "retried"), (1, 2, "reaped"), (1, 3, "dead"), (2, 1, "retried"), (2, 2, "done")
        ]  # fmt: skip

    def test_ends_without_work_are_recorded_under_the_attempt_that_was_not_made(
        self, store: QueueStore, clock: FakeClock
    ) -> None:
        cancelled = put(store, "q", "c", labels={"a": "1"})
        end(store, take_one(store, "q"), "retry")
        store.driver.cancel([cancelled])
        expired = put(store, "q", "e", expires="1s")
        clock.advance("1s")
        store.driver.reap(node="one")
        assert trail(store, cancelled) == [(1, 1, "retried"), (1, 2, "cancelled")]
        assert trail(store, expired) == [(1, 1, "expired")]
        row = store.driver.history(Find(ids=(cancelled,)))[-1]
        assert (row.started_us, row.owner, row.labels, row.payload) == (None, None, {"a": "1"}, b'"c"')

    def test_sequence_rises_in_the_order_of_ends(self, store: QueueStore) -> None:
        store.queue("q").put_many(range(5))
        taken = take(store, "q")
        for entry in reversed(taken):
            end(store, entry)
        rows = store.driver.history(Find())
        assert found(rows) == [one.id for one in reversed(taken)]
        assert [row.seq for row in rows] == sorted({row.seq for row in rows})

    def test_sequence_is_never_used_again(self, store: QueueStore, clock: FakeClock) -> None:
        finished(store, "q", {})
        last = store.driver.history(Find())[-1].seq
        clock.advance("8h")
        assert store.driver.prune(older_than_us=60 * MINUTE) == 1
        finished(store, "q", {})
        assert store.driver.history(Find(after=last))[0].seq > last

    def test_conditions(self, store: QueueStore, clock: FakeClock) -> None:
        needs(store, "full_history")
        queue = store.queue("q")
        ids = []
        for number in range(6):
            ids += finished(store, "q", {"labels": {"parity": "odd" if number % 2 else "even"}})
            clock.advance("1m")
        [other] = finished(store, "f.1", {})
        begin = clock.now() - timedelta(minutes=6)
        assert found(queue.history()) == ids
        assert found(queue.history(ids[2])) == [ids[2]]
        assert found(queue.history(since=begin + timedelta(minutes=4))) == ids[4:]
        assert found(queue.history(before=begin + timedelta(minutes=2))) == ids[:2]
        assert found(queue.history(limit=2)) == ids[:2]
        assert found(queue.history(after=queue.history()[2].seq)) == ids[3:]
        assert found(queue.history(newest_first=True, limit=2)) == [ids[5], ids[4]]
        assert found(queue.history(newest_first=True, after=queue.history()[2].seq)) == [ids[1], ids[0]]
        assert found(store.family("f.").history()) == [other]
        if store.capabilities.label_search:
            assert found(queue.history(labels={"parity": "odd"})) == ids[1::2]
        queue.put("x")
        end(store, take_one(store, "q"), "retry")
        assert [row.state for row in queue.history(state="retried")] == ["retried"]

    def test_label_search_goes_by_the_labels_of_the_row(self, store: QueueStore) -> None:
        needs(store, "label_search")
        queue = store.queue("q")
        id_ = queue.put("x", labels={"stage": "one"}).id
        end(store, take_one(store, "q"), "retry")
        queue.update(id_, labels={"stage": "two"})
        end(store, take_one(store, "q"))
        assert [row.labels for row in queue.history(id_)] == [{"stage": "one"}, {"stage": "two"}]
        assert [row.attempt for row in queue.history(labels={"stage": "one"})] == [1]
        assert [row.attempt for row in queue.history(labels={"stage": "two"})] == [2]

    def test_rows_show_what_their_attempt_saw(self, store: QueueStore) -> None:
        """Whatever an update or a replay has changed since."""
        queue = store.queue("q")
        id_ = queue.put("first", labels={"stage": "one"}).id
        end(store, take_one(store, "q"), "retry")
        queue.update(id_, "second", labels={"stage": "two"})
        end(store, take_one(store, "q"))
        store.driver.replay([id_])
        queue.update(id_, "third", labels={"stage": "three"})
        end(store, take_one(store, "q"))
        assert [(row.labels["stage"], row.payload) for row in store.driver.history(Find(ids=(id_,)))] == [
            ("one", b'"first"'), ("two", b'"second"'), ("three", b'"third"')
        ]  # fmt: skip

    def test_all_that_ended_is_found_by_another_handle(self, store: QueueStore, open_store: OpenStore) -> None:
        ids = finished(store, "q", {}, {}, {})
        assert found(open_store(node="two").driver.history(Find(queue="q"))) == ids

    def test_error_text_of_any_language(self, store: QueueStore) -> None:
        id_ = put(store, "q")
        end(store, take_one(store, "q"), "dead", error="Über 'quoted' \n 🦉 \\ %s")
        assert dead(store, id_).error == "Über 'quoted' \n 🦉 \\ %s"


class TestPruning(Contract):
    """Old rows go; what lives and what is dead stays."""

    def test_only_what_is_older(self, store: QueueStore, clock: FakeClock) -> None:
        [old] = finished(store, "q", {})
        clock.advance("3h")
        [fresh] = finished(store, "q", {})
        clock.advance("1h")
        told: list[object] = []
        store.signals.subscribe(lambda one: told.append(one.data["rows"]), "pruned")
        assert store.driver.prune(older_than_us=2 * 60 * MINUTE) == 1
        assert (trail(store, old), trail(store, fresh)) == ([], [(1, 1, "done")])
        assert store.driver.prune(older_than_us=2 * 60 * MINUTE) == 0
        assert told == [1]

    def test_in_batches(self, store: QueueStore, clock: FakeClock) -> None:
        finished(store, "q", *[{}] * 5)
        clock.advance("1d")
        assert [store.driver.prune(older_than_us=MINUTE, limit=2) for _ in range(4)] == [2, 2, 1, 0]

    def test_never_what_has_just_ended(self, store: QueueStore, clock: FakeClock) -> None:
        finished(store, "q", {})
        clock.advance("14m 59s")
        assert store.driver.prune(older_than_us=0) == 0
        clock.advance("1m")
        assert store.driver.prune(older_than_us=0) == 1

    def test_never_dead_letters_nor_live_entries(self, store: QueueStore, clock: FakeClock) -> None:
        buried = put(store, "q", "dead", labels={"a": "1"}, unique="u")
        end(store, take_one(store, "q"), "dead", error="e")
        living_one = put(store, "q", "alive", labels={"a": "2"}, unique="v")
        end(store, take_one(store, "q"), "retry", delay_us=30 * DAY)
        clock.advance("20d")
        assert store.driver.prune(older_than_us=DAY) == 2
        assert (trail(store, buried), trail(store, living_one)) == ([], [])
        letter = dead(store, buried)
        assert (letter.error, letter.labels, letter.payload) == ("e", {"a": "1"}, b'"dead"')
        entry = living(store, living_one)
        assert (entry.attempt, entry.labels) == (1, {"a": "2"})
        if store.capabilities.label_search:
            assert found_dead(store, "1") == [buried]
            assert [one.id for one in store.driver.find(Find(labels={"a": "2"}))] == [living_one]
        assert not store.queue("q").put("x", unique="v").created
        assert store.driver.replay([buried]) == 1

    @pytest.mark.parametrize("beyond_us", [-1, 0, 1])
    def test_a_search_for_what_is_older_finds_what_is_pruned(
        self, store: QueueStore, clock: FakeClock, beyond_us: int
    ) -> None:
        finished(store, "q", {})
        clock.advance("20m")
        older_than_us = 20 * MINUTE + beyond_us
        rows = store.driver.history(Find(before_us=clock.micros() - older_than_us))
        assert store.driver.prune(older_than_us=older_than_us) == len(rows)

    def test_pruned_while_leased(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = put(store, "q")
        end(store, take_one(store, "q"), "retry")
        taken = take_one(store, "q", lease="1h")
        clock.advance("30m")
        store.driver.prune(older_than_us=0)
        end(store, taken)
        assert (live(store, id_), trail(store, id_)) == (None, [(1, 2, "done")])

    @pytest.mark.parametrize("kind", ["done", "cancelled", "expired", "retried", "reaped"])
    def test_rows_of_every_kind(self, store: QueueStore, clock: FakeClock, kind: str) -> None:
        id_ = put(store, "q", expires="1m" if kind == "expired" else None)
        if kind == "cancelled":
            store.driver.cancel([id_])
        elif kind == "expired":
            clock.advance("1m")
            store.driver.reap(node="one")
        else:
            taken = take_one(store, "q")
            if kind == "reaped":
                clock.advance("2m")
                store.driver.reap(node="one")
            else:
                end(store, taken, "done" if kind == "done" else "retry")
        assert [row.state for row in store.driver.history(Find())] == [kind]
        clock.advance("1d")
        assert store.driver.prune(older_than_us=SECOND) == 1
        assert store.driver.history(Find()) == []


def found_dead(store: QueueStore, label: str) -> list[str]:
    """Dead letters by label."""
    return [one.id for one in store.driver.dead(Find(labels={"a": label}))]

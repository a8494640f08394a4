"""Schedules: rows with a next fire; firing is compare-and-set plus put, once per cluster."""

from __future__ import annotations

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
    put,
    take,
    take_one,
    values,
)

from penstock.clock import FakeClock, to_micros
from penstock.errors import BadInput, Conflict, ScheduleChanged
from penstock.queue.protocol import Find, Schedule
from penstock.queue.queues import QueueStore
from penstock.queue.schedule import entry_for, fire_due
from penstock.queue.worker.maintenance import Reaper


def row(clock: FakeClock, **fields: Any) -> Schedule:
    """A schedule to store, every minute from a minute on."""
    given: dict[str, Any] = {"name": "s", "queue": "q", "spec": f"every:{MINUTE}", "zone": "UTC", "version": 1}
    given |= {"next_us": clock.micros() + MINUTE, "payload": b'"x"', "codec": "json", "type": "Any"}
    return Schedule(**{**given, **fields})


class TestKeeping(Contract):
    """The highest version wins; removal is explicit."""

    def test_kept_listed_and_removed(self, store: QueueStore, open_store: OpenStore, clock: FakeClock) -> None:
        other = open_store(node="two")
        second = row(clock, name="b", labels={"a": "1"}, headers={"h": "2"}, priority=3, zone="Europe/Zurich")
        assert store.driver.set_schedule(second) is True
        assert store.driver.set_schedule(row(clock, name="a")) is True
        assert other.schedules() == [row(clock, name="a"), second]
        assert other.remove_schedule("a") is True
        assert store.remove_schedule("a") is False
        assert store.schedules() == [second]

    def test_a_lower_version_is_not_kept(self, store: QueueStore, clock: FakeClock) -> None:
        assert store.driver.set_schedule(row(clock, version=2))
        assert store.driver.set_schedule(row(clock, version=1, queue="other")) is False
        assert store.schedules() == [row(clock, version=2)]

    def test_a_higher_version_replaces(self, store: QueueStore, clock: FakeClock) -> None:
        store.driver.set_schedule(row(clock))
        newer = row(clock, version=2, spec=f"every:{2 * MINUTE}", next_us=5)
        assert store.driver.set_schedule(newer) is True
        assert store.schedules() == [newer]

    def test_the_same_again_leaves_the_next_fire(self, store: QueueStore, clock: FakeClock) -> None:
        store.driver.set_schedule(row(clock))
        assert store.driver.set_schedule(row(clock, next_us=clock.micros() + 99 * MINUTE)) is True
        assert store.schedules() == [row(clock)]

    def test_another_definition_under_the_same_version_replaces(self, store: QueueStore, clock: FakeClock) -> None:
        store.driver.set_schedule(row(clock))
        changed = row(clock, payload=b'"y"', next_us=clock.micros() + 5 * MINUTE)
        assert store.driver.set_schedule(changed) is True
        assert store.schedules() == [changed]

    def test_another_definition_of_a_stored_version_is_reported_and_changes_nothing(
        self, store: QueueStore, clock: FakeClock
    ) -> None:
        """Two programs side by side must not change a schedule to and fro, nor keep each other from starting."""
        queue = store.queue("q")
        assert queue.schedule("s", "x", every="1h") is True
        first = store.schedules()
        clock.advance("1m")
        others: list[tuple[str, str, dict[str, Any]]] = [
            ("q", "x", {"every": "2h"}),
            ("q", "y", {"every": "1h"}),
            ("q", "x", {"every": "1h", "labels": {"a": "1"}}),
            ("r", "x", {"every": "1h"}),
        ]
        for name, value, options in others:
            with pytest.warns(ScheduleChanged, match="'s' version 1 is stored as every 1:00:00") as warned:
                assert store.queue(name).schedule("s", value, **options) is False
            assert "raise version=" in str(warned[0].message)
            with pytest.raises(Conflict, match="'s' version 1 is stored as every 1:00:00") as caught:
                store.queue(name).schedule("s", value, on_conflict="raise", **options)
            assert "version=" in caught.value.hint
        assert store.schedules() == first
        assert queue.schedule("s", "x", every="1h") is True, "the same again is not a conflict"
        assert store.schedules() == first
        assert queue.schedule("s", "x", every="2h", version=2) is True
        assert queue.schedule("s", "x", every="1h") is False
        store.remove_schedule("s")
        assert queue.schedule("s", "x", every="3h") is True

    def test_a_priority_on_a_fifo_queue_is_refused_when_it_is_set(self, store: QueueStore) -> None:
        store.queue("q", fifo=True)
        with pytest.raises(BadInput, match="FIFO"):
            store.queue("q").schedule("s", "x", every="1m", priority=5)
        assert store.schedules() == []

    def test_a_schedule_stays_when_nobody_names_it(self, open_store: OpenStore, clock: FakeClock) -> None:
        store, keeper = open_store(), open_store(node="two")
        store.queue("q").schedule("daily", "x", every="24h")
        store.close()
        assert [one.name for one in keeper.schedules()] == ["daily"]

    def test_bad_schedules_are_refused_where_they_are_written(self, store: QueueStore) -> None:
        queue = store.queue("q")
        for bad in (
            {}, {"cron": "* * * * *", "every": "1m"}, {"cron": "nonsense"}, {"cron": "61 * * * *"}, {"every": "0s"},
            {"every": "1m", "zone": "Mars/Olympus"}, {"every": "1m", "catch_up": "some"},
        ):  # fmt: skip
            with pytest.raises(BadInput) as caught:
                queue.schedule("s", "x", **bad)  # type: ignore[arg-type]
            assert caught.value.hint
        assert store.schedules() == []


class TestFiring(Contract):
    """Compare-and-set of the next fire, with its put."""

    def test_fire_moves_and_puts(self, store: QueueStore, clock: FakeClock) -> None:
        schedule = row(clock, labels={"a": "1"}, priority=4)
        store.driver.set_schedule(schedule)
        clock.advance("1m")
        upcoming = clock.micros() + MINUTE
        assert store.driver.fire(schedule, upcoming, entry_for(schedule, schedule.next_us)) is True
        assert store.schedules() == [msgspec.structs.replace(schedule, next_us=upcoming)]
        [entry] = store.driver.find(Find())
        assert (entry.queue, entry.due_us, entry.labels, entry.priority) == ("q", clock.micros(), {"a": "1"}, 4)
        assert entry.headers["penstock-schedule"] == "s"

    def test_the_second_of_two_gets_nothing(self, store: QueueStore, open_store: OpenStore, clock: FakeClock) -> None:
        schedule = row(clock)
        store.driver.set_schedule(schedule)
        other = open_store(node="two")
        entry = entry_for(schedule, schedule.next_us)
        assert store.driver.fire(schedule, schedule.next_us + MINUTE, entry) is True
        assert other.driver.fire(schedule, schedule.next_us + MINUTE, entry) is False
        assert len(store.driver.find(Find())) == 1

    def test_skipping_moves_without_a_put(self, store: QueueStore, clock: FakeClock) -> None:
        schedule = row(clock)
        store.driver.set_schedule(schedule)
        assert store.driver.fire(schedule, 77, None) is True
        assert store.schedules()[0].next_us == 77
        assert store.driver.find(Find()) == []

    def test_removed_or_replaced_meanwhile_nothing_fires(self, store: QueueStore, clock: FakeClock) -> None:
        schedule = row(clock)
        entry = entry_for(schedule, schedule.next_us)
        assert store.driver.fire(schedule, 77, entry) is False
        store.driver.set_schedule(row(clock, version=2))
        assert store.driver.fire(schedule, 77, entry) is False
        assert store.driver.find(Find()) == []

    def test_a_put_that_fails_leaves_the_schedule(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q", fifo=True)
        schedule = row(clock, priority=5)
        store.driver.set_schedule(schedule)
        with pytest.raises(BadInput):
            store.driver.fire(schedule, 77, entry_for(schedule, schedule.next_us))
        assert store.schedules() == [schedule]
        assert store.driver.find(Find()) == []

    def test_one_fires_once_in_many_workers(self, store: QueueStore, open_store: OpenStore, clock: FakeClock) -> None:
        store.queue("q").schedule("s", "x", every="1m")
        clock.advance("1m")
        handles = [store, open_store(node="two")]
        in_threads(6, lambda index: fire_due(handles[index % 2]))
        assert len(store.driver.find(Find())) == 1

    def test_an_entry_that_fired_and_ended_does_not_come_again(self, store: QueueStore, clock: FakeClock) -> None:
        schedule = row(clock)
        store.driver.set_schedule(schedule)
        entry = entry_for(schedule, schedule.next_us)
        store.driver.fire(schedule, schedule.next_us + MINUTE, entry)
        clock.advance("1m")
        end(store, take_one(store, "q"))
        store.driver.put([entry])
        assert store.driver.find(Find()) == []

    def test_signal(self, store: QueueStore, clock: FakeClock) -> None:
        told: list[tuple[object, ...]] = []
        store.signals.subscribe(lambda one: told.append((one.queue, len(one.ids), *one.data.values())), "fired")
        store.queue("q").schedule("s", "x", every="1m")
        clock.advance("3m")
        fire_due(store)
        assert told == [("q", 1, "s", 2)]


class TestTimes(Contract):
    """When a schedule fires, and what missed fires mean."""

    def test_cron_fires_on_the_minute(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q").schedule("s", "x", cron="*/5 * * * *")
        assert fire_due(store) == clock.micros() + 5 * MINUTE
        assert store.driver.find(Find()) == []
        clock.advance("5m")
        assert fire_due(store) == clock.micros() + 5 * MINUTE
        assert [one.due_us for one in store.driver.find(Find())] == [clock.micros()]

    def test_one_catch_up_by_default(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q").schedule("s", "x", every="1m")
        clock.advance("10m 30s")
        upcoming = fire_due(store)
        assert upcoming == clock.micros() + MINUTE // 2
        [entry] = store.driver.find(Find())
        assert entry.due_us == clock.micros() - MINUTE // 2
        fire_due(store)
        assert len(store.driver.find(Find())) == 1

    def test_all_are_caught_up_one_by_one(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q").schedule("s", "x", every="1m", catch_up="all")
        start = clock.micros()
        clock.advance("3m 30s")
        for _ in range(10):
            fire_due(store)
        assert [one.due_us - start for one in store.driver.find(Find())] == [MINUTE, 2 * MINUTE, 3 * MINUTE]

    def test_none_is_caught_up(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q").schedule("s", "x", every="1m", catch_up="none")
        clock.advance("3m 30s")
        fire_due(store)
        assert store.driver.find(Find()) == []
        clock.advance("30s")
        fire_due(store)
        assert [one.due_us for one in store.driver.find(Find())] == [clock.micros()]

    def test_a_zone_keeps_its_wall_clock_over_the_change_of_time(self, store: QueueStore, clock: FakeClock) -> None:
        clock.set(clock.now().replace(month=3, day=27, hour=12))
        store.queue("q").schedule("s", "x", cron="0 8 * * *", zone="Europe/Zurich")
        fires = []
        for _ in range(4 * 24):
            clock.advance("1h")
            fire_due(store)
            for entry in take(store, "q"):
                fires.append(entry.due)
                end(store, entry)
        assert [(one.day, one.hour) for one in fires] == [(28, 7), (29, 6), (30, 6), (31, 6)]

    def test_the_reaper_fires(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q").schedule("s", {"n": 1}, every="1h", labels={"by": "clock"})
        reaper = Reaper(store)
        assert reaper.once() == clock.micros() + 60 * MINUTE
        clock.advance("1h")
        reaper.once()
        [entry] = take(store, "q")
        assert (values([entry]), entry.labels) == ([{"n": 1}], {"by": "clock"})

    def test_a_set_back_clock_fires_nothing_twice(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q").schedule("s", "x", every="1m")
        clock.advance("1m")
        fire_due(store)
        end(store, take_one(store, "q"))
        clock.set(clock.now() - timedelta(minutes=5))
        fire_due(store)
        assert store.driver.find(Find()) == []
        assert store.schedules()[0].next_us > to_micros(clock.now())

    def test_an_unknown_queue_is_made_by_its_first_fire(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "other")
        store.queue("brand-new").schedule("s", "x", every="1m")
        clock.advance("1m")
        fire_due(store)
        assert len(take(store, "brand-new")) == 1

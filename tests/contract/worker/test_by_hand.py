"""What people do by hand: schedules that are paused, resumed and run now, and the record of who changed what."""

from __future__ import annotations

import pytest
from tests.contract.queue.shorthand import Contract

from penstock.clock import FakeClock
from penstock.errors import EntryNotFound
from penstock.queue.changes import Change, recent_changes, record_change
from penstock.queue.queues import QueueStore
from penstock.queue.schedule import fire_due, pause_schedule, resume_schedule, run_schedule_now


class TestSchedulesByHand(Contract):
    """Pause, resume, run now."""

    def test_a_paused_schedule_fires_no_more_until_it_is_resumed(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        queue.schedule("often", "x", every="1m")
        [before] = store.schedules()
        assert pause_schedule(store, "often").is_paused
        assert pause_schedule(store, "often").is_paused, "twice is as good as once"
        clock.advance("1h")
        fire_due(store)
        assert queue.counts().live == 0
        queue.schedule("often", "x", every="1m")
        assert store.schedules()[0].is_paused, "a program that starts again does not resume it"
        resumed = resume_schedule(store, "often")
        assert store.now() < resumed.next_us <= store.now() + 60_000_000
        assert store.schedules() == [resumed]
        assert resumed.next_us != before.next_us
        fire_due(store)
        assert queue.counts().live == 0, "what was missed is not caught up"
        clock.advance("61s")
        fire_due(store)
        assert queue.counts().live == 1

    def test_a_paused_schedule_has_no_next_time_and_a_new_version_of_it_stays_paused(
        self, store: QueueStore, clock: FakeClock
    ) -> None:
        queue = store.queue("q")
        queue.schedule("often", "x", every="1m")
        pause_schedule(store, "often")
        [paused] = store.schedules()
        assert paused.next is None
        assert "paused" in repr(paused)
        assert "9999" not in repr(paused)
        assert queue.schedule("often", "y", every="2m", version=2) is True
        [changed] = store.schedules()
        assert (changed.version, changed.spec, changed.is_paused) == (2, "every:120000000", True)
        clock.advance("1h")
        fire_due(store)
        assert queue.counts().live == 0
        resumed = resume_schedule(store, "often")
        assert resumed.next is not None
        clock.advance("3m")
        fire_due(store)
        assert [entry.value for entry in queue.find()] == ["y"]

    def test_resuming_one_that_goes_on_changes_nothing(self, store: QueueStore) -> None:
        store.queue("q").schedule("often", "x", every="1m")
        [before] = store.schedules()
        assert resume_schedule(store, "often") == before
        assert store.schedules() == [before]

    def test_run_now_puts_an_entry_and_leaves_the_times_alone(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.schedule("nightly", {"a": 1}, cron="0 3 * * *", labels={"kind": "night"})
        [before] = store.schedules()
        first, second = run_schedule_now(store, "nightly"), run_schedule_now(store, "nightly")
        assert first != second
        entry = queue.get(first)
        assert (entry.value, entry.labels, entry.headers["penstock-schedule"]) == (
            {"a": 1},
            {"kind": "night"},
            "nightly",
        )
        assert queue.counts().ready == 2
        assert store.schedules() == [before]

    @pytest.mark.parametrize("act", [pause_schedule, resume_schedule, run_schedule_now])
    def test_what_is_not_there_is_said_to_be(self, store: QueueStore, act: object) -> None:
        assert callable(act)
        with pytest.raises(EntryNotFound, match="nightly"):
            act(store, "nightly")


class TestChanges(Contract):
    """Who did what."""

    def test_changes_are_kept_for_thirty_days_newest_first(self, store: QueueStore, clock: FakeClock) -> None:
        record_change(store, Change("ann", "lock", "mails", "open", "locked", "the server moves"))
        clock.advance("20d")
        record_change(store, Change("bob", "unlock", "mails", "locked", "open"))
        assert [(one.by, one.did, one.why) for one in recent_changes(store)] == [
            ("bob", "unlock", ""), ("ann", "lock", "the server moves"),
        ]  # fmt: skip
        clock.advance("11d")
        assert [one.by for one in recent_changes(store)] == ["bob"]
        record_change(store, Change("eve", "purge", "mails", "x" * 5000, ""))
        assert len(store.driver.documents("penstock.change.")) == 2
        assert len(recent_changes(store)[0].before) == 2000

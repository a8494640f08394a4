"""killbill-queue's promises in our words, the notification queue: entries with a due time, retries, find, history.

A notification is an entry with a due time, its two search keys are labels, its error count is the number of failed
attempts in the history. The bus, the reaper and the rest are in the test_killbill_* modules beside this one.
"""

import logging
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.seeds.watching import Runs, claim, claimed, eventually, finish, states, working

from penstock import QueueStore, Retry, Worker
from penstock.errors import LeaseLost
from penstock.testing import FakeClock

Transaction = Callable[[], AbstractContextManager[Any]]


class Reminder(msgspec.Struct):
    text: str


def ten_days_of(store: QueueStore, clock: FakeClock, transaction: Transaction) -> Any:
    """Four reminders due tomorrow and one a month later, all with tenant 1; returns their queue."""
    reminders = store.queue("reminders", Reminder)
    tomorrow, accounts = clock.now() + timedelta(days=1), ("7", "7", "8", "9")
    with transaction() as connection:
        for number, account in enumerate(accounts):
            tenant = "1" if account != "9" else "2"
            reminders.put(
                Reminder(f"r{number}"), due=tomorrow, labels={"account": account, "tenant": tenant},
                connection=connection,
            )  # fmt: skip
        reminders.put(
            Reminder("later"), due=clock.now() + timedelta(days=31), labels={"account": "10", "tenant": "2"},
            connection=connection,
        )  # fmt: skip
    return reminders


@pytest.mark.seed("A3.1", "A3.2", "A3.4")
def test_entries_put_in_a_transaction_arrive_once_they_are_due(
    store: QueueStore, clock: FakeClock, transaction: Transaction
) -> None:
    reminders = ten_days_of(store, clock, transaction)
    seen: list[tuple[str, str]] = []

    @reminders.handler
    def remind(reminder: Reminder, ctx: Any) -> None:
        seen.append((reminder.text, ctx.entry.labels["account"]))

    due = clock.now() + timedelta(days=1)
    assert Worker(store).drain() == 0
    assert reminders.counts().leased == 0
    assert (reminders.counts().ready, reminders.counts().delayed) == (0, 5)
    assert len(reminders.find(due_before=due + timedelta(microseconds=1))) == 4
    assert reminders.find(due_before=due) == []

    clock.advance("1d")
    assert reminders.counts().ready == 4
    assert Worker(store).drain() == 4
    assert sorted(seen) == [("r0", "7"), ("r1", "7"), ("r2", "8"), ("r3", "9")]
    assert (reminders.counts().ready, reminders.counts().leased, reminders.counts().delayed) == (0, 0, 1)
    assert reminders.find(labels={"account": "7", "tenant": "1"}) == []
    assert [entry.value.text for entry in reminders.find()] == ["later"]


@pytest.mark.seed("A3.3")
def test_find_by_both_labels_or_by_one(store: QueueStore, clock: FakeClock, transaction: Transaction) -> None:
    reminders = ten_days_of(store, clock, transaction)
    store.queue("others", Reminder).put(Reminder("not mine"), labels={"account": "7", "tenant": "1"})

    both = reminders.find(labels={"account": "7", "tenant": "1"})
    assert [entry.value.text for entry in both] == ["r0", "r1"]
    assert [entry.value.text for entry in reminders.find(labels={"tenant": "1"})] == ["r0", "r1", "r2"]
    assert [entry.value.text for entry in reminders.find(labels={"tenant": "2"})] == ["r3", "later"]
    assert reminders.find(labels={"account": "7", "tenant": "2"}) == []


@pytest.mark.seed("A3.5")
def test_cancel_by_labels_ends_the_matching_ones_only(
    store: QueueStore, clock: FakeClock, transaction: Transaction
) -> None:
    reminders = ten_days_of(store, clock, transaction)
    assert reminders.cancel_where(labels={"account": "7", "tenant": "2"}) == 0
    assert len(reminders.find()) == 5

    assert reminders.cancel_where(labels={"account": "10", "tenant": "2"}) == 1
    assert reminders.find(labels={"account": "10", "tenant": "2"}) == []
    assert len(reminders.find()) == 4
    assert states(reminders) == ["cancelled"]


@pytest.mark.seed("A3.6")
def test_a_hundred_entries_due_second_by_second_all_arrive(store: QueueStore, clock: FakeClock) -> None:
    ticks = store.queue("ticks", int)
    start = clock.now()
    early: list[int] = []
    seen: list[int] = []

    @ticks.handler
    def tick(number: int) -> None:
        if clock.now() < start + timedelta(seconds=number):
            early.append(number)
        seen.append(number)

    for number in range(1, 101):
        ticks.put(number, due=start + timedelta(seconds=number))
    # Whatever comes in time comes because the clock's move woke the worker. The clock runs ahead of a slow machine: no
    # lease may run out before what was handled is settled.
    with working(store, poll="1h", lease="1h"):
        for number in range(1, 101):
            clock.advance("1s")
            if number % 10 == 0:
                eventually(lambda number=number: len(seen) >= number, f"{number} entries handled")
        eventually(lambda: len(seen) == 100, "all entries handled")
    assert sorted(seen) == list(range(1, 101))
    assert early == []


@pytest.mark.seed("A3.7")
def test_a_queue_without_a_handler_delivers_to_nobody(store: QueueStore) -> None:
    started, never_started = store.queue("billing.started", str), store.queue("billing.never", str)
    runs = Runs()
    started.add_handler(runs)
    mine = started.put("mine")
    other = never_started.put("other")
    with working(store):
        eventually(lambda: states(started, mine.id) == ["done"], "own entry done")
        assert Worker(store).drain() == 0
    assert runs.values == ["mine"]
    left = never_started.get(other.id)
    assert (left.state, left.attempt) == ("waiting", 0), "it was not even claimed"


@pytest.mark.seed("A3.8")
def test_a_handler_that_fails_once_succeeds_at_the_second_try(store: QueueStore) -> None:
    """The seed's error count of 1 is one `retried` row before the final one."""
    jobs = store.queue("jobs", str)
    runs = Runs(failures=1)
    jobs.add_handler(runs, retry=Retry(attempts=4, immediate=3))
    put = jobs.put("job")
    Worker(store).drain()
    assert runs.values == ["job"]
    rows = jobs.history(put.id)
    assert [(row.state, row.attempt, row.error) for row in rows] == [
        ("retried", 1, "RuntimeError: failure 1"),
        ("done", 2, None),
    ]


@pytest.mark.seed("A3.9")
def test_success_on_the_last_allowed_attempt(store: QueueStore) -> None:
    """Three retries of the seed are four attempts here: the first start counts."""
    jobs = store.queue("jobs", str)
    runs = Runs(failures=3)
    jobs.add_handler(runs, retry=Retry(attempts=4, immediate=3))
    put = jobs.put("job")
    Worker(store).drain()
    assert runs.values == ["job"]
    assert states(jobs, put.id) == ["retried", "retried", "retried", "done"]
    assert jobs.dead() == []


@pytest.mark.seed("A3.10", "A3.11")
def test_a_list_of_retry_delays_counts_from_the_first_due_time(store: QueueStore, clock: FakeClock) -> None:
    """The seed moves retries to a second queue under new ids; here one id lives on, with one row per attempt."""
    jobs = store.queue("jobs", str)
    runs = Runs(failures=4)
    schedule = Retry(attempts=5, delays=["1ms", "1ms", "1ms", "1d"], relative_to="due")
    jobs.add_handler(runs, retry=schedule)
    first_due = clock.now()
    put = jobs.put("job")

    Worker(store).drain()
    clock.advance("1s")
    Worker(store).drain()
    assert runs.tries == 4
    assert states(jobs, put.id) == ["retried"] * 4
    waiting = jobs.get(put.id)
    assert (waiting.state, waiting.attempt) == ("waiting", 4)
    assert waiting.due == first_due + timedelta(days=1), "counted from the original due time, not from the last try"
    assert jobs.counts().retrying == 1

    clock.advance("12h")
    assert Worker(store).drain() == 0
    clock.advance("12h")
    assert Worker(store).drain() == 1
    assert runs.values == ["job"]
    assert states(jobs, put.id) == ["retried"] * 4 + ["done"]
    assert jobs.find() == []


# --- what the seed asserts of its SQL --------------------------------------------------------------------------------


@pytest.mark.seed("A3.12")
def test_claiming_text_of_any_kind_gives_no_warning(
    store: QueueStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = store.queue("jobs", str)
    hostile = 'o\'brien "x" %s ? :id -- ; \\ é'
    with warnings.catch_warnings(record=True) as caught, caplog.at_level(logging.WARNING):
        warnings.simplefilter("always")
        jobs.put(hostile, due=clock.now() - timedelta(days=1), unique=hostile, labels={"who": hostile})
        jobs.put("far", due=clock.now() + timedelta(days=365 * 200))
        [entry] = claim(jobs, 10, owner=hostile[:40])
        [found] = jobs.find(labels={"who": hostile})
        assert found.value == hostile
        assert found.lease is not None
        assert found.lease.owner == hostile[:40]
        finish(store, entry)
    assert [str(one.message) for one in caught] == []
    assert caplog.messages == []
    assert jobs.counts().delayed == 1


@pytest.mark.seed("A3.13")
def test_a_new_entry_waits_without_owner_or_lease(store: QueueStore, clock: FakeClock) -> None:
    jobs = store.queue("jobs", str)
    put = jobs.put("job")
    assert put.created
    entry = jobs.get(put.id)
    assert (entry.state, entry.lease, entry.attempt, entry.generation, entry.error) == ("waiting", None, 0, 1, None)
    assert entry.created == entry.due == entry.first_due == clock.now()
    counts = jobs.counts()
    assert (counts.ready, counts.leased, counts.delayed, counts.retrying) == (1, 0, 0, 0)
    assert jobs.history() == []


@pytest.mark.seed("A3.14")
def test_a_claim_sets_owner_and_lease_and_a_second_one_changes_nothing(store: QueueStore, clock: FakeClock) -> None:
    jobs = store.queue("jobs", str)
    put = jobs.put("job")
    [entry] = claim(jobs, lease="5m", owner="first")
    assert entry.lease is not None
    assert (entry.lease.owner, entry.lease.until) == ("first", clock.now() + timedelta(minutes=5))

    clock.advance("1m")
    assert claim(jobs, owner="second") == []
    there = jobs.get(put.id)
    assert there.state == "leased"
    assert there.lease is not None
    assert (there.lease.token, there.lease.owner, there.lease.until_us, there.attempt) == (
        entry.lease.token, "first", entry.lease.until_us, 1,
    )  # fmt: skip


@pytest.mark.seed("A3.15")
def test_done_moves_the_entry_to_history_unchanged(store: QueueStore, clock: FakeClock) -> None:
    jobs = store.queue("jobs", Reminder)
    put = jobs.put(Reminder("text"), labels={"account": "7"}, headers={"trace": "t"}, due=clock.now())
    [entry] = claim(jobs, owner="me")
    clock.advance("3s")
    finish(store, entry)

    assert jobs.find() == []
    [row] = jobs.history()
    assert (row.id, row.state, row.owner, row.attempt) == (put.id, "done", "me", 1)
    assert (row.payload, row.labels, row.headers) == (entry.payload, {"account": "7"}, {"trace": "t"})
    assert row.due_us == put.due_us
    assert row.ended == clock.now()
    assert row.started is not None
    assert row.ended - row.started == timedelta(seconds=3), "how long it took is recorded"


@pytest.mark.seed("A3.16")
def test_three_entries_end_in_one_step(store: QueueStore) -> None:
    jobs = store.queue("jobs", int)
    ids = [put.id for put in jobs.put_many(range(3))]
    entries = claim(jobs, 3)
    finish(store, *entries)
    assert jobs.find() == []
    assert [(row.id, row.state) for row in jobs.history()] == [(id_, "done") for id_ in ids]

    more = jobs.put_many(range(3))
    held = claim(jobs, 3)
    jobs.cancel(more[1].id, force=True)
    with pytest.raises(LeaseLost):
        finish(store, *held)
    assert sorted(entry.id for entry in jobs.find(state="leased")) == sorted((more[0].id, more[2].id)), "all or none"


@pytest.mark.seed("A3.17")
def test_two_thousand_are_put_at_once_and_all_found(store: QueueStore) -> None:
    jobs = store.queue("jobs", int)
    ids = [put.id for put in jobs.put_many(range(2000), labels={"account": "7"})]
    assert [entry.id for entry in jobs.find(labels={"account": "7"}, limit=5000)] == ids
    assert [entry.value for entry in jobs.find(labels={"account": "7"}, limit=5000)] == list(range(2000))
    assert jobs.counts().ready == 2000


@pytest.mark.seed("A3.18")
def test_an_updated_payload_is_what_find_and_the_handler_see(store: QueueStore, clock: FakeClock) -> None:
    jobs = store.queue("jobs", Reminder)
    put = jobs.put(Reminder("old"), delay="1d", labels={"account": "7"})
    jobs.update(put.id, Reminder("new"))
    [entry] = jobs.find(labels={"account": "7"})
    assert (entry.id, entry.value.text, entry.due_us) == (put.id, "new", put.due_us)

    clock.advance("1d")
    claimed_now = claimed(jobs).entries
    assert [one.payload for one in claimed_now] == [entry.payload]
    [running] = jobs.find(labels={"account": "7"}, state="leased")
    assert running.value.text == "new"

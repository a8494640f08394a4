"""What killbill-queue leaves untested and what it gets wrong, second part: leases, clocks, workers, limits, poison."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.crash import scenes
from tests.crash.driver import children
from tests.seeds.watching import Ear, Runs, claim, eventually, states, working

from penstock import QueueStore, Worker
from penstock.errors import Conflict, StoreUnavailable
from penstock.queue.protocol import Settled
from penstock.testing import FakeClock

Open = Callable[..., QueueStore]


class Mail(msgspec.Struct):
    to: str


# --- leases, clocks and lost replies ---------------------------------------------------------------------------------


def test_a_slow_handler_keeps_its_lease(open_store: Open, clock: FakeClock) -> None:
    """There a handler slower than its claim is run again elsewhere (W6)."""
    here, there = open_store(node="here"), open_store(node="there")
    started, gate = threading.Event(), threading.Event()
    runs: list[str] = []

    def slow(text: str) -> None:
        runs.append(text)
        started.set()
        assert gate.wait(30)

    for store in (here, there):
        store.queue("jobs", str).add_handler(slow)
    ear = Ear(here, "extended")
    jobs = here.queue("jobs", str)
    jobs.put("slow")
    with working(here, lease="600ms"):
        assert started.wait(30)
        for _ in range(5):  # three seconds of store time pass: five leases
            clock.advance("500ms")
            extended = len(ear.heard)
            eventually(lambda extended=extended: len(ear.heard) > extended, "the lease is extended")
            assert there.driver.reap(node="there").reaped == []
            assert Worker(there).drain() == 0
        gate.set()
        eventually(lambda: jobs.counts().live == 0, "handled")
    assert runs == ["slow"]
    assert states(jobs) == ["done"]


def test_clock_jumps_run_nothing_twice(open_store: Open, clock: FakeClock) -> None:
    """There duplicates were seen when the clock jumped (W21)."""
    stores = [open_store(node=node) for node in ("a", "b")]
    runs = Runs()
    for store in stores:
        store.queue("jobs", int).add_handler(runs)
    jobs = stores[0].queue("jobs", int)
    with working(*stores):
        for number in range(5):  # days, fewer than history is kept
            jobs.put(number, delay="1s")
            clock.set(clock.now() - timedelta(days=1))
            clock.advance("1d")
            clock.advance("2s")
            eventually(lambda number=number: len(states(jobs)) > number, "one more handled")
            clock.set(clock.now() - timedelta(days=1))
            clock.advance("2d")
        assert jobs.counts().live == 0
    assert runs.values == list(range(5))
    assert states(jobs) == ["done"] * 5


def test_a_jump_past_the_lease_gives_one_outcome(open_store: Open, clock: FakeClock) -> None:
    """A handler that runs while the clock jumps may be run again elsewhere; only one of the two counts."""
    here, there = open_store(node="here"), open_store(node="there")
    started, gate, runs = threading.Event(), threading.Event(), Runs()

    def slow(text: str) -> None:
        started.set()
        assert gate.wait(30)

    jobs = here.queue("jobs", str)
    jobs.add_handler(slow)
    there.queue("jobs", str).add_handler(runs)
    ear = Ear(here, "lease_lost")
    put = jobs.put("job")
    with working(here):
        assert started.wait(30)
        clock.advance("1d")
        eventually(lambda: Worker(there).drain() == 1 or runs.values, "run elsewhere")
        gate.set()
        eventually(lambda: ear.ids("lease_lost") == [put.id], "the late one is told")
    assert runs.values == ["job"]
    assert states(jobs) == ["reaped", "done"]


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_a_settle_without_an_answer_is_repeated_with_one_effect(lost: str, store: QueueStore) -> None:
    """There a failure to record finished work is swallowed, and the work is done again (W20)."""
    jobs, results = store.queue("jobs", int), store.queue("results", int)
    runs: list[int] = []

    @jobs.handler
    def work(number: int, ctx: Any) -> None:
        runs.append(number)
        ctx.put(results, number * 10)

    honest, broken = store.driver._settle, [0]

    def settle(steps: Any, request: Any, connection: Any) -> Settled:
        if any(step.endings for step in steps) and broken[0] < 2:
            broken[0] += 1
            if lost == "reply":
                honest(steps, None, connection)
            raise StoreUnavailable("no answer")
        return honest(steps, request, connection)

    jobs.put(4)
    store.driver._settle = settle  # type: ignore[method-assign]
    with working(store):
        eventually(lambda: broken[0] == 2 and jobs.counts().live == 0, "recorded in the end")
    assert runs == [4]
    assert states(jobs) == ["done"]
    assert [entry.value for entry in results.find()] == [40]


# --- starting and stopping -------------------------------------------------------------------------------------------


def test_stopping_with_work_in_flight_releases_it_unspent(open_store: Open) -> None:
    here, there = open_store(node="here"), open_store(node="there")
    started, gate, runs = threading.Event(), threading.Event(), Runs()

    def hang(text: str) -> None:
        started.set()
        assert gate.wait(30)

    jobs = here.queue("jobs", str)
    jobs.add_handler(hang, concurrency=1)
    there.queue("jobs", str).add_handler(runs)
    first, second = jobs.put("running"), jobs.put("behind it")
    worker = Worker(here)
    worker.start()
    assert started.wait(30)
    assert worker.stop(grace="50ms") is False
    for put in (first, second):
        entry = jobs.get(put.id)
        assert (entry.state, entry.attempt) == ("waiting", 0)
    assert jobs.history() == []
    gate.set()  # the abandoned handler ends now; nobody listens any more
    Worker(there).drain()
    assert sorted(runs.values) == ["behind it", "running"]
    assert [(row.id, row.attempt, row.state) for row in jobs.history(first.id)] == [(first.id, 1, "done")]


def test_stopping_waits_for_running_handlers_and_records_them(store: QueueStore) -> None:
    started, gate = threading.Event(), threading.Event()
    jobs = store.queue("jobs", int)

    def work(number: int) -> None:
        started.set()
        assert gate.wait(30)

    jobs.add_handler(work, concurrency=1)
    jobs.put_many(range(3))
    worker = Worker(store)
    worker.start()
    assert started.wait(30)
    stopped: list[bool] = []
    stopper = threading.Thread(target=lambda: stopped.append(worker.stop(grace="30s")), daemon=True)
    stopper.start()
    time.sleep(0.05)
    assert stopped == [], "it waits"
    gate.set()
    stopper.join(30)
    assert stopped == [True]
    assert states(jobs) == ["done"], "what ran is recorded, nothing new was begun"
    assert (jobs.counts().ready, jobs.counts().leased) == (2, 0)


def test_start_and_stop_say_what_they_did(store: QueueStore) -> None:
    """There the first init does nothing and says so wrongly (W8)."""
    runs = Runs()
    jobs = store.queue("jobs", int)
    jobs.add_handler(runs)
    worker = Worker(store)
    assert worker.stop() is True, "stopping what never ran is fine"
    jobs.put(1)  # putting needs no worker
    worker.start()
    with pytest.raises(Conflict):
        worker.start()
    eventually(lambda: runs.values == [1], "first run")
    assert worker.stop() is True
    assert worker.stop() is True
    jobs.put(2)
    worker.start()
    eventually(lambda: runs.values == [1, 2], "after a restart")
    assert worker.stop() is True


def test_a_locked_queue_is_paused(store: QueueStore) -> None:
    """There processing is on or off for everything; a queue cannot be paused (W14)."""
    runs = Runs()
    jobs = store.queue("jobs", int)
    jobs.add_handler(runs)
    jobs.lock(reason="maintenance")
    jobs.put(1)
    assert Worker(store).drain() == 0
    assert jobs.unlock() is True
    assert Worker(store).drain() == 1


# --- throughput and limits -------------------------------------------------------------------------------------------


def test_a_backlog_is_worked_off_without_waiting_for_a_poll(store: QueueStore) -> None:
    """There a node sleeps after every batch, full or not: 3.3 entries a second (W15)."""
    jobs = store.queue("jobs", int)
    runs = Runs()
    jobs.add_handler(runs)
    jobs.put_many(range(500))
    with working(store, poll="1h", batch=10):
        eventually(lambda: len(runs.values) == 500, "the backlog worked off")
        jobs.put(500)
        eventually(lambda: len(runs.values) == 501, "a later put wakes it")
    assert sorted(runs.values) == list(range(501))


def test_what_comes_due_during_a_claim_is_not_overlooked(store: QueueStore, clock: FakeClock) -> None:
    """A slot has looked and found nothing; before it is back an entry comes due, and no poll would make up for it."""
    jobs = store.queue("jobs", str)
    runs: list[str] = []

    def handler(text: str) -> None:
        time.sleep(0.3)  # the turn that brought it is over when it ends, so the next one is its slot's own
        runs.append(text)

    jobs.add_handler(handler, concurrency=1, prefetch=0)
    jobs.put("now")
    jobs.put("in a second", delay="1s")
    honest, looked, go_on = store.driver._settle, threading.Event(), threading.Event()

    def settle(steps: Any, request: Any, connection: Any) -> Settled:
        reply = honest(steps, request, connection)
        in_slot = threading.current_thread().name == "penstock-jobs"
        if in_slot and request is not None and not reply.claimed.entries and not looked.is_set():
            looked.set()
            assert go_on.wait(30)
        return reply

    store.driver._settle = settle  # type: ignore[method-assign]
    with working(store, poll="1h"):
        assert looked.wait(30)
        clock.advance("1s")
        time.sleep(0.2)  # whoever is woken by that finds the room taken, and sleeps again
        go_on.set()
        eventually(lambda: runs == ["now", "in a second"], "the second one is handled")


def test_a_busy_queue_does_not_starve_the_others(store: QueueStore, clock: FakeClock) -> None:
    """There one poll over the whole table serves the oldest rows first (W15)."""
    busy, quiet = store.queue("busy", int), store.queue("quiet", int)
    order: list[str] = []
    busy.add_handler(lambda number: order.append("busy"))
    quiet.add_handler(lambda number: order.append("quiet"))
    busy.put_many(range(1000))
    clock.advance("1h")
    quiet.put_many(range(3))
    Worker(store, batch=10).drain(limit=40)
    assert order.count("quiet") == 3


def test_precise_times_large_payloads_text_labels_and_far_dates(store: QueueStore, clock: FakeClock) -> None:
    """There: whole seconds, 2048 characters, two numbers as keys, and nothing seen beyond 2100 (W16)."""
    mails = store.queue("mails", Mail)
    clock.set(datetime(2026, 1, 1, tzinfo=UTC))
    precise = mails.put(Mail("x" * 200_000), delay=timedelta(microseconds=7), labels={"customer": "Ännchen", "a": "b"})
    far = mails.put(Mail("later"), due=datetime(2150, 1, 1, tzinfo=UTC), labels={"customer": "Ännchen"})
    assert mails.get(precise.id).due == datetime(2026, 1, 1, 0, 0, 0, 7, tzinfo=UTC)
    assert [one.id for one in mails.find(labels={"customer": "Ännchen"})] == [precise.id, far.id]
    assert claim(mails) == []
    clock.advance(timedelta(microseconds=6))
    assert claim(mails) == []
    clock.advance(timedelta(microseconds=1))
    [entry] = claim(mails)
    assert len(entry.payload) > 200_000
    clock.set(datetime(2150, 1, 1, tzinfo=UTC))
    assert [one.id for one in claim(mails, 9)] == [far.id]


# --- poison ----------------------------------------------------------------------------------------------------------


def test_poison_among_a_hundred_leased_entries(tmp_path: Path) -> None:
    """Real worker processes, one of whose entries kills them: it ends as a dead letter, the ninety-nine as done."""
    stage = scenes.Stage(tmp_path)
    jobs = stage.queue("jobs")
    jobs.put_many(range(100))
    deaths = 0
    with children() as start:
        for _ in range(10):
            deaths += start(scenes.poison, tmp_path, 3).wait() != 0
            stage.advance("61s")
            if not jobs.counts().live:
                break
            stage.store.driver.reap(node="stage")
    assert deaths == 3
    assert [letter.value for letter in jobs.dead()] == [50]
    assert jobs.dead()[0].error == "lease ran out"
    assert jobs.dead()[0].attempt == 3
    assert sorted(int(row.payload or b"") for row in jobs.history(state="done")) == [n for n in range(100) if n != 50]
    stage.store.close()

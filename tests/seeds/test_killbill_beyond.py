"""What killbill-queue leaves untested and what it gets wrong, by its own issues and by measurement (W1 to W21).

Each test says in a line what happens there. The second part is test_killbill_workers. The window recently rows (W12)
and the threshold that overflows (W17) are with the reaper, the outbox on a plain connection (W10) is with the bus;
W11 is about a setting that has no counterpart here.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.seeds.watching import Ear, Runs, at_once, claim, eventually, finish, states, working

from penstock import Bus, QueueStore, Reaper, Reject, Retry, TryAgain, Worker
from penstock.errors import (
    BadInput,
    EntryLeased,
    EntryNotFound,
    LeaseLost,
    PayloadTooLarge,
    StoreUnavailable,
    WrongType,
)
from penstock.testing import FakeClock

Open = Callable[..., QueueStore]


class Mail(msgspec.Struct):
    to: str


# --- several nodes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [("a", "b"), ("same", "same")])
def test_two_nodes_at_once_run_nothing_twice(nodes: tuple[str, str], open_store: Open) -> None:
    """Not tested there; with equal node names it runs entries twice (W9)."""
    stores = [open_store(node=node) for node in nodes]
    runs = Runs()
    for store in stores:
        store.queue("jobs", int).add_handler(runs, concurrency=4)
    jobs = stores[0].queue("jobs", int)
    with working(*stores):
        at_once(*(lambda part=part: jobs.put_many(range(part, part + 100)) for part in (0, 100, 200)))
        eventually(lambda: jobs.counts().live == 0, "all handled")
    assert sorted(runs.values) == list(range(300))
    assert states(jobs) == ["done"] * 300


def test_two_reapers_at_once_take_each_entry_back_once(open_store: Open, clock: FakeClock) -> None:
    """There two reapers duplicate nearly every entry (W5)."""
    stores = [open_store(node=node) for node in ("a", "b")]
    jobs = stores[0].queue("jobs", int)
    ids = {put.id for put in jobs.put_many(range(10))}
    for round_ in range(1, 16):
        assert len(claim(jobs, 10, attempts=None)) == (10 if round_ == 1 else 1)  # suspects come one by one
        while claim(jobs, 10, attempts=None):
            continue
        clock.advance("2m")
        found = at_once(*(lambda store=store: store.driver.reap(node=store.node) for store in stores))
        reaped = [id_ for one in found for id_, _ in one.reaped]
        assert sorted(reaped) == sorted(ids), "every one once"
        assert {entry.id for entry in jobs.find()} == ids
        assert jobs.counts().live == 10
        assert states(jobs) == ["reaped"] * 10 * round_


# --- transactions of the caller --------------------------------------------------------------------------------------


def test_a_rolled_back_transaction_takes_its_puts_with_it(store: QueueStore, connection: Any) -> None:
    jobs = store.queue("jobs", str)
    runs = Runs()
    jobs.add_handler(runs)
    with working(store):
        jobs.put("never", unique="one", labels={"k": "v"}, connection=connection)
        connection.rollback()
        assert jobs.put("free again", unique="one").created, "the unique id went with it"
        eventually(lambda: jobs.counts().live == 0, "the second one handled")
    assert runs.values == ["free again"]
    assert jobs.find(labels={"k": "v"}) == []


def test_an_update_lives_and_dies_with_the_transaction(store: QueueStore, connection: Any) -> None:
    """There it is applied although the caller rolls back (W7)."""
    jobs = store.queue("jobs", str)
    put = jobs.put("old", delay="1d", labels={"k": "old"})
    jobs.update(put.id, "new", labels={"k": "new"}, connection=connection)
    assert jobs.get(put.id, connection=connection).value == "new"
    connection.rollback()
    assert jobs.get(put.id).value == "old"
    assert [one.id for one in jobs.find(labels={"k": "old"})] == [put.id]
    jobs.update(put.id, "new", connection=connection)
    connection.commit()
    assert jobs.get(put.id).value == "new"


def test_a_cancel_lives_and_dies_with_the_transaction(store: QueueStore, connection: Any) -> None:
    jobs = store.queue("jobs", str)
    put = jobs.put("job")
    assert jobs.cancel(put.id, connection=connection) == 1
    connection.rollback()
    assert jobs.get(put.id).state == "waiting"
    assert jobs.history() == []
    assert jobs.cancel(*[entry.id for entry in jobs.find(connection=connection)], connection=connection) == 1
    connection.commit()
    assert jobs.find() == []
    assert states(jobs) == ["cancelled"]


def test_a_handler_finishes_in_its_own_transaction(store: QueueStore, connection: Any) -> None:
    """There the effect and the end of the entry are two commits; here they can be one."""
    jobs = store.queue("jobs", int)
    connection.execute("CREATE TABLE effects (number INTEGER)")
    connection.commit()
    fail = [True]

    @jobs.handler(retry=Retry(attempts=3, immediate=2))
    def work(number: int, ctx: Any) -> None:
        connection.execute(f"INSERT INTO effects VALUES ({number})")
        ctx.finish(connection=connection)
        if fail.pop() if fail else False:
            connection.rollback()
            raise RuntimeError("before the commit")
        connection.commit()

    put = jobs.put(7)
    Worker(store).drain()
    assert list(connection.execute("SELECT number FROM effects").fetchall()) == [(7,)]
    assert states(jobs, put.id) == ["retried", "done"]


# --- cancelling and looking back -------------------------------------------------------------------------------------


def test_cancel_by_id(store: QueueStore) -> None:
    """There an unknown id is a null pointer, and a running entry ends both removed and processed (W18)."""
    jobs = store.queue("jobs", str)
    first, second = jobs.put("first"), jobs.put("second")
    assert jobs.cancel(first.id) == 1
    assert jobs.cancel(first.id) == 0, "again is harmless"
    with pytest.raises(EntryNotFound):
        jobs.cancel("no-such-id")
    [running] = claim(jobs)
    with pytest.raises(EntryLeased):
        jobs.cancel(second.id)
    assert jobs.cancel(second.id, force=True) == 1
    with pytest.raises(LeaseLost):
        finish(store, running)
    assert [(row.id, row.state) for row in jobs.history()] == [(first.id, "cancelled"), (second.id, "cancelled")]
    with pytest.raises(EntryNotFound):
        jobs.cancel(first.id, "no-such-id")


def test_history_is_read_by_date(store: QueueStore, clock: FakeClock) -> None:
    jobs = store.queue("jobs", int)
    start = clock.now()
    for number in range(5):
        jobs.put(number, labels={"odd": str(number % 2)})
        finish(store, *claim(jobs))
        clock.advance("1h")
    since, before = start + timedelta(hours=1), start + timedelta(hours=3)
    assert [row.payload for row in jobs.history(since=since, before=before)] == [b"1", b"2"], "from on, strictly before"
    assert [row.payload for row in jobs.history(since=since, labels={"odd": "1"})] == [b"1", b"3"]
    assert [row.payload for row in jobs.history(newest_first=True, limit=2)] == [b"4", b"3"]
    assert jobs.history(since=start + timedelta(days=1)) == []


def test_an_ended_entry_can_be_replayed(store: QueueStore) -> None:
    """There nothing comes back from the history (W14)."""
    jobs = store.queue("jobs", str)
    runs = Runs(failures=1)
    jobs.add_handler(runs, retry=Retry(attempts=1))
    put = jobs.put("job")
    Worker(store).drain()
    assert [letter.id for letter in jobs.dead()] == [put.id]
    assert jobs.replay(put.id) == 1
    assert jobs.replay(put.id) == 0
    assert (jobs.get(put.id).generation, jobs.dead()) == (2, [])
    Worker(store).drain()
    assert [(row.generation, row.attempt, row.state) for row in jobs.history(put.id)] == [
        (1, 1, "dead"),
        (2, 1, "done"),
    ]
    assert runs.values == ["job"]


# --- failures --------------------------------------------------------------------------------------------------------


def test_an_entry_that_cannot_be_read_is_a_dead_letter_at_once(store: QueueStore) -> None:
    """There it stays in processing and is reaped forever (W1)."""
    runs = Runs()
    mails = store.queue("mails", Mail)
    mails.add_handler(runs)
    poison = [store.queue("mails").put({"nobody": 1}), store.queue("mails", bytes).put(b"\xff\xfe")]
    good = mails.put(Mail("ann"))
    with working(store):
        eventually(lambda: mails.counts().live == 0, "all dealt with")
    assert runs.values == [Mail("ann")]
    assert sorted(letter.id for letter in mails.dead()) == sorted(put.id for put in poison)
    assert all(letter.error and "Undecodable" in letter.error for letter in mails.dead())
    assert all(states(mails, put.id) == ["dead"] for put in poison)
    assert states(mails, good.id) == ["done"]


def test_queues_without_a_handler_fill_no_claim(store: QueueStore, clock: FakeClock) -> None:
    """There they are claimed, abandoned, reaped and claimed again, before all others (W2)."""
    store.queue("unhandled", int).put_many(range(300))
    clock.advance("1h")
    jobs = store.queue("jobs", int)
    runs = Runs()
    jobs.add_handler(runs)
    jobs.put_many(range(5))
    assert Worker(store).drain() == 5
    clock.advance("1h")
    assert Worker(store).drain() == 0
    counts = store.queue("unhandled").counts()
    assert (counts.ready, counts.leased) == (300, 0)
    assert store.queue("unhandled").history() == []


def test_a_put_that_cannot_be_stored_raises(open_store: Open, place: Any) -> None:
    """There posting swallows every error, and what was posted is gone (W3)."""
    store = open_store()
    mails, bus = store.queue("mails", Mail), Bus(store)
    bus.subscribe("all", dict)
    with pytest.raises(WrongType):
        mails.put("not a mail")  # type: ignore[arg-type]
    with pytest.raises(PayloadTooLarge):
        mails.put(Mail("x" * 300_000))
    with pytest.raises(PayloadTooLarge):
        bus.publish({"text": "x" * 300_000})
    with pytest.raises(BadInput):
        mails.put(Mail("ann"), labels={"a": "x" * 256})
    assert mails.counts().live == 0
    store.close()
    with pytest.raises(StoreUnavailable):
        mails.put(Mail("ann"))
    with pytest.raises(StoreUnavailable):
        bus.publish({"a": 1})


@pytest.mark.parametrize("error", [RecursionError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_any_error_of_a_handler_is_a_failure(error: type[BaseException], store: QueueStore) -> None:
    """There an Error that is not an Exception counts as success (W4)."""
    jobs = store.queue("jobs", str)
    runs = Runs(failures=1, error=error)
    jobs.add_handler(runs, retry=Retry(attempts=2, immediate=1))
    put = jobs.put("job")
    with working(store):
        eventually(lambda: jobs.counts().live == 0, "handled in the end")
    assert states(jobs, put.id) == ["retried", "done"]
    assert (jobs.history(put.id)[0].error or "").startswith(error.__name__)


def test_exhaustion_is_final_and_told_once(store: QueueStore, clock: FakeClock) -> None:
    jobs = store.queue("jobs", str)
    told: list[tuple[Any, str]] = []
    ear = Ear(store, "settled")
    runs = Runs(failures=99)
    jobs.add_handler(
        runs, retry=Retry(attempts=3, delays=["1m"], jitter=False), on_dead=lambda *what: told.append(what)
    )
    put = jobs.put("job")
    for _ in range(6):
        Worker(store).drain()
        clock.advance("1h")
    assert runs.tries == 3
    assert states(jobs, put.id) == ["retried", "retried", "dead"]
    assert told == [("job", "RuntimeError: failure 3")]
    assert [signal.data["outcome"] for signal in ear.heard] == ["retry", "retry", "dead"]
    assert len(jobs.dead()) == 1
    Reaper(store, keep_history="1h").once()
    assert len(jobs.dead()) == 1, "no pruning ends a dead letter"


def schedules(store: QueueStore, *failures: Retry, own: Retry) -> tuple[Any, list[TryAgain]]:
    """A queue whose handler fails by these policies, one after the other, and then works."""
    jobs = store.queue("jobs", str)
    left = [TryAgain(retry) for retry in failures]

    @jobs.handler(retry=own)
    def work(text: str) -> None:
        if left:
            raise left.pop(0)

    return jobs, left


def test_the_schedule_of_the_latest_failure_counts(store: QueueStore, clock: FakeClock) -> None:
    """As there: a handler may stretch or shorten its schedule between tries."""
    jobs, _ = schedules(
        store, Retry(attempts=9, delays=["1d"]), Retry(attempts=9, delays=["1m"]), own=Retry(attempts=9, delays=["1h"])
    )
    put = jobs.put("job")
    Worker(store).drain()
    assert jobs.get(put.id).due - clock.now() == timedelta(days=1)
    clock.advance("1d")
    Worker(store).drain()
    assert jobs.get(put.id).due - clock.now() == timedelta(minutes=1)
    clock.advance("1m")
    Worker(store).drain()
    assert states(jobs) == ["retried", "retried", "done"]


def test_a_shorter_schedule_ends_sooner(store: QueueStore, clock: FakeClock) -> None:
    jobs, _ = schedules(store, Retry(attempts=9, delays=["0s"]), Retry(attempts=2), own=Retry(attempts=9))
    jobs.put("job")
    Worker(store).drain()
    assert states(jobs) == ["retried", "dead"]


def test_a_longer_schedule_stretches_the_delays_but_not_the_attempts(store: QueueStore, clock: FakeClock) -> None:
    """There the latest schedule also brings more tries; here ``attempts`` is the most there can ever be."""
    longer = Retry(attempts=9, delays=["1h"])
    jobs, _ = schedules(store, longer, longer, longer, own=Retry(attempts=3, delays=["0s"]))
    jobs.put("job")
    for _ in range(4):
        Worker(store).drain()
        clock.advance("1h")
    assert states(jobs) == ["retried", "retried", "dead"]


def test_failures_wait_and_leave_their_text(store: QueueStore, clock: FakeClock) -> None:
    """There immediate retries have no backoff, no error text is kept, and rows are not linked (W13)."""
    jobs = store.queue("jobs", str)
    jobs.add_handler(Runs(failures=2), retry=Retry(attempts=3, backoff="10s", jitter=False))
    put = jobs.put("job")
    assert Worker(store).drain() == 1
    entry = jobs.get(put.id)
    assert (entry.due - clock.now(), entry.error) == (timedelta(seconds=10), "RuntimeError: failure 1")
    clock.advance("10s")
    assert Worker(store).drain() == 1
    assert jobs.get(put.id).due - clock.now() == timedelta(seconds=20)
    clock.advance("20s")
    Worker(store).drain()
    rows = jobs.history(put.id)
    assert [row.error for row in rows] == ["RuntimeError: failure 1", "RuntimeError: failure 2", None]
    assert all(row.started is not None and row.started <= row.ended for row in rows), "processing time is there (W19)"


def test_a_rejected_entry_is_told_apart_from_a_failed_one(store: QueueStore) -> None:
    jobs = store.queue("jobs", str)
    jobs.add_handler(lambda text: Reject("not for us"))
    put = jobs.put("job")
    Worker(store).drain()
    assert states(jobs, put.id) == ["dead"]
    assert jobs.dead()[0].error == "rejected: not for us"

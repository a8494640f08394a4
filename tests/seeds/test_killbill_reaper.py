"""killbill-queue's promises in our words, the reaper: what stays, what is taken back, and what history says of it.

The seed copies a stuck row to a new one under a new id. Here the entry keeps its id; the row `reaped` in the history is
the trace. What the seed calls created by a node is our sticky entry: only workers of that node are offered it.
"""

from collections.abc import Callable

import pytest
from tests.seeds.watching import Ear, Runs, claim, eventually, finish, states, working

from penstock import QueueStore, Reaper, Worker
from penstock.errors import LeaseLost
from penstock.testing import FakeClock

Open = Callable[..., QueueStore]


def reap(store: QueueStore, limit: int = 1000) -> object:
    return store.driver.reap(node=store.node, limit=limit)


@pytest.mark.seed("A3.27")
def test_fresh_entries_are_never_reaped(open_store: Open, clock: FakeClock) -> None:
    here, there = open_store(node="here"), open_store(node="there")
    for store in (here, there):
        jobs = store.queue(f"jobs-{store.node}", str)
        jobs.put("waiting", sticky=True)
        jobs.put("held", sticky=True)
        assert len(claim(jobs)) == 1
        store.driver.beat(store.node)
    clock.advance("59s")
    found = here.driver.reap(node="here")
    assert (found.reaped, found.dead, found.expired, found.freed, found.late) == ([], [], [], [], [])
    for store in (here, there):
        counts = store.queue(f"jobs-{store.node}").counts()
        assert (counts.ready, counts.leased) == (1, 1)


@pytest.mark.seed("A3.28", "A3.29")
def test_leases_that_ran_out_are_reaped_whoever_held_them(open_store: Open, clock: FakeClock) -> None:
    """Six live entries stay six: the two taken back keep id, labels and headers, where the seed inserts new rows."""
    here, there = open_store(node="here"), open_store(node="there")
    jobs = here.queue("jobs", int)
    puts = [jobs.put(number, labels={"token": f"t{number}"}) for number in range(2)]
    mine = claim(jobs, owner="here/1")
    theirs = claim(there.queue("jobs", int), owner="there/1")
    clock.advance("2m")
    jobs.put_many(range(2, 6))

    found = here.driver.reap(node="here")
    assert sorted(found.reaped) == sorted((put.id, "jobs") for put in puts)
    assert jobs.counts().live == 6
    assert jobs.counts().ready == 6
    rows = jobs.history(state="reaped")
    assert sorted((row.id, row.owner) for row in rows) == sorted(
        [(mine[0].id, "here/1"), (theirs[0].id, "there/1")]
    )  # fmt: skip
    live = {entry.id: entry for entry in jobs.find()}
    assert {row.id: row.labels for row in rows} == {id_: live[id_].labels for id_ in (puts[0].id, puts[1].id)}
    assert all(live[put.id].attempt == 1 for put in puts), "the attempt stays spent"
    assert found.dead == []


@pytest.mark.seed("A3.30", "A3.34")
def test_an_entry_stuck_on_a_live_node_moves_on_after_its_lease(open_store: Open, clock: FakeClock) -> None:
    """The seed waits for its threshold; here the lease is the threshold, and a fresh one protects an old entry."""
    here, there = open_store(node="here"), open_store(node="there")
    jobs = here.queue("jobs", str)
    runs = Runs()
    jobs.add_handler(runs)
    jobs.put("stuck")
    clock.advance("1d")
    [held] = claim(there.queue("jobs", str), lease="5m", owner="there/1")
    there.driver.beat("there")
    jobs.put_many(["a", "b"])

    Worker(here).drain()
    assert sorted(runs.values) == ["a", "b"], "the others flow, the leased one is not seen"
    clock.advance("4m")
    assert here.driver.reap(node="here").reaped == []
    Worker(here).drain()
    assert len(runs.values) == 2

    clock.advance("1m")
    Worker(here).drain()
    assert runs.values[2:] == ["stuck"]
    assert states(jobs, held.id) == ["reaped", "done"]
    with pytest.raises(LeaseLost):
        finish(there, held)
    assert states(jobs, held.id) == ["reaped", "done"]


@pytest.mark.seed("A3.31")
def test_an_entry_of_a_vanished_node_is_delivered(open_store: Open, clock: FakeClock) -> None:
    gone, here = open_store(node="gone"), open_store(node="here")
    jobs = here.queue("jobs", str)
    runs = Runs()
    jobs.add_handler(runs)
    put = gone.queue("jobs", str).put("orphan", sticky=True)
    gone.driver.beat("gone")
    jobs.put("mine")
    Worker(here).drain()
    clock.advance("9m")
    Worker(here).drain()
    assert runs.values == ["mine"]

    clock.advance("2m")
    Worker(here).drain()
    assert runs.values == ["mine", "orphan"]
    assert states(jobs, put.id) == ["done"], "never claimed before, so nothing was reaped"


@pytest.mark.seed("A3.31")
def test_an_overdue_entry_of_a_living_node_stays_with_it(open_store: Open, clock: FakeClock) -> None:
    busy, here = open_store(node="busy"), open_store(node="here")
    jobs = here.queue("jobs", str)
    runs = Runs()
    jobs.add_handler(runs)
    busy.queue("jobs", str).put("backlog", sticky=True)
    clock.advance("1h")
    busy.driver.beat("busy")
    Worker(here).drain()
    assert runs.values == [], "a mere backlog is not stolen"
    assert len(claim(busy.queue("jobs", str))) == 1


@pytest.mark.seed("A3.32")
def test_an_own_stuck_entry_is_delivered_again(store: QueueStore, clock: FakeClock) -> None:
    jobs = store.queue("jobs", str)
    runs = Runs()
    jobs.add_handler(runs)
    jobs.put("stuck")
    assert len(claim(jobs, owner=f"{store.node}/1")) == 1
    jobs.put_many(["a", "b"])
    Worker(store).drain()
    assert sorted(runs.values) == ["a", "b"]
    clock.advance("61s")
    Worker(store).drain()
    assert runs.values[2:] == ["stuck"]
    assert sorted(states(jobs)) == ["done", "done", "done", "reaped"]


@pytest.mark.seed("A3.33")
def test_an_own_late_entry_is_told_but_not_reaped(store: QueueStore, clock: FakeClock) -> None:
    ear = Ear(store, "late", "reaped")
    jobs = store.queue("jobs", str)
    put = jobs.put("late", sticky=True)
    clock.advance("1h")
    found = store.driver.reap(node=store.node)
    assert found.late == [(put.id, "jobs")]
    assert (found.freed, found.reaped) == ([], [])
    assert ear.ids("late") == [put.id]
    entry = jobs.get(put.id)
    assert (entry.node, entry.attempt, entry.state) == (store.node, 0, "waiting")
    assert jobs.history() == []


@pytest.mark.seed("A3.28")
def test_a_running_worker_reaps_by_itself(open_store: Open, clock: FakeClock) -> None:
    here, there = open_store(node="here"), open_store(node="there")
    jobs = here.queue("jobs", str)
    runs = Runs()
    jobs.add_handler(runs)
    jobs.put("stuck")
    assert len(claim(there.queue("jobs", str))) == 1
    with working(here, reaper=Reaper(here, every="15s")):
        clock.advance("2m")
        eventually(lambda: runs.values == ["stuck"], "the vanished worker's entry handled")
    assert states(jobs) == ["reaped", "done"]


def test_many_late_entries_hide_no_stuck_ones(open_store: Open, clock: FakeClock) -> None:
    """The seed looks at its ten oldest rows, late ones included, and so may never come to the stuck ones (W12)."""
    here, gone = open_store(node="here"), open_store(node="gone")
    late, stuck, orphans = (here.queue(name, int) for name in ("late", "stuck", "orphans"))
    late.put_many(range(25), sticky=True)
    clock.advance("1s")
    orphan = gone.queue("orphans", int).put(1, sticky=True)
    held = stuck.put(1)
    assert len(claim(stuck)) == 1
    clock.advance("1h")

    found = here.driver.reap(node="here", limit=10)
    assert found.reaped == [(held.id, "stuck")]
    assert found.freed == [(orphan.id, "orphans")]
    assert orphans.get(orphan.id).node is None


def test_a_threshold_of_many_weeks_is_kept(open_store: Open, clock: FakeClock) -> None:
    """The seed's threshold overflows above 24.8 days (W17)."""
    here, gone = open_store(node="here"), open_store(node="gone")
    put = gone.queue("jobs", int).put(1, sticky=True)
    reaper = Reaper(here, sticky_after="60d", keep_history=None)
    clock.advance("59d")
    reaper.once()
    assert here.queue("jobs", int).get(put.id).node == "gone"
    clock.advance("2d")
    reaper.once()
    assert here.queue("jobs", int).get(put.id).node is None

"""Batches, chains, results and progress, as programs use them: with handlers and a worker, on every store."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest
from tests.contract.queue.settle.test_doubts import losing
from tests.contract.queue.shorthand import Contract, OpenStore, take, take_one
from tests.contract.queue.shorthand import end as end_entry

from penstock import Context, Reject, Retry, Worker, aio, open_queues
from penstock.errors import BadInput, Conflict, EntryNotFound, OutcomeUnknown, Undecodable, UniqueHeld
from penstock.queue import results
from penstock.queue.batch import LABEL, batch_status, cancel_batch
from penstock.queue.entry import HELD, Unique
from penstock.queue.held import orphans, reasons
from penstock.queue.protocol import Ending, Find, On, Step, Wait
from penstock.queue.queues import QueueStore
from penstock.queue.results import new_result, values_of_batch
from penstock.testing import FakeClock

ONCE = Retry(attempts=1)


def drain(store: QueueStore) -> None:
    Worker(store).drain()


@contextlib.contextmanager
def running(store: QueueStore) -> Iterator[None]:
    """A worker in the background."""
    worker = Worker(store)
    worker.start()
    try:
        yield
    finally:
        worker.stop()


@contextlib.contextmanager
def counted_calls(store: QueueStore, calls: Counter[str]) -> Iterator[None]:
    """Count what is asked of the store."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("find", "dead", "history", "result", "results", "waits", "settle", "documents"):
            patch.setattr(store.driver, name, counting(name, getattr(store.driver, name), calls))
        yield


def counting(name: str, call: Callable[..., Any], calls: Counter[str]) -> Callable[..., Any]:
    def counted(*args: Any, **options: Any) -> Any:
        calls[name] += 1
        return call(*args, **options)

    return counted


class TestBatches(Contract):
    def test_the_entry_after_a_batch_runs_once_with_the_tally(self, store: QueueStore) -> None:
        pages, reports = store.queue("pages", int), store.queue("reports", str)
        seen: list[tuple[str, dict[str, int]]] = []

        @pages.handler(retry=ONCE)
        def scan(page: int) -> None:
            if page == 3:
                raise ValueError("torn")

        @reports.handler
        def report(text: str, ctx: Context[str]) -> None:
            seen.append((text, ctx.before.tally))

        with store.batch(then=(reports, "all"), on="ended") as batch:
            batch.put_many(pages, range(5))
        drain(store)
        assert seen == [("all", {"done": 4, "dead": 1, "cancelled": 0, "expired": 0})]
        status = batch_status(store, batch.id)
        assert (status.state, status.needs, status.members) == ("done", 0, {"done": 4, "dead": 1})

    def test_a_dead_member_holds_the_rest_until_it_is_replayed(self, store: QueueStore) -> None:
        pages, reports = store.queue("pages", int), store.queue("reports", str)
        bad = {3}

        @pages.handler(retry=ONCE)
        def scan(page: int) -> None:
            if page in bad:
                raise Reject("torn")

        reports.add_handler(lambda text: None)
        with store.batch(then=(reports, "all")) as batch:
            batch.put_many(pages, range(5))
        drain(store)
        [dead] = pages.dead()
        [wait] = store.driver.waits([batch.id])
        assert reasons(store, wait) == [
            f"waits for {dead.id} of queue pages to be done: it is dead; replay it (purging it cancels this one)"
        ]
        assert orphans(store) == []
        bad.clear()
        pages.replay(dead.id)
        drain(store)
        assert batch_status(store, batch.id).state == "done"

    def test_nothing_is_put_when_the_block_fails(self, store: QueueStore) -> None:
        pages = store.queue("pages", int)
        with contextlib.suppress(ZeroDivisionError), store.batch(then=(pages, 0)) as batch:
            batch.put(pages, 1)
            batch.put(pages, 1 // 0)
        assert pages.counts().live == 0

    @pytest.mark.filterwarnings("error")
    def test_a_batch_that_is_dropped_before_it_was_put_warns(self, store: QueueStore) -> None:
        pages = store.queue("pages", int)
        batch = store.batch(then=(pages, 0))
        batch.put_many(pages, range(3))
        with pytest.warns(ResourceWarning, match=f"batch {batch.id} with 3 members was never put"):
            del batch
        store.batch(then=(pages, 0))  # nothing was collected
        with contextlib.suppress(ZeroDivisionError), store.batch(then=(pages, 0)) as failed:
            failed.put(pages, 1)
            failed.put(pages, 1 // 0)
        with store.batch(then=(pages, 0)) as put:
            put.put(pages, 1)
        del failed, put

    def test_a_batch_of_nothing_is_refused(self, store: QueueStore) -> None:
        pages = store.queue("pages", int)
        with pytest.raises(BadInput, match="batch of nothing"), store.batch(then=(pages, 0)):
            pass

    @pytest.mark.parametrize(
        ("options", "words"),
        [({"on": "started"}, "on='started'"), ({"then": 3}, "queue and a value"), ({"within": 5}, "within")],
    )
    def test_wrong_options_are_refused(self, store: QueueStore, options: dict[str, Any], words: str) -> None:
        pages = store.queue("pages", int)
        with pytest.raises(BadInput, match=words):
            store.batch(**{"then": (pages, 0), **options})

    def test_members_add_members_while_it_runs(self, store: QueueStore) -> None:
        pages, reports = store.queue("pages", int), store.queue("reports", str)
        tallies: list[dict[str, int]] = []

        @pages.handler
        def scan(page: int, ctx: Context[int]) -> None:
            if page < 3:
                ctx.put(pages, page + 1, batch=ctx.batch)

        reports.add_handler(lambda text, ctx: tallies.append(ctx.before.tally))
        with store.batch(then=(reports, "all"), on="ended") as batch:
            batch.put(pages, 0)
        drain(store)
        assert tallies == [{"done": 4, "dead": 0, "cancelled": 0, "expired": 0}]
        with pytest.raises(Conflict, match="not held"):
            pages.put(9, batch=batch.id)

    def test_a_member_that_adds_to_a_cancelled_batch_is_dead_at_once(self, store: QueueStore) -> None:
        pages, reports = store.queue("pages", int), store.queue("reports", str)
        attempts: list[int] = []

        @pages.handler(retry=Retry(attempts=5, backoff="0s"))
        def scan(page: int, ctx: Context[int]) -> None:
            attempts.append(page)
            reports.cancel(ctx.batch or "")
            ctx.put(pages, page + 1, batch=ctx.batch)

        reports.add_handler(lambda _: None)
        with store.batch(then=(reports, "all"), on="done") as batch:
            batch.put(pages, 1)
        drain(store)
        assert attempts == [1]
        [letter] = pages.dead()
        assert "NotHeld" in (letter.error or "")
        assert pages.counts().live == reports.counts().live == 0

    def test_a_callback_into_a_locked_queue_waits_there(self, store: QueueStore) -> None:
        pages, reports = store.queue("pages", int), store.queue("reports", str)
        seen: list[dict[str, int]] = []
        pages.add_handler(lambda _: None)
        reports.add_handler(lambda _, ctx: seen.append(ctx.before.tally))
        reports.lock(reason="until the printer is back")
        with store.batch(then=(reports, "all")) as batch:
            batch.put_many(pages, range(3))
        drain(store)
        assert (seen, reports.counts().ready, batch_status(store, batch.id).state) == ([], 1, "waiting")
        reports.unlock()
        drain(store)
        assert seen == [{"done": 3, "dead": 0, "cancelled": 0, "expired": 0}]

    def test_batches_nest(self, store: QueueStore) -> None:
        work = store.queue("work", str)
        order: list[str] = []
        work.add_handler(order.append, concurrency=1)
        with store.batch(then=(work, "outer")) as outer:
            for name in ("a", "b"):
                with store.batch(then=(work, f"after {name}"), inside=outer) as inner:
                    inner.put_many(work, [f"{name}1", f"{name}2"])
        drain(store)
        assert order[-1] == "outer"
        assert sorted(order) == ["a1", "a2", "after a", "after b", "b1", "b2", "outer"]
        assert order.index("after a") > max(order.index("a1"), order.index("a2"))

    def test_a_batch_that_is_too_large_for_one_step_is_put_in_parts(self, store: QueueStore) -> None:
        work = store.queue("work", int)
        done: list[int] = []
        work.add_handler(done.append)
        store.driver.unit_limit = 10
        with store.batch(then=(work, -1)) as batch:
            batch.put_many(work, range(35))
        drain(store)
        assert (done[-1], sorted(done)) == (-1, list(range(-1, 35)))
        assert batch_status(store, batch.id).tally["done"] == 35

    def test_a_maker_that_dies_between_parts_leaves_a_cancelled_batch(
        self, store: QueueStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        work = store.queue("work", int)
        store.driver.unit_limit = 10
        commit, calls = store.driver.commit, []

        def dies(step: Any, **options: Any) -> Any:
            calls.append(step)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return commit(step, **options)

        monkeypatch.setattr(store.driver, "commit", dies)
        monkeypatch.setattr("penstock.queue.batch.cancel_batch", lambda *_: 0)  # it is dead
        batch = store.batch(then=(work, -1), within="10m")
        batch.put_many(work, range(35))
        with pytest.raises(KeyboardInterrupt):
            batch.commit()
        monkeypatch.undo()
        [wait] = store.driver.waits([batch.id])
        assert "the batch is not complete" in reasons(store, wait)[-1] or "and for" in reasons(store, wait)[-1]
        clock.advance("11m")
        store.driver.reap(node="one")
        assert batch_status(store, batch.id).state == "cancelled"

    @pytest.mark.parametrize("happens", [True, False])
    def test_a_commit_whose_reply_was_lost_is_repeated(self, store: QueueStore, happens: bool) -> None:
        work, done = store.queue("work", int), list[int]()
        work.add_handler(done.append)
        batch = store.batch(then=(work, -1))
        batch.put_many(work, range(5))
        with losing(store, happens=happens), pytest.raises(OutcomeUnknown):
            batch.commit()
        with pytest.raises(Conflict, match="commit"):
            batch.put(work, 5)
        assert batch.commit() == batch.id
        drain(store)
        assert (done[-1], sorted(done)) == (-1, list(range(-1, 5)))
        assert batch_status(store, batch.id).tally["done"] == 5
        with pytest.raises(Conflict, match="put already"):
            batch.commit()

    def test_a_commit_that_is_repeated_after_all_has_ended_puts_nothing(self, store: QueueStore) -> None:
        work, done = store.queue("work", int), list[int]()
        work.add_handler(done.append)
        batch = store.batch(then=(work, -1))
        batch.put_many(work, range(5))
        with losing(store, happens=True), pytest.raises(OutcomeUnknown):
            batch.commit()
        drain(store)
        assert batch.commit() == batch.id
        drain(store)
        assert (done[-1], sorted(done)) == (-1, list(range(-1, 5)))

    @pytest.mark.parametrize("happens", [True, False])
    @pytest.mark.parametrize("lost", range(5))
    def test_a_commit_in_parts_goes_on_where_a_reply_was_lost(
        self, store: QueueStore, happens: bool, lost: int
    ) -> None:
        work, done = store.queue("work", int), list[int]()
        work.add_handler(done.append)
        store.driver.unit_limit = 10
        batch = store.batch(then=(work, -1))
        batch.put_many(work, range(35))
        with losing(store, happens=happens, passing=lost), pytest.raises(OutcomeUnknown):
            batch.commit()
        drain(store)  # what was put is worked on meanwhile
        assert -1 not in done
        assert batch.commit() == batch.id
        drain(store)
        assert (done[-1], sorted(done)) == (-1, list(range(-1, 35)))
        assert batch_status(store, batch.id).tally["done"] == 35
        assert store.driver.links() == []

    def test_a_commit_in_parts_whose_part_is_refused_cancels_what_was_put(self, store: QueueStore) -> None:
        work = store.queue("work", int)
        work.put(7, unique="taken")
        store.driver.unit_limit = 10
        batch = store.batch(then=(work, -1))
        batch.put_many(work, range(15))
        batch.put(work, 7, unique=Unique("taken", on_conflict="raise"))
        with pytest.raises(UniqueHeld):
            batch.commit()
        assert batch_status(store, batch.id).state == "cancelled"
        assert [entry.value for entry in work.find()] == [7]

    def test_cancelling_a_batch_cancels_all_that_is_left_of_it(self, store: QueueStore) -> None:
        work = store.queue("work", str)
        with store.batch(then=(work, "outer"), on="ended") as outer:
            outer.put_many(work, ["a", "b"])
            with store.batch(then=(work, "inner"), inside=outer) as inner:
                inner.put(work, "c")
        running = take_one(store, "work")
        assert outer.cancel() == 5
        assert work.counts().live == 0
        assert batch_status(store, outer.id).state == "cancelled"
        assert {row.state for row in work.history()} == {"cancelled"}
        assert cancel_batch(store, outer.id) == 0
        assert running.id in {row.id for row in work.history()}

    @pytest.mark.parametrize("how", ["by hand", "interrupted"])
    def test_cancelling_descends_into_batches_whose_entry_is_cancelled(self, store: QueueStore, how: str) -> None:
        work = store.queue("work", str)
        with store.batch(then=(work, "outer"), on="ended") as outer:
            outer.put(work, "a")
            with store.batch(then=(work, "middle"), inside=outer, on="ended") as middle:
                middle.put(work, "b")
                with store.batch(then=(work, "inner"), inside=middle, on="ended") as inner:
                    inner.put_many(work, ["c", "d"])
        ended = [inner.id] if how == "by hand" else [outer.id, middle.id, inner.id]
        for id_ in ended:
            work.cancel(id_)
        assert cancel_batch(store, outer.id) == 7 - len(ended)
        assert work.counts().live == 0
        assert {row.state for row in work.history()} == {"cancelled"}

    def test_members_that_end_while_the_batch_is_cancelled_are_left_in_peace(
        self, store: QueueStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        work = store.queue("work", int)
        with store.batch(then=(store.queue("then", int), -1)) as batch:
            batch.put_many(work, range(250))
        running = take_one(store, "work")
        cancel = store.driver.cancel

        def cancel_late(ids: Any, **options: Any) -> int:
            if running.id in ids and len(ids) > 1:
                end_entry(store, running)
            return cancel(ids, **options)

        monkeypatch.setattr(store.driver, "cancel", cancel_late)
        assert cancel_batch(store, batch.id) == 250
        status = batch_status(store, batch.id)
        assert (status.state, work.find()) == ("cancelled", [])
        assert (status.tally["done"], status.tally["cancelled"]) == (1, 249)

    def test_a_member_that_is_met_twice_counts_once(self, store: QueueStore) -> None:
        """Two pages that both lead to a third: its unique id stands for one entry."""
        pages, then, tallies = store.queue("pages", str), store.queue("then", str), []

        def crawl(page: str, ctx: Context[str]) -> None:
            if page != "/about":
                ctx.put(pages, "/about", unique="/about", delay="1s", batch=ctx.batch)

        pages.add_handler(crawl)
        then.add_handler(lambda _, ctx: tallies.append(ctx.before.tally["done"]))
        with store.batch(then=(then, "all")) as batch:
            batch.put_many(pages, ["/a", "/b"])
            batch.put(pages, "/about", unique="/about", delay="1s")
            batch.put(pages, "/about", unique="/about", delay="1s")
        Worker(store).drain()
        assert tallies == []
        for entry in pages.find():
            pages.reschedule(entry.id, delay="0s")
        Worker(store).drain()
        assert tallies == [3]
        assert store.driver.links() == []

    def test_a_member_that_was_there_before_is_waited_for(self, store: QueueStore) -> None:
        """A maker that is started again puts the same ids into another batch."""
        work, then, ran = store.queue("work", int), store.queue("then", int), []
        work.add_handler(lambda number: None)
        then.add_handler(ran.append)
        for number in range(2):
            with store.batch(then=(then, number)) as batch:
                batch.put(work, 1, id="order-17-0000000", delay="1h")
                batch.put(work, 2)
        Worker(store).drain()
        assert ran == []
        work.reschedule("order-17-0000000", delay="0s")
        Worker(store).drain()
        assert sorted(ran) == [0, 1]

    def test_many_are_put_into_a_batch_at_once(self, store: QueueStore) -> None:
        work, done = store.queue("work", int), list[int]()
        work.add_handler(done.append)
        with store.batch(then=(work, -1), on="ended") as batch:
            batch.put(work, 0)
        put = work.put_many(range(1, 6), batch=batch.id, chunk=2)
        assert [result.created for result in put] == [True] * 5
        work.put_many([10, 11], after=[batch.id])
        [wait] = store.driver.waits([batch.id])
        assert wait.needs == 6
        drain(store)
        assert (sorted(done[:6]), done[6], sorted(done[7:])) == (list(range(6)), -1, [10, 11])
        assert batch_status(store, batch.id).tally["done"] == 6
        with pytest.raises(Conflict, match="not held"):
            work.put_many([7, 8], batch=batch.id)
        assert work.find() == []

    def test_a_put_into_a_batch_is_repeatable(self, store: QueueStore) -> None:
        work, then, tallies = store.queue("work", int), store.queue("then", str), []
        work.add_handler(lambda number: None)
        then.add_handler(lambda _, ctx: tallies.append(ctx.before.tally["done"]))
        with store.batch(then=(then, "all")) as batch:
            batch.put(work, 1, delay="1h")
        for _ in range(3):
            work.put(2, id="member-2-0000000", batch=batch.id)
        Worker(store).drain()
        work.put(2, id="member-2-0000000", batch=batch.id)
        [first] = work.find()
        work.reschedule(first.id, delay="0s")
        Worker(store).drain()
        assert tallies == [2]

    def test_who_joins_from_outside_counts_as_the_batch_says(self, store: QueueStore) -> None:
        work, then, tallies = store.queue("work", int), store.queue("then", str), []
        work.add_handler(lambda number: None)
        then.add_handler(lambda text, ctx: tallies.append((text, ctx.before.tally["cancelled"])))
        with store.batch(then=(then, "outer"), on="ended") as outer:
            outer.put(work, 1)
        late = work.put(2, delay="1h", batch=outer.id).id
        with store.batch(then=(then, "inner"), inside=outer.id) as inner:
            inner.put(work, 3, delay="1h")
        inner.cancel()
        work.cancel(late)
        Worker(store).drain()
        assert tallies == [("outer", 2)], "a cancelled member and a cancelled batch inside count, and do not cancel"

    def test_a_queue_of_another_store_is_refused(self, store: QueueStore) -> None:
        with open_queues("memory://elsewhere") as other:
            foreign, own = other.queue("q", int), store.queue("q", int)
            with pytest.raises(BadInput, match="one space of one store"):
                store.batch(then=(foreign, 1))
            with pytest.raises(BadInput, match="one space of one store"):
                store.chain((own, 1), (foreign, 2))
            batch = store.batch(then=(own, 1))
            with pytest.raises(BadInput, match="one space of one store"):
                batch.put(foreign, 1)
            with pytest.raises(BadInput, match="a second batch"):
                batch.put(own, 1, batch="other")

    def test_members_are_found_by_the_label_of_their_batch(self, store: QueueStore) -> None:
        work = store.queue("work", int)
        with store.batch(then=(work, -1)) as batch:
            ids = batch.put_many(work, range(3))
        assert {entry.id for entry in store.driver.find(Find(labels={LABEL: batch.id}))} == set(ids)

    def test_an_unknown_batch_is_refused(self, store: QueueStore) -> None:
        with pytest.raises(EntryNotFound, match="no batch"):
            batch_status(store, "nothing")

    def test_a_lost_link_is_found(self, store: QueueStore) -> None:
        work = store.queue("work", int)
        with store.batch(then=(work, -1)) as batch:
            batch.put(work, 1)
        store.driver.load_links([], [Wait(batch.id, 2)])
        assert orphans(store) == [batch.id]
        [wait] = store.driver.waits([batch.id])
        assert reasons(store, wait)[-1] == "needs 1 more that no link leads from: see penstock doctor"

    def test_one_that_needs_nothing_and_is_held_all_the_same_is_found(self, store: QueueStore) -> None:
        work = store.queue("work", int)
        with store.batch(then=(work, -1)) as batch:
            batch.put(work, 1)
        store.driver.load_links([], [Wait(batch.id, 0)])
        assert orphans(store) == [batch.id]


class TestChains(Contract):
    def test_each_waits_for_the_one_before(self, store: QueueStore) -> None:
        first, second = store.queue("first", str), store.queue("second", str)
        order: list[str] = []
        for queue in (first, second):
            queue.add_handler(order.append)
        ids = store.chain((first, "a"), (second, "b"), (first, "c"))
        assert [entry.state for entry in store.driver.find(Find(ids=tuple(ids)))] == ["waiting", "held", "held"]
        drain(store)
        assert order == ["a", "b", "c"]

    @pytest.mark.parametrize(
        ("how", "on", "state"),
        [
            ("dead", "done", "held"), ("dead", "ended", "waiting"),
            ("cancelled", "done", "cancelled"), ("cancelled", "ended", "waiting"),
        ],
    )  # fmt: skip
    def test_each_waits_until_the_one_before_is_done_or_has_ended(
        self, store: QueueStore, how: str, on: On, state: str
    ) -> None:
        first, second = store.queue("first", str), store.queue("second", str)
        ids = store.chain((first, "a"), (second, "b"), (second, "c"), on=on)
        if how == "dead":
            end_entry(store, take_one(store, "first"), "dead")
        else:
            store.driver.cancel(ids[:1])
        last = "held" if state == "waiting" else state
        assert [second.result(id_).state for id_ in ids[1:]] == [state, last]
        if state == "waiting":
            drained: list[str] = []
            second.add_handler(drained.append)
            drain(store)
            assert drained == ["b", "c"]

    @pytest.mark.parametrize("on", ["never", None, 1])
    def test_a_chain_knows_what_to_wait_for(self, store: QueueStore, on: Any) -> None:
        queue = store.queue("first", str)
        with pytest.raises(BadInput, match="on="):
            store.chain((queue, "a"), (queue, "b"), on=on)
        assert queue.counts().live == 0

    def test_a_chain_of_nothing_is_refused(self, store: QueueStore) -> None:
        with pytest.raises(BadInput, match="chain of nothing"):
            store.chain()

    def test_put_after_entries_of_any_queue(self, store: QueueStore) -> None:
        first, second = store.queue("first", str), store.queue("second", str)
        one, two = first.put("a").id, second.put("b").id
        late = second.put("c", after=[one, two, one]).id
        assert [entry.id for entry in second.find(state="held")] == [late]
        for entry in take(store, "first", "second"):
            end_entry(store, entry)
        assert take_one(store, "second").id == late

    def test_after_is_a_list(self, store: QueueStore) -> None:
        with pytest.raises(BadInput, match="not a list of ids"):
            store.queue("q").put(1, after="an-id")

    def test_units_and_handlers_put_after_what_they_put(self, store: QueueStore) -> None:
        work = store.queue("work", str)
        with store.unit() as unit:
            first = unit.put(work, "a")
            unit.put(work, "b", after=[first])
            unit.commit()
        order: list[str] = []

        @work.handler
        def handle(text: str, ctx: Context[str]) -> None:
            order.append(text)
            if text == "b":
                ctx.put(work, "d", after=[ctx.put(work, "c")])

        drain(store)
        assert order == ["a", "b", "c", "d"]

    def test_a_held_entry_never_shows_the_time_it_is_kept_under(self, store: QueueStore) -> None:
        work = store.queue("work", str)
        [_, held] = store.chain((work, "a"), (work, "b"))
        entry = work.get(held)
        assert entry.due_us < HELD
        assert entry.due.year < 9000
        [row] = [row for row in store.driver.rows("live", Find(), until=1 << 60) if row[1] == held]
        assert (row[3], row[8]) == ("held", entry.due_us)


class TestResults(Contract):
    def test_a_result_is_kept_for_its_time(self, store: QueueStore, clock: FakeClock) -> None:
        work = store.queue("work", int)
        work.add_handler(lambda number: {"twice": 2 * number}, keep_result="1d")
        id_ = work.put(21).id
        assert (work.result(id_).state, work.result(id_).is_final) == ("waiting", False)
        drain(store)
        assert work.result(id_).value == {"twice": 42}
        clock.advance("2d")
        store.driver.reap(node="one")
        late = work.result(id_)
        assert late.state == "done"
        with pytest.raises(Undecodable, match="not kept"):
            _ = late.value

    def test_no_result_is_kept_unless_asked_for(self, store: QueueStore) -> None:
        work = store.queue("work", int)
        work.add_handler(lambda number: number)
        id_ = work.put(1).id
        drain(store)
        assert store.driver.result(id_) is None
        with pytest.raises(Undecodable, match="not kept"):
            _ = work.result(id_).value

    def test_a_result_that_is_too_large_is_a_dead_letter(self, store: QueueStore) -> None:
        work = store.queue("work", int)
        work.add_handler(lambda number: "x" * 100_000, keep_result="1d")
        id_ = work.put(1).id
        drain(store)
        result = work.result(id_)
        assert result.state == "dead"
        assert "over the limit" in (result.error or "")
        with pytest.raises(Undecodable, match="is dead"):
            _ = result.value

    @pytest.mark.parametrize("value", [float("nan"), {"a": float("inf")}, {1, 2}, b"ab", {1: "a"}, (1, 2), object()])
    def test_a_result_that_json_would_change_is_a_dead_letter(self, store: QueueStore, value: Any) -> None:
        work = store.queue("work", int)
        work.add_handler(lambda number: value, keep_result="1d")
        id_ = work.put(1).id
        Worker(store).drain()
        result = work.result(id_)
        assert result.state == "dead"
        assert "cannot be kept" in (result.error or "")

    def test_the_result_is_that_of_the_attempt_that_counted(self, store: QueueStore, clock: FakeClock) -> None:
        work = store.queue("work", int)
        id_ = work.put(1).id
        late = take_one(store, "work", lease="1m")
        clock.advance("2m")
        store.driver.reap(node="one")
        winner = take_one(store, "work")
        assert winner.lease is not None
        assert late.lease is not None
        both = [new_result(value, 60_000_000, winner) for value in ("winner", "late")]
        store.driver.commit(Step((Ending(winner.lease, "done", result=both[0]),)))
        outcome = store.driver.settle([Step((Ending(late.lease, "done", result=both[1]),))])
        assert isinstance(outcome.results[0], Exception)
        assert work.result(id_).value == "winner"

    def test_waiting_for_a_result(self, store: QueueStore) -> None:
        work = store.queue("work", int)
        work.add_handler(lambda number: number + 1, keep_result="1h")
        id_ = work.put(1).id
        with running(store):
            assert work.result(id_, timeout="60s").value == 2
        assert work.result(work.put(5).id, timeout="10ms").state == "waiting"

    def test_results_of_members_reach_the_entry_after_them(self, store: QueueStore) -> None:
        work, then = store.queue("work", int), store.queue("then", str)
        sums: list[int] = []
        work.add_handler(lambda number: number, keep_result="1h")
        then.add_handler(lambda text, ctx: sums.append(sum(ctx.before.results().values())))
        with store.batch(then=(then, "sum")) as batch:
            batch.put_many(work, [1, 2, 3])
        drain(store)
        assert sums == [6]

    def test_all_results_of_a_large_batch_are_there(self, store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also where the history shows only the last 100 ends, and page by page."""
        values, batch, ids = self.summed(store, 150)
        assert values == [dict(zip(ids, range(150), strict=True))]
        assert [work.result(id_).value for work in (store.queue("work"),) for id_ in ids] == list(range(150))
        assert batch_status(store, batch).members == {"done": 150}
        monkeypatch.setattr(results, "PAGE", 40)
        assert values_of_batch(store, batch) == values[0]

    def test_results_that_are_settled_together_are_kept_exactly(self, store: QueueStore) -> None:
        """Whatever is in them, and whatever they have in common."""
        work, then = store.queue("work", int), store.queue("then", str)
        tricky = ['"', "\\", "'", "\0", "é\U0001f427", "\n", "{}", "%s :a", None, 1.5, [], {"": [True, "x" * 5000]}]
        work.add_handler(lambda number: tricky[number], keep_result="1h", concurrency=1)
        ids = [work.put(number).id for number in range(len(tricky))]
        with store.batch(then=(then, "a")) as first, store.batch(then=(then, "b")) as second:
            of_first = first.put_many(work, range(len(tricky)))
            of_second = second.put_many(work, range(3))
        drain(store)
        assert [work.result(id_).value for id_ in ids] == tricky
        assert values_of_batch(store, first.id) == dict(zip(of_first, tricky, strict=True))
        assert values_of_batch(store, second.id) == dict(zip(of_second, tricky, strict=False))

    def test_results_are_read_with_a_few_calls(self, store: QueueStore) -> None:
        _, batch, _ = self.summed(store, 20)
        calls: Counter[str] = Counter()
        with counted_calls(store, calls):
            assert len(values_of_batch(store, batch)) == 20
        assert calls.total() <= 4, calls

    def test_a_result_outlives_the_history(self, store: QueueStore, clock: FakeClock) -> None:
        values, batch, ids = self.summed(store, 3)
        clock.advance("1h")
        store.driver.prune(older_than_us=60_000_000)
        assert store.driver.history(Find(queue="work")) == []
        assert values_of_batch(store, batch) == values[0]
        result = store.queue("work").result(ids[2])
        assert (result.state, result.value) == ("done", 2)
        with pytest.raises(EntryNotFound):
            store.queue("other").result(ids[2])
        clock.advance("3d")
        assert values_of_batch(store, batch) == {}
        with pytest.raises(EntryNotFound):
            store.queue("work").result(ids[2])
        store.driver.reap(node="one")
        assert store.driver.results(batch=batch) == store.driver.results() == []

    def test_a_member_that_was_replayed_has_no_result_until_it_is_done_again(self, store: QueueStore) -> None:
        _, batch, ids = self.summed(store, 3)
        store.driver.replay(ids[:2])
        store.driver.cancel(ids[:1])
        assert values_of_batch(store, batch) == {ids[2]: 2}
        drain(store)
        assert values_of_batch(store, batch) == {ids[1]: 1, ids[2]: 2}

    @pytest.mark.parametrize("ends", ["cancelled", "done without a result"])
    def test_a_result_of_an_earlier_generation_is_never_shown(
        self, store: QueueStore, clock: FakeClock, ends: str
    ) -> None:
        """Also when the history that tells how the later one ended is gone, while results are kept for longer."""
        _, batch, ids = self.summed(store, 2)
        work = store.queue("work")
        work.replay(ids[0])
        if ends == "cancelled":
            work.cancel(ids[0])
        else:
            end_entry(store, take_one(store, "work"))
        clock.advance("1h")
        store.driver.prune(older_than_us=60_000_000)
        assert store.driver.history(Find(queue="work")) == []
        with pytest.raises(EntryNotFound):
            work.result(ids[0])
        assert values_of_batch(store, batch) == {ids[1]: 1}
        assert [id_ for id_, _ in store.driver.results()] == ids[1:]

    def summed(self, store: QueueStore, size: int) -> tuple[list[dict[str, Any]], str, list[str]]:
        """A batch that is over: what the entry after it got, its id, and those of its members."""
        work, then = store.queue("work", int), store.queue("then", str)
        values: list[dict[str, Any]] = []
        work.add_handler(lambda number: number, keep_result="2d")
        then.add_handler(lambda text, ctx: values.append(ctx.before.results()))
        with store.batch(then=(then, "sum")) as batch:
            ids = batch.put_many(work, range(size))
        drain(store)
        return values, batch.id, ids

    def test_an_unknown_entry_has_no_result(self, store: QueueStore) -> None:
        with pytest.raises(EntryNotFound):
            store.queue("work").result("nothing")


class TestProgress(Contract):
    def test_progress_is_seen_while_the_handler_runs(self, store: QueueStore) -> None:
        work = store.queue("work", int)
        told, go_on = threading.Event(), threading.Event()

        @work.handler
        def handle(number: int, ctx: Context[int]) -> None:
            ctx.progress(3, 10, "page 3")
            told.set()
            go_on.wait(60)

        id_ = work.put(1).id
        assert work.progress(id_) is None
        with running(store):
            assert told.wait(60)
            progress = None
            for _ in range(600):
                progress = work.progress(id_)
                if progress is not None:
                    break
                threading.Event().wait(0.1)
            go_on.set()
        assert progress is not None
        assert (progress.done, progress.total, progress.text) == (3, 10, "page 3")
        assert str(progress) == "3 of 10: page 3"


class TestAsync(Contract):
    def test_batches_chains_and_results_with_await(self, open_store: OpenStore) -> None:
        async def main() -> None:
            store = aio.QueueStore(open_store())
            work = await store.queue("work", int)
            work.add_handler(lambda number: number * 2, keep_result="1h")
            async with store.batch(then=(work, 10)) as batch:
                batch.put(work, 1)
                batch.put(work, 2)
            ids = await store.chain((work, 3), (work, 4), on="ended")
            worker = aio.Worker(store)
            async with worker:
                assert (await work.result(batch.id, timeout="60s")).value == 20
                assert (await work.result(ids[1], timeout="60s")).value == 8

        anyio.run(main)

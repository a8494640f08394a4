"""The context: what a handler may ask about its entry and lease, and what it may put with its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import pytest
from tests.contract.queue.shorthand import (
    MINUTE,
    PATIENCE,
    Contract,
    OpenStore,
    dead,
    lease_of,
    living,
    needs,
    put,
    trail,
    values,
)

from penstock.bus import Bus
from penstock.clock import FakeClock
from penstock.errors import BadInput, Conflict, LeaseLost, PenstockError
from penstock.policy import Reject, Retry, Snooze
from penstock.queue.entry import Unique
from penstock.queue.handling.context import Context
from penstock.queue.handling.outcomes import step_of_result
from penstock.queue.protocol import Find
from penstock.queue.queues import QueueStore
from penstock.queue.worker import Worker


def drain(store: QueueStore) -> int:
    """Handle what is due here and now."""
    return Worker(store).drain()


class TestContext(Contract):
    """What it tells."""

    def test_entry_and_lease(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        seen: list[Context] = []
        queue.add_handler(lambda value, ctx: seen.append(ctx))
        id_ = queue.put("x", labels={"a": "1"}, headers={"trace": "t"}, delay="1m").id
        created = clock.now()
        clock.advance("2m")
        drain(store)
        [ctx] = seen
        assert (ctx.entry.id, ctx.entry.queue, ctx.entry.attempt, ctx.entry.generation) == (id_, "q", 1, 1)
        assert (ctx.entry.labels, ctx.entry.headers, ctx.entry.value) == ({"a": "1"}, {"trace": "t"}, "x")
        assert (ctx.entry.created, (ctx.entry.due - created).seconds) == (created, 60)
        assert (ctx.lease.fence, ctx.lease.claimed) == (1, clock.now())
        assert ctx.lease.token.startswith("1-")
        assert ctx.lease.until_us == clock.micros() + MINUTE

    def test_the_row_tells_when_the_handler_started(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        queue.add_handler(lambda value: clock.advance("30s"))
        id_ = queue.put("x").id
        start = clock.micros()
        drain(store)
        [row] = store.driver.history(Find(ids=(id_,)))
        # The start is store time carried on by this host's own clock, so it may be a little later than the claim.
        assert start <= row.started_us < start + 30_000_000  # type: ignore[operator]
        assert row.ended_us == clock.micros()

    def test_extend(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        until: list[int] = []

        @queue.handler
        def handle(value: str, ctx: Context) -> None:
            ctx.extend("10m")
            until.append(lease_of(living(store, ctx.entry.id)).until_us)
            clock.advance("9m")
            assert store.driver.reap(node="one").reaped == []

        start = clock.micros()
        queue.put("x")
        drain(store)
        assert until == [start + 10 * MINUTE]
        assert [row.state for row in store.driver.history(Find())] == ["done"]

    def test_extend_of_a_lost_lease(self, store: QueueStore) -> None:
        queue = store.queue("q")
        caught: list[BaseException] = []

        @queue.handler
        def handle(value: str, ctx: Context) -> None:
            store.driver.cancel([ctx.entry.id], force=True)
            try:
                ctx.extend("1m")
            except LeaseLost as error:
                caught.append(error)
                raise

        id_ = queue.put("x").id
        drain(store)
        assert len(caught) == 1
        assert trail(store, id_) == [(1, 1, "cancelled")]


class TestPutsWithTheOutcome(Contract):
    """``ctx.put`` and ``ctx.publish`` are committed with success, and with nothing else."""

    @pytest.mark.parametrize("result", [None, False, Snooze("1m"), Reject("no"), RuntimeError("boom")], ids=repr)
    def test_only_with_success(self, store: QueueStore, result: Any) -> None:
        bus = Bus(store)
        events = bus.subscribe("listener", str)
        queue, children = store.queue("q"), store.queue("children")
        promised: list[str] = []

        @queue.handler(retry=Retry(attempts=1))
        def handle(value: str, ctx: Context) -> Any:
            promised.append(ctx.put(children, "child", labels={"a": "1"}, delay="1m"))
            ctx.publish(bus, "event")
            assert children.find() == []
            if isinstance(result, Exception):
                raise result
            return result

        queue.put("x")
        drain(store)
        if result is None:
            assert [(one.id, one.labels) for one in children.find()] == [(promised[0], {"a": "1"})]
            assert values(events.find()) == ["event"]
        else:
            assert children.find() == events.find() == []

    def test_a_late_owners_puts_are_lost_with_its_outcome(self, store: QueueStore) -> None:
        queue, children = store.queue("q"), store.queue("children")

        @queue.handler
        def handle(value: str, ctx: Context) -> None:
            ctx.put(children, "child")
            queue.cancel(ctx.entry.id, force=True)

        queue.put("x")
        drain(store)
        assert children.find() == []

    def test_a_refused_put_fails_the_attempt(self, store: QueueStore) -> None:
        queue, children = store.queue("q"), store.queue("children")
        children.put("held", unique="u")
        ids = []

        @queue.handler(retry=Retry(attempts=2, backoff="0s"))
        def handle(value: str, ctx: Context) -> None:
            ctx.put(children, "good")
            ctx.put(children, "bad", unique=Unique("u", on_conflict="raise"))

        ids.append(queue.put("x").id)
        drain(store)
        assert values(children.find()) == ["held"]
        assert trail(store, ids[0]) == [(1, 1, "retried"), (1, 2, "dead")]
        assert "UniqueHeld" in (dead(store, ids[0]).error or "")

    def test_too_much_put_fails_the_attempt_only(self, store: QueueStore) -> None:
        queue, children = store.queue("q"), store.queue("children")
        seen: list[str] = []
        store.driver.unit_limit = 10

        @queue.handler(retry=Retry(attempts=1))
        def handle(value: str, ctx: Context) -> None:
            seen.append(value)
            for number in range(20 if value == "greedy" else 2):
                ctx.put(children, number)

        greedy = queue.put("greedy").id
        queue.put("modest")
        drain(store)
        assert seen == ["greedy", "modest"]
        assert "UnitTooLarge" in (dead(store, greedy).error or "")
        assert len(children.find()) == 2

    def test_another_space_is_refused(self, store: QueueStore, open_store: OpenStore) -> None:
        foreign = open_store(space="other").queue("q")
        caught: list[PenstockError] = []

        @store.queue("q").handler
        def handle(value: str, ctx: Context) -> None:
            calls: list[Callable[[], object]]
            calls = [lambda: ctx.put(foreign, "x"), lambda: ctx.publish(Bus(foreign.store), "x")]
            for call in calls:
                try:
                    call()
                except BadInput as error:
                    caught.append(error)

        put(store, "q")
        drain(store)
        assert len(caught) == 2
        assert foreign.find() == []

    def test_a_child_with_the_parents_unique_id(self, store: QueueStore) -> None:
        """The ending comes first, so that a handler can put its own successor."""
        queue = store.queue("q", int)
        queue.add_handler(lambda value, ctx: ctx.put(queue, value + 1, unique="only one") if value < 3 else None)
        queue.put(0, unique="only one")
        assert drain(store) == 4

    def test_finish_ends_the_attempt_before_the_handler_does(self, store: QueueStore) -> None:
        queue, children = store.queue("q"), store.queue("children")
        seen: list[Any] = []

        @queue.handler
        def handle(value: str, ctx: Context) -> None:
            ctx.put(children, "child")
            ctx.finish()
            seen.append((trail(store, ctx.entry.id), values(children.find())))

        id_ = queue.put("x").id
        drain(store)
        assert seen == [([(1, 1, "done")], ["child"])]
        assert trail(store, id_) == [(1, 1, "done")]
        assert values(children.find()) == ["child"]

    def test_finish_of_a_lost_lease_raises(self, store: QueueStore) -> None:
        queue = store.queue("q")
        caught: list[BaseException] = []

        @queue.handler
        def handle(value: str, ctx: Context) -> None:
            queue.cancel(ctx.entry.id, force=True)
            try:
                ctx.finish()
            except LeaseLost as error:
                caught.append(error)

        queue.put("x")
        drain(store)
        assert len(caught) == 1


class TestAfterFinish(Contract):
    """``ctx.finish()`` is the end of an attempt: nothing that comes after it is silently lost."""

    @pytest.mark.parametrize("call", ["put", "publish", "extend", "finish"])
    def test_nothing_more_may_be_asked(self, store: QueueStore, call: str) -> None:
        queue, children, bus = store.queue("q"), store.queue("children"), Bus(store)
        caught: list[Conflict] = []

        @queue.handler
        def handle(value: str, ctx: Context) -> None:
            ctx.finish()
            calls: dict[str, Callable[[], object]] = {
                "put": lambda: ctx.put(children, "late"),
                "publish": lambda: ctx.publish(bus, "late"),
                "extend": lambda: ctx.extend("1m"),
                "finish": ctx.finish,
            }
            try:
                calls[call]()
            except Conflict as error:
                caught.append(error)

        id_ = queue.put("x").id
        drain(store)
        assert len(caught) == 1
        assert "has ended" in str(caught[0])
        assert trail(store, id_) == [(1, 1, "done")]
        assert children.find() == []

    @pytest.mark.parametrize("result", [Reject("late"), Snooze("1m"), False, RuntimeError("late")], ids=repr)
    def test_another_outcome_is_told_and_ignored(
        self, store: QueueStore, result: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = store.queue("q")

        @queue.handler
        def handle(value: str, ctx: Context) -> Any:
            ctx.finish()
            if isinstance(result, RuntimeError):
                raise result
            return result

        id_ = queue.put("x").id
        drain(store)
        assert trail(store, id_) == [(1, 1, "done")]
        [told] = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
        assert "after ctx.finish() had ended entry" in told
        assert "too late" not in told

    def test_the_result_is_the_one_that_finish_was_given(
        self, store: QueueStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue, given = store.queue("q"), [{"result": 5}, {"result": None}, {}]

        def handle(value: int, ctx: Context) -> str:
            ctx.finish(**given[value])
            return "too late"

        queue.add_handler(handle, keep_result="1d")
        ids = [queue.put(number).id for number in range(3)]
        drain(store)
        assert [queue.result(id_).state for id_ in ids] == ["done"] * 3
        assert [queue.result(id_).payload for id_ in ids] == [b"5", b"null", None]
        [told] = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
        assert ids[2] in told
        assert "ctx.finish(result=...)" in told

    def test_a_result_that_nobody_keeps_is_refused(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.add_handler(lambda value, ctx: ctx.finish(result=5), retry=Retry(attempts=1))
        id_ = queue.put("x").id
        drain(store)
        assert "keeps no results" in (queue.result(id_).error or "")

    def test_the_end_is_told_once(self, store: QueueStore) -> None:
        told: list[str] = []
        store.signals.subscribe(lambda one: told.append(one.data["outcome"]), "settled")
        store.signals.subscribe(lambda one: told.append("lost"), "lease_lost")
        store.queue("q").add_handler(lambda value, ctx: ctx.finish())
        put(store, "q")
        drain(store)
        assert told == ["done"]


class Here(Executor):
    """Runs what is submitted in the thread of the test: a driver's connection may belong to one thread."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Take a call for later."""
        future: Future[Any] = Future()
        self._calls.put((future, partial(fn, *args, **kwargs)))
        return future

    def work_until(self, over: Callable[[], bool]) -> None:
        """Run calls until something holds."""
        for _ in range(int(PATIENCE / 0.05)):
            if over():
                return
            with suppress(Empty):
                future, call = self._calls.get(timeout=0.05)
                future.set_result(call())
        pytest.fail("it never came to be")


class TestFinishInATransaction(Contract):
    """``ctx.finish(connection=...)``: the attempt is done if and only if the caller's transaction is."""

    @pytest.fixture(autouse=True)
    def able(self, store: QueueStore) -> None:
        needs(store, "transactional")

    @pytest.mark.parametrize("kind", ["drain", "executor", "async"])
    def test_a_transaction_that_was_not_committed_is_a_failure(
        self, store: QueueStore, connect: Callable[[], Any], kind: str
    ) -> None:
        queue, children, here = store.queue("q"), store.queue("children"), Here()
        dead_letters: list[str] = []

        def handle(value: str, ctx: Context) -> None:
            connection = connect()
            ctx.put(children, "child")
            ctx.finish(connection=connection)
            connection.rollback()

        async def handle_async(value: str, ctx: Context) -> None:
            await asyncio.get_running_loop().run_in_executor(here, handle, value, ctx)

        queue.add_handler(
            handle_async if kind == "async" else handle,
            retry=Retry(attempts=2, backoff="0s"),
            on_dead=lambda value, error: dead_letters.append(error),
            executor=here if kind == "executor" else None,
        )
        id_ = queue.put("x").id
        if kind == "drain":
            drain(store)
        else:
            worker = Worker(store)
            worker.start()
            try:
                here.work_until(lambda: bool(dead_letters))
            finally:
                worker.stop()
        assert trail(store, id_) == [(1, 1, "retried"), (1, 2, "dead")]
        assert "rolled back or not committed" in dead_letters[0]
        assert children.find() == []

    def test_a_transaction_that_is_still_open_is_a_failure(self, store: QueueStore, connect: Callable[[], Any]) -> None:
        """What is committed when the handler returns decides; the question waits for nobody's transaction."""
        queue = store.queue("q")
        answers: list[str] = []

        @queue.handler(retry=Retry(attempts=1))
        def handle(value: str, ctx: Context) -> None:
            connection = connect()
            ctx.finish(connection=connection)
            with pytest.raises(Conflict, match="not committed") as caught:
                step_of_result(ctx, None)
            answers.append(caught.value.message)
            connection.rollback()
            raise caught.value

        id_ = queue.put("x").id
        drain(store)
        assert len(answers) == 1
        assert trail(store, id_) == [(1, 1, "dead")]

    @pytest.mark.parametrize("result", [Reject("no"), Snooze("1m"), False], ids=repr)
    def test_after_a_rollback_the_handler_may_say_what_it_wants(
        self, store: QueueStore, connect: Callable[[], Any], result: Any
    ) -> None:
        queue = store.queue("q")

        @queue.handler(retry=Retry(attempts=1))
        def handle(value: str, ctx: Context) -> Any:
            connection = connect()
            ctx.finish(connection=connection)
            connection.rollback()
            return result

        id_ = queue.put("x").id
        drain(store)
        if isinstance(result, Snooze):
            assert (living(store, id_).attempt, trail(store, id_)) == (0, [])
        else:
            assert trail(store, id_) == [(1, 1, "dead")]

    def test_the_result_is_committed_with_it(self, store: QueueStore, connect: Callable[[], Any]) -> None:
        queue = store.queue("q")

        @queue.handler(keep_result="1d")
        def handle(value: str, ctx: Context) -> None:
            connection = connect()
            ctx.finish(connection=connection, result=5)
            connection.commit()

        id_ = queue.put("x").id
        drain(store)
        assert queue.result(id_).value == 5

    def test_finish_may_be_tried_again_after_a_rollback(self, store: QueueStore, connect: Callable[[], Any]) -> None:
        queue, children = store.queue("q"), store.queue("children")

        @queue.handler
        def handle(value: str, ctx: Context) -> None:
            ctx.put(children, "child")
            connection = connect()
            ctx.finish(connection=connection)
            connection.rollback()
            ctx.finish(connection=connection)
            connection.commit()

        id_ = queue.put("x").id
        drain(store)
        assert trail(store, id_) == [(1, 1, "done")]
        assert values(children.find()) == ["child"]

    def test_what_comes_after_the_commit_changes_nothing(
        self, store: QueueStore, connect: Callable[[], Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        queue, children = store.queue("q"), store.queue("children")
        told: list[str] = []
        store.signals.subscribe(lambda one: told.append(one.data["outcome"]), "settled")

        @queue.handler
        def handle(value: str, ctx: Context) -> Any:
            connection = connect()
            ctx.finish(connection=connection)
            connection.commit()
            if value == "reject":
                return Reject("late")
            return ctx.put(children, "late")

        made = [queue.put(value).id for value in ("reject", "put")]
        drain(store)
        assert [trail(store, id_) for id_ in made] == [[(1, 1, "done")]] * 2
        assert children.find() == []
        assert told == ["done", "done"]
        said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
        assert ["after ctx.finish() had ended" in one for one in said] == [True, True]

"""Middleware around handlers: one shape, sync or async, on a handler, a store and a worker, on every store alike."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.contract.queue.shorthand import Contract

from penstock import Context, QueueStore, Reject, Retry, Snooze, Worker
from penstock.errors import BadInput
from penstock.queue.handling.middleware import Middleware
from penstock.testing import FakeClock, drain

KINDS = ["sync", "async"]


def recording(kind: str, name: str, trail: list[str]) -> Middleware:
    """A middleware that says when it is entered and what it saw."""

    def sync(ctx: Context, call_next: Callable[[], Any]) -> Any:
        trail.append(f"{name} in {ctx.value}")
        try:
            result = call_next()
        except BaseException as error:
            trail.append(f"{name} saw {type(error).__name__}")
            raise
        trail.append(f"{name} out {result}")
        return result

    async def in_loop(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        trail.append(f"{name} in {ctx.value}")
        await asyncio.sleep(0)  # it really runs in a loop
        try:
            result = await call_next()
        except BaseException as error:
            trail.append(f"{name} saw {type(error).__name__}")
            raise
        trail.append(f"{name} out {result}")
        return result

    return sync if kind == "sync" else in_loop


def handling(kind: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A handler of one kind."""

    async def in_loop(value: Any) -> Any:
        await asyncio.sleep(0)
        return function(value)

    return function if kind == "sync" else in_loop


@pytest.mark.parametrize("around", KINDS)
@pytest.mark.parametrize("kind", KINDS)
class TestEveryKindAroundEveryKind(Contract):
    def test_it_sees_what_the_handler_returns(self, store: QueueStore, kind: str, around: str) -> None:
        queue, trail = store.queue("q", str), []
        queue.add_handler(handling(kind, lambda value: value.upper()), middleware=[recording(around, "m", trail)])
        queue.put("a")
        assert drain(store) == 1
        assert trail == ["m in a", "m out A"]
        assert queue.counts().live == queue.counts().dead == 0

    def test_it_sees_what_the_handler_raises(self, store: QueueStore, kind: str, around: str) -> None:
        queue, trail = store.queue("q", str), []

        def fail(value: str) -> None:
            raise KeyError(value)

        queue.add_handler(handling(kind, fail), retry=Retry(attempts=1), middleware=[recording(around, "m", trail)])
        queue.put("a")
        drain(store)
        assert trail == ["m in a", "m saw KeyError"]
        assert [letter.error for letter in queue.dead()] == ["KeyError: 'a'"]

    def test_worker_then_store_then_handler(self, store: QueueStore, kind: str, around: str) -> None:
        queue, trail = store.queue("q", str), []
        other = "async" if around == "sync" else "sync"
        store.middleware.append(recording(other, "store", trail))
        queue.add_handler(
            handling(kind, lambda value: trail.append("handler")),
            middleware=[recording(around, "outer", trail), recording(other, "inner", trail)],
        )
        queue.put("a")
        Worker(store, middleware=[recording(around, "worker", trail)]).drain()
        assert trail == [
            "worker in a", "store in a", "outer in a", "inner in a", "handler",
            "inner out None", "outer out None", "store out None", "worker out None",
        ]  # fmt: skip

    def test_in_a_running_worker(self, store: QueueStore, kind: str, around: str) -> None:
        queue, trail = store.queue("q", str), []
        seen: list[str] = []
        queue.add_handler(handling(kind, seen.append), middleware=[recording(around, "m", trail)], concurrency=3)
        queue.put_many([str(number) for number in range(30)])
        worker = Worker(store)
        worker.start()
        try:
            wait_for(lambda: queue.counts().live == 0)
        finally:
            worker.stop()
        assert sorted(seen) == sorted(str(number) for number in range(30))
        assert len(trail) == 60


class TestRefusing(Contract):
    def test_an_outcome_before_the_start_is_the_outcome(self, store: QueueStore, clock: FakeClock) -> None:
        """Without a call of the handler: later and unspent, or a dead letter."""
        queue, handled = store.queue("q", str), []
        started = []
        store.signals.subscribe(lambda signal: started.append(signal.ids), "started")

        def gate(ctx: Context, call_next: Callable[[], Any]) -> Any:
            if ctx.value == "later" and not handled:
                return Snooze("1m")
            if ctx.value == "never":
                raise Reject("not wanted here")
            return call_next()

        queue.add_handler(handled.append, retry=Retry(attempts=1), middleware=[gate])
        later = queue.put("later").id
        queue.put("never")
        drain(store)
        assert handled == started == []
        assert [letter.error for letter in queue.dead()] == ["rejected: not wanted here"]
        assert queue.get(later).attempt == 0, "nothing was spent"
        handled.append("now it may run")
        clock.advance("1m")
        drain(store)
        assert handled[1:] == ["later"]

    def test_it_may_change_the_outcome(self, store: QueueStore) -> None:
        queue = store.queue("q", str)

        def forgive(ctx: Context, call_next: Callable[[], Any]) -> Any:
            try:
                return call_next()
            except ValueError:
                return None

        def fail(value: str) -> None:
            raise ValueError(value)

        queue.add_handler(fail, retry=Retry(attempts=1), middleware=[forgive])
        queue.put("a")
        drain(store)
        assert [row.state for row in queue.history()] == ["done"]

    def test_its_own_failure_is_a_failure_of_the_attempt(self, store: QueueStore) -> None:
        queue, handled = store.queue("q", str), []

        def broken(ctx: Context, call_next: Callable[[], Any]) -> Any:
            raise RuntimeError("broken middleware")

        queue.add_handler(handled.append, retry=Retry(attempts=1), middleware=[broken])
        queue.put("a")
        drain(store)
        assert handled == []
        assert [letter.error for letter in queue.dead()] == ["RuntimeError: broken middleware"]

    def test_an_unreadable_entry_reaches_no_middleware(self, store: QueueStore) -> None:
        trail: list[str] = []
        store.queue("q", str).put("no number")
        queue = store.queue("q", int)
        queue.add_handler(lambda value: None, middleware=[recording("sync", "m", trail)])
        drain(store)
        assert trail == []
        assert queue.counts().dead == 1

    def test_what_it_puts_is_committed_with_the_outcome(self, store: QueueStore) -> None:
        queue, audit = store.queue("q", str), store.queue("audit", str)

        def audited(ctx: Context, call_next: Callable[[], Any]) -> Any:
            ctx.put(audit, f"handled {ctx.value}")
            return call_next()

        def fail_on_b(value: str) -> None:
            if value == "b":
                raise ValueError(value)

        queue.add_handler(fail_on_b, retry=Retry(attempts=1), middleware=[audited])
        queue.put_many(["a", "b"])
        drain(store)
        assert [entry.value for entry in audit.find()] == ["handled a"]


class TestWrongMiddleware(Contract):
    @pytest.mark.parametrize(
        "wrong",
        [3, "m", lambda: None, lambda ctx: None, lambda a, b, c: None],
        ids=["number", "text", "none", "one", "three"],
    )
    def test_what_is_no_middleware_is_refused_where_it_is_written(self, store: QueueStore, wrong: Any) -> None:
        queue = store.queue("q", str)
        with pytest.raises(BadInput, match=r"ctx, call_next|not a list"):
            queue.add_handler(print, middleware=[wrong])
        with pytest.raises(BadInput, match="not a list"):
            queue.add_handler(print, middleware=lambda ctx, call_next: call_next())  # type: ignore[arg-type]
        with pytest.raises(BadInput):
            Worker(store, middleware=[wrong])
        store.middleware.append(wrong)
        with pytest.raises(BadInput):
            Worker(store)


def wait_for(condition: Callable[[], bool]) -> None:
    async def until() -> None:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.01)

    asyncio.run(until())

"""penstock.aio: the same calls with ``await``, cancelled or not, and async handlers in one event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.contract.queue.shorthand import PATIENCE, Contract, OpenStore

from penstock import aio
from penstock.errors import BadInput, Conflict, StoreUnavailable
from penstock.queue.handling.context import Context
from penstock.queue.queues import QueueStore

Program = Callable[[], Coroutine[Any, Any, None]]


def play(program: Program) -> None:
    """Run a test's coroutine in a fresh loop, with an end."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await program()

    asyncio.run(bounded())


class TestAwaitedCalls(Contract):
    """What works without ``await`` works with it."""

    def test_the_calls_of_a_queue(self, store: QueueStore) -> None:
        async def program() -> None:
            queue = await aio.QueueStore(store).queue("q", str)
            first = await queue.put("a", labels={"customer": "ann"})
            assert (await queue.get(first.id)).value == "a"
            assert [entry.id for entry in await queue.find(labels={"customer": "ann"})] == [first.id]
            await queue.update(first.id, "b")
            assert (await queue.get(first.id)).value == "b"
            await queue.lock(reason="later")
            assert len(await queue.locks()) == 1
            assert await queue.unlock()
            assert await queue.cancel(first.id) == 1
            assert await queue.find() == []
            assert len(await queue.put_many(["c", "d"])) == 2

        play(program)

    def test_the_calls_of_a_store(self, store: QueueStore, open_store: OpenStore) -> None:
        async def program() -> None:
            async with aio.QueueStore(open_store()) as awaited:
                queue = await awaited.queue("q", str)
                await queue.put("a")
                await queue.lock(reason="why")
                assert [one.queue for one in await awaited.counts()] == ["q"]
                assert [one.reason for one in await awaited.locks()] == ["why"]
                assert await awaited.schedules() == []
                assert await awaited.remove_schedule("none") is False
                assert all(finding.what for finding in await awaited.check())
            assert awaited.sync.closed
            with pytest.raises(StoreUnavailable):
                awaited.sync.counts()

        play(program)

    def test_a_worker_that_is_told_to_stop_ends_its_run(self, store: QueueStore) -> None:
        async def program() -> None:
            worker = aio.Worker(aio.QueueStore(store))
            running = asyncio.create_task(worker.run())
            await asyncio.sleep(0.1)
            await worker.stop()
            await running

        play(program)

    def test_errors_come_through(self, store: QueueStore) -> None:
        async def program() -> None:
            queue = await aio.QueueStore(store).queue("q", str)
            with pytest.raises(BadInput, match="priority"):
                await queue.put("a", priority=1000)

        play(program)

    def test_many_calls_at_once(self, store: QueueStore) -> None:
        async def program() -> None:
            queue = await aio.QueueStore(store).queue("q", int)
            await asyncio.gather(*(queue.put(number) for number in range(50)))
            assert sorted(entry.value for entry in await queue.find()) == list(range(50))

        play(program)

    def test_publish_and_subscribe(self, store: QueueStore) -> None:
        async def program() -> None:
            bus = aio.Bus(aio.QueueStore(store))
            words = await bus.subscribe("words", str)
            assert [put.queue for put in await bus.publish("hello")] == [words.name]
            assert [one.name for one in await bus.subscriptions()] == ["words"]
            assert await bus.unsubscribe("words")
            assert await bus.publish("hello") == []

        play(program)


class TestAwaitedUnits(Contract):
    """A unit of work on an event loop."""

    def test_takes_and_puts_are_one_commit(self, store: QueueStore) -> None:
        async def program() -> None:
            shared = aio.QueueStore(store)
            orders, invoices = await shared.queue("orders", str), await shared.queue("invoices", str)
            await orders.put("one")
            async with shared.unit() as unit:
                [order] = await unit.take(orders)
                unit.put(invoices, order.value)
                await unit.commit()
            assert [entry.value for entry in await invoices.find()] == ["one"]
            assert await orders.find() == []

        play(program)

    def test_an_error_rolls_back(self, store: QueueStore) -> None:
        async def program() -> None:
            shared = aio.QueueStore(store)
            orders = await shared.queue("orders", str)
            await orders.put("one")

            async def fail() -> None:
                async with shared.unit() as unit:
                    await unit.take(orders)
                    raise LookupError("no such customer")

            with pytest.raises(LookupError):
                await fail()
            assert [entry.state for entry in await orders.find()] == ["waiting"]

        play(program)

    def test_a_cancelled_task_rolls_back_before_it_ends(self, store: QueueStore) -> None:
        async def program() -> None:
            shared = aio.QueueStore(store)
            orders = await shared.queue("orders", str)
            await orders.put("one")
            taken = asyncio.Event()

            async def work() -> None:
                async with shared.unit() as unit:
                    await unit.take(orders)
                    taken.set()
                    await asyncio.sleep(PATIENCE)

            task = asyncio.create_task(work())
            await taken.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await orders.counts()).leased == 0

        play(program)

    def test_a_closed_unit_says_so(self, store: QueueStore) -> None:
        async def program() -> None:
            shared = aio.QueueStore(store)
            async with shared.unit() as unit:
                await unit.rollback()
                with pytest.raises(Conflict, match="rolled back"):
                    await unit.commit()

        play(program)


class TestCancellation(Contract):
    """A call that was begun comes to its end."""

    @pytest.mark.parametrize("how", ["asyncio", "anyio"])
    def test_the_answer_is_waited_for(self, store: QueueStore, how: str) -> None:
        """Cancelled by asyncio's ``task.cancel()`` or by a cancel scope while the store is at it."""
        begun, go = threading.Event(), threading.Event()

        def slow_put() -> None:
            begun.set()
            assert go.wait(PATIENCE)
            store.queue("q", str).put("kept")

        async def program() -> None:
            async def work() -> None:
                await aio.run(slow_put)
                await anyio.lowlevel.checkpoint()  # a scope's cancellation comes with the next await
                pytest.fail("the cancellation was lost")

            def release() -> None:
                assert begun.wait(PATIENCE)
                go.set()

            if how == "asyncio":
                task = asyncio.create_task(work())
                await asyncio.to_thread(begun.wait, PATIENCE)
                task.cancel()
                await asyncio.sleep(0)
                assert not task.done()
                release()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(work)
                    await asyncio.to_thread(begun.wait, PATIENCE)
                    tasks.cancel_scope.cancel()
                    threading.Timer(0.01, release).start()
            assert [entry.value for entry in store.queue("q", str).find()] == ["kept"]

        play(program)


class TestAwaitedWorkers(Contract):
    """Async handlers share one loop and really overlap."""

    def test_handlers_run_in_the_callers_loop(self, store: QueueStore) -> None:
        async def program() -> None:
            shared = aio.QueueStore(store)
            mine = asyncio.get_running_loop()
            loops: list[object] = []
            all_here = asyncio.Barrier(11)
            for name in ("a", "b"):
                queue = await shared.queue(name, int)

                async def handle(value: int, ctx: Context) -> None:
                    loops.append(asyncio.get_running_loop())
                    await aio.run(ctx.extend, "5m")
                    await all_here.wait()

                queue.add_handler(handle, concurrency=5)
                await queue.put_many(range(5))
            async with aio.Worker(shared):
                await all_here.wait()  # ten handlers are at it at once, or this never ends
            assert set(loops) == {mine}
            assert len(loops) == 10
            assert await (await shared.queue("a", int)).find() == []

        play(program)

    def test_a_worker_of_its_own_thread_uses_one_loop(self, store: QueueStore) -> None:
        from penstock.queue.worker import Worker

        loops: list[object] = []
        both = threading.Semaphore(0)
        for name in ("a", "b"):
            queue = store.queue(name, int)

            async def handle(value: int) -> None:
                loops.append(asyncio.get_running_loop())
                both.release()

            queue.add_handler(handle)
            queue.put(1)
        worker = Worker(store)
        worker.start()
        assert both.acquire(timeout=PATIENCE)
        assert both.acquire(timeout=PATIENCE)
        assert worker.stop()
        assert len(set(loops)) == 1

    def test_run_ends_when_it_is_cancelled(self, store: QueueStore) -> None:
        async def program() -> None:
            shared = aio.QueueStore(store)
            queue = await shared.queue("q", int)
            handled = asyncio.Event()

            async def handle(value: int) -> None:
                handled.set()

            queue.add_handler(handle)
            task = asyncio.create_task(aio.Worker(shared).run())
            await queue.put(1)
            await handled.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await queue.counts()).leased == 0

        play(program)

    def test_drain_runs_sync_and_async_handlers(self, store: QueueStore) -> None:
        async def program() -> None:
            shared = aio.QueueStore(store)
            seen: list[tuple[str, int]] = []
            for name in ("plain", "coroutine"):
                queue = await shared.queue(name, int)
                await queue.put(1)
                if name == "plain":
                    queue.add_handler(lambda value: seen.append(("plain", value)))
                else:

                    async def handle(value: int) -> None:
                        await asyncio.sleep(0)
                        seen.append(("coroutine", value))

                    queue.add_handler(handle)
            assert await aio.Worker(shared).drain() == 2
            assert sorted(seen) == [("coroutine", 1), ("plain", 1)]

        play(program)

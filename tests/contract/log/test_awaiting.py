"""penstock.aio over logs: the same calls with ``await``, cancelled or not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.contract.log.shorthand import PATIENCE, LogContract, filled, stored, values

from penstock import aio
from penstock.errors import LogNotFound
from penstock.log.record import Partition
from penstock.log.store import LogStore


def play(program: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's coroutine in a fresh loop, with an end."""

    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE):
            await program()

    asyncio.run(bounded())


class TestAwaitedLogs(LogContract):
    """What works without ``await`` works with it."""

    def test_append_read_commit(self, store: LogStore) -> None:
        async def program() -> None:
            logs = aio.LogStore(store)
            assert await logs.create("log", 2)
            async with await logs.appender("log", int) as out:
                await out.append(1, partition=0)
                await out.append_many([2, 3], partition=1)
                out.send(4, partition=1)
                await out.flush()
            assert (await logs.lag("log", "g")).lag == 4
            async with await logs.tailer("log", "g", int) as tail:
                found: list[int] = []
                while len(found) < 4:
                    found += values(await tail.read(timeout="10s"))
                await tail.commit()
            assert sorted(found) == [1, 2, 3, 4]
            assert (await logs.lag("log", "g")).lag == 0
            with pytest.raises(LogNotFound):
                await logs.appender("nowhere")

        play(program)

    def test_a_typed_handle(self, store: LogStore) -> None:
        async def program() -> None:
            logs = aio.LogStore(store)
            await logs.create("log")
            async with await logs.log("log", int) as log:
                await log.append_many([1, 2, 3])
                assert [one.value async for one in log.records(0)] == [1, 2, 3]
                assert [len(one) async for one in logs.batches(Partition("log", 0), 1)] == [2]
                async with await log.tailer("g") as tail:
                    assert values(await tail.read(timeout="10s")) == [1, 2, 3]
                    await tail.commit()
                assert (await log.lag("g")).lag == 0

        play(program)

    def test_a_transaction(self, store: LogStore) -> None:
        async def program() -> None:
            logs = aio.LogStore(store)
            filled(store, "in", count=3)
            await logs.create("out")
            async with await logs.tailer("in", "g", int) as tail:
                records = await tail.read(timeout="10s")
                async with logs.transaction() as tx:
                    await tx.append_many("out", [record.value * 10 for record in records])
                    await tx.commit_offsets(tail)
                    await tx.commit()
            assert stored(store, "out") == [0, 10, 20]
            assert (await logs.lag("in", "g")).lag == 0

        play(program)

    def test_a_cancelled_read_loses_nothing(self, store: LogStore) -> None:
        async def program() -> None:
            logs = aio.LogStore(store)
            await logs.create("log")
            async with await logs.tailer("log", "g", int) as tail:
                waiting = asyncio.create_task(tail.read(timeout="1h"))
                await asyncio.sleep(0.05)
                found: list[int] = []
                async with await logs.appender("log", int) as out:
                    await out.append(1)
                    waiting.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        found += values(await waiting)  # it may have been quicker
                    await out.append(2)
                while len(found) < 2:
                    found += values(await tail.read(timeout="10s"))
                assert found == [1, 2]

        play(program)

    def test_endless_reading_ends_with_its_task(self, store: LogStore) -> None:
        async def program() -> None:
            logs = aio.LogStore(store)
            filled(store, count=3)
            seen: list[int] = []

            async def follow() -> None:
                async with await logs.tailer("log", "g", int) as tail:
                    async for record in tail:
                        seen.append(record.value)

            task = asyncio.create_task(follow())
            while len(seen) < 3:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert seen == [0, 1, 2]

        play(program)

"""Queues that are declared first and opened later: nothing is touched before, everything holds afterwards."""

import asyncio
from typing import Any

import pytest
from tests.contract.queue.shorthand import Contract, OpenStore

from penstock import Context, Queues, QueueStore, Retry, Worker
from penstock.errors import BadInput, Conflict, NotOpen, ScheduleChanged
from penstock.testing import FakeClock, drain


class TestOpenedLater(Contract):
    def test_handlers_that_were_declared_are_run(self, store: QueueStore) -> None:
        queues, handled = Queues(), []
        mails = queues.queue("mails", str)
        shops = queues.family("shop.", int)

        @mails.handler(retry=Retry(attempts=2))
        def send(mail: str) -> None:
            handled.append(mail)

        @shops.handler
        async def sell(number: int, ctx: Context[int]) -> None:
            await asyncio.sleep(0)
            handled.append(f"{ctx.entry.queue} {number}")

        assert queues.open(store) is store
        mails.put("ann")
        shops.member("shop.1").put(7)
        assert Worker(queues).drain() == 2
        assert sorted(handled) == ["ann", "shop.1 7"]
        assert queues.store is store

    def test_settings_are_stored_when_it_is_opened(self, store: QueueStore) -> None:
        queues = Queues()
        ordered = queues.queue("ordered", str, fifo=True)
        queues.open(store)
        assert store.counts("ordered")[0].fifo
        assert ordered.counts().fifo

    def test_what_the_store_contradicts_is_refused_when_it_is_opened(self, store: QueueStore) -> None:
        store.queue("q", fifo=True)
        queues = Queues()
        queue = queues.queue("q", str)
        queue.add_handler(print, prefetch=5)
        with pytest.raises(BadInput, match="prefetch on the FIFO queue"):
            queues.open(store)
        assert not queues.is_open
        with pytest.raises(NotOpen):
            queue.put("x")
        assert not store.handlers

    def test_a_handler_that_the_store_has_already_is_refused(self, store: QueueStore) -> None:
        store.queue("q", str).add_handler(print)
        queues = Queues()
        queues.queue("q", str).add_handler(print)
        with pytest.raises(Conflict, match="has the handler print"):
            queues.open(store)

    def test_schedules_are_set_when_it_is_opened(self, store: QueueStore, clock: FakeClock) -> None:
        queues, handled = Queues(), []
        reports = queues.queue("reports", str)
        assert reports.schedule("hourly", "sales", every="1h") is False, "not in force yet"
        reports.add_handler(handled.append)
        queues.open(store)
        assert [schedule.name for schedule in store.schedules()] == ["hourly"]
        clock.advance("1h")
        drain(store)
        assert handled == ["sales"]

    def test_a_schedule_that_was_changed_is_reported_and_the_program_starts(self, store: QueueStore) -> None:
        store.queue("reports", str).schedule("hourly", "sales", every="1h")
        queues, handled = Queues(), []
        reports = queues.queue("reports", str)
        reports.schedule("hourly", "sales", every="2h")
        reports.add_handler(handled.append)
        with pytest.warns(ScheduleChanged, match="'hourly' version 1 is stored as every 1:00:00.*every 2:00:00"):
            queues.open(store)
        reports.put("now")
        drain(store)
        assert handled == ["now"]
        assert [schedule.spec for schedule in store.schedules()] == ["every:3600000000"]

    def test_middleware_of_all_its_handlers(self, store: QueueStore) -> None:
        seen: list[Any] = []

        def log(ctx: Context, call_next: Any) -> Any:
            seen.append(ctx.value)
            return call_next()

        queues = Queues(middleware=[log])
        queue = queues.queue("q", str)
        queue.add_handler(lambda value: None)
        queues.open(store)
        queue.put("x")
        drain(store)
        assert seen == ["x"]

    def test_opened_again_after_a_close(self, open_store: OpenStore) -> None:
        queues, handled = Queues(), []
        queue = queues.queue("q", str)
        queue.add_handler(handled.append)
        first = queues.open(open_store())
        with pytest.raises(Conflict, match="open already"):
            queues.open(open_store())
        later = queues.queue("later", str)
        later.add_handler(handled.append)
        first.close()
        queues.open(open_store(space="second"))
        queue.put("a")
        later.put("b")
        assert Worker(queues).drain() == 2
        assert sorted(handled) == ["a", "b"]


class TestNotOpenYet:
    @pytest.mark.parametrize(
        "call",
        [
            lambda queue: queue.put("x"), lambda queue: queue.put_many(["x"]), lambda queue: queue.get("id"),
            lambda queue: queue.find(), lambda queue: queue.dead(), lambda queue: queue.history(),
            lambda queue: queue.counts(), lambda queue: queue.cancel("id"), lambda queue: queue.replay("id"),
            lambda queue: queue.lock(), lambda queue: queue.locks(), lambda queue: queue.update("id", "x"),
            lambda queue: queue.purge_dead(), lambda queue: queue.store,
        ],
    )  # fmt: skip
    def test_what_needs_a_store_says_what_to_do(self, call: Any) -> None:
        queue = Queues().queue("mails", str)
        with pytest.raises(
            NotOpen, match=r"'mails' is declared, but not open. Call queues.open\(url\) first"
        ) as caught:
            call(queue)
        assert caught.value.hint

    def test_a_worker_too(self) -> None:
        queues = Queues()
        queues.queue("q", str).add_handler(print)
        with pytest.raises(NotOpen, match=r"queues\.open"):
            Worker(queues)

    def test_what_is_wrong_is_refused_where_it_is_written(self) -> None:
        queue = Queues().queue("q", int)
        with pytest.raises(BadInput):
            queue.add_handler(print, concurrency=0)
        with pytest.raises(BadInput):
            queue.schedule("s", 1, cron="nonsense")
        with pytest.raises(BadInput):
            queue.schedule("s", "no number", every="1h")  # type: ignore[arg-type]
        with pytest.raises(BadInput):
            Queues().queue("q", fifo=True).add_handler(print, timeout="1s")
        with pytest.raises(BadInput):
            Queues().open(3)  # type: ignore[arg-type]

    def test_one_handler_for_each_queue(self) -> None:
        queue = Queues().queue("q", int)
        queue.add_handler(print)
        with pytest.raises(Conflict, match="already has the handler"):
            queue.add_handler(print)
        assert queue.remove_handler() is True
        assert queue.remove_handler() is False

    def test_its_text_says_so(self) -> None:
        queues = Queues()
        assert "not open" in repr(queues.queue("q", int))
        assert "not open: q" in repr(queues)

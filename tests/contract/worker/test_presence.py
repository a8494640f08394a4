"""Workers tell the store that they live and what they did; who looks sees all of them, and those that were lost."""

from __future__ import annotations

import threading

import msgspec
import pytest
from tests.contract.queue.shorthand import Contract, OpenStore
from tests.contract.worker.test_running import Latch, eventually, running

from penstock.clock import FakeClock
from penstock.policy import Reject, Retry
from penstock.queue.protocol import DocumentWrite
from penstock.queue.queues import QueueStore
from penstock.queue.worker import Worker, presence
from penstock.queue.worker.figures import Tally, read_figures, total
from penstock.queue.worker.presence import WorkerRecord, forget_old, known_workers


class TestPresence(Contract):
    """Who works here."""

    def test_a_worker_is_known_while_it_runs(self, store: QueueStore, open_store: OpenStore) -> None:
        store.queue("mails").add_handler(print, concurrency=3)
        store.family("customer.").add_handler(print, concurrency=2)
        elsewhere = open_store(node="two")
        assert known_workers(elsewhere) == []
        with running(store) as worker:
            eventually(lambda: bool(known_workers(elsewhere)) and known_workers(elsewhere)[0].slots == 5)
            [known] = known_workers(elsewhere)
            assert (known.record.owner, known.record.node, known.state) == (worker.owner, "one", "alive")
            assert known.record.pid > 0
            assert known.record.version
            assert {(one.queue, one.is_family, one.slots) for one in known.record.serving} == {
                ("mails", False, 3), ("customer.", True, 2),
            }  # fmt: skip
            assert known.busy == 0
        assert known_workers(elsewhere) == []

    def test_a_busy_worker_says_so_and_then_that_it_stops(
        self, store: QueueStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(presence, "BEAT_SECONDS", 0.05)
        latch = Latch()
        store.queue("q").add_handler(lambda _: latch.wait(), concurrency=2)
        store.queue("q").put_many(range(2))
        worker = Worker(store)
        worker.start()
        try:
            eventually(lambda: [one.busy for one in known_workers(store)] == [2])
            ending = threading.Thread(target=worker.stop)
            ending.start()
            eventually(lambda: [one.state for one in known_workers(store)] == ["stopping"])
        finally:
            latch.opened.set()
        ending.join()
        assert known_workers(store) == []

    def test_a_worker_that_vanished_is_lost_for_a_day_and_then_forgotten(
        self, store: QueueStore, clock: FakeClock
    ) -> None:
        record = WorkerRecord("one/7-abc", "one", 7, "1.0", store.now(), False, ())
        store.driver.write([DocumentWrite("penstock.worker.one.7-abc", msgspec.json.encode(record))])
        assert [one.state for one in known_workers(store)] == ["alive"]
        clock.advance("31s")
        assert [one.state for one in known_workers(store)] == ["lost"]
        clock.advance("23h")
        assert [one.state for one in known_workers(store)] == ["lost"]
        assert forget_old(store) == 0
        clock.advance("1h")
        assert known_workers(store) == []
        assert forget_old(store) == 1
        assert store.driver.documents("penstock.worker.") == []


class TestFigures(Contract):
    """What workers did, minute by minute."""

    def test_every_outcome_is_counted_where_it_belongs(self, store: QueueStore, clock: FakeClock) -> None:
        def handle(value: str) -> None:
            if value == "bad":
                raise ValueError(value)
            if value == "worse":
                raise Reject(value)

        store.queue("q").add_handler(handle, retry=Retry(attempts=2, backoff="30s"))
        store.family("f.").add_handler(lambda _: None)
        store.queue("q").put_many(["good", "good", "bad", "worse"])
        store.queue("f.a").put("x")
        store.queue("f.b").put("x")
        worker = Worker(store)
        worker.drain()
        clock.advance("1m")
        worker.drain()
        worker.write_figures()
        tallies = read_figures(store, since_us=store.now() - 120_000_000)
        first, second = sorted({tally.minute for tally in tallies})
        assert second == first + 1
        figures = {(one.minute, one.queue, one.is_family): (one.done, one.failed, one.dead) for one in tallies}
        assert figures == {
            (first, "q", False): (2, 2, 1), (first, "f.", True): (2, 0, 0), (second, "q", False): (0, 1, 1),
        }  # fmt: skip
        assert sum(total(tallies).durations) == 7
        [later] = read_figures(store, since_us=store.now())
        assert later.minute == second

    def test_workers_add_up_and_none_overwrites_another(self, store: QueueStore, open_store: OpenStore) -> None:
        other = open_store(node="two")
        for one, count in ((store, 3), (other, 4), (store, 5)):
            one.queue("q").add_handler(lambda _: None)
            one.queue("q").put_many(range(count))
            worker = Worker(one)
            worker.drain()
            worker.write_figures()
            worker.write_figures()
            one.queue("q").remove_handler()
        assert total(read_figures(store, since_us=0)).done == 12

    def test_a_worker_in_the_background_writes_by_itself(
        self, store: QueueStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(presence, "BEAT_SECONDS", 0.05)
        store.queue("q").add_handler(lambda _: None)
        with running(store):
            store.queue("q").put_many(range(20))
            eventually(lambda: total(read_figures(store, since_us=0)).done == 20)
            store.queue("q").put_many(range(20))
        assert total(read_figures(store, since_us=0)).done == 40 - store.queue("q").counts().live

    def test_figures_of_yesterday_are_removed(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q").add_handler(lambda _: None)
        for _ in range(2):
            store.queue("q").put("x")
            worker = Worker(store)
            worker.drain()
            worker.write_figures()
            clock.advance("13h")
        assert forget_old(store) == 1
        assert total(read_figures(store, since_us=0)).done == 1


class TestTallies:
    """Numbers only; no store."""

    def test_a_quantile_is_the_upper_end_of_its_class(self) -> None:
        tally = Tally(0, "q", False, durations=[])
        assert tally.quantile(0.5) is None
        for seconds in (0.002, 0.02, 0.02, 70.0):
            tally.add("done", seconds)
        assert (tally.quantile(0.25), tally.quantile(0.75), tally.quantile(0.99)) == (0.005, 0.025, 300.0)
        tally.add("snooze", 1.0)
        assert tally.done == 4

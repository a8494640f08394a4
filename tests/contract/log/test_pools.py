"""Pools of producers and consumers: batches, retries, isolation, pills, and an end that is known."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any

import pytest
from tests.contract.log.shorthand import PATIENCE, LogContract, filled, stored, wait_until

from penstock.errors import BadInput, Closed, Conflict
from penstock.log.log import Log
from penstock.log.pools.consumer import BOUNDED, ConsumerPolicy, ConsumerPool
from penstock.log.pools.consumers import per_batch, per_record
from penstock.log.pools.producer import Message, ProducerPool, append_pill
from penstock.log.record import Record
from penstock.log.store import LogStore
from penstock.policy import Batching, Retry

QUICK = Retry(attempts=1000, backoff="1ms", max_backoff="2ms")


def number_log(store: LogStore, partitions: int = 4) -> Log[int]:
    """An empty log of numbers."""
    store.create("numbers", partitions=partitions)
    return store.log("numbers", int)


class Ledger:
    """What consumers were given, and what of it they committed; each consumer has a page."""

    def __init__(self) -> None:
        self.committed: list[int] = []
        self.accepted: list[int] = []
        self.batches: list[list[int]] = []
        self.lock = threading.Lock()

    def page(self, _: int = 0) -> Page:
        """A consumer."""
        return Page(self)


class Page:
    """A consumer that writes down; a test may make it fail."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.batch: list[int] = []

    def begin(self) -> None:
        self.batch = []

    def accept(self, record: Record[int]) -> None:
        with self.ledger.lock:
            self.ledger.accepted.append(record.value)
        self.batch.append(record.value)

    def commit(self) -> None:
        with self.ledger.lock:
            self.ledger.committed += self.batch
            self.ledger.batches.append(self.batch)

    def rollback(self) -> None:
        self.batch = []

    def close(self) -> None: ...


class TestProducerPools(LogContract):
    """Filling a log."""

    def test_all_of_them_fill_it(self, store: LogStore) -> None:
        log = number_log(store)
        statuses = ProducerPool(log, lambda number: range(number * 100, number * 100 + 100), 5, batch=30).run()
        assert [status.appended for status in statuses] == [100] * 5
        assert not any(status.failed for status in statuses)
        assert sorted(value for part in range(4) for value in stored(store, "numbers", part)) == list(range(500))

    def test_a_rerun_gives_the_same_order(self, store: LogStore) -> None:
        log = number_log(store)
        for _ in range(2):
            ProducerPool(log, lambda _: range(50), key=lambda value: str(value % 7), batch=8).run()
        for part in range(4):
            values = stored(store, "numbers", part)
            assert values[: len(values) // 2] == values[len(values) // 2 :]

    def test_messages_say_where_they_go(self, store: LogStore) -> None:
        log = number_log(store)
        ProducerPool(log, lambda _: [Message(value, partition=value % 2) for value in range(6)]).run()
        assert [stored(store, "numbers", part) for part in range(3)] == [[0, 2, 4], [1, 3, 5], []]

    def test_a_failure_keeps_the_count(self, store: LogStore) -> None:
        def make(number: int) -> Any:
            for value in range(10):
                if number == 1 and value == 7:
                    raise LookupError("no more")
                yield value

        good, bad = ProducerPool(number_log(store), make, 2, batch=5).run()
        assert (good.appended, good.failed) == (10, False)
        assert (bad.appended, type(bad.error)) == (5, LookupError)

    def test_it_waits_for_the_consumers(self, store: LogStore) -> None:
        log = number_log(store)
        producers = ProducerPool(log, lambda _: range(20), wait_for="readers", wait="20s").start()
        wait_until(lambda: producers.appended == 20, "all are appended")
        assert not producers.done
        ConsumerPool(log, "readers", lambda _: per_record(lambda record: None), BOUNDED).run()
        assert [status.consumed for status in producers.wait("20s")] == [True]

    def test_in_vain_it_waits_no_longer(self, store: LogStore) -> None:
        [status] = ProducerPool(number_log(store), lambda _: [1], wait_for="nobody", wait="10ms").run()
        assert status.consumed is False

    def test_bad_input(self, store: LogStore) -> None:
        log = number_log(store)
        with pytest.raises(BadInput, match="does nothing"):
            ProducerPool(log, lambda _: [], 0)
        pool = ProducerPool(log, lambda _: [])
        pool.run()
        with pytest.raises(Conflict, match="started before"):
            pool.start()


class TestBoundedPools(LogContract):
    """Consuming all there is, and then ending."""

    @pytest.mark.parametrize("subscribe", [False, True])
    def test_it_ends_when_all_is_done(self, store: LogStore, subscribe: bool) -> None:
        log, ledger = number_log(store), Ledger()
        ProducerPool(log, lambda number: range(number * 100, number * 100 + 100), 3).run()
        policy = ConsumerPolicy(bounded=True, threads=3, subscribe=subscribe, batch=Batching(7, "10s"))
        statuses = ConsumerPool(log, "readers", ledger.page, policy).run()
        assert len(statuses) == 3
        assert not any(status.failed for status in statuses)
        assert sum(status.committed for status in statuses) >= 300
        assert set(ledger.committed) == set(range(300))
        assert subscribe or len(ledger.committed) == 300
        assert store.lag("numbers", "readers").lag == 0

    def test_beside_its_producers(self, store: LogStore) -> None:
        log, ledger = number_log(store), Ledger()
        producers = ProducerPool(log, lambda number: range(number * 1000, number * 1000 + 1000), 4, batch=50)
        pool = ConsumerPool(log, "readers", ledger.page, BOUNDED, after=producers).start()
        producers.start()
        assert sum(status.committed for status in pool.wait("30s")) == 4000
        assert pool.done
        assert sorted(ledger.committed) == list(range(4000))

    def test_progress_is_told(self, store: LogStore) -> None:
        log = number_log(store, 1)
        told: list[tuple[int, int | None]] = []
        ProducerPool(log, lambda _: range(25)).run()
        ConsumerPool(
            log, "readers", lambda _: per_record(lambda record: None), BOUNDED,
            progress=lambda done, total: told.append((done, total)),
        ).run()  # fmt: skip
        assert told == [(10, 25), (20, 25), (25, 25)]

    def test_it_starts_where_it_is_told_to(self, store: LogStore) -> None:
        log, ledger = number_log(store, 1), Ledger()
        ProducerPool(log, lambda _: range(5)).run()
        for start in ("committed", "committed", "start", "end"):
            ConsumerPool(log, "readers", ledger.page, ConsumerPolicy(bounded=True, start=start)).run()
        assert ledger.committed == [*range(5), *range(5)]
        with pytest.raises(BadInput, match="committed"):
            ConsumerPolicy(start="start", subscribe=True)

    def test_a_function_of_whole_batches(self, store: LogStore) -> None:
        log = number_log(store, 1)
        ProducerPool(log, lambda _: range(25)).run()
        batches: list[list[int]] = []
        consumer = per_batch(lambda records: batches.append([record.value for record in records]))
        ConsumerPool(log, "readers", lambda _: consumer, BOUNDED).run()
        assert batches == [list(range(10)), list(range(10, 20)), list(range(20, 25))]


class TestBatches(LogContract):
    """When a batch is complete."""

    def test_time_closes_a_batch_though_nothing_comes(self, store: LogStore) -> None:
        filled(store, "numbers", 1, 3)
        log, ledger = store.log("numbers", int), Ledger()
        pool = ConsumerPool(log, "readers", ledger.page, ConsumerPolicy(batch=Batching(100, "50ms"))).start()
        wait_until(lambda: ledger.committed == [0, 1, 2], "the batch is out of time")
        assert not pool.done
        pool.stop()

    def test_an_open_batch_is_not_committed_a_forced_one_is(self, store: LogStore) -> None:
        log, ledger = number_log(store, 1), Ledger()
        pool = ConsumerPool(log, "readers", ledger.page, ConsumerPolicy(batch=Batching(100, "1h"))).start()
        first = log.append(1)
        assert not log.wait_for(first, "readers", "300ms")
        ProducerPool(log, lambda _: [Message(2, force_batch=True)]).run()
        assert log.wait_for(first, "readers", "20s")
        assert ledger.batches == [[1, 2]]
        pool.stop()

    def test_a_pill_commits_and_ends_its_consumer(self, store: LogStore) -> None:
        log, ledger = number_log(store, 1), Ledger()
        log.append_many([1, 2])
        append_pill(log, 0)
        log.append(3)
        [status] = ConsumerPool(log, "readers", ledger.page, ConsumerPolicy(batch=Batching(100, "1h"))).run()
        assert (status.committed, status.failed) == (2, False)
        assert ledger.batches == [[1, 2]]
        # The next one goes on behind the pill.
        ConsumerPool(log, "readers", ledger.page, BOUNDED).run()
        assert ledger.committed == [1, 2, 3]

    def test_one_pill_per_partition_ends_the_pool(self, store: LogStore) -> None:
        log, ledger = number_log(store, 3), Ledger()
        producers = ProducerPool(log, lambda _: range(30))
        producers.run()
        producers.poison()
        statuses = ConsumerPool(log, "readers", ledger.page).run()
        assert sum(status.committed for status in statuses) == 30
        assert sorted(ledger.committed) == list(range(30))


class TestFailures(LogContract):
    """What fails is replayed, alone, and at last given up."""

    def test_faulty_consumers_lose_nothing(self, store: LogStore) -> None:
        log, ledger = number_log(store, 6), Ledger()
        rng = random.Random(7)

        class Faulty(Page):
            def begin(self) -> None:
                self.fail(0.01)
                super().begin()

            def accept(self, record: Record[int]) -> None:
                super().accept(record)
                self.fail(0.1)

            def commit(self) -> None:
                self.fail(0.02)
                super().commit()

            def fail(self, share: float) -> None:
                if rng.random() < share:
                    raise OSError("now and then")

        ProducerPool(log, lambda number: range(number * 127, number * 127 + 127), 5).run()
        policy = ConsumerPolicy(bounded=True, threads=4, batch=Batching(13, "1s"), retry=QUICK)
        statuses = ConsumerPool(log, "readers", lambda _: Faulty(ledger), policy).run()
        assert sum(status.committed for status in statuses) == 635
        assert sorted(ledger.committed) == list(range(635))
        assert len(ledger.accepted) > 635
        assert sum(status.accepted for status in statuses) == len(ledger.accepted)
        assert sum(status.failures for status in statuses) > 0

    @pytest.mark.parametrize("attempts", [1, 3])
    def test_only_the_bad_one_is_skipped(self, store: LogStore, attempts: int) -> None:
        log, ledger = number_log(store, 1), Ledger()
        seen: Counter[int] = Counter()
        skipped: list[tuple[int, str]] = []

        class Picky(Page):
            def accept(self, record: Record[int]) -> None:
                seen[record.value] += 1
                if record.value == 13:
                    raise ValueError("unlucky")
                super().accept(record)

        ProducerPool(log, lambda _: range(30)).run()
        policy = ConsumerPolicy(
            bounded=True, on_failure="continue", retry=Retry(attempts=attempts, backoff="1ms", jitter=False)
        )
        [status] = ConsumerPool(
            log, "readers", lambda _: Picky(ledger), policy,
            on_skip=lambda record, error: skipped.append((record.value, str(error))),
        ).run()  # fmt: skip
        assert sorted(ledger.committed) == [number for number in range(30) if number != 13]
        assert skipped == [(13, "unlucky")]
        assert (status.skipped, status.committed, status.failed) == (1, 29, False)
        assert seen[13] == max(2, attempts)  # in its batch, and then by itself
        assert store.lag("numbers", "readers").lag == 0

    def test_stop_means_stop(self, store: LogStore) -> None:
        log, ledger = number_log(store, 1), Ledger()

        class Broken(Page):
            def accept(self, record: Record[int]) -> None:
                if record.value == 13:
                    raise ValueError("unlucky")
                super().accept(record)

        ProducerPool(log, lambda _: range(30)).run()
        [status] = ConsumerPool(log, "readers", lambda _: Broken(ledger), BOUNDED).run()
        assert isinstance(status.error, ValueError)
        assert ledger.committed == list(range(10))
        assert store.lag("numbers", "readers").lag == 20

    def test_retries_wait(self, store: LogStore) -> None:
        """The delay is really slept: a pool that is closed meanwhile ends at once."""
        log = number_log(store, 1)
        log.append(1)
        failed = threading.Event()

        def handle(record: Record[int]) -> None:
            failed.set()
            raise OSError("away")

        policy = ConsumerPolicy(batch=Batching(1), retry=Retry(attempts=5, delays=["1h"]))
        pool = ConsumerPool(log, "readers", lambda _: per_record(handle), policy).start()
        assert failed.wait(PATIENCE)
        [status] = pool.close()
        assert status.accepted == 1
        assert isinstance(status.error, Closed)

    def test_a_failing_rollback_hides_nothing(self, store: LogStore) -> None:
        log = number_log(store, 1)
        log.append(1)

        class Worse(Page):
            def accept(self, record: Record[int]) -> None:
                raise ValueError("first")

            def rollback(self) -> None:
                raise OSError("second")

        [status] = ConsumerPool(log, "readers", lambda _: Worse(Ledger()), BOUNDED).run()
        assert isinstance(status.error, ValueError)


class TestEnding(LogContract):
    """Pools that are stopped or closed."""

    def test_closed_it_commits_nothing_more(self, store: LogStore) -> None:
        log, ledger = number_log(store, 1), Ledger()
        log.append_many([1, 2])
        pool = ConsumerPool(log, "readers", ledger.page, ConsumerPolicy(batch=Batching(100, "1h"))).start()
        wait_until(lambda: store.lag("numbers", "readers").lag == 2, "they are there")
        threading.Event().wait(0.2)
        [status] = pool.close()
        assert isinstance(status.error, Closed)
        assert ledger.committed == []
        ConsumerPool(log, "readers", ledger.page, BOUNDED).run()
        assert ledger.committed == [1, 2]

    def test_stopped_it_commits_what_it_has(self, store: LogStore) -> None:
        log, ledger = number_log(store, 1), Ledger()
        pool = ConsumerPool(log, "readers", ledger.page, ConsumerPolicy(batch=Batching(2, "1h"))).start()
        log.append_many([1, 2])
        wait_until(lambda: ledger.committed == [1, 2], "the first batch is committed")
        [status] = pool.stop()
        assert not status.failed

    def test_a_closed_store_fails_the_consumers(self, store: LogStore, open_logs: Any) -> None:
        log, ledger = number_log(store, 2), Ledger()
        log.append_many([1, 2, 3], partition=0)
        pool = ConsumerPool(log, "readers", ledger.page, ConsumerPolicy(batch=Batching(100, "1h"))).start()
        threading.Event().wait(0.2)
        other = open_logs()
        store.close()
        assert all(status.failed for status in pool.wait("20s"))
        assert pool.done
        ConsumerPool(other.log("numbers", int), "readers", ledger.page, BOUNDED).run()
        assert ledger.committed == [1, 2, 3]

    def test_bad_input(self, store: LogStore) -> None:
        with pytest.raises(BadInput, match="on_failure"):
            ConsumerPolicy(on_failure="shrug")  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="start"):
            ConsumerPolicy(start="middle")  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="threads"):
            ConsumerPolicy(threads=0)
        pool = ConsumerPool(number_log(store), "readers", Ledger().page, BOUNDED)
        pool.run()
        with pytest.raises(Conflict, match="started before"):
            pool.start()

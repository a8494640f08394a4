"""Counts: what queues hold at one moment, whatever goes on meanwhile."""

from __future__ import annotations

import threading

from tests.contract.queue.shorthand import Contract, OpenStore, claim, end

from penstock.clock import SystemClock
from penstock.queue.queues import QueueStore


class TestCounts(Contract):
    """How many there are of each kind."""

    def test_an_entry_on_its_way_is_counted_once(self, open_store: OpenStore) -> None:
        """Somebody claims and gives back all the time; whoever counts or looks meanwhile sees all of them, always."""
        store: QueueStore = open_store(clock=SystemClock())
        mover: QueueStore = open_store(clock=SystemClock(), node="two")
        queue, stop = store.queue("q"), threading.Event()
        queue.put_many(range(5))

        def move() -> None:
            while not stop.is_set():
                for entry in claim(mover, "q", limit=5).entries:
                    end(mover, entry, "release")

        thread = threading.Thread(target=move)
        thread.start()
        try:
            assert {queue.counts().live for _ in range(150)} == {5}
            assert {len(queue.find()) for _ in range(50)} == {5}
        finally:
            stop.set()
            thread.join()

"""Entries that are changed while others claim: the handler gets what a change said, or the change is refused."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.contract.queue.shorthand import Contract, OpenStore, claim, end, ids, living, needs, take, values

from penstock.errors import EntryLeased, EntryNotFound
from penstock.queue.queues import QueueStore

Connect = Callable[[], Any]
UPDATES, SECONDS = 300, 5.0  # whichever comes first


class TestChangedBeside(Contract):
    @pytest.mark.timeout(180)
    def test_no_claim_hands_out_what_was_before_an_update(self, store: QueueStore, open_store: OpenStore) -> None:
        """Claims that begin before an update come to its entry after it."""
        queue, done = store.queue("q"), threading.Event()
        taken: dict[str, Any] = {}

        beside = open_store()

        def work() -> None:
            while not done.is_set():
                entries = take(beside, "q", "other")
                taken.update(zip(ids(entries), values(entries), strict=True))
                for entry in entries:
                    end(beside, entry)

        workers = [threading.Thread(target=work) for _ in range(2)]
        for worker in workers:
            worker.start()
        updated: list[str] = []
        deadline = time.monotonic() + SECONDS
        while len(updated) < UPDATES and time.monotonic() < deadline:
            for id_ in [queue.put("old").id for _ in range(3)]:
                with contextlib.suppress(EntryLeased, EntryNotFound):
                    queue.update(id_, "new")
                    updated.append(id_)
        done.set()
        for worker in workers:
            worker.join()
        assert [id_ for id_ in updated if taken.get(id_, "new") != "new"] == []


class TestHeadsChangedBeside(Contract):
    """The head of a FIFO queue is changed in a transaction for which the claim waits."""

    @pytest.fixture(autouse=True)
    def able(self, store: QueueStore) -> None:
        needs(store, "transactional")

    def claim_meanwhile(self, store: QueueStore, commit: Callable[[], None]) -> list[Any]:
        results: list[Any] = []
        claims = threading.Thread(target=lambda: results.append(claim(store, "q")))
        claims.start()
        claims.join(0.3)
        commit()
        claims.join(30)
        [claimed] = results
        return claimed.entries

    def test_it_is_updated(self, store: QueueStore, connect: Connect) -> None:
        head = store.queue("q", fifo=True).put("old").id
        connection = connect()
        store.queue("q").update(head, "new", connection=connection)
        entries = self.claim_meanwhile(store, connection.commit) or take(store, "q")
        assert values(entries) == ["new"]

    def test_it_is_put_off(self, store: QueueStore, connect: Connect) -> None:
        head = store.queue("q", fifo=True).put("x").id
        connection = connect()
        store.queue("q").reschedule(head, delay="1h", connection=connection)
        assert ids(self.claim_meanwhile(store, connection.commit)) == []
        assert living(store, head).due - living(store, head).created > timedelta(minutes=50)
        assert take(store, "q") == []

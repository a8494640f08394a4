"""A held entry is changed in a transaction that is open while the last entry it waits for ends.

Needs the fixture ``connect`` of the transactional calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.contract.queue.shorthand import Contract, living, needs, new, take_one

from penstock.ids import new_nonce
from penstock.queue.protocol import ClaimRequest, Ending, Link, Source, Step
from penstock.queue.queues import QueueStore

Connect = Callable[[], Any]


class TestChangedMeanwhile(Contract):
    """The end waits for the transaction; then the entry becomes due as it was changed, not as it was before."""

    @pytest.fixture(autouse=True)
    def able(self, store: QueueStore) -> None:
        needs(store, "transactional")

    @pytest.mark.parametrize("claims", [False, True], ids=["alone", "with a claim"])
    @pytest.mark.parametrize("replayed", [False, True], ids=["new", "replayed"])
    def test_a_held_entry_that_is_rescheduled(
        self, store: QueueStore, connect: Connect, claims: bool, replayed: bool
    ) -> None:
        target, source = new("then"), new("work")
        store.driver.commit(Step(puts=(target, source), links=(Link(source.id, target.id),)))
        if replayed:  # its history has a row, so a change writes another body
            store.queue("then").cancel(target.id)
            store.queue("then").replay(target.id)
        entry = take_one(store, "work")
        connection = connect()
        store.queue("then").reschedule(target.id, delay="2h", connection=connection)
        following = ClaimRequest(new_nonce(), (Source("work", 1),), 1, "worker", "one", 60_000_000) if claims else None
        results: list[Any] = []
        ends = threading.Thread(
            target=lambda: results.extend(
                store.driver.settle([Step((Ending(entry.lease, "done"),))], following).results
            )
        )
        ends.start()
        ends.join(0.3)
        connection.commit()
        ends.join(30)
        [result] = results
        assert not isinstance(result, Exception), result
        waiting = living(store, target.id)
        assert waiting.state == "waiting"
        assert waiting.due - waiting.created > timedelta(hours=1)

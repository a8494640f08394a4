"""Old entries meet new code, and new entries old code; none becomes a dead letter."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.contract.queue.shorthand import Contract, trail

from penstock import versioned
from penstock.clock import FakeClock
from penstock.queue.queues import QueueStore
from penstock.queue.worker import Worker


class Plain(msgspec.Struct):
    """Before anybody thought of versions."""

    name: str


@versioned()
class First(msgspec.Struct):
    name: str


@versioned(lambda old: {"names": [old["name"]]})
class Second(msgspec.Struct):
    names: list[str]


class TestVersions(Contract):
    @pytest.mark.parametrize("old", [Plain, First])
    def test_old_entries_meet_new_code(self, store: QueueStore, old: Any) -> None:
        store.queue("q", old).put(old("ann"))
        seen: list[Second] = []
        store.queue("q", Second).add_handler(seen.append)
        assert Worker(store).drain() == 1
        assert seen == [Second(["ann"])]

    def test_a_new_entry_goes_back_unspent_until_new_code_comes(self, store: QueueStore, clock: FakeClock) -> None:
        id_ = store.queue("q", Second).put(Second(["ann", "ben"])).id
        old = store.queue("q", First)
        old.add_handler(lambda value: pytest.fail("it cannot be read"))
        for _ in range(3):
            assert Worker(store).drain() == 1
            assert store.queue("q").counts().dead == 0
            clock.advance("5s")
        old.remove_handler()
        seen: list[Second] = []
        store.queue("q", Second).add_handler(seen.append)
        assert Worker(store).drain() == 1
        assert seen == [Second(["ann", "ben"])]
        assert trail(store, id_)[-1] == (1, 1, "done"), "no attempt was spent"

    def test_so_it_does_from_a_unit_of_work(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q", Second).put(Second(["ann"]))
        with store.unit() as unit:
            assert unit.take(store.queue("q", First)) == []
            unit.commit()
        assert store.queue("q").counts().dead == 0
        clock.advance("5s")
        with store.unit() as unit:
            [entry] = unit.take(store.queue("q", Second))
            assert entry.value == Second(["ann"])
            unit.commit()

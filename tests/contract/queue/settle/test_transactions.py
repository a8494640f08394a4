"""Calls inside the caller's own transaction: they live and die with it. Needs the fixture ``connect`` too.

``connect()`` gives a DB-API connection to the store's database whose transactions begin by themselves; a store that
declares ``transactional=False`` may be given anything, and has to refuse it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.contract.queue.shorthand import (
    PATIENCE,
    Contract,
    ending,
    live,
    living,
    needs,
    new,
    put,
    take,
    take_one,
    trail,
    values,
)

from penstock.bus import Bus
from penstock.errors import EntryNotFound, LeaseLost, UniqueHeld, Unsupported
from penstock.queue.entry import Unique
from penstock.queue.handling.context import Context
from penstock.queue.protocol import Changes, Find, Step
from penstock.queue.queues import QueueStore
from penstock.queue.worker import Worker

Connect = Callable[[], Any]


class TestTransactional(Contract):
    """Put, publish, find, update, cancel and finish with ``connection=``."""

    @pytest.fixture(autouse=True)
    def able(self, store: QueueStore) -> None:
        needs(store, "transactional")

    @pytest.mark.parametrize("commit", [True, False])
    def test_put_lives_and_dies_with_the_transaction(self, store: QueueStore, connect: Connect, commit: bool) -> None:
        connection = connect()
        connection.execute("CREATE TABLE business (n INTEGER)")
        connection.commit()
        connection.execute("INSERT INTO business VALUES (1)")
        result = store.queue("q").put("x", labels={"a": "1"}, unique="u", connection=connection)
        store.queue("q").put_many([1, 2], connection=connection)
        assert result.created
        assert store.driver.find(Find()) == [], "nobody sees it before the commit"
        if commit:
            connection.commit()
        else:
            connection.rollback()
        assert values(store.driver.find(Find())) == (["x", 1, 2] if commit else [])
        [(count,)] = connect().execute("SELECT count(*) FROM business").fetchall()
        assert count == (1 if commit else 0)
        assert store.queue("q").put("y", unique="u").created is not commit

    def test_find_sees_what_the_transaction_did(self, store: QueueStore, connect: Connect) -> None:
        connection = connect()
        queue = store.queue("q")
        id_ = queue.put("x", connection=connection).id
        assert values(queue.find(connection=connection)) == ["x"]
        assert queue.get(id_, connection=connection).value == "x"
        with pytest.raises(EntryNotFound):
            queue.get(id_)
        connection.rollback()

    @pytest.mark.parametrize("commit", [True, False])
    def test_update_and_cancel(self, store: QueueStore, connect: Connect, commit: bool) -> None:
        queue = store.queue("q")
        first, second, third = (queue.put(number).id for number in range(3))
        connection = connect()
        queue.update(first, "new", connection=connection)
        queue.reschedule(third, delay="1h", connection=connection)
        assert queue.cancel(second, connection=connection) == 1
        (connection.commit if commit else connection.rollback)()
        assert values(queue.find()) == (["new", 2] if commit else [0, 1, 2])
        assert trail(store, second) == ([(1, 1, "cancelled")] if commit else [])
        assert len(take(store, "q")) == (1 if commit else 3)

    @pytest.mark.parametrize("commit", [True, False])
    def test_publish(self, store: QueueStore, connect: Connect, commit: bool) -> None:
        bus = Bus(store)
        queue = bus.subscribe("a", str)
        connection = connect()
        assert len(bus.publish("event", connection=connection)) == 1
        (connection.commit if commit else connection.rollback)()
        assert len(queue.find()) == (1 if commit else 0)

    @pytest.mark.parametrize("commit", [True, False])
    def test_finish(self, store: QueueStore, connect: Connect, commit: bool) -> None:
        id_ = put(store, "q")
        taken = take_one(store, "q")
        connection = connect()
        store.driver.commit(Step((ending(taken),), (new("r", "child"),)), connection=connection)
        (connection.commit if commit else connection.rollback)()
        if commit:
            assert (live(store, id_), trail(store, id_)) == (None, [(1, 1, "done")])
        else:
            assert (living(store, id_).state, store.driver.find(Find(queue="r"))) == ("leased", [])
            store.driver.commit(Step((ending(taken),)))

    def test_a_unit_commits_inside_the_transaction(self, store: QueueStore, connect: Connect) -> None:
        put(store, "q", "x")
        connection = connect()
        with store.unit() as unit:
            unit.take(store.queue("q"))
            unit.put(store.queue("r"), "y")
            unit.commit(connection=connection)
        assert store.driver.find(Find(queue="r")) == []
        connection.commit()
        assert values(store.driver.find(Find())) == ["y"]

    def test_an_error_leaves_the_callers_own_work(self, store: QueueStore, connect: Connect) -> None:
        put(store, "q", "held", unique="u")
        stale = take_one(store, "q")
        store.driver.cancel([stale.id], force=True)
        put(store, "q", "held", unique="u")
        connection = connect()
        store.queue("q").put("good", connection=connection)
        with pytest.raises(UniqueHeld):
            store.driver.put([new("q", "a"), new("q", unique=Unique("u", on_conflict="raise"))], connection=connection)
        with pytest.raises(LeaseLost):
            store.driver.commit(Step((ending(stale),), (new("q", "b"),)), connection=connection)
        with pytest.raises(EntryNotFound):
            store.driver.cancel(["unknown"], connection=connection)
        connection.commit()
        assert values(store.driver.find(Find())) == ["held", "good"]

    def test_the_wake_up_follows_the_commit(self, store: QueueStore, connect: Connect) -> None:
        """A wait that begins after the put and before the commit ends because of the commit."""
        connection = connect()
        store.queue("q").put("x", connection=connection)
        while store.driver.wait(store.driver.bell(), 0.1):
            continue  # whatever the put itself has rung
        seen = store.driver.bell()
        answers: list[bool] = []
        thread = threading.Thread(target=lambda: answers.append(store.driver.wait(seen, PATIENCE)), daemon=True)
        thread.start()
        connection.commit()
        thread.join(PATIENCE + 5)
        assert answers == [True]
        assert values(take(store, "q")) == ["x"]

    def test_a_handler_finishes_in_its_own_transaction(self, store: QueueStore, connect: Connect) -> None:
        setup = connect()
        setup.execute("CREATE TABLE effects (n INTEGER)")
        setup.commit()
        queue = store.queue("q")
        queue.put(1)
        queue.put(2)

        @queue.handler
        def handle(value: int, ctx: Context) -> None:
            connection = connect()
            connection.execute(f"INSERT INTO effects VALUES ({int(value)})")
            ctx.put(store.queue("children"), value * 10)
            ctx.finish(connection=connection)
            if value == 2 and ctx.entry.attempt == 1:
                connection.rollback()
                raise RuntimeError("the second one fails after all")
            connection.commit()

        Worker(store).drain()
        assert [row[0] for row in setup.execute("SELECT n FROM effects").fetchall()] == [1]
        assert values(store.driver.find(Find(queue="children"))) == [10]
        assert [entry.attempt for entry in queue.find()] == [1]


class TestUnsupportedTransactions(Contract):
    """An excluded call raises when it is made, and changes nothing."""

    def test_every_call_refuses_a_connection(self, store: QueueStore, connect: Connect) -> None:
        if store.capabilities.transactional:
            pytest.skip(f"{store.name} declares transactional=True")
        queue = store.queue("q")
        id_ = queue.put("x").id
        connection = connect()
        for call in (
            lambda: queue.put("y", connection=connection),
            lambda: queue.put_many(["y"], connection=connection),
            lambda: Bus(store).publish("event", connection=connection),
            lambda: queue.find(connection=connection),
            lambda: queue.get(id_, connection=connection),
            lambda: queue.update(id_, "z", connection=connection),
            lambda: queue.reschedule(id_, delay="1h", connection=connection),
            lambda: queue.cancel(id_, connection=connection),
            lambda: store.driver.update(id_, Changes(priority=1), connection=connection),
            lambda: store.driver.settle([], connection=connection),
        ):
            with pytest.raises(Unsupported, match="transaction"):
                call()
        assert values(queue.find()) == ["x"]
        with store.unit() as unit:
            unit.put(queue, "y")
            with pytest.raises(Unsupported):
                unit.commit(connection=connection)

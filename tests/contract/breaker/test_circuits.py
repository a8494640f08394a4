"""Circuits: statistics, states, locks and the way back, shared by all who open the store."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.queue.shorthand import Contract, OpenStore, put

from penstock.breaker.breaker import Breaker
from penstock.breaker.hashing import circuit_hash
from penstock.breaker.settings import BreakerConfig, BreakerSettings, Override
from penstock.clock import FakeClock
from penstock.errors import BadInput, CircuitNotFound, Conflict
from penstock.queue.protocol import DocumentWrite
from penstock.queue.queues import QueueStore


def config(**changes: Any) -> BreakerConfig:
    """Everything on, and as few samples as tests can bear."""
    return BreakerConfig.active(**{"min_queue_sample_count": 4, "error_threshold_percentage": 50, **changes})


def failing(breaker: Breaker, number: int, *, ok: int = 0, circuit: str = "crm") -> str:
    """Report so many distinct failures, then successes; the state after it."""
    for index in range(number):
        breaker.report(circuit, f"bad-{index}", False, queue=f"q.{index}")
    for index in range(ok):
        breaker.report(circuit, f"good-{index}", True)
    return breaker.circuit(circuit).state


def locked(store: QueueStore) -> list[str]:
    """Queues that are locked, by name."""
    return sorted({lock.queue for lock in store.locks()})


class TestCircuits(Contract):
    """What the breaker decides and keeps."""

    def test_the_first_report_makes_a_closed_circuit(self, store: QueueStore) -> None:
        breaker = Breaker(store, config())
        assert breaker.circuits() == []
        breaker.report("crm", "r1", True)
        [view] = breaker.circuits()
        assert (view.circuit, view.hash, view.state) == ("crm", circuit_hash("crm"), "closed")
        assert (view.ratio, view.successes, view.failures) == (0, 1, 0)

    def test_opens_when_enough_distinct_requests_failed(self, store: QueueStore) -> None:
        breaker = Breaker(store, config())
        assert failing(breaker, 3) == "closed"
        for _ in range(10):
            breaker.report("crm", "bad-0", False)
        assert breaker.circuit("crm").state == "closed"
        # A success may be the sample that reaches the minimum.
        assert breaker.report("crm", "good", True).state == "open"
        view = breaker.circuit("crm")
        assert view.ratio == 75
        assert [(one.state, one.ratio, one.samples) for one in view.transitions] == [("open", 75, 4)]

    def test_the_last_outcome_of_a_request_counts_alone(self, store: QueueStore) -> None:
        breaker = Breaker(store, config(min_queue_sample_count=1))
        breaker.report("crm", "r", True)
        assert breaker.report("crm", "r2", True).ratio == 0
        distinct = Breaker(store, config(min_queue_sample_count=10), name="distinct")
        distinct.report("crm", "r", False)
        view = distinct.report("crm", "r", True)
        assert (view.successes, view.failures, view.ratio) == (1, 0, 0)
        both = Breaker(store, config(min_queue_sample_count=10), BreakerSettings.gateleen(), name="both")
        both.report("crm", "r", False)
        view = both.report("crm", "r", True)
        assert (view.successes, view.failures, view.ratio) == (1, 1, 50)

    def test_only_a_window_of_samples_counts(self, store: QueueStore, clock: FakeClock) -> None:
        breaker = Breaker(store, config(entries_max_age_ms=10_000))
        failing(breaker, 3)
        clock.advance("10s")
        assert breaker.circuit("crm").failures == 3  # the edge still counts
        clock.advance("1ms")
        view = breaker.report("crm", "new", False)
        assert (view.state, view.failures) == ("closed", 1)

    def test_only_the_newest_samples_are_kept(self, store: QueueStore) -> None:
        breaker = Breaker(store, config(max_queue_sample_count=10, min_queue_sample_count=1000))
        for index in range(20):
            breaker.report("crm", f"r{index}", False)
        assert breaker.circuit("crm").failures == 10
        another = Breaker(store, config(max_queue_sample_count=10, min_queue_sample_count=1000))
        kept = another.ledger.circuit("crm").statistics.failed
        assert list(kept) == [f"r{index}" for index in range(10, 20)]

    def test_nodes_share_statistics_and_state(self, store: QueueStore, open_store: OpenStore) -> None:
        here, there = Breaker(store, config()), Breaker(open_store(node="two"), config())
        failing(here, 2)
        there.report("crm", "other-1", False)
        assert there.report("crm", "other-2", False, queue="q").state == "open"
        assert here.circuit("crm").state == "open"
        assert locked(store) == ["q"]  # the one that reported
        there.close("crm")
        view = here.circuit("crm")
        assert (view.state, view.successes, view.failures) == ("closed", 0, 0)

    def test_a_new_node_knows_what_was_before(self, store: QueueStore, open_store: OpenStore) -> None:
        failing(Breaker(store, config()), 3)
        another = Breaker(open_store(node="two"), config())
        assert another.circuit("crm").failures == 3
        assert another.report("crm", "last", False).state == "open"

    def test_figures_go_on_while_it_is_open(self, store: QueueStore) -> None:
        breaker = Breaker(store, config())
        assert failing(breaker, 4, ok=0) == "open"
        assert failing(breaker, 4, ok=4) == "open"
        assert breaker.circuit("crm").ratio == 50
        assert failing(breaker, 7, ok=4) == "open"
        assert breaker.circuit("crm").ratio == 63
        assert failing(breaker, 0, ok=40) == "open"  # only closing closes

    def test_half_open_then_one_success_closes(self, store: QueueStore, clock: FakeClock) -> None:
        breaker = Breaker(store, config())
        failing(breaker, 4)
        assert breaker.periodic.half_open_all() == 1
        assert breaker.periodic.half_open_all() == 0
        assert breaker.circuit("crm").state == "half_open"
        view = breaker.report("crm", "probe", True)
        assert (view.state, view.ratio, view.successes, view.failures) == ("closed", 0, 0, 0)

    def test_half_open_then_one_failure_opens_again(self, store: QueueStore) -> None:
        breaker = Breaker(store, config())
        failing(breaker, 4)
        breaker.periodic.half_open_all()
        view = breaker.report("crm", "probe", False)
        assert (view.state, view.failures) == ("open", 5)
        assert [one.state for one in view.transitions] == ["open", "half_open", "open"]

    def test_more_successes_may_be_asked_for(self, store: QueueStore) -> None:
        breaker = Breaker(store, config(), BreakerSettings(successes=3))
        failing(breaker, 4)
        breaker.periodic.half_open_all()
        states = [breaker.report("crm", f"probe-{index}", True).state for index in range(3)]
        assert states == ["half_open", "half_open", "closed"]

    def test_samples_are_the_queues_least_recently_unlocked(self, store: QueueStore, clock: FakeClock) -> None:
        breaker = Breaker(store, config())
        failing(breaker, 4)
        circuit = breaker.ledger.circuit("crm")
        for name in "bca":
            put(store, name)
            store.driver.lock(name, circuit.holder)
            clock.advance("1s")
        breaker.periodic.half_open_all()
        sampled = []
        for _ in range(4):
            before = set(locked(store))
            assert breaker.periodic.unlock_samples() == 1
            [queue] = before - set(locked(store)) - {"q.0", "q.1", "q.2", "q.3"}
            sampled.append(queue)
            clock.advance("1s")
            store.driver.lock(queue, circuit.holder)  # as its next delivery does
            clock.advance("1s")
        assert sampled == ["b", "c", "a", "b"]

    def test_closing_unlocks_one_queue_per_interval_and_cluster(
        self, store: QueueStore, open_store: OpenStore, clock: FakeClock
    ) -> None:
        nodes = [
            Breaker(store, config(unlock_queues=1000)),
            Breaker(open_store(node="two"), config(unlock_queues=1000)),
        ]
        failing(nodes[0], 4)
        holder = nodes[0].ledger.circuit("crm").holder
        for index in range(6):
            store.driver.lock(f"q.{index}", holder)
            clock.advance("1ms")
        store.driver.lock("q.0", "operator", "lunch")
        nodes[1].close("crm")
        left = []
        for _ in range(8):
            for node in (*nodes, *nodes):
                node.tick()
            left.append(sum(lock.holder == holder for lock in store.locks()))
            clock.advance("1s")
        assert left == [5, 4, 3, 2, 1, 0, 0, 0]
        assert [(lock.queue, lock.holder) for lock in store.locks()] == [("q.0", "operator")]

    def test_ramp_up_doubles(self, store: QueueStore, clock: FakeClock) -> None:
        breaker = Breaker(store, config(unlock_queues=1000), BreakerSettings(ramp_up=True))
        failing(breaker, 4)
        for index in range(20):
            store.driver.lock(f"q.{index}", breaker.ledger.circuit("crm").holder)
        breaker.close("crm")
        left = []
        for _ in range(6):
            breaker.tick()
            left.append(len(store.locks()))
            clock.advance("1s")
        assert left == [19, 17, 13, 5, 0, 0]

    def test_orphaned_locks_are_found(self, store: QueueStore, clock: FakeClock) -> None:
        breaker = Breaker(store, config())
        breaker.report("crm", "r", True)
        store.driver.lock("late", breaker.ledger.circuit("crm").holder, "locked after it had closed")
        store.driver.lock("gone", f"breaker.{circuit_hash('no such circuit')}")
        unlocked = {breaker.periodic.unlock_next(), breaker.periodic.unlock_next()}
        assert unlocked == {"late", "gone"}
        assert breaker.periodic.unlock_next() is None

    def test_the_schedule_half_opens_after_an_interval(
        self, store: QueueStore, open_store: OpenStore, clock: FakeClock
    ) -> None:
        nodes = [Breaker(store, config()), Breaker(open_store(node="two"), config())]
        failing(nodes[0], 4)
        clock.advance("119s")
        for node in nodes:
            node.tick()
        assert nodes[0].circuit("crm").state == "open"
        clock.advance("1s")
        for node in reversed(nodes):
            node.tick()
        view = nodes[0].circuit("crm")
        assert [one.state for one in view.transitions] == ["open", "half_open"]

    def test_permits_are_few_and_come_back(self, store: QueueStore, open_store: OpenStore, clock: FakeClock) -> None:
        settings = BreakerSettings(probes=2, permit_ms=5000)
        here = Breaker(store, config(), settings)
        there = Breaker(open_store(node="two"), config(), settings)
        failing(here, 4)
        here.periodic.half_open_all()
        mine, theirs = here.ledger.circuit("crm"), there.ledger.circuit("crm")
        assert here.enter(mine, "a", "one") == "one"
        assert there.enter(theirs, "b", "two") == "two"
        assert here.enter(mine, "c", "three") is True  # refused, and its queue is locked
        assert "c" in locked(store)
        assert here.circuit("crm").probes == 2
        clock.advance("5s")  # both vanished
        assert there.enter(theirs, "d", "four") == "four"
        assert there.circuit("crm").probes == 1

    def test_operators_open_and_close(self, store: QueueStore) -> None:
        breaker = Breaker(store, config())
        assert breaker.open("crm", by="ann", why="maintenance").state == "open"
        with pytest.raises(CircuitNotFound, match="no circuit"):
            breaker.close("unknown")
        [last] = breaker.circuit(circuit_hash("crm")).transitions
        assert (last.state, last.by, last.why) == ("open", "ann", "maintenance")
        assert breaker.half_open("crm", by="ann").state == "half_open"
        breaker.open("erp")
        assert breaker.close_all(by="bob") == 2
        assert breaker.close_all() == 0
        assert {view.state for view in breaker.circuits()} == {"closed"}
        with pytest.raises(Conflict, match="closed"):
            breaker.half_open("crm")

    def test_a_circuit_is_removed(self, store: QueueStore, open_store: OpenStore) -> None:
        breaker, other = Breaker(store, config()), Breaker(open_store(node="two"), config())
        failing(breaker, 4)
        assert other.circuit("crm").state == "open"
        breaker.remove("crm")
        assert breaker.circuits() == []
        assert other.circuits() == []
        assert [one.name for one in store.driver.documents("breaker.samples.")] == []
        assert breaker.periodic.unlock_next() is not None
        assert failing(other, 3) == "closed"

    def test_samples_are_swept(self, store: QueueStore, clock: FakeClock) -> None:
        breaker = Breaker(store, config(entries_max_age_ms=60_000))
        failing(breaker, 4)
        breaker.close("crm")
        assert breaker.periodic.sweep() == 1
        breaker.report("crm", "r", True)
        assert breaker.periodic.sweep() == 0
        clock.advance("2m")
        assert breaker.periodic.sweep() == 1

    def test_configuration_is_shared_checked_and_audited(self, store: QueueStore, open_store: OpenStore) -> None:
        here, there = Breaker(store), Breaker(open_store(node="two"))
        assert here.config == BreakerConfig.active()
        told: list[dict[str, Any]] = []
        store.signals.subscribe(lambda one: told.append(one.data), "configured")
        wanted = {**BreakerConfig().resource(), "errorThresholdPercentage": 77}
        here.configure(wanted, by="ann")
        there.refresh()
        assert there.config.resource() == wanted
        assert [(one["by"], one["after"]["errorThresholdPercentage"]) for one in told] == [("ann", 77)]
        with pytest.raises(BadInput, match="minQueueSampleCount is missing"):
            here.configure({name: value for name, value in wanted.items() if name != "minQueueSampleCount"})
        assert [(one.by, one.before["errorThresholdPercentage"]) for one in there.changes()] == [("ann", 90)]
        there.reset(by="bob")
        here.refresh()
        assert here.config == BreakerConfig.active()
        here.adjust(BreakerSettings(circuits={"crm": Override(min_queue_sample_count=1)}))
        assert there.report("crm", "r", False).state == "open"

    def test_every_transition_is_told_once(self, store: QueueStore, open_store: OpenStore) -> None:
        here, there = Breaker(store, config()), Breaker(open_store(node="two"), config())
        told: list[tuple[str, str]] = []
        for breaker in (here, there):
            breaker.store.signals.subscribe(
                lambda one: told.append((one.data["circuit"], one.data["state"])), "circuit"
            )
        real = store.driver.settle

        def read_back_first(*arguments: Any, **options: Any) -> Any:
            reply = real(*arguments, **options)
            here.ledger.refresh(all_of_it=True)  # as the background thread may, before the reply is looked at
            return reply

        store.driver.settle = read_back_first  # type: ignore[method-assign]
        failing(here, 4)
        there.refresh()
        there.half_open("crm")
        assert here.report("crm", "probe", True).state == "closed"
        assert told == [("crm", "open"), ("crm", "half_open"), ("crm", "closed")]

    def test_a_broken_write_is_noticed(self, store: QueueStore, open_store: OpenStore) -> None:
        """Another node changes the circuit between our look and our write."""
        here, there = Breaker(store, config()), Breaker(open_store(node="two"), config())
        failing(here, 3)
        there.open("crm", why="first")
        circuit = here.ledger.circuit("crm")
        here.open("crm", why="second")  # is open already: changes nothing
        assert [one.why for one in here.circuit("crm").transitions] == ["first"]
        store.driver.write([DocumentWrite(circuit.document, None)])
        assert here.circuits() == []
        assert here.open("crm").state == "open"

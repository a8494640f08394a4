"""What becomes of circuits and locks when the breaker is switched off, a circuit vanishes or the clock is set back."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock import Breaker, QueueStore, Retry, Worker
from penstock.breaker import BreakerConfig, BreakerSettings
from penstock.breaker.settings import check_together, read_config
from penstock.breaker.statistics import Statistics
from penstock.errors import Conflict
from penstock.testing import FakeClock


def config() -> BreakerConfig:
    return BreakerConfig.active(min_queue_sample_count=1, unlock_queues=10_000)


def locking(store: QueueStore, breaker: Breaker, queues: int) -> None:
    """Open the circuit and lock as many queues in its name."""
    breaker.report("crm", "1", False)
    circuit = breaker.ledger.circuit("crm")
    for number in range(queues):
        assert breaker.enter(circuit, f"q{number}", "key") is True
    assert len(store.locks()) == queues


@pytest.mark.parametrize("how", ["reset", "switched off"])
def test_with_the_check_off_no_queue_stays_locked(store: QueueStore, clock: FakeClock, how: str) -> None:
    breaker, other = Breaker(store, BreakerConfig()), Breaker(store, BreakerConfig())
    breaker.configure(config())
    locking(store, breaker, 20)
    store.driver.lock("q0", "operator", "by hand")
    other.tick()
    if how == "reset":
        breaker.reset()
    else:
        off = {"circuitCheckEnabled": False, "unlockQueues": {"enabled": False, "interval": 10_000}}
        breaker.configure({**breaker.config.resource(), **off})
    left = []
    for _ in range(7):
        clock.advance("10s")
        other.tick()
        left.append(len(breaker.locked_queues().get(breaker.circuit("crm").hash, [])))
    assert left[0] >= 18, "not all at once"
    assert left[-1] == 0, "each time twice as many as before"
    assert [lock.holder for lock in store.locks()] == ["operator"], "what others have locked is theirs"


def test_one_who_never_stored_anything_leaves_the_locks_of_others_alone(store: QueueStore, clock: FakeClock) -> None:
    program, looking = Breaker(store, config()), Breaker(store, BreakerConfig())
    locking(store, program, 3)
    for _ in range(5):
        looking.tick()
        clock.advance("10s")
    assert len(store.locks()) == 3


def test_nothing_is_opened_by_hand_while_the_breaker_is_off(store: QueueStore) -> None:
    breaker = Breaker(store)
    breaker.configure(BreakerConfig())
    with pytest.raises(Conflict, match="off"):
        breaker.open("crm")
    assert breaker.circuits() == []


def test_what_would_keep_queues_locked_is_told() -> None:
    resource = {**config().resource(), "unlockQueues": {"enabled": False, "interval": 1}}
    assert check_together(BreakerConfig.active(), BreakerSettings()) == []
    [said] = check_together(read_config(resource), BreakerSettings())
    assert "unlockQueues" in said


@pytest.mark.parametrize("probes", [1, None])
def test_a_clock_that_is_set_back_keeps_no_circuit_open(
    store: QueueStore, clock: FakeClock, probes: int | None
) -> None:
    breaker = Breaker(store, config(), BreakerSettings(probes=probes))
    family = store.family("o.", str, fifo=True)
    down = True

    @family.handler(breaker=breaker.guard("crm"), retry=Retry(attempts=None, delays=["0s"]))
    def send(value: str) -> None:
        if down:
            raise ConnectionError

    for name in "abcd":
        family.member(f"o.{name}").put(name)
    Worker(store).drain()
    assert breaker.circuit("crm").state == "open"
    breaker.tick()
    down = False
    clock.set(clock.now() - timedelta(hours=2))
    for _ in range(20):
        breaker.tick()
        clock.advance("10s")
    assert breaker.circuit("crm").state != "open"


def test_a_permit_from_the_future_is_lost(store: QueueStore, clock: FakeClock) -> None:
    breaker = Breaker(store, config())
    breaker.report("crm", "1", False)
    breaker.half_open("crm")
    circuit = breaker.ledger.circuit("crm")
    assert breaker.enter(circuit, "a", "one") == "one"
    assert breaker.enter(circuit, "b", "two") is True
    clock.set(clock.now() - timedelta(hours=2))
    assert breaker.enter(circuit, "b", "two") == "two"


def test_samples_from_the_future_do_not_count() -> None:
    samples, hour = Statistics(), 3_600_000_000
    for number in range(3):
        samples.add(f"before {number}", False, 10 * hour)
    samples.add("after", True, 8 * hour)
    samples.count(8 * hour, hour)
    samples.add("before 0", True, 8 * hour)
    figures = samples.count(8 * hour, hour)
    assert (figures.successes, figures.failures) == (2, 0)

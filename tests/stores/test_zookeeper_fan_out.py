"""What ZooKeeper does when more entries wait for one than a commit takes: it releases them in parts."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from tests.contract.queue.holding.test_walks import run
from tests.contract.queue.shorthand import end, ids, new, put, take, take_one

from penstock import QueueStore, failpoints, open_queues
from penstock.errors import StoreFull
from penstock.ids import new_nonce
from penstock.queue.drivers.zookeeper import mirror
from penstock.queue.protocol import Find, Link, Step
from penstock.testing import FakeClock

PART = 4
WAITERS = 14


class Died(BaseException):
    """The process ends here."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def open_store(servers: Callable[[str], Any], clock: FakeClock) -> Iterator[Callable[..., Any]]:
    url, opened = f"{servers('zookeeper').url}/{new_nonce()}", []

    def open_another() -> QueueStore:
        opened.append(open_queues(url, node="one", clock=clock))
        return opened[-1]

    yield open_another
    for store in opened:
        store.close()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "FAN_OUT", PART)


@pytest.fixture
def dies_at() -> Iterator[Callable[[int], None]]:
    """Let the process die when it goes on with a release for the n-th time."""

    def arm(number: int) -> None:
        reached = itertools.count(1)

        def strike(name: str) -> None:
            if name == "links.postponed" and next(reached) == number:
                raise Died

        failpoints.arm(strike)

    yield arm
    failpoints.arm(None)


def waiters(store: QueueStore, source: str, number: int = WAITERS) -> list[str]:
    targets = [new("then") for _ in range(number)]
    for start in range(0, number, 250):
        part = targets[start : start + 250]
        store.driver.commit(Step(puts=tuple(part), links=tuple(Link(source, target.id) for target in part)))
    return ids(targets)  # type: ignore[arg-type]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("how", ["done", "cancelled", "expired"])
def test_whoever_dies_between_two_parts_leaves_the_rest_to_the_reaper(
    open_store: Callable[..., Any], clock: FakeClock, dies_at: Callable[[int], None], number: int, how: str
) -> None:
    store, other = open_store(), open_store()
    source = put(store, "work", expires="1m")
    targets = waiters(store, source)
    ends: dict[str, Callable[[], Any]] = {
        "done": partial(end, store, take_one(store, "work")) if how == "done" else int,
        "cancelled": partial(store.driver.cancel, [source]),
        "expired": partial(store.driver.reap, node="one"),
    }
    if how == "expired":
        clock.advance("2m")
    dies_at(number)
    with pytest.raises(Died):
        ends[how]()
    failpoints.arm(None)
    other.driver.reap(node="one")
    assert other.driver.links() == []
    waits = other.driver.waits(targets)
    assert {(wait.needs, wait.tally[how], sum(wait.tally.values())) for wait in waits} == {(0, 1, 1)}
    assert len(waits) == WAITERS
    if how == "done":
        assert sorted(ids(take(other, "then"))) == sorted(targets)
    else:
        assert other.driver.find(Find(ids=tuple(targets))) == []


@pytest.mark.usefixtures("small_parts")
def test_an_end_before_a_replay_does_not_count_for_what_waits_since(
    open_store: Callable[..., Any], dies_at: Callable[[int], None]
) -> None:
    store, other = open_store(), open_store()
    source = put(store, "work")
    targets = waiters(store, source)
    entry = take_one(store, "work")
    dies_at(1)
    with pytest.raises(Died):
        end(store, entry)
    failpoints.arm(None)
    other.driver.replay([source])
    [later] = waiters(other, source, 1)
    other.driver.reap(node="one")
    assert sorted(ids(take(other, "then"))) == sorted(targets)
    end(other, take_one(other, "work"))
    assert ids(take(other, "then")) == [later]


def test_more_waiters_than_can_be_released_are_refused(
    open_store: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "WAITERS", 5)
    store = open_store()
    source = put(store, "work")
    waiters(store, source, 5)
    with pytest.raises(StoreFull, match="waited for by 5 entries"):
        waiters(store, source, 1)
    assert store.driver.counts("then")[0].held == 5


@pytest.mark.timeout(300)
def test_an_entry_that_cannot_be_reaped_holds_up_no_other(
    open_store: Callable[..., Any], clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    state = store.driver.mirror.state
    state.fan_out = state.waiters = None
    source = put(store, "work", expires="1m")
    waiters(store, source, 3_000)
    others = [put(store, f"other-{number}", expires="1m") for number in range(3)]
    clock.advance("2m")
    rounds = [store.driver.reap(node="one") for _ in range(2)]  # a round ends where it met what it cannot reap
    assert sorted(id_ for reaped in rounds for id_, _ in reaped.expired) == sorted(others)
    assert source in caplog.text
    # A reaper that works in parts ends it.
    open_store().driver.reap(node="one")
    assert store.driver.counts("then")[0].held == 0


@pytest.mark.timeout(0)
def test_links_do_what_the_model_does_in_the_smallest_parts(
    servers: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "FAN_OUT", 1)
    run(
        lambda clock: open_queues(f"{servers('zookeeper').url}/{new_nonce()}", clock=clock, node="one"),
        examples=8,
    )

"""Links under a hypothesis state machine: every store against a plain model of who waits for whom.

The invariants, after every step: **I1** what an entry needs is the number of its unconsumed links; **I2** an entry can
be claimed if and only if it needs nothing; **I3** its tally and its needs are all links it ever had; **I4** a link is
consumed once, also when an ending is repeated; **I5** an entry is released once in each generation; **I6** whatever an
entry is held for lives or is a dead letter; **I7** an ending that fails consumes nothing.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.contract.queue.shorthand import MINUTE, new, request
from tests.store_urls import STORES

from penstock import QueueStore, open_queues
from penstock.errors import LeaseLost
from penstock.ids import new_id
from penstock.queue import linking
from penstock.queue.entry import Entry
from penstock.queue.protocol import Claimed, Ending, Find, Link, Step, Wait
from penstock.testing import FakeClock

EXAMPLES = {"memory": 100, "sqlite": 40, "postgres": 15, "mysql": 10, "redis": 25, "zookeeper": 8}
ons = st.sampled_from(["done", "done", "ended"])
picks = st.integers(0, 40)


class Model:
    """Who waits for whom, in plain Python."""

    def __init__(self) -> None:
        self.state: dict[str, str] = {}
        self.links: set[tuple[str, str, str]] = set()
        self.tally: dict[str, Counter[str]] = {}
        self.made: Counter[str] = Counter()
        self.released: Counter[str] = Counter()  # since the last replay
        self.replays: Counter[str] = Counter()
        self.claims: Counter[str] = Counter()

    def put(self, ids: list[str], links: list[tuple[str, str, str]]) -> None:
        for id_ in ids:
            self.state[id_] = "waiting"
        self.add(links, ids)

    def add(self, links: list[tuple[str, str, str]], fresh: list[str]) -> None:
        for source, target, on in links:
            if target in fresh:
                self.state[target] = "held"
            self.made[target] += 1
            self.tally.setdefault(target, Counter())
            if self.state[source] in ("done", "dead", "cancelled", "expired"):
                self.tally[target][self.state[source]] += 1
            else:
                self.links.add((source, target, on))
        for target in {target for _, target, _ in links}:
            self.test_zero(target)

    def needs(self, target: str) -> int:
        return sum(link[1] == target for link in self.links)

    def test_zero(self, target: str) -> None:
        if self.state[target] == "held" and not self.needs(target):
            self.state[target] = "waiting"
            self.released[target] += 1

    def consume(self, id_: str, how: str) -> list[str]:
        """Consume the links of an end; the targets they led to."""
        touched = []
        for link in sorted(self.links):
            source, target, on = link
            if source == id_ and (how != "dead" or on == "ended"):
                self.links.discard(link)
                self.tally[target][how] += 1
                touched.append(target)
                if on == "done" and how in ("cancelled", "expired") and self.state[target] == "held":
                    self.end(target, "cancelled")
        return touched

    def end(self, id_: str, how: str) -> None:
        self.state[id_] = how
        for target in self.consume(id_, how):
            self.test_zero(target)


class Walk(RuleBasedStateMachine):
    """What programs, workers and operators do to batches, chains and the like."""

    opened: Callable[[FakeClock], QueueStore]

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.store = type(self).opened(self.clock)
        self.model = Model()
        self.held: dict[str, Entry[Any]] = {}  # what is being worked on
        self.settled: list[Ending] = []

    def teardown(self) -> None:
        self.store.close()

    def ids(self, *states: str) -> list[str]:
        return [id_ for id_, state in self.model.state.items() if state in states]

    def commit(self, step: Step) -> None:
        self.store.driver.commit(step)

    @initialize(sizes=st.lists(st.integers(2, 4), min_size=2, max_size=4), on=ons, taken=st.integers(2, 6))
    def begin(self, sizes: list[int], on: str, taken: int) -> None:
        """Something waits, and something is being worked on."""
        for size in sizes:
            self.batch(size, on, False)
        self.chain(3)
        self.claim(taken)

    # --- putting --------------------------------------------------------------------------------------

    @rule(size=st.integers(1, 4), on=ons, expires=st.booleans())
    def batch(self, size: int, on: str, expires: bool) -> None:
        target = new("q")
        members = [new("q", number, expires_in_us=5 * MINUTE if expires else None) for number in range(size)]
        links = [(member.id, target.id, on) for member in members]
        self.commit(Step(puts=(target, *members), links=tuple(Link(*link) for link in links)))  # type: ignore[arg-type]
        self.model.put([target.id, *(member.id for member in members)], links)

    @rule(size=st.integers(2, 4))
    def chain(self, size: int) -> None:
        parts = [new("q", number) for number in range(size)]
        links = [(one.id, two.id, "done") for one, two in itertools.pairwise(parts)]
        self.commit(Step(puts=tuple(parts), links=tuple(Link(*link) for link in links)))  # type: ignore[arg-type]
        self.model.put([part.id for part in parts], links)

    @rule(number=picks, other=picks, on=ons)
    def after(self, number: int, other: int, on: str) -> None:
        allowed = self.ids("waiting", "held", "leased", "done")
        if allowed:
            sources = sorted({allowed[number % len(allowed)], allowed[other % len(allowed)]})
            target = new("q")
            links = [(source, target.id, on) for source in sources]
            self.commit(Step(puts=(target,), links=tuple(Link(*link) for link in links)))  # type: ignore[arg-type]
            self.model.put([target.id], links)

    @rule(number=picks, on=ons)
    def add_from_outside(self, number: int, on: str) -> None:
        held = self.ids("held")
        if held:
            target, member = held[number % len(held)], new("q")
            self.commit(Step(puts=(member,), links=(Link(member.id, target, on),)))  # type: ignore[arg-type]
            self.model.put([member.id], [(member.id, target, on)])

    # --- working --------------------------------------------------------------------------------------

    @rule(limit=st.integers(1, 5))
    def claim(self, limit: int) -> None:
        self.took(self.store.driver.claim(request(self.store, "q", limit=limit, lease="10m", attempts=4)))

    def took(self, claimed: Claimed) -> None:
        for entry in claimed.entries:
            assert self.model.state[entry.id] == "waiting", f"{entry.id} is {self.model.state[entry.id]}"  # I2
            self.model.state[entry.id] = "leased"
            self.held[entry.id] = entry
        # A claim also ends what it finds expired or without an attempt left.
        rows = self.store.driver.history(Find(states=("expired",), limit=10_000))
        expired = {row.id for row in rows if row.generation == 1 + self.model.replays[row.id]}
        for id_ in sorted(expired.intersection(self.ids("waiting"))):
            self.model.end(id_, "expired")
        for id_ in claimed.dead:
            self.model.end(id_, "dead")

    @precondition(lambda self: self.held)
    @rule(number=picks, how=st.sampled_from(["done", "dead", "done", "dead", "retry"]), again=st.booleans())
    def finish(self, number: int, how: str, again: bool) -> None:
        id_ = sorted(self.held)[number % len(self.held)]
        ending = Ending(self.held.pop(id_).lease, how)  # type: ignore[arg-type]
        self.commit(Step((ending,)))
        self.settled.append(ending)
        if again:  # I4
            self.commit(Step((ending,), repeat=True))
        if how == "retry":
            self.model.state[id_] = "waiting"
        else:
            self.model.end(id_, how)

    @precondition(lambda self: self.held)
    @rule(count=st.integers(1, 4), limit=st.integers(0, 3))
    def finish_together(self, count: int, limit: int) -> None:
        """As a worker does, in one round trip with the next claim."""
        ids = sorted(self.held)[:count]
        endings = [Ending(self.held.pop(id_).lease, "done") for id_ in ids]  # type: ignore[arg-type]
        following = request(self.store, "q", limit=limit, lease="10m", attempts=4) if limit else None
        settled = self.store.driver.settle([Step((ending,)) for ending in endings], following)
        self.settled += endings
        for id_ in ids:
            self.model.end(id_, "done")
        self.took(settled.claimed)

    @precondition(lambda self: self.held)
    @rule(number=picks, other=picks)
    def finish_and_add(self, number: int, other: int) -> None:
        held = self.ids("held")
        if held:
            id_ = sorted(self.held)[number % len(self.held)]
            target, member = held[other % len(held)], new("q")
            ending = Ending(self.held.pop(id_).lease, "done")  # type: ignore[arg-type]
            self.commit(Step((ending,), (member,), links=(Link(member.id, target),)))
            self.model.state[member.id] = "waiting"
            self.model.made[target] += 1
            self.model.links.add((member.id, target, "done"))
            self.model.end(id_, "done")

    @precondition(lambda self: self.settled)
    @rule(number=picks)
    def finish_late(self, number: int) -> None:
        ending = self.settled[number % len(self.settled)]
        with pytest.raises(LeaseLost):  # I7
            self.commit(Step((ending,)))

    # --- operators and time -----------------------------------------------------------------------------

    @rule(number=picks)
    def cancel(self, number: int) -> None:
        live = self.ids("waiting", "held", "leased")
        if live:
            id_ = live[number % len(live)]
            self.store.driver.cancel([id_], force=True)
            self.held.pop(id_, None)
            self.model.end(id_, "cancelled")

    @rule(number=picks)
    def replay(self, number: int) -> None:
        ended = self.ids("done", "dead", "cancelled", "expired")
        if ended:
            id_ = ended[number % len(ended)]
            self.store.driver.replay([id_])
            self.model.state[id_] = "held" if self.model.needs(id_) else "waiting"
            self.model.released[id_] = 0
            self.model.replays[id_] += 1

    @rule(number=picks)
    def purge(self, number: int) -> None:
        dead = self.ids("dead")
        if dead:
            id_ = dead[number % len(dead)]
            self.store.driver.purge_dead(Find(ids=(id_,)))
            self.model.state[id_] = "gone"
            for target in self.model.consume(id_, "cancelled"):
                self.model.test_zero(target)

    @rule(minutes=st.sampled_from([1, 6, 11]))
    def time_passes(self, minutes: int) -> None:
        self.clock.advance(f"{minutes}m")
        reaped = self.store.driver.reap(node="one")
        for id_, _ in reaped.reaped:
            self.model.state[id_] = "waiting"
            self.held.pop(id_)
        for id_, _ in reaped.dead:
            self.held.pop(id_)
            self.model.end(id_, "dead")
        for id_, _ in reaped.expired:
            if self.model.state[id_] == "waiting":
                self.model.end(id_, "expired")

    # --- what always holds ------------------------------------------------------------------------------

    @invariant()
    def store_is_what_the_model_is(self) -> None:
        links = {(link.source, link.target, link.on) for link in self.store.driver.links(limit=10_000)}
        assert links == self.model.links
        waits = {wait.id: wait for wait in self.store.driver.waits(limit=10_000)}
        for target, made in self.model.made.items():
            tally = self.model.tally[target]
            wait = waits.get(target) or Wait(target)
            assert wait.tally == {how: tally[how] for how in wait.tally}
            assert wait.needs == self.model.needs(target)  # I1
            assert sum(wait.tally.values()) + wait.needs == made  # I3
            assert self.model.released[target] <= 1  # I5
        states = {entry.id: entry.state for entry in self.store.driver.find(Find(limit=10_000))}
        assert states == {
            id_: state for id_, state in self.model.state.items() if state in ("waiting", "held", "leased")
        }
        for source, target, _ in links:  # I6
            if states.get(target) == "held":
                assert self.model.state[source] in ("waiting", "held", "leased", "dead")


def test_every_store_is_walked() -> None:
    assert list(EXAMPLES) == list(STORES)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("store", list(EXAMPLES))
def test_links_do_what_the_model_does(store: str, tmp_path: Path, servers: Callable[[str], Any]) -> None:
    numbers = itertools.count()

    def opened(clock: FakeClock) -> QueueStore:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        url = STORES[store](folder, servers).url
        url += "?durability=fast" if store == "sqlite" else ""
        return open_queues(url, clock=clock, node="one")

    run(opened, max(EXAMPLES[store], int(os.environ.get("PENSTOCK_EXAMPLES", "0"))))


def run(opened: Callable[[FakeClock], QueueStore], examples: int) -> None:
    walk = type("WalkOfStore", (Walk,), {"opened": staticmethod(opened)})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        walk,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )


MISTAKES: dict[str, Callable[..., bool]] = {
    "is_consumed": lambda link, state: True,  # a dead letter counts as done
    "is_fatal": lambda link, state: False,  # what waits for a cancelled entry is released
}


@pytest.mark.parametrize("rule_of_links", list(MISTAKES))
def test_a_planted_mistake_is_found(rule_of_links: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linking, rule_of_links, MISTAKES[rule_of_links])
    with pytest.raises(AssertionError):
        run(lambda clock: open_queues(f"memory://{new_id()}", clock=clock, node="one"), 150)

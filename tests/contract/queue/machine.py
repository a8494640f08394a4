"""A hypothesis state machine that does the same to a store and to the model, and looks for any difference.

    run(lambda clock: open_queues("memory://", clock=clock, node="one"))

Invariants on top of equality with the model, after every step: one final state per id and generation, history keys
that are never used twice, fences that only rise, stale tokens that change nothing, locked queues that give nothing,
no claim before an entry is due.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.contract.queue.beside_model import QUEUES, Pair
from tests.contract.queue.model import FINAL

from penstock.clock import FakeClock
from penstock.errors import LeaseLost
from penstock.queue.entry import Unique
from penstock.queue.protocol import Changes, ClaimRequest, Ending, Find, NewEntry, Source, Step, StepDone
from penstock.queue.queues import QueueStore

OWNERS = ("worker-a", "worker-b")
NODES = ("one", "two")
SECOND = 1_000_000
MINUTE = 60 * SECOND
LEASE = 5 * MINUTE
STICKY = 20 * MINUTE
BOUNDS = (1, 2, 3, None)

indexes = st.integers(0, 30)
queues = st.sampled_from(QUEUES)
delays = st.sampled_from([0, 0, 0, 30 * SECOND, 10 * MINUTE])
outcomes = st.sampled_from(["done", "done", "dead", "retry", "retry", "snooze", "release"])
numbers = st.integers(0, 3)
uniques = st.none() | st.builds(
    Unique,
    st.sampled_from(["u", "v"]),
    st.sampled_from(["done", "done", "started"]),
    st.sampled_from([None, None, "8m"]),
    st.sampled_from(["keep", "replace", "raise"]),
)


class StoreMachine(Pair):
    """The rules: everything a program, a worker or an operator may do, in any order."""

    @initialize(
        many=st.lists(
            st.tuples(queues, delays, st.sampled_from([0, 0, 5]), st.sampled_from([None, 30 * SECOND])),
            min_size=2, max_size=6,
        )
    )  # fmt: skip
    def fill(self, many: list[tuple[str, int, int, int | None]]) -> None:
        """One of the queues is FIFO, and something is there to begin with."""
        self.store.queue("fifo", fifo=True)
        self.model.fifo.add("fifo")
        for queue, delay, priority, expires in many:
            level = 0 if queue == "fifo" else priority
            self.commit(Step(puts=(self.new(queue, 1, delay, priority=level, expires_in_us=expires),)))

    # --- puts ---------------------------------------------------------------------------------------

    @rule(
        queue=queues, number=numbers, delay=delays, unique=uniques, priority=st.sampled_from([0, 0, 0, 5, -5]),
        label=st.sampled_from([{}, {}, {"k": "a"}]), expires=st.sampled_from([None, None, 30 * SECOND, 5 * MINUTE]),
        node=st.sampled_from([None, None, None, "one", "two"]),
    )  # fmt: skip
    def put(self, queue: str, number: int, delay: int, unique: Unique | None, priority: int, label: dict[str, str],
            expires: int | None, node: str | None) -> None:  # fmt: skip
        """Put one entry."""
        if queue == "fifo" and number:
            priority, node = 0, None
        entry = self.new(
            queue, number, delay, unique, priority=priority, labels=label, expires_in_us=expires, node=node
        )
        self.commit(Step(puts=(entry,)))

    @rule(queue=queues, many=st.lists(st.tuples(numbers, uniques), min_size=2, max_size=4))
    def put_several(self, queue: str, many: list[tuple[int, Unique | None]]) -> None:
        """Put several in one step; one that is refused refuses all."""
        self.commit(Step(puts=tuple(self.new(queue, number, 0, unique) for number, unique in many)))

    @precondition(lambda self: self.ids)
    @rule(index=indexes, queue=queues, number=numbers)
    def put_again(self, index: int, queue: str, number: int) -> None:
        """Send an id again, with the same content or another."""
        id_ = self.pick(index)
        model = self.model
        known = model.live.get(id_) or model.dead.get(id_) or model.ended.get(id_)
        if known is None:
            return  # never put, or forgotten: then it would be a fresh one
        queue = known.queue if number else queue
        payload = known.payload if number else msgspec.json.encode(number)
        self.commit(Step(puts=(NewEntry(id_, queue, payload, "json", "Any", repeat=True),)))

    # --- claims -------------------------------------------------------------------------------------

    @rule(
        names=st.sampled_from([("q",), ("r",), ("fifo",), ("q",), ("fifo",), QUEUES]), limit=st.integers(1, 4),
        owner=st.sampled_from(OWNERS), node=st.sampled_from(["one", "one", "two"]), bound=st.sampled_from(BOUNDS),
        alone=st.sampled_from([True, True, False]), repeat=st.booleans(),
    )  # fmt: skip
    def claim(self, names: tuple[str, ...], limit: int, owner: str, node: str, bound: int | None, alone: bool,
              repeat: bool) -> None:  # fmt: skip
        """Claim, and check that what was given was to be given."""
        sources = tuple(Source(name, limit, bound) for name in names)
        wish = ClaimRequest(f"claim{len(self.leases)}", sources, limit, owner, node, LEASE, alone=alone)
        got = self.store.driver.claim(wish)
        self.check_claim(wish, got, bound)
        if repeat and got.entries:
            again = self.store.driver.claim(msgspec.structs.replace(wish, repeat=True))
            assert {one.id: one.lease for one in again.entries} == {one.id: one.lease for one in got.entries}

    @precondition(lambda self: self.ready())
    @rule(index=indexes, owner=st.sampled_from(OWNERS), limit=st.integers(1, 3))
    def claim_ready(self, index: int, owner: str, limit: int) -> None:
        """A claim where there is something to claim, so that there is always something in hand."""
        ready = self.ready()
        self.claim((ready[index % len(ready)],), limit, owner, "one", None, True, False)

    @precondition(lambda self: any(self.is_current(entry) for entry in self.leases))
    @rule(index=indexes, how=st.sampled_from(["reap", "reap", "update", "release"]), again=st.booleans())
    def lose(self, index: int, how: str, again: bool) -> None:
        """A lease is lost in one of the ways there are, and perhaps another owner gets the entry."""
        current = [entry for entry in self.leases if self.is_current(entry)]
        entry = current[index % len(current)]
        if how == "reap":
            self.reap("one", 6 * MINUTE)
        elif how == "update":
            changes = Changes(payload=b"9")
            self.both(
                lambda: self.store.driver.update(entry.id, changes, force=True),
                lambda: self.model.update(entry.id, {"payload": b"9"}, force=True),
            )
        elif entry.lease is not None:
            self.commit(Step((Ending(entry.lease, "release"),)))
        if again:
            self.claim((entry.queue,), 1, OWNERS[1], entry.node or "one", None, True, False)

    # --- endings ------------------------------------------------------------------------------------

    @precondition(lambda self: self.leases)
    @rule(index=indexes, outcome=outcomes, delay=delays, error=st.sampled_from([None, "oh"]), flagged=st.booleans())
    def end(self, index: int, outcome: Any, delay: int, error: str | None, flagged: bool) -> None:
        """End something with a lease that may be current or long stale; sometimes as a repeat that was none."""
        lease = self.lease(index).lease
        assert lease is not None
        ending = Ending(lease, outcome, delay, error=error)
        flagged = flagged and (self.model.current(ending) or not self.was_ever_settled(ending))
        self.commit(Step((ending,), repeat=flagged))

    @precondition(lambda self: self.leases)
    @rule(index=indexes, outcome=outcomes)
    def end_newest(self, index: int, outcome: Any) -> None:
        """End one of the newest leases, which is mostly current."""
        self.end(index % 3, outcome, 0, None, False)

    @precondition(lambda self: any(not self.is_current(entry) for entry in self.leases))
    @rule(index=indexes, outcome=outcomes, flagged=st.booleans(), number=numbers)
    def end_late(self, index: int, outcome: Any, flagged: bool, number: int) -> None:
        """A late owner settles, with a put, and extends: nothing of it may happen."""
        stale = [entry for entry in self.leases if not self.is_current(entry)]
        lease = stale[-1 - index % len(stale)].lease
        assert lease is not None
        ending = Ending(lease, outcome)
        flagged = flagged and not self.was_ever_settled(ending)
        self.commit(Step((ending,), (self.new("q", number, 0),), repeat=flagged))
        assert self.store.driver.extend([lease], 60 * MINUTE) == [None]

    @precondition(lambda self: self.leases)
    @rule(picks=st.lists(st.tuples(indexes, outcomes), min_size=1, max_size=3), queue=queues,
          many=st.lists(st.tuples(numbers, uniques), max_size=3))  # fmt: skip
    def unit(self, picks: list[tuple[int, Any]], queue: str, many: list[tuple[int, Unique | None]]) -> None:
        """Several endings and puts in one step; any that fails fails all."""
        endings: dict[str, Ending] = {}
        for index, outcome in picks:
            lease = self.lease(index).lease
            assert lease is not None
            endings.setdefault(lease.entry, Ending(lease, outcome))
        puts = tuple(self.new(queue, number, 0, unique) for number, unique in many)
        self.commit(Step(tuple(endings.values()), puts))

    @precondition(lambda self: self.steps)
    @rule(index=indexes)
    def repeat(self, index: int) -> None:
        """Send a step again that has happened: the same answer, and no second effect."""
        step, done, when = self.steps[-1 - index % len(self.steps)]
        if self.model.now - when >= 14 * MINUTE:
            return
        again = msgspec.structs.replace(step, repeat=True)
        if step.endings:
            fresh = all(self.just_as_left(ending) for ending in step.endings)
            result = self.store.driver.settle((again,)).results[0]
            # After a later lease the store may no longer know; but nothing may happen.
            assert isinstance(result, StepDone if fresh else StepDone | LeaseLost)
            if isinstance(result, StepDone):
                assert [one.id for one in result.puts if one.created] == [one.id for one in done.puts if one.created]
        elif all(self.known(entry) for entry in step.puts):
            assert [one.id for one in self.store.driver.commit(again).puts] == [one.id for one in done.puts]

    @precondition(lambda self: self.leases)
    @rule(index=indexes, lease_us=st.sampled_from([SECOND, LEASE]))
    def extend(self, index: int, lease_us: int) -> None:
        """Prolong a lease that may be stale."""
        lease = self.lease(index).lease
        assert lease is not None
        thing = self.model.live.get(lease.entry)
        current = thing is not None and thing.token == lease.token
        until = self.model.now + lease_us
        assert self.store.driver.extend([lease], lease_us) == [until if current else None]
        if current and thing is not None:
            thing.until = max(thing.until, until)

    # --- time and maintenance -----------------------------------------------------------------------

    @rule(by=st.sampled_from([SECOND, 40 * SECOND, 6 * MINUTE, 21 * MINUTE]))
    def advance(self, by: int) -> None:
        """Move the clock."""
        self.clock.advance(timedelta(microseconds=by))
        self.model.now = self.clock.micros()

    @rule(node=st.sampled_from(NODES), by=st.sampled_from([0, 0, 30 * SECOND, LEASE, 6 * MINUTE]))
    def reap(self, node: str, by: int) -> None:
        """One round of the reaper, mostly after leases have run out."""
        self.advance(by)
        found = self.store.driver.reap(node=node, sticky_after_us=STICKY)
        kinds = ("reaped", "dead", "expired", "freed", "late")
        got = {kind: {id_ for id_, _ in getattr(found, kind)} for kind in kinds}
        assert got == self.model.reap(node, STICKY)

    @rule(what=st.sampled_from(["beat", "prune", "prune all", "purge"]), node=st.sampled_from(NODES), queue=queues)
    def maintain(self, what: str, node: str, queue: str) -> None:
        """A node is heard of, history is pruned, dead letters are purged."""
        self.advance(1)  # so that no row is exactly as old as the limit, which may count either way
        if what == "beat":
            self.store.driver.beat(node)
            self.model.heard[node] = self.model.now
        elif what == "purge":
            self.both(
                lambda: self.store.driver.purge_dead(Find(queue=queue, limit=1_000_000)),
                lambda: self.model.purge(queue),
            )
        else:
            older = 0 if what == "prune all" else 30 * MINUTE
            self.both(
                lambda: self.store.driver.prune(older_than_us=older, limit=1_000_000), lambda: self.model.prune(older)
            )

    # --- changes ------------------------------------------------------------------------------------

    @rule(picks=st.lists(indexes, min_size=1, max_size=2, unique=True), force=st.booleans())
    def cancel(self, picks: list[int], force: bool) -> None:
        """Cancel, all or none."""
        ids = list(dict.fromkeys(self.pick(index) for index in picks))
        for id_ in ids:
            finals = {row.state for row in self.model.rows if row.id == id_ and row.state in FINAL}
            if id_ not in self.model.live and len(finals | ({"dead"} if id_ in self.model.dead else set())) > 1:
                return  # cancelled in one generation and ended otherwise in another: both answers are fair
        self.both(lambda: self.store.driver.cancel(ids, force=force), lambda: self.model.cancel(ids, force=force))

    @rule(
        index=indexes,
        force=st.booleans(),
        number=numbers,
        what=st.sampled_from(["payload", "labels", "priority", "due"]),
    )
    def update(self, index: int, force: bool, number: int, what: str) -> None:
        """Change or reschedule one entry."""
        id_ = self.pick(index)
        changes = {
            "payload": Changes(payload=msgspec.json.encode(number)),
            "labels": Changes(labels={"k": str(number)}),
            "priority": Changes(priority=number),
            "due": Changes(delay_us=number * MINUTE),
        }[what]
        values = {
            "payload": msgspec.json.encode(number),
            "labels": {"k": str(number)},
            "priority": number,
            "due": self.model.now + number * MINUTE,
        }
        self.both(
            lambda: self.store.driver.update(id_, changes, force=force),
            lambda: self.model.update(id_, {what: values[what]}, force=force),
        )

    @rule(picks=st.lists(indexes, min_size=1, max_size=2, unique=True))
    def replay(self, picks: list[int]) -> None:
        """Bring back, all or none."""
        ids = list(dict.fromkeys(self.pick(index) for index in picks))
        self.both(lambda: self.store.driver.replay(ids), lambda: self.model.replay(ids))

    @rule(queue=queues, holder=st.sampled_from(["operator", "breaker"]), keep=st.sampled_from([False, False, True]))
    def lock(self, queue: str, holder: str, keep: bool) -> None:
        """Lock a queue and look: it has to give nothing; mostly let go again."""
        holders = self.model.locks.setdefault(queue, {})
        assert self.store.driver.unlock(queue, holder) is (holders.pop(holder, None) is not None)
        self.store.driver.lock(queue, holder, "why")
        holders[holder] = "why"
        self.claim((queue,), 4, OWNERS[0], "one", None, True, False)
        if not keep:
            holders.clear()
            for held in self.store.locks(queue):
                assert self.store.driver.unlock(queue, held.holder) is True


def run(opened: Callable[[FakeClock], QueueStore], *, examples: int = 150, steps: int = 50) -> None:
    """Hold a store against the model in so many examples of at most so many steps."""
    wanted = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    )
    factory: Any = lambda: StoreMachine(opened)  # noqa: E731 - hypothesis takes any factory, though it asks for a class
    run_state_machine_as_test(factory, settings=wanted)

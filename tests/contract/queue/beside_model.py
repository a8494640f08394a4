"""A store and the model side by side: asking both, following a claim, and what must hold after every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis.stateful import RuleBasedStateMachine, invariant
from tests.contract.queue.model import FINAL, Model, Refused, Thing

from penstock.clock import FakeClock
from penstock.errors import PenstockError
from penstock.queue.entry import Entry, Unique
from penstock.queue.protocol import Claimed, ClaimRequest, Ending, Find, NewEntry, Step, StepDone
from penstock.queue.queues import QueueStore

QUEUES = ("q", "r", "fifo")
EVERYTHING = Find(limit=1_000_000)


class Pair(RuleBasedStateMachine):
    """One run: a fresh store and a fresh model, moved together by the rules of the machine."""

    def __init__(self, opened: Callable[[FakeClock], QueueStore]) -> None:
        """Open the store."""
        super().__init__()
        self.clock = FakeClock()
        self.store = opened(self.clock)
        self.model = Model(self.clock.micros())
        self.leases: list[Entry[Any]] = []  # every lease ever given
        self.steps: list[tuple[Step, StepDone, int]] = []  # steps that happened, and when
        self.fences: Counter[str] = Counter()
        self.ids: list[str] = []

    def teardown(self) -> None:
        """Close the store."""
        self.store.close()

    # --- asking both --------------------------------------------------------------------------------

    def both(self, ask: Callable[[], Any], model: Callable[[], Any]) -> Any:
        """The same of both; they agree on the answer, or on the error's name."""
        expected: Any
        try:
            expected = model()
        except Refused as refused:
            expected = refused.error
        try:
            got = ask()
        except PenstockError as error:
            got = type(error).__name__
        assert got == expected, f"the store says {got!r}, the contract {expected!r}"
        return got

    def commit(self, step: Step) -> None:
        """Do a step in both."""

        def ask() -> list[tuple[str, bool]]:
            done = self.store.driver.commit(step)
            self.steps.append((step, done, self.model.now))
            return [(one.id, one.created) for one in done.puts]

        self.both(ask, lambda: self.model.step(step))

    def fresh_id(self) -> str:
        """An id nobody had."""
        self.ids.append(f"entry-{len(self.ids)}")
        return self.ids[-1]

    def pick(self, index: int) -> str:
        """Some id that was used, or an unknown one."""
        return self.ids[-1 - index % len(self.ids)] if self.ids and index < 28 else "unknown"

    def lease(self, index: int) -> Entry[Any]:
        """Some lease that was given; the latest ones are the likeliest to be current."""
        return self.leases[-1 - index % len(self.leases)]

    def new(self, queue: str, number: int, delay: int, unique: Unique | None = None, **more: Any) -> NewEntry:
        """An entry with a fresh id."""
        return NewEntry(
            self.fresh_id(), queue, msgspec.json.encode(number), "json", "Any", delay_us=delay, unique=unique, **more
        )

    # --- looking -----------------------------------------------------------------------------------

    def ready(self) -> list[str]:
        """Queues that have something due for this node."""
        return [queue for queue in QUEUES if any(self.model.candidates(queue, "one"))]

    def is_current(self, entry: Entry[Any]) -> bool:
        """Whether a lease given earlier is still the current one."""
        thing = self.model.live.get(entry.id)
        return thing is not None and entry.lease is not None and thing.token == entry.lease.token

    def was_ever_settled(self, ending: Ending) -> bool:
        """Whether some step that happened ended this lease."""
        return any(one.lease.token == ending.lease.token for step, _, _ in self.steps for one in step.endings)

    def just_as_left(self, ending: Ending) -> bool:
        """Whether an entry is where this ending left it: no later lease, and not brought back or ended otherwise."""
        model, id_ = self.model, ending.lease.entry
        thing = model.live.get(id_) or model.dead.get(id_) or model.ended.get(id_)
        final = ending.outcome in ("done", "dead")
        return thing is not None and thing.fence == ending.lease.fence and (id_ in model.live) is not final

    def known(self, entry: NewEntry) -> bool:
        """Whether a put that is repeated is recognised: its own id was created and is known, with the same content."""
        model = self.model
        there = model.live.get(entry.id) or model.dead.get(entry.id) or model.ended.get(entry.id)
        return there is not None and there.payload == entry.payload

    # --- claims --------------------------------------------------------------------------------------

    def check_claim(self, wish: ClaimRequest, got: Claimed, bound: int | None) -> None:
        """Follow a claim in the model, where the contract leaves no choice and where it does."""
        model, now = self.model, self.model.now
        lanes = [lane for source in wish.sources for lane in model.candidates(source.name, wish.node)]
        handed = [entry.id for entry in got.entries]
        here = {entry.id for entry in self.store.driver.find(EVERYTHING)}
        gone = [thing for lane in lanes for thing in lane if thing.id not in here]

        def useless(thing: Thing) -> bool:
            return (thing.expires is not None and thing.expires <= now) or (
                bound is not None and thing.attempt >= bound
            )

        suspects = [thing for lane in lanes for thing in lane if thing.suspect]
        plain = [[thing for thing in lane if not thing.suspect] for lane in lanes]
        free = [[thing for thing in lane if not useless(thing)] for lane in lanes]
        free = [lane[:1] if lane and lane[0].queue in model.fifo else lane for lane in free]
        allowed = {thing.id for lane in free for thing in lane}
        assert set(handed) <= allowed, "what is not due, not free, expired or out of attempts was handed out"
        assert all(useless(thing) for thing in gone), "a claim ended an entry that could have been handed out"
        assert len(handed) <= wish.limit
        waiting_suspects = [thing for thing in suspects if not useless(thing)]
        if waiting_suspects:
            assert got.suspect_waits is not wish.alone or (wish.alone and bool(gone))
            if wish.alone:
                assert len(handed) == 1 or gone
                assert set(handed) <= {thing.id for thing in suspects}
                assert got.suspect is bool(handed)
            else:
                assert not handed
        elif not suspects:
            assert (got.suspect, got.suspect_waits) == (False, False)
            self.check_order(plain, handed, {thing.id for thing in gone}, useless)
            if len(wish.sources) == 1 and sum(bool(lane) for lane in plain) <= 1:
                available = sum(len(lane) for lane in free)
                assert len(handed) == min(wish.limit, available)
        for thing in gone:
            expired = thing.expires is not None and thing.expires <= now
            # Both may be true; the row says which the store found first.
            row = self.store.driver.history(Find(ids=(thing.id,), limit=1_000_000))[-1]
            assert row.state in (["expired"] if expired else []) + ["dead"]
            error = (thing.error or "no attempts left") if row.state == "dead" else None
            model.finish(thing, row.state, None, row.error if row.state == "dead" else error, ran=False)
        assert set(got.dead) == {thing.id for thing in gone if thing.id in model.dead}
        for entry in got.entries:
            leased = model.lease(entry.id, wish.id, wish.owner, wish.lease_us, bound)
            assert entry.lease is not None
            assert entry.lease.fence == leased.fence > self.fences[entry.id]
            self.fences[entry.id] = leased.fence
            self.leases.append(entry)
        if not got.suspect and not got.suspect_waits:
            opens = model.opens([source.name for source in wish.sources], wish.node)
            assert opens is None or (got.next_us is not None and got.next_us <= max(opens, now)), (
                "it looks again too late"
            )

    def check_order(
        self, lanes: list[list[Thing]], handed: list[str], gone: set[str], useless: Callable[[Thing], bool]
    ) -> None:
        """In every lane the first ones were taken, in order, and what cannot be handed out was ended on the way."""
        for lane in lanes:
            order = [thing.id for thing in lane if thing.id in handed]
            assert [id_ for id_ in handed if id_ in order] == order
            last = max((index for index, thing in enumerate(lane) if thing.id in handed), default=-1)
            assert all(thing.id in handed or (useless(thing) and thing.id in gone) for thing in lane[: max(last, 0)])

    # --- what must always hold ------------------------------------------------------------------------

    @invariant()
    def same_live_entries(self) -> None:
        """Every live entry is as the model says, in the same order."""
        found = self.store.driver.find(EVERYTHING)
        expected = sorted(self.model.live.values(), key=lambda thing: thing.seq)
        assert [_shown(entry) for entry in found] == [thing.shown() for thing in expected]
        assert [entry.seq for entry in found] == sorted({entry.seq for entry in found})

    @invariant()
    def same_dead_letters(self) -> None:
        """Dead letters are whole."""
        found = {entry.id: entry for entry in self.store.driver.dead(EVERYTHING)}
        assert found.keys() == self.model.dead.keys()
        for id_, thing in self.model.dead.items():
            entry = found[id_]
            assert (entry.payload, entry.labels, entry.priority, entry.unique) == (
                thing.payload, thing.labels, thing.priority, thing.unique
            )  # fmt: skip
            # Without an error of its own the last attempt may leave that of the one before, or none.
            assert entry.error == thing.died_of if thing.died_of is not None else entry.error in (thing.error, None)
            assert (entry.generation, entry.attempt, entry.state) == (thing.generation, thing.attempt, "dead")

    @invariant()
    def same_history(self) -> None:
        """The same rows; keys are used once, and there is one final state per id and generation."""
        rows = self.store.driver.history(EVERYTHING)
        got = sorted(
            (
                row.id,
                row.generation,
                row.attempt,
                row.state,
                row.queue,
                row.ended_us,
                row.error or "",
                row.payload or row.gap,
            )
            for row in rows
        )
        assert got == sorted(
            (
                row.id,
                row.generation,
                row.attempt,
                row.state,
                row.queue,
                row.ended,
                row.error or "",
                row.payload or "removed",
            )
            for row in self.model.rows
        )
        starts = {(row.id, row.generation, row.attempt): row.started_us for row in rows}
        assert len(starts) == len(rows)
        assert starts == {(row.id, row.generation, row.attempt): row.started for row in self.model.rows}
        finals = Counter((row.id, row.generation) for row in rows if row.state in FINAL)
        assert all(count == 1 for count in finals.values())
        assert [row.seq for row in rows] == sorted({row.seq for row in rows})

    @invariant()
    def same_counts(self) -> None:
        """Counts and locks agree."""
        for queue in QUEUES:
            [found] = self.store.counts(queue=queue)
            assert (found.ready, found.delayed, found.retrying, found.leased, found.dead) == self.model.counts(queue)
            assert {one.holder: one.reason for one in found.locks} == self.model.locks.get(queue, {})


def _shown(entry: Entry[Any]) -> tuple[Any, ...]:
    lease = entry.lease
    return (
        entry.id, entry.queue, entry.state, entry.payload, entry.priority, entry.created_us, entry.due_us,
        entry.first_due_us, entry.attempt, entry.generation, entry.labels, entry.unique, entry.expires_us, entry.node,
        entry.error,
        None if lease is None else (lease.token, lease.fence, lease.owner, lease.claimed_us, lease.until_us),
    )  # fmt: skip

"""What must go on although something else goes wrong: one bad thing harms no other."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from tests.contract.queue.shorthand import Contract, claim, end, lease_of, new, put, take, take_one, trail, values
from tests.contract.worker.test_running import PATIENCE, Latch, eventually, running

from penstock.clock import FakeClock
from penstock.errors import BadInput, UniqueHeld
from penstock.policy import Reject, Retry
from penstock.queue.entry import Unique
from penstock.queue.handling.context import Context
from penstock.queue.protocol import Step
from penstock.queue.queues import QueueStore
from penstock.queue.worker import Worker
from penstock.queue.worker.maintenance import Reaper


class Touchy(msgspec.Struct):
    """A payload whose own checks may raise anything."""

    number: int

    def __post_init__(self) -> None:
        if self.number == 13 and Touchy.armed:
            raise KeyError("thirteen")

    armed = False


class Nasty(Exception):
    """An error that has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class TestStubbornClaims(Contract):
    """Claims that meet the remains of others."""

    def test_suspects_of_others_hide_nothing(self, store: QueueStore, clock: FakeClock) -> None:
        """More of them than a claim looks at together, and older than ours."""
        store.queue("theirs").put_many(range(120))
        assert len(take(store, "theirs", limit=200)) == 120
        clock.advance("1s")
        mine = put(store, "mine")
        take_one(store, "mine")
        clock.advance("2m")
        while store.driver.reap(node=store.node).reaped:
            continue
        found = claim(store, "mine")
        assert (found.suspect, [entry.id for entry in found.entries]) == (True, [mine])

    def test_a_suspect_that_may_not_start_ends_the_claim(self, store: QueueStore, clock: FakeClock) -> None:
        """Its queue looks ready and gives nothing; others give what they have."""
        slow = store.queue("slow", rate="1/h")
        slow.put("first")
        take_one(store, "slow")
        clock.advance("2m")
        store.driver.reap(node=store.node)
        put(store, "other")
        assert [entry.queue for entry in take(store, "slow", "other")] == ["other"]

    def test_a_refused_step_takes_its_new_queue_with_it(self, store: QueueStore) -> None:
        """The steps after it put into the same new queue, which is theirs then."""
        store.queue("taken").put("x", unique="held")
        refused = Step(puts=(new("fresh"), new("taken", unique=Unique("held", on_conflict="raise"))))
        results = store.driver.settle([refused, Step(puts=(new("fresh", "good"),))]).results
        assert isinstance(results[0], UniqueHeld)
        put(store, "later", "another")
        assert [msgspec.json.decode(entry.payload) for entry in take(store, "fresh")] == ["good"]
        assert [msgspec.json.decode(entry.payload) for entry in take(store, "later")] == ["another"]

    def test_a_label_frees_every_node(self, store: QueueStore) -> None:
        if not store.capabilities.label_limits:
            pytest.skip(f"{store.name} declares label_limits=False")
        queue = store.queue("q", in_flight={"customer": 1})
        queue.put("any", labels={"customer": "ann"})
        first = take_one(store, "q")
        queue.put("there", labels={"customer": "ann"}, sticky="there")
        assert take(store, "q", node="there") == []
        end(store, first)
        assert len(take(store, "q", node="there")) == 1

    def test_no_attempts_at_all_is_refused(self, store: QueueStore) -> None:
        put(store, "q")
        with store.unit() as unit, pytest.raises(BadInput, match="attempts"):
            unit.take(store.queue("q"), attempts=0)
        assert store.counts("q")[0].dead == 0


class TestStubbornLeases(Contract):
    """Leases that are prolonged and taken over."""

    def test_a_heartbeat_never_shortens(self, store: QueueStore, clock: FakeClock) -> None:
        put(store, "q")
        lease = lease_of(take_one(store, "q"))
        store.driver.extend([lease], 600_000_000)
        store.driver.extend([lease], 1_000_000)
        clock.advance("5m")
        assert store.driver.reap(node=store.node).reaped == []
        clock.advance("6m")
        assert len(store.driver.reap(node=store.node).reaped) == 1

    def test_the_second_lease_is_kept_when_the_first_is_dropped(self, store: QueueStore) -> None:
        """An entry is taken from its worker and claimed again by the same one: the late outcome ends only itself."""
        queue = store.queue("q", str)
        latch, again = Latch(), Latch()

        def handle(value: str, ctx: Context[str]) -> None:
            (latch if ctx.entry.attempt == 1 else again).wait()

        queue.add_handler(handle, concurrency=2)
        id_ = queue.put("x").id
        with running(store, lease="1s"):
            latch.expect(1)
            queue.update(id_, "y", force=True)
            again.expect(1)
            latch.opened.set()
            threading.Event().wait(1.5)
            assert Worker(store).store.queue("q").counts().leased == 1
            again.opened.set()
            eventually(lambda: queue.counts().live == 0)
        assert [state for *_, state in trail(store, id_)] == ["retried", "done"]


class TestStubbornWorkers(Contract):
    """Handlers, payloads and errors that are as bad as can be."""

    @pytest.mark.parametrize("kind", ["sync", "async", "executor"])
    def test_errors_without_text_and_texts_without_characters(
        self, store: QueueStore, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # The log tells of them as they are, which not every reader of a test's output can bear.
        monkeypatch.setattr(logging.getLogger("penstock.queue.worker"), "disabled", True)
        queue, seen = store.queue("q", str), []

        def handle(value: str) -> Any:
            if value == "nasty":
                raise Nasty
            if value == "odd":
                raise FileNotFoundError("\udcff\0.txt")
            if value == "reject":
                return Reject("\udcff\0")
            seen.append(value)
            return None

        async def handle_async(value: str) -> Any:
            return handle(value)

        options: dict[str, Any] = {"retry": Retry(attempts=1)}
        if kind == "executor":
            options["executor"] = ThreadPoolExecutor(2)
        queue.add_handler(handle_async if kind == "async" else handle, **options)
        values = ["nasty", "one", "odd", "two", "reject", "three"]
        queue.put_many(values)
        with running(store):
            eventually(lambda: queue.counts().live == 0)
        assert sorted(seen) == ["one", "three", "two"]
        said = {msgspec.json.decode(letter.payload): letter.error for letter in queue.dead()}
        assert "Nasty" in (said["nasty"] or "")
        assert "\\udcff\\0.txt" in (said["odd"] or "")
        assert "\\udcff\\0" in (said["reject"] or "")

    def test_a_payload_whose_type_objects(self, store: QueueStore) -> None:
        queue, seen = store.queue("q", Touchy), []
        queue.put_many([Touchy(1), Touchy(13), Touchy(2)])
        queue.add_handler(lambda value: seen.append(value.number))
        Touchy.armed = True
        try:
            with running(store):
                eventually(lambda: store.counts("q")[0].live == 0)
        finally:
            Touchy.armed = False
        assert sorted(seen) == [1, 2]
        assert [letter.attempt for letter in queue.dead()] == [1]

    def test_an_executor_that_is_shut_down(self, store: QueueStore) -> None:
        pool = ThreadPoolExecutor(1)
        pool.shutdown()
        queue = store.queue("q", str)
        queue.add_handler(lambda value: None, executor=pool, retry=Retry(attempts=1))
        queue.put("x")
        with running(store):
            eventually(lambda: queue.counts().dead == 1)
        store.queue("p", str)
        with pytest.raises(BadInput, match="ProcessPoolExecutor"):
            store.queue("p", str).add_handler(lambda value: None, executor=ProcessPoolExecutor(1))

    def test_what_an_executor_has_not_begun_goes_back_unspent(self, store: QueueStore) -> None:
        pool, latch = ThreadPoolExecutor(1), Latch()
        queue = store.queue("q", int)
        queue.add_handler(lambda value: latch.wait(), executor=pool, concurrency=3)
        queue.put_many(range(3))
        with running(store) as worker:
            latch.expect(1)
            eventually(lambda: queue.counts().leased == 3)
            threading.Timer(0.1, latch.opened.set).start()
            assert worker.stop()
        assert latch.count == 1
        assert sorted(entry.attempt for entry in queue.find()) == [0, 0]

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_what_waits_behind_a_hanging_handler_goes_back_unspent_and_unsuspected(
        self, store: QueueStore, clock: FakeClock, kind: str
    ) -> None:
        """With a heartbeat. If the worker dies of what it is at, only that is under suspicion."""
        latch, queue = Latch(), store.queue("q", int)
        hanging, handled = threading.Event(), []

        def handle(value: int) -> None:
            handled.append(value)
            if value == 150:
                hanging.set()
                latch.wait()

        async def handle_async(value: int) -> None:
            handled.append(value)
            if value == 150:
                hanging.set()
                await asyncio.get_running_loop().run_in_executor(None, latch.wait)

        queue.add_handler(handle_async if kind == "async" else handle, concurrency=1)
        queue.put_many(range(300))
        with running(store, lease="600ms"):
            assert hanging.wait(PATIENCE)
            eventually(lambda: queue.counts().leased == 1)
            # Whoever claims these knows nothing of a suspect, and has all of their attempts.
            others = take(store, "q", limit=300)
            assert sorted([*handled, *values(others)]) == list(range(300))
            assert {entry.attempt for entry in others} == {1}
            latch.opened.set()
            eventually(lambda: queue.counts().leased == len(others))
        for entry in others:
            end(store, entry)

    def test_a_suspect_does_not_wait_for_ever(self, store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """A handler that takes long must not keep its worker from everything else."""
        monkeypatch.setattr("penstock.queue.worker.suspects.SUSPECT_PATIENCE", 0.2)
        long, quick, latch = store.queue("long", int), store.queue("quick", int), Latch()
        seen: list[int] = []
        quick.add_handler(seen.append)
        quick.put(0)
        clock: Any = store.clock
        take_one(store, "quick")
        clock.advance("2m")
        store.driver.reap(node=store.node)
        long.add_handler(lambda value: latch.wait())
        long.put(1)
        with running(store, queues=[long]) as first:
            latch.expect(1)
            first.stop(grace="0s")
        long.put(2)
        quick.lock()
        with running(store, poll="50ms"):
            latch.expect(1)
            quick.put_many(range(1, 6))
            quick.unlock()
            eventually(lambda: sorted(seen) == list(range(6)))
            latch.opened.set()


class TestStubbornMaintenance(Contract):
    """A schedule that cannot fire."""

    def test_others_fire_and_leases_are_taken_back(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("bad", str).schedule("a", "x", every="1m", priority=5)
        store.queue("bad", fifo=True)
        store.queue("good", str).schedule("b", "x", every="1m")
        put(store, "held")
        take_one(store, "held")
        clock.advance("2m")
        Reaper(store).once()
        assert store.counts("good")[0].ready == 1
        assert store.counts("held")[0].leased == 0
        with pytest.raises(BadInput, match="version"):
            store.queue("good", str).schedule("c", "x", every="1m", version=True)


class TestStubbornFamilies(Contract):
    """A queue with a handler of its own never comes through its family, whoever works on that."""

    def test_a_worker_of_the_family_leaves_it_alone(self, store: QueueStore) -> None:
        family, own = store.family("user-", str), store.queue("user-1", str)
        seen: list[str] = []
        family.add_handler(lambda value: seen.append(f"family {value}"))
        own.add_handler(lambda value: seen.append(f"own {value}"))
        own.put("a")
        family.member("user-2").put("b")
        with running(store, queues=[family]):
            eventually(lambda: "family b" in seen)
        assert seen == ["family b"]
        assert own.counts().ready == 1

"""Transfer: what a space holds out of a store and into another, and the whole copy, broken off or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.queue.shorthand import Contract, OpenStore, claim, end, ids, needs, put, take, take_one, values

from penstock import failpoints
from penstock.bus import Bus
from penstock.clock import FakeClock
from penstock.errors import BadInput, Conflict, StoreUnavailable, Unsupported
from penstock.policy import Rate
from penstock.queue.drivers.memory import MemoryDriver
from penstock.queue.entry import Unique
from penstock.queue.protocol import PARTS, DocumentWrite
from penstock.queue.queues import QueueStore
from penstock.queue.transfer import HOLDER, Copied, Copy


@pytest.fixture
def other(clock: FakeClock) -> Iterator[QueueStore]:
    """A store of another kind, that can do all there is to do."""
    with QueueStore(MemoryDriver("", "elsewhere", clock, "memory://", payload_limit=1_000_000)) as store:
        yield store


def furnish(store: QueueStore, clock: FakeClock) -> dict[str, str]:
    """One of everything that moves; ids by what they are."""
    made = {
        "plain": put(store, "mails", "plain"),
        "urgent": put(store, "mails", "urgent", priority=50),
        "later": put(store, "mails", "later", delay="1h", headers={"trace": "t-1"}),
        "unique": put(store, "mails", "unique", unique="order-17"),
        "period": put(store, "mails", "period", unique=Unique("daily", period="1d")),
        "sticky": put(store, "mails", "sticky", sticky="two"),
        "expiring": put(store, "mails", "expiring", expires="2h"),
    }
    if store.capabilities.label_search:
        made["labelled"] = put(store, "mails", "labelled", labels={"customer": "ann"})
    for number in range(3):
        put(store, "user-1", number)
    store.queue("user-2", int, fifo=True).put_many([1, 2, 3])
    store.queue("slow", int, rate="5/s").put(1)
    for name in ("done", "dead", "retried", "suspect"):
        made[name] = put(store, f"work-{name}", name)
        entry = take_one(store, f"work-{name}")
        if name == "done":
            end(store, entry)
        elif name == "dead":
            end(store, entry, "dead", error="no such address")
        elif name == "retried":
            end(store, entry, "retry", delay_us=5_000_000, error="try later")
        else:
            clock.advance("2m")
            store.driver.reap(node=store.node)
    store.queue("mails").lock(holder="breaker", reason="far side down")
    Bus(store).subscribe("audit", str)
    store.queue("reports", str).schedule("nightly", "go", cron="0 3 * * *")
    return made


def carry_all(source: QueueStore, target: QueueStore) -> None:
    """Everything that a load takes."""
    for queue, definition in source.driver.definitions().items():
        target.driver.define(queue, definition)
    for part in PARTS:
        if part != "history" or target.capabilities.full_history:
            target.driver.load(source.driver.export(part))
    target.driver.load((), source.driver.holds())


def copy(source: QueueStore, target: QueueStore, **options: Any) -> Copied:
    """Copy, and leave out what the target declares not to offer."""
    able = target.capabilities
    leave_out = [
        name
        for name, there in (
            ("history", able.full_history),
            ("labels", able.label_search),
            ("label_limits", able.label_limits),
        )
        if not there
    ]
    return Copy(source, target, leave_out=leave_out, **options).run()


class TestRows(Contract):
    """What comes out of one store goes into another and is the same there."""

    @pytest.mark.parametrize("direction", ["out", "in"])
    def test_it_is_the_same_elsewhere(
        self, store: QueueStore, other: QueueStore, clock: FakeClock, direction: str
    ) -> None:
        source, target = (store, other) if direction == "out" else (other, store)
        furnish(source, clock)
        carry_all(source, target)
        for part in PARTS:
            if part != "history" or target.capabilities.full_history:
                expected = [one.essence() for one in source.driver.export(part)]
                assert [one.essence() for one in target.driver.export(part)] == expected
                assert expected
        assert target.driver.holds() == source.driver.holds()
        definitions = target.driver.definitions()
        assert definitions["user-2"].fifo
        assert definitions["slow"].rate == Rate.parse("5/s")

    @pytest.mark.parametrize("direction", ["out", "in"])
    def test_attempts_arrive_with_the_body_they_saw(self, store: QueueStore, other: QueueStore, direction: str) -> None:
        """Also where an entry got an earlier content back; a purged one arrives without payloads."""
        source, target = (store, other) if direction == "out" else (other, store)
        needs(target, "full_history")
        queue = source.queue("q")
        id_ = queue.put("a").id
        for value in ("b", "a", "a"):
            end(source, take_one(source, "q"), "retry")
            queue.update(id_, value)
        end(source, take_one(source, "q"))
        purged = put(source, "gone", "secret")
        end(source, take_one(source, "gone"), "retry")
        end(source, take_one(source, "gone"), "dead")
        source.queue("gone").purge_dead()
        carry_all(source, target)
        assert [row.value for row in target.queue("q").history(id_)] == ["a", "b", "a", "a"]
        assert [row.gap for row in target.queue("gone").history(purged)] == ["removed"] * 2
        assert target.queue("q").replay(id_) == 1
        assert values(take(target, "q")) == ["a"]

    @pytest.mark.parametrize("fifo", [False, True])
    @pytest.mark.parametrize("direction", ["out", "in"])
    def test_an_entry_that_was_replayed_keeps_its_place(
        self, store: QueueStore, other: QueueStore, direction: str, fifo: bool
    ) -> None:
        """At the tail, although it was put first; what is put at the target comes behind it."""
        source, target = (store, other) if direction == "out" else (other, store)
        queue = source.queue("q", str, fifo=fifo)
        first = queue.put("first").id
        end(source, take_one(source, "q"), "dead")
        queue.put_many(["second", "third"])
        assert queue.replay(first) == 1
        queue.put("last")
        carry_all(source, target)
        target.queue("q", str).put("put there")
        order = []
        while entries := take(target, "q", limit=1):
            order += values(entries)
            end(target, entries[0])
        assert order == ["second", "third", "first", "last", "put there"]

    def test_it_is_read_in_pages(self, store: QueueStore) -> None:
        made = [put(store, "q", number) for number in range(5)]
        first = store.driver.export("live", limit=2)
        second = store.driver.export("live", after=first[-1].seq, limit=10)
        assert [one.id for one in first + second] == made

    def test_what_arrived_lives_on(self, store: QueueStore, other: QueueStore, clock: FakeClock) -> None:
        """Order, unique ids, expiry, suspects, dead letters and ended ids mean there what they meant here."""
        made = furnish(other, clock)
        carry_all(other, store)
        assert claim(store, "work-suspect", alone=False).suspect_waits
        assert claim(store, "work-suspect").suspect
        expected = ["urgent", "plain", "unique", "period", "expiring"]
        found = take(store, "mails", limit=100)
        assert [one for one in values(found) if one in expected] == expected
        assert store.queue("mails").put("again", unique="order-17").id == made["unique"]
        assert store.queue("mails").put("again", unique=Unique("daily", period="1d")).id == made["period"]
        assert values(take(store, "user-2")) == [1]
        assert store.queue("work-dead").replay(made["dead"]) == 1
        assert ids(take(store, "work-dead")) == [made["dead"]]
        clock.advance("5s")
        [again] = take(store, "work-retried")
        assert (again.id, again.attempt, again.error) == (made["retried"], 2, "try later")
        if store.capabilities.full_history:
            assert store.queue("work-done").put("done", id=made["done"]).id == made["done"]
            assert take(store, "work-done") == []  # it was done elsewhere, and stays so
            assert store.queue("work-done").replay(made["done"]) == 1
            assert ids(take(store, "work-done")) == [made["done"]]


class TestCopy(Contract):
    """A whole space, moved."""

    @pytest.mark.parametrize("direction", ["out", "in"])
    def test_everything_moves(self, store: QueueStore, other: QueueStore, clock: FakeClock, direction: str) -> None:
        source, target = (store, other) if direction == "out" else (other, store)
        furnish(source, clock)
        copied = copy(source, target)
        assert copied.sums["live"].count == copied.carried["live"] > 10
        assert target.schedules() == source.schedules()
        assert target.driver.subscriptions() == source.driver.subscriptions()
        assert [(lock.queue, lock.holder, lock.reason) for lock in target.locks()] == [
            ("mails", "breaker", "far side down")
        ]
        assert {lock.queue for lock in source.locks() if lock.holder == HOLDER} >= {"mails", "user-1", "work-dead"}
        assert take(source, "user-1") == []
        assert values(take(target, "user-1")) == [0, 1, 2]

    def test_the_target_is_another_space(self, store: QueueStore, other: QueueStore) -> None:
        mine, theirs = store.driver.identity(), other.driver.identity()
        assert mine != theirs
        store.driver.write([DocumentWrite("some", b"thing")])
        copy(store, other)
        assert (store.driver.identity(), other.driver.identity()) == (mine, theirs)
        assert other.driver.document("some") is not None

    def test_a_second_run_changes_nothing(self, store: QueueStore, other: QueueStore, clock: FakeClock) -> None:
        furnish(store, clock)
        copy(store, other)
        taken = take(other, "user-1")
        assert copy(store, other).was_done
        assert take(other, "user-1") == []
        assert len(taken) == 3

    @pytest.mark.parametrize("point", ["copy.before", "copy.loaded", "copy.verified", "copy.marked"])
    def test_broken_off_it_goes_on(
        self, store: QueueStore, other: QueueStore, clock: FakeClock, point: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """At every step of the way; what was loaded is not loaded twice, and nobody works on a half."""
        monkeypatch.setattr("penstock.queue.transfer.PAGE", 4)
        furnish(other, clock)
        broken = 0

        def strike(name: str) -> None:
            nonlocal broken
            if name == point:
                broken += 1
                if broken in (1, 3):
                    raise ConnectionError(name)

        failpoints.arm(strike)
        try:
            for _ in range(3):
                try:
                    copied = copy(other, store)
                except ConnectionError:
                    if point != "copy.marked":
                        assert take(store, "user-1") == []
                else:
                    break
        finally:
            failpoints.arm(None)
        assert broken
        assert copied.was_done == (point == "copy.marked")
        assert values(take(store, "user-1")) == [0, 1, 2]
        assert take(other, "user-1") == []
        assert [one.id for one in store.driver.export("dead")] == [one.id for one in other.driver.export("dead")]

    def test_a_queue_made_meanwhile_is_closed_too(
        self, store: QueueStore, other: QueueStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody gets anything of it on the other side before all is there."""
        put(store, "first")
        prepare, load, seen = Copy._prepare_target, other.driver.load, []

        def late(self: Copy) -> None:
            prepare(self)
            if not store.queue("late").exists():
                put(store, "late")

        def loading(rows: Any, holds: Any = ()) -> None:
            load(rows, holds)
            seen.append(take(other, "late"))

        monkeypatch.setattr(Copy, "_prepare_target", late)
        monkeypatch.setattr(other.driver, "load", loading)
        copied = copy(store, other)
        assert copied.sums["live"].count == copied.carried["live"] == 2
        assert seen
        assert not any(seen)
        assert len(take(other, "late")) == 1
        assert take(store, "late") == []

    def test_one_source_goes_to_one_target(self, store: QueueStore, other: QueueStore, open_store: OpenStore) -> None:
        put(store, "q")
        copy(store, other)
        with pytest.raises(Conflict, match="locked by another copy: copied to"):
            copy(store, open_store(space="third"))

    def test_what_is_put_afterwards_is_told(self, store: QueueStore, other: QueueStore) -> None:
        put(store, "q")
        copy(store, other)
        put(store, "q", "stray")
        put(store, "new", "stray")
        with pytest.raises(Conflict, match=r"2 entries were put into .* \(queues new, q\) after it was copied"):
            copy(store, other)

    def test_work_in_hand_is_waited_for(self, store: QueueStore, other: QueueStore, clock: FakeClock) -> None:
        put(store, "q", "busy")
        entry = take_one(store, "q")
        with pytest.raises(StoreUnavailable, match="worked on"):
            copy(store, other, wait="0s")
        end(store, entry)
        assert copy(store, other).sums["live"].count == 0

    def test_work_of_the_vanished_comes_along(self, store: QueueStore, other: QueueStore, clock: FakeClock) -> None:
        put(store, "q", "busy")
        take_one(store, "q")
        clock.advance("2m")
        assert copy(store, other).sums["live"].count == 1
        again = claim(other, "q")
        assert again.suspect
        assert [entry.attempt for entry in again.entries] == [2]

    def test_a_used_target_is_refused(self, store: QueueStore, other: QueueStore) -> None:
        put(store, "q")
        put(other, "mine")
        with pytest.raises(Conflict, match="not empty"):
            copy(store, other)
        assert store.locks() == []

    def test_onto_itself_is_refused(self, store: QueueStore, open_store: OpenStore) -> None:
        with pytest.raises(BadInput, match="same space"):
            Copy(store, open_store())

    def test_only_known_things_are_left_out(self, store: QueueStore, other: QueueStore) -> None:
        with pytest.raises(BadInput, match="label_limits"):
            Copy(store, other, leave_out=["everything"])

    def test_what_the_target_lacks_is_refused(self, store: QueueStore, other: QueueStore, clock: FakeClock) -> None:
        furnish(other, clock)
        other.queue("limited", str, in_flight={"customer": 2})
        lacking = [
            hint
            for hint, there in (
                ("--leave-out history", store.capabilities.full_history),
                ("--leave-out labels", store.capabilities.label_search),
                ("--leave-out label_limits", store.capabilities.label_limits),
            )
            if not there
        ]
        if not lacking:
            assert Copy(other, store).run().sums["live"].count > 0
            return
        with pytest.raises(Unsupported) as refused:
            Copy(other, store).run()
        assert all(hint in str(refused.value) for hint in lacking)
        assert store.locks() == []
        assert not any(lock.holder == HOLDER for lock in other.locks())

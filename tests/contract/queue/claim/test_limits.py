"""Limits: starts per time of a queue, and how many at once per value of a label; both for the whole cluster."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.contract.queue.shorthand import (
    MINUTE,
    SECOND,
    Contract,
    OpenStore,
    claim,
    end,
    in_threads,
    lease_of,
    needs,
    put,
    request,
    take,
    take_one,
    values,
)

from penstock.clock import FakeClock
from penstock.errors import BadInput, Unsupported
from penstock.policy import Rate
from penstock.queue.protocol import Definition, Source
from penstock.queue.queues import QueueStore


class TestRates(Contract):
    """GCRA with burst = count."""

    def test_a_burst_then_one_by_one(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q", rate="4/m").put_many(range(10))
        first = claim(store, "q")
        assert (values(first.entries), first.next_us) == ([0, 1, 2, 3], clock.micros() + 15 * SECOND)
        assert take(store, "q") == []
        clock.advance("14999ms")
        assert take(store, "q") == []
        clock.advance("1ms")
        assert values(take(store, "q")) == [4]
        assert claim(store, "q").next_us == clock.micros() + 15 * SECOND
        clock.advance("30s")
        assert values(take(store, "q")) == [5, 6]
        clock.advance("1h")
        assert values(take(store, "q")) == [7, 8, 9]

    def test_for_all_handles_together(self, store: QueueStore, open_store: OpenStore) -> None:
        handles = [store, open_store(node="two")]
        store.queue("q", rate="5/s").put_many(range(30))
        got = in_threads(6, lambda index: len(take(handles[index % 2], "q", limit=3, owner=f"worker-{index}")))
        assert sum(got) == 5

    def test_other_queues_are_not_held_up(self, store: QueueStore) -> None:
        store.queue("q", rate="1/h").put_many(range(3))
        store.queue("r").put_many(range(3))
        assert len(take(store, "q", "r")) == 4
        assert take(store, "q", "r") == []

    def test_every_member_of_a_family_has_its_own(self, store: QueueStore) -> None:
        family = store.family("f.", rate="2/m")
        for name in ("f.1", "f.2"):
            family.member(name).put_many(range(5))
        assert len(take(store, sources=[Source("f.", 99, family=True)])) == 4

    def test_it_counts_over_all_lanes(self, store: QueueStore) -> None:
        queue = store.queue("q", rate="3/m")
        queue.put_many(range(5))
        queue.put_many(range(5), sticky=True)
        assert len(take(store, "q")) == 3
        assert take(store, "q") == []

    def test_on_a_fifo_queue(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q", fifo=True, rate="2/m").put_many(range(4))
        for expected in (0, 1):
            entry = take_one(store, "q")
            assert values([entry]) == [expected]
            end(store, entry)
        got = claim(store, "q")
        assert (got.entries, got.next_us) == ([], clock.micros() + 30 * SECOND)
        clock.advance("30s")
        assert values(take(store, "q")) == [2]

    def test_next_time_is_never_late(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q", rate="7/s").put_many(range(40))
        seen, looks = 0, 0
        while seen < 40:
            got = claim(store, "q")
            seen += len(got.entries)
            looks += 1
            assert looks < 90
            if not got.entries:
                assert got.next_us is not None
                assert got.next_us > clock.micros()
                clock.advance(f"{(got.next_us - clock.micros()) / 1000:.3f}ms")
        started = clock.micros()
        assert started >= to_micros_of_start(store) + (33 * SECOND) // 7

    def test_it_can_be_changed_and_removed(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q", rate="1/h")
        queue.put_many(range(20))
        assert len(take(store, "q")) == 1
        store.queue("q", rate="3/h")
        clock.advance("1h")
        assert len(take(store, "q", lease="2h")) == 3
        store.queue("q", rate="none")
        assert len(take(store, "q", limit=10)) == 10
        store.queue("q", rate="1/h")
        store.driver.define("q", Definition(rate=Rate(0, 0)))
        assert len(take(store, "q")) == 6

    def test_a_handle_that_names_none_follows_what_is_stored(self, store: QueueStore, open_store: OpenStore) -> None:
        store.queue("q", rate="1/h")
        open_store(node="two").queue("q").put_many(range(3))
        assert len(take(store, "q")) == 1

    @pytest.mark.parametrize("bad", ["fast", "0/s", "5", "5/", "-1/s", "5/0s", "1/s/s"])
    def test_bad_rates(self, store: QueueStore, bad: str) -> None:
        with pytest.raises(BadInput):
            store.queue("q", rate=bad)

    def test_a_suspect_waits_for_the_rate_too(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q", rate="1/h").put("x")
        take_one(store, "q")
        clock.advance("2m")
        store.driver.reap(node="one")
        assert take(store, "q") == []
        clock.advance("1h")
        assert len(take(store, "q")) == 1


def to_micros_of_start(store: QueueStore) -> int:
    """When the first entry of queue q was put."""
    return store.queue("q").find()[0].created_us


class TestLabelLimits(Contract):
    """At most N in flight per value of a label."""

    @pytest.fixture(autouse=True)
    def able(self, store: QueueStore) -> None:
        needs(store, "label_limits")

    def fill(self, store: QueueStore, customers: str, **options: Any) -> Any:
        """A queue with a limit of two per customer, and one entry per letter."""
        queue = store.queue("q", in_flight={"customer": 2})
        for number, letter in enumerate(customers):
            queue.put(f"{letter}{number}", labels={"customer": letter}, **options)
        return queue

    def test_what_has_no_room_is_passed_over(self, store: QueueStore) -> None:
        self.fill(store, "aaaab")
        put(store, "q", "free")
        assert values(take(store, "q")) == ["a0", "a1", "b4", "free"]
        assert take(store, "q") == []

    @pytest.mark.parametrize("outcome", ["done", "dead", "retry", "snooze", "release", "cancel", "reaped"])
    def test_every_outcome_makes_room(self, store: QueueStore, clock: FakeClock, outcome: str) -> None:
        self.fill(store, "aaaa")
        first, second = take(store, "q", lease="1m")
        store.driver.extend([lease_of(second)], 60 * MINUTE)
        assert take(store, "q") == []
        if outcome == "cancel":
            store.driver.cancel([first.id], force=True)
        elif outcome == "reaped":
            clock.advance("2m")
            store.driver.reap(node="one")
            end(store, take_one(store, "q"))
        else:
            end(store, first, outcome, delay_us=30 * MINUTE)  # type: ignore[arg-type]
        expected = ["a0"] if outcome == "release" else ["a2"]
        assert values(take(store, "q")) == expected

    def test_a_finished_one_of_a_repeated_claim_makes_room(self, store: QueueStore) -> None:
        self.fill(store, "aaa")
        wish = request(store, "q")
        store.driver.claim(wish)
        again = store.driver.claim(msgspec.structs.replace(wish, repeat=True)).entries
        assert take(store, "q") == []
        end(store, again[0])
        assert values(take(store, "q")) == ["a2"]

    def test_a_lease_looked_up_makes_room_when_it_ends(self, store: QueueStore) -> None:
        self.fill(store, "aaa")
        take(store, "q")
        assert take(store, "q") == []
        end(store, store.queue("q").find(state="leased")[0])
        assert values(take(store, "q")) == ["a2"]

    def test_a_limit_defined_while_leases_are_held_makes_room_too(self, store: QueueStore) -> None:
        for number in range(4):
            put(store, "q", number, labels={"customer": "a"})
        held = take(store, "q", limit=2)
        store.queue("q", in_flight={"customer": 2})
        assert take(store, "q") == []
        end(store, held[0])
        assert values(take(store, "q")) == [2]

    def test_many_that_have_no_room_do_not_hide_one_that_has(self, store: QueueStore) -> None:
        queue = store.queue("q", in_flight={"customer": 1})
        queue.put_many(range(450), labels={"customer": "a"})
        queue.put("b", labels={"customer": "b"})
        assert values(take(store, "q", limit=1)) == [0]
        assert values(take(store, "q", limit=1)) == ["b"]

    def test_for_all_handles_together(self, store: QueueStore, open_store: OpenStore) -> None:
        handles = [store, open_store(node="two")]
        self.fill(store, "aaaaaaaabbbbbbbb")
        got = in_threads(6, lambda index: values(take(handles[index % 2], "q", limit=2, owner=f"worker-{index}")))
        assert sorted(one[0] for some in got for one in some) == ["a", "a", "b", "b"]

    def test_only_within_the_queue(self, store: QueueStore) -> None:
        self.fill(store, "aaa")
        for number in range(3):
            put(store, "other", number, labels={"customer": "a"})
        assert len(take(store, "other")) == 3
        assert len(take(store, "q")) == 2

    def test_over_priorities_and_lanes(self, store: QueueStore) -> None:
        self.fill(store, "aa", priority=5)
        self.fill(store, "aa", sticky=True)
        assert len(take(store, "q")) == 2
        assert take(store, "q") == []

    def test_values_compare_bytewise(self, store: QueueStore) -> None:
        self.fill(store, "aaaAAA")
        assert len(take(store, "q")) == 4

    def test_an_updated_label_counts(self, store: QueueStore) -> None:
        queue = self.fill(store, "aaa")
        take(store, "q")
        queue.update(queue.find(state="waiting")[0].id, labels={"customer": "b"})
        assert values(take(store, "q")) == ["a2"]

    def test_it_can_be_removed(self, store: QueueStore) -> None:
        self.fill(store, "aaaa")
        assert len(take(store, "q")) == 2
        store.queue("q", in_flight={})
        assert len(take(store, "q")) == 2

    def test_bad_limits(self, store: QueueStore) -> None:
        for bad in ({"a": -1}, {"a": 0}, {"a": 1, "b": 2}, {"no name!": 1}):
            with pytest.raises(BadInput):
                store.queue("q", in_flight=bad)

    def test_a_suspect_waits_for_room(self, store: QueueStore, clock: FakeClock) -> None:
        self.fill(store, "aaa")
        _, second = take(store, "q", lease="1m")
        store.driver.extend([lease_of(second)], 60 * MINUTE)
        clock.advance("2m")
        store.driver.reap(node="one")
        put(store, "q", "holder", labels={"customer": "a"}, priority=9)
        assert values(take(store, "q")) == ["a0"], "the suspect comes by itself"
        assert take(store, "q") == []
        end(store, second)
        assert values(take(store, "q")) == ["holder"]


class TestUnsupportedLimits(Contract):
    """A store that declares no label limits refuses to define one."""

    def test_refused_when_it_is_asked_for(self, store: QueueStore) -> None:
        if store.capabilities.label_limits:
            store.queue("q", in_flight={"customer": 1})
        else:
            with pytest.raises(Unsupported):
                store.queue("q", in_flight={"customer": 1})

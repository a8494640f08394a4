"""Reading in bulk: ranges of sequence numbers as plain columns, and the mark below which nothing new appears."""

from __future__ import annotations

from itertools import product
from typing import Any

from tests.contract.queue.shorthand import Contract, end, needs, put, take_one

from penstock.clock import FakeClock
from penstock.queue.protocol import ROW, Find, Part
from penstock.queue.queues import QueueStore

EVER = 1 << 62


def rows(store: QueueStore, part: Part, **options: Any) -> list[dict[str, Any]]:
    """Rows by column."""
    until = options.pop("until", EVER)
    found = store.driver.rows(part, Find(**options), until=until)
    return [dict(zip(ROW, row, strict=True)) for row in found]


class TestRanges(Contract):
    """What bulk readers ask for."""

    def test_history_by_ranges(self, store: QueueStore, clock: FakeClock) -> None:
        needs(store, "full_history")
        for number in range(7):
            put(store, f"q{number % 2}", number, labels={"n": "ä"} if number == 3 else {}, headers={"h": "1"})
            clock.advance("1s")
            end(store, take_one(store, f"q{number % 2}"))
        whole = rows(store, "history")
        assert [row["payload"] for row in whole] == [b"%d" % number for number in range(7)]
        numbers = [row["seq"] for row in whole]
        assert numbers == sorted(set(numbers))
        assert store.driver.mark("history") == numbers[-1] == store.driver.mark("history", after=numbers[2])
        # Neighbouring ranges have every row once, however they are cut.
        middle = numbers[3]
        assert rows(store, "history", until=middle) + rows(store, "history", after=middle) == whole
        assert rows(store, "history", after=numbers[1], limit=2) == whole[2:4]
        assert rows(store, "history", queue="q1") == whole[1::2]
        assert [one.id for one in store.driver.history(Find())] == [row["id"] for row in whole]
        third = whole[3]
        assert (third["queue"], third["state"], third["generation"], third["attempt"]) == ("q1", "done", 1, 1)
        assert (third["labels"], third["headers"]) == ('{"n":"ä"}', '{"h":"1"}')
        assert whole[2]["labels"] is None
        assert third["created"] <= third["started"] <= third["ended"] == third["created"] + 1_000_000
        assert (third["codec"], third["owner"], third["error"]) == ("json", "worker-a", None)

    def test_a_range_narrowed_by_queue_states_and_times(self, store: QueueStore, clock: FakeClock) -> None:
        needs(store, "full_history")
        for number in range(12):
            put(store, f"q{number % 2}", number)
            clock.advance("1s")
            outcome: Any = ("done", "retry", "dead")[number % 3]
            end(store, take_one(store, f"q{number % 2}"), outcome, error=None if outcome == "done" else "no")
        whole = rows(store, "history")
        first, last, times = whole[3]["seq"], whole[10]["seq"], [row["ended"] for row in whole]
        for queue, states, since, before, after in product(
            (None, "q0"), (None, ("done",), ("dead", "retried")), (None, times[2]), (None, times[9]), (0, first)
        ):
            wanted = [
                row for row in whole
                if (queue is None or row["queue"] == queue) and (states is None or row["state"] in states)
                and (since is None or row["ended"] >= since) and (before is None or row["ended"] < before)
                and after < row["seq"] <= last
            ]  # fmt: skip
            where = {"queue": queue, "states": states, "from_us": since, "before_us": before, "after": after}
            assert rows(store, "history", **where, until=last) == wanted
            assert rows(store, "history", **where, until=last, limit=2) == wanted[:2]

    def test_dead_letters_and_live_entries_narrowed(self, store: QueueStore, clock: FakeClock) -> None:
        for number in range(6):
            put(store, f"q{number % 2}", number)
            clock.advance("1s")
            end(store, take_one(store, f"q{number % 2}"), "dead", error="no")
        dead = rows(store, "dead")
        assert [row["payload"] for row in dead] == [b"%d" % number for number in range(6)]
        assert rows(store, "dead", queue="q0", from_us=dead[1]["ended"], before_us=dead[4]["ended"]) == [dead[2]]
        assert rows(store, "dead", states=("done",)) == []
        for queue in ("q0", "q1"):
            put(store, queue, "held")
            take_one(store, queue)
            put(store, queue, "waits")
        [held] = rows(store, "live", queue="q1", states=("leased",))
        [waits] = rows(store, "live", queue="q0", states=("waiting",))
        assert (held["payload"], held["queue"], waits["payload"], waits["queue"]) == (b'"held"', "q1", b'"waits"', "q0")
        assert len(rows(store, "live", states=("waiting", "leased"), after=held["seq"] - 1)) == 2

    def test_live_and_dead(self, store: QueueStore) -> None:
        assert (store.driver.mark("live"), store.driver.mark("dead"), rows(store, "live")) == (0, 0, [])
        put(store, "q", "gone")
        end(store, take_one(store, "q"), "dead", error="no")
        put(store, "q", "held")
        take_one(store, "q")
        put(store, "q", "waits")
        held, waits = rows(store, "live")
        assert (held["state"], held["owner"], held["payload"]) == ("leased", "worker-a", b'"held"')
        assert held["started"] is not None
        assert (waits["state"], waits["owner"], waits["started"], waits["ended"]) == ("waiting", None, None, None)
        assert store.driver.mark("live") == waits["seq"]
        [dead] = rows(store, "dead")
        assert (dead["state"], dead["error"], dead["payload"]) == ("dead", "no", b'"gone"')
        assert rows(store, "dead", queue="other") == []

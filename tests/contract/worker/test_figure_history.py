"""Figures that are looked at again and again: always what a whole reading says, without reading all of it again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import msgspec
import pytest
from tests.contract.queue.shorthand import Contract

from penstock.clock import FakeClock
from penstock.queue.protocol import DocumentWrite
from penstock.queue.queues import QueueStore
from penstock.queue.worker import figure_history
from penstock.queue.worker.figure_history import Block, FigureHistory
from penstock.queue.worker.figures import (
    BLOCK,
    HOURS_BLOCK,
    HOURS_PREFIX,
    MINUTE,
    PREFIX,
    Tally,
    read_figures,
    read_hours,
    total,
)

HANDLERS = (("mails", False), ("mails.slow", False), ("customer.", True), ("customer.vip.", True))


def write(store: QueueStore, worker: str, tallies: list[Tally]) -> None:
    """The documents of a worker with these tallies, as it would write them."""
    by_block: dict[int, list[Tally]] = {}
    for tally in tallies:
        by_block.setdefault(tally.minute // BLOCK, []).append(tally)
    store.driver.write(
        [DocumentWrite(f"{PREFIX}{worker}.{block}", msgspec.json.encode(some)) for block, some in by_block.items()]
    )


def sums(tallies: list[Tally]) -> Counter[tuple[int, str]]:
    return Counter({(tally.minute, tally.queue): tally.done for tally in tallies})


class TestLookingAgain(Contract):
    """The same as if all documents were read each time."""

    def test_every_look_says_what_a_whole_reading_says(self, store: QueueStore, clock: FakeClock) -> None:
        chance = random.Random(7)
        history = FigureHistory(store)
        done: dict[str, list[Tally]] = {"a": [], "b": []}
        for _ in range(12):
            minute = store.now() // MINUTE
            for worker, tallies in done.items():
                for queue, is_family in chance.sample(HANDLERS, 2):
                    at = minute - chance.randrange(3)
                    tallies[:] = [tally for tally in tallies if (tally.minute, tally.queue) != (at, queue)]
                    tallies.append(Tally(at, queue, is_family, chance.randrange(1, 50), 1, 0, 0.5, [0, 1]))
                write(store, worker, [tally for tally in tallies if tally.minute // BLOCK >= (minute - 2) // BLOCK])
            first = minute - 200
            expected = read_figures(store, since_us=first * MINUTE)
            series = history.look(200)
            assert sums(series.since(first)) == sums(expected)
            assert [(tally.minute, tally.done) for tally in series.by_minute(first)] == sorted(
                (minute, sum(tally.done for tally in expected if tally.minute == minute))
                for minute in {tally.minute for tally in expected}
            )
            for begin in (first, minute - 7):  # of which one is amid a block
                assert {tally.queue: tally.done for tally in series.by_handler(begin, "customer.")} == {
                    queue: total(tally for tally in expected if tally.queue == queue and tally.minute >= begin).done
                    for queue in {tally.queue for tally in expected if tally.minute >= begin}
                    if queue.startswith("customer.")
                }
            clock.advance("11m")

    def test_only_what_was_written_again_is_added_up_again(
        self, store: QueueStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        added: list[int] = []

        class Counted(Block):
            """A block that tells how many documents it was made of."""

            def __init__(self, documents: Iterable[bytes]) -> None:
                values = list(documents)
                added.append(len(values))
                super().__init__(values)

        monkeypatch.setattr(figure_history, "Block", Counted)
        minute = store.now() // MINUTE // BLOCK * BLOCK
        for worker in "ab":
            write(store, worker, [Tally(minute - ago, "mails", False, 1, durations=[]) for ago in range(0, 300, BLOCK)])
        history = FigureHistory(store)
        assert total(history.look(300).since(minute - 300)).done == 60
        assert added == [2] * 30
        added.clear()
        assert total(history.look(300).since(minute - 300)).done == 60
        assert added == [], "not even right after everything was written"
        write(store, "a", [Tally(minute, "mails", False, 5, durations=[])])
        assert total(history.look(300).since(minute - 300)).done == 64
        assert added == [2]

    def test_what_comes_late_is_seen_too(self, store: QueueStore, clock: FakeClock) -> None:
        """From a worker whose store was away for hours."""
        history, minute = FigureHistory(store), store.now() // MINUTE
        write(store, "a", [Tally(minute - ago, "mails", False, 1, durations=[]) for ago in (0, 100, 200)])
        assert total(history.look(300).since(minute - 300)).done == 3
        clock.advance("2m")
        write(store, "b", [Tally(minute - 200, "mails", False, 7, durations=[])])
        assert total(history.look(300).since(minute - 300)).done == 10

    def test_a_longer_look_finds_what_a_short_one_did_not_read(self, store: QueueStore, clock: FakeClock) -> None:
        history, minute = FigureHistory(store), store.now() // MINUTE
        write(store, "a", [Tally(minute - 200, "mails", False, 1, durations=[])])
        clock.advance("3h")
        write(store, "a", [Tally(minute + 180, "mails", False, 1, durations=[])])
        assert total(history.look(60).since(minute - 300)).done == 1
        assert total(history.look(600).since(minute - 300)).done == 2

    def test_hours_are_looked_at_in_the_same_way(self, store: QueueStore, clock: FakeClock) -> None:
        hour, history = store.now() // MINUTE // 60, FigureHistory(store, by_hour=True)
        for block in range(hour // HOURS_BLOCK - 3, hour // HOURS_BLOCK + 1):
            tallies = [Tally((block * HOURS_BLOCK + number) * 60, "mails", False, 2, durations=[]) for number in (0, 5)]
            store.driver.write([DocumentWrite(f"{HOURS_PREFIX}a.{block}", msgspec.json.encode(tallies))])
        since = store.now() - 12 * 60 * MINUTE
        first = since // MINUTE // 60 * 60
        assert sums(history.look(3 * 24 * 60).since(first)) == sums(read_hours(store, since_us=since))

    def test_a_queue_has_its_own_figures_or_those_of_its_closest_family(self, store: QueueStore) -> None:
        minute = store.now() // MINUTE
        write(store, "a", [Tally(minute, queue, is_family, 1, durations=[]) for queue, is_family in HANDLERS])
        series = FigureHistory(store).look(60)
        for queue, handler in (
            ("mails", "mails"), ("mails.slow", "mails.slow"), ("customer.7", "customer."),
            ("customer.vip.7", "customer.vip."),
        ):  # fmt: skip
            assert [tally.queue for tally in series.of_queue(queue, minute - 60)] == [handler]
        assert series.of_queue("mails.fast", minute - 60) == []

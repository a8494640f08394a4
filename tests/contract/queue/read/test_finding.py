"""Finding live entries: every combination of filters gives what the definition says, page by page."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
from tests.contract.queue.shorthand import Contract, OpenStore, claim, end

from penstock import QueueStore
from penstock.clock import FakeClock
from penstock.queue.entry import HELD, Entry
from penstock.queue.protocol import Find

QUEUES = ("mails", "customer.1", "customer.2")
STATES = (None, ("waiting",), ("held",), ("leased",), ("waiting", "leased"), ("held", "leased"))


def filled(store: QueueStore, chance: random.Random, clock: FakeClock) -> list[Entry[Any]]:
    """Some wait now, later, for others, after a failure; some are leased; and one has ended. The live ones."""
    for number in range(40):
        store.queue(chance.choice(QUEUES)).put(
            number, delay=chance.choice(("0s", "0s", "1h")), priority=chance.choice((0, 5)),
            labels={"customer": chance.choice(("ann", "ben"))} if number % 3 else {},
        )  # fmt: skip
    first = store.queue("mails").find(limit=1)[0].id
    for queue in QUEUES:
        store.queue(queue).put("held", after=[first], labels={"customer": "ann"})
    retried, done, *_ = claim(store, *QUEUES, limit=9).entries
    end(store, retried, "retry", due_us=store.now() + 5_000_000)
    end(store, done, "done")
    clock.advance("1s")
    return store.driver.find(Find(limit=1000))


def expected(entries: list[Entry[Any]], where: Find) -> list[str]:
    """By the definition: all conditions, in order, the first few."""

    def is_meant(entry: Entry[Any]) -> bool:
        due = HELD if entry.state == "held" else entry.due_us  # what is held is not due before it is released
        kinds = {"held": {"held", "waiting"}, "leased": {"leased"}}.get(entry.state, {"waiting"})
        return (
            where.queue in (None, entry.queue)
            and (where.family is None or entry.queue.startswith(where.family))
            and (where.states is None or bool(kinds & set(where.states)))
            and all(entry.labels.get(name) == value for name, value in where.labels.items())
            and (where.from_us is None or due >= where.from_us)
            and (where.before_us is None or due < where.before_us)
            and (not where.after or (entry.seq < where.after if where.newest_first else entry.seq > where.after))
        )

    chosen = sorted((entry for entry in entries if is_meant(entry)), key=lambda entry: entry.seq)
    return [entry.id for entry in (chosen[::-1] if where.newest_first else chosen)][: where.limit]


class TestFinding(Contract):
    """Find, against a sequential oracle."""

    @pytest.mark.parametrize("seed", range(2))
    def test_all_combinations_of_filters(self, open_store: OpenStore, clock: FakeClock, seed: int) -> None:
        store = open_store()
        chance = random.Random(seed)
        entries = filled(store, chance, clock)
        assert {entry.state for entry in entries} == {"waiting", "leased", "held"}
        now = store.now()
        places = (None, {"queue": "mails"}, {"queue": "nowhere"}, {"family": "customer."})
        for place, states, labels, newest in product(places, STATES, ({}, {"customer": "ann"}), (False, True)):
            bounds: dict[str, Any] = chance.choice(({}, {"before_us": now + 1}, {"from_us": now + 1}))
            where = Find(
                **(place or {}), states=states, labels=labels, newest_first=newest, limit=chance.choice((1, 3, 1000)),
                after=chance.choice((0, chance.choice(entries).seq)), **bounds,
            )  # fmt: skip
            found = [entry.id for entry in store.driver.find(where)]
            assert found == expected(entries, where), where

    def test_pages_follow_each_other_to_the_end(self, open_store: OpenStore, clock: FakeClock) -> None:
        store = open_store()
        entries = filled(store, random.Random(7), clock)
        for newest in (False, True):
            found: list[Entry[Any]] = []
            while page := store.driver.find(Find(limit=3, newest_first=newest, after=found[-1].seq if found else 0)):
                found += page
            assert [entry.id for entry in found] == [entry.id for entry in (entries[::-1] if newest else entries)]

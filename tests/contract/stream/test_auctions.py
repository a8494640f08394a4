"""Ten queries over an auction house: whatever is stopped in between, the results are those of plain Python."""

from __future__ import annotations

import random

import pytest
from tests import auctions
from tests.contract.stream.shorthand import Run, drained

from penstock.log.store import LogStore


@pytest.mark.parametrize("query", auctions.QUERIES)
def test_a_query_gives_what_happened_whatever_was_stopped_in_between(logs: LogStore, runner: Run, query: str) -> None:
    read = auctions.events(2_000, seed=7)
    chance = random.Random(query)
    cuts = [0, *sorted(chance.sample(range(len(read)), 3)), len(read)]
    for leg in range(len(cuts) - 1):
        auctions.append(logs, read[cuts[leg] : cuts[leg + 1]])
        final = leg == len(cuts) - 2
        drained(runner, auctions.flow_of(query), final=final, checkpoint_records=chance.choice([50, 300, 10_000]))
    expected = auctions.answer(query, read)
    assert expected
    assert auctions.results(logs, query) == expected


def test_all_queries_at_once(logs: LogStore, runner: Run) -> None:
    read = auctions.events(3_000, seed=11)
    auctions.append(logs, read)
    drained(runner, auctions.flow_of(*auctions.QUERIES))
    for query in auctions.QUERIES:
        assert auctions.results(logs, query) == auctions.answer(query, read), query

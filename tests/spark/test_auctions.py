"""Ten queries over an auction house, on Spark in turns with a local runner: the results are those of plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests import auctions
from tests.contract.stream.shorthand import Run, drained
from tests.spark.runners import clock, logs, patience, runner

from penstock.log.store import LogStore
from penstock.stream import LocalRunner

__all__ = ["clock", "logs", "patience", "runner"]
pytestmark = pytest.mark.timeout(600)


def test_all_queries_in_turns_with_a_local_runner(logs: LogStore, runner: Run) -> None:
    read = auctions.events(3_000, seed=23)
    local: Callable[..., Any] = lambda topology, **options: LocalRunner(topology, logs, **options)  # noqa: E731
    for number, (first, last, run) in enumerate([(0, 900, runner), (900, 1_900, local), (1_900, 3_000, runner)]):
        auctions.append(logs, read[first:last])
        drained(run, auctions.everything(), final=number == 2)
    for query in auctions.QUERIES:
        assert auctions.results(logs, query) == auctions.answer(query, read), query

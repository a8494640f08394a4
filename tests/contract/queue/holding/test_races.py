"""The last two members of a batch end at the same time, in two processes: one of them releases what waits."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from tests.contract.queue.asking import Contract, new
from tests.places import Place

from penstock import QueueStore, open_queues
from penstock.ids import new_nonce
from penstock.queue.protocol import ClaimRequest, Ending, Find, Link, Source, Step

ROUNDS = int(os.environ.get("PENSTOCK_ROUNDS", "40"))
_context = multiprocessing.get_context("spawn")


def end_members(url: str, index: int, rounds: int, barrier: Any, problems: Any) -> None:
    """Claim one member of every batch, then end it when the other process does."""
    store = open_queues(url, node="one")
    try:
        for number in range(rounds):
            request = ClaimRequest(
                new_nonce(), (Source(f"work.{number}.{index}", 1),), 1, f"process-{index}", "one", 600_000_000
            )
            [entry] = store.driver.claim(request).entries
            assert entry.lease is not None
            barrier.wait(120)
            store.driver.commit(Step((Ending(entry.lease, "done"),)))
    except BaseException as error:
        problems.put(repr(error))
        barrier.abort()
        raise
    finally:
        store.close()


class TestRaces(Contract):
    @pytest.mark.timeout(0)
    def test_of_two_last_members_one_releases(self, store: QueueStore, place: Place, tmp_path: Path) -> None:
        if place.url.startswith("memory"):
            pytest.skip("memory is of one process")
        targets = []
        for number in range(ROUNDS):
            target, members = new("then"), [new(f"work.{number}.{index}") for index in range(2)]
            links = tuple(Link(member.id, target.id) for member in members)
            store.driver.commit(Step(puts=(target, *members), links=links))
            targets.append(target.id)
        barrier, problems = _context.Barrier(2), _context.Queue()
        processes = [
            _context.Process(target=end_members, args=(place.url, index, ROUNDS, barrier, problems))
            for index in range(2)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(300)
        assert [process.exitcode for process in processes] == [0, 0], [problems.get() for _ in range(problems.qsize())]
        waits = {wait.id: (wait.needs, wait.done) for wait in store.driver.waits(limit=10_000)}
        assert waits == dict.fromkeys(targets, (0, 2))
        assert store.driver.links() == []
        released = {
            entry.id for entry in store.driver.find(Find(queue="then", limit=10_000)) if entry.state == "waiting"
        }
        assert released == set(targets)

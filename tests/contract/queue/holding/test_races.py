"""The last two members of a batch end at the same time, in two processes: one of them releases what waits."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from tests.contract.queue.shorthand import Contract, new
from tests.store_urls import Place

from penstock import QueueStore, open_queues
from penstock.ids import new_nonce
from penstock.queue.protocol import ClaimRequest, Ending, Find, Link, Source, Step

ROUNDS = 40
MANY_ROUNDS = int(os.environ.get("PENSTOCK_ROUNDS", "1000"))  # of `make faults`
_context = multiprocessing.get_context("spawn")


def end_members(url: str, index: int, rounds: int, barrier: Any, problems: Any) -> None:
    """Claim one member of every batch, then end it when the other process does; in turn alone and with a claim."""
    store = open_queues(url, node="one")
    try:
        for number in range(rounds):
            request = ClaimRequest(
                new_nonce(), (Source(f"work.{number}.{index}", 1),), 1, f"process-{index}", "one", 600_000_000
            )
            [entry] = store.driver.claim(request).entries
            assert entry.lease is not None
            barrier.wait(120)
            following = None
            if number % 2:
                following = ClaimRequest(new_nonce(), (Source("nothing", 1),), 1, "worker", "one", 600_000_000)
            [result] = store.driver.settle((Step((Ending(entry.lease, "done"),)),), following).results
            assert not isinstance(result, Exception), result
    except BaseException as error:
        problems.put(repr(error))
        barrier.abort()
        raise
    finally:
        store.close()


def end_in_two_processes(store: QueueStore, place: Place, targets: list[str], rounds: int) -> None:
    """Let two processes end a member of each round at the same moment: every target is released, once."""
    barrier, problems = _context.Barrier(2), _context.Queue()
    processes = [
        _context.Process(target=end_members, args=(place.url, index, rounds, barrier, problems)) for index in range(2)
    ]
    run_all(processes, problems)
    waits = {wait.id: (wait.needs, wait.done) for wait in store.driver.waits(limit=10_000)}
    assert waits == dict.fromkeys(targets, (0, 2))
    assert store.driver.links() == []
    found = store.driver.find(Find(queue="then", limit=10_000))
    assert {entry.id: entry.state for entry in found} == dict.fromkeys(targets, "waiting")


class TestRaces(Contract):
    rounds = ROUNDS

    @pytest.mark.timeout(0)
    def test_of_two_last_members_one_releases(self, store: QueueStore, place: Place, tmp_path: Path) -> None:
        if not store.capabilities.durable:
            pytest.skip(f"{store.name} declares durable=False: another process has a store of its own")
        targets = []
        for number in range(self.rounds):
            target, members = new("then"), [new(f"work.{number}.{index}") for index in range(2)]
            links = tuple(Link(member.id, target.id) for member in members)
            store.driver.commit(Step(puts=(target, *members), links=links))
            targets.append(target.id)
        end_in_two_processes(store, place, targets, self.rounds)

    @pytest.mark.timeout(0)
    def test_two_ends_that_the_same_entries_wait_for_release_each_once(self, store: QueueStore, place: Place) -> None:
        if not store.capabilities.durable:
            pytest.skip(f"{store.name} declares durable=False: another process has a store of its own")
        targets = []
        for number in range(self.rounds):
            waiting, sources = [new("then") for _ in range(10)], [new(f"work.{number}.{index}") for index in range(2)]
            links = tuple(Link(source.id, target.id) for source in sources for target in waiting)
            store.driver.commit(Step(puts=(*waiting, *sources), links=links))
            targets += [target.id for target in waiting]
        end_in_two_processes(store, place, targets, self.rounds)

    @pytest.mark.timeout(0)
    def test_what_is_put_after_an_entry_that_is_just_ending_is_released(self, store: QueueStore, place: Place) -> None:
        """Who begins to wait while another process claims and ends the entry waits for that end, or finds it done."""
        if not store.capabilities.durable:
            pytest.skip(f"{store.name} declares durable=False: another process has a store of its own")
        members = [new(f"work.{number}") for number in range(self.rounds)]
        for start in range(0, len(members), 100):
            store.driver.commit(Step(puts=tuple(members[start : start + 100])))
        barrier, problems = _context.Barrier(2), _context.Queue()
        ids = [member.id for member in members]
        processes = [
            _context.Process(target=work_on, args=(place.url, self.rounds, barrier, problems)),
            _context.Process(target=put_after, args=(place.url, ids, barrier, problems)),
        ]
        run_all(processes, problems)
        found = store.driver.find(Find(queue="then", limit=10_000))
        assert [entry.state for entry in found] == ["waiting"] * 2 * self.rounds
        assert store.driver.links() == []
        assert {(wait.needs, wait.done) for wait in store.driver.waits(limit=10_000)} == {(0, 1)}


@pytest.mark.faults
class TestManyRaces(TestRaces):
    """The same, often."""

    rounds = MANY_ROUNDS


def run_all(processes: list[Any], problems: Any) -> None:
    for process in processes:
        process.start()
    for process in processes:
        process.join(900)
    assert [process.exitcode for process in processes] == [0] * len(processes), [
        problems.get() for _ in range(problems.qsize())
    ]


def work_on(url: str, rounds: int, barrier: Any, problems: Any) -> None:
    """Claim and end the entries of one queue after the other, as a worker does: in plain round trips."""
    store = open_queues(url, node="one")
    try:
        for number in range(rounds):
            request = ClaimRequest(new_nonce(), (Source(f"work.{number}", 10),), 10, "worker", "one", 600_000_000)
            barrier.wait(120)
            entries: list[Any] = []
            while not entries:
                entries = store.driver.claim(request).entries
            following = ClaimRequest(new_nonce(), (Source("nothing", 10),), 10, "worker", "one", 600_000_000)
            settled = store.driver.settle([Step((Ending(entry.lease, "done"),)) for entry in entries], following)
            assert not any(isinstance(result, Exception) for result in settled.results), settled.results
    except BaseException as error:
        problems.put(repr(error))
        barrier.abort()
        raise
    finally:
        store.close()


def put_after(url: str, ids: list[str], barrier: Any, problems: Any) -> None:
    """Put two entries after each, the second a little later."""
    store = open_queues(url, node="two")
    try:
        for id_ in ids:
            barrier.wait(120)
            for _ in range(2):
                target = new("then")
                store.driver.commit(Step(puts=(target,), links=(Link(id_, target.id),)))
    except BaseException as error:
        problems.put(repr(error))
        barrier.abort()
        raise
    finally:
        store.close()

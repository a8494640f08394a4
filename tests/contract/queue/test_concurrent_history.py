"""Everybody at once: two threads put and change entries, two others claim and end them, each on a handle of its own.

What every call said, and when, is written down and then held against what must be true of any order of the calls: a
change that succeeded is seen by every attempt that ended after it, what was cancelled or put off is not handed out
later, and each generation ends once, as it was told.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import defaultdict
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.contract.queue.shorthand import Contract, OpenStore, ending, take

from penstock.errors import EntryLeased, EntryNotFound
from penstock.queue.protocol import Find, Step, StepDone
from penstock.queue.queues import QueueStore

SECONDS = float(os.environ.get("PENSTOCK_HISTORY_SECONDS", "2"))


class Call(NamedTuple):
    """A change of an entry: what was asked, the payload from then on, when, and whether it happened."""

    what: str
    payload: int
    begun: float
    returned: float
    happened: bool


class Attempt(NamedTuple):
    """An entry that was handed out, and how its end was told."""

    payload: int
    generation: int
    claim_begun: float
    claim_returned: float
    end_begun: float
    outcome: str
    ended: bool


class History:
    """What everybody did, by entry."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.calls: dict[str, list[Call]] = defaultdict(list)
        self.attempts: dict[str, list[Attempt]] = defaultdict(list)
        self.errors: list[BaseException] = []
        self.is_over = threading.Event()


def change_entries(store: QueueStore, queues: tuple[str, ...], history: History, seed: int) -> None:
    """Put entries and change each a few times; only this thread changes them."""
    chance = random.Random(seed)
    while not history.is_over.is_set():
        queue = store.queue(chance.choice(queues))
        for id_ in [queue.put(1).id for _ in range(chance.randint(1, 4))]:
            payload = 1
            for _ in range(chance.randint(1, 4)):
                what = chance.choice(["update", "update", "put off", "make due", "cancel", "replay"])
                payload += what == "update"
                begun, happened = time.perf_counter(), True
                try:
                    match what:
                        case "update":
                            queue.update(id_, payload)
                        case "put off":
                            queue.reschedule(id_, delay="1h")
                        case "make due":
                            queue.reschedule(id_, delay="0s")
                        case "cancel":
                            happened = queue.cancel(id_) == 1
                        case "replay":
                            happened = queue.replay(id_) == 1
                except (EntryLeased, EntryNotFound):
                    happened = False
                history.calls[id_].append(Call(what, payload, begun, time.perf_counter(), happened))


def work(store: QueueStore, queues: tuple[str, ...], history: History, seed: int) -> None:
    """Claim, and end what was claimed."""
    chance = random.Random(seed)
    while not history.is_over.is_set():
        claim_begun = time.perf_counter()
        entries = take(store, *queues, limit=20, attempts=None)
        claim_returned = time.perf_counter()
        outcomes = [chance.choice(["done", "done", "retry"]) if entry.attempt < 3 else "done" for entry in entries]
        end_begun = time.perf_counter()
        steps = [Step((ending(entry, what),)) for entry, what in zip(entries, outcomes, strict=True)]  # type: ignore[arg-type]
        results = store.driver.settle(steps).results if steps else []
        for entry, what, result in zip(entries, outcomes, results, strict=True):
            payload = msgspec.json.decode(entry.payload)
            times = (claim_begun, claim_returned, end_begun)
            ended = isinstance(result, StepDone)
            history.attempts[entry.id].append(Attempt(payload, entry.generation, *times, what, ended))


class TestConcurrentHistory(Contract):
    @pytest.mark.timeout(0)
    @pytest.mark.parametrize("queues", [("q",), ("q", "r", "fifo")], ids=["one queue", "several"])
    def test_every_attempt_fits_what_the_others_did(
        self, store: QueueStore, open_store: OpenStore, queues: tuple[str, ...]
    ) -> None:
        for name in queues:
            store.queue(name, fifo=name == "fifo")
        history = History()

        def run(job: Any, seed: int) -> None:
            handle = open_store()
            try:
                job(handle, queues, history, seed)
            except BaseException as error:
                history.errors.append(error)
                history.is_over.set()
            finally:
                handle.close()

        threads = [
            threading.Thread(target=run, args=(job, seed))
            for seed, job in enumerate((change_entries, change_entries, work, work))
        ]
        for thread in threads:
            thread.start()
        history.is_over.wait(SECONDS)
        history.is_over.set()
        for thread in threads:
            thread.join()
        assert history.errors == []
        assert history.attempts, "nothing was claimed"
        for id_, calls in history.calls.items():
            for attempt in history.attempts[id_]:
                check_attempt(id_, attempt, calls)
        if store.capabilities.full_history:
            check_ends(store, history)


def check_attempt(id_: str, attempt: Attempt, calls: list[Call]) -> None:
    """Whoever has an entry keeps changes out until it ends: what succeeded before the end came before the claim."""
    before = [call for call in calls if call.happened and call.returned < attempt.end_begun]
    newest = max([call.payload for call in before if call.what == "update"], default=1)
    assert attempt.payload >= newest, f"{id_} was handed out as it was before an update: {attempt} {calls}"
    moved = [call for call in calls if call.happened and call.what != "update" and call.begun < attempt.end_begun]
    if moved and moved[-1].returned < attempt.claim_begun:
        assert moved[-1].what not in ("put off", "cancel"), f"{id_} was handed out all the same: {attempt} {calls}"


def check_ends(store: QueueStore, history: History) -> None:
    """Each generation has one end at most, and it is done if and only if an attempt was told so."""
    ended: dict[str, list[tuple[int, str]]] = defaultdict(list)
    known = list(history.calls)
    for first in range(0, len(known), 500):
        part = tuple(known[first : first + 500])
        for row in store.driver.history(Find(ids=part, limit=100_000)):
            if row.state in ("done", "dead", "cancelled", "expired"):
                ended[row.id].append((row.generation, row.state))
    for id_, calls in history.calls.items():
        ends = ended[id_]
        assert len({generation for generation, _ in ends}) == len(ends), f"{id_} ended twice: {ends} {calls}"
        done = {attempt.generation for attempt in history.attempts[id_] if attempt.outcome == "done" and attempt.ended}
        assert {generation for generation, state in ends if state == "done"} == done, f"{id_}: {ends} {calls}"
        generations = 1 + sum(call.what == "replay" and call.happened for call in calls)
        assert all(generation <= generations for generation, _ in ends), f"{id_}: {ends} {calls}"

"""Short ways to ask a store: claims, endings and what became of an entry, for the tests of this suite."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec
import pytest

from penstock.clock import Clock, FakeClock, duration_micros
from penstock.ids import new_id
from penstock.queue.entry import Entry, Lease, with_traceback
from penstock.queue.protocol import Claimed, ClaimRequest, Ending, Find, NewEntry, Outcome, Source, Step, StepDone
from penstock.queue.queues import QueueStore

SECOND = 1_000_000
MINUTE = 60 * SECOND
PATIENCE = 20.0  # seconds to wait for another thread before a test gives up


class OpenStore(Protocol):
    """Opens another handle on the same underlying store: what a store author provides as the fixture ``open_store``."""

    def __call__(self, *, clock: Clock | None = None, node: str | None = None, space: str | None = None) -> QueueStore:
        """The clock is the fixture ``clock`` unless given, the node "one", the space a fixed one of this test."""


class Contract:
    """What every test class of the suite has: the fixture ``store``; ``open_store`` and ``clock`` are the author's."""

    @pytest.fixture
    def store(self, open_store: OpenStore, clock: FakeClock) -> QueueStore:
        """The store under test."""
        return open_store()


def needs(store: QueueStore, capability: str) -> None:
    """Skip what a store declares not to offer; that it refuses is tested elsewhere."""
    if not getattr(store.capabilities, capability):
        pytest.skip(f"{store.name} declares {capability}=False")


def new(queue: str, value: Any = "x", **fields: Any) -> NewEntry:
    """An entry to put with a step."""
    return NewEntry(fields.pop("id", None) or new_id(), queue, msgspec.json.encode(value), "json", "Any", **fields)


def put(store: QueueStore, queue: str, value: Any = "x", **options: Any) -> str:
    """Put one value; its id."""
    return store.queue(queue).put(value, **options).id


def request(
    store: QueueStore,
    *queues: str,
    limit: int = 100,
    owner: str = "worker-a",
    node: str | None = None,
    lease: str = "60s",
    attempts: int | None = 5,
    alone: bool = True,
    repeat: bool = False,
    id: str | None = None,
    sources: Iterable[Source] = (),
) -> ClaimRequest:
    """A wish for work from queues by name, or from given sources."""
    wanted = tuple(Source(name, limit, attempts) for name in queues) + tuple(sources)
    return ClaimRequest(
        id or new_id(), wanted, limit, owner, node or store.node, duration_micros(lease), alone=alone, repeat=repeat
    )


def claim(store: QueueStore, *queues: str, **options: Any) -> Claimed:
    """Claim; see :func:`request` for the options."""
    return store.driver.claim(request(store, *queues, **options))


def take(store: QueueStore, *queues: str, **options: Any) -> list[Entry[Any]]:
    """The entries a claim gives."""
    return claim(store, *queues, **options).entries


def take_one(store: QueueStore, *queues: str, **options: Any) -> Entry[Any]:
    """The one entry a claim of one gives; fails if there is none."""
    found = take(store, *queues, **{"limit": 1, **options})
    assert len(found) == 1, f"expected one entry from {queues}, got {len(found)}; {store.counts()}"
    return found[0]


def lease_of(entry: Entry[Any]) -> Lease:
    """The lease of a claimed entry."""
    assert entry.lease is not None
    return entry.lease


def ending(entry: Entry[Any], outcome: Outcome = "done", **fields: Any) -> Ending:
    """An ending of a claimed entry."""
    return Ending(lease_of(entry), outcome, **fields)


def end(
    store: QueueStore, entry: Entry[Any], outcome: Outcome = "done", *, repeat: bool = False, **fields: Any
) -> StepDone:
    """End a claimed entry; raises what prevented it."""
    return store.driver.commit(Step((ending(entry, outcome, **fields),), repeat=repeat))


def values(entries: Iterable[Entry[Any]]) -> list[Any]:
    """The payloads as plain JSON."""
    return [msgspec.json.decode(entry.payload) for entry in entries]


def ids(entries: Iterable[Entry[Any]]) -> list[str]:
    """The ids."""
    return [entry.id for entry in entries]


def live(store: QueueStore, id_: str) -> Entry[Any] | None:
    """The live entry of this id, if it lives."""
    found = store.driver.find(Find(ids=(id_,)))
    return found[0] if found else None


def living(store: QueueStore, id_: str) -> Entry[Any]:
    """The live entry of this id, which has to be there."""
    found = live(store, id_)
    assert found is not None, f"{id_} does not live"
    return with_traceback(found)


def dead(store: QueueStore, id_: str) -> Entry[Any]:
    """The dead letter of this id, which has to be there."""
    [found] = store.driver.dead(Find(ids=(id_,)))
    return with_traceback(found)


def trail(store: QueueStore, id_: str) -> list[tuple[int, int, str]]:
    """What the history tells of an id: generation, attempt and state of each row, in order."""
    return [(row.generation, row.attempt, row.state) for row in store.driver.history(Find(ids=(id_,)))]


def tally(store: QueueStore, queue: str) -> tuple[int, int, int, int, int]:
    """Ready, delayed, retrying, leased and dead."""
    [found] = store.counts(queue=queue)
    return found.ready, found.delayed, found.retrying, found.leased, found.dead


def in_threads(number: int, work: Callable[[int], Any]) -> list[Any]:
    """Run ``work(0) ... work(number - 1)`` at once, starting together; their results, or the first error."""
    barrier = threading.Barrier(number)
    results: list[Any] = [None] * number
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            barrier.wait(PATIENCE)
            results[index] = work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread of the test hangs"
    if errors:
        raise errors[0]
    return results

"""What only the ZooKeeper store does: sessions and locks, sizes, the cap, and what it does when servers fail it."""

import contextlib
import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss
from tests.sessions import expire
from tests.stores.own_servers import Calling, persistently
from tests.stores.wire_proxy import Proxy
from tools.servers import Missing, Zookeeper, free_port

from penstock import QueueStore, Worker, open_queues
from penstock.errors import (
    BadInput,
    CannotOpen,
    Conflict,
    EntryNotFound,
    LeaseLost,
    OutcomeUnknown,
    PayloadTooLarge,
    SchemaMismatch,
    StoreFull,
    StoreUnavailable,
    UniqueHeld,
    UnitTooLarge,
    Unsupported,
)
from penstock.ids import new_id, new_nonce
from penstock.queue.drivers.zookeeper import changelog, driver
from penstock.queue.drivers.zookeeper.connection import Unanswered
from penstock.queue.protocol import ClaimRequest, DocumentWrite, Ending, Find, NewEntry, Source, Step
from penstock.testing import FakeClock

PATIENCE = 20.0


@pytest.fixture
def url(servers: Callable[[str], Any]) -> str:
    """A root of its own in the one server."""
    return f"{servers('zookeeper').url}/{new_nonce()}"


@pytest.fixture
def open_store(url: str) -> Iterator[Callable[..., QueueStore]]:
    opened: list[QueueStore] = []

    def open_another(address: str = url, **options: Any) -> Any:
        opened.append(open_queues(address, node="one", **options))
        return opened[-1]

    yield open_another
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Callable[..., QueueStore]) -> QueueStore:
    return open_store()


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    """Somebody who looks at the nodes."""
    other = KazooClient(hosts=url.removeprefix("zookeeper://").partition("/")[0])
    other.start()
    other.root = "/" + url.removeprefix("zookeeper://").partition("/")[2] + "/penstock"
    yield other
    other.stop()
    other.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Zookeeper]]:
    """Starts servers of a test's own."""
    running: list[Zookeeper] = []

    def start_one(**settings: Any) -> Zookeeper:
        try:
            running.append(Zookeeper(**settings))
        except Missing as missing:
            pytest.skip(f"zookeeper is not installed here: {missing}")
        running[-1].start()
        return running[-1]

    yield start_one
    for server in running:
        server.close()


@pytest.fixture
def proxy(servers: Callable[[str], Any]) -> Iterator[Proxy]:
    """A wire to the server that can be cut."""
    made = Proxy(servers("zookeeper").port)
    yield made
    made.close()


def eventually(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)


def claim(store: QueueStore, *queues: str, limit: int = 100, **fields: Any) -> list[Any]:
    sources = tuple(Source(name, limit, fields.pop("attempts", 5)) for name in queues)
    request = ClaimRequest(fields.pop("id", new_id()), sources, limit, "me", "one", 60_000_000, **fields)
    return store.driver.claim(request).entries


# --- sessions ------------------------------------------------------------------------------------------


def test_a_lost_session_voids_all_its_claims(
    store: QueueStore, open_store: Callable[..., QueueStore], client: Any
) -> None:
    other = open_store()
    store.queue("q").put_many(range(5))
    taken = claim(store, "q")
    assert len(client.get_children(f"{client.root}/queues/q/claims")) == 1
    assert len(client.get_children(f"{client.root}/handles")) == 2
    expire(store)
    assert len(client.get_children(f"{client.root}/handles")) == 1
    assert store.driver.extend([entry.lease for entry in taken[:2]], 60_000_000) == [None, None]
    with pytest.raises(LeaseLost):
        store.driver.commit(Step((Ending(taken[0].lease, "done"),)))
    other.driver.reap(node="two")
    assert other.counts("q")[0].ready == 5
    [suspect] = claim(other, "q")
    assert (suspect.attempt, suspect.lease.fence) == (2, 2)


def test_the_reaper_takes_back_what_a_closed_handle_held_without_waiting_for_the_lease(
    store: QueueStore, open_store: Callable[..., QueueStore]
) -> None:
    other = open_store()
    other.queue("q").put_many(range(3))
    assert len(claim(other, "q")) == 3
    other.close()
    assert len(store.driver.reap(node="one").reaped) == 3
    assert store.counts("q")[0].ready == 3


def test_a_claim_without_a_session_ends_a_poison_entry_like_a_lease_that_ran_out(
    store: QueueStore, open_store: Callable[..., QueueStore]
) -> None:
    id_ = store.queue("q").put("x").id
    other = open_store()
    claim(other, "q", attempts=1)
    other.close()
    assert store.driver.reap(node="one").dead == [(id_, "q")]
    assert store.driver.dead(Find())[0].error == "lease ran out"


def test_a_unit_dies_with_its_session(store: QueueStore) -> None:
    queue = store.queue("q", int)
    queue.put(1)
    with store.unit() as unit:
        assert len(unit.take(queue)) == 1
        unit.put(queue, 2)
        expire(store)
        with pytest.raises(LeaseLost):
            unit.commit()
    assert [entry.value for entry in queue.find()] == [1]


def test_other_handles_may_settle_a_claim(
    store: QueueStore, open_store: Callable[..., QueueStore], client: Any
) -> None:
    store.queue("q").put("x")
    [entry] = claim(store, "q")
    open_store().driver.commit(Step((Ending(entry.lease, "done"),)))
    assert client.get_children(f"{client.root}/queues/q/claims") == []
    with pytest.raises(LeaseLost):
        store.driver.commit(Step((Ending(entry.lease, "done"),)))


# --- sizes ---------------------------------------------------------------------------------------------


def test_sizes_are_checked_before_anything_is_sent(store: QueueStore) -> None:
    queue = store.queue("q", bytes)
    with pytest.raises(PayloadTooLarge):
        queue.put(b"x" * (store.driver.payload_limit + 1))
    for _ in range(4):
        queue.put(b"x" * store.driver.payload_limit)
    lost = store.driver.connection.lost
    with pytest.raises(UnitTooLarge):
        queue.put_many([b"x" * 200_000] * 5)
    with pytest.raises(UnitTooLarge):
        store.queue("r").put_many(["x"] * 9000)
    assert store.driver.connection.lost == lost
    assert store.counts("r")[0].live == 0
    assert len(queue.find()) == 4


@pytest.mark.parametrize("outcome", ["done", "dead", "retry"])
def test_large_entries_end_whatever_they_end_as(store: QueueStore, outcome: Any) -> None:
    queue = store.queue("q", bytes)
    for _ in range(6):
        queue.put(b"x" * 250_000)
    taken = claim(store, "q")
    assert len(taken) == 6
    results = store.driver.settle([Step((Ending(entry.lease, outcome),)) for entry in taken]).results
    assert all(not isinstance(one, Exception) for one in results), results
    if outcome == "dead":
        assert sum(len(entry.payload) for entry in queue.dead()) == 6 * 250_000


def test_one_too_large_step_is_no_other_ones_failure(store: QueueStore) -> None:
    def puts(number: int) -> Step:
        return Step(puts=tuple(NewEntry(new_id(), "q", b"x" * 200_000, "bytes", "bytes") for _ in range(number)))

    results = store.driver.settle([puts(2), puts(2), puts(3)]).results
    assert [type(one).__name__ for one in results] == ["StepDone", "StepDone", "StepDone"]
    store.driver.unit_bytes = 10**9
    [bad, good] = store.driver.settle([puts(6), puts(1)]).results
    assert isinstance(bad, UnitTooLarge)
    assert not isinstance(good, Exception)
    assert store.counts("q")[0].ready == 8


def test_a_large_claim_comes_in_parts(store: QueueStore) -> None:
    for _ in range(3):
        store.queue("q").put_many(range(1000))
    taken = claim(store, "q", limit=3000)
    assert 500 < len(taken) <= 3000
    assert len({entry.id for entry in taken}) == len(taken)


def test_the_largest_payload_can_be_asked_for(url: str, open_store: Callable[..., QueueStore]) -> None:
    store = open_store(f"{url}?payload_limit=524288")
    store.queue("q", bytes).put(b"x" * 524_288)
    [entry] = claim(store, "q")
    store.driver.commit(Step((Ending(entry.lease, "dead", error="e" * 1000),)))
    assert len(store.driver.dead(Find())[0].payload) == 524_288
    with pytest.raises(BadInput):
        open_store(f"{url}?payload_limit=524289")


# --- the cap and the buckets -----------------------------------------------------------------------------


def test_a_full_queue_refuses_whole_steps(store: QueueStore) -> None:
    queue = store.queue("q", int)
    store.driver.mirror.state.capacity = 5
    queue.put_many(range(4))
    with pytest.raises(StoreFull):
        queue.put_many(range(2))
    assert queue.counts().ready == 4
    queue.put(4)
    with pytest.raises(StoreFull):
        queue.put(5)
    store.queue("other").put(1)
    [taken] = claim(store, "q", limit=1)
    with pytest.raises(StoreFull):
        queue.put(5)
    store.driver.commit(Step((Ending(taken.lease, "done"),)))
    queue.put(5)


def test_the_cap_is_ten_thousand(store: QueueStore) -> None:
    assert store.driver.mirror.state.capacity == 10_000


def test_a_bucket_has_at_most_a_thousand_and_goes_when_it_is_empty(
    store: QueueStore, client: Any, open_store: Callable[..., QueueStore]
) -> None:
    queue = store.queue("q", int)
    for begin in range(0, 2500, 500):
        queue.put_many(range(begin, begin + 500))
    entries = f"{client.root}/queues/q/entries"
    buckets = client.get_children(entries)
    assert len(buckets) >= 3
    assert max(len(client.get_children(f"{entries}/{bucket}")) for bucket in buckets) <= 1000
    assert len(open_store().driver.find(Find(queue="q", limit=5000))) == 2500
    for _ in range(3):
        ids = [entry.id for entry in store.driver.find(Find(queue="q", limit=900))]
        store.driver.cancel(ids)
    for number in range(100):  # the bodies of the last hundred that ended stay for so long
        queue.put(number)
        [entry] = claim(store, "q")
        store.driver.commit(Step((Ending(entry.lease, "done"),)))
    store.driver.reap(node="one")
    assert len(client.get_children(entries)) == 1
    queue.put(1)
    assert queue.counts().ready == 1


# --- what is remembered -------------------------------------------------------------------------------------


def test_the_last_hundred_ends_of_a_queue_are_shown_and_ids_are_known_longer(
    open_store: Callable[..., QueueStore], client: Any
) -> None:
    clock = FakeClock()
    store = open_store(clock=clock)
    ids = [store.queue("q").put(number).id for number in range(130)]
    for entry in claim(store, "q", limit=130):
        store.driver.commit(Step((Ending(entry.lease, "done"),)))
    for handle in (store, open_store(clock=clock)):
        assert [row.id for row in handle.driver.history(Find())] == ids[30:]
        assert handle.driver.history(Find(limit=1))[0].payload == b"30"
        again = NewEntry(ids[0], "q", b"0", "json", "Any", repeat=True)
        assert handle.driver.put([again])[0].created
        assert handle.counts("q")[0].live == 0
    with pytest.raises(EntryNotFound):
        handle.driver.replay([ids[0]])
    assert store.driver.replay([ids[-1]]) == 1
    assert len(client.get_children(f"{client.root}/queues/q/history")) == 130
    clock.advance("16m")
    store.driver.reap(node="one")
    assert len(client.get_children(f"{client.root}/queues/q/history")) == 100


def test_what_it_declares_not_to_offer_it_refuses(store: QueueStore) -> None:
    with pytest.raises(Unsupported):
        store.queue("q").put("x", connection=object())


# --- the log ----------------------------------------------------------------------------------------------


def test_a_handle_that_fell_behind_the_log_loads_everything_anew(
    store: QueueStore, open_store: Callable[..., QueueStore], client: Any
) -> None:
    other = open_store()
    other.queue("r").put("kept")
    for number in range(400):
        store.queue("q").put(number)
    assert len(client.get_children(f"{client.root}/log")) < 400
    assert len(other.driver.find(Find(queue="q"))) == 400
    assert len(other.driver.find(Find(queue="r"))) == 1


def test_the_log_is_made_anew_before_its_numbers_run_out(
    store: QueueStore, open_store: Callable[..., QueueStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = open_store()
    other.queue("q").put(0)
    monkeypatch.setattr(changelog, "LAST_NUMBER", 20)
    for number in range(1, 60):
        (store if number % 2 else other).queue("q").put(number)
    assert [int(entry.payload) for entry in store.driver.find(Find())] == list(range(60))
    assert store.driver.optimistic.changelog.position < 30


def test_a_mirror_follows_everything_another_handle_does(open_store: Callable[..., QueueStore]) -> None:
    """Loaded from the nodes or followed through the log, the mirror is the same."""
    clock = FakeClock()
    store, other = open_store(clock=clock), open_store(clock=clock)
    queue = store.queue("q", int, rate="50/s")
    other.counts()
    ids = [queue.put(number, labels={"n": str(number)}, unique=f"u/{number}").id for number in range(12)]
    taken = claim(store, "q", limit=8)
    for entry, outcome in zip(taken, ("done", "dead", "retry", "snooze", "release"), strict=False):
        store.driver.commit(Step((Ending(entry.lease, outcome, delay_us=5, error="e"),)))
    store.driver.lock("q", "me", "why")
    store.driver.cancel([ids[-1]])
    clock.advance("2m")
    store.driver.reap(node="one")
    store.driver.replay([ids[1]])
    for handle in (other, open_store(clock=clock)):
        assert handle.driver.find(Find()) == store.driver.find(Find())
        assert handle.driver.dead(Find()) == store.driver.dead(Find())
        assert handle.driver.history(Find()) == store.driver.history(Find())
        assert handle.counts() == store.counts()
        assert handle.locks() == store.locks()


def forgotten(store: QueueStore) -> dict[str, Any]:
    """How those ended whose bodies are gone; a handle that loaded the space never saw these."""
    return {
        id_: (row.seq, row.state, row.live.body.payload) for id_, row in store.driver.mirror.state.forgotten.items()
    }


def test_handles_that_fight_for_the_same_queues_agree_in_the_end(open_store: Callable[..., QueueStore]) -> None:
    handles = [open_store() for _ in range(3)]
    errors: list[BaseException] = []

    def work(number: int) -> None:
        store, dice = handles[number], random.Random(number)
        try:
            for _ in range(60):
                queue = store.queue(dice.choice("ab"), int)
                queue.put(dice.randrange(100), unique=dice.choice([None, "u"]), priority=dice.randrange(3))
                entries = claim(store, "a", "b", limit=dice.randrange(1, 4))
                outcomes = ("done", "dead", "retry", "release")
                steps = [Step((Ending(entry.lease, dice.choice(outcomes)),)) for entry in entries]
                assert not [one for one in store.driver.settle(steps).results if isinstance(one, Exception)]
                store.driver.lock("a", f"h{number}")
                store.driver.unlock("a", f"h{number}")
                if dead := store.driver.dead(Find(limit=1)):
                    with contextlib.suppress(EntryNotFound, UniqueHeld):
                        store.driver.replay([dead[0].id])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE * 2)
    assert errors == []
    fresh = open_store()
    for handle in handles:
        assert handle.driver.find(Find()) == fresh.driver.find(Find())
        assert handle.driver.dead(Find()) == fresh.driver.dead(Find())
        assert handle.counts() == fresh.counts()
        for name in ("heads", "bodies", "ready_nodes", "claim_versions"):
            assert getattr(handle.driver.mirror, name) == getattr(fresh.driver.mirror, name), name
        for name in ("entries", "ready", "claims", "dead", "unique"):
            assert dict(getattr(handle.driver.mirror.state, name)) == dict(getattr(fresh.driver.mirror.state, name)), (
                name
            )
        assert forgotten(handle) == forgotten(fresh)
        # Rows of commits that crossed on their way may be numbered otherwise than they came.
        assert sorted(map(repr, handle.driver.history(Find()))) == sorted(map(repr, fresh.driver.history(Find())))


def test_what_a_large_holder_left_behind_is_taken_back_in_parts(
    store: QueueStore, open_store: Callable[..., QueueStore]
) -> None:
    other = open_store()
    for _ in range(2):
        other.queue("q").put_many(range(1000))
    held = sum(len(claim(other, "q", limit=500)) for _ in range(4))
    assert held == 2000
    other.close()
    assert len(store.driver.reap(node="one").reaped) == 2000
    assert store.counts("q")[0].ready == 2000


def test_a_claim_gets_past_thousands_of_expired_entries(open_store: Callable[..., QueueStore]) -> None:
    clock = FakeClock()
    store = open_store(clock=clock)
    for _ in range(3):
        store.queue("q").put_many(range(1000), expires="1m")
    store.queue("q").put("fresh", priority=-1)
    clock.advance("2m")
    assert [entry.payload for entry in claim(store, "q")] == [b'"fresh"']


# --- failing servers -------------------------------------------------------------------------------------


def test_a_server_that_is_not_there_cannot_be_opened() -> None:
    with pytest.raises(CannotOpen, match="running"):
        open_queues(f"zookeeper://127.0.0.1:{free_port()}/x?timeout=500ms")


def test_the_server_restarts_and_work_goes_on(start: Callable[..., Zookeeper]) -> None:
    server = start()
    with open_queues(f"{server.url}?session=20s", node="one") as store:
        queue = store.queue("q", int)
        queue.put_many(range(3))
        [held, *_] = claim(store, "q", limit=1)
        server.crash()
        store.driver.address.patience = 0.3
        with pytest.raises((StoreUnavailable, OutcomeUnknown)):  # the end of the connection may not be heard of yet
            queue.put(3)
        store.driver.address.patience = PATIENCE
        server.start()

        def answers() -> bool:
            # How soon a client finds its server again is a matter of its backoff and of the machine's load.
            try:
                store.driver.commit(Step((Ending(held.lease, "done"),), repeat=True))
            except (StoreUnavailable, OutcomeUnknown):
                return False
            return True

        eventually(answers)
        queue.put(4)
        assert [entry.value for entry in queue.find()] in ([1, 2, 4], [1, 2, 3, 4])


def test_a_server_that_accepts_and_stays_silent_does_not_cost_the_session(proxy: Proxy) -> None:
    """A server that is starting may take a connection and never answer it; the next attempt must come in time."""
    url = f"zookeeper://127.0.0.1:{proxy.port}/{new_id()}?session=9s&timeout=20s"
    with open_queues(url, node="one") as store:
        store.queue("q").put(1)
        [held] = claim(store, "q")
        proxy.mute = 1
        proxy.cut_all()
        eventually(lambda: proxy.mute == 0)
        store.driver.commit(Step((Ending(held.lease, "done"),), repeat=True))
        assert store.driver.connection.lost == 0


def test_a_reply_that_is_lost_for_too_long_leaves_the_outcome_open(
    open_store: Callable[..., QueueStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happened must not be called refused, also when nobody can find out any more that it did."""
    monkeypatch.setattr(changelog, "KEPT_RECORDS", 20)
    monkeypatch.setattr(changelog, "TRIM_EVERY", 4)
    store, other = open_store(), open_store()
    queue = store.queue("q", int)
    queue.put(1)
    [entry] = claim(store, "q")
    multi = store.driver.connection.multi

    def asleep(ops: Any) -> Any:
        monkeypatch.setattr(store.driver.connection, "multi", multi)
        assert isinstance(multi(ops), list)
        for number in range(100):
            other.queue("elsewhere", int).put(number)
        return Unanswered("slept")

    monkeypatch.setattr(store.driver.connection, "multi", asleep)
    assert entry.lease is not None
    with pytest.raises(OutcomeUnknown, match="a reply was lost"):
        store.driver.commit(Step((Ending(entry.lease, "done"),), (store.queue("out", int).new(2),)))
    assert [entry.queue for entry in other.driver.find(Find()) if entry.queue != "elsewhere"] == ["out"]


def break_thread(store: QueueStore) -> None:
    """The next reply seems to belong to another request: kazoo's thread dies of that."""
    connection = store.driver.connection.client._connection
    read = connection._read_response

    def read_wrongly(header: Any, buffer: Any, offset: Any) -> Any:
        connection._read_response = read
        return read(header._replace(xid=header.xid + 1), buffer, offset)

    connection._read_response = read_wrongly


@pytest.mark.parametrize("call", ["put", "find", "settle", "beat"])
def test_a_new_client_takes_the_place_of_one_whose_thread_died(
    open_store: Callable[..., QueueStore], call: str
) -> None:
    store = open_store()
    queue = store.queue("q", int)
    queue.put_many([1, 2])
    [entry] = claim(store, "q", limit=1)
    before = store.driver.connection.client
    calls: dict[str, Callable[[], Any]] = {
        "put": lambda: queue.put(3, id="third"),
        "find": queue.find,
        "settle": lambda: store.driver.commit(Step((Ending(entry.lease, "done"),), repeat=True)),
        "beat": lambda: store.driver.beat("here"),
    }
    break_thread(store)
    persistently(calls[call])
    persistently(store.driver.nodes)
    assert store.driver.connection.client is not before
    if call != "settle":
        store.driver.commit(Step((Ending(entry.lease, "done"),)))
    assert [row.state for row in store.driver.history(Find())] == ["done"], "the session and its leases were taken over"
    assert len(queue.find()) == (2 if call == "put" else 1)
    seen = store.driver.bell()
    queue.put(9)
    assert store.driver.wait(seen, PATIENCE)


def test_nobody_waits_for_what_a_dead_client_was_asked(open_store: Callable[..., QueueStore]) -> None:
    """The reply to a request that the dead thread had sent never comes: a new client is asked instead."""
    store = open_store()
    store.driver.address.patience = 10 * PATIENCE  # nobody may have to wait that long
    queue = store.queue("q", int)
    queue.put_many(range(20))
    break_thread(store)
    calls = [Calling(queue.find), Calling(lambda: queue.put(21, id="mine")), Calling(lambda: store.locks("q"))]
    for call in calls:
        with contextlib.suppress(StoreUnavailable, OutcomeUnknown):
            call.wait(PATIENCE)
    assert persistently(lambda: queue.put(21, id="mine")).created
    assert len(queue.find()) == 21


def test_a_thread_that_died_while_nobody_called(open_store: Callable[..., QueueStore]) -> None:
    store = open_store()
    client = store.driver.connection.client
    break_thread(store)
    with contextlib.suppress(ConnectionLoss, RuntimeError):
        client.get("/")
    eventually(lambda: not store.driver.connection.connected)
    assert store.queue("q", int).put(1).created


def test_a_put_whose_reply_is_lost_happens_once(
    proxy: Proxy, servers: Callable[[str], Any], open_store: Callable[..., QueueStore]
) -> None:
    path = f"/{new_nonce()}"
    store = open_store(f"zookeeper://127.0.0.1:{proxy.port}{path}")
    other = open_store(f"zookeeper://127.0.0.1:{servers('zookeeper').port}{path}")
    queue = store.queue("q", int)
    queue.put(0)
    for number in range(1, 12):
        multi, cut = store.driver.connection.multi, ("cut_replies", "cut_requests")[number % 2]

        def cut_the_next(ops: Any, multi: Any = multi, cut: str = cut) -> Any:
            store.driver.connection.multi = multi  # type: ignore[method-assign]
            setattr(proxy, cut, 1)
            return multi(ops)

        store.driver.connection.multi = cut_the_next  # type: ignore[method-assign]
        queue.put(number)
    assert [int(entry.payload) for entry in other.driver.find(Find())] == list(range(12))


def test_a_flapping_connection_loses_and_doubles_nothing(
    proxy: Proxy, servers: Callable[[str], Any], open_store: Callable[..., QueueStore]
) -> None:
    path = f"/{new_nonce()}"
    store = open_store(f"zookeeper://127.0.0.1:{proxy.port}{path}")
    other = open_store(f"zookeeper://127.0.0.1:{servers('zookeeper').port}{path}")
    queue = store.queue("q", int)
    seen: list[int] = []
    queue.add_handler(seen.append, concurrency=2)
    worker = Worker(store)
    worker.start()
    for number in range(60):
        other.queue("q", int).put(number)
        if number % 15 == 7:
            proxy.cut_all()
    eventually(lambda: other.counts("q")[0].live == 0)
    worker.stop()
    assert set(seen) == set(range(60))
    assert len(other.driver.history(Find(states=("done",)))) == 60


def test_nodes_can_be_closed_to_strangers(
    servers: Callable[[str], Any], url: str, open_store: Callable[..., QueueStore], client: Any
) -> None:
    from kazoo.exceptions import NoAuthError

    mine = url.replace("zookeeper://", "zookeeper://ann:secret@")
    store = open_store(mine)
    store.queue("q").put("x")
    assert "secret" not in store.name
    for path in ("queues", "queues/q", "queues/q/entries", "log"):
        with pytest.raises(NoAuthError):
            client.get(f"{client.root}/{path}")
    with pytest.raises(CannotOpen, match="user"):
        open_store(url.replace("zookeeper://", "zookeeper://bob:secret@"))
    assert len(open_store(mine).driver.find(Find())) == 1


def test_a_space_of_an_earlier_layout_is_refused(
    store: QueueStore, open_store: Callable[..., QueueStore], client: Any
) -> None:
    client.set(f"{client.root}/schema", b"2")
    with pytest.raises(SchemaMismatch, match="schema version 2"):
        open_store()


def test_doctor_looks_at_version_session_room_and_access(store: QueueStore) -> None:
    store.queue("q").put("x")
    told = {finding.what: finding for finding in store.check()}
    assert told["server"].level == "good"
    assert "10s" in told["session"].detail
    assert "1 of 10,000" in told["room"].detail
    assert told["access"].level == "warning"
    assert told["durability"].level == "unknown"


def test_time_is_the_servers(store: QueueStore) -> None:
    assert abs(store.now() - store.clock.micros()) < 1_000_000
    store.driver.connection._offset += 3_600_000_000  # this host's clock went wrong by an hour
    store.queue("q").put("x")
    assert abs(store.now() - store.clock.micros()) < 1_000_000


# --- processes -------------------------------------------------------------------------------------------


def _share(url: str, results: Any) -> None:
    with open_queues(url) as store:
        seen: list[int] = []
        store.queue("q", int).add_handler(seen.append, concurrency=4)
        worker = Worker(store)
        worker.start()
        eventually(lambda: store.counts("q")[0].live == 0)
        worker.stop()
        results.put(seen)


def test_two_processes_share_the_work(store: QueueStore, url: str) -> None:
    store.queue("q", int).put_many(range(300))
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_share, args=(url, results)) for _ in range(2)]
    for process in processes:
        process.start()
    seen = [results.get(timeout=PATIENCE * 2) for _ in processes]
    for process in processes:
        process.join(PATIENCE)
    assert sorted(seen[0] + seen[1]) == list(range(300))


# --- what a call costs -----------------------------------------------------------------------------------


class Wire:
    """What a handle sends: its multis, and how often it reads the log."""

    def __init__(self, store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.multis: list[list[str]] = []  # verb and last folder of each operation
        self.reads = 0
        multi, read_many = store.driver.connection.multi, store.driver.connection.read_many

        def send(ops: Any) -> Any:
            self.multis.append([f"{op.verb} {_folder(op.path)}" for op in ops])
            return multi(ops)

        def read(paths: Any) -> Any:
            self.reads += bool(paths)
            return read_many(paths)

        monkeypatch.setattr(store.driver.connection, "multi", send)
        monkeypatch.setattr(store.driver.connection, "read_many", read)

    def clear(self) -> None:
        self.multis.clear()
        self.reads = 0


def _folder(path: str) -> str:
    parts = [part for part in path.split("/") if not part.isdecimal()]
    below = parts[parts.index("penstock") + 1 :]
    return below[2] if below[0] == "queues" and len(below) > 2 else below[0]


def test_a_put_is_one_multi_and_reads_nothing(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = store.queue("q", int)
    queue.put(0)
    wire = Wire(store, monkeypatch)
    queue.put(1)
    assert wire.multis == [["set queues", "create entries", "set bell", "append log"]]
    assert wire.reads == 0


def test_a_round_trip_is_one_multi_whose_size_does_not_depend_on_the_number_of_entries(
    store: QueueStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node per claim and one page for what ended; bodies are neither written nor moved."""
    monkeypatch.setattr(driver, "FRESH_SECONDS", 60.0)
    store.queue("q", int).put_many(range(90))
    taken = claim(store, "q", limit=40)
    wire = Wire(store, monkeypatch)
    steps = [Step((Ending(entry.lease, "done"),)) for entry in taken]
    request = ClaimRequest(new_id(), (Source("q", 40),), 40, "me", "one", 60_000_000)
    assert len(store.driver.settle(steps, request).claimed.entries) == 40
    assert [sorted(ops) for ops in wire.multis] == [
        sorted(["check handles", "set queues", "delete claims", "create claims", "create history", "append log"])
    ]
    assert wire.reads == 0


def test_a_heartbeat_is_one_operation_for_each_claim(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.queue("q", int).put_many(range(60))
    leases = [entry.lease for _ in range(2) for entry in claim(store, "q", limit=30)]
    wire = Wire(store, monkeypatch)
    assert None not in store.driver.extend(leases, 90_000_000)
    assert wire.multis == [["check handles", "set claims", "set claims", "append log"]]


def test_what_leaves_the_history_takes_its_bodies_along(store: QueueStore, client: Any) -> None:
    """So an entry costs two operations of its own in its life: its body is written, and removed."""
    for _ in range(3):
        store.queue("q", int).put_many(range(100))
        entries = claim(store, "q")
        store.driver.settle([Step((Ending(entry.lease, "done"),)) for entry in entries])
    [bucket, *others] = client.get_children(f"{client.root}/queues/q/entries")
    buckets = [f"{client.root}/queues/q/entries/{name}" for name in (bucket, *others)]
    assert sum(len(client.get_children(path)) for path in buckets) == len(store.driver.history(Find())) == 100


def test_a_draft_on_an_old_mirror_is_refused_and_made_again(open_store: Callable[..., QueueStore]) -> None:
    store, other = open_store(), open_store()
    queue = store.queue("q", int)
    queue.put(0)
    other.queue("q", int).put(1)
    queue.put(2)  # the handle has not heard of the one before
    assert [entry.value for entry in queue.find()] == [0, 1, 2]


@pytest.mark.parametrize("answer", ["id taken", "unique held", "not there", "lease lost", "document changed"])
def test_what_an_old_mirror_says_no_to_is_looked_up(open_store: Callable[..., QueueStore], answer: str) -> None:
    """The multi checks only what it changes; a no changes nothing, so the log has to be read."""
    store, other = open_store(), open_store()
    store.queue("q", int).put(0)
    if answer == "id taken":
        other.queue("elsewhere", int).put(1, id="mine")
        with pytest.raises(Conflict):
            store.queue("q", int).put(1, id="mine")
    elif answer == "unique held":
        held = other.queue("q", int).put(1, unique="u")
        assert store.queue("q", int).put(2, unique="u").id == held.id
        other.driver.cancel([held.id])
        assert store.queue("q", int).put(3, unique="u").created
    elif answer == "not there":
        put = other.queue("fresh", int).put(1)
        assert [entry.id for entry in claim(store, "fresh")] == [put.id]
    elif answer == "lease lost":
        [entry] = claim(store, "q")
        other.driver.cancel([entry.id], force=True)
        assert store.driver.extend([entry.lease], 60_000_000) == [None]
        with pytest.raises(LeaseLost):
            store.driver.commit(Step((Ending(entry.lease, "done"),)))
    else:
        assert store.driver.write([DocumentWrite("d", b"1", 0)]) == [True]
        assert other.driver.write([DocumentWrite("d", b"2", 1)]) == [True]
        assert store.driver.write([DocumentWrite("d", b"3", 2), DocumentWrite("e", b"1", 0)]) == [True, True]


def test_a_claim_that_is_drafted_twice_takes_from_the_same_queues(
    open_store: Callable[..., QueueStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It got less than it asked for, so the log was read and it was drafted again; who is next is the same."""
    monkeypatch.setattr(driver, "FRESH_SECONDS", 60.0)
    store = open_store(clock=FakeClock())
    for number in range(6):
        store.queue(f"f.{number}", int, fifo=True).put(number)
    store.counts()
    drafts = []
    begin = store.driver.mirror.begin

    def count() -> None:
        drafts.append("draft")
        begin()

    store.driver.mirror.begin = count  # type: ignore[method-assign]
    request = ClaimRequest(new_id(), (Source("f.", 10, family=True),), 10, "me", "one", 60_000_000)
    assert [entry.queue for entry in store.driver.claim(request).entries] == [f"f.{number}" for number in range(6)]
    assert len(drafts) == 2


def test_a_claim_sees_other_queues_although_its_own_are_full(
    open_store: Callable[..., QueueStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims that get all they ask for read nothing, but not for long."""
    store, other = open_store(), open_store()
    store.queue("f.1", int).put_many(range(500))
    put = other.queue("f.2", int).put(1, priority=1)
    monkeypatch.setattr(driver, "FRESH_SECONDS", 0.0)
    request = ClaimRequest(new_id(), (Source("f.", 10, family=True),), 10, "me", "one", 60_000_000)
    assert put.id in [entry.id for entry in store.driver.claim(request).entries]


def test_every_outcome_is_known_for_a_quarter_of_an_hour_although_the_history_shows_a_hundred(
    open_store: Callable[..., QueueStore],
) -> None:
    clock = FakeClock()
    store = open_store(clock=clock)
    outcomes: tuple[Any, ...] = ("done", "dead", "retry", "snooze", "release")
    steps = []
    for outcome in outcomes:
        store.queue(outcome, int).put(1)
        [entry] = claim(store, outcome)
        steps.append(Step((Ending(entry.lease, outcome, delay_us=10**12),), repeat=True))
        store.driver.commit(steps[-1])
        for _ in range(2):  # pages of others push it out of what is shown
            store.queue(outcome, int).put_many(range(100), priority=1)
            ended = claim(store, outcome)
            store.driver.settle([Step((Ending(other.lease, "done"),)) for other in ended])
    clock.advance("14m")
    store.driver.reap(node="one")
    for handle in (store, open_store(clock=clock)):
        assert [type(result).__name__ for result in handle.driver.settle(steps).results] == ["StepDone"] * 5
    clock.advance("2m")
    for _ in range(3):
        store.driver.reap(node="one")
    assert [type(result).__name__ for result in store.driver.settle(steps).results] == ["LeaseLost"] * 5


def test_attempts_show_the_body_they_saw_on_every_handle(open_store: Callable[..., QueueStore]) -> None:
    store, other = open_store(), open_store()
    queue = store.queue("q", str)
    id_ = queue.put("first", labels={"stage": "one"}).id
    other.counts()
    [entry] = claim(store, "q")
    store.driver.commit(Step((Ending(entry.lease, "retry"),)))
    queue.update(id_, labels={"stage": "two"})
    [entry] = claim(store, "q")
    store.driver.commit(Step((Ending(entry.lease, "done"),)))
    for handle in (store, other, open_store()):
        rows = handle.driver.history(Find())
        assert [(row.labels["stage"], row.payload) for row in rows] == [("one", b'"first"'), ("two", b'"first"')]


def test_limits_per_label_hold_for_all_handles(open_store: Callable[..., QueueStore]) -> None:
    store, other = open_store(), open_store()
    store.queue("q", int, in_flight={"customer": 2})
    store.queue("q", int).put_many(range(5), labels={"customer": "ann"})
    first, second = claim(store, "q", limit=1), claim(other, "q", limit=5)
    assert (len(first), len(second)) == (1, 1)
    store.driver.commit(Step((Ending(first[0].lease, "done"),)))
    assert len(claim(other, "q", limit=5)) == 1

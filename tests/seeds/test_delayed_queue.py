"""delayedQueue's promises in our words: delayed events on Redis, and on every other store besides.

An event type is a queue, its id a unique id, its context map headers. Where the seed breaks its own promise (it counts
dispatches as attempts, delivers twice what is slow, loses the last attempt), the tests at the end hold ours.
"""

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from redis import Redis as Client
from tests.seeds.watching import Runs, at_once, claim, eventually, states, working
from tests.stores.wire_proxy import Proxy
from tools.servers import free_port

from penstock import QueueStore, Retry, Worker, open_queues
from penstock.clock import SystemClock
from penstock.errors import BadInput, CannotOpen, StoreUnavailable
from penstock.queue.entry import Unique
from penstock.queue.handling.context import Context
from penstock.testing import FakeClock

Open = Callable[..., QueueStore]


class Paid(msgspec.Struct):
    number: int


@pytest.fixture
def live(open_store: Open) -> QueueStore:
    """The store under the real clock."""
    return open_store(clock=SystemClock())


# --- handling ----------------------------------------------------------------------------------------


@pytest.mark.seed("B3.1")
def test_three_types_with_three_handlers_are_all_handled(live: QueueStore) -> None:
    runs = {name: Runs() for name in ("paid", "shipped", "returned")}
    for name, handler in runs.items():
        live.queue(name).add_handler(handler, concurrency=3)
        for number in range(10):
            live.queue(name).put(number, delay="10ms")
    with working(live):
        eventually(lambda: all(len(one.values) == 10 for one in runs.values()), "thirty events handled")
        eventually(lambda: sum(one.live for one in live.counts()) == 0, "thirty events removed")
    assert all(sorted(one.values) == list(range(10)) for one in runs.values())


@pytest.mark.seed("B3.2")
def test_a_blocked_handler_holds_back_the_prefetch(live: QueueStore) -> None:
    queue, gate, begun = live.queue("paid"), threading.Event(), []
    queue.put_many(range(10))

    @queue.handler(concurrency=1, prefetch=0)
    def handle(number: int) -> None:
        begun.append(number)
        if len(begun) == 2:
            gate.wait(30)

    with working(live):
        eventually(lambda: len(begun) == 2, "the second one started")
        assert len(queue.history()) <= 1
        assert (queue.counts().leased, queue.counts().ready) == (1, 8) or queue.counts().leased <= 2
        gate.set()
        eventually(lambda: queue.counts().live == 0, "the rest was handled")


@pytest.mark.seed("B3.3")
def test_ten_slow_asynchronous_handlers_at_once(live: QueueStore) -> None:
    queue, most, now = live.queue("paid"), [0], [0]
    queue.put_many(range(20))

    @queue.handler(concurrency=10)
    async def handle(_: int) -> None:
        now[0] += 1
        most[0] = max(most[0], now[0])
        await asyncio.sleep(0.3)
        now[0] -= 1

    begin = time.monotonic()
    with working(live):
        eventually(lambda: queue.counts().live == 0, "twenty events handled")
    assert most[0] == 10
    assert time.monotonic() - begin < 20 * 0.3 / 2


@pytest.mark.seed("B3.4")
def test_fifty_concurrent_puts_are_fifty_entries(store: QueueStore) -> None:
    queue = store.queue("paid")
    at_once(*[lambda number=number: queue.put(number, delay="1h") for number in range(50)])
    assert queue.counts().delayed == 50


@pytest.mark.seed("B3.5")
def test_a_malformed_entry_does_not_stop_the_others(store: QueueStore) -> None:
    raw, queue, runs = store.queue("paid"), store.queue("paid", Paid), Runs()
    for number in range(20):
        queue.put(Paid(number))
        if number == 7:
            raw.put("not a payment")
    queue.add_handler(runs)
    Worker(store).drain()
    assert [one.number for one in runs.values] == list(range(20))
    [letter] = store.queue("paid").dead()
    assert "Undecodable" in (letter.error or "")


@pytest.mark.seed("B3.7")
def test_an_event_after_an_idle_poll_is_handled(live: QueueStore) -> None:
    queue, runs = live.queue("paid"), Runs()
    queue.add_handler(runs)
    with working(live, poll="50ms"):
        time.sleep(0.2)
        queue.put("late")
        eventually(lambda: runs.values == ["late"], "the late event handled")


# --- outcomes ----------------------------------------------------------------------------------------

OUTCOMES = ("true", "false", "error", "base error", "reject later")


def outcome(name: str) -> Any:
    if name == "error":
        raise RuntimeError(name)
    if name == "base error":
        raise BaseException(name)
    if name == "reject later":
        raise ValueError(name)
    return name == "true"


@pytest.mark.seed("B3.9", "B3.21")
@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_only_success_removes_the_entry(store: QueueStore, clock: FakeClock, kind: str) -> None:
    queue, called = store.queue("paid"), []
    for name in OUTCOMES:
        queue.put(name)

    def handle(name: str) -> Any:
        called.append(name)
        return outcome(name)

    async def handle_later(name: str) -> Any:
        return handle(name)

    queue.add_handler(handle if kind == "blocking" else handle_later, retry=Retry(attempts=5, delays=["10s"]))
    Worker(store).drain()
    assert sorted(called) == sorted(OUTCOMES)
    left = queue.find()
    assert sorted(store.queue("paid").codec.decode(one.payload) for one in left) == sorted(set(OUTCOMES) - {"true"})
    assert {(one.state, one.due_us) for one in left} == {("waiting", clock.micros() + 10_000_000)}


@pytest.mark.seed("B3.10")
def test_a_claimed_entry_is_not_due_again_soon(store: QueueStore, clock: FakeClock) -> None:
    queue = store.queue("paid")
    queue.put("x")
    [entry] = claim(queue)
    assert entry.lease is not None
    assert entry.lease.until_us - clock.micros() > 10_000_000
    clock.advance("11s")
    store.driver.reap(node=store.node)
    assert claim(queue, 9) == []


@pytest.mark.seed("B3.11")
def test_one_claim_takes_at_most_its_limit(store: QueueStore) -> None:
    queue = store.queue("paid")
    queue.put_many(range(70))
    assert len(claim(queue, 50)) == 50
    assert queue.counts().ready == 20


@pytest.mark.seed("B3.12")
def test_the_same_event_twice_is_one_entry(store: QueueStore) -> None:
    queue = store.queue("paid")
    first = queue.put("x", unique="event-1", delay="1m")
    again = queue.put("y", unique="event-1", delay="1h")
    assert (again.id, again.created, again.due_us) == (first.id, False, first.due_us)
    assert queue.counts().delayed == 1
    moved = queue.put("z", unique=Unique("event-1", on_conflict="replace"), delay="2h")
    assert (moved.id, queue.counts().delayed) == (first.id, 1)
    assert queue.find()[0].due_us == moved.due_us > first.due_us


# --- handlers and arguments ----------------------------------------------------------------------------


@pytest.mark.seed("B3.13")
def test_a_handler_is_removed_once_and_later_events_wait(store: QueueStore) -> None:
    queue, runs = store.queue("paid"), Runs()
    queue.add_handler(runs)
    assert queue.remove_handler() is True
    assert queue.remove_handler() is False
    queue.put("x")
    assert Worker(store).drain() == 0
    assert (runs.values, queue.counts().ready) == ([], 1)


@pytest.mark.seed("B3.15")
def test_missing_event_delay_or_id_raises(store: QueueStore) -> None:
    queue = store.queue("paid", Paid)
    for bad in (
        lambda: queue.put(None),  # type: ignore[arg-type]
        lambda: queue.put(Paid(1), delay=5),  # type: ignore[arg-type]
        lambda: queue.put(Paid(1), delay=""),
        lambda: queue.put(Paid(1), id=""),
        lambda: queue.put(Paid(1), unique=""),
    ):
        with pytest.raises(BadInput):
            bad()
    with pytest.raises(TypeError):
        queue.put()  # type: ignore[call-arg]
    assert queue.counts().live == 0


@pytest.mark.seed("B3.16")
def test_a_bad_handler_or_concurrency_is_refused(store: QueueStore) -> None:
    queue = store.queue("paid")
    for concurrency in (0, -1):
        with pytest.raises(BadInput):
            queue.add_handler(Runs(), concurrency=concurrency)
    with pytest.raises((BadInput, TypeError)):
        queue.add_handler(None)  # type: ignore[arg-type]
    assert queue.remove_handler() is False


# --- context -----------------------------------------------------------------------------------------


@pytest.mark.seed("B3.17")
def test_headers_given_at_the_put_reach_the_handler(store: QueueStore) -> None:
    queue, seen = store.queue("paid"), []

    @queue.handler
    def handle(value: str, ctx: Context) -> None:
        seen.append((value, ctx.entry.headers))

    queue.put("a", headers={"trace": "1", "tenant": "ä"})
    queue.put("b")
    Worker(store).drain()
    assert seen == [("a", {"trace": "1", "tenant": "ä"}), ("b", {})]


@pytest.mark.seed("B3.18")
@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_a_logging_context_reaches_both_kinds_of_handler(live: QueueStore, kind: str) -> None:
    """Carried as a header, set for the run of each event, and seen by what is logged there."""
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="none")
    logged: list[tuple[str, str]] = []
    logger = logging.getLogger("test.delayed")
    logger.setLevel(logging.INFO)

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append((record.getMessage(), request.get()))

    keeper = Keep()
    logger.addHandler(keeper)
    queue = live.queue("paid")

    def handle(value: str, ctx: Context) -> None:
        request.set(ctx.entry.headers["request"])
        logger.info(value)

    async def handle_later(value: str, ctx: Context) -> None:
        request.set(ctx.entry.headers["request"])
        await asyncio.sleep(0.001)
        logger.info(value)

    queue.add_handler(handle if kind == "blocking" else handle_later, concurrency=4)
    for number in range(10):
        queue.put(str(number), headers={"request": f"r{number}"})
    try:
        with working(live):
            eventually(lambda: len(logged) == 10, "ten lines logged")
    finally:
        logger.removeHandler(keeper)
    assert sorted(logged) == [(str(number), f"r{number}") for number in range(10)]


# --- connections (Redis) -------------------------------------------------------------------------------


@pytest.fixture
def server(servers: Callable[[str], Any]) -> Any:
    shared = servers("redis")
    with Client(port=shared.port) as client:
        client.flushall()
    return shared


@pytest.fixture
def proxy(server: Any) -> Iterator[Proxy]:
    made = Proxy(server.port)
    yield made
    made.close()


@pytest.fixture
def far(proxy: Proxy) -> Iterator[QueueStore]:
    """A store on Redis whose wire can be cut."""
    with open_queues(f"redis://127.0.0.1:{proxy.port}/0?durability=fast&timeout=1") as store:
        yield store


@pytest.mark.seed("B3.6")
def test_it_works_on_after_a_long_cut(far: QueueStore, proxy: Proxy) -> None:
    queue, runs = far.queue("paid"), Runs()
    queue.add_handler(runs)
    with working(far, poll="100ms"):
        queue.put("before")
        eventually(lambda: runs.values == ["before"], "the first event handled")
        proxy.down = True
        proxy.cut_all()
        time.sleep(0.5)  # several polls
        proxy.down = False
        queue.put("after")
        eventually(lambda: runs.values == ["before", "after"], "the event after the cut handled")


@pytest.mark.seed("B3.8")
def test_a_store_that_is_down_raises(far: QueueStore, proxy: Proxy) -> None:
    queue = far.queue("paid")
    proxy.down = True
    proxy.cut_all()
    for call in (lambda: claim(queue), lambda: queue.put("x"), queue.counts):
        with pytest.raises(StoreUnavailable, match="does not answer"):
            call()


@pytest.mark.seed("B3.14")
def test_handlers_need_no_connections_of_their_own(server: Any) -> None:
    with Client(port=server.port) as client, open_queues(server.url) as store:

        def connections() -> int:
            return sum(one["id"] != str(client.client_id()) for one in client.client_list())

        store.queue("first").add_handler(Runs())
        with working(store):
            eventually(lambda: "ssubscribe" in {one["cmd"] for one in client.client_list()}, "the worker listens")
            before = connections()
            for number in range(5):
                store.queue(f"more-{number}").add_handler(Runs())
                store.queue(f"more-{number}").put("x")
            eventually(lambda: sum(one.live for one in store.counts()) == 0, "all handled")
            assert connections() <= before + 1
            client.client_kill_filter(_type="pubsub")
            client.client_kill_filter(_type="normal", skipme=True)
            store.queue("first").put("x")
            eventually(lambda: sum(one.live for one in store.counts()) == 0, "handled after the reconnect")
            assert connections() <= before + 1


@pytest.mark.seed("B3.19")
def test_starting_with_the_store_down_raises() -> None:
    with pytest.raises(CannotOpen, match="does not answer"):
        open_queues(f"redis://127.0.0.1:{free_port()}/0")


@pytest.mark.seed("B3.20")
def test_a_reconnect_keeps_what_was_not_handled(far: QueueStore, proxy: Proxy) -> None:
    queue, gate, handled = far.queue("paid"), threading.Event(), []
    queue.put_many(range(10))

    @queue.handler(concurrency=2, prefetch=0)
    def handle(number: int) -> None:
        if len(handled) >= 4:
            gate.wait(30)
        handled.append(number)

    with working(far) as [worker]:
        eventually(lambda: len(handled) == 4, "four events handled")
        proxy.cut_all()
        eventually(lambda: len(queue.history()) == 4, "four outcomes kept")
        worker.stop(grace="0s")
        assert queue.counts().live == 6
        gate.set()
    assert sorted(states(queue)) == ["done"] * 4


# --- where the seed breaks its promises ------------------------------------------------------------------


def test_attempts_are_handler_runs_and_the_last_leaves_a_dead_letter(store: QueueStore, clock: FakeClock) -> None:
    """The seed counts dispatches, delivers one time less than configured, and forgets what ran out."""
    queue, runs = store.queue("paid"), Runs(failures=99)
    id_ = queue.put("x").id
    for _ in range(9):
        assert Worker(store).drain() == 0, "waiting without a handler spends nothing"
        clock.advance("1h")
    queue.add_handler(runs, retry=Retry(attempts=3, delays=["10s"]))
    for _ in range(9):
        Worker(store).drain()
        clock.advance("10s")
    assert runs.tries == 3
    assert [one.id for one in queue.dead()] == [id_]
    assert states(queue, id_) == ["retried", "retried", "dead"]


def test_a_slow_handler_runs_once(live: QueueStore) -> None:
    """The seed delivers again what takes longer than its retry delay; here the lease is kept alive."""
    queue, runs = live.queue("paid"), []

    @queue.handler
    def handle(value: str) -> None:
        runs.append(value)
        time.sleep(1.0)

    queue.put("slow")
    with working(live, lease="300ms"):
        eventually(lambda: queue.counts().live == 0, "the slow event handled")
    assert runs == ["slow"]
    assert states(queue) == ["done"]


def test_two_nodes_share_the_events(open_store: Open) -> None:
    """The seed's lock is void: two nodes dispatch the same event."""
    stores = [open_store(clock=SystemClock(), node=node) for node in ("one", "two")]
    runs = Runs()
    for store in stores:
        store.queue("paid").add_handler(runs, concurrency=4)
    stores[0].queue("paid").put_many(range(300))
    with working(*stores):
        eventually(lambda: stores[0].queue("paid").counts().live == 0, "all handled")
    assert sorted(runs.values) == list(range(300))


def test_an_event_put_again_while_the_old_one_runs_is_not_lost(store: QueueStore) -> None:
    """The seed's success deletes by id whatever is stored by then."""
    queue, made = store.queue("paid"), []

    @queue.handler
    def handle(value: str) -> None:
        if value == "old":
            made.append(queue.put("new", unique=Unique("event-1", until="started")))

    queue.put("old", unique=Unique("event-1", until="started"))
    assert Worker(store).drain(limit=1) == 1
    assert made[0].created
    assert [one.id for one in queue.find()] == [made[0].id]


def test_types_of_the_same_name_in_other_case_stay_apart(store: QueueStore) -> None:
    """The seed names its lists by the lower-cased class name; `events` collides with its own hash."""
    for name in ("Events", "events", "live", "queues", "counters", "leases"):
        store.queue(name).put(name)
    for name in ("Events", "events", "live", "queues", "counters", "leases"):
        assert [one.payload for one in claim(store.queue(name), 9)] == [f'"{name}"'.encode()]


def test_a_worker_outlives_errors_of_its_store(live: QueueStore) -> None:
    """The seed's dispatcher is cancelled by the first error."""
    queue, runs, real, left = live.queue("paid"), Runs(), live.driver._settle, [1]

    def failing(*arguments: Any) -> Any:
        if left[0] > 0:
            left[0] -= 1
            raise StoreUnavailable("away")
        return real(*arguments)

    queue.add_handler(runs)
    queue.put("x")
    live.driver._settle = failing  # type: ignore[method-assign]
    with working(live):
        eventually(lambda: runs.values == ["x"], "handled after the error")

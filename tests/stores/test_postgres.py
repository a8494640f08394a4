"""What only the PostgreSQL store does: LISTEN/NOTIFY, COPY, and claims that stay quick without vacuum."""

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.places import STORES
from tests.stores.servers_of_ones_own import Calling, claim, eventually, new, starting, with_options, working

from penstock import QueueStore, open_queues
from penstock.errors import CannotOpen, Conflict
from penstock.queue.store import Ending, Find, Step
from penstock.queue.stores.sql import postgres
from penstock.queue.stores.sql.postgres import COPY_FROM


@pytest.fixture
def url(tmp_path: Any, servers: Callable[[str], Any]) -> str:
    return STORES["postgres"](tmp_path, servers).url


@pytest.fixture
def opened() -> Iterator[Callable[..., Any]]:
    made: list[QueueStore] = []

    def open_one(address: str, **options: Any) -> QueueStore:
        made.append(open_queues(address, **options))
        return made[-1]

    yield open_one
    for store in made:
        store.close()


@pytest.fixture
def store(url: str, opened: Callable[..., Any]) -> Any:
    return opened(url, node="one")


@pytest.fixture
def admin(url: str, servers: Callable[[str], Any]) -> Iterator[Any]:
    schema = url.partition("search_path%3D")[2]
    with psycopg.connect(f"{servers('postgres').url}?options=-csearch_path%3D{schema}", autocommit=True) as connection:
        yield connection


# --- waking ----------------------------------------------------------------------------------------------------------


def listeners(admin: Any) -> int:
    return int(admin.execute("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'").fetchone()[0])


class TestWakeUp:
    def test_another_handles_put_wakes_without_polling(self, url: str, opened: Any, admin: Any) -> None:
        one, two = opened(url), opened(url)
        seen = one.bell()
        call = Calling(lambda: one.wait(seen, 20))
        eventually(lambda: listeners(admin) == 1, "somebody listens")
        seen = one.bell()
        call.wait()  # the listener rings once when it begins
        call = Calling(lambda: one.wait(one.bell(), 20))
        time.sleep(0.2)
        assert call.under_way
        begin = time.monotonic()
        two.queue("q").put("x")
        assert call.wait() is True
        assert time.monotonic() - begin < 1.0

    def test_nobody_listens_before_somebody_waits(self, store: Any, admin: Any) -> None:
        before = listeners(admin)
        store.queue("q").put("x")
        assert listeners(admin) == before
        Calling(lambda: store.wait(store.bell(), 5))
        eventually(lambda: listeners(admin) == before + 1, "then one does")

    def test_a_killed_listener_comes_back_and_rings_for_what_it_missed(self, url: str, opened: Any, admin: Any) -> None:
        one, two = opened(url), opened(url)
        Calling(lambda: one.wait(one.bell(), 1)).wait()
        eventually(lambda: listeners(admin) == 1, "it listens")
        seen = one.bell()
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
        two.queue("q").put("x")
        assert one.wait(seen, 10), "whoever listened may have missed something"
        eventually(lambda: listeners(admin) == 1, "it listens again")

    def test_without_notifications_polling_finds_the_work(
        self, url: str, opened: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres.PostgresStore, "_listen", lambda self: None)
        one, two = opened(url), opened(url)
        seen: list[str] = []
        one.queue("q", str).add_handler(seen.append)
        with working(one, poll="200ms"):
            time.sleep(0.3)
            begin = time.monotonic()
            two.queue("q", str).put("x")
            eventually(lambda: seen == ["x"], "the next poll finds it")
            assert time.monotonic() - begin < 2

    def test_a_rolled_back_put_wakes_nobody(self, url: str, opened: Any, servers: Any) -> None:
        one, two = opened(url), opened(url)
        Calling(lambda: one.wait(one.bell(), 1)).wait()
        time.sleep(0.3)
        seen = one.bell()
        schema = url.partition("search_path%3D")[2]
        with psycopg.connect(f"{servers('postgres').url}?options=-csearch_path%3D{schema}") as connection:
            two.queue("q").put("x", connection=connection)
            connection.rollback()
        assert one.wait(seen, 0.5) is False

    def test_another_space_rings_another_bell(self, url: str, opened: Any) -> None:
        one, two = opened(url), opened(with_options(url, "space=elsewhere"))
        Calling(lambda: one.wait(one.bell(), 1)).wait()
        time.sleep(0.3)
        seen = one.bell()
        two.queue("q").put("x")
        assert one.wait(seen, 0.5) is False


# --- copying ---------------------------------------------------------------------------------------------------------


class TestCopy:
    @pytest.mark.parametrize("count", [COPY_FROM - 1, COPY_FROM, 500])
    def test_many_puts_arrive_whole_and_in_order(self, store: Any, count: int) -> None:
        hostile = ["\\N", "\\.", "a\tb", "line\nbreak", "\r", "\\", "'", '"', "\x7f", "\N{SNOWMAN}", "\\x41"]
        values = [hostile[number % len(hostile)] + str(number) for number in range(count)]
        queue = store.queue("q", str)
        queue.put_many(values)
        assert [entry.value for entry in queue.find(limit=1000)] == values

    def test_headers_and_types_survive_it(self, store: Any) -> None:
        entries = [
            new("q", b"\x00\xff\\N", headers={"h": "a\tb\\"}, priority=number % 3) for number in range(COPY_FROM)
        ]
        store.put(entries)
        found = store.find(Find(limit=100))
        assert {entry.payload for entry in found} == {b"\x00\xff\\N"}
        assert {entry.headers["h"] for entry in found} == {"a\tb\\"}
        assert [entry.priority for entry in found] == [number % 3 for number in range(COPY_FROM)]

    def test_an_id_that_is_there_already_is_one_conflict_and_no_other_entry_is_lost(self, store: Any) -> None:
        there = new("q", b'"old"')
        store.put([there])
        entries = [new("q") for _ in range(COPY_FROM)]
        clash = new("q", b'"new"')
        clash = type(clash)(there.id, "q", b'"new"', "json", "Any")
        with pytest.raises(Conflict):
            store.put([*entries, clash])
        assert len(store.find(Find(limit=100))) == 1, "all or none"
        same = type(clash)(there.id, "q", b'"old"', "json", "Any")
        assert all(result.created for result in store.put([*entries, same]))
        assert len(store.find(Find(limit=100))) == COPY_FROM + 1

    def test_in_the_callers_transaction_too(self, store: Any, url: str, servers: Any) -> None:
        schema = url.partition("search_path%3D")[2]
        with psycopg.connect(f"{servers('postgres').url}?options=-csearch_path%3D{schema}") as connection:
            store.queue("q", int).put_many(range(50), connection=connection)
            connection.rollback()
            assert store.queue("q").counts().live == 0
            store.queue("q", int).put_many(range(50), connection=connection)
            connection.commit()
        assert store.queue("q").counts().ready == 50


# --- dead rows -------------------------------------------------------------------------------------------------------


def test_a_pinned_snapshot_makes_claims_slower_but_not_slow(store: Any, url: str, servers: Any, admin: Any) -> None:
    """A forgotten transaction keeps every dead row; what a claim costs must not grow with all that ever passed."""
    queue = store.queue("q", int)

    def pass_through(count: int) -> list[float]:
        took = []
        for _ in range(count // 50):
            queue.put_many(range(50))
            begin = time.perf_counter()
            entries = claim(store, "q", limit=50).entries
            took.append(time.perf_counter() - begin)
            assert len(entries) == 50
            store.settle([Step((Ending(entry.lease, "done"),)) for entry in entries])
        return took

    before = statistics.median(pass_through(500))
    with psycopg.connect(servers("postgres").url) as forgotten:
        forgotten.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        forgotten.execute("SELECT count(*) FROM pg_class").fetchall()
        pass_through(5000)
        during = statistics.median(pass_through(500))
        oldest = {one.what: one for one in store.check()}
        assert "oldest transaction" in oldest
        assert "dead rows" in oldest
        forgotten.rollback()
    schema = url.partition("search_path%3D")[2]
    admin.execute(f"VACUUM {schema}.penstock")
    after = statistics.median(pass_through(500))
    assert during < max(20 * before, 0.05), f"{before:.4f} s without, {during:.4f} s with 5,500 dead rows"
    assert after < max(4 * before, 0.02)


def test_the_live_table_is_vacuumed_early(store: Any, admin: Any) -> None:
    (options,) = admin.execute("SELECT reloptions FROM pg_class WHERE oid = 'penstock'::regclass").fetchone()
    assert options is not None, "settings of its own"
    assert any("autovacuum_vacuum_scale_factor" in one for one in options)


def test_claims_use_the_partial_index(store: Any, admin: Any) -> None:
    store.queue("q", int).put_many(range(2000))
    admin.execute("ANALYZE penstock")
    plan = admin.execute(
        "EXPLAIN (FORMAT TEXT) SELECT seq FROM penstock WHERE lane = 1 AND state = 0 AND priority = 0 "
        "AND due <= 9223372036854775807 ORDER BY due, seq LIMIT 10"
    ).fetchall()
    assert "penstock_ready" in "\n".join(line for (line,) in plan)


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["fsync", "synchronous_commit", "full_page_writes"])
def test_a_server_that_forgets_is_refused_unless_asked_for(setting: str) -> None:
    with starting() as start:
        server = start("postgres", durable=True, **{setting: "off"})
        with pytest.raises(CannotOpen, match=rf"{setting}=off.*durability=fast"):
            open_queues(server.url)
        with open_queues(server.url + "?durability=fast") as store:
            assert store.queue("q").put("x").created
            assert {one.what: one.level for one in store.check()}["durability"] == "warning"


def test_connections_beyond_the_servers_limit_are_a_typed_error_and_pass(opened: Any) -> None:
    from penstock.errors import OutcomeUnknown, StoreUnavailable

    with starting() as start:
        server = start("postgres", max_connections="5", superuser_reserved_connections="0")
        store = opened(with_options(server.url, "durability=fast", "pool_size=20"))
        queue = store.queue("q", int)
        gate = threading.Barrier(12)

        def put(number: int) -> str:
            gate.wait(10)
            try:
                queue.put(number, id=f"n{number}")
            except (StoreUnavailable, OutcomeUnknown):
                return "refused"
            return "put"

        told = [call.wait() for call in [Calling(lambda number=number: put(number)) for number in range(12)]]
        assert set(told) <= {"put", "refused"}
        assert len(queue.find()) == told.count("put")
        assert queue.put(99).created, "nothing leaked"

"""What only the PostgreSQL driver does: LISTEN/NOTIFY, round trips of one statement, claims quick without vacuum."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.store_urls import STORES
from tests.stores.own_servers import Calling, claim, eventually, new, starting, with_options, working

from penstock import Reaper, Unique, failpoints, open_queues
from penstock.errors import CannotOpen, Conflict, EntryNotFound, LeaseLost
from penstock.ids import new_nonce
from penstock.queue.drivers.sql.postgres_connection import Listener
from penstock.queue.drivers.sql.round_trip import MOST_ATTEMPTS, WHOLE_LOOK_CLAIMS
from penstock.queue.drivers.sql.rows import byte_strings, numbers, texts
from penstock.queue.drivers.sql.session import Session
from penstock.queue.entry import HELD
from penstock.queue.protocol import Changes, ClaimRequest, Ending, Find, Source, Step
from penstock.testing import FakeClock

MANY = 20


@pytest.fixture
def url(tmp_path: Any, servers: Callable[[str], Any]) -> str:
    return STORES["postgres"](tmp_path, servers).url


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


def refused(*_: Any, **__: Any) -> Any:
    raise psycopg.OperationalError("no connection for listeners")


class TestWakeUp:
    def test_another_handles_put_wakes_without_polling(self, url: str, opened: Any, admin: Any) -> None:
        one, two = opened(url), opened(url)
        seen = one.driver.bell()
        call = Calling(lambda: one.driver.wait(seen, 20))
        eventually(lambda: listeners(admin) == 1, "somebody listens")
        seen = one.driver.bell()
        call.wait()  # the listener rings once when it begins
        call = Calling(lambda: one.driver.wait(one.driver.bell(), 20))
        time.sleep(0.2)
        assert call.under_way
        begin = time.monotonic()
        two.queue("q").put("x")
        assert call.wait() is True
        assert time.monotonic() - begin < 1.0

    def test_an_idle_worker_that_listens_does_not_look(self, url: str, opened: Any) -> None:
        one, two = opened(url), opened(url)
        done = threading.Event()
        one.queue("q").add_handler(lambda _: done.set())
        with working(one, poll="10ms"):
            eventually(one.driver.hears, "it listens")
            claims, settle = [], one.driver.settle
            one.driver.settle = lambda *given, **more: (claims.append(given), settle(*given, **more))[1]
            time.sleep(0.5)
            assert len(claims) <= 2, "one may have been under way"
            two.queue("q").put("x")
            assert done.wait(10), "it hears of what others put"

    def test_a_worker_that_cannot_listen_looks(
        self, url: str, opened: Any, admin: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, two = opened(url), opened(url)
        done = threading.Event()
        one.queue("q").add_handler(lambda _: done.set())
        with working(one, poll="50ms"):
            eventually(one.driver.hears, "it listens")
            monkeypatch.setattr(psycopg, "connect", refused)
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
            eventually(lambda: not one.driver.hears(), "it knows that it is deaf")
            two.queue("q").put("x")
            assert done.wait(10)

    def test_a_schedule_that_another_process_sets_fires(self, url: str, opened: Any) -> None:
        one, two = opened(url), opened(url)
        done = threading.Event()
        one.queue("q").add_handler(lambda _: done.set())
        with working(one, reaper=Reaper(one, every="1h")):
            eventually(one.driver.hears, "it listens, and has no reason to look for schedules")
            two.queue("q").schedule("soon", every="1s", value="x")
            assert done.wait(20)

    def test_nobody_listens_before_somebody_waits(self, store: Any, admin: Any) -> None:
        before = listeners(admin)
        store.queue("q").put("x")
        assert listeners(admin) == before
        Calling(lambda: store.driver.wait(store.driver.bell(), 5))
        eventually(lambda: listeners(admin) == before + 1, "then one does")

    def test_a_killed_listener_comes_back_and_rings_for_what_it_missed(self, url: str, opened: Any, admin: Any) -> None:
        one, two = opened(url), opened(url)
        Calling(lambda: one.driver.wait(one.driver.bell(), 1)).wait()
        eventually(lambda: listeners(admin) == 1, "it listens")
        seen = one.driver.bell()
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
        two.queue("q").put("x")
        assert one.driver.wait(seen, 10), "whoever listened may have missed something"
        eventually(lambda: listeners(admin) == 1, "it listens again")

    def test_without_notifications_polling_finds_the_work(
        self, url: str, opened: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Listener, "start", lambda self: None)
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
        Calling(lambda: one.driver.wait(one.driver.bell(), 1)).wait()
        time.sleep(0.3)
        seen = one.driver.bell()
        schema = url.partition("search_path%3D")[2]
        with psycopg.connect(f"{servers('postgres').url}?options=-csearch_path%3D{schema}") as connection:
            two.queue("q").put("x", connection=connection)
            connection.rollback()
        assert one.driver.wait(seen, 0.5) is False

    def test_another_space_rings_another_bell(self, url: str, opened: Any) -> None:
        one, two = opened(url), opened(with_options(url, "space=elsewhere"))
        Calling(lambda: one.driver.wait(one.driver.bell(), 1)).wait()
        time.sleep(0.3)
        seen = one.driver.bell()
        two.queue("q").put("x")
        assert one.driver.wait(seen, 0.5) is False


# --- many puts ------------------------------------------------------------------------------------------------------


class TestManyPuts:
    @pytest.mark.parametrize("count", [1, 2, 500])
    def test_many_puts_arrive_whole_and_in_order(self, store: Any, count: int) -> None:
        hostile = ["\\N", "\\.", "a\tb", "line\nbreak", "\r", "\\", "'", '"', "\x7f", "\N{SNOWMAN}", "\\x41"]
        values = [hostile[number % len(hostile)] + str(number) for number in range(count)]
        queue = store.queue("q", str)
        queue.put_many(values)
        assert [entry.value for entry in queue.find(limit=1000)] == values

    def test_headers_and_types_survive_it(self, store: Any) -> None:
        entries = [new("q", b"\x00\xff\\N", headers={"h": "a\tb\\"}, priority=number % 3) for number in range(MANY)]
        store.driver.put(entries)
        found = store.driver.find(Find(limit=100))
        assert {entry.payload for entry in found} == {b"\x00\xff\\N"}
        assert {entry.headers["h"] for entry in found} == {"a\tb\\"}
        assert [entry.priority for entry in found] == [number % 3 for number in range(MANY)]

    def test_an_id_that_is_there_already_is_one_conflict_and_no_other_entry_is_lost(self, store: Any) -> None:
        there = new("q", b'"old"')
        store.driver.put([there])
        entries = [new("q") for _ in range(MANY)]
        clash = new("q", b'"new"')
        clash = type(clash)(there.id, "q", b'"new"', "json", "Any")
        with pytest.raises(Conflict):
            store.driver.put([*entries, clash])
        assert len(store.driver.find(Find(limit=100))) == 1, "all or none"
        same = type(clash)(there.id, "q", b'"old"', "json", "Any")
        assert all(result.created for result in store.driver.put([*entries, same]))
        assert len(store.driver.find(Find(limit=100))) == MANY + 1

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


def test_a_pinned_snapshot_makes_claims_read_more_but_not_all_that_passed(url: str, servers: Any, admin: Any) -> None:
    """A forgotten transaction keeps every dead row; what a claim costs must not grow with all that ever passed."""

    def pages_read(count: int) -> int:
        """Pages of the tables of waiting entries and claims that so many entries cost, 50 at a time."""
        before = pages(admin)
        with open_queues(url) as store:  # sessions hand in what they counted when they end
            queue = store.queue("q", int)
            for _ in range(count // 50):
                queue.put_many(range(50))
                entries = claim(store, "q", limit=50).entries
                assert len(entries) == 50
                store.driver.settle([Step((Ending(entry.lease, "done"),)) for entry in entries])
        eventually(lambda: pages(admin) > before and not sessions(admin), "the sessions have ended")
        return pages(admin) - before

    alone = pages_read(500)
    with psycopg.connect(servers("postgres").url) as forgotten:
        forgotten.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        forgotten.execute("SELECT count(*) FROM pg_class").fetchall()
        first = pages_read(500)
        pages_read(5000)
        later = pages_read(500)
        with open_queues(url) as store:
            assert {"oldest transaction", "dead rows"} <= {finding.what for finding in store.check()}
        forgotten.rollback()
    admin.execute("VACUUM penstock_ready, penstock_claims")
    vacuumed = pages_read(500)
    assert later < 4 * first, f"{first} pages for the first 500 entries, {later} after 5,500"
    assert vacuumed < 2 * alone


def pages(admin: Any) -> int:
    admin.execute("SELECT pg_stat_clear_snapshot()")
    [(read,)] = admin.execute(
        "SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read) FROM pg_statio_user_tables "
        "WHERE schemaname = current_schema() AND relname IN ('penstock_ready', 'penstock_claims')"
    )
    return int(read or 0)


def sessions(admin: Any) -> int:
    """How many a store has."""
    [(count,)] = admin.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'penstock'")
    return int(count)


def test_a_claim_of_a_thousand_ends_whatever_the_statistics_say(store: Any, url: str, admin: Any) -> None:
    """A table that was analysed while it was empty looks empty until it is analysed again.

    A join that begins with the bodies would then unpack the whole claim for each of them: minutes, not milliseconds.
    """
    store.queue("q", int).put_many(range(2345), sticky=True)
    admin.execute("ANALYZE")  # counts the pages too
    admin.execute("UPDATE pg_class SET reltuples = 0 WHERE oid = 'penstock'::regclass")
    entries = claim(store, "q", limit=1000).entries
    with open_queues(url, node="one") as fresh:
        assert len(entries) == 1000
        fresh.driver.commit(Step(tuple(Ending(entry.lease, "done") for entry in entries)))
        assert fresh.queue("q").counts().live == 1345


@pytest.mark.parametrize("table", ["penstock_ready", "penstock_claims"])
def test_what_changes_all_the_time_is_vacuumed_early(store: Any, admin: Any, table: str) -> None:
    (options,) = admin.execute(f"SELECT reloptions FROM pg_class WHERE oid = '{table}'::regclass").fetchone()
    assert options is not None, "settings of its own"
    assert any("autovacuum_vacuum_scale_factor" in one for one in options)


@pytest.mark.parametrize("name", ["round_trip", "round_trip_keeps", "round_trip_consumes", "round_trip_keeps_consumes"])
@pytest.mark.parametrize("analysed", ["empty", "full"])
def test_no_round_trip_reads_all_that_wait(store: Any, admin: Any, analysed: str, name: str) -> None:
    """A queue fills and drains in minutes: the plan must be right whatever it held when it was last analysed."""
    if analysed == "empty":
        admin.execute("VACUUM ANALYZE")
    store.queue("q", int).put_many(range(20_000), chunk=5000)
    store.queue("q", int).put(1, sticky="elsewhere")
    with store.batch(then=(store.queue("then", int), 1)) as batch:
        batch.put_many(store.queue("q", int), range(2_000))
    if analysed == "full":
        admin.execute("VACUUM ANALYZE")
    with store.driver.server.transactions.reading() as session:
        given = {
            "now": None, "claims": [], "firsts": [], "lasts": [], "seqs": [], "started": [], "queue": "q",
            "node": "one", "limit": 10,
            "attempts": MOST_ATTEMPTS, "max_attempts": None, "claim": "id", "owner": "owner", "lease": 60_000_000,
            "above": -(2**31), "from_due": None, "from_seq": None,
            "generations": [], "codecs": [], "result_bodies": [], "result_places": [], "lasting": [], "values": [],
            "result_queues": [], "batches": [], "linked_bodies": [], "sources": [], "held": HELD, "channel": "c",
        }  # fmt: skip
        statement = store.driver.server.transactions._catalogue.statements[name]
        explain = statement._replace(text=f"EXPLAIN {statement.text}")
        explain.run(session._cursor, given)
        text = "\n".join(line for (line,) in session._cursor.fetchall())
    assert "penstock_ready_order" in text
    assert not re.search(r"Seq Scan on penstock(_ready|_claims|_links)?\b", text), text


def test_a_round_trip_takes_a_claim_apart_once(store: Any, admin: Any) -> None:
    """Taken apart again for each entry that it holds, a claim of a hundred cost three times as much."""
    store.queue("q", int).put_many(range(200))
    refs = [entry.lease.ref for entry in claim(store, "q", limit=100).entries]
    given = {
        "now": None, "claims": [refs[0].claim], "firsts": [1], "lasts": [100],
        "seqs": numbers(ref.seq for ref in refs), "started": numbers([None] * 100),
        "queue": "q", "node": "one", "limit": 100, "attempts": MOST_ATTEMPTS, "max_attempts": None, "claim": "id",
        "owner": "owner", "lease": 60_000_000, "above": -(2**31), "from_due": None, "from_seq": None,
    }  # fmt: skip
    with store.driver.server.transactions.reading() as session:
        statement = store.driver.server.transactions._catalogue.statements["round_trip"]
        statement._replace(text=f"EXPLAIN (ANALYZE, TIMING OFF) {statement.text}").run(session._cursor, given)
        lines = [line for (line,) in session._cursor.fetchall()]
    text = "\n".join(lines)
    loops = re.findall(r"Function Scan on u(?:_\d)? .*actual rows=100 loops=(\d+)", text)
    assert loops == ["1"], text


@pytest.mark.parametrize("analysed", ["empty", "full"])
def test_results_and_links_of_a_round_trip_are_not_compared_with_each_other(
    store: Any, admin: Any, analysed: str
) -> None:
    """What ended is looked up in a hash: a join may compare each of a hundred with all of them."""
    if analysed == "empty":
        admin.execute("VACUUM ANALYZE")
    queue = store.queue("q", int)
    with store.batch(then=(store.queue("then", int), 1)) as batch:
        batch.put_many(queue, range(2_000))
    if analysed == "full":
        admin.execute("VACUUM ANALYZE")
    entries = claim(store, "q", limit=100).entries
    refs = [entry.lease.ref for entry in entries]
    bodies = numbers(ref.body for ref in refs)
    given = {
        "now": None, "claims": [refs[0].claim], "firsts": [1], "lasts": [100],
        "seqs": numbers(ref.seq for ref in refs), "started": numbers([None] * 100),
        "queue": "q", "node": "one", "limit": 100, "attempts": MOST_ATTEMPTS, "max_attempts": None, "claim": "id",
        "owner": "owner", "lease": 60_000_000, "above": -(2**31), "from_due": None, "from_seq": None,
        "generations": [1], "codecs": ["json"], "result_bodies": bodies, "result_places": numbers([1] * 100),
        "lasting": [60_000_000], "values": byte_strings([b"1"] * 100), "result_queues": ["q"], "batches": [batch.id],
        "linked_bodies": bodies, "sources": texts(entry.id for entry in entries), "held": HELD, "channel": "c",
    }  # fmt: skip
    statement = store.driver.server.transactions._catalogue.statements["round_trip_keeps_consumes"]
    values = ", ".join(sql.Literal(given[name]).as_string(admin) for name in statement.names)
    with store.driver.server.transactions.reading() as session:
        # As workers send it: planned once, and not for the lengths of its lists.
        session.execute(f"PREPARE trip AS {statement.text}")
        session.execute(f"EXPLAIN (ANALYZE, TIMING OFF) EXECUTE trip ({values})")
        lines = [line for (line,) in session._cursor.fetchall()]
        session.execute("DEALLOCATE trip")
    text, compared, loops = "\n".join(lines), 0, 1
    for line in lines:
        if shown := re.search(r"actual rows=\S+ loops=(\d+)", line):
            loops = int(shown[1])
        elif removed := re.search(r"Rows Removed by (?:Join )?Filter: (\d+)", line):
            compared += loops * int(removed[1])
    assert re.search(r"Insert on penstock_results r .*actual", text), text
    assert compared < 1000, text
    assert not re.search(r"Seq Scan on penstock(_ready|_links)?\b", text), text


# More claims of a hundred entries like one that is there, without their bodies: nobody asks for those.
MORE_CLAIMS = """
INSERT INTO penstock_claims (claim, number, owner, claimed, until, max_attempts, low, high, seqs, bodies, dues,
                             generations, attempts, fences, suspects, errors)
SELECT c.claim || '-' || n, c.number, c.owner, c.claimed, c.until, c.max_attempts, c.low + n * 1000,
       c.high + n * 1000, ARRAY(SELECT s + n * 1000 FROM unnest(c.seqs) s), c.bodies, c.dues, c.generations, c.attempts,
       c.fences, c.suspects, c.errors
FROM penstock_claims c CROSS JOIN generate_series(1, 1000) n WHERE c.claim = %s
"""


@pytest.mark.parametrize("analysed", ["empty", "full"])
def test_who_holds_an_entry_is_one_probe_among_two_thousand_claims(store: Any, admin: Any, analysed: str) -> None:
    """The records are found by the index of what they hold, and none but the right one is read."""
    if analysed == "empty":
        admin.execute("VACUUM ANALYZE")
    queue, held = store.queue("q", int), []
    for _ in range(2):
        queue.put_many(range(100))
        entry = claim(store, "q", limit=100, id=f"claim-{len(held)}").entries[3]
        admin.execute(MORE_CLAIMS, (f"claim-{len(held)}",))
        admin.execute("SELECT setval('penstock_numbers', nextval('penstock_numbers') + 2000000)")
        held.append(entry)
    if analysed == "full":
        admin.execute("VACUUM ANALYZE")
    for entry in held:
        with store.driver.server.transactions.reading() as session:
            statement = store.driver.server.transactions._catalogue.statements["live_by_seq"]
            explain = statement._replace(text=f"EXPLAIN (ANALYZE, BUFFERS) {statement.text}")
            explain.run(session._cursor, {"seq": entry.seq})
            lines = [line for (line,) in session._cursor.fetchall()]
        text = "\n".join(lines)
        assert "penstock_claims_seqs" in text, text
        assert not re.search(r"Seq Scan on penstock(_ready|_claims)?\b", text), text
        blocks = next(line for line in lines if "Buffers:" in line)
        assert sum(map(int, re.findall(r"(?:hit|read)=(\d+)", blocks))) < 60, (
            text
        )  # the records are on a thousand pages
        [found] = store.driver.find(Find(ids=(entry.id,)))
        assert found.lease.token == entry.lease.token


def test_suspects_are_found_without_a_look_into_the_claims(store: Any, admin: Any) -> None:
    """They are handed out one by one: a hundred of them must not cost a hundred looks into the claims each time."""
    with store.driver.server.transactions.reading() as session:
        statement = store.driver.server.transactions._catalogue.statements["due_suspects"]
        statement._replace(text=f"EXPLAIN {statement.text}").run(
            session._cursor, {"moment": 1, "node": "one", "after_due": 0, "after_seq": 0}
        )
        text = "\n".join(line for (line,) in session._cursor.fetchall())
    assert "penstock_ready" in text
    assert "penstock_claims" not in text, text


def test_counting_a_queue_reads_none_of_the_others(store: Any, admin: Any) -> None:
    """A scan would compare every entry that waits with every queue: seconds for a million entries in 1,000 queues."""
    store.queue("q", int).put_many(range(5000), chunk=5000)
    admin.execute("VACUUM ANALYZE")
    with store.driver.server.transactions.reading() as session:
        statement = store.driver.server.transactions._catalogue.statements["count"]
        statement._replace(text=f"EXPLAIN {statement.text}").run(
            session._cursor, {"moment": 1, "held": 2, "numbers": [1, 2]}
        )
        text = "\n".join(line for (line,) in session._cursor.fetchall())
    assert "penstock_ready_order" in text
    assert not re.search(r"Seq Scan on penstock_ready\b", text), text


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


# --- round trips -----------------------------------------------------------------------------------------------------


def values(entries: list[Any]) -> list[Any]:
    return [json.loads(entry.payload) for entry in entries]


class TestRoundTrips:
    """Settling and claiming in one statement, and what does not go that way."""

    @pytest.fixture
    def sent(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        statements: list[str] = []

        def noting(method: Any) -> Any:
            def run(session: Any, statement: str, *arguments: Any, **parameters: Any) -> Any:
                statements.append(statement)
                return method(session, statement, *arguments, **parameters)

            return run

        for name in ("rows", "change", "search"):
            monkeypatch.setattr(Session, name, noting(getattr(Session, name)))
        return statements

    def trip(self, store: Any, held: list[Any], limit: int, **options: Any) -> Any:
        steps = [Step((Ending(entry.lease, "done"),)) for entry in held]
        source = Source("q", limit, attempts=options.get("attempts"))
        return store.driver.settle(
            steps, ClaimRequest(new_nonce(), (source,), limit, "me", "one", 60_000_000, alone=not held)
        )

    def test_a_round_trip_is_one_statement(self, store: Any, sent: list[str]) -> None:
        store.queue("q").put_many(range(30))
        first = self.trip(store, [], 10)
        del sent[:]
        second = self.trip(store, first.claimed.entries, 10)
        assert values(second.claimed.entries) == list(range(10, 20))
        assert len(sent) == 1
        assert second.claimed.next_us == second.now_us, "there may be more"
        third = self.trip(store, second.claimed.entries, 100)
        assert values(third.claimed.entries) == list(range(20, 30))
        assert third.claimed.next_us == third.now_us, "it went on where the last one ended; the next one looks at all"
        last = self.trip(store, third.claimed.entries, 100)
        assert last.claimed.entries == []
        assert last.claimed.next_us is None
        assert len(sent) == 3
        assert len(store.driver.history(Find())) == 30

    def test_what_comes_back_before_the_last_place_is_found_soon(self, store: Any, url: str, servers: Any) -> None:
        """Another one's claim that is rolled back gives back what ours have long passed; the bell does not ring."""
        store.queue("q").put_many(range(60))
        schema = url.partition("search_path%3D")[2]
        with psycopg.connect(f"{servers('postgres').url}?options=-csearch_path%3D{schema}") as other:
            other.execute("DELETE FROM penstock_ready WHERE seq <= (SELECT min(seq) FROM penstock_ready)")
            assert values(self.trip(store, [], 5).claimed.entries) == [1, 2, 3, 4, 5]
            assert values(self.trip(store, [], 5).claimed.entries) == [6, 7, 8, 9, 10]
            other.rollback()
        claims = [values(self.trip(store, [], 1).claimed.entries) for _ in range(WHOLE_LOOK_CLAIMS + 1)]
        assert [0] in claims

    @pytest.mark.parametrize("how", ["release", "update", "put"])
    def test_what_this_process_puts_before_the_last_place_is_next(self, store: Any, how: str) -> None:
        queue = store.queue("q")
        queue.put_many(range(20))
        [first, *_] = self.trip(store, [], 5).claimed.entries
        if how == "release":
            store.driver.commit(Step((Ending(first.lease, "release"),)))
        elif how == "update":
            store.driver.update(queue.find(limit=20)[-1].id, Changes(due_us=1))
        else:
            queue.put("old", due=datetime(2020, 1, 1, tzinfo=UTC))
        expected = {"release": 0, "update": 19, "put": "old"}[how]
        assert values(self.trip(store, [], 1).claimed.entries) == [expected]

    def test_one_that_ends_members_of_a_batch_is_one_statement(self, store: Any, sent: list[str]) -> None:
        queue, then = store.queue("q"), store.queue("then")
        with store.batch(then=(then, 1)) as batch:
            batch.put_many(queue, range(3))
        held = self.trip(store, [], 2).claimed.entries
        sent.clear()
        [last] = self.trip(store, held, 2).claimed.entries
        assert sent == ["round_trip_consumes"]
        assert then.counts().held == 1
        assert self.trip(store, [last], 2).claimed.entries == []
        assert [entry.id for entry in claim(store, "then", limit=1).entries] == [batch.id]

    def test_one_whole_look_at_a_time_is_enough(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """While it lasts, another claim of this process goes on where the last one ended."""
        rows, begins, inner = Session.rows, [], []

        def watched(session: Session, name: str, **values: Any) -> Any:
            if name == "round_trip":
                begins.append(values["from_seq"])
                if len(begins) == 3:
                    claiming = Calling(lambda: self.trip(store, [], 5))
                    inner.append(claiming.wait())
            return rows(session, name, **values)

        monkeypatch.setattr(Session, "rows", watched)
        store.queue("q").put_many(range(30))
        for _ in range(2):
            self.trip(store, [], 5)
        store.queue("q").put("rings the bell")
        assert values(self.trip(store, [], 5).claimed.entries) == [15, 16, 17, 18, 19]
        assert [begin is None for begin in begins] == [True, False, True, False]
        assert values(inner[0].claimed.entries) == [10, 11, 12, 13, 14]

    def test_it_says_when_to_come_again(self, store: Any, sent: list[str]) -> None:
        store.queue("q").put("later", delay="1h")
        del sent[:]
        due = store.driver.find(Find())[0].due_us
        del sent[:]
        assert self.trip(store, [], 10).claimed.next_us == due
        assert len(sent) == 1

    def test_what_is_lost_is_told_and_the_others_are_settled(self, store: Any) -> None:
        store.queue("q").put_many(range(12))
        held = self.trip(store, [], 5).claimed.entries
        store.driver.cancel([held[2].id], force=True)
        done = self.trip(store, held, 5)
        assert [isinstance(one, LeaseLost) for one in done.results] == [False, False, True, False, False]
        assert len(done.claimed.entries) == 5
        again = self.trip(store, held, 5)
        assert all(isinstance(one, LeaseLost) for one in again.results), "settled once, and not as a repeat"

    def test_lower_priorities_come_after_the_highest(self, store: Any) -> None:
        queue = store.queue("q")
        for number in range(6):
            queue.put(number, priority=number % 3)
        queue.put("not yet", priority=9, delay="1h")
        assert values(self.trip(store, [], 5).claimed.entries) == [2, 5, 1, 4, 0]

    def test_what_is_odd_goes_the_longer_way(self, store: Any) -> None:
        queue = store.queue("q")
        queue.put("plain")
        worn = queue.put("worn", id="worn").id
        queue.put("once", unique=Unique("k", until="started"))
        [_, tried, *_] = self.trip(store, [], 2).claimed.entries
        store.driver.commit(Step((Ending(tried.lease, "retry"),)))
        trip = self.trip(store, [], 10, attempts=1)
        assert values(trip.claimed.entries) == ["once"]
        assert trip.claimed.dead == (worn,)
        assert queue.put("another", unique=Unique("k", until="started")).created, "released when it was started"

    @pytest.mark.parametrize("how", ["fifo", "rate", "locked", "suspect", "sticky"])
    def test_queues_that_are_not_plain(self, store: Any, how: str) -> None:
        limits: dict[str, dict[str, Any]] = {"fifo": {"fifo": True}, "rate": {"rate": "2/h"}}
        queue = store.queue("q", **limits.get(how, {}))
        queue.put_many(range(4))
        if how == "locked":
            queue.lock(reason="so")
        if how == "sticky":
            queue.put("mine", sticky=True)
        if how == "suspect":
            queue.put("risky", priority=5)
            gone = ClaimRequest(new_nonce(), (Source("q", 1),), 1, "gone", "one", 1000)
            assert len(store.driver.claim(gone).entries) == 1
            time.sleep(0.01)
            store.driver.reap(node="one")
        got = values(self.trip(store, [], 10).claimed.entries)
        expected: dict[str, list[Any]] = {
            "fifo": [0],
            "rate": [0, 1],
            "locked": [],
            "suspect": ["risky"],
            "sticky": [0, 1, 2, 3, "mine"],
        }
        assert set(got) == set(expected[how])


# --- bodies ----------------------------------------------------------------------------------------------------------


class TestBodies:
    """A body goes when nothing refers to it any more, and never before."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def store(self, url: str, opened: Callable[..., Any], clock: FakeClock) -> Any:
        return opened(url, node="one", clock=clock)

    @pytest.fixture
    def ended(self, store: Any, clock: FakeClock) -> str:
        """The id of an entry that was done an hour ago."""
        id_: str = store.queue("q").put("x").id
        [entry] = claim(store, "q").entries
        store.driver.commit(Step((Ending(entry.lease, "done"),)))
        clock.advance("1h")
        return id_

    def bodies(self, admin: Any) -> int:
        return int(admin.execute("SELECT count(*) FROM penstock").fetchone()[0])

    def test_it_goes_with_the_last_row_of_its_history(self, store: Any, ended: str, admin: Any) -> None:
        assert self.bodies(admin) == 1
        assert store.driver.prune(older_than_us=0) == 1
        assert self.bodies(admin) == 0

    def test_a_replay_that_is_under_way_keeps_it(self, store: Any, ended: str, admin: Any) -> None:
        reached, gate = threading.Event(), threading.Event()

        def strike(point: str) -> None:
            if point == "commit.before" and not reached.is_set():
                reached.set()
                gate.wait(20)

        failpoints.arm(strike)
        try:
            replay = Calling(lambda: store.driver.replay([ended]))
            assert reached.wait(20)
            prune = Calling(lambda: store.driver.prune(older_than_us=0))
            eventually(lambda: waits_for_a_lock(admin), "the prune waits for the replay")
            gate.set()
            assert replay.wait() == 1
            assert prune.wait() == 1
        finally:
            failpoints.arm(None)
        [entry] = claim(store, "q").entries
        assert entry.payload == b'"x"'

    def test_a_prune_that_was_faster_leaves_nothing_to_replay(self, store: Any, ended: str, admin: Any) -> None:
        reached, gate = threading.Event(), threading.Event()

        def strike(point: str) -> None:
            if point == "replay.taken" and not reached.is_set():
                reached.set()
                gate.wait(20)

        failpoints.arm(strike)
        try:
            replay = Calling(lambda: store.driver.replay([ended]))
            assert reached.wait(20)
            assert store.driver.prune(older_than_us=0) == 1
            gate.set()
            with pytest.raises(EntryNotFound):
                replay.wait()
        finally:
            failpoints.arm(None)
        assert store.driver.find(Find()) == []

    @pytest.mark.parametrize("how", ["update", "replace"])
    def test_history_shows_the_body_that_the_attempt_saw(self, store: Any, how: str, admin: Any) -> None:
        queue = store.queue("q", str)
        queue.put("first", id="mine", unique=Unique("k", on_conflict="replace"), labels={"v": "1"})
        [entry] = claim(store, "q").entries
        store.driver.commit(Step((Ending(entry.lease, "retry"),)))
        if how == "update":
            queue.update("mine", "second", labels={"v": "2"})
        else:
            queue.put("second", unique=Unique("k", on_conflict="replace"), labels={"v": "2"})
        [again] = claim(store, "q").entries
        store.driver.commit(Step((Ending(again.lease, "done"),)))
        rows = store.driver.history(Find())
        assert [(row.state, row.labels) for row in rows] == [("retried", {"v": "1"}), ("done", {"v": "2"})]
        assert rows[1].payload == b'"second"'
        seen = admin.execute(
            "SELECT b.payload FROM penstock_history h JOIN penstock b ON b.body = h.body ORDER BY h.seq"
        ).fetchall()
        assert [bytes(payload) for (payload,) in seen] == [b'"first"', b'"second"']


def waits_for_a_lock(admin: Any) -> bool:
    return bool(admin.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone())

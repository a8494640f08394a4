"""What PostgreSQL and MariaDB have in common: pools, cuts, deadlocks, the caller's transaction, migrations."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import psycopg.rows
import pymysql
import pymysql.cursors
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from tests.store_urls import STORES
from tests.stores.own_servers import Calling, claim, connection_of, eventually, new, with_options, working
from tests.stores.wire_proxy import Proxy

from penstock import failpoints, open_queues
from penstock.errors import BadInput, Conflict, LeaseLost, OutcomeUnknown, StoreUnavailable
from penstock.ids import new_nonce
from penstock.queue.protocol import ClaimRequest, Ending, Find, Source, Step, StepDone
from penstock.testing import FakeClock

BOTH = ["postgres", "mysql"]


@pytest.fixture(params=BOTH)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def url(kind: str, tmp_path: Any, servers: Callable[[str], Any]) -> str:
    """An empty schema or database of the shared server."""
    return STORES[kind](tmp_path, servers).url


@pytest.fixture
def store(url: str, opened: Callable[..., Any]) -> Any:
    return opened(url, node="one")


@pytest.fixture
def proxy(kind: str, servers: Callable[[str], Any]) -> Iterator[Proxy]:
    made = Proxy(servers(kind).port)
    yield made
    made.close()


@pytest.fixture
def far(url: str, kind: str, servers: Callable[[str], Any], proxy: Proxy, opened: Callable[..., Any]) -> Any:
    """The same place, at the other end of a wire that can be cut."""
    return opened(url.replace(f":{servers(kind).port}/", f":{proxy.port}/"), node="one")


@pytest.fixture
def connect(kind: str, tmp_path: Any, servers: Callable[[str], Any], url: str) -> Iterator[Callable[[], Any]]:
    """The driver's own connection to the same place."""
    made: list[Any] = []
    schema = url.partition("search_path%3D")[2] or url.rpartition("/")[2].partition("?")[0]

    def connect_one() -> Any:
        port = servers(kind).port
        if kind == "postgres":
            made.append(
                psycopg.connect(f"postgresql://penstock@127.0.0.1:{port}/postgres?options=-csearch_path%3D{schema}")
            )
        else:
            made.append(pymysql.connect(host="127.0.0.1", port=port, user="root", database=schema))
        return made[-1]

    yield connect_one
    for connection in made:
        with contextlib.suppress(Exception):
            connection.close()


def run(connection: Any, statement: str) -> Any:
    cursor = connection.cursor()
    cursor.execute(statement)
    return cursor


# --- the wire --------------------------------------------------------------------------------------------------------


class TestCut:
    """The connection goes before or after the reply of any message of a transaction, its commit among them."""

    @pytest.mark.parametrize("cut", ["cut_requests", "cut_replies"])
    @pytest.mark.parametrize("after", range(9))
    def test_a_put_happens_once(self, far: Any, proxy: Proxy, cut: str, after: int) -> None:
        queue = far.queue("q")
        queue.put("warm")
        proxy.cut_later(cut, after)
        result = queue.put("x", unique="u", labels={"k": "v"})
        assert result.created
        assert [one.id for one in queue.find(labels={"k": "v"})] == [result.id]
        assert len(queue.find()) == 2

    @pytest.mark.parametrize("cut", ["cut_requests", "cut_replies"])
    @pytest.mark.parametrize("after", range(0, 24, 2))
    def test_a_settle_with_a_claim_happens_once(self, far: Any, proxy: Proxy, cut: str, after: int) -> None:
        far.queue("q").put_many(range(4))
        taken = claim(far, "q", limit=2).entries
        wish = ClaimRequest(new_nonce(), (Source("q", 9),), 1, "worker", "one", 60_000_000)
        steps = [
            Step((Ending(taken[0].lease, "done"),), (new("r"),)),
            Step((Ending(taken[1].lease, "retry", delay_us=10**9),)),
        ]
        proxy.cut_later(cut, after)
        reply = far.driver.settle(steps, wish)
        assert [type(one) for one in reply.results] == [StepDone, StepDone]
        assert len(reply.claimed.entries) == 1
        assert len(far.driver.find(Find(queue="r"))) == 1
        assert [one.state for one in far.driver.history(Find())] == ["done", "retried"]
        assert len(far.driver.find(Find(states=("leased",)))) == 1

    def test_a_commit_whose_server_never_comes_back_is_of_unknown_outcome(
        self, far: Any, store: Any, proxy: Proxy, kind: str
    ) -> None:
        queue = far.queue("q")
        queue.put("warm")
        struck = threading.Event()

        def strike(point: str) -> None:
            if point == "commit.before" and not struck.is_set():
                struck.set()
                proxy.down = True
                proxy.cut_later("cut_replies", 0)  # the reply of the commit

        failpoints.arm(strike)
        try:
            with pytest.raises(OutcomeUnknown, match="same ids"):
                queue.put("x", id="mine")
        finally:
            failpoints.arm(None)
        proxy.down = False
        assert not store.queue("q").put("x", id="mine").created or len(store.queue("q").find()) == 2
        assert [entry.id for entry in store.queue("q").find()].count("mine") == 1

    def test_all_idle_connections_are_dead_at_once(self, far: Any, proxy: Proxy) -> None:
        queue = far.queue("q", int)
        calls = [Calling(lambda number=number: queue.put(number)) for number in range(10)]
        for call in calls:
            call.wait()
        proxy.cut_all()
        assert queue.put(10).created, "one dead connection is tried, not ten"
        assert len(queue.find()) == 11

    def test_a_black_hole_is_left_after_the_reply_timeout(
        self, url: str, kind: str, servers: Any, proxy: Proxy, opened: Callable[..., Any]
    ) -> None:
        address = url.replace(f":{servers(kind).port}/", f":{proxy.port}/")
        store = opened(with_options(address, "reply_timeout=1", "timeout=1"))
        store.queue("q").put("x", id="a")
        proxy.silent = True
        begin = time.monotonic()
        with pytest.raises((StoreUnavailable, OutcomeUnknown)):
            store.queue("q").put("y", id="b")
        assert time.monotonic() - begin < 10
        proxy.silent = False
        proxy.cut_all()
        assert store.queue("q").put("y", id="b").created
        assert len(store.queue("q").find()) == 2


# --- the pool --------------------------------------------------------------------------------------------------------


class TestPool:
    def test_many_workers_need_few_connections(self, url: str, kind: str, opened: Any, connect: Any) -> None:
        store = opened(with_options(url, "pool_size=2"), node="one")
        queue = store.queue("q", int)
        gate, busy, most = threading.Event(), [0], [0]
        lock = threading.Lock()

        def handle(number: int) -> None:
            with lock:
                busy[0] += 1
                most[0] = max(most[0], busy[0])
            gate.wait(20)
            with lock:
                busy[0] -= 1

        queue.add_handler(handle, concurrency=20)
        with working(store):
            queue.put_many(range(60))
            eventually(lambda: most[0] == 20, "twenty handlers run at once")
            looker = connect()
            if kind == "postgres":
                count = "pg_stat_activity WHERE application_name = 'penstock' AND query NOT LIKE 'LISTEN%'"
            else:
                count = "information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
            assert run(looker, f"SELECT count(*) FROM {count}").fetchone()[0] <= 2, "and hold no connection"
            gate.set()
            eventually(lambda: not queue.counts().live, "all are handled")
        assert len(queue.history(limit=100)) == 60

    def test_an_exhausted_pool_says_so_in_time(self, url: str, opened: Any) -> None:
        store = opened(with_options(url, "pool_size=1", "timeout=1"))
        with connection_of(store):
            begin = time.monotonic()
            with pytest.raises(StoreUnavailable, match="pool_size"):
                store.queue("q").find()
            assert time.monotonic() - begin < 5
        assert store.queue("q").find() == [], "nothing leaked"

    def test_no_call_needs_two_connections_at_once(self, url: str, opened: Any) -> None:
        store = opened(with_options(url, "pool_size=1", "timeout=1"), node="one")
        queue = store.queue("q", int, fifo=False)
        put = queue.put(1, unique="u", labels={"k": "v"})
        queue.put(2)
        queue.update(put.id, 3)
        queue.lock(reason="why")
        queue.unlock()
        assert queue.counts().ready == 2
        assert store.counts() != []
        queue.schedule("s", 9, every="1h")
        [one, two] = claim(store, "q").entries
        store.driver.extend([one.lease], 60_000_000)
        store.driver.settle([Step((Ending(one.lease, "dead"),)), Step((Ending(two.lease, "done"),))])
        queue.replay(one.id)
        queue.cancel(one.id)
        store.driver.reap(node="one")
        store.driver.prune(older_than_us=0)
        store.driver.beat("one")
        store.check()
        assert store.now() > 0
        assert [row.state for row in queue.history()] == ["dead", "done", "cancelled"]

    @pytest.mark.parametrize(
        "option", ["pool_size=0", "pool_size=many", "timeout=-1", "reply_timeout=0", "payload_limit=x"]
    )
    def test_bad_options(self, url: str, option: str) -> None:
        with pytest.raises(BadInput, match=option.partition("=")[0]):
            open_queues(with_options(url, option))


# --- conflicts -------------------------------------------------------------------------------------------------------


class TestConflicts:
    def test_crossed_units_of_work_all_happen_whole(self, url: str, opened: Any) -> None:
        """Units that lock the same entries in opposite order: the server kills one of each pair, whole."""
        store = opened(url, node="one")
        rounds = 12
        for number in range(rounds):
            store.queue("q", int).put_many([number, number + 100])
            one, two = claim(store, "q").entries
            gate = threading.Barrier(2)

            def commit(first: Any, second: Any, mark: str, gate: threading.Barrier = gate) -> Any:
                gate.wait(10)
                endings = (Ending(first.lease, "done"), Ending(second.lease, "done"))
                return store.driver.commit(Step(endings, (new(mark), new(mark))))

            pair = [Calling(partial(commit, one, two, "a")), Calling(partial(commit, two, one, "b"))]
            results = []
            for call in pair:
                try:
                    results.append(call.wait())
                except LeaseLost as lost:
                    results.append(lost)
            assert sum(isinstance(one, StepDone) for one in results) == 1, "one of them has it, the other is told"
        marks = [len(store.queue(mark).find()) for mark in ("a", "b")]
        assert sum(marks) == 2 * rounds
        assert all(mark % 2 == 0 for mark in marks), "both puts of a unit or none"
        assert len(store.driver.history(Find(limit=1000))) == 2 * rounds

    def test_a_user_who_holds_an_entry_too_long_delays_a_unit_and_halves_nothing(
        self, url: str, kind: str, opened: Any, connect: Any
    ) -> None:
        """MariaDB rolls back one statement on a lock wait timeout: the unit has to be given up whole."""
        store = opened(url, node="one")
        store.queue("q", int).put_many([1, 2])
        entries = claim(store, "q").entries
        holder = connect()
        run(holder, "SELECT * FROM penstock_claims FOR UPDATE").fetchall()
        wait = "lock_timeout = '1s'" if kind == "postgres" else "innodb_lock_wait_timeout = 1"
        transactions = store.driver.server.transactions
        original = transactions.connection

        @contextlib.contextmanager
        def impatient() -> Iterator[Any]:
            with original() as connection:
                run(connection, f"SET SESSION {wait}")
                yield connection

        unit = Step(tuple(Ending(entry.lease, "done") for entry in entries), (new("r"),))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(transactions, "connection", impatient)
            call = Calling(lambda: store.driver.commit(unit))
            time.sleep(1.6)  # the first try has run into the time limit
            assert call.under_way, call.error
            looker = connect()
            assert run(looker, "SELECT count(*) FROM penstock_history").fetchone()[0] == 0, "not half of it"
            looker.rollback()
            holder.rollback()
            assert call.wait().puts[0].created
        assert sorted(one.state for one in store.driver.history(Find())) == ["done", "done"]
        assert len(store.queue("r").find()) == 1

    def test_a_lock_that_is_never_given_up_ends_in_an_error(
        self, url: str, kind: str, opened: Any, connect: Any
    ) -> None:
        store = opened(with_options(url, "reply_timeout=2"), node="one")
        store.queue("q", int).put(1)
        [entry] = claim(store, "q").entries
        holder = connect()
        run(holder, "SELECT * FROM penstock_claims FOR UPDATE").fetchall()
        with pytest.raises((StoreUnavailable, OutcomeUnknown)):
            store.driver.commit(Step((Ending(entry.lease, "done"),)))
        holder.rollback()
        eventually(lambda: _settles(store, entry), "it goes on")

    def test_putting_inside_a_long_transaction_holds_up_nobody(self, url: str, opened: Any, connect: Any) -> None:
        store, other = opened(url, node="one"), opened(url, node="two")
        store.queue("q").put("first")
        connection = connect()
        store.queue("q").put("slow", connection=connection)
        call = Calling(lambda: (other.queue("q").put("second"), len(claim(other, "q").entries)))
        assert call.wait(10)[1] == 2
        connection.commit()
        assert len(claim(other, "q").entries) == 1


def _settles(store: Any, entry: Any) -> bool:
    try:
        store.driver.commit(Step((Ending(entry.lease, "done"),), repeat=True))
    except (StoreUnavailable, OutcomeUnknown):
        return False
    return True


class TestHeartbeats:
    """Leases are kept whatever others do meanwhile."""

    @pytest.mark.parametrize("end", ["rollback", "commit"])
    def test_a_users_transaction_that_ends_one_entry_costs_no_other_its_lease(
        self, store: Any, connect: Any, end: str
    ) -> None:
        """It may stay open for several leases: the heartbeat names all of them, and waits for nobody."""
        store.queue("q").put_many(range(3))
        lease = 1_500_000
        entries = store.driver.claim(ClaimRequest(new_nonce(), (Source("q", 3),), 3, "me", "one", lease)).entries
        leases = [entry.lease for entry in entries]
        connection = connect()
        store.driver.commit(Step((Ending(leases[0], "done"),)), connection=connection)
        begin = store.now()
        while store.now() < begin + 3 * lease:
            ends = Calling(lambda: store.driver.extend(leases, lease)).wait(5)
            assert None not in ends
            assert store.driver.reap(node="one").reaped == []
            time.sleep(0.05)
        getattr(connection, end)()
        assert [
            type(result) for result in store.driver.settle([Step((Ending(one, "done"),)) for one in leases[1:]]).results
        ] == [StepDone] * 2
        if end == "rollback":
            assert store.driver.reap(node="one").reaped == [(entries[0].id, "q")], "given back"
        assert len(store.driver.find(Find())) == (1 if end == "rollback" else 0)


class TestBecomingFifo:
    """A queue that becomes FIFO while a put into it is under way."""

    def test_what_was_under_way_is_handed_out(self, url: str, opened: Any, connect: Any) -> None:
        store, other = opened(url, node="one"), opened(url, node="two")
        store.queue("q").put("gone")
        store.driver.commit(Step((Ending(claim(store, "q").entries[0].lease, "done"),)))
        connection = connect()
        store.queue("q").put("under way", connection=connection)
        strict = other.queue("q", str, fifo=True)
        connection.commit()
        strict.put("later")
        seen = []
        for _ in range(4):
            for entry in claim(other, "q").entries:
                seen.append(entry.payload)
                other.driver.commit(Step((Ending(entry.lease, "done"),)))
        assert sorted(seen) == [b'"later"', b'"under way"']
        assert strict.counts().live == 0


# --- the caller's transaction ----------------------------------------------------------------------------------------


class TestConnections:
    """What callers' connections may be like."""

    def test_rows_of_another_kind(self, store: Any, connect: Any, kind: str) -> None:
        connection = connect()
        if kind == "postgres":
            connection.row_factory = psycopg.rows.dict_row
        else:
            connection.cursorclass = pymysql.cursors.DictCursor
        made = store.queue("q").put("a", unique="u", labels={"l": "1"}, connection=connection)
        assert store.queue("q").put("b", unique="u", connection=connection).id == made.id
        assert [entry.id for entry in store.queue("q").find(connection=connection)] == [made.id]
        connection.commit()
        assert store.queue("q").counts().ready == 1

    def test_one_that_commits_by_itself_is_refused(self, store: Any, connect: Any, kind: str) -> None:
        connection = connect()
        if kind == "postgres":
            connection.autocommit = True
        else:
            connection.autocommit(True)
        with pytest.raises(BadInput, match="commits every statement by itself"):
            store.queue("q").put("a", connection=connection)
        assert store.queue("q").counts().live == 0
        run(connection, "BEGIN")
        store.queue("q").put("a", connection=connection)
        assert store.queue("q").counts().live == 0
        run(connection, "COMMIT")
        assert store.queue("q").counts().live == 1

    def test_a_snapshot_older_than_the_queue(self, store: Any, url: str, opened: Any, connect: Any, kind: str) -> None:
        connection = connect()
        run(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        run(connection, "SELECT * FROM penstock_meta").fetchall()
        opened(url, node="two").queue("new").put("first", unique="u")
        try:
            store.queue("new").put("second", connection=connection)
            assert store.queue("new").put("third", unique="u", connection=connection).created is False
        except Conflict:
            assert kind == "postgres", "it gives such a transaction up"
            connection.rollback()
        else:
            connection.commit()
            assert store.queue("new").counts().ready == 2

    def test_a_failed_transaction_is_told(self, store: Any, connect: Any, kind: str) -> None:
        if kind == "mysql":
            return  # there a failed statement fails nothing else
        connection = connect()
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT nonsense")
        with pytest.raises(Conflict, match="has failed already"):
            store.queue("q").put("a", connection=connection)


class TestTransactional:
    """Put, publish, find, update, cancel and finish live and die with a transaction of the caller's."""

    @pytest.fixture
    def engine(self, url: str, kind: str) -> Iterator[Any]:
        address = (
            url.partition("?")[0].replace("mysql:", "mysql+pymysql:").replace("postgresql:", "postgresql+psycopg:")
        )
        schema = url.partition("search_path%3D")[2]
        made = create_engine(address, connect_args={"options": f"-csearch_path={schema}"} if schema else {})
        yield made
        made.dispose()

    @pytest.mark.parametrize("how", ["driver", "connection", "session"])
    @pytest.mark.parametrize("end", ["commit", "rollback"])
    def test_lives_and_dies(self, store: Any, connect: Any, engine: Any, how: str, end: str) -> None:
        queue = store.queue("q")
        with contextlib.ExitStack() as stack:
            if how == "driver":
                handle = connect()
                run(handle, "CREATE TABLE business (n INTEGER)")
                handle.commit()
                run(handle, "INSERT INTO business VALUES (1)")
            elif how == "connection":
                handle = stack.enter_context(engine.connect())
                handle.execute(text("CREATE TABLE business (n INTEGER)"))
                handle.commit()
                handle.execute(text("INSERT INTO business VALUES (1)"))
            else:
                handle = stack.enter_context(Session(engine))
                handle.execute(text("CREATE TABLE business (n INTEGER)"))
                handle.commit()
                handle.execute(text("INSERT INTO business VALUES (1)"))
            put = queue.put("x", unique="u", labels={"k": "v"}, connection=handle)
            assert queue.find() == [], "nobody sees it yet"
            assert [one.id for one in queue.find(connection=handle)] == [put.id]
            getattr(handle, end)()
            rows = 1 if end == "commit" else 0
            assert len(queue.find(labels={"k": "v"})) == rows
            looker = connect()
            assert run(looker, "SELECT count(*) FROM business").fetchone()[0] == rows
        assert queue.put("y", unique="u").created is (end == "rollback")

    def test_a_refused_put_leaves_the_callers_work_alone(self, store: Any, connect: Any) -> None:
        queue = store.queue("q")
        queue.put("first", id="mine")
        connection = connect()
        run(connection, "CREATE TABLE business (n INTEGER)")
        connection.commit()
        run(connection, "INSERT INTO business VALUES (1)")
        with pytest.raises(Exception, match="mine"):
            queue.put("other", id="mine", connection=connection)
        queue.put("second", connection=connection)
        connection.commit()
        assert run(connection, "SELECT count(*) FROM business").fetchone()[0] == 1
        assert [entry.value for entry in queue.find()] == ["first", "second"]

    def test_the_commit_wakes_a_worker_of_another_handle(self, url: str, opened: Any, connect: Any) -> None:
        store, other = opened(url, node="one"), opened(url, node="two")
        seen: list[str] = []
        other.queue("q", str).add_handler(seen.append)
        with working(other, poll="1h"):
            time.sleep(0.2)
            connection = connect()
            store.queue("q", str).put("x", connection=connection)
            time.sleep(0.5)
            assert seen == []
            connection.commit()
            eventually(lambda: seen == ["x"], "the commit wakes it", 5)

    def test_a_connection_of_something_else(self, store: Any) -> None:
        import sqlite3

        with contextlib.closing(sqlite3.connect(":memory:")) as other, pytest.raises(BadInput, match="connection="):
            store.queue("q").put("x", connection=other)


# --- time, text, tables ----------------------------------------------------------------------------------------------


def test_time_is_the_servers(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = store.now()
    monkeypatch.setattr(store.clock, "micros", lambda: now + 3_600_000_000)  # this host is an hour ahead
    put = store.queue("q").put("x")
    [entry] = claim(store, "q").entries
    assert abs(put.due_us - now) < 5_000_000
    assert abs(entry.lease.claimed_us - now) < 5_000_000
    store.queue("q").put("later", delay="1s")
    assert claim(store, "q").entries == []


def test_text_compares_bytewise(store: Any) -> None:
    texts = ["a", "A", "a ", "á", "a\u0301", "ß", "ss", "\N{SNOWMAN}", "\N{PILE OF POO}", "é", "e\u0301", "İ", "i"]
    queue = store.queue("q")
    for value in texts:
        assert queue.put("x", unique=value, labels={"k": value}).created, value
    for value in texts:
        assert not queue.put("x", unique=value).created
        assert [entry.unique for entry in queue.find(labels={"k": value})] == [value]
    for name in ("q.B", "q.a", "q.A", "q.b"):
        store.queue(name).put("x")
    assert [one.queue for one in store.counts()] == sorted(one.queue for one in store.counts())
    assert len(claim(store, "q.a").entries) == 1


def test_several_processes_may_make_the_tables_at_once(url: str) -> None:
    space = f"s{new_nonce()}"
    gate = threading.Barrier(6)

    def open_one() -> int:
        gate.wait(10)
        with open_queues(with_options(url, f"space={space}")) as store:
            return int(store.queue("q").put("x").created)

    assert sum(call.wait() for call in [Calling(open_one) for _ in range(6)]) == 6
    with open_queues(with_options(url, f"space={space}")) as store:
        assert len(store.queue("q").find()) == 6


@pytest.mark.parametrize("after", [1, 5, 12, 18])
def test_a_migration_that_broke_off_is_taken_up(url: str, after: int, connect: Any) -> None:
    """PostgreSQL undoes it whole; MariaDB keeps every statement that was done."""
    space = f"s{new_nonce()}"
    count = 0

    class Stop(BaseException):
        pass

    def strike(point: str) -> None:
        nonlocal count
        count += point == "migrate.statement"
        if count == after:
            raise Stop

    failpoints.arm(strike)
    try:
        with pytest.raises(Stop):
            open_queues(with_options(url, f"space={space}"))
    finally:
        failpoints.arm(None)
    with open_queues(with_options(url, f"space={space}")) as store:
        store.queue("q").put("x", unique="u", labels={"a": "b"})
        assert len(claim(store, "q").entries) == 1
    connection = connect()
    found = run(connection, f"SELECT table_name FROM information_schema.tables WHERE table_name LIKE '{space}%'")
    made = {row[0].removeprefix(space) for row in found.fetchall()}
    whole = f"s{new_nonce()}"
    open_queues(with_options(url, f"space={whole}")).close()
    found = run(connect(), f"SELECT table_name FROM information_schema.tables WHERE table_name LIKE '{whole}%'")
    assert made == {row[0].removeprefix(whole) for row in found.fetchall()}


def test_a_fake_clock_moves_everything(url: str, opened: Any) -> None:
    clock = FakeClock()
    store = opened(url, clock=clock, node="one")
    store.queue("q").put("x", delay="1h")
    assert claim(store, "q").entries == []
    clock.advance("1h")
    assert len(claim(store, "q").entries) == 1


def test_doctor_says_what_it_saw(store: Any) -> None:
    found = {one.what: one.level for one in store.check()}
    assert found["server"] == "good"
    assert found["schema"] == "good"
    assert found["durability"] == "warning", "the tests' server does not sync"


def test_a_search_by_labels_of_what_was_just_put(store: Any) -> None:
    """The server has not counted the rows yet, and must not compare those of one label with those of another."""
    queue = store.queue("q")
    queue.put_many(range(3_000), labels={"customer": "ann", "kind": "x"}, chunk=1_000)
    queue.put(-1, labels={"customer": "ben", "kind": "x"})
    began = time.monotonic()
    for labels in ({"customer": "ben", "kind": "x"}, {"kind": "x", "customer": "ben"}):
        assert [entry.value for entry in queue.find(labels=labels)] == [-1]
    assert [entry.value for entry in queue.find(labels={"customer": "ann", "kind": "x"}, limit=10)] == [*range(10)]
    assert queue.find(labels={"customer": "ann", "kind": "y"}) == []
    assert time.monotonic() - began < 5

"""What only the MariaDB/MySQL store does: packets, messages, rows read, locks in callers' transactions, looking."""

import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pymysql
import pytest
from tests.store_urls import STORES
from tests.stores.own_servers import (
    Calling,
    claim,
    connection_of,
    eventually,
    mysql_cursor,
    new,
    starting,
    with_options,
    working,
)

from penstock import open_queues
from penstock.errors import CannotOpen, EntryLeased, EntryNotFound, NotHeld, PayloadTooLarge, PenstockError
from penstock.ids import new_id, new_nonce
from penstock.queue.protocol import ClaimRequest, Definition, Ending, Find, Link, NewResult, Source, Step, StepDone


@pytest.fixture
def url(tmp_path: Any, servers: Callable[[str], Any]) -> str:
    return STORES["mysql"](tmp_path, servers).url


@pytest.fixture
def store(url: str, opened: Callable[..., Any]) -> Any:
    return opened(url, node="one")


@pytest.fixture
def connect(tmp_path: Any, servers: Callable[[str], Any], url: str) -> Iterator[Callable[[], Any]]:
    """A program's own connections to the same database."""
    made: list[Any] = []

    class Connection(pymysql.connections.Connection):  # type: ignore[type-arg]
        def execute(self, text: str) -> Any:
            cursor = self.cursor()
            cursor.execute(text)
            return cursor

    def connect_one() -> Any:
        database = url.rpartition("/")[2].partition("?")[0]
        made.append(Connection(host="127.0.0.1", port=servers("mysql").port, user="root", database=database))
        return made[-1]

    yield connect_one
    for connection in made:
        connection.close()


@pytest.fixture
def small(servers: Callable[[str], Any]) -> Iterator[int]:
    """Packets of at most 128 KiB while the test runs."""
    with mysql_cursor(servers("mysql").port) as cursor:
        cursor.execute("SELECT @@GLOBAL.max_allowed_packet")
        (before,) = cursor.fetchone()
        cursor.execute("SET GLOBAL max_allowed_packet = 131072")
    yield 131072
    with mysql_cursor(servers("mysql").port) as cursor:
        cursor.execute(f"SET GLOBAL max_allowed_packet = {before}")


class TestPackets:
    def test_one_payload_that_is_too_large_for_a_packet(self, url: str, small: int, opened: Any) -> None:
        store = opened(url)
        queue = store.queue("q", str)
        queue.put("before")
        begin = time.monotonic()
        with pytest.raises(PayloadTooLarge, match="max_allowed_packet"):
            queue.put("x" * 200_000)
        assert time.monotonic() - begin < 5
        assert [entry.value for entry in queue.find()] == ["before"]
        assert queue.put("after").created

    def test_many_small_ones_are_split_into_packets(self, url: str, small: int, opened: Any) -> None:
        queue = opened(url).queue("q", str)
        queue.put_many(["x" * 1000] * 500)
        assert queue.counts().ready == 500

    def test_a_claim_whose_entries_are_larger_than_a_packet(self, url: str, small: int, opened: Any) -> None:
        store = opened(url)
        store.queue("q", str).put_many(["x" * 10_000] * 30)
        entries = claim(store, "q", limit=30).entries
        assert len(entries) == 30
        store.driver.settle([Step((Ending(entry.lease, "done"),)) for entry in entries])
        assert len(store.driver.history(Find(limit=100))) == 30

    def test_results_that_together_are_larger_than_a_packet(self, url: str, small: int, opened: Any) -> None:
        store = opened(url)
        puts = store.queue("q", int).put_many(range(20))
        entries = claim(store, "q", limit=20).entries
        result = NewResult(b'"' + b"x" * 30_000 + b'"', "json", 60_000_000, queue="q")
        steps = [Step((Ending(entry.lease, "done", result=result),)) for entry in entries]
        following = ClaimRequest(new_id(), (Source("q", 10, 5),), 10, "worker", "one", 60_000_000)
        assert not any(isinstance(done, Exception) for done in store.driver.settle(steps, following).results)
        assert {len(store.queue("q", str).result(put.id).value) for put in puts} == {30_000}

    def test_doctor_warns(self, url: str, small: int, opened: Any) -> None:
        found = {one.what: one for one in opened(url).check()}
        assert found["max_allowed_packet"].level == "warning"
        assert "131,072" in found["max_allowed_packet"].detail


@pytest.mark.parametrize("how", ["round trip", "alone"])
def test_very_many_wait_for_one(store: Any, how: str) -> None:
    """What a round trip notes of their links is longer than the server lets a list be by default."""
    member = new("q")
    store.driver.commit(Step(puts=(member,)))
    for _ in range(5):
        waiting = tuple(new("then") for _ in range(3000))
        store.driver.commit(Step(puts=waiting, links=tuple(Link(member.id, one.id) for one in waiting)))
    [entry] = claim(store, "q").entries
    following = ClaimRequest(new_id(), (Source("q", 10, 5),), 10, "worker", "one", 60_000_000)
    store.driver.settle([Step((Ending(entry.lease, "done"),))], following if how == "round trip" else None)
    assert store.queue("then").counts().ready == 15_000


class TestSettings:
    @pytest.mark.parametrize(
        "settings", [{"innodb-flush-log-at-trx-commit": "2"}, {"log-bin": "binlog", "sync-binlog": "0"}]
    )
    def test_a_server_that_forgets_is_refused_unless_asked_for(self, settings: dict[str, str]) -> None:
        with starting() as start:
            server = start("mysql", durable=True, **settings)
            with pytest.raises(CannotOpen, match="durability=fast"):
                open_queues(server.url)
            with open_queues(server.url + "?durability=fast") as store:
                assert store.queue("q").put("x").created

    def test_the_servers_own_modes_do_not_matter(self, servers: Any, url: str, opened: Any) -> None:
        """A lax mode would cut texts off, ANSI quotes would break statements, another zone would shift times."""
        with mysql_cursor(servers("mysql").port) as cursor:
            cursor.execute("SET GLOBAL sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES', GLOBAL time_zone = '+05:00'")
        try:
            store = opened(url)
            queue = store.queue("q", str)
            queue.put("back\\slash 'quote' \"double\"", unique="a\\b'c", labels={"k": "x\\'"})
            [entry] = queue.find(labels={"k": "x\\'"})
            assert (entry.value, entry.unique) == ("back\\slash 'quote' \"double\"", "a\\b'c")
            assert abs(store.now() - store.clock.micros()) < 60_000_000
            assert len(claim(store, "q").entries) == 1
        finally:
            with mysql_cursor(servers("mysql").port) as cursor:
                cursor.execute("SET GLOBAL sql_mode = DEFAULT, GLOBAL time_zone = DEFAULT")

    def test_the_store_reads_committed(self, store: Any) -> None:
        with connection_of(store) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT @@tx_isolation")
            assert cursor.fetchone()[0] == "READ-COMMITTED"


class TestWaking:
    def test_an_idle_worker_of_another_handle_looks_again_by_itself(self, url: str, opened: Any) -> None:
        one, two = opened(url), opened(url)
        seen: list[str] = []
        one.queue("q", str).add_handler(seen.append)
        with working(one, poll="1h"):
            time.sleep(0.3)
            begin = time.monotonic()
            two.queue("q", str).put("x")
            eventually(lambda: seen == ["x"], "it looks every quarter of a second")
            assert time.monotonic() - begin < 2

    def test_what_is_committed_after_a_later_put_is_found_too(self, url: str, opened: Any, connect: Any) -> None:
        one, two = opened(url), opened(url)
        seen: list[str] = []
        one.queue("q", str).add_handler(seen.append)
        one.driver.define("q", Definition())
        with working(one, poll="1h"):
            connection = connect()
            two.queue("q", str).put("early", connection=connection)
            two.queue("q", str).put("late")
            eventually(lambda: seen == ["late"], "what is committed is found")
            connection.commit()
            eventually(lambda: seen == ["late", "early"], "and what has a lower number than that")

    def test_an_idle_worker_asks_little(self, url: str, servers: Any, opened: Any) -> None:
        """Its looks, its claims and what it does to keep order, all in all."""
        store = opened(url, node="one")
        queue = store.queue("q", str)
        handled: list[str] = []
        queue.add_handler(handled.append)
        with working(store), mysql_cursor(servers("mysql").port) as cursor:
            queue.put("x")
            eventually(lambda: handled == ["x"], "it was busy once")
            eventually(lambda: _questions_in(cursor, 5) <= 5 * 4, "no more than four statements a second")
            queue.put("y")
            eventually(lambda: handled == ["x", "y"], "and it is awake")


def _questions_in(cursor: Any, seconds: float) -> int:
    """How many statements the server was asked meanwhile."""

    def asked() -> int:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Questions'")
        return int(cursor.fetchone()[1])

    before = asked()
    time.sleep(seconds)
    return asked() - before - 1


class TestMessages:
    """What workers and plain puts do is one message, whatever it takes."""

    @pytest.fixture
    def messages(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """What has been sent since it was emptied."""
        sent: list[str] = []
        honest = pymysql.connections.Connection._execute_command

        def execute(self: Any, command: int, sql: Any) -> None:
            sent.append(str(sql))
            honest(self, command, sql)

        monkeypatch.setattr(pymysql.connections.Connection, "_execute_command", execute)
        return sent

    def test_a_plain_put(self, store: Any, messages: list[str]) -> None:
        queue = store.queue("q")
        queue.put("first")
        messages.clear()
        queue.put("second", delay="1h", headers={"a": "b"}, priority=3, expires="2h")
        assert len(messages) == 1

    def test_a_round_trip(self, store: Any, messages: list[str]) -> None:
        store.queue("q").put_many(range(20))
        entries = claim(store, "q", limit=10).entries
        messages.clear()
        wish = ClaimRequest(new_nonce(), (Source("q", 10),), 10, "worker", "one", 60_000_000)
        reply = store.driver.settle([Step((Ending(entry.lease, "done"),)) for entry in entries], wish)
        assert len(reply.claimed.entries) == 10
        assert len(messages) == 1

    def test_entries_without_links_and_results_pay_for_neither(self, store: Any, messages: list[str]) -> None:
        store.queue("q").put_many(range(120))
        sizes = []
        for count in (100, 10):
            entries = claim(store, "q", limit=count).entries
            messages.clear()
            wish = ClaimRequest(new_nonce(), (Source("q", 1),), 1, "worker", "one", 60_000_000)
            reply = store.driver.settle([Step((Ending(entry.lease, "done"),)) for entry in entries], wish)
            assert reply.results == [StepDone()] * count
            [message] = messages
            assert not re.search(r"_(links|waits|results|labels)\b", message)
            sizes.append(len(message))
        # Which one and under which claim, where that is needed, and nothing that has to be escaped.
        assert (sizes[0] - sizes[1]) / 90 < 100

    def test_a_claim_that_again_finds_nothing_is_one_statement(self, store: Any, messages: list[str]) -> None:
        store.queue("q").put("x", delay="1h")
        assert claim(store, "q").entries == []
        messages.clear()
        assert claim(store, "q").entries == []
        assert [";" in message for message in messages] == [False]


class TestBacklog:
    """A claim reads what it takes, however much waits behind it."""

    @pytest.fixture
    def store(self, url: str, opened: Callable[..., Any]) -> Any:
        return opened(with_options(url, "pool_size=1"), node="one")

    def reads_of(self, store: Any, call: Callable[[], Any]) -> int:
        """How many rows the store's only connection reads meanwhile."""
        with connection_of(store) as connection, connection.cursor() as cursor:
            cursor.execute("FLUSH STATUS")
        call()
        with connection_of(store) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
            return sum(int(number) for name, number in cursor.fetchall() if name != "Handler_read_rnd_deleted")

    @pytest.mark.parametrize("kind", ["plain", "priorities", "family", "two queues", "fifo", "rated"])
    def test_reads_do_not_grow_with_it(self, store: Any, kind: str) -> None:
        options: dict[str, Any] = {"fifo": {"fifo": True}, "rated": {"rate": "1000000/s"}}.get(kind, {})
        reads = []
        for size in (100, 10_000):
            queue = store.queue(f"q{size}", int, **options)
            queue.put_many(range(size), chunk=2000)
            if kind == "priorities":
                queue.put_many(range(size), chunk=2000, priority=5)
            queues = (f"q{size}", "other") if kind == "two queues" else (f"q{size}",)
            sources = tuple(Source(name, 10, None, family=kind == "family") for name in queues)
            wish = ClaimRequest(new_nonce(), sources, 10, "worker", "one", 60_000_000)
            reads.append(self.reads_of(store, lambda wish=wish: store.driver.claim(wish)))
            assert len(store.driver.find(Find(queue=f"q{size}", states=("leased",)))) == (1 if kind == "fifo" else 10)
        # A family reads at most some hundred rows of each queue to find out which have something.
        assert reads[1] <= reads[0] + (1100 if kind == "family" else 30)

    def test_a_round_trip_neither(self, store: Any) -> None:
        reads = []
        for size in (100, 10_000):
            name = f"q{size}"
            store.queue(name, int).put_many(range(size), chunk=2000)
            entries = claim(store, name, limit=10).entries
            wish = ClaimRequest(new_nonce(), (Source(name, 10),), 10, "worker", "one", 60_000_000)
            steps = [Step((Ending(entry.lease, "done"),)) for entry in entries]
            reads.append(self.reads_of(store, lambda steps=steps, wish=wish: store.driver.settle(steps, wish)))
        assert reads[1] <= reads[0] + 30

    def test_who_holds_an_entry_is_found_at_once(self, store: Any) -> None:
        reads = []
        queue = store.queue("q", int)
        for claims in (10, 2000):
            queue.put_many(range(claims * 10), chunk=5000)
            for _ in range(claims):
                entries = claim(store, "q", limit=10).entries
            reads.append(self.reads_of(store, lambda id_=entries[3].id: store.driver.find(Find(ids=(id_,)))))
        assert reads[1] <= reads[0] + 5


class TestCallersTransactions:
    """A caller's transaction reads repeatably, as the server has it by default: it must lock nothing but its own."""

    @pytest.mark.parametrize("what", ["put", "labelled", "finish", "retry", "cancel", "update", "update again"])
    def test_it_keeps_nobody_waiting(self, url: str, store: Any, opened: Any, connect: Any, what: str) -> None:
        other = opened(url, node="two")
        queue = store.queue("q", int)
        queue.put_many([1, 2, 3])
        mine, held, retried = claim(store, "q", limit=3).entries
        store.driver.commit(Step((Ending(retried.lease, "retry"),)))
        newest = queue.put(4)
        connection = connect()
        if what == "put":
            queue.put(5, connection=connection)
        elif what == "labelled":
            queue.put(5, unique="u", labels={"a": "b"}, connection=connection)
        elif what in ("finish", "retry"):
            outcome = "done" if what == "finish" else "retry"
            store.driver.commit(Step((Ending(mine.lease, outcome, delay_us=10**9),)), connection=connection)
        elif what == "cancel":
            queue.cancel(newest.id, connection=connection)
        else:
            queue.update(retried.id if what == "update again" else newest.id, 44, connection=connection)

        def others_work() -> None:
            queue.put(6)
            other.queue("q", int).put_many([7, 8], labels={"a": "b"})
            other.queue("q", int).put(9, unique="v")
            taken = claim(other, "q").entries
            assert {int(entry.payload) for entry in taken} >= {6, 7, 8, 9}
            other.driver.settle([Step((Ending(entry.lease, "done"),)) for entry in (*taken, held)])
            other.driver.prune(older_than_us=0)
            other.driver.reap(node="two")

        Calling(others_work).wait(10)
        connection.commit()

    def test_one_that_began_before_the_claim_may_finish_it(self, store: Any, connect: Any) -> None:
        connection = connect()
        connection.execute("SELECT count(*) FROM penstock").fetchall()  # from now on it sees nothing new
        store.queue("q").put("x")
        [entry] = claim(store, "q").entries
        store.driver.commit(Step((Ending(entry.lease, "done"),)), connection=connection)
        connection.commit()
        assert [row.state for row in store.driver.history(Find())] == ["done"]

    def test_an_id_that_it_cannot_see_yet_is_not_put_twice(self, store: Any, connect: Any) -> None:
        connection = connect()
        connection.execute("SELECT count(*) FROM penstock").fetchall()
        queue = store.queue("q", str)
        queue.put("x", id="a")
        queue.put("x", id="a", connection=connection)
        queue.put("y", id="b", connection=connection)
        connection.commit()
        assert sorted(entry.id for entry in queue.find()) == ["a", "b"]


class TestCallersSnapshots:
    """A caller's transaction that has read before sees nothing new; what it asks of a queue follows what is there."""

    @pytest.fixture
    def snapshot(self, connect: Any) -> Callable[[], Any]:
        def begin() -> Any:
            connection = connect()
            connection.execute("SELECT count(*) FROM penstock").fetchall()
            return connection

        return begin

    def done(self, store: Any, queue: str) -> None:
        [entry] = claim(store, queue).entries
        store.driver.commit(Step((Ending(entry.lease, "done"),)))

    @pytest.mark.parametrize("meanwhile", ["put", "ended"])
    def test_after_one_that_it_cannot_see(self, store: Any, snapshot: Any, meanwhile: str) -> None:
        if meanwhile == "put":
            connection = snapshot()
        first = store.queue("q").put("x").id
        if meanwhile == "ended":
            connection = snapshot()
            self.done(store, "q")
        with pytest.raises(EntryNotFound):
            store.queue("then").put("y", after=[first], connection=connection)
        connection.rollback()

    def test_after_one_that_is_claimed_meanwhile(self, store: Any, snapshot: Any) -> None:
        first = store.queue("q").put("x").id
        connection = snapshot()
        [entry] = claim(store, "q").entries
        store.queue("then").put("y", after=[first], connection=connection)
        connection.commit()
        assert store.queue("then").counts().held == 1
        store.driver.commit(Step((Ending(entry.lease, "done"),)))
        assert store.queue("then").counts().ready == 1

    def test_into_a_batch_that_is_released_meanwhile(self, store: Any, snapshot: Any) -> None:
        with store.batch(then=(store.queue("then"), "y")) as batch:
            batch.put(store.queue("q"), "x")
        connection = snapshot()
        self.done(store, "q")
        with pytest.raises(NotHeld):
            store.queue("q").put("z", batch=batch.id, connection=connection)
        connection.rollback()
        assert store.queue("then").counts().ready == 1

    def test_the_last_member_of_a_batch_that_is_put_meanwhile(self, store: Any, snapshot: Any) -> None:
        connection = snapshot()
        with store.batch(then=(store.queue("then"), "y")) as batch:
            batch.put(store.queue("q"), "x")
        [entry] = claim(store, "q").entries
        store.driver.commit(Step((Ending(entry.lease, "done"),)), connection=connection)
        connection.commit()
        assert store.queue("then").counts().ready == 1

    @pytest.mark.parametrize("how", ["done", "cancel"])
    def test_a_member_when_the_other_has_ended_meanwhile(self, store: Any, snapshot: Any, how: str) -> None:
        with store.batch(then=(store.queue("then"), "y"), on="ended") as batch:
            last = [batch.put(store.queue("q"), number) for number in range(2)][1]
        [first] = claim(store, "q", limit=1).entries
        [second] = claim(store, "q", limit=1).entries if how == "done" else [None]
        connection = snapshot()
        store.driver.commit(Step((Ending(first.lease, "done"),)))
        if how == "done":
            store.driver.commit(Step((Ending(second.lease, "done"),)), connection=connection)
        else:
            store.queue("q").cancel(last, connection=connection)
        connection.commit()
        assert store.queue("then").counts().ready == 1

    @pytest.mark.parametrize("how", ["cancel", "update"])
    @pytest.mark.parametrize("meanwhile", ["claimed", "ended"])
    def test_changes_of_what_is_not_waiting_any_more(self, store: Any, snapshot: Any, how: str, meanwhile: str) -> None:
        queue = store.queue("q")
        first = queue.put("x").id
        connection = snapshot()
        [entry] = claim(store, "q").entries
        if meanwhile == "ended":
            store.driver.commit(Step((Ending(entry.lease, "done"),)))
        change = queue.cancel if how == "cancel" else partial(queue.update, value="z")
        with pytest.raises(EntryLeased if meanwhile == "claimed" else EntryNotFound):
            change(first, connection=connection)
        connection.rollback()


class TestDeadlocks:
    def test_a_deadlock_in_the_callers_transaction_is_theirs_to_repeat(
        self, url: str, servers: Any, store: Any
    ) -> None:
        """The server has rolled back all of it, the caller's work too: saying so is all that may be done."""
        database = url.rpartition("/")[2].partition("?")[0]
        arguments: dict[str, Any] = {
            "host": "127.0.0.1", "port": servers("mysql").port, "user": "root", "database": database,
        }  # fmt: skip
        queue = store.queue("q", int)
        first, second = queue.put(1), queue.put(2)
        one, two = pymysql.connect(**arguments), pymysql.connect(**arguments)
        try:
            queue.update(first.id, 11, connection=one)
            queue.update(second.id, 22, connection=two)
            call = Calling(lambda: queue.update(second.id, 12, connection=one))
            time.sleep(0.3)
            errors = []
            try:
                queue.update(first.id, 21, connection=two)
            except PenstockError as error:
                errors.append(error)
            two.rollback()
            try:
                call.wait()
            except PenstockError as error:
                errors.append(error)
            assert len(errors) == 1
            assert "1213" in str(errors[0]) or "eadlock" in str(errors[0])
            one.rollback()
        finally:
            one.close()
            two.close()
        assert sorted(entry.value for entry in queue.find()) == [1, 2]


def test_text_that_only_padding_tells_apart(store: Any) -> None:
    queue = store.queue("q")
    assert queue.put("x", unique="a").created
    assert queue.put("x", unique="a ").created
    assert not queue.put("x", unique="a ").created


def test_options_of_the_driver_reach_it(url: str, opened: Any) -> None:
    store = opened(with_options(url, "charset=utf8mb4"))
    assert store.queue("q").put("\N{PILE OF POO}").created

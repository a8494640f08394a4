"""What only the MariaDB/MySQL store does: packets that are too large, deadlocks, looking again by itself."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pymysql
import pytest
from tests.places import STORES
from tests.stores.servers_of_ones_own import (
    Calling,
    claim,
    connection_of,
    eventually,
    mysql_cursor,
    starting,
    with_options,
    working,
)

from penstock import open_queues
from penstock.errors import CannotOpen, PayloadTooLarge, PenstockError
from penstock.queue.store import Ending, Find, Step


@pytest.fixture
def url(tmp_path: Any, servers: Callable[[str], Any]) -> str:
    return STORES["mysql"](tmp_path, servers).url


@pytest.fixture
def store(url: str, opened: Callable[..., Any]) -> Any:
    return opened(url, node="one")


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
        store.settle([Step((Ending(entry.lease, "done"),)) for entry in entries])
        assert len(store.history(Find(limit=100))) == 30

    def test_doctor_warns(self, url: str, small: int, opened: Any) -> None:
        found = {one.what: one for one in opened(url).check()}
        assert found["max_allowed_packet"].level == "warning"
        assert "131,072" in found["max_allowed_packet"].detail


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

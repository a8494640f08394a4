"""What people get wrong about servers, on every one of them: a typed error, nothing lost, nothing that hangs."""

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.stores.own_servers import (
    Start,
    eventually,
    mysql_cursor,
    persistently,
    redis_client,
    starting,
    with_options,
    working,
    zookeeper_client,
)
from tools.servers import SERVERS, free_port

from penstock import open_queues
from penstock.errors import (
    BadInput,
    CannotOpen,
    OutcomeUnknown,
    PayloadTooLarge,
    SchemaMismatch,
    StoreReadOnly,
    StoreUnavailable,
)
from penstock.ids import new_nonce

ALL = list(SERVERS)


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    with starting() as starter:
        yield starter


@pytest.fixture(scope="module")
def own(start: Start) -> Callable[[str], Any]:
    """One server of each kind for this module, which may be stopped and set up badly."""
    made: dict[str, Any] = {}

    def own_server(name: str) -> Any:
        if name not in made:
            made[name] = start(name, durable=True)
        return made[name]

    return own_server


@pytest.fixture
def url(servers: Callable[[str], Any]) -> Callable[[str], str]:
    """A space of its own in the shared server."""

    def of(name: str) -> str:
        address = servers(name).url
        return with_options(address.replace("?durability=fast", ""), f"space=s{new_nonce()}", "durability=fast")

    return of


# --- who, where ------------------------------------------------------------------------------------------------------


def secured(name: str, server: Any) -> tuple[str, str]:
    """A user with a password on a server: the URL with the right one, and how to say the same with another."""
    if name == "postgres":
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute("DROP ROLE IF EXISTS ann")
            db.execute("CREATE ROLE ann LOGIN PASSWORD 'right-one'")
            db.execute("GRANT CREATE, USAGE ON SCHEMA public TO ann")
            rules = server.folder / "data" / "pg_hba.conf"
            text = rules.read_text()
            if "ann" not in text:
                rules.write_text(f"host all ann 127.0.0.1/32 scram-sha-256\n{text}")
            db.execute("SELECT pg_reload_conf()")
        time.sleep(0.1)
        return f"postgresql://ann:right-one@127.0.0.1:{server.port}/postgres", "ann"
    if name == "mysql":
        with mysql_cursor(server.port) as cursor:
            cursor.execute("CREATE OR REPLACE USER ann IDENTIFIED BY 'right-one'")
            cursor.execute("GRANT ALL ON penstock.* TO ann")
        return f"mysql://ann:right-one@127.0.0.1:{server.port}/penstock", "ann"
    if name == "redis":
        with redis_client(server.port) as client:
            client.execute_command("ACL", "SETUSER", "ann", "on", ">right-one", "~*", "&*", "+@all")
        return f"redis://ann:right-one@127.0.0.1:{server.port}/0", "ann"
    return f"zookeeper://ann:right-one@127.0.0.1:{server.port}/secured", "ann"


@pytest.mark.parametrize("name", ALL)
def test_wrong_credentials(name: str, own: Callable[[str], Any]) -> None:
    right, user = secured(name, own(name))
    with open_queues(with_options(right, "space=login")) as store:
        store.queue("q").put("x")
        assert "right-one" not in store.name
    for wrong in ("wrong-one", "right-one-more"):
        with pytest.raises(CannotOpen, match=r"(?i)user|password") as caught:
            open_queues(with_options(right.replace("right-one", wrong), "space=login"))
        assert "-one" not in str(caught.value), "no password in a message"
    if name != "zookeeper":  # there a login is whatever its nodes were made with
        with pytest.raises(CannotOpen):
            open_queues(with_options(right.replace(f"//{user}:", "//nobody:"), "space=login"))


@pytest.mark.parametrize(
    ("name", "path"), [("postgres", "/nowhere"), ("mysql", "/nowhere"), ("redis", "/99"), ("zookeeper", "/a/../b")]
)
def test_wrong_database(name: str, path: str, servers: Callable[[str], Any]) -> None:
    user = {"postgres": "penstock@", "mysql": "root@"}.get(name, "")
    scheme = SERVERS[name].scheme
    with pytest.raises((CannotOpen, BadInput), match=r"database|path|DB index"):
        open_queues(f"{scheme}://{user}127.0.0.1:{servers(name).port}{path}?durability=fast")


@pytest.mark.parametrize("name", ALL)
def test_a_url_with_a_slip(name: str) -> None:
    scheme = SERVERS[name].scheme
    with pytest.raises(BadInput, match=r"abc|port"):
        open_queues(f"{scheme}://127.0.0.1:abc/x")
    with pytest.raises(BadInput, match=r"(?s)timeoutt.*timeout"):
        open_queues(f"{scheme}://127.0.0.1:1/0?timeoutt=3")


@pytest.mark.parametrize("name", ALL)
def test_nobody_is_there(name: str) -> None:
    user = {"postgres": "penstock@", "mysql": "root@"}.get(name, "")
    path = {"postgres": "/postgres", "mysql": "/penstock", "redis": "/0"}.get(name, "/x")
    option = "?timeout=500ms" if name == "zookeeper" else ""
    begin = time.monotonic()
    with pytest.raises(CannotOpen, match=r"(?i)server|running|answer|reach") as raised:
        open_queues(f"{SERVERS[name].scheme}://{user}127.0.0.1:{free_port()}{path}{option}")
    assert time.monotonic() - begin < 10
    said = str(raised.value).replace(option, "")
    assert not re.search(r"\w (Is|Check) ", said), "the cause and the next step are sentences of their own"
    assert said.count("?") <= 1


@pytest.mark.parametrize("name", ["postgres", "mysql"])
def test_a_user_who_may_not_make_tables(name: str, own: Callable[[str], Any]) -> None:
    server = own(name)
    if name == "postgres":
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute("DROP ROLE IF EXISTS reader")
            db.execute("CREATE ROLE reader LOGIN")
        address = f"postgresql://reader@127.0.0.1:{server.port}/postgres"
    else:
        with mysql_cursor(server.port) as cursor:
            cursor.execute("CREATE OR REPLACE USER reader")
            cursor.execute("GRANT SELECT ON penstock.* TO reader")
        address = f"mysql://reader@127.0.0.1:{server.port}/penstock"
    with pytest.raises(CannotOpen, match=r"(?i)denied|rights|grant"):
        open_queues(with_options(address, "space=forbidden"))


# --- servers that go away --------------------------------------------------------------------------------------------


@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", ["stop", "crash"])
@pytest.mark.parametrize("name", ALL)
def test_workers_come_back_when_the_server_does(name: str, how: str, own: Callable[[str], Any]) -> None:
    server = own(name)
    quick = ("session=5s", "timeout=2s") if name == "zookeeper" else ()
    with open_queues(with_options(server.url, f"space=back_{how}", *quick)) as store:
        queue = store.queue("q", int)
        seen: list[int] = []
        errors: list[Any] = []
        store.signals.subscribe(errors.append, "store_error")
        queue.add_handler(seen.append, concurrency=4)
        with working(store):
            queue.put_many(range(20))
            eventually(lambda: len(seen) == 20, "all handled before")
            getattr(server, how)()
            begin = time.monotonic()
            with pytest.raises((StoreUnavailable, OutcomeUnknown)):
                queue.put(99, id="the-lost-one")
            assert time.monotonic() - begin < 15
            server.start()
            persistently(lambda: queue.put(99, id="the-lost-one"))
            for number in range(20, 40):
                persistently(lambda number=number: queue.put(number, id=f"n{number}"))
            eventually(lambda: set(seen) == {*range(40), 99} and not queue.counts().live, "all handled after")
    assert sorted(seen) == [*range(40), 99], "each once"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ALL)
def test_a_frozen_server_hangs_nobody(name: str, own: Callable[[str], Any]) -> None:
    server = own(name)
    bound = {"redis": "timeout=1", "zookeeper": "timeout=1s"}.get(name, "reply_timeout=1&timeout=1")
    with open_queues(with_options(server.url, "space=frozen", bound)) as store:
        queue = store.queue("q", int)
        queue.put(1, id="n1")
        server.freeze()
        try:
            begin = time.monotonic()
            with pytest.raises((StoreUnavailable, OutcomeUnknown)):
                queue.put(2, id="n2")
            with pytest.raises((StoreUnavailable, OutcomeUnknown)):
                queue.find()
            assert time.monotonic() - begin < 45
        finally:
            server.thaw()
        assert persistently(lambda: queue.put(2, id="n2")).created
        assert [entry.value for entry in persistently(queue.find)] == [1, 2]


# --- servers that take no writes -------------------------------------------------------------------------------------


def read_only(name: str, start: Start, own: Callable[[str], Any], space: str) -> tuple[str, str, Callable[[], Any]]:
    """The URL to write with, the one that cannot, and how writing is allowed there after all."""
    if name == "redis":
        primary = start(name)
        replica = start(name, replicaof=f"127.0.0.1 {primary.port}")

        def promote() -> None:
            with redis_client(replica.port) as client:
                client.execute_command("REPLICAOF", "NO", "ONE")

        with redis_client(replica.port) as client:
            eventually(lambda: client.info()["master_link_status"] == "up", "the replica follows")
        return with_options(primary.url, f"space={space}"), with_options(replica.url, f"space={space}"), promote
    server = own(name)
    if name == "postgres":
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute("DROP ROLE IF EXISTS watcher")
            db.execute("CREATE ROLE watcher LOGIN SUPERUSER")
            db.execute("ALTER ROLE watcher SET default_transaction_read_only = on")

        def allow() -> None:
            with psycopg.connect(server.url, autocommit=True) as db:
                db.execute("ALTER ROLE watcher RESET default_transaction_read_only")
                # Settings of a role are read when a connection is made.
                db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'watcher'")

        other = server.url.replace("penstock@", "watcher@")
        return with_options(server.url, f"space={space}"), with_options(other, f"space={space}"), allow
    with mysql_cursor(server.port) as cursor:
        cursor.execute("CREATE OR REPLACE USER watcher")
        cursor.execute("GRANT ALL ON penstock.* TO watcher")
        cursor.execute("SET GLOBAL read_only = ON")

    def release() -> None:
        with mysql_cursor(server.port) as cursor:
            cursor.execute("SET GLOBAL read_only = OFF")

    other = server.url.replace("root@", "watcher@")
    return with_options(server.url, f"space={space}"), with_options(other, f"space={space}"), release


def _is_replicated(store: Any) -> bool:
    try:
        return bool(store.queue("q").counts().live)
    except StoreReadOnly:  # the functions are not here yet, and cannot be loaded here
        return False


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["postgres", "mysql", "redis"])
def test_a_read_only_server(name: str, start: Start, own: Callable[[str], Any]) -> None:
    writing, reading, allow = read_only(name, start, own, "readonly")
    try:
        with open_queues(writing) as writer:
            writer.queue("q", int).put(1)
            seen: list[int] = []
            if name == "redis":
                with open_queues(reading) as probe:
                    eventually(lambda: _is_replicated(probe), "the replica has the entry and the functions")
            with open_queues(reading) as store:
                queue = store.queue("q", int)
                queue.add_handler(seen.append)
                assert [entry.value for entry in queue.find()] == [1], "reading goes on"
                with pytest.raises(StoreReadOnly):
                    queue.put(2)
                errors: list[Any] = []
                store.signals.subscribe(errors.append, "store_error")
                with working(store, poll="50ms"):
                    eventually(lambda: errors, "the worker says so")
                    assert isinstance(errors[0].data["error"], StoreReadOnly)
                    allow()
                    eventually(lambda: seen == [1], "and goes on when writing is allowed")
    finally:
        allow()


@pytest.mark.parametrize("name", ["postgres", "mysql"])
def test_a_new_space_on_a_read_only_server(name: str, start: Start, own: Callable[[str], Any]) -> None:
    _, reading, allow = read_only(name, start, own, "fresh")
    try:
        with pytest.raises(StoreReadOnly):
            open_queues(reading)
    finally:
        allow()


# --- sizes, names, versions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_a_payload_over_the_limit_is_refused_before_anything_is_written(name: str, url: Callable[[str], str]) -> None:
    with open_queues(url(name) + "&payload_limit=1000") as store:
        queue = store.queue("q", str)
        with pytest.raises(PayloadTooLarge, match=r"1,?000"):
            queue.put("x" * 1000)
        with pytest.raises(PayloadTooLarge):
            queue.put_many(["fits", "x" * 1000])
        with store.unit() as unit, pytest.raises(PayloadTooLarge):
            unit.put(queue, "x" * 1000)
        assert queue.find() == []
        assert queue.put("x" * 998).created


HOSTILE = [
    "a/b",
    "a:b",
    "a{b}",
    "a;b",
    "a b",
    "a\nb",
    "../a",
    "a'b",
    'a"b',
    "a*",
    "ä",
    "",
    ".",
    "x" * 129,
    "a\0b",
]


@pytest.mark.parametrize("name", ALL)
def test_names_with_separators(name: str, url: Callable[[str], str]) -> None:
    with open_queues(url(name)) as store:
        for bad in HOSTILE:
            with pytest.raises(BadInput):
                store.queue(bad).put("x")
        assert store.counts() == []
        queue = store.queue("q")
        for value in ("a/b", "a:b", "{a}", "a\nb", "../x", "' OR 1=1 --", "a%2fb", "*", "ä", " a ", "a"):
            put = queue.put("x", unique=value, labels={"k": value} if name != "zookeeper" else None)
            assert put.created, f"{value!r} is another text than those before"
            assert not queue.put("x", unique=value).created
            if name != "zookeeper":
                assert [entry.id for entry in queue.find(labels={"k": value})] == [put.id]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("space", ["a;drop table x", "a/b", "{a}", "a b", "", "x" * 64])
def test_a_space_that_cannot_be(name: str, space: str, url: Callable[[str], str]) -> None:
    address = url(name).partition("?")[0]
    with pytest.raises(BadInput):
        open_queues(f"{address}?durability=fast&space={space.replace(' ', '%20').replace(';', '%3B')}")


VERSIONS = {"postgres": "3", "mysql": "3", "redis": "2", "zookeeper": "3"}


def set_version(name: str, server: Any, space: str, version: str) -> None:
    if name == "postgres":
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute(f"UPDATE {space}_meta SET value = %s WHERE name IN ('schema', 'schema_post')", (version,))
    elif name == "mysql":
        with mysql_cursor(server.port, database="penstock") as cursor:
            cursor.execute(f"UPDATE {space}_meta SET value = %s WHERE name IN ('schema', 'schema_post')", (version,))
    elif name == "redis":
        with redis_client(server.port) as client:
            client.set(f"{{{space}}}:schema", version)
    else:
        with zookeeper_client(server.port) as client:
            client.set(f"/penstock-tests/{space}/schema", version.encode())


@pytest.mark.parametrize("name", ALL)
def test_a_newer_schema(name: str, servers: Callable[[str], Any], url: Callable[[str], str]) -> None:
    address = url(name)
    space = address.partition("space=s")[2].partition("&")[0]
    with open_queues(address) as store:
        store.queue("q").put("x")
    set_version(name, servers(name), f"s{space}", "99")
    with pytest.raises(SchemaMismatch, match=r"99.*[Uu]pgrade"):
        open_queues(address)
    set_version(name, servers(name), f"s{space}", VERSIONS[name])
    with open_queues(address) as again:
        assert len(again.queue("q").find()) == 1, "nothing was touched"

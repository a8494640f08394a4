"""What only the Redis store does: what it demands of a server, and what it does when the server fails it."""

import contextlib
import itertools
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, run_state_machine_as_test
from redis import Redis as Client
from redis.crc import key_slot
from tests.contract.queue.machine import StoreMachine
from tests.crash import dumps
from tests.stores.wire_proxy import Proxy
from tools.servers import Missing, Redis, free_port

from penstock import QueueStore, Worker, open_queues
from penstock.errors import (
    BadInput,
    CannotOpen,
    EntryNotFound,
    LeaseLost,
    OutcomeUnknown,
    PayloadTooLarge,
    SchemaMismatch,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from penstock.ids import new_id
from penstock.queue.drivers.redis import library
from penstock.queue.drivers.redis.settle_call import SettleCall
from penstock.queue.entry import Unique
from penstock.queue.protocol import (
    Changes,
    ClaimRequest,
    Ending,
    Find,
    NewEntry,
    NewEvent,
    Source,
    Step,
    StepDone,
    Subscription,
    Wait,
)
from penstock.queue.transfer import Copy
from penstock.testing import FakeClock

PATIENCE = 20.0


@pytest.fixture
def start() -> Iterator[Callable[..., Redis]]:
    """Starts servers with settings of their own."""
    running: list[Redis] = []

    def start_one(**settings: Any) -> Redis:
        try:
            running.append(Redis(**settings))
        except Missing as missing:
            pytest.skip(f"redis is not installed here: {missing}")
        running[-1].start()
        return running[-1]

    yield start_one
    for server in running:
        server.close()


@pytest.fixture
def server(servers: Callable[[str], Any]) -> Redis:
    """The shared server, emptied."""
    shared: Redis = servers("redis")
    with Client(port=shared.port) as client:
        client.flushall()
    return shared


@pytest.fixture
def client(server: Redis) -> Iterator[Client]:
    with Client(port=server.port) as made:
        yield made


@pytest.fixture
def opened() -> Iterator[Callable[..., QueueStore]]:
    """Opens stores and closes them."""
    made: list[QueueStore] = []

    def open_one(url: str, **options: Any) -> QueueStore:
        made.append(open_queues(url, **options))
        return made[-1]

    yield open_one
    for store in made:
        store.close()


@pytest.fixture
def store(server: Redis, opened: Callable[..., QueueStore]) -> QueueStore:
    return opened(server.url)


def claim(store: QueueStore, *queues: str, limit: int = 100, id: str | None = None, family: bool = False) -> Any:
    sources = tuple(Source(name, limit, family=family) for name in queues)
    return store.driver.claim(ClaimRequest(id or new_id(), sources, limit, "worker", "one", 60_000_000))


def new(queue: str, payload: bytes = b'"x"', **fields: Any) -> NewEntry:
    return NewEntry(new_id(), queue, payload, "json", "Any", **fields)


# --- what is demanded of a server --------------------------------------------------------------------


class TestOpening:
    def test_an_evicting_server_is_refused(self, start: Callable[..., Redis]) -> None:
        server = start(**{"maxmemory-policy": "allkeys-lru"})
        with pytest.raises(CannotOpen, match=r"maxmemory-policy is allkeys-lru.*noeviction"):
            open_queues(server.url)

    @pytest.mark.parametrize("settings", [{"appendonly": "no"}, {"appendonly": "yes", "appendfsync": "everysec"}])
    def test_a_server_that_forgets_is_refused_unless_asked_for(
        self, start: Callable[..., Redis], settings: dict[str, str]
    ) -> None:
        server = start(durable=True, **settings)
        with pytest.raises(CannotOpen, match=r"durability=fast"):
            open_queues(server.url)
        with open_queues(server.url + "?durability=fast") as store:
            assert store.queue("q").put("x").created
            assert "fast" in {one.what: one.detail for one in store.check()}["durability"]

    def test_a_durable_server_survives_kill_nine(
        self, start: Callable[..., Redis], opened: Callable[..., QueueStore]
    ) -> None:
        server = start(durable=True)
        store = opened(server.url)
        assert {one.what: one.level for one in store.check()}["durability"] == "good"
        ids = [store.queue("q").put(number).id for number in range(20)]
        server.crash()
        server.start()
        assert [one.id for one in store.driver.find(Find())] == ids

    def test_no_server(self) -> None:
        with pytest.raises(CannotOpen, match="does not answer"):
            open_queues(f"redis://127.0.0.1:{free_port()}/0")

    def test_wrong_password_is_said_and_masked(self, start: Callable[..., Redis]) -> None:
        server = start()
        with Client(port=server.port) as client:
            client.config_set("requirepass", "right")
        for url in (f"redis://:wrong-secret@127.0.0.1:{server.port}/0", f"redis://127.0.0.1:{server.port}/0"):
            with pytest.raises(CannotOpen, match="password") as caught:
                open_queues(url + "?durability=fast")
            assert "wrong-secret" not in str(caught.value)
        with open_queues(f"redis://:right@127.0.0.1:{server.port}/0?durability=fast") as store:
            assert ":***@" in store.name
            assert "right" not in repr(store)

    def test_a_replica_is_read_only(self, start: Callable[..., Redis], opened: Callable[..., QueueStore]) -> None:
        primary = start()
        replica = start(replicaof=f"127.0.0.1 {primary.port}")
        store = opened(replica.url)
        with pytest.raises(StoreReadOnly):
            store.queue("q").put("x")
        assert {one.what: one.level for one in store.check()}["server"] == "bad"

    @pytest.mark.parametrize("options", ["payload_limit=much", "timeout=0", "timeout=soon", "tls_ca=x", "tiemout=3"])
    def test_bad_options(self, options: str) -> None:
        with pytest.raises(BadInput):
            open_queues(f"redis://127.0.0.1:1/0?{options}")

    def test_a_bad_url(self) -> None:
        with pytest.raises(BadInput):
            open_queues("redis://127.0.0.1:1/first")

    def test_payload_limit_of_the_url(self, server: Redis, opened: Callable[..., QueueStore]) -> None:
        store = opened(server.url + "&payload_limit=10")
        with pytest.raises(PayloadTooLarge, match="10"):
            store.queue("q").put("x" * 9)
        assert store.queue("q").put("x" * 8).created

    @pytest.mark.parametrize("version", [1, 99])
    def test_a_space_of_another_version_is_refused(self, server: Redis, client: Client, version: int) -> None:
        client.set("{penstock}:schema", version)
        with pytest.raises(SchemaMismatch, match=f"schema version {version}"):
            open_queues(server.url)
        assert client.get("{penstock}:schema") == str(version).encode()

    def test_doctor_tells_all(self, store: QueueStore) -> None:
        store.queue("q").put_many(range(3))
        found = {one.what: (one.level, one.detail) for one in store.check()}
        assert set(found) == {"server", "eviction", "durability", "memory", "ready", "transport", "limits"}
        assert found["eviction"][0] == found["transport"][0] == "good"
        assert found["ready"][1].startswith("3 ")

    def test_doctor_recounts_what_is_in_flight(self, store: QueueStore, client: Client) -> None:
        queue = store.queue("q", in_flight={"customer": 2})
        queue.put_many(range(3), labels={"customer": "ann"})
        assert len(claim(store, "q").entries) == 2
        assert {one.what: one.level for one in store.check()}["limits"] == "good"
        client.hincrby("{penstock}:inflight:q", "ann", 1)
        found = {one.what: (one.level, one.detail) for one in store.check()}["limits"]
        assert found[0] == "bad"
        assert "q" in found[1]
        store.queue("q", in_flight={})
        store.queue("q", in_flight={"customer": 2})
        assert {one.what: one.level for one in store.check()}["limits"] == "good"

    def test_doctor_warns_of_eviction_turned_on_later(
        self, start: Callable[..., Redis], opened: Callable[..., QueueStore]
    ) -> None:
        server = start()
        store = opened(server.url)
        with Client(port=server.port) as client:
            client.config_set("maxmemory-policy", "volatile-lru")
        assert {one.what: one.level for one in store.check()}["eviction"] == "bad"


class TestLimitedUser:
    """A user with its own keys and no dangerous commands, as the docs recommend."""

    RULES = (
        "on >secret resetkeys ~{mine}:* resetchannels &{mine}:* -@all "
        "+@read +@write +@pubsub +@connection +fcall +function|load +time -@dangerous"
    )

    @pytest.fixture
    def limited(self, server: Redis, client: Client, opened: Callable[..., QueueStore]) -> Iterator[QueueStore]:
        client.execute_command("ACL", "SETUSER", "app", *self.RULES.split())
        yield opened(f"redis://app:secret@127.0.0.1:{server.port}/0?space=mine", clock=FakeClock(), node="one")
        client.execute_command("ACL", "DELUSER", "app")

    def test_it_works(self, limited: QueueStore) -> None:
        queue = limited.queue("q", in_flight={"customer": 1}, rate="100/s")
        queue.put("x", labels={"customer": "ann"}, unique="u", expires="1h", sticky=True)
        seen = limited.driver.bell()
        queue.put("y", unique=Unique("p", period="1m"))
        assert limited.driver.wait(seen, PATIENCE)
        for entry in claim(limited, "q").entries:
            limited.driver.commit(Step((Ending(entry.lease, "done"),), (new("r"),)))
        limited.queue("r").cancel(limited.queue("r").find()[0].id)
        limited.driver.reap(node="one")
        limited.driver.prune(older_than_us=0)
        assert sorted(one.state for one in limited.driver.history(Find())) == ["cancelled", "done", "done"]
        assert limited.counts(queue="q")[0].live == 0

    def test_doctor_says_what_it_may_not_read(self, limited: QueueStore) -> None:
        found = {one.what: one.level for one in limited.check()}
        assert found["server"] == found["eviction"] == found["durability"] == found["memory"] == "unknown"

    def test_a_command_it_lacks_is_named(self, server: Redis, client: Client, limited: QueueStore) -> None:
        client.execute_command("ACL", "SETUSER", "app", "-zadd")
        with pytest.raises(StoreUnavailable, match="does not let this user"):
            limited.queue("q").put("x")
        assert limited.driver.find(Find()) == []

    def test_another_space_is_not_its_own(self, server: Redis, limited: QueueStore) -> None:
        with pytest.raises(CannotOpen, match="does not let this user"):
            open_queues(f"redis://app:secret@127.0.0.1:{server.port}/0?space=theirs")


class TestEncrypted:
    def test_tls(self, start: Callable[..., Redis], tmp_path: Path) -> None:
        certificate, key, port = tmp_path / "cert.pem", tmp_path / "key.pem", free_port()
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
             "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out",
             str(certificate)],
            check=True, capture_output=True,
        )  # fmt: skip
        start(**{
            "tls-port": str(port), "tls-cert-file": str(certificate), "tls-key-file": str(key),
            "tls-ca-cert-file": str(certificate), "tls-auth-clients": "no",
        })  # fmt: skip
        url = f"rediss://127.0.0.1:{port}/0?durability=fast"
        with open_queues(f"{url}&tls_ca={certificate}") as store:
            assert store.queue("q").put("x").created
            assert {one.what: one.detail for one in store.check()}["transport"] == "TLS"
        with pytest.raises(CannotOpen, match="does not answer"):
            open_queues(url)  # nobody vouches for its certificate


# --- keys --------------------------------------------------------------------------------------------


def use_everything(store: QueueStore, clock: FakeClock) -> None:
    """Leave something under every kind of key."""
    queue = store.queue("q", in_flight={"customer": 1}, rate="1000/s")
    fifo = store.queue("fifo", fifo=True)
    for number in range(3):
        queue.put(number, labels={"customer": "ann"}, priority=number, expires="9h", sticky=number == 2)
    queue.put("unique", unique="u")
    queue.put("period", unique=Unique("p", period="1h"), delay="1h")
    fifo.put_many([1, 2])
    store.driver.subscribe(Subscription("s", "bus.s", ("Thing",)))
    store.driver.commit(Step(events=(NewEvent(("Thing",), new("bus")),)))
    store.queue("s").schedule("daily", "x", every="24h")
    taken = claim(store, "q", "fifo").entries
    endings = ("done", "dead", "retry", "release")
    for entry, outcome in zip(taken, endings, strict=False):
        store.driver.commit(Step((Ending(entry.lease, outcome, delay_us=60_000_000),), (new("children"),)))
    claim(store, "children", limit=2)
    clock.advance("2m")
    store.driver.reap(node="one")
    store.driver.beat("one")
    store.driver.lock("q", "me", "why")
    claim(store, "q", "fifo", "children", "s")


class TestKeys:
    def test_all_keys_are_in_one_slot_and_none_expires(
        self, server: Redis, client: Client, opened: Callable[..., QueueStore]
    ) -> None:
        clock = FakeClock()
        use_everything(opened(server.url + "&space=shop", clock=clock, node="one"), clock)
        keys = list(client.scan_iter())
        assert len(keys) > 25
        assert {key_slot(key) for key in keys} == {key_slot(b"{shop}:")}
        # Replies are kept for those who ask again; all else stays.
        assert [key for key in keys if client.ttl(key) != -1 and b":reply:" not in key] == []

    def test_nothing_is_left_of_a_queue_that_has_run_empty(
        self, server: Redis, client: Client, opened: Callable[..., QueueStore]
    ) -> None:
        clock = FakeClock()
        store = opened(server.url, clock=clock, node="one")
        for number in range(20):
            store.queue(f"q-{number}").put("x", labels={"a": "b"}, unique="u", expires="1h", sticky=True)
        for entry in claim(store, "q", family=True).entries:
            store.driver.commit(Step((Ending(entry.lease, "done"),)))
        assert store.counts() == []
        clock.advance("1d")
        store.driver.reap(node=store.node)
        assert store.driver.prune(older_than_us=0) == 20
        left = {key for key in client.scan_iter() if b":reply:" not in key}
        assert left <= {b"{penstock}:counters", b"{penstock}:probe", b"{penstock}:schema"}

    def test_ten_thousand_queues_that_wait_cost_a_claim_nothing(self, store: QueueStore, client: Client) -> None:
        store.driver.put([new(f"later-{number}", due_us=2**52) for number in range(5000)])
        store.driver.put([new(f"later-{number}", due_us=2**52) for number in range(5000, 10_000)])
        store.driver.put([new("later-now")])
        client.config_resetstat()
        assert len(claim(store, "later", family=True).entries) == 1
        calls = sum(one["calls"] for one in client.info("commandstats").values())
        assert calls < 60

    def test_times_beyond_doubles(self, store: QueueStore) -> None:
        far = 253_402_300_799_999_999  # the last microsecond that datetime knows
        [result] = store.driver.put([new("q", due_us=far, expires_us=far)])
        [entry] = store.driver.find(Find())
        assert far - 32 < entry.due_us == result.due_us <= far
        assert entry.due.year == entry.expires.year == 9999  # type: ignore[union-attr]

    def test_cluster(self, start: Callable[..., Redis], opened: Callable[..., QueueStore]) -> None:
        """Two nodes, all slots on the second: the store asked the first and follows."""
        settings = {"cluster-enabled": "yes", "cluster-config-file": "nodes.conf"}
        first, second = (start(**settings, **{"cluster-port": str(free_port())}) for _ in range(2))
        with Client(port=first.port) as one, Client(port=second.port) as two:
            two.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            bus = two.config_get("cluster-port")["cluster-port"]
            one.execute_command("CLUSTER", "MEET", "127.0.0.1", second.port, bus)
            for node in (one, two):
                wait_until(lambda node=node: b"cluster_state:ok" in _raw(node, "CLUSTER", "INFO"))  # type: ignore[misc]
            wait_until(lambda: str(second.port).encode() in _raw(one, "CLUSTER", "SLOTS"))
        clock = FakeClock()
        store = opened(first.url, clock=clock, node="one")
        use_everything(store, clock)
        seen = store.driver.bell()
        store.queue("new").put("x")
        assert store.driver.wait(seen, PATIENCE)


def _raw(client: Client, *command: Any) -> bytes:
    return repr(client.execute_command(*command)).encode().replace(b"'cluster_state': 'ok'", b"cluster_state:ok")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        threading.Event().wait(0.02)


# --- what goes missing ---------------------------------------------------------------------------------


class TestSearching:
    """Many queues are read a little of each at a time."""

    @pytest.mark.parametrize("newest", [False, True])
    def test_pages_over_many_queues_miss_nothing(self, store: QueueStore, newest: bool) -> None:
        for number in range(120):
            store.driver.put([new(f"q{(number * 7 + other) % 150}") for other in range(40)])
        seqs = [one.seq for one in store.driver.find(Find(limit=100_000, newest_first=newest))]
        assert seqs == sorted(set(seqs), reverse=newest)
        assert len(seqs) == 4800
        paged: list[int] = []
        while page := store.driver.find(Find(limit=700, after=paged[-1] if paged else 0, newest_first=newest)):
            paged += [one.seq for one in page]
        assert paged == seqs

    @pytest.mark.parametrize("by", ["queue", "label", "everything"])
    @pytest.mark.parametrize("newest", [False, True])
    def test_small_pages_of_a_history_of_single_and_many_rows(self, store: QueueStore, by: str, newest: bool) -> None:
        labels = {"k": "v"} if by == "label" else {}
        queue = store.queue("q")
        queue.put_many(range(90), labels=labels or None)
        for limit in (1,) * 30 + (20, 20, 20):
            taken = claim(store, "q", limit=limit).entries
            store.driver.settle([Step((Ending(one.lease, "done"),)) for one in taken])
        where: dict[str, Any] = {"queue": {"queue": "q"}, "label": {"labels": labels}, "everything": {}}[by]
        paged: list[int] = []
        while page := store.driver.history(
            Find(**where, limit=7, after=paged[-1] if paged else 0, newest_first=newest)
        ):
            paged += [row.seq for row in page]
            assert len(paged) <= 90
        assert paged == sorted(range(1, 91), reverse=newest)
        assert store.driver.history(Find(**where, after=1 << 60)) == []

    def test_history_and_dead_letters_in_pages(self, store: QueueStore) -> None:
        store.queue("q").put_many(range(5000))
        while entries := claim(store, "q", limit=1000).entries:
            store.driver.settle([Step((Ending(one.lease, "done" if one.seq % 2 else "dead"),)) for one in entries])
        assert [one.seq for one in store.driver.history(Find(limit=9999))] == list(range(1, 5001))
        assert len(store.driver.history(Find(limit=9999, queue="q", states=("dead",)))) == 2500
        assert len(store.driver.dead(Find(limit=9999))) == 2500
        assert store.queue("q").purge_dead() == 2500
        assert store.driver.dead(Find()) == []


def delete_by_hand(client: Client, *ids: str) -> None:
    fields = client.hmget("{penstock}:ids", list(ids))
    assert client.hdel("{penstock}:entries", *fields) == len(ids)  # type: ignore[arg-type]


class TestMissing:
    def test_an_entry_deleted_by_hand_is_passed_over(self, store: QueueStore, client: Client) -> None:
        queue = store.queue("q")
        gone = [queue.put(number).id for number in range(3)]
        kept = queue.put("kept").id
        delete_by_hand(client, *gone)
        assert [one.id for one in claim(store, "q").entries] == [kept]
        assert [one.id for one in queue.find()] == [kept]
        assert queue.counts().live == 1

    def test_an_entry_deleted_while_it_is_leased(self, server: Redis, client: Client, opened: Any) -> None:
        clock = FakeClock()
        store = opened(server.url, clock=clock)
        fifo = store.queue("fifo", fifo=True)
        fifo.put_many(["gone", "next"])
        [entry] = claim(store, "fifo").entries
        delete_by_hand(client, entry.id)
        with pytest.raises(LeaseLost):
            store.driver.commit(Step((Ending(entry.lease, "done"),)))
        assert store.driver.extend([entry.lease], 1) == [None]
        clock.advance("2m")
        assert store.driver.reap(node="one").reaped == []
        [following] = claim(store, "fifo").entries
        assert following.payload == b'"next"'

    @pytest.mark.parametrize("fifo", [True, False])
    def test_the_head_of_a_queue_deleted_by_hand(self, store: QueueStore, client: Client, fifo: bool) -> None:
        queue = store.queue("q", fifo=fifo)
        first, _ = queue.put_many(["gone", "next"])
        delete_by_hand(client, first.id)
        assert [one.payload for one in claim(store, "q").entries] == [b'"next"']
        assert queue.find(state="waiting") == []
        with pytest.raises(EntryNotFound):
            store.driver.replay([first.id])

    def test_a_flushed_server_is_an_empty_one(self, store: QueueStore, client: Client) -> None:
        queue = store.queue("q")
        queue.put("x")
        [entry] = claim(store, "q").entries
        client.flushall()
        with pytest.raises(LeaseLost):
            store.driver.commit(Step((Ending(entry.lease, "done"),)))
        assert queue.put("y").created
        assert len(claim(store, "q").entries) == 1

    def test_something_else_under_our_keys_is_said(self, server: Redis, client: Client, opened: Any) -> None:
        client.set("{penstock}:entries", "text")
        with pytest.raises(Exception, match="something else"):
            opened(server.url).queue("q").put("x")


class TestLibrary:
    """The functions on the server: loaded when they are missing, whoever lost them."""

    @pytest.mark.parametrize("lost", ["FUNCTION FLUSH", "FLUSHALL", "FUNCTION DELETE"])
    def test_it_is_loaded_again(self, store: QueueStore, client: Client, lost: str) -> None:
        store.queue("q").put("x")
        command = lost.split() if lost != "FUNCTION DELETE" else ["FUNCTION", "DELETE", library.NAME]
        client.execute_command(*command)
        assert store.queue("q").put("y").created
        assert len(claim(store, "q").entries) == (1 if lost == "FLUSHALL" else 2)
        assert len(store.driver.history(Find())) == 0

    def test_its_name_changes_with_its_text_so_that_two_releases_share_a_server(
        self, store: QueueStore, client: Client, monkeypatch: pytest.MonkeyPatch, opened: Any, server: Redis
    ) -> None:
        store.queue("q").put("of this release")
        other = library.CODE.replace(library.NAME.encode(), b"penstock_0123456789ab")
        monkeypatch.setattr(library, "CODE", other)
        monkeypatch.setattr(library, "PREFIX", "penstock_0123456789ab_")
        newer = opened(server.url)
        assert len(claim(newer, "q").entries) == 1
        monkeypatch.undo()
        store.queue("q").put("still of this one")
        loaded = repr(client.execute_command("FUNCTION", "LIST"))
        assert library.NAME in loaded
        assert "penstock_0123456789ab" in loaded

    def test_a_restored_server_has_it_again(self, start: Callable[..., Redis], opened: Any) -> None:
        server = start(durable=True)
        store = opened(server.url)
        store.queue("q").put("x")
        with Client(port=server.port) as client:
            client.execute_command("FUNCTION", "FLUSH")
        server.crash()
        server.start()
        assert len(claim(store, "q").entries) == 1

    def test_a_promoted_replica_gets_it(self, start: Callable[..., Redis], opened: Any) -> None:
        primary = start()
        replica = start(replicaof=f"127.0.0.1 {primary.port}")
        store = opened(replica.url)
        with Client(port=replica.port) as client:
            client.execute_command("REPLICAOF", "NO", "ONE")
        assert store.queue("q").put("x").created

    def test_a_user_who_may_not_load_it_is_told_the_rule_to_add(
        self, server: Redis, client: Client, opened: Any
    ) -> None:
        rules = "on >secret ~{mine}:* &{mine}:* -@all +@read +@write +@pubsub +@connection +fcall +time -function"
        client.execute_command("FUNCTION", "FLUSH")
        client.execute_command("ACL", "SETUSER", "bare", *rules.split())
        url = f"redis://bare:secret@127.0.0.1:{server.port}/0?space=mine"
        try:
            with pytest.raises(CannotOpen, match=r"ACL SETUSER bare \+fcall \+function\|load"):
                open_queues(url)
            opened(server.url)  # somebody else loads it
            assert opened(url).queue("q").put("x").created
        finally:
            client.execute_command("ACL", "DELUSER", "bare")

    def test_reading_needs_no_right_to_write(self, start: Callable[..., Redis], opened: Any) -> None:
        primary = start()
        opened(primary.url).queue("q").put("x")
        replica = start(replicaof=f"127.0.0.1 {primary.port}")
        with Client(port=replica.port) as client:
            wait_until(lambda: client.info("replication")["master_link_status"] == "up")
        store = opened(replica.url)
        wait_until(lambda: store.counts(queue="q")[0].ready == 1)
        assert [one.payload for one in store.driver.find(Find())] == [b'"x"']


def take_all(store: QueueStore, queue: str, **options: Any) -> list[Any]:
    entries: list[Any] = claim(store, queue, **options).entries
    return entries


class TestClaimRecords:
    """One record per claim: parts of it end, run out and are taken away by themselves."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def store(self, server: Redis, clock: FakeClock, opened: Callable[..., QueueStore]) -> QueueStore:
        return opened(server.url, clock=clock, node="one")

    def finish(self, store: QueueStore, entries: list[Any], outcome: Any = "done") -> list[Any]:
        return store.driver.settle([Step((Ending(one.lease, outcome),)) for one in entries]).results

    def test_who_holds_an_entry_is_found_by_its_number_among_two_thousand_claims(
        self, store: QueueStore, client: Client
    ) -> None:
        def commands_of(call: Callable[[], object]) -> int:
            client.config_resetstat()
            call()
            stats = client.info("commandstats")
            return sum(
                one["calls"] for name, one in stats.items() if not name.startswith(("cmdstat_config", "cmdstat_info"))
            )

        commands = []
        queue = store.queue("q")
        for claims in (10, 2000):
            queue.put_many(range(claims * 10), chunk=5000)
            for _ in range(claims):
                entries = claim(store, "q", limit=10)
            ids = [entry.id for entry in entries.entries]
            commands.append([
                commands_of(lambda: store.driver.find(Find(ids=(ids[3],)))),  # noqa: B023
                commands_of(lambda: store.driver.cancel([ids[4]], force=True)),  # noqa: B023
                commands_of(lambda: store.driver.counts("q")),
                commands_of(lambda: store.driver.find(Find(queue="q", states=("leased",), limit=10))),
            ])  # fmt: skip
        assert commands[1] == commands[0]

    def test_a_claim_is_one_record_however_many_it_took(self, store: QueueStore, client: Client) -> None:
        store.queue("q").put_many(range(50))
        taken = take_all(store, "q")
        assert client.hlen("{penstock}:claims") == client.zcard("{penstock}:until") == 1
        self.finish(store, taken[10:20])
        assert client.hlen("{penstock}:claims") == 1
        self.finish(store, taken[:10] + taken[20:])
        assert client.hlen("{penstock}:claims") == client.zcard("{penstock}:until") == 0

    def test_attempts_that_end_together_are_one_record_and_a_row_each(self, store: QueueStore, client: Client) -> None:
        store.queue("q").put_many(range(50))
        taken = take_all(store, "q")
        self.finish(store, taken)
        assert client.hlen("{penstock}:history") == 1
        rows = store.driver.history(Find(queue="q"))
        assert [row.seq for row in rows] == list(range(1, 51))
        assert [row.id for row in rows] == [one.id for one in taken]
        assert [row.seq for row in store.driver.history(Find(queue="q", after=20, limit=5))] == [21, 22, 23, 24, 25]
        assert [row.seq for row in store.driver.history(Find(after=20, limit=5, newest_first=True))] == [
            19,
            18,
            17,
            16,
            15,
        ]
        assert [row.id for row in store.driver.history(Find(ids=(taken[7].id,)))] == [taken[7].id]

    def test_labels_and_links_of_those_that_end_together(
        self, store: QueueStore, client: Client, clock: FakeClock
    ) -> None:
        queue = store.queue("q")
        with store.batch(then=(store.queue("then"), "all done")) as batch:
            members = [batch.put(queue, number, labels={"third": str(number % 3)}) for number in range(9)]
        plain = queue.put("plain").id
        taken = claim(store, "q").entries
        assert {entry.id for entry in taken} == {*members, plain}
        first, rest = taken[:4], taken[4:]
        store.driver.settle([Step((Ending(entry.lease, "done"),)) for entry in first])
        assert store.driver.waits([batch.id]) == [Wait(batch.id, needs=9 - 4, done=4)]
        assert len(store.driver.find(Find(labels={"penstock.batch": batch.id}))) == 5
        store.driver.settle([Step((Ending(entry.lease, "done"),)) for entry in rest])
        assert [entry.id for entry in claim(store, "then").entries] == [batch.id]
        for third in range(3):
            rows = queue.history(labels={"third": str(third)})
            assert [row.id for row in rows] == members[third::3]
        assert [row.id for row in queue.history(labels={"penstock.batch": batch.id}, limit=3)] == members[:3]
        assert store.driver.find(Find(labels={"third": "0"})) == []
        clock.advance("1d")
        assert store.driver.prune(older_than_us=0) == 10
        left = {key.decode() for key in client.keys("{penstock}:*")}  # type: ignore[union-attr]
        assert not [key for key in left if "label:" in key or key.endswith((":links", f":linked:{batch.id}"))]

    def test_very_many_are_a_few_records(self, store: QueueStore, client: Client, clock: FakeClock) -> None:
        store.queue("q").put_many(range(2500))
        taken = take_all(store, "q", limit=2500)
        self.finish(store, taken)
        assert client.hlen("{penstock}:history") == 3
        for where in (Find(limit=9999), Find(limit=9999, queue="q")):
            assert [row.seq for row in store.driver.history(where)] == list(range(1, 2501))
        assert [row.seq for row in store.driver.history(Find(after=1700, limit=2, queue="q"))] == [1701, 1702]
        assert [row.seq for row in store.driver.history(Find(after=1700, limit=2, newest_first=True))] == [1699, 1698]
        clock.advance("1d")
        assert store.driver.prune(older_than_us=0, limit=1000) == 1000
        assert [row.seq for row in store.driver.history(Find(limit=1))] == [1001]

    def test_each_row_has_its_own_start(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q").put_many(range(3))
        taken = take_all(store, "q")
        starts = [clock.micros() + number for number in (3, 1, 2)]
        store.driver.settle(
            [Step((Ending(one.lease, "done", started_us=at),)) for one, at in zip(taken, starts, strict=True)]
        )
        assert [row.started_us for row in store.driver.history(Find())] == starts

    def test_a_heartbeat_names_those_that_still_run(self, store: QueueStore, clock: FakeClock) -> None:
        store.queue("q").put_many(range(4))
        taken = take_all(store, "q")
        clock.advance("50s")
        store.driver.extend([one.lease for one in taken[1:3]], 60_000_000)
        clock.advance("20s")
        assert sorted(id_ for id_, _ in store.driver.reap(node="one").reaped) == sorted([taken[0].id, taken[3].id])
        assert [type(one) for one in self.finish(store, taken)] == [LeaseLost, StepDone, StepDone, LeaseLost]

    def test_force_takes_one_out_and_leaves_the_others(self, store: QueueStore) -> None:
        store.queue("q").put_many(range(4))
        taken = take_all(store, "q")
        store.driver.cancel([taken[1].id], force=True)
        store.driver.update(taken[2].id, Changes(payload=b"9"), force=True)
        assert [type(one) for one in self.finish(store, taken)] == [StepDone, LeaseLost, LeaseLost, StepDone]

    def test_a_mixed_claim_keeps_its_order(self, store: QueueStore, client: Client) -> None:
        queue = store.queue("q")
        for number in range(6):
            queue.put(number, labels={"n": str(number)} if number % 2 else None, unique="u" if number == 4 else None)
        taken = take_all(store, "q")
        assert [one.payload for one in taken] == [b"%d" % number for number in range(6)]
        self.finish(store, taken)
        assert store.counts(queue="q")[0].live == 0
        assert [row.labels for row in store.driver.history(Find(labels={"n": "3"}))] == [{"n": "3"}]
        assert queue.put("again", unique="u").created

    @pytest.mark.parametrize("outcome", ["snooze", "release", "retry", "done", "dead"])
    def test_a_settled_lease_is_known_though_others_had_the_entry_since(
        self, store: QueueStore, clock: FakeClock, outcome: Any
    ) -> None:
        id_ = store.queue("q").put("x").id
        [mine] = take_all(store, "q")
        self.finish(store, [mine], outcome)
        if outcome in ("done", "dead"):
            store.driver.replay([id_])
        [theirs] = take_all(store, "q")
        self.finish(store, [theirs])
        clock.advance("14m")
        assert store.driver.commit(Step((Ending(mine.lease, outcome),), repeat=True)) == StepDone()
        other = "release" if outcome == "done" else "done"
        with pytest.raises(LeaseLost):
            store.driver.commit(Step((Ending(mine.lease, other),), repeat=True))

    def test_receipts_are_not_kept_for_good(self, store: QueueStore, client: Client, clock: FakeClock) -> None:
        store.queue("q").put("x")
        for _ in range(5):
            self.finish(store, take_all(store, "q"), "release")
        assert client.hlen("{penstock}:receipts") == 5
        clock.advance("16m")
        store.driver.reap(node="one")
        assert client.hlen("{penstock}:receipts") == client.zcard("{penstock}:receipted") == 0


class TestBodies:
    """A body is written once, and removed when nothing refers to it."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def store(self, server: Redis, clock: FakeClock, opened: Callable[..., QueueStore]) -> QueueStore:
        return opened(server.url, clock=clock, node="one")

    def end(self, store: QueueStore, outcome: Any = "done") -> None:
        [entry] = take_all(store, "q")
        store.driver.commit(Step((Ending(entry.lease, outcome),)))

    def test_large_headers_and_errors(self, store: QueueStore) -> None:
        many = {f"h{number}": "x" * 1000 for number in range(100)}
        store.driver.put([new("q", headers=many), new("q", headers=many, labels={"a": "b"})])
        first, second = take_all(store, "q")
        assert first.headers == second.headers == many
        error = "e" * 100_000
        store.driver.settle([Step((Ending(one.lease, "dead", error=error),)) for one in (first, second)])
        assert [row.error for row in store.driver.history(Find())] == [error] * 2
        assert [one.headers for one in store.driver.dead(Find())] == [many] * 2

    def test_history_shows_what_each_attempt_saw(self, store: QueueStore) -> None:
        queue = store.queue("q")
        id_ = queue.put("first", labels={"v": "1"}).id
        self.end(store, "retry")
        queue.update(id_, "second", labels={"v": "2"})
        self.end(store)
        store.driver.replay([id_])
        queue.update(id_, "third", labels={"v": "3"})
        self.end(store)
        rows = store.driver.history(Find(ids=(id_,)))
        assert [(row.labels["v"], row.payload) for row in rows] == [
            ("1", b'"first"'), ("2", b'"second"'), ("3", b'"third"')
        ]  # fmt: skip

    def test_a_replaced_entry_leaves_the_history_alone(self, store: QueueStore) -> None:
        queue = store.queue("q")
        unique = Unique("u", on_conflict="replace")
        id_ = queue.put("first", unique=unique, labels={"v": "1"}).id
        self.end(store, "retry")
        queue.put("second", unique=unique, labels={"v": "2"})
        self.end(store)
        assert [(row.generation, row.labels["v"]) for row in store.driver.history(Find(ids=(id_,)))] == [
            (1, "1"),
            (2, "2"),
        ]

    def test_versions_that_nobody_saw_are_not_kept(self, store: QueueStore, client: Client) -> None:
        queue = store.queue("q")
        id_ = queue.put("first").id
        for number in range(5):
            queue.update(id_, number)
        assert client.hlen("{penstock}:entries") == 1
        self.end(store, "retry")
        for number in range(5):
            queue.update(id_, number)
        assert client.hlen("{penstock}:entries") == 2

    def test_a_version_whose_attempts_were_pruned_is_not_kept_either(
        self, store: QueueStore, client: Client, clock: FakeClock
    ) -> None:
        queue = store.queue("q")
        id_ = queue.put("first").id
        self.end(store, "retry")
        clock.advance("1d")
        assert store.driver.prune(older_than_us=0) == 1
        queue.update(id_, "second")
        assert client.hlen("{penstock}:entries") == 1

    @pytest.mark.parametrize("last", ["done", "dead"])
    def test_nothing_is_left_when_all_is_pruned_and_purged(
        self, store: QueueStore, client: Client, clock: FakeClock, last: str
    ) -> None:
        queue = store.queue("q")
        id_ = queue.put("first", labels={"v": "1"}).id
        self.end(store, "retry")
        queue.update(id_, "second")
        self.end(store, "dead")
        store.driver.replay([id_])
        self.end(store, "snooze")
        self.end(store, "retry")
        self.end(store, last)
        clock.advance("1d")
        if last == "dead":
            assert store.driver.prune(older_than_us=0) == 5 - 1
            assert [one.payload for one in store.driver.dead(Find())] == [b'"second"']
            assert queue.purge_dead() == 1
        else:
            assert store.driver.prune(older_than_us=0) == 4
        store.driver.reap(node="one")
        for key in ("entries", "states", "ids", "history", "errors", "dead", "claims", "live:q", f"trail:{id_}"):
            assert not client.exists(f"{{penstock}}:{key}"), key

    def test_a_purged_letter_takes_its_payload_along(self, store: QueueStore, client: Client, clock: FakeClock) -> None:
        queue = store.queue("q")
        id_ = queue.put("secret", labels={"v": "1"}).id
        self.end(store, "dead")
        assert queue.purge_dead() == 1
        assert [row.labels for row in store.driver.history(Find(ids=(id_,)))] == [{"v": "1"}]
        assert b"secret" not in b"".join(client.hvals("{penstock}:entries"))  # type: ignore[arg-type]
        clock.advance("1d")
        assert store.driver.prune(older_than_us=0) == 1
        assert not client.exists("{penstock}:entries", "{penstock}:ids", "{penstock}:states")


class _CheckedMachine(StoreMachine):
    """The state machine of the contract; after every step the collections have to fit together."""

    @invariant()
    def collections_fit(self) -> None:
        assert dumps.read(f"{self.store.name}?space={self.store.space}").damage == []


@pytest.mark.timeout(0)
def test_the_collections_fit_together_whatever_happens(server: Redis) -> None:
    numbers = itertools.count()

    def opened(clock: FakeClock) -> QueueStore:
        return open_queues(f"{server.url}&space=checked{next(numbers)}", clock=clock, node="one")

    examples = max(6, int(os.environ.get("PENSTOCK_EXAMPLES", "0")))
    wanted = settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    factory: Any = lambda: _CheckedMachine(opened)  # noqa: E731 - hypothesis takes any factory
    run_state_machine_as_test(factory, settings=wanted)


class TestFull:
    @pytest.fixture
    def small(self, start: Callable[..., Redis], opened: Callable[..., QueueStore]) -> Iterator[QueueStore]:
        """A server with 60 entries and no room for more."""
        server = start()
        store = opened(server.url)
        for _ in range(60):
            store.queue("q").put("x" * 20_000)
        with Client(port=server.port) as client:
            client.config_set("maxmemory", "1mb")
            yield store

    def test_puts_are_refused_and_nothing_is_written(self, small: QueueStore) -> None:
        before = small.counts(queue="q")
        assert before[0].ready == 60
        with pytest.raises(StoreFull):
            small.queue("q").put("y")
        with pytest.raises(StoreFull):
            small.driver.put([new("q"), new("q")])
        with pytest.raises(StoreFull):
            small.driver.update(small.driver.find(Find(limit=1))[0].id, Changes(payload=b"y" * 30_000))
        assert small.counts(queue="q") == before

    def test_work_goes_on_and_makes_room(self, small: QueueStore) -> None:
        entries = claim(small, "q", limit=30).entries
        assert len(entries) == 30
        steps = [Step((Ending(entry.lease, "done"),)) for entry in entries[1:]]
        with_put = Step((Ending(entries[0].lease, "done"),), (new("r"),))
        results = small.driver.settle([with_put, *steps]).results
        assert isinstance(results[0], StoreFull)
        assert set(map(type, results[1:])) == {StepDone}
        small.driver.commit(Step((Ending(entries[0].lease, "done"),)))
        small.driver.cancel([one.id for one in small.driver.find(Find(limit=20))])
        assert len(small.driver.history(Find())) > len(entries)


# --- what is cut -----------------------------------------------------------------------------------------


@pytest.fixture
def proxy(server: Redis) -> Iterator[Proxy]:
    made = Proxy(server.port)
    yield made
    made.close()


class TestCut:
    """Before the request or after it: one effect."""

    @pytest.fixture(params=["cut_requests", "cut_replies"])
    def cut(self, request: pytest.FixtureRequest, proxy: Proxy) -> Callable[[], None]:
        return lambda: setattr(proxy, request.param, 1)

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def far(self, proxy: Proxy, clock: FakeClock, opened: Callable[..., QueueStore]) -> QueueStore:
        return opened(f"redis://127.0.0.1:{proxy.port}/0?durability=fast", clock=clock, node="one")

    def test_put(self, far: QueueStore, cut: Callable[[], None]) -> None:
        cut()
        result = far.queue("q").put("x", unique="u")
        assert result.created
        assert [one.id for one in far.driver.find(Find())] == [result.id]

    def test_a_put_that_ended_before_it_was_repeated(
        self,
        server: Redis,
        clock: FakeClock,
        opened: Any,
        monkeypatch: pytest.MonkeyPatch,
        proxy: Proxy,
        far: QueueStore,
    ) -> None:
        """Between the lost reply and the repeat another worker did all of it."""
        other = opened(server.url, clock=clock, node="two")
        handled = []

        def handle_all() -> None:
            for entry in claim(other, "q").entries:
                other.driver.commit(Step((Ending(entry.lease, "done"),)))
                handled.append(entry.id)

        connections = far.driver._server.connections  # type: ignore[attr-defined]
        real = connections.drop
        monkeypatch.setattr(connections, "drop", lambda: (real(), handle_all()))
        proxy.cut_replies = 1
        result = far.driver.put([new("q", b'"second"')])[0]
        assert result.created
        assert handled == [result.id]
        assert far.driver.find(Find()) == []
        assert len(far.driver.history(Find())) == 1

    def test_settle_and_claim(self, far: QueueStore, cut: Callable[[], None]) -> None:
        far.queue("q").put_many(range(4))
        taken = claim(far, "q", limit=2).entries
        wish = ClaimRequest(new_id(), (Source("q", 9),), 1, "worker", "one", 60_000_000)
        steps = [
            Step((Ending(taken[0].lease, "done"),), (new("r"),)),
            Step((Ending(taken[1].lease, "retry", delay_us=10**9),)),
        ]
        cut()
        reply = far.driver.settle(steps, wish)
        assert [type(one) for one in reply.results] == [StepDone, StepDone]
        assert reply.results[0].puts[0].created  # type: ignore[union-attr]
        assert len(reply.claimed.entries) == 1
        assert len(far.driver.find(Find(queue="r"))) == 1
        assert [one.state for one in far.driver.history(Find())] == ["done", "retried"]
        assert len(far.driver.find(Find(states=("leased",)))) == 1

    def test_claim(self, far: QueueStore, cut: Callable[[], None]) -> None:
        far.queue("q").put_many(range(4))
        cut()
        taken = claim(far, "q", limit=2).entries
        assert [one.attempt for one in taken] == [1, 1]
        assert len(far.driver.find(Find(states=("leased",)))) == 2

    def test_cancel_update_and_replay(self, far: QueueStore, cut: Callable[[], None]) -> None:
        id_ = far.queue("q").put("x").id
        cut()
        assert far.driver.cancel([id_]) == 1
        cut()
        assert far.driver.replay([id_]) == 1
        claim(far, "q")
        cut()
        far.queue("q").update(id_, "y", force=True)
        [entry] = far.driver.find(Find())
        assert (entry.generation, entry.attempt) == (2, 1)
        assert [one.state for one in far.driver.history(Find())] == ["cancelled", "retried"]

    def test_locks_and_purges(self, far: QueueStore, cut: Callable[[], None]) -> None:
        cut()
        far.driver.lock("q", "me")
        cut()
        assert far.driver.unlock("q", "me") is True
        far.queue("q").put("x")
        far.driver.commit(Step((Ending(claim(far, "q").entries[0].lease, "dead"),)))
        cut()
        assert far.queue("q").purge_dead() == 1

    def test_reap_and_fire(self, far: QueueStore, clock: FakeClock, cut: Callable[[], None]) -> None:
        id_ = far.queue("q").put("x").id
        claim(far, "q")
        far.queue("s").schedule("s", "x", every="1m")
        clock.advance("2m")
        cut()
        assert far.driver.reap(node="one").reaped == [(id_, "q")]
        [schedule] = far.schedules()
        cut()
        assert far.driver.fire(schedule, clock.micros() + 1, new("s")) is True
        assert len(far.driver.find(Find(queue="s"))) == 1

    def test_a_server_that_says_nothing_is_not_waited_for_for_ever(
        self, proxy: Proxy, opened: Callable[..., QueueStore]
    ) -> None:
        store = opened(f"redis://127.0.0.1:{proxy.port}/0?durability=fast&timeout=0.3&connect_timeout=0.3")
        proxy.silent = True
        begin = time.monotonic()
        with pytest.raises(OutcomeUnknown, match="does not answer"):
            store.queue("q").put("x")
        assert time.monotonic() - begin < 5
        proxy.silent = False
        proxy.cut_all()
        assert store.queue("q").put("y").created


class TestComingBack:
    def test_after_its_connections_were_killed(self, store: QueueStore, client: Client) -> None:
        queue = store.queue("q")
        queue.put(1)
        seen = store.driver.bell()
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        assert queue.put(2).created
        assert store.driver.wait(seen, PATIENCE), "whoever listened may have missed something"
        seen = store.driver.bell()
        queue.put(3)
        assert store.driver.wait(seen, PATIENCE)

    def test_after_a_restart(self, start: Callable[..., Redis], opened: Callable[..., QueueStore]) -> None:
        server = start(durable=True)
        store = opened(server.url)
        queue, handled = store.queue("q"), []
        queue.add_handler(handled.append)
        worker = Worker(store)
        worker.start()
        try:
            queue.put(1)
            wait_until(lambda: handled == [1])
            server.stop()
            with pytest.raises(StoreUnavailable):
                queue.put("lost")
            server.start()
            queue.put(2)
            wait_until(lambda: handled == [1, 2])
        finally:
            worker.stop()

    def test_while_it_loads(self, start: Callable[..., Redis], opened: Callable[..., QueueStore]) -> None:
        server = start(durable=True, **{"key-load-delay": "2000", "loading-process-events-interval-bytes": "1024"})
        store = opened(server.url)
        for number in range(60):
            store.queue("q").put(number)
        server.stop()
        seen: list[int] = []

        def look() -> None:
            while not seen:
                with contextlib.suppress(StoreUnavailable):
                    seen.append(store.counts(queue="q")[0].ready)

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        server.start()
        thread.join(PATIENCE)
        assert seen == [60]


class TestWakeUp:
    def test_another_handles_put_wakes_without_polling(
        self, server: Redis, client: Client, opened: Callable[..., QueueStore]
    ) -> None:
        one, two = opened(server.url), opened(server.url)
        seen = one.driver.bell()
        client.config_resetstat()
        answers: list[bool] = []
        thread = threading.Thread(target=lambda: answers.append(one.driver.wait(seen, PATIENCE)))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
        assert {name for name in client.info("commandstats") if "fcall" in name} == set(), "nobody asks"
        begin = time.monotonic()
        two.queue("q").put("x")
        thread.join(PATIENCE)
        assert answers == [True]
        assert time.monotonic() - begin < 1.0

    def test_a_busy_worker_is_told_nothing(self, store: QueueStore, client: Client) -> None:
        store.driver.bell()
        for number in range(50):
            store.queue("q").put(number)
        wait_until(lambda: client.execute_command("PUBSUB", "SHARDNUMSUB", "{penstock}:bell")[1] == 0)

    def test_nobody_listens_before_somebody_waits(self, store: QueueStore, client: Client) -> None:
        assert client.execute_command("PUBSUB", "SHARDNUMSUB", "{penstock}:bell")[1] == 0
        store.driver.bell()
        assert client.execute_command("PUBSUB", "SHARDNUMSUB", "{penstock}:bell")[1] == 1


class TestTogether:
    def test_calls_made_at_once_travel_together(self, store: QueueStore, client: Client) -> None:
        queue = store.queue("q")
        client.config_resetstat()
        barrier = threading.Barrier(16)

        def work() -> None:
            barrier.wait()
            for number in range(20):
                queue.put(number)

        threads = [threading.Thread(target=work) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert queue.counts().ready == 320
        assert client.info("commandstats")["cmdstat_fcall"]["calls"] < 200

    def test_one_that_fails_is_no_others_failure(self, store: QueueStore) -> None:
        store.queue("q").put("held", unique="u")
        outcomes: list[Any] = []

        def work(index: int) -> None:
            entry = new("q", unique=Unique("u", on_conflict="raise") if index % 2 else None)
            try:
                outcomes.append(store.driver.put([entry])[0].created)
            except Exception as error:
                outcomes.append(type(error).__name__)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert sorted(map(str, outcomes)) == ["True"] * 6 + ["UniqueHeld"] * 6

    def test_calls_that_travel_together_may_end_parts_of_one_claim(self, store: QueueStore) -> None:
        """Some of them the general way, some as plain successes, in any order."""
        store.queue("q").put_many(range(6))
        taken = claim(store, "q").entries
        outcomes = ["retry", "done", "dead", "done", "release", "done"]
        calls = [
            SettleCall([Step((Ending(entry.lease, outcome),))], None, ())  # type: ignore[arg-type]
            for entry, outcome in zip(taken, outcomes, strict=True)
        ]
        replies = store.driver._send_calls(calls)  # type: ignore[attr-defined]
        for call, (now, reply) in zip(calls, replies, strict=True):
            assert call.read(reply, now)[0] == [StepDone()]
        assert dumps.read(f"{store.name}?space={store.space}").damage == []
        assert [row.state for row in store.driver.history(Find())] == ["retried", "done", "dead", "done", "done"]
        counts = store.counts(queue="q")[0]
        assert (counts.ready, counts.leased, counts.dead) == (2, 0, 1)

    def test_a_worker_needs_few_round_trips(self, store: QueueStore, client: Client) -> None:
        queue, done = store.queue("q"), threading.Event()
        queue.put_many(range(2000))
        seen: list[int] = []

        @queue.handler(concurrency=1)
        def handle(value: int) -> None:
            seen.append(value)
            if len(seen) == 2000:
                done.set()

        client.config_resetstat()
        worker = Worker(store)
        worker.start()
        assert done.wait(PATIENCE)
        calls = client.info("commandstats")["cmdstat_fcall"]["calls"]
        worker.stop()
        assert calls <= 60


class TestEarlierForms:
    """What workers of an earlier release still write while ours run, and what builds before a release wrote."""

    @pytest.fixture
    def url(self, start: Callable[..., Redis]) -> str:
        return start().url

    @pytest.fixture
    def store(self, url: str) -> Iterator[QueueStore]:
        with open_queues(url) as store:
            yield store

    @pytest.fixture
    def connection(self, url: str, store: QueueStore) -> Iterator[Any]:
        with contextlib.closing(Client.from_url(url.partition("?")[0])) as connection:
            yield connection

    @pytest.fixture
    def unnumbered(self, store: QueueStore, connection: Any) -> list[str]:
        """Five letters, three of them without a number."""
        work = store.queue("work", int)
        ids = [work.put(number, labels={"kind": "a"}).id for number in range(5)]
        request = ClaimRequest(new_id(), (Source("work", 100, 5),), 100, "me", "one", 60_000_000)
        entries = store.driver.claim(request).entries
        store.driver.settle([Step((Ending(entry.lease, "dead"),)) for entry in entries if entry.lease is not None])
        for key in connection.keys("{penstock}:dead*"):
            if connection.type(key) == b"zset":
                connection.zadd(key, dict.fromkeys(connection.zrange(key, 0, 2), 0))
        return ids

    def paged(self, store: QueueStore, **conditions: Any) -> list[str]:
        ids, after = [], 0
        for _ in range(20):
            page = store.driver.dead(Find(queue="work", after=after, limit=2, **conditions))
            if not page:
                return ids
            ids += [letter.id for letter in page]
            after = page[-1].seq
        raise AssertionError(f"it goes round: {ids}")

    def test_letters_without_a_number_are_paged_over(self, store: QueueStore, unnumbered: list[str]) -> None:
        assert self.paged(store) == [*unnumbered[3:], *unnumbered[:3]]
        assert self.paged(store, labels={"kind": "a"}) == [*unnumbered[3:], *unnumbered[:3]]

    def test_they_are_copied(self, url: str, store: QueueStore, unnumbered: list[str]) -> None:
        with open_queues(f"{url}{'&' if '?' in url else '?'}space=other") as other:
            assert Copy(store, other).run().carried["dead"] == 5
            assert {letter.id for letter in other.driver.dead(Find())} == set(unnumbered)

    def test_they_are_purged(self, store: QueueStore, unnumbered: list[str]) -> None:
        assert store.queue("work").purge_dead() == 5
        assert store.driver.dead(Find()) == []

    def test_a_letter_whose_body_was_deleted_by_hand_stops_nobody(
        self, store: QueueStore, connection: Any, unnumbered: list[str]
    ) -> None:
        connection.zadd("{penstock}:dead_all", {b"\0\0\0\0\0\x99": 0})
        assert set(self.paged(store)) == set(unnumbered)

    def test_a_result_in_an_earlier_form_is_refused_by_name(self, store: QueueStore, connection: Any) -> None:
        head = msgspec.msgpack.encode((1, "json", 2**60))
        connection.hset("{penstock}:results", "job", len(head).to_bytes(4, "big") + head + b"5")
        for ask in (lambda: store.driver.result("job"), store.driver.results):
            with pytest.raises(SchemaMismatch, match="never released"):
                ask()

"""A standby or a replica takes over: what was replicated is there, what was not is lost, and nothing is half there."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.crash.driver import Child
from tests.faults.arena import Arena, wait_steps
from tests.stores.own_servers import claim, eventually, persistently, redis_client
from tests.stores.wire_proxy import Proxy
from tools.servers import Postgres

from penstock import QueueStore, open_queues
from penstock.errors import LeaseLost
from penstock.queue.protocol import Ending, Step

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


class Standby(Postgres):
    """A streaming standby of another server."""

    def __init__(self, primary: Postgres) -> None:
        self.wire = Proxy(primary.port)
        super().__init__(durable=True)

    def prepare(self) -> None:
        self.run(
            str(self._bin / "pg_basebackup"), "-h", "127.0.0.1", "-p", str(self.wire.port), "-U", "penstock",
            "-D", str(self.folder / "data"), "-R", "-X", "stream", "-c", "fast",
        )  # fmt: skip

    def cut_off(self) -> None:
        """What the primary writes from now on does not arrive."""
        self.wire.down = True
        self.wire.cut_all()

    def close(self) -> None:
        super().close()
        self.wire.close()

    def promote(self) -> None:
        self.run(str(self._bin / "pg_ctl"), "promote", "-D", str(self.folder / "data"), "-w")


def ask(server: Postgres, question: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor = connection.execute(question)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def pair(own: Callable[..., Any]) -> Iterator[tuple[Postgres, Standby]]:
    """A primary and its standby, which has caught up."""
    primary = own("postgres")
    standby = Standby(primary)
    try:
        standby.start()
        eventually(lambda: ask(primary, "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming'"), "streaming")
        yield primary, standby
    finally:
        standby.close()


def either(primary: Postgres, standby: Postgres) -> str:
    """The URL that follows the primary, whichever of the two it is."""
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    options = "target_session_attrs=read-write&timeout=2&reply_timeout=3"
    return f"postgresql://penstock@{hosts}/postgres?{options}"


def test_a_synchronous_standby_takes_over_under_load_and_nothing_is_lost(
    pair: tuple[Postgres, Standby], tmp_path: Path, start: Callable[..., Child]
) -> None:
    primary, standby = pair
    ask(primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
    ask(primary, "SELECT pg_reload_conf()")
    eventually(lambda: ask(primary, "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"), "synchronous")
    play = Arena(tmp_path, either(primary, standby), start, primary)
    play.ensemble()
    wait_steps(play.folder, 500)
    primary.crash()
    ask_to_write_alone(standby)
    wait_steps(play.folder, 500)
    play.finish()


def ask_to_write_alone(standby: Standby) -> None:
    """Take over. Nobody replicates from it, so it must not wait for anybody."""
    with (standby.folder / "data" / "postgresql.auto.conf").open("a") as settings:
        settings.write("synchronous_standby_names = ''\n")
    standby.promote()
    ask(standby, "SELECT pg_reload_conf()")


def test_an_asynchronous_standby_loses_the_last_commits_and_nothing_else(pair: tuple[Postgres, Standby]) -> None:
    primary, standby = pair
    with open_queues(either(primary, standby)) as store:
        findings = {finding.what: finding for finding in store.check()}
        assert findings["replication"].level == "warning"
        assert "asynchronous" in findings["replication"].detail
        early = store.queue("orders").put_many(list(range(50)))
        held = claim(store, "orders", limit=10).entries
        eventually(lambda: _has_caught_up(primary), "the standby has all")
        standby.cut_off()
        late = store.queue("orders").put_many(list(range(50)))
        later = claim(store, "orders", limit=10).entries
        done = [Ending(entry.lease, "done") for entry in held[:5]]
        store.driver.settle([Step(endings=tuple(done))])
        primary.crash()
        standby.promote()
        ids = {entry.id for entry in persistently(lambda: store.queue("orders").find(limit=1000))}
        assert ids == {result.id for result in early}, "what was replicated is there, what was not is lost"
        assert not ids & {result.id for result in late}
        # The settled ones are leased again, to the owner who settled them: they are done a second time.
        [again] = store.driver.settle([Step(endings=tuple(done))]).results
        assert not isinstance(again, Exception)
        # A lease that the new primary knows nothing of is refused, and what it held can be claimed.
        [refused] = store.driver.settle([Step(endings=(Ending(later[0].lease, "done"),))]).results
        assert isinstance(refused, LeaseLost)
        rest = ids - {entry.id for entry in held}
        eventually(lambda: not claim_into(store, rest), "all others can be claimed")


def claim_into(store: QueueStore, expected: set[str]) -> set[str]:
    """Claim; what of the expected is still missing. A worker's next claim may begin where its last one ended."""
    expected -= {entry.id for entry in claim(store, "orders", limit=100).entries}
    return expected


def _has_caught_up(primary: Postgres) -> bool:
    [(behind,)] = ask(primary, "SELECT bool_or(pg_current_wal_flush_lsn() > replay_lsn) FROM pg_stat_replication")
    return behind is False


def test_a_redis_replica_loses_the_last_writes_and_nothing_else(own: Callable[..., Any]) -> None:
    primary, replica = own("redis"), own("redis")
    wire, link = Proxy(primary.port), redis_client(replica.port)
    link.replicaof("127.0.0.1", wire.port)
    eventually(lambda: link.info("replication").get("master_link_status") == "up", "replicating")
    proxy = Proxy(primary.port)
    with (
        contextlib.closing(wire),
        contextlib.closing(proxy),
        open_queues(f"redis://127.0.0.1:{proxy.port}/0?timeout=2") as store,
    ):
        early = store.queue("orders").put_many(list(range(50)))
        held = claim(store, "orders", limit=10).entries
        assert redis_client(primary.port).wait(1, 10_000) == 1
        wire.down = True
        wire.cut_all()
        late = store.queue("orders").put_many(list(range(50)))
        later = claim(store, "orders", limit=10).entries
        primary.crash()
        link.replicaof("NO", "ONE")
        proxy.lead_to(replica.port)
        ids = {entry.id for entry in persistently(lambda: store.queue("orders").find(limit=1000))}
        assert ids == {result.id for result in early}, "what was replicated is there, what was not is lost"
        assert not ids & {result.id for result in late}
        [again] = persistently(lambda: store.driver.settle([Step(endings=(Ending(held[0].lease, "done"),))])).results
        assert not isinstance(again, Exception)
        [refused] = store.driver.settle([Step(endings=(Ending(later[0].lease, "done"),))]).results
        assert isinstance(refused, LeaseLost)
        rest = ids - {entry.id for entry in held}
        eventually(lambda: not claim_into(store, rest), "all others can be claimed")

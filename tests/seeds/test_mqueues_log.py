"""nuxeo-mqueues' promises about logs and the producer/consumer patterns, in our words, on every log store."""

import json
import os
import random
import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.contract.log.places import logs_url, open_logs
from tests.contract.log.shorthand import filled, needs, read_all, stored, values, wait_until
from typer.testing import CliRunner

from penstock import LogStore
from penstock.cli.app import app
from penstock.errors import (
    Closed,
    Conflict,
    LogNotFound,
    PartitionNotFound,
    PartitionTaken,
    PenstockError,
    WrongType,
)
from penstock.log.group import ranges, round_robin
from penstock.log.pools.consumer import BOUNDED, ConsumerPolicy, ConsumerPool
from penstock.log.pools.consumers import per_record
from penstock.log.pools.producer import Message, ProducerPool, append_pill
from penstock.log.record import Partition, Record
from penstock.policy import Batching, Retry
from penstock.testing import FakeClock

__all__ = ["logs_url", "open_logs"]


@pytest.fixture
def store(open_logs: Any) -> LogStore:
    return open_logs()


# --- logs ---------------------------------------------------------------------------------------------


@pytest.mark.seed("M1")
def test_a_log_is_created_once(store: LogStore) -> None:
    assert not store.exists("log")
    assert store.create("log")
    assert store.exists("log")
    assert not store.create("log")


@pytest.mark.seed("M2")
def test_the_number_of_partitions_stays(store: LogStore, open_logs: Any) -> None:
    store.create("log", partitions=7)
    again = open_logs()
    assert not again.create("log", partitions=3)
    assert len(again.partitions("log")) == 7


@pytest.mark.seed("M3")
def test_an_appender_knows_its_log(store: LogStore) -> None:
    store.create("log", partitions=3)
    with store.appender("log") as out:
        assert (out.log, out.partitions, out.closed) == ("log", 3, False)
        assert out.append(1, partition=2).partition == 2
    with pytest.raises(LogNotFound):
        store.appender("nowhere")


@pytest.mark.seed("M4", "M5", "M9")
def test_closing_the_store_closes_what_it_opened(store: LogStore) -> None:
    store.create("log")
    out, tail = store.appender("log"), store.tailer("log", "g")
    store.close()
    assert out.closed
    assert tail.closed
    with pytest.raises(Closed):
        out.append(1)
    with pytest.raises(Closed):
        tail.read()


@pytest.mark.seed("M6", "M7")
def test_a_new_tailer_may_move_on_an_empty_log(store: LogStore) -> None:
    store.create("log", partitions=3)
    with store.tailer(Partition("log", 1), "g") as tail:
        assert (tail.closed, tail.group, tail.assignment()) == (False, "g", [Partition("log", 1)])
        tail.to_end()
        tail.to_start()
        tail.to_committed()
        tail.commit()
        tail.commit(Partition("log", 1))
    with store.tailer("log", "g") as whole:
        assert whole.assignment() == store.partitions("log")


@pytest.mark.seed("M8")
def test_what_is_not_there_is_not_tailed(store: LogStore) -> None:
    store.create("log", partitions=2)
    with pytest.raises(LogNotFound):
        store.tailer("nowhere", "g")
    with pytest.raises(PartitionNotFound):
        store.tailer(Partition("log", 2), "g")


@pytest.mark.seed("M10")
def test_one_tailer_per_group_and_partition(store: LogStore) -> None:
    filled(store)
    with store.tailer("log", "g"):
        with pytest.raises(PartitionTaken):
            store.tailer("log", "g")
        store.tailer("log", "other").close()
    store.tailer("log", "g").close()


@pytest.mark.seed("M11", "M61")
def test_reads_see_what_is_assigned_and_what_comes(store: LogStore) -> None:
    store.create("log", partitions=2)
    with store.appender("log") as out, store.tailer(Partition("log", 1), "g") as tail:
        assert tail.next(timeout="10ms") is None
        out.append("elsewhere", partition=0)
        place = out.append("here", partition=1)
        [record] = read_all(tail, 1)
        assert (record.value, record.position) == ("here", place)


@pytest.mark.seed("M12", "M13")
def test_commits_survive(store: LogStore, open_logs: Any) -> None:
    filled(store, count=10)
    with store.tailer("log", "g") as tail:
        read_all(tail, 4, limit=4)
    assert store.lag("log", "g").lag == 10
    with store.tailer("log", "g") as tail:
        assert values(read_all(tail, 3, limit=3)) == [0, 1, 2]
        tail.commit()
    other = open_logs()
    with other.tailer("log", "g") as tail:
        assert values(read_all(tail, 1, limit=1)) == [3]


@pytest.mark.seed("M14", "M15", "M16")
def test_moves_are_exact(store: LogStore) -> None:
    filled(store, count=6)
    store.create("other")
    with store.tailer("log", "g") as tail:
        records = read_all(tail, 6)
        tail.commit()
        tail.to_start()
        assert values(read_all(tail, 2, limit=2)) == [0, 1]
        tail.to_end()
        assert tail.read() == []
        tail.to_committed()
        assert tail.read() == []
        tail.seek(records[4])
        assert values(read_all(tail, 1, limit=1)) == [4]
        with pytest.raises(PenstockError):
            tail.position(Partition("other", 0))
        tail.seek(records[2].position)
        tail.commit()
        assert store.lag("log", "g").lag == 4
        tail.reset()
        assert store.lag("log", "g").lag == 6
        assert values(read_all(tail, 1, limit=1)) == [0]


@pytest.mark.seed("M17", "M18")
def test_groups_do_not_know_each_other(store: LogStore, open_logs: Any) -> None:
    filled(store, count=10)
    with store.tailer("log", "a") as one, store.tailer("log", "b") as two:
        read_all(one, 2, limit=2)
        read_all(two, 5, limit=5)
        one.commit()
        two.commit()
    assert (store.lag("log", "a").lag, store.lag("log", "b").lag) == (8, 5)
    other = open_logs()
    for group, first in (("a", 2), ("b", 5), ("c", 0)):
        with other.tailer("log", group) as tail:
            assert values(read_all(tail, 1, limit=1)) == [first]


@pytest.mark.seed("M19")
def test_waiting_goes_by_commits(store: LogStore) -> None:
    store.create("log")
    with store.appender("log") as out, store.tailer("log", "g") as tail:
        first, second = out.append(1), out.append(2)
        assert not out.wait_for(second, "g", "10ms")
        read_all(tail, 2)
        assert not out.wait_for(second, "g", "10ms")
        tail.commit()
        assert out.wait_for(second, "g", "10s")
        assert out.wait_for(first, "g")
        assert not out.wait_for(first, "nobody")


@pytest.mark.seed("M20", "M21")
def test_one_tailer_over_two_logs(store: LogStore) -> None:
    filled(store, "one", count=3)
    filled(store, "two", count=3)
    with store.tailer(["one", "two"], "g") as tail:
        assert sorted(values(read_all(tail, 6))) == [0, 0, 1, 1, 2, 2]
        tail.commit({Partition("one", 0): 2})
        tail.to_committed()
        assert sorted(values(read_all(tail, 4))) == [0, 1, 2, 2]
        tail.to_start()
        assert len(read_all(tail, 6)) == 6
    with store.tailer("one", "g") as alone:
        assert values(read_all(alone, 1)) == [2]


@pytest.mark.seed("M22")
def test_empty_partitions_cost_no_reads(store: LogStore) -> None:
    store.create("log", partitions=10)
    with store.appender("log") as out:
        out.append_many(range(50), partition=3)
    with store.tailer("log", "g") as tail:
        read: list[Any] = []
        while len(read) < 50:
            got = tail.read(10, timeout="20s")
            assert got
            read += values(got)
        assert read == list(range(50))


@pytest.mark.seed("M23")
def test_lag_goes_with_appends_and_commits(store: LogStore) -> None:
    store.create("log")
    assert store.lag("log", "g").lag == 0
    with store.appender("log") as out, store.tailer("log", "g") as tail:
        out.append(1)
        assert store.lag("log", "g").lag == 1
        read_all(tail, 1)
        assert store.lag("log", "g").lag == 1
        tail.commit()
        assert store.lag("log", "g").lag == 0
        assert store.lag("log", "unknown").lag == 1


@pytest.mark.seed("M24")
def test_logs_and_groups_are_listed(store: LogStore) -> None:
    filled(store, "one", count=1)
    store.create("two")
    with store.tailer("one", "g") as tail:
        read_all(tail, 1)
        tail.commit()
    assert store.names() == ["one", "two"]
    assert (store.groups("one"), store.groups("two")) == (["g"], [])


@pytest.mark.seed("M25")
def test_deleted_and_made_again(store: LogStore, logs_url: str) -> None:
    filled(store, count=3)
    assert store.delete("log")
    assert not store.exists("log")
    assert store.create("log", partitions=2)
    assert [bounds.end for bounds in store.bounds("log")] == [0, 0]
    if logs_url.startswith("file:"):
        [settings] = Path(logs_url.removeprefix("file://").partition("?")[0]).rglob("log.json")
        settings.with_name("mine.txt").write_text("not yours")
        with pytest.raises(Conflict):
            store.delete("log")
        assert store.exists("log")


@pytest.mark.seed("M26")
def test_retention_bounds_what_is_kept(store: LogStore, clock: FakeClock) -> None:
    needs(store, "retention")
    from penstock.log.settings import Retention

    store.create("log", retention=Retention(age="3s"), segment_age="1s", segment_bytes=4096)
    kept = []
    for number in range(10):
        with store.appender("log") as out:
            out.append_many([number] * 10)
        clock.advance("1s")
        store.enforce_retention("log")
        kept.append(store.bounds("log")[0].count)
    assert max(kept) <= 50
    assert store.bounds("log")[0].start > 0


@pytest.mark.seed("M27")
def test_a_subscriber_owns_nothing_before_its_first_read(store: LogStore) -> None:
    filled(store, partitions=3)
    with store.subscribe("log", "g") as tail:
        assert tail.assignment() == []
        wait_until(lambda: tail.read(1, timeout="50ms") is None or len(tail.assignment()) == 3, "it owns all")


@pytest.mark.seed("M28")
@pytest.mark.timeout(240)  # six members of Kafka's group take their time to agree on a busy machine
def test_many_subscribers_read_each_record_once(store: LogStore) -> None:
    filled(store, partitions=3, count=300)
    members = [store.subscribe("log", "g") for _ in range(6)]
    seen: Counter[int] = Counter()

    def turn() -> bool:
        for member in members:
            got = member.read(10, timeout="5ms")
            member.commit()
            seen.update(values(got))
        return len(seen) == 300

    wait_until(turn, "all are read", seconds=120)
    assert set(seen.values()) == {1}
    for member in members:
        member.close()


@pytest.mark.seed("M29")
def test_the_static_assignments_are_the_seeds() -> None:
    partitions = [Partition(name, index) for name, count in (("a", 16), ("b", 8), ("c", 1)) for index in range(count)]
    assert [len(share) for share in round_robin(["0", "1", "2"], partitions).values()] == [9, 8, 8]
    assert len(ranges(["0", "1", "2", "3", "4"], partitions)["0"]) == 7
    two = [Partition(name, index) for name, count in (("t0", 4), ("t1", 5)) for index in range(count)]
    shares = round_robin(["0", "1", "2"], two)
    assert [len(share) for share in shares.values()] == [3, 3, 3]
    assert Partition("t0", 0) in shares["0"]


@pytest.mark.seed("M57")
def test_four_appenders_at_once(store: LogStore, open_logs: Any) -> None:
    store.create("log", partitions=2)

    def fill() -> None:
        with open_logs().appender("log") as out:
            for number in range(100):
                out.append(number)

    threads = [threading.Thread(target=fill) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.lag("log", "g").lag == 400


@pytest.mark.seed("M58")
def test_asking_for_the_lag_leaks_nothing(store: LogStore) -> None:
    filled(store)
    store.lag("log", "g")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        store.lag("log", "g")
    assert len(os.listdir("/proc/self/fd")) <= before + 5


@pytest.mark.seed("M59")
def test_latency_tells_the_last_committed(store: LogStore, clock: FakeClock) -> None:
    store.create("log", partitions=2)
    with store.appender("log") as out, store.tailer("log", "g") as tail:
        out.append(1, key="ann", partition=0)
        clock.advance("5s")
        out.append(2, key="bob", partition=0)
        read_all(tail, 1, limit=1)
        tail.commit()
        clock.advance("5s")
        behind, empty = store.latencies("log", "g")
        assert (behind.key, behind.lag, behind.latency) == ("ann", 1, timedelta(seconds=10))
        assert (empty.key, empty.lag) == (None, 0)
        assert store.latency("log", "g").lag == 1


@pytest.mark.seed("M60")
def test_records_are_typed(store: LogStore) -> None:
    store.create("log", codec="json")
    with store.appender("log", dict) as out:
        out.append({"a": 1})
        with pytest.raises(WrongType):
            out.append("no dict")  # type: ignore[arg-type]
    with store.tailer("log", "g", dict) as tail:
        assert read_all(tail, 1)[0].value == {"a": 1}


@pytest.mark.seed("M62")
def test_to_the_end_and_to_a_time(store: LogStore, clock: FakeClock) -> None:
    store.create("log")
    with store.appender("log") as out:
        for number in range(5):
            out.append(number)
            clock.advance("1m")
    with store.tailer("log", "g") as tail:
        tail.to_end()
        tail.commit()
        assert store.lag("log", "g").lag == 0
        tail.to_time(clock.now() - timedelta(minutes=2))
        tail.commit()
    with store.tailer("log", "g") as tail:
        assert values(read_all(tail, 2)) == [3, 4]


# --- patterns -----------------------------------------------------------------------------------------


class Counting:
    """A consumer that counts what it commits."""

    def __init__(self, committed: list[Any]) -> None:
        self.committed = committed
        self.batch: list[Any] = []

    def begin(self) -> None:
        self.batch = []

    def accept(self, record: Record[Any]) -> None:
        self.batch.append(record.value)

    def commit(self) -> None:
        self.committed += self.batch

    def rollback(self) -> None:
        self.batch = []

    def close(self) -> None: ...


@pytest.mark.seed("M30")
def test_producers_then_consumers(store: LogStore) -> None:
    store.create("log", partitions=10)
    log = store.log("log", int)
    committed: list[int] = []
    produced = ProducerPool(log, lambda number: range(number * 1000, number * 1000 + 1000), 15).run()
    assert (len(produced), sum(status.appended for status in produced)) == (15, 15_000)
    policy = ConsumerPolicy(bounded=True, threads=8, batch=Batching(100, "1s"))
    statuses = ConsumerPool(log, "g", lambda _: Counting(committed), policy).run()
    assert len(statuses) == 8
    assert sum(status.accepted for status in statuses) == sum(status.committed for status in statuses) == 15_000
    assert sorted(committed) == list(range(15_000))


@pytest.mark.seed("M31")
def test_producers_and_consumers_at_once(store: LogStore) -> None:
    store.create("log", partitions=4)
    log = store.log("log", int)
    committed: list[int] = []
    producers = ProducerPool(log, lambda number: range(number * 500, number * 500 + 500), 4)
    pool = ConsumerPool(log, "g", lambda _: Counting(committed), BOUNDED, after=producers).start()
    producers.start()
    assert len(pool.wait("30s")) == 4
    assert sorted(committed) == list(range(2000))


@pytest.mark.seed("M32")
def test_faulty_consumers(store: LogStore) -> None:
    store.create("log", partitions=12)
    log = store.log("log", int)
    committed: list[int] = []
    rng = random.Random(1)

    class Faulty(Counting):
        def begin(self) -> None:
            self.may_fail(0.01)
            super().begin()

        def accept(self, record: Record[int]) -> None:
            super().accept(record)
            self.may_fail(0.1)

        def commit(self) -> None:
            self.may_fail(0.02)
            super().commit()

        def may_fail(self, share: float) -> None:
            if rng.random() < share:
                raise OSError("chaos")

    ProducerPool(log, lambda _: range(1270)).run()
    policy = ConsumerPolicy(
        bounded=True, threads=7, batch=Batching(13, "1s"), retry=Retry(attempts=100, backoff="1ms", max_backoff="1ms")
    )
    statuses = ConsumerPool(log, "g", lambda _: Faulty(committed), policy).run()
    assert sorted(committed) == list(range(1270))
    assert sum(status.accepted for status in statuses) > 1270


@pytest.mark.seed("M33")
def test_a_forced_batch(store: LogStore) -> None:
    store.create("log")
    log = store.log("log", int)
    pool = ConsumerPool(
        log, "g", lambda _: per_record(lambda record: None), ConsumerPolicy(batch=Batching(10, "1h"))
    ).start()
    first = log.append(1)
    assert not log.wait_for(first, "g", "200ms")
    ProducerPool(log, lambda _: [Message(2, force_batch=True)]).run()
    assert log.wait_for(first, "g", "20s")
    pool.stop()


@pytest.mark.seed("M34", "M35")
def test_pills(store: LogStore) -> None:
    store.create("log", partitions=2)
    log = store.log("log", int)
    committed: list[int] = []
    for partition in range(2):
        log.append_many([1, 2], partition=partition)
        append_pill(log, partition)
        log.append(3, partition=partition)
    statuses = ConsumerPool(log, "g", lambda _: Counting(committed), ConsumerPolicy(batch=Batching(100, "1h"))).run()
    assert sorted(committed) == [1, 1, 2, 2]
    assert [status.committed for status in statuses] == [2, 2]
    assert store.lag("log", "g").lag >= 2


@pytest.mark.seed("M36", "M37")
@pytest.mark.parametrize("how", ["pool", "store"])
def test_what_was_not_committed_is_the_next_ones(store: LogStore, open_logs: Any, how: str) -> None:
    store.create("log")
    log = store.log("log", int)
    log.append_many([1, 2])
    committed: list[int] = []
    pool = ConsumerPool(log, "g", lambda _: Counting(committed), ConsumerPolicy(batch=Batching(100, "1h"))).start()
    threading.Event().wait(0.2)
    other = open_logs()
    statuses = pool.close() if how == "pool" else (store.close(), pool.wait("20s"))[1]
    assert all(status.failed for status in statuses)
    ConsumerPool(other.log("log", int), "g", lambda _: Counting(committed), BOUNDED).run()
    assert committed == [1, 2]
    assert stored(other) == [1, 2]


@pytest.mark.seed("M71")
def test_tools(tmp_path: Path) -> None:
    """Everything the seed's tools do, from the command line; tests/cli looks at each more closely."""
    url = f"file://{tmp_path}/logs"

    def run(*arguments: str, given: str | None = None) -> str:
        done = CliRunner().invoke(app, ["log", *arguments], env={"PENSTOCK_LOGS_URL": url}, input=given)
        assert done.exit_code == 0, done.output
        return done.output

    run("create", "log")
    run("append", "log", "1", "2", "3")
    dumped = run("cat", "log", "--json")
    assert run("tail", "log", "--group", "g", "--no-follow").count("\n") == 3
    assert json.loads(run("lag", "log", "--json"))[0]["lag"] == 0
    for position in ("start", "end", "1", "1h"):
        run("reset", "log", "--group", "g", "--to", position, "--yes")
    run("copy", "log", url, f"file://{tmp_path}/other")
    run("create", "restored")
    run("append", "restored", "--from-json", given=dumped)
    assert run("cat", "restored", "--json") == dumped

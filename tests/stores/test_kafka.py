"""What is particular to Kafka: options, prefixes, foreign topics, its own groups, transactions, lost brokers."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.contract.log.shorthand import filled, read_all, stored, values, wait_until

import penstock
from penstock import LogStore, failpoints
from penstock.errors import (
    BadInput,
    CannotOpen,
    Closed,
    Fenced,
    PayloadTooLarge,
    StoreUnavailable,
    Unsupported,
)
from penstock.ids import new_id
from penstock.log.partitioner import PARTITIONERS
from penstock.log.record import Partition
from penstock.log.tailer import Tailer

Open = Callable[..., LogStore]


@pytest.fixture
def broker(servers: Callable[[str], Any]) -> Any:
    return servers("kafka")


@pytest.fixture
def open_logs(broker: Any) -> Iterator[Open]:
    opened: list[LogStore] = []
    prefix = new_id()

    def open_another(options: str = "", *, under: str | None = None) -> LogStore:
        opened.append(penstock.open_logs(f"{broker.url}/{under or prefix}{options}"))
        return opened[-1]

    yield open_another
    for store in opened:
        store.close()


# --- options and bad input ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("?ack=all", "ack"),
        ("?timeout=soon", "timeout"),
        ("?default.replication.factor=none", "default.replication.factor"),
        ("?compression.type=shrink", "compression.type"),
        ("?no.such.option=1", "no.such.option"),
    ],
)
def test_a_wrong_option_is_told(open_logs: Open, options: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        filled(open_logs(options))


def test_no_broker_is_told_in_time() -> None:
    begin = time.monotonic()
    with pytest.raises(CannotOpen, match="no broker"):
        penstock.open_logs("kafka://127.0.0.1:1/x?timeout=1")
    assert time.monotonic() - begin < 20
    with pytest.raises(BadInput, match="names no broker"):
        penstock.open_logs("kafka:///x")


def test_more_replicas_than_brokers(open_logs: Open) -> None:
    with pytest.raises(BadInput, match="replication"):
        open_logs("?default.replication.factor=3").create("log")


def test_subscribing_can_be_switched_off(open_logs: Open) -> None:
    store = open_logs("?subscribe.disable=true")
    filled(store)
    with pytest.raises(Unsupported, match="subscribe"):
        store.subscribe("log", "g")
    with store.tailer("log", "g") as tail:
        assert len(read_all(tail, 10)) == 10


def test_a_record_over_the_limit(open_logs: Open) -> None:
    store = open_logs()
    store.create("log")
    with store.appender("log", bytes) as out, pytest.raises(PayloadTooLarge, match="1,000,000"):
        out.append(b"x" * 1_000_001)


def test_what_only_penstock_could_keep_is_refused(open_logs: Open) -> None:
    from penstock.log.settings import Retention

    with pytest.raises(Unsupported, match="consumed"):
        open_logs().create("log", retention=Retention(keep_for=("billing",)))


def test_options_reach_the_driver(open_logs: Open) -> None:
    store = open_logs("?acks=1&compression.type=lz4&linger.ms=1&client.id=shop&fetch.wait.max.ms=50")
    filled(store, count=20)
    assert stored(store) == list(range(20))


# --- prefixes and foreign topics --------------------------------------------------------------------------


def test_prefixes_are_apart(open_logs: Open) -> None:
    mine, theirs = open_logs(), open_logs(under=new_id())
    filled(mine, count=3)
    assert theirs.names() == []
    filled(theirs, count=1)
    for store in (mine, theirs):
        with store.tailer("log", "g") as tail:
            read_all(tail, 1, limit=1)
            tail.commit()
    assert (mine.lag("log", "g").lag, theirs.lag("log", "g").lag) == (2, 0)
    assert mine.groups("log") == ["g"]


def test_topics_of_others_are_logs_too(open_logs: Open, broker: Any) -> None:
    prefix = new_id()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(f"{prefix}-theirs", 2, 1)])[f"{prefix}-theirs"].result(20)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(f"{prefix}-theirs", b'{"a": 1}', key=b"ann", partition=1, headers=[("trace", b"t-1")])
    producer.flush(20)
    store = open_logs(under=prefix)
    assert store.names() == ["theirs"]
    with store.tailer("theirs", "g", dict) as tail:
        [record] = read_all(tail, 1)
        assert (record.value, record.key, dict(record.headers)) == ({"a": 1}, "ann", {"trace": "t-1"})


def test_our_records_are_plain_to_others(open_logs: Open, broker: Any) -> None:
    prefix = new_id()
    store = open_logs(under=prefix)
    store.create("ours")
    with store.appender("ours", dict) as out:
        out.append({"a": 1}, key="ann", headers={"trace": "t-1"})
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": prefix, "auto.offset.reset": "earliest"})
    consumer.subscribe([f"{prefix}-ours"])
    message = consumer.poll(20)
    assert message is not None
    assert (message.value(), message.key(), message.headers()) == (b'{"a":1}', b"ann", [("trace", b"t-1")])
    consumer.close()


@pytest.mark.parametrize(("ours", "theirs"), [("crc32", "consistent"), ("murmur2", "murmur2")])
def test_keys_go_where_kafkas_own_clients_send_them(open_logs: Open, broker: Any, ours: str, theirs: str) -> None:
    prefix = new_id()
    open_logs(under=prefix).create("log", partitions=7)
    sent: dict[str, int] = {}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": theirs})
    for number in range(50):
        key = f"key-{number}-ü"
        producer.produce(
            f"{prefix}-log", b"x", key=key.encode(),
            on_delivery=lambda error, message, key=key: sent.update({key: message.partition()}),
        )  # fmt: skip
    producer.flush(20)
    assert sent == {key: PARTITIONERS[ours](key, 7) for key in sent}
    assert len(sent) == 50


# --- transactions ----------------------------------------------------------------------------------------


@pytest.fixture
def held() -> Iterator[Callable[[], tuple[threading.Event, threading.Event]]]:
    """Stops the next transaction just before its commit: an event that says so, and one that lets it continue."""
    goes_on = threading.Event()

    def arm() -> tuple[threading.Event, threading.Event]:
        stopped = threading.Event()
        first = threading.Lock()

        def strike(point: str) -> None:
            if point == "log.transaction.before" and first.acquire(blocking=False):
                stopped.set()
                goes_on.wait(60)

        failpoints.arm(strike)
        return stopped, goes_on

    yield arm
    goes_on.set()
    failpoints.arm(None)


def commit(store: LogStore, log: str, value: int, **options: Any) -> None:
    with store.transaction(**options) as transaction:
        transaction.append(log, value)
        transaction.commit()


def test_transactions_do_not_wait_for_each_other(open_logs: Open, held: Any) -> None:
    """Tasks of a runner share a store; the commit of one takes its time, and the others continue."""
    store = open_logs()
    store.create("slow")
    store.create("quick")
    stopped, goes_on = held()
    slow = threading.Thread(target=commit, args=(store, "slow", 1))
    slow.start()
    assert stopped.wait(60)
    quick = [threading.Thread(target=commit, args=(store, "quick", number), daemon=True) for number in range(4)]
    for thread in quick:
        thread.start()
    for thread in quick:
        thread.join(30)
    assert not any(thread.is_alive() for thread in quick)
    assert sorted(values(store.log("quick").records(0))) == [0, 1, 2, 3]
    assert values(store.log("slow").records(0)) == []
    goes_on.set()
    slow.join(60)
    assert values(store.log("slow").records(0)) == [1]


def test_transactions_of_one_producer_come_one_after_the_other(open_logs: Open, held: Any) -> None:
    store = open_logs()
    store.create("log")
    stopped, goes_on = held()
    first = threading.Thread(target=commit, args=(store, "log", 1), kwargs={"producer": "p", "sequence": 1})
    first.start()
    assert stopped.wait(60)
    again = threading.Thread(target=commit, args=(store, "log", 1), kwargs={"producer": "p", "sequence": 1})
    second = threading.Thread(target=commit, args=(store, "log", 2), kwargs={"producer": "p", "sequence": 2})
    again.start()
    goes_on.set()
    first.join(60)
    again.join(60)
    second.start()
    second.join(60)
    assert values(store.log("log").records(0)) == [1, 2]


class OldGeneration:
    """A consumer that names the generation its group had when this was made, once; then the group has moved on."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._old = consumer.consumer_group_metadata()

    def consumer_group_metadata(self) -> Any:
        old, self._old = self._old, None
        return self._consumer.consumer_group_metadata() if old is None else old

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)


def test_a_transaction_outlives_the_arrival_of_another_member(open_logs: Open, broker: Any) -> None:
    """The client takes part in the rebalance by itself: the generation changes between asking and sending."""
    store = open_logs()
    store.create("log", 2)
    store.create("out")
    for partition in range(2):
        store.log("log").append(partition, partition=partition)
    with store.subscribe("log", "g") as first:
        read: list[Any] = []
        wait_until(lambda: read.extend(first.read(timeout="1s")) or len(read) == 2, "both partitions are here")
        source: Any = first.source
        consumer, source.consumer = source.consumer, OldGeneration(source.consumer)
        with open_logs().subscribe("log", "g") as second:
            wait_until(lambda: second.read(timeout="100ms") or members(broker, first) == 2, "another member is here")
            with store.transaction() as transaction:
                transaction.append("out", "once")
                transaction.commit_offsets(first)
                transaction.commit()
            source.consumer = consumer
    assert store.committed("log", "g") == [1, 1]
    assert values(store.log("out").records(0)) == ["once"]


def members(broker: Any, tailer: Tailer[Any]) -> int:
    """How many members the group of a tailer has; 0 while it deals out partitions."""
    source: Any = tailer.source
    group = source._cluster.group_id(source.group)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    described = admin.describe_consumer_groups([group])[group].result(30)
    return len(described.members) if described.state is ConsumerGroupState.STABLE else 0


def test_after_a_transaction_that_failed_the_next_one_begins_afresh(open_logs: Open) -> None:
    store = open_logs()
    store.create("log")
    commit(store, "log", 1)

    def fail(point: str) -> None:
        if point == "log.transaction.before":
            raise RuntimeError("before the commit")

    for options in ({}, {"producer": "p", "sequence": 7}):
        failpoints.arm(fail)
        try:
            with pytest.raises(RuntimeError):
                commit(store, "log", 2, **options)
        finally:
            failpoints.arm(None)
        commit(store, "log", 3, **options)
    assert values(store.log("log").records(0)) == [1, 3, 3]


def test_a_closed_store_commits_nothing(open_logs: Open) -> None:
    store = open_logs()
    store.create("log")
    commit(store, "log", 1)
    store.close()
    with pytest.raises(Closed):
        commit(store, "log", 2)


# --- groups -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_both_group_protocols(open_logs: Open, protocol: str) -> None:
    """KIP-848 groups and the classic ones: shared, handed over, nothing lost, nothing committed read again.

    A commit may be refused while the members deal out the partitions again, and a busy broker may not answer in time:
    what was read and not committed comes again, from whoever has the partition then.
    """
    store = open_logs(f"?group.protocol={protocol}")
    filled(store, partitions=4, count=40)
    seen: set[int] = set()
    committed: dict[int, int] = {}
    first, second = store.subscribe("log", "g"), store.subscribe("log", "g")

    def read(member: Tailer[Any]) -> None:
        records = member.read(100, timeout="20ms")
        assert all(record.offset >= committed.get(record.partition, 0) for record in records), "committed, so read"
        seen.update(values(records))
        try:
            member.commit()
        except (Fenced, StoreUnavailable):
            return
        committed.update({record.partition: record.offset + 1 for record in records})

    def shared() -> bool:
        read(first)
        read(second)
        return [len(member.assignment()) for member in (first, second)] == [2, 2]

    wait_until(shared, "each has two partitions", 60)
    second.close()

    def taken_over() -> bool:
        read(first)
        return len(first.assignment()) == 4 and len(seen) == 40

    wait_until(taken_over, "the one that is left has all", 60)
    assert seen == set(range(40))
    first.close()


# --- doctor -----------------------------------------------------------------------------------------------


def test_doctor_compares_what_is_kept(open_logs: Open) -> None:
    from penstock.log.settings import Retention

    store = open_logs()
    store.create("short", retention=Retention(age="1d"))
    store.create("long", retention=Retention(age="30d"))
    said = {one.what: one.detail for one in store.check() if one.level == "warning"}
    assert "retention of long" in said
    assert "retention of short" not in said
    assert "twice" in said["retention of long"]


# --- processes that go away ------------------------------------------------------------------------------------


MOVER = """
import sys, penstock
store = penstock.open_logs(sys.argv[1])
with store.subscribe("in", "movers") as tail:
    print("ready", flush=True)
    while True:
        records = tail.read(7, timeout="100ms")
        if records:
            with store.transaction() as tx:
                tx.append_many("out", [record.value for record in records], partition=0)
                tx.commit_offsets(tail)
                tx.commit()
"""


DYING = MOVER.replace(
    "store =",
    """from penstock import failpoints
import os, signal
failpoints.arm(lambda name: name == "log.transaction.before" and os.kill(os.getpid(), signal.SIGKILL))
store =""",
)


def test_a_dead_writer_s_offsets_are_waited_for(open_logs: Open, broker: Any) -> None:
    """The brokers hold them back until its transaction timed out; who asks gets them then, not an error before."""
    prefix = new_id()
    store = open_logs("?timeout=2", under=prefix)
    store.create("in")
    with store.appender("in") as out:
        out.append_many(range(20), partition=0)
    store.create("out")
    with store.subscribe("in", "movers") as tail:
        tail.read(3, timeout="10s")
        tail.commit()
    mover = subprocess.run(
        [sys.executable, "-c", DYING, f"{broker.url}/{prefix}?session.timeout.ms=1500&timeout=2"],
        stdout=subprocess.DEVNULL,
        check=False,
    )
    assert mover.returncode == -signal.SIGKILL
    assert store.lag("in", "movers").lag == 17  # who only looks sees what was committed before
    assert store.committed("in", "movers") == [3]
    assert stored(store, "out") == []


def test_killed_movers_leave_no_half_transaction(open_logs: Open, broker: Any) -> None:
    """Read, write and commit in one transaction; killed again and again, every record is there exactly once."""
    prefix = new_id()
    store = open_logs("?session.timeout.ms=1500&timeout=2", under=prefix)
    store.create("in", partitions=2)
    with store.appender("in") as out:
        for number in range(2):
            out.append_many(range(number, 2000, 2), partition=number)
    store.create("out")
    url = f"{broker.url}/{prefix}?session.timeout.ms=1500&timeout=2"  # its transactions end 6 s after it died
    deadline = time.monotonic() + 50
    kills = 0
    while store.lag("in", "movers").lag and time.monotonic() < deadline:
        mover = subprocess.Popen([sys.executable, "-c", MOVER, url], stdout=subprocess.PIPE)
        assert mover.stdout is not None
        mover.stdout.readline()
        patience = time.monotonic() + (0.7 if kills < 3 else 20)
        while time.monotonic() < patience and store.lag("in", "movers").lag:
            time.sleep(0.05)
        os.kill(mover.pid, signal.SIGKILL)
        mover.wait()
        mover.stdout.close()
        kills += 1
    assert kills > 1
    assert sorted(stored(store, "out")) == list(range(2000))
    assert store.committed("in", "movers") == [store.bounds_of(Partition("in", index)).end for index in range(2)]

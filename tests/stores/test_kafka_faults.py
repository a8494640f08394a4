"""Kafka after something went wrong: no record is dropped, no reader and no producer stays dead."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from tests.contract.log.shorthand import wait_until
from tools.kafka import Kafka

import penstock
from penstock import LogStore, PenstockError
from penstock.errors import ProducerFenced, StoreUnavailable
from penstock.ids import new_id
from penstock.log.drivers.kafka import cluster, producer, sink, source

Open = Callable[..., LogStore]


@pytest.fixture
def open_logs(servers: Callable[[str], Any]) -> Iterator[Open]:
    opened: list[LogStore] = []
    prefix = new_id()

    def open_another(options: str = "") -> LogStore:
        opened.append(penstock.open_logs(f"{servers('kafka').url}/{prefix}{options}"))
        return opened[-1]

    yield open_another
    for store in opened:
        store.close()


class Complaint:
    """An error message as the driver hands it out between records."""

    def error(self) -> KafkaError:
        return KafkaError(KafkaError._TRANSPORT)

    def topic(self) -> None:
        return None

    def partition(self) -> int:
        return 0


def read_for(tail: Any, count: int, seconds: float = 30.0) -> tuple[list[Any], list[PenstockError]]:
    """What is read until so many records came, and what was raised on the way."""
    got: list[Any] = []
    raised = []
    deadline = time.monotonic() + seconds
    while len(got) < count and time.monotonic() < deadline:
        try:
            got += [record.value for record in tail.read(timeout="500ms")]
        except PenstockError as error:
            raised.append(error)
    return got, raised


@pytest.mark.parametrize("partitions", [1, 2])
def test_records_beside_an_error_are_handed_out(
    open_logs: Open, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    store = open_logs()
    store.create("log", partitions)
    with store.appender("log") as out:
        for number in range(10):
            out.append(number, partition=number % partitions)
    spoiled: list[bool] = []

    def poll_messages(consumer: Any, limit: int, seconds: float) -> list[Any]:
        messages = cluster.poll_messages(consumer, limit, seconds)
        if messages and not spoiled:
            spoiled.append(True)
            return [messages[0], Complaint(), *messages[1:]]
        return messages

    monkeypatch.setattr(source, "poll_messages", poll_messages)
    with store.subscribe("log", "g") as tail:
        got, raised = read_for(tail, 10)
        if not raised:
            with pytest.raises(StoreUnavailable):
                tail.read(timeout="1s")
        assert sorted(got) == list(range(10))
        tail.commit()
    assert store.lag("log", "g").lag == 0


def test_a_foreign_time_header_is_only_a_header(open_logs: Open, servers: Callable[[str], Any]) -> None:
    store: Any = open_logs()
    store.create("log")
    driver = Producer({"bootstrap.servers": servers("kafka").bootstrap})
    for number, text in enumerate((b"abc", b"\xff", b"9" * 40, b"1700000000000001")):
        driver.produce(
            store.driver.cluster.topic("log"), value=b"%d" % number, timestamp=1_700_000_000_000,
            headers=[("penstock-us", text)],
        )  # fmt: skip
    driver.flush(10)
    with store.tailer("log", "g") as tail:
        records: list[Any] = []
        while len(records) < 4:
            records += tail.read(timeout="5s")
    assert [record.value for record in records] == [0, 1, 2, 3]
    assert [record.time_us - 1_700_000_000_000_000 for record in records] == [0, 0, 0, 1]
    assert records[0].headers == {"penstock-us": "abc"}
    assert not records[3].headers


def test_where_to_begin_is_asked_again(open_logs: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_logs()
    store.create("log", 2)
    with store.appender("log") as out:
        for number in range(10):
            out.append(number, partition=number % 2)
    real, failures = source.KafkaSource._start_positions, [1, 2]

    def late(self: Any, partitions: Any) -> Any:
        if partitions and failures:
            failures.pop()
            raise StoreUnavailable("too late.", hint="Again.")
        return real(self, partitions)

    monkeypatch.setattr(source.KafkaSource, "_start_positions", late)
    assigned: list[Any] = []
    with store.subscribe("log", "g", on_assigned=assigned.extend) as tail:
        got, raised = read_for(tail, 10)
        assert len(raised) == 2
        assert sorted(got) == list(range(10))
        assert sorted(assigned) == tail.assignment() == store.partitions("log")
        tail.commit()


@pytest.mark.timeout(240)  # a broker of its own, and an outage of 12 s
def test_an_outage_longer_than_the_timeouts() -> None:
    """A subscriber and a named producer that outlive it go on; the sequence that failed is there once."""
    broker = Kafka().start()
    pid = next(value.pid for value in vars(broker).values() if hasattr(value, "pid"))
    try:
        # For the brokers a writer that is silent for as long as a transaction may last is dead, and is shut out.
        with penstock.open_logs(f"{broker.url}/x?timeout=1&transaction.timeout.ms=60000") as store:
            store.create("log", 2)
            named = store.appender("log", producer="p")
            named.append("n1", partition=1, sequence=1)
            tail = store.subscribe("log", "g")
            assert read_for(tail, 1)[0] == ["n1"]
            tail.commit()
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().split()[2] == "T", "it is stopped")
            begin = time.monotonic()
            try:
                with pytest.raises(StoreUnavailable):
                    named.append("n2", partition=1, sequence=2)
                with pytest.raises(PenstockError):
                    named.append("n2", partition=1, sequence=2)
                while time.monotonic() - begin < 12:
                    read_for(tail, 1, 0.5)
            finally:
                os.kill(pid, signal.SIGCONT)
            eventually(lambda: named.append("n2", partition=1, sequence=2))
            assert read_for(tail, 1)[0] == ["n2"]
            # The leader is a new one, of which not every client has heard yet.
            opened: list[Any] = []
            eventually(lambda: opened.append(store.appender("log", producer="p")))
            [newer] = opened
            assert newer.last_sequence(1) == 2
            newer.append("n3", partition=1, sequence=3)
            for _ in range(2):
                with pytest.raises(ProducerFenced):
                    named.append("n4", partition=1, sequence=4)
            newer.append("n5", partition=1, sequence=5)
            assert [record.value for record in store.log("log").records(1)] == ["n1", "n2", "n3", "n5"]
    finally:
        broker.stop()


def eventually(append: Callable[[], Any]) -> None:
    """Try until it goes."""
    deadline = time.monotonic() + 30
    while True:
        try:
            append()
            return
        except StoreUnavailable:
            if time.monotonic() > deadline:
                raise


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_an_end_of_a_transaction_that_was_broken_off(
    open_logs: Open, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    store = open_logs()
    store.create("log")
    named: Any = store.appender("log", producer="p")
    named.append("one", sequence=1)
    real = sink.run_transaction

    def torn(kafka: Any, work: Any) -> Any:
        kafka.producer.begin_transaction()
        kafka.is_unfinished = True
        work()
        with contextlib.suppress(KafkaException):  # a broker may be so quick that only its answer is missing
            getattr(kafka.producer, end)(0)
        raise StoreUnavailable("nobody answered.", hint="Again.")

    monkeypatch.setattr(sink, "run_transaction", torn)
    with pytest.raises(StoreUnavailable):
        named.append("two", sequence=2)
    monkeypatch.setattr(sink, "run_transaction", real)
    named.append("two", sequence=2)
    assert [record.value for record in store.log("log").records(0)] == ["one", "two"]


def test_settings_that_were_not_kept_are_told(open_logs: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = open_logs()
    store.create("other", codec="json")

    real = producer.Delivery.__call__

    def refused(self: Any, error: Any, message: Any) -> None:
        real(self, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), None)

    monkeypatch.setattr(producer.Delivery, "__call__", refused)
    with pytest.raises(PenstockError):
        store.create("log", codec="json")
    monkeypatch.undo()
    assert store.create("log", codec="json"), "what was half made is gone"
    assert store.settings("log").codec == "json"


@pytest.mark.parametrize(("durability", "most"), [("fast", 1), ("durable", None)])
def test_a_request_that_is_sent_again_is_not_overtaken(
    servers: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, durability: str, most: object
) -> None:
    """Without idempotence the brokers keep no order among requests in flight, so there is one."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(producer, "Producer", lambda options: made.append(options) or Producer(options))
    with penstock.open_logs(f"{servers('kafka').url}/{new_id()}?durability={durability}") as store:
        store.create("log", 1)
        store.log("log").append(1)
    plain = [options for options in made if "transactional.id" not in options]
    assert {options.get("max.in.flight.requests.per.connection") for options in plain} == {most}

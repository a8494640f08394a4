"""Kafka brokers that are killed and come back, and a cluster that loses one of three."""

import threading
import time
from typing import Any

import pytest
from tests.contract.log.shorthand import filled, read_all, stored, values, wait_until
from tools.kafka import Kafka, cluster

import penstock
from penstock.errors import PenstockError

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


def test_a_broker_that_comes_back(tmp_path: Any) -> None:
    """Calls fail in time with a typed error while it is away; readers and writers go on when it is back."""
    broker = Kafka(durable=True).start()
    try:
        store = penstock.open_logs(f"{broker.url}/x?timeout=2&session.timeout.ms=6000")
        filled(store, count=5)
        tail = store.tailer("log", "g")
        assert values(read_all(tail, 5)) == [0, 1, 2, 3, 4]
        tail.commit()
        broker.crash()
        begin = time.monotonic()
        with pytest.raises(PenstockError), store.appender("log") as out:
            out.append(99)
        assert time.monotonic() - begin < 30
        with pytest.raises(PenstockError):
            store.bounds("log")
        broker.start()

        def appended() -> bool:
            try:
                with store.appender("log") as out:
                    out.append(5)
            except PenstockError:
                return False
            return True

        wait_until(appended, "appends go on")
        assert 5 in values(read_all(tail, 1))
        assert stored(store)[:5] == [0, 1, 2, 3, 4]
        tail.close()
        store.close()
    finally:
        broker.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_one_of_three_brokers_is_killed(protocol: str) -> None:
    """Three replicas, acknowledged by all in sync: what was acknowledged is there, in order, and read by the group."""
    settings = {"min.insync.replicas": "2", "broker.session.timeout.ms": "3000"}
    brokers = cluster(3, **settings)
    try:
        for broker in brokers:
            broker.launch()
        for broker in brokers:
            broker.await_answer()
        hosts = ",".join(broker.bootstrap for broker in brokers)
        url = f"kafka://{hosts}/x?default.replication.factor=3&timeout=10&group.protocol={protocol}"
        store = penstock.open_logs(url)
        store.create("log", partitions=3)
        acknowledged: list[int] = []
        stop = threading.Event()

        def append() -> None:
            with store.appender("log") as out:
                number = 0
                while not stop.is_set():
                    try:
                        out.append(number, partition=number % 3)
                        acknowledged.append(number)
                    except PenstockError:
                        time.sleep(0.1)
                    number += 1

        appending = threading.Thread(target=append)
        appending.start()
        seen: list[Any] = []
        tail = store.subscribe("log", "g")

        def read_on(count: int) -> bool:
            try:
                seen.extend(values(tail.read(500, timeout="200ms")))
                tail.commit()
            except PenstockError:
                time.sleep(0.2)
            return len(acknowledged) > count

        wait_until(lambda: read_on(200), "it works")
        brokers[0].crash()
        after = len(acknowledged)
        begin = time.monotonic()
        while not read_on(after + 200):
            assert time.monotonic() - begin < 120, "appends go on with two brokers"
        stop.set()
        appending.join()
        begin = time.monotonic()
        while not set(acknowledged) <= set(seen):
            read_on(0)
            assert time.monotonic() - begin < 120, f"{len(set(acknowledged) - set(seen))} were not read"
        kept = [stored(store, "log", index) for index in range(3)]
        assert set(acknowledged) <= {number for part in kept for number in part}
        for part in kept:
            assert part == sorted(part), "in order"
        tail.close()
        store.close()
    finally:
        for broker in brokers:
            broker.close()

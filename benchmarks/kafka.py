"""Logs on Kafka against the bare driver's batch calls, on one broker, 200-byte records, in turns.

python -m benchmarks.kafka [--quick]
"""

from __future__ import annotations

import sys
import uuid

from confluent_kafka import Consumer, Producer, TopicPartition
from tools.kafka import Kafka

import penstock
from benchmarks.measure import Bar, Run, conditions, median, report, timed

QUICK = "--quick" in sys.argv
COUNT = 50_000 if QUICK else 300_000
REPEATS = 1 if QUICK else 5
BATCH = 1000
VALUE = b"x" * 200


def warm_up(url: str) -> None:
    """The broker makes its own topics when they are first needed."""
    with penstock.open_logs(url) as store:
        store.create("warm")
        with store.appender("warm", bytes) as out, store.tailer("warm", "g", bytes) as tail:
            out.append(VALUE)
            tail.read(1, timeout="20s")
            tail.commit()


def ours_produce(url: str, log: str) -> Run:
    with penstock.open_logs(url) as store:
        store.create(log)
        values = [VALUE] * BATCH
        with store.appender(log, bytes) as out:
            out.append(VALUE, partition=0)  # the first one waits for the producer's id

            def work() -> None:
                for _ in range(COUNT // BATCH):
                    out.append_many(values, partition=0)

            return timed(COUNT, work)


def raw_produce(bootstrap: str, topic: str) -> Run:
    """The same batches, each waited for, with the driver's own batch call."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0})
    left = 0

    def delivered(error: object, message: object) -> None:
        nonlocal left
        left -= 1

    producer.produce(topic, VALUE, partition=0)
    producer.flush()

    def work() -> None:
        nonlocal left
        for _ in range(COUNT // BATCH):
            left = BATCH
            producer.produce_batch(topic, [{"value": VALUE} for _ in range(BATCH)], partition=0, on_delivery=delivered)
            while left:
                producer.poll(0.1)

    return timed(COUNT, work)


def ours_consume(url: str, log: str) -> Run:
    with penstock.open_logs(url) as store, store.tailer(log, f"g-{uuid.uuid4()}", bytes) as tail:

        def work() -> None:
            left = COUNT
            while left > 0:
                for batch in tail.read_batches(BATCH, timeout="5s"):
                    left -= len(batch.payloads())

        return timed(COUNT, work)


def raw_consume(bootstrap: str, topic: str) -> Run:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": str(uuid.uuid4()), "enable.auto.commit": False,
         "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])

    def work() -> None:
        left = COUNT
        while left > 0:
            for message in consumer.consume(BATCH, 5):
                if message.error() is None and message.value():
                    left -= 1

    run = timed(COUNT, work)
    consumer.close()
    return run


def main() -> int:
    print(f"Conditions: {conditions()}")
    broker = Kafka().start()
    try:
        url = f"{broker.url}/bench"
        warm_up(url)
        produced, raw_produced, consumed, raw_consumed = [], [], [], []
        for number in range(REPEATS):
            log = f"log-{number}"
            produced.append(ours_produce(url, log))
            with penstock.open_logs(url) as store:
                store.create(f"raw-{number}")
            raw_produced.append(raw_produce(broker.bootstrap, f"bench-raw-{number}"))
            consumed.append(ours_consume(url, log))
            raw_consumed.append(raw_consume(broker.bootstrap, f"bench-{log}"))
    finally:
        broker.close()
    put, raw_put, got, raw_got = map(median, (produced, raw_produced, consumed, raw_consumed))
    bars = [
        Bar("Kafka: append_many(1000) vs bare produce_batch", ">= 0.8x", f"{put.rate / raw_put.rate:.2f}x",
            put.rate >= 0.8 * raw_put.rate),
        Bar("Kafka: read_batches vs bare consume", ">= 0.8x", f"{got.rate / raw_got.rate:.2f}x",
            got.rate >= 0.8 * raw_got.rate),
    ]  # fmt: skip
    notes = [
        f"{what}: {run.rate:,.0f}/s with {run.cpu_us:.2f} µs CPU of the client per record"
        for what, run in (("append", put), ("bare produce", raw_put), ("read", got), ("bare consume", raw_got))
    ]
    good = report("Logs on Kafka", bars, notes)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

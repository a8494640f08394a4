"""KafkaProducer: a producer of the client library, and how records go through it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock import failpoints
from penstock.clock import Micros
from penstock.errors import Fenced, PenstockError, StoreUnavailable
from penstock.log.drivers.kafka.batch import MICROS
from penstock.log.drivers.kafka.cluster import PRODUCING, Cluster
from penstock.log.record import NewRecords, key_bytes

Result = TypeVar("Result")
Ended = Literal["committed", "aborted", "lost"]

_QUEUE_FULL = -184  # librdkafka: its buffer is full


class Delivery:
    """Collects the offsets of records that are sent to one partition."""

    def __init__(self, count: int) -> None:
        """For this many records."""
        self.left = count
        self.offsets: list[int] = []
        self.error: Any = None

    def __call__(self, error: Any, message: Any) -> None:
        """A record was delivered or lost; those of one partition come in order."""
        if error is not None:
            self.error = self.error or error
        else:
            self.offsets.append(message.offset())
        self.left -= 1


class KafkaProducer:
    """A producer: idempotent, or transactional if it has a transactional id."""

    def __init__(self, cluster: Cluster, transactional: str | None = None) -> None:
        """Open it. A ``transactional`` id fences the producer that had it before."""
        self.cluster = cluster
        self.is_unfinished = False  # a transaction was begun, and neither committed nor aborted
        options = {"linger.ms": 0, "acks": "all" if cluster.durable else "1", **cluster.options(PRODUCING)}
        options.setdefault("enable.idempotence", options["acks"] in ("all", "-1"))
        if str(options["enable.idempotence"]).lower() == "false" and transactional is None:
            # A request that is retried, as the first one to a new topic often is, must not be overtaken by the next.
            options.setdefault("max.in.flight.requests.per.connection", 1)
        # The client must give up before wait() does.
        options.setdefault("delivery.timeout.ms", int(cluster.timeout * 3000))
        if transactional is not None:
            options |= {"acks": "all", "enable.idempotence": True}
            options["transactional.id"] = transactional
            options["transaction.timeout.ms"] = int(cluster.transaction_timeout * 1000)
        with cluster.errors():
            self.producer = Producer(options)
            if transactional is not None:
                self.producer.init_transactions(cluster.timeout * 3)

    def append(self, topic: str, index: int, records: NewRecords, now: Micros | None) -> Delivery:
        """Send records; the delivery gets their offsets. Without ``now``, the client sets missing timestamps."""
        delivery = Delivery(len(records))
        values, keys, times, headers = records.values, records.keys, records.times, records.headers
        if headers is None and times is None and now is None:
            # The client takes these in one call, which is a third cheaper.
            messages = [{"value": value} for value in values]
            if keys is not None:
                for message, key in zip(messages, keys, strict=True):
                    if key is not None:
                        message["key"] = key_bytes(key)
            self._send_batch(topic, index, messages, delivery)
            return delivery
        for rank, value in enumerate(values):
            time_us = now if times is None else times[rank]
            own = dict(headers[rank] or {}) if headers is not None else {}
            # The client takes a timestamp of 0 for "now".
            if time_us is not None and (time_us % 1000 or time_us < 1000):
                own[MICROS] = str(time_us)
            dated = {} if time_us is None else {"timestamp": max(1, time_us // 1000)}
            key = keys[rank] if keys is not None else None
            self.send(
                topic, value=value, key=None if key is None else key_bytes(key), partition=index,
                headers=list(own.items()) or None, on_delivery=delivery, **dated,
            )  # fmt: skip
        return delivery

    def _send_batch(self, topic: str, index: int, messages: list[dict[str, Any]], delivery: Delivery) -> None:
        while messages:
            with contextlib.suppress(BufferError):
                self.producer.produce_batch(topic, messages, partition=index, on_delivery=delivery)
            failed = [message for message in messages if "_error" in message]
            if failed and failed[0]["_error"].code() != _QUEUE_FULL:
                raise self.cluster.translated(KafkaException(failed[0]["_error"]))
            for message in failed:
                del message["_error"]
            messages = failed
            if messages:
                self.producer.poll(0.05)

    def send(self, topic: str, **message: Any) -> None:
        """Send one message, waiting for room in the client's buffer."""
        while True:
            try:
                self.producer.produce(topic, **message)
            except BufferError:
                self.producer.poll(0.05)
            except KafkaException as error:
                raise self.cluster.translated(error) from error
            else:
                return

    def wait(self, deliveries: Sequence[Delivery]) -> list[Sequence[int]]:
        """Wait until the brokers have everything. Returns the offsets."""
        deadline = time.monotonic() + self.cluster.timeout * 4
        while any(delivery.left for delivery in deliveries):
            with self.cluster.errors():
                self.producer.poll(0.1)
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"{self.cluster.name} did not confirm an append in time; whether it happened is not known.",
                    hint="Append with a producer and a sequence, so that an append can be repeated.",
                )
        for delivery in deliveries:
            if delivery.error is not None:
                raise self.cluster.translated(KafkaException(delivery.error))
        return [delivery.offsets for delivery in deliveries]

    def end_unfinished(self) -> Ended:
        """End a transaction that an outage left open. Raises while that is not possible."""
        # The call that was interrupted must be repeated; the client refuses the other one.
        ends: list[tuple[Ended, Any]] = [
            ("aborted", self.producer.abort_transaction), ("committed", self.producer.commit_transaction),
        ]  # fmt: skip
        for ended, end in ends:
            try:
                end(self.cluster.timeout * 3)
            except KafkaException as cause:
                error: KafkaError = cause.args[0]
                if error.code() == KafkaError._CONFLICT:
                    continue
                translated = self.cluster.translated(cause)
                if isinstance(translated, Fenced) or error.retriable():
                    raise translated from cause
                return "lost"
            self.is_unfinished = False
            return ended
        return "lost"

    def close(self) -> None:
        """Flush. Every append has waited for its result, so a producer that was fenced has nothing left."""
        with contextlib.suppress(KafkaException):
            self.producer.flush(self.cluster.timeout)


def run_transaction(kafka: KafkaProducer, work: Callable[[], Result]) -> Result:
    """Run ``work`` in a transaction of the producer."""
    producer, cluster = kafka.producer, kafka.cluster
    with cluster.errors():
        producer.begin_transaction()
    kafka.is_unfinished = True
    try:
        result = work()
        failpoints.point("log.transaction.before")
        with cluster.errors():
            producer.commit_transaction(cluster.timeout * 3)
        kafka.is_unfinished = False
        failpoints.point("log.transaction.committed")
    except BaseException as error:
        try:
            producer.abort_transaction(cluster.timeout * 3)
            kafka.is_unfinished = False
        except KafkaException as worse:
            cause = cluster.translated(worse)
            if isinstance(cause, Fenced):
                raise cause from error  # the first failure was a consequence of this
            if isinstance(error, PenstockError):
                raise error from worse
        raise
    return result

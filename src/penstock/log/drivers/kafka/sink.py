"""Appends to Kafka: through one idempotent producer that all share, or in transactions of a named one."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock import failpoints
from penstock.clock import Micros
from penstock.errors import Conflict, Fenced, PenstockError, StoreUnavailable
from penstock.log.drivers.kafka.cluster import PRODUCING, Cluster
from penstock.log.drivers.kafka.sequences import Marks
from penstock.log.protocol import LogSettings, Sink
from penstock.log.record import NewRecords, key_bytes

MICROS = "penstock-us"  # header: what Kafka's milliseconds cannot hold of a timestamp


Ended = Literal["committed", "aborted", "lost"]


class Delivery:
    """Waits for the offsets of the records of one partition."""

    def __init__(self, count: int) -> None:
        self.left = count
        self.offsets: list[int] = []
        self.error: Any = None

    def __call__(self, error: Any, message: Any) -> None:
        """A record was delivered or is lost; those of one partition come in order."""
        if error is not None:
            self.error = self.error or error
        else:
            self.offsets.append(message.offset())
        self.left -= 1


class Outlet:
    """A producer of the driver's, and how records go through it."""

    def __init__(self, cluster: Cluster, transactional: str | None = None) -> None:
        """Open it; a ``transactional`` id shuts out whoever had it before."""
        self.cluster = cluster
        self.unfinished = False  # a transaction was begun, and neither committed nor aborted
        options = {"linger.ms": 0, "acks": "all" if cluster.durable else "1", **cluster.options(PRODUCING)}
        options.setdefault("enable.idempotence", options["acks"] in ("all", "-1"))
        if str(options["enable.idempotence"]).lower() == "false" and transactional is None:
            # A request that is sent again, as the first one to a new topic often is, must not be overtaken by the next.
            options.setdefault("max.in.flight.requests.per.connection", 1)
        # Delivery has to end before we would give up waiting for it.
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
        """Hand records over; the delivery tells where they went. Without ``now`` the driver dates what has no time."""
        delivery = Delivery(len(records))
        values, keys, times, headers = records.values, records.keys, records.times, records.headers
        if headers is None and times is None and now is None:
            # The driver takes these all at once, which is a third cheaper.
            messages = [{"value": value} for value in values]
            if keys is not None:
                for message, key in zip(messages, keys, strict=True):
                    if key is not None:
                        message["key"] = key_bytes(key)
            self._batch(topic, index, messages, delivery)
            return delivery
        for at, value in enumerate(values):
            time_us = now if times is None else times[at]
            own = dict(headers[at] or {}) if headers is not None else {}
            # The driver takes the first millisecond of 1970 for "now".
            if time_us is not None and (time_us % 1000 or time_us < 1000):
                own[MICROS] = str(time_us)
            dated = {} if time_us is None else {"timestamp": max(1, time_us // 1000)}
            key = keys[at] if keys is not None else None
            self._one(
                topic, value=value, key=None if key is None else key_bytes(key), partition=index,
                headers=list(own.items()) or None, on_delivery=delivery, **dated,
            )  # fmt: skip
        return delivery

    def _batch(self, topic: str, index: int, messages: list[dict[str, Any]], delivery: Delivery) -> None:
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

    def _one(self, topic: str, **message: Any) -> None:
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
        """The offsets, once the brokers have all of it."""
        deadline = time.monotonic() + self.cluster.timeout * 4
        while any(one.left for one in deliveries):
            with self.cluster.errors():
                self.producer.poll(0.1)
            if time.monotonic() > deadline:
                raise StoreUnavailable(
                    f"{self.cluster.name} did not confirm an append in time; whether it is there is not known.",
                    hint="Append again with a producer and a sequence to have it there once.",
                )
        for one in deliveries:
            if one.error is not None:
                raise self.cluster.translated(KafkaException(one.error))
        return [one.offsets for one in deliveries]

    def end_unfinished(self) -> Ended:
        """End a transaction that an outage left open; raises while that cannot be done."""
        # Whichever of the two was broken off has to be called again; the driver refuses the other.
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
            self.unfinished = False
            return ended
        return "lost"

    def close(self) -> None:
        """Send what is left; every append has waited for its answer, so one that was shut out has nothing more."""
        with contextlib.suppress(KafkaException):
            self.producer.flush(self.cluster.timeout)


_QUEUE_FULL = -184  # librdkafka: its buffer is full


class SharedSink(Sink):
    """Appends of nobody in particular."""

    def __init__(self, outlet: Outlet, settings: LogSettings, now: Any) -> None:
        self._outlet = outlet
        self._topic = outlet.cluster.topic(settings.name)
        self._now = now

    def append(self, parts: Sequence[tuple[int, NewRecords]], sequence: int | None = None) -> list[Sequence[int]]:
        """Append to partitions."""
        now = self._now()
        return self._outlet.wait([self._outlet.append(self._topic, index, records, now) for index, records in parts])

    def close(self) -> None:
        """The outlet is shared."""


class NamedSink(Sink):
    """Appends of a named producer: each a transaction, with a mark of its sequence beside the records."""

    def __init__(self, cluster: Cluster, settings: LogSettings, producer: str, now: Any) -> None:
        """Shut out whoever had the name before, then see what it had done."""
        self._cluster = cluster
        self._id = f"{cluster.prefix}producer-{producer}-{settings.name}"
        self._outlet = Outlet(cluster, self._id)
        self._marks = Marks(cluster)
        self._log = settings.name
        self._topic = cluster.topic(settings.name)
        self._producer = producer
        self._now = now
        self._lock = threading.Lock()
        self._unsure = False  # whether the last transaction happened
        self._trying: dict[int, dict[int, Sequence[int]]] = {}  # what is known if it happened
        self._partitions = settings.partitions
        self._known = self._remembered()

    def _remembered(self) -> dict[int, dict[int, Sequence[int]]]:
        return {index: self._marks.sequences(self._producer, self._log, index) for index in range(self._partitions)}

    def append(self, parts: Sequence[tuple[int, NewRecords]], sequence: int | None = None) -> list[Sequence[int]]:
        """Append to partitions; what this sequence has done before is not done again."""
        with self._lock:
            self._make_sure()
            before = {index: self._before(index, sequence) for index, _ in parts}
            new = [(index, records) for index, records in parts if before[index] is None]
            offsets: dict[int, Sequence[int]] = {index: found for index, found in before.items() if found is not None}
            if new:
                try:
                    made = transact(self._outlet, lambda: self._write(new, sequence))
                except BaseException:
                    self._unsure = True
                    raise
                for (index, _), found in zip(new, made, strict=True):
                    offsets[index] = found
                    if sequence is not None:
                        self._known[index] = _with(self._known[index], sequence, found)
                places = [(self._topic, index) for index, _ in new]
                self._cluster.wait_visible(dict(zip(places, made, strict=True)))
            return [offsets[index] for index, _ in parts]

    def _make_sure(self) -> None:
        """After a failure: end what was begun, and see what of it happened."""
        if self._unsure:
            ended = self._outlet.end_unfinished() if self._outlet.unfinished else "aborted"
            if ended == "committed":
                self._known.update(self._trying)
                newest = {(self._topic, index): kept[max(kept)] for index, kept in self._trying.items()}
                self._cluster.wait_visible(newest)
            elif ended == "lost":
                self._outlet = Outlet(self._cluster, self._id)
                self._marks = Marks(self._cluster)
                self._known = self._remembered()
            self._unsure = False

    def _write(self, parts: Sequence[tuple[int, NewRecords]], sequence: int | None) -> list[Sequence[int]]:
        now = self._now()
        made = self._outlet.wait([self._outlet.append(self._topic, index, records, now) for index, records in parts])
        self._trying = {}
        if sequence is not None:
            for (index, _), found in zip(parts, made, strict=True):
                self._trying[index] = kept = _with(self._known[index], sequence, found)
                self._marks.write_sequences(self._outlet.producer, self._producer, self._log, index, kept)
        return made

    def _before(self, index: int, sequence: int | None) -> Sequence[int] | None:
        """Where this sequence went the first time, or None if it is new."""
        known = self._known[index]
        if sequence is None or not known or sequence > max(known):
            return None
        if sequence not in known:
            raise Conflict(
                f"producer {self._producer} is at sequence {max(known)}; {sequence} is too long ago to say where "
                "it went.",
                hint="Go on after last_sequence().",
            )
        return known[sequence]

    def last_sequence(self, partition: int) -> int | None:
        """The highest sequence in a partition."""
        with self._lock:
            self._make_sure()
            return max(self._known[partition], default=None)

    def close(self) -> None:
        """Let go."""
        self._outlet.close()


def transact(outlet: Outlet, work: Any) -> Any:
    """Run work in a transaction of the outlet's; all of it happens, or nothing."""
    producer, cluster = outlet.producer, outlet.cluster
    with cluster.errors():
        producer.begin_transaction()
    outlet.unfinished = True
    try:
        result = work()
        failpoints.point("log.transaction.before")
        with cluster.errors():
            producer.commit_transaction(cluster.timeout * 3)
        outlet.unfinished = False
        failpoints.point("log.transaction.committed")
    except BaseException as error:
        try:
            producer.abort_transaction(cluster.timeout * 3)
            outlet.unfinished = False
        except KafkaException as worse:
            shut_out = cluster.translated(worse)
            if isinstance(shut_out, Fenced):
                raise shut_out from error  # what failed first was a consequence
            if isinstance(error, PenstockError):
                raise error from worse
        raise
    return result


def _with(known: dict[int, Sequence[int]], sequence: int, offsets: Sequence[int]) -> dict[int, Sequence[int]]:
    """What is remembered of a producer: its last sequences and where they went."""
    kept = {**known, sequence: offsets}
    return dict(sorted(kept.items())[-REMEMBERED:])


REMEMBERED = 5

"""KafkaDriver: logs as topics of a Kafka cluster.

URL: ``kafka://host[:9092][,host2…]/prefix``; logs and groups carry the prefix in Kafka. Options: ``timeout`` (seconds
for an answer, 10), ``default.replication.factor`` (of new logs, 1), ``subscribe.disable`` (``true`` refuses
``subscribe``), ``record_limit`` (bytes, 1 MB), ``durability=fast`` (acknowledged by the leader alone, ``acks=1``), and
all options of librdkafka by their names (``compression.type``, ``security.protocol``, ``group.protocol=consumer``, …).
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any

import msgspec
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import ConfigResource, ResourceType

from penstock.clock import Clock, Micros, duration
from penstock.errors import Closed, Conflict, Fenced, PartitionTaken, ProducerFenced, StoreUnavailable
from penstock.location import Location
from penstock.log.driver import LogDriver
from penstock.log.drivers.kafka.assigned import AssignedSource
from penstock.log.drivers.kafka.batch import KafkaBatch
from penstock.log.drivers.kafka.cluster import SETTINGS, Cluster, encoded, poll_messages
from penstock.log.drivers.kafka.handles import counted, forget_settings, open_count, settings_cache
from penstock.log.drivers.kafka.leases import LEASES, lease_key
from penstock.log.drivers.kafka.producer import Delivery, KafkaProducer, run_transaction
from penstock.log.drivers.kafka.sequences import COMPACTED, SequenceIndex, read_topic
from penstock.log.drivers.kafka.sink import NamedSink, SharedSink
from penstock.log.drivers.kafka.source import GRACE, POLL_SECONDS, KafkaSource, is_rebalancing
from penstock.log.drivers.kafka.staging import KafkaStage, check_not_committed, mark_committed, staged_records
from penstock.log.drivers.kafka.subscribed import SubscribedSource
from penstock.log.drivers.kafka.transactional import TransactionalProducers
from penstock.log.group import Listener
from penstock.log.protocol import (
    Commit,
    Committed,
    Finding,
    LogCapabilities,
    OutOfRange,
    Sink,
    Source,
    Stage,
    Staged,
)
from penstock.log.record import Bounds, Partition, RecordBatch
from penstock.log.settings import LogSettings, Retention

RECORD_LIMIT = 1_000_000  # below the broker's own message.max.bytes
SETTINGS_FRESH_FOR = 5.0  # seconds for which a change of a log by another process may go unnoticed
FOREVER = str(2**63 - 1)


def open_driver(location: Location, clock: Clock) -> KafkaDriver:
    """Open ``kafka://…``."""
    return KafkaDriver(Cluster(location), clock, int(location.options.get("record_limit", RECORD_LIMIT)))


class TopicSettings(msgspec.Struct):
    """The settings of a log that its topic does not store."""

    partitioner: str
    codec: str | None = None
    age: float | None = None  # seconds
    size: int | None = None


class KafkaDriver(LogDriver):
    """Logs as topics."""

    capabilities = LogCapabilities(dense=False, exclusive=False, mixing=False, retention=False, copies=False)

    def __init__(self, cluster: Cluster, clock: Clock, record_limit: int) -> None:
        """Bind the driver to a cluster."""
        super().__init__(clock, cluster.name)
        self.cluster = cluster
        self.record_limit = record_limit
        self._lock = threading.RLock()
        self._producer: KafkaProducer | None = None
        self._transactional = TransactionalProducers(cluster)
        self._staged_lock = threading.Lock()  # staged records are committed by one transaction at a time

    # --- logs ----------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """All logs with the prefix."""
        self.check_open()
        return [topic[len(self.cluster.prefix) :] for topic in self.cluster.topics()]

    def create(self, settings: LogSettings) -> bool:
        """Create a topic, and store the settings that it does not."""
        retention = settings.retention
        if retention.keep_for or retention.consumed or retention.hard_size:
            raise self.unsupported("retention by what groups have consumed")
        config = {
            "retention.ms": "-1" if retention.age is None else str(int(duration(retention.age).total_seconds() * 1000)),
            "retention.bytes": "-1" if retention.size is None else str(retention.size),
            "message.timestamp.after.max.ms": FOREVER,
        }
        is_new = self.cluster.create_topic(self.cluster.topic(settings.name), settings.partitions, config)
        if is_new:
            if settings != LogSettings(settings.name, settings.partitions):
                self.cluster.create_topic(self.cluster.topic(SETTINGS), 1, COMPACTED)
                age = None if retention.age is None else duration(retention.age).total_seconds()
                try:
                    self._store_settings(
                        settings.name, TopicSettings(settings.partitioner, settings.codec, age, retention.size)
                    )
                except BaseException:
                    # Without its settings, the log would silently be another one.
                    self.cluster.delete_topic(self.cluster.topic(settings.name))
                    raise
            forget_settings(self.cluster, settings.name)
        return is_new

    def _store_settings(self, name: str, settings: TopicSettings | None) -> None:
        producer = self._shared_producer()
        delivery = Delivery(1)
        with self.cluster.errors():
            producer.producer.produce(
                self.cluster.topic(SETTINGS), value=None if settings is None else encoded(settings), key=name.encode(),
                partition=0, on_delivery=delivery,
            )  # fmt: skip
        producer.wait([delivery])

    def find_settings(self, name: str) -> LogSettings | None:
        """The settings of a log, from a cache of a few seconds."""
        now = time.monotonic()
        known = settings_cache(self.cluster).get(name)
        if known is not None and now - known[0] < SETTINGS_FRESH_FOR:
            return known[1]
        count = self.cluster.partitions(self.cluster.topic(name))
        if not count:
            return None
        # Another program may have created the topic, or added partitions to it.
        settings = LogSettings(name, count)
        stored = self._stored_settings(name)
        if stored is not None:
            age = None if stored.age is None else timedelta(seconds=stored.age)
            retention = Retention(age, stored.size)
            settings = LogSettings(name, count, stored.partitioner, retention, codec=stored.codec)
        settings_cache(self.cluster)[name] = (now, settings)
        return settings

    def find_identity(self, name: str) -> str | None:
        """The id of the topic."""
        return self.cluster.topic_id(self.cluster.topic(name))

    def _stored_settings(self, name: str) -> TopicSettings | None:
        topic = self.cluster.topic(SETTINGS)
        if not self.cluster.partitions(topic):
            return None
        data = read_topic(self.cluster, topic).get(name)
        return None if data is None else msgspec.json.decode(data, type=TopicSettings)

    def delete(self, name: str) -> bool:
        """Delete the topic, its settings, and the groups' offsets in it."""
        topic = self.cluster.topic(name)
        count = self.cluster.partitions(topic)
        if not count:
            return False
        if open_count(self.cluster, name):
            raise Conflict(f"log {name} is open.", hint="Close its appenders and tailers first.")
        for group in self.groups(name):
            self.forget(group, name)
        self.cluster.delete_topic(topic)
        if self.cluster.partitions(self.cluster.topic(SETTINGS)):
            self._store_settings(name, None)
        forget_settings(self.cluster, name)
        return True

    def _kafka_partitions(self, settings: LogSettings) -> list[TopicPartition]:
        return [self.cluster.kafka_partition(Partition(settings.name, index)) for index in range(settings.partitions)]

    def bounds(self, settings: LogSettings) -> list[Bounds]:
        """The bounds of every partition."""
        partitions = self._kafka_partitions(settings)
        starts, ends = self.cluster.ends(partitions, start=True), self.cluster.ends(partitions)
        return [Bounds(index, start, end) for index, (start, end) in enumerate(zip(starts, ends, strict=True))]

    # --- reading without a group -----------------------------------------------------------------------

    def batches(self, partition: Partition, start: int, stop: int) -> Iterator[RecordBatch]:
        """The records of a range."""
        if start >= stop:
            return
        consumer = self.cluster.consumer("penstock-reader")
        try:
            with self.cluster.errors():
                consumer.assign([self.cluster.kafka_partition(partition, start)])
            deadline = time.monotonic() + self.cluster.timeout
            position = start
            while position < stop:
                with self.cluster.errors():
                    messages = poll_messages(consumer, 1000, 0.1)
                good = []
                for message in messages:
                    error = message.error()
                    if error is None:
                        position = message.offset() + 1
                        if message.offset() < stop:
                            good.append(message)
                    elif error.code() == KafkaError._PARTITION_EOF:
                        position = max(position, message.offset())
                if good:
                    deadline = time.monotonic() + self.cluster.timeout
                    yield KafkaBatch(partition, good)
                elif time.monotonic() > deadline:
                    raise StoreUnavailable(f"{self.name}: {partition} does not answer.", hint="Check the brokers.")
        finally:
            consumer.close()

    def offset_at(self, partition: Partition, micros: Micros) -> int:
        """The first offset at or after a time."""
        kafka_partition = self.cluster.kafka_partition(partition)
        micros = max(micros, 0)  # Kafka has no records before 1970, and gives negative times another meaning
        first = self.cluster.offset_at(kafka_partition, micros // 1000)
        [end] = self.cluster.ends([kafka_partition])
        if first < 0 or first >= end:
            return end
        if micros % 1000:
            # Kafka searches by the millisecond; search within it.
            for batch in self.batches(partition, first, min(end, first + 1000)):
                for offset, time_us in zip(batch.offsets, batch.times(), strict=True):
                    if time_us >= micros:
                        return offset
        return first

    # --- groups --------------------------------------------------------------------------------------

    def groups(self, name: str) -> list[str]:
        """The groups with offsets in a topic."""
        topic = self.cluster.topic(name)
        return [
            group
            for group in self.cluster.groups()
            if any(committed_in == topic for committed_in, _ in self.cluster.committed(group, None))
        ]

    def committed(self, settings: LogSettings, group: str) -> list[int | None]:
        """A group's offsets; waits for undecided transactions."""
        return self._offsets_of(settings, group, patience=math.inf)

    def committed_now(self, settings: LogSettings, group: str) -> list[int | None]:
        """A group's offsets; waits only briefly for undecided transactions."""
        return self._offsets_of(settings, group, patience=self.cluster.timeout / 2)

    def _offsets_of(self, settings: LogSettings, group: str, *, patience: float) -> list[int | None]:
        partitions = self._kafka_partitions(settings)
        offsets = self.cluster.committed(group, partitions, patience=patience)
        return [offsets.get((partition.topic, partition.partition)) for partition in partitions]

    def reset(self, group: str, offsets: Mapping[Partition, int]) -> None:
        """Set the offsets of a group without members."""
        if any(LEASES.is_held(lease_key(self.cluster, group, partition)) for partition in offsets):
            raise _has_open_tailer(group)
        self.cluster.set_committed(group, [self.cluster.kafka_partition(*item) for item in offsets.items()])

    def forget(self, group: str, name: str | None) -> bool:
        """Delete the offsets of a group without members."""
        if LEASES.has_reader(self.cluster.servers, self.cluster.prefix, group):
            raise _has_open_tailer(group)
        offsets = self.cluster.committed(group, None)
        prefix = len(self.cluster.prefix)
        # Kafka deletes a whole group, so its offsets in other logs are written again.
        others = {
            partition: offset for partition, offset in offsets.items() if name not in (None, partition[0][prefix:])
        }
        if len(others) == len(offsets):
            return False
        self.cluster.delete_group(group)
        if others:
            self.cluster.set_committed(group, [TopicPartition(*item, offset) for item, offset in others.items()])
        return True

    # --- writing and reading -----------------------------------------------------------------------------

    def _shared_producer(self) -> KafkaProducer:
        with self._lock:
            if self.closed:
                raise Closed(f"{self.name} was closed.", hint="Open it again.")
            if self._producer is None:
                self._producer = KafkaProducer(self.cluster)
            return self._producer

    def open_sink(self, settings: LogSettings, *, exclusive: bool, producer: str | None) -> Sink:
        """A sink over the shared producer, or over that of a named one."""
        sink: Sink
        if producer is None:
            sink = SharedSink(self._shared_producer(), settings, self.clock.fixed)
        else:
            sink = NamedSink(self.cluster, settings, producer, self.clock.fixed)
        return counted(sink, self.cluster, [settings.name])

    def open_assigned(
        self, partitions: Sequence[Partition], group: str, *, out_of_range: OutOfRange, max_poll: timedelta
    ) -> Source:
        """A source with these partitions."""
        source = AssignedSource(self, self.cluster, partitions, group, out_of_range=out_of_range, max_poll=max_poll)
        return counted(source, self.cluster, sorted({partition.log for partition in partitions}))

    def open_subscribed(
        self,
        logs: Sequence[LogSettings],
        group: str,
        listener: Listener,
        *,
        out_of_range: OutOfRange,
        max_poll: timedelta,
    ) -> Source:
        """A source that follows its group."""
        if not self.cluster.may_subscribe:
            raise self.unsupported("subscribe (subscribe.disable=true in the URL)")
        names = [log.name for log in logs]
        source = SubscribedSource(
            self, self.cluster, names, group, listener, out_of_range=out_of_range, max_poll=max_poll
        )
        return counted(source, self.cluster, names)

    def transact(self, commit: Commit) -> Committed:
        """Commit appends and offsets in one Kafka transaction."""
        pause, deadline = threading.Event(), time.monotonic() + GRACE
        while True:
            try:
                return self._transact(commit)
            except ProducerFenced:
                # Another handle used this producer name meanwhile. The second try reads its sequences.
                return self._transact(commit)
            except Fenced as error:
                # Members came or went between asking for the generation of the group and sending the offsets. What is
                # still owned goes to nobody else before it is given back, so it can be committed with the new one.
                if not is_rebalancing(error.__cause__) or time.monotonic() > deadline:
                    raise
                pause.wait(POLL_SECONDS)

    def _transact(self, commit: Commit) -> Committed:
        if commit.producer is not None:
            return self._transact_named(commit, commit.producer)
        self._check_owned(commit)
        with self._staged_lock if commit.staged else contextlib.nullcontext():
            for staged in commit.staged:
                check_not_committed(self.cluster, staged)
            with self._transactional.any() as kafka:
                offsets = run_transaction(kafka, lambda: self._write(kafka, None, commit))
        return self._wait_visible(offsets)

    def _transact_named(self, commit: Commit, producer: str) -> Committed:
        with self._transactional.named(producer) as (kafka, sequences):
            if commit.sequence is not None:
                last = sequences.transaction(producer)
                if last is not None and commit.sequence <= last:
                    return Committed(duplicate=True)
            self._check_owned(commit)
            offsets = run_transaction(kafka, lambda: self._write(kafka, sequences, commit))
        return self._wait_visible(offsets)

    def _check_owned(self, commit: Commit) -> None:
        for source, offsets in commit.offsets:
            _kafka_source(source).check_owned(offsets)

    def _wait_visible(self, offsets: dict[Partition, Sequence[int]]) -> Committed:
        topic = self.cluster.topic
        self.cluster.wait_visible(
            {(topic(partition.log), partition.index): span for partition, span in offsets.items()}
        )
        return Committed(offsets)

    def _write(
        self, kafka: KafkaProducer, sequences: SequenceIndex | None, commit: Commit
    ) -> dict[Partition, Sequence[int]]:
        now = self.clock.fixed()
        partitions: list[Partition] = []
        deliveries = []
        staged = chain.from_iterable(staged_records(self.cluster, staged) for staged in commit.staged)
        for partition, records in chain(commit.outputs, staged):
            partitions.append(partition)
            deliveries.append(kafka.append(self.cluster.topic(partition.log), partition.index, records, now))
        appended: dict[Partition, list[int]] = {}
        for partition, span in zip(partitions, kafka.wait(deliveries), strict=True):
            appended.setdefault(partition, []).extend(span)
        for source, offsets in commit.offsets:
            ends = [self.cluster.kafka_partition(partition, offset) for partition, offset in offsets.items()]
            if ends:
                metadata = _kafka_source(source).consumer.consumer_group_metadata()
                with self.cluster.errors():
                    kafka.producer.send_offsets_to_transaction(ends, metadata, self.cluster.timeout * 3)
        if sequences is not None and commit.producer is not None and commit.sequence is not None:
            sequences.write_transaction(kafka.producer, commit.producer, commit.sequence)
        else:
            for records_aside in commit.staged:
                mark_committed(kafka, records_aside)
        return dict(appended)

    def stage(self, settings: LogSettings) -> Stage:
        """A stage for a log."""
        return KafkaStage(self._shared_producer(), settings)

    def staged_commit(self) -> str:
        """What happens to the bytes of staged records."""
        return (
            "all bytes pass through this process, which reads them from the topic of staged records and produces them "
            "again: a Kafka transaction belongs to one producer"
        )

    def discard(self, staged: Sequence[Staged]) -> None:
        """The topic's retention removes them, after a day."""

    # --- maintenance ------------------------------------------------------------------------------

    def delete_before(self, offsets: Mapping[Partition, int]) -> None:
        """Have the brokers delete the records before these offsets."""
        places = [self.cluster.kafka_partition(partition, offset) for partition, offset in offsets.items()]
        self.cluster.delete_before(places)

    def check(self) -> list[Finding]:
        """What doctor reports: brokers, replicas, and whether offsets are kept longer than records."""
        admin = self.cluster.admin
        with self.cluster.errors():
            metadata = admin.list_topics(timeout=self.cluster.timeout)
            broker = next(iter(metadata.brokers))
            config = _config(admin, ConfigResource(ResourceType.BROKER, str(broker)), self.cluster.timeout)
        findings = [Finding("good", "brokers", f"{len(metadata.brokers)} answer")]
        minutes = int(config.get("offsets.retention.minutes", "10080"))
        offsets_kept_for = timedelta(minutes=minutes)
        for name in self.names():
            topic = self.cluster.topic(name)
            settings = _config(admin, ConfigResource(ResourceType.TOPIC, topic), self.cluster.timeout)
            millis = int(settings.get("retention.ms", "-1"))
            if millis < 0 or offsets_kept_for < 2 * timedelta(milliseconds=millis):
                age = "forever" if millis < 0 else f"for {timedelta(milliseconds=millis)}"
                findings.append(
                    Finding(
                        "warning", f"retention of {name}",
                        f"records are kept {age}, a group's offsets for {offsets_kept_for} after its last member left: "
                        "a group that pauses longer starts again at the earliest record. Set offsets.retention.minutes "
                        "of the brokers to at least twice the retention of the logs",
                    )
                )  # fmt: skip
            replicas = min((len(part.replicas) for part in metadata.topics[topic].partitions.values()), default=0)
            if replicas < 2:
                findings.append(
                    Finding("warning", f"replicas of {name}", "only one broker has them; they are lost with its disk")
                )
        return findings

    def now(self) -> Micros:
        """To the millisecond, as Kafka stores it."""
        return super().now() // 1000 * 1000

    def close(self) -> None:
        """Close the producers."""
        super().close()
        self._transactional.close()
        with self._lock:
            if self._producer is not None:
                self._producer.close()


def _config(admin: Any, resource: Any, timeout: float) -> dict[str, str]:
    [future] = admin.describe_configs([resource], request_timeout=timeout).values()
    return {name: entry.value for name, entry in future.result(timeout * 2).items() if entry.value is not None}


def _has_open_tailer(group: str) -> PartitionTaken:
    return PartitionTaken(f"group {group} has an open tailer.", hint="Stop the group's readers first.")


def _kafka_source(source: Source) -> KafkaSource:
    assert isinstance(source, KafkaSource)  # noqa: S101 - the transaction takes tailers of its own store only
    return source

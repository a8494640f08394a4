"""KafkaLogs: the log contract's calls on a Kafka cluster.

URL: ``kafka://host[:9092][,host2…]/prefix``; logs and groups carry the prefix in Kafka. Options: ``timeout`` (seconds
for an answer, 10), ``default.replication.factor`` (of new logs, 1), ``subscribe.disable`` (``true`` refuses
``subscribe``), ``record_limit`` (bytes, 1 MB), ``durability=fast`` (acknowledged by the leader alone, ``acks=1``), and
every option of librdkafka by its name (``compression.type``, ``security.protocol``, ``group.protocol=consumer``, …).
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from typing import Any, TypeVar

import msgspec
from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import ConfigResource, ResourceType

from penstock.clock import Clock, Micros, duration
from penstock.errors import Closed, Conflict, PartitionTaken, ProducerFenced, StoreUnavailable
from penstock.location import Location
from penstock.log.drivers.kafka.cluster import SETTINGS, Cluster, fetched, packed
from penstock.log.drivers.kafka.sequences import COMPACTED, Marks, read_topic
from penstock.log.drivers.kafka.sink import Delivery, NamedSink, Outlet, SharedSink, transact
from penstock.log.drivers.kafka.source import (
    LEASES,
    AssignedSource,
    KafkaBatch,
    KafkaSource,
    SubscribedSource,
    lease_key,
)
from penstock.log.drivers.kafka.staging import KafkaStage, check_free, staged_records, take
from penstock.log.drivers.kafka.transactional import Outlets
from penstock.log.group import Listener
from penstock.log.protocol import (
    Commit,
    Committed,
    Finding,
    LogCapabilities,
    LogSettings,
    Retention,
    Sink,
    Source,
    Stage,
    Staged,
)
from penstock.log.record import Bounds, Partition, RecordBatch
from penstock.log.store import LogStore, OutOfRange

Opened = TypeVar("Opened", bound=Sink | Source)

RECORD_LIMIT = 1_000_000  # below the broker's own message.max.bytes
FRESH = 5.0  # seconds for which another process's change of a log may go unnoticed
EVER = str(2**63 - 1)


def open_store(location: Location, clock: Clock) -> KafkaLogs:
    """Open ``kafka://…``."""
    return KafkaLogs(Cluster(location), clock, int(location.options.get("record_limit", RECORD_LIMIT)))


class Kept(msgspec.Struct):
    """What is kept of a log beside its topic; retention is the topic's own."""

    partitioner: str
    codec: str | None = None
    age: float | None = None  # seconds
    size: int | None = None


class KafkaLogs(LogStore):
    """Logs as topics."""

    capabilities = LogCapabilities(dense=False, exclusive=False, mixing=False, retention=False, copies=False)

    def __init__(self, cluster: Cluster, clock: Clock, record_limit: int) -> None:
        """Bind to the cluster."""
        super().__init__(clock, cluster.name)
        self.cluster = cluster
        self.record_limit = record_limit
        self._known: dict[str, tuple[float, LogSettings | None]] = {}
        self._lock = threading.RLock()
        self._outlet: Outlet | None = None
        self._outlets = Outlets(cluster)
        self._staging = threading.Lock()  # what is staged goes into one transaction
        self._using: dict[str, int] = {}

    # --- logs ----------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """All logs under the prefix."""
        self._check_open()
        return [topic[len(self.cluster.prefix) :] for topic in self.cluster.topics()]

    def _create(self, settings: LogSettings) -> bool:
        retention = settings.retention
        if retention.keep_for or retention.consumed or retention.hard_size:
            raise self.unsupported("retention by what groups have consumed")
        config = {
            "retention.ms": "-1" if retention.age is None else str(int(duration(retention.age).total_seconds() * 1000)),
            "retention.bytes": "-1" if retention.size is None else str(retention.size),
            "message.timestamp.after.max.ms": EVER,
        }
        made = self.cluster.make_topic(self.cluster.topic(settings.name), settings.partitions, config)
        if made:
            if settings != LogSettings(settings.name, settings.partitions):
                self.cluster.make_topic(self.cluster.topic(SETTINGS), 1, COMPACTED)
                age = None if retention.age is None else duration(retention.age).total_seconds()
                try:
                    self._keep_settings(settings.name, Kept(settings.partitioner, settings.codec, age, retention.size))
                except BaseException:
                    # Without them the log would be another one, and nobody would be told.
                    self.cluster.delete_topic(self.cluster.topic(settings.name))
                    raise
            _forget_everywhere(self.cluster, settings.name)
        return made

    def _keep_settings(self, name: str, settings: Kept | None) -> None:
        outlet = self._shared()
        kept = Delivery(1)
        with self.cluster.errors():
            outlet.producer.produce(
                self.cluster.topic(SETTINGS), value=None if settings is None else packed(settings), key=name.encode(),
                partition=0, on_delivery=kept,
            )  # fmt: skip
        outlet.wait([kept])

    def _settings(self, name: str) -> LogSettings | None:
        now = time.monotonic()
        known = _settings_cache(self.cluster).get(name)
        if known is not None and now - known[0] < FRESH:
            return known[1]
        count = self.cluster.partitions(self.cluster.topic(name))
        found: LogSettings | None = None
        if count:
            kept = self._kept_settings(name)
            # A topic that others made, or whose partitions they added to, is what it is.
            found = LogSettings(name, count)
            if kept is not None:
                age = None if kept.age is None else timedelta(seconds=kept.age)
                retention = Retention(age, kept.size)
                found = LogSettings(name, count, kept.partitioner, retention, codec=kept.codec)
        if found is not None:
            _settings_cache(self.cluster)[name] = (now, found)
        return found

    def _identity(self, name: str) -> str | None:
        return self.cluster.topic_id(self.cluster.topic(name))

    def _kept_settings(self, name: str) -> Kept | None:
        topic = self.cluster.topic(SETTINGS)
        if not self.cluster.partitions(topic):
            return None
        data = read_topic(self.cluster, topic).get(name)
        return None if data is None else msgspec.json.decode(data, type=Kept)

    def _delete(self, name: str) -> bool:
        topic = self.cluster.topic(name)
        count = self.cluster.partitions(topic)
        if not count:
            return False
        if _users(self.cluster, name):
            raise Conflict(f"log {name} is open.", hint="Close its appenders and tailers first.")
        for group in self._groups(name):
            self._forget(group, name)
        self.cluster.delete_topic(topic)
        if self.cluster.partitions(self.cluster.topic(SETTINGS)):
            self._keep_settings(name, None)
        _forget_everywhere(self.cluster, name)
        return True

    def _places(self, settings: LogSettings) -> list[Place]:
        return [self.cluster.place(Partition(settings.name, index)) for index in range(settings.partitions)]

    def _bounds(self, settings: LogSettings) -> list[Bounds]:
        places = self._places(settings)
        starts, ends = self.cluster.ends(places, start=True), self.cluster.ends(places)
        return [Bounds(index, start, end) for index, (start, end) in enumerate(zip(starts, ends, strict=True))]

    # --- reading without a group -----------------------------------------------------------------------

    def _batches(self, partition: Partition, start: int, stop: int) -> Iterator[RecordBatch]:
        if start >= stop:
            return
        consumer = self.cluster.consumer("penstock-reader")
        try:
            with self.cluster.errors():
                consumer.assign([self.cluster.place(partition, start)])
            deadline = time.monotonic() + self.cluster.timeout
            position = start
            while position < stop:
                with self.cluster.errors():
                    messages = fetched(consumer, 1000, 0.1)
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
                    raise StoreUnavailable(f"{self.name}: {partition} does not answer.", hint="Look at the brokers.")
        finally:
            consumer.close()

    def _offset_at(self, partition: Partition, micros: Micros) -> int:
        place = self.cluster.place(partition)
        micros = max(micros, 0)  # no record is older than 1970 there, and negative times mean places
        found = self.cluster.offsets_at(place, micros // 1000)
        [end] = self.cluster.ends([place])
        if found < 0 or found >= end:
            return end
        if micros % 1000:
            # Kafka looks by the millisecond; within it we do.
            for batch in self._batches(partition, found, min(end, found + 1000)):
                for offset, at in zip(batch.offsets, batch.times(), strict=True):
                    if at >= micros:
                        return offset
        return found

    # --- groups --------------------------------------------------------------------------------------

    def _groups(self, name: str) -> list[str]:
        topic = self.cluster.topic(name)
        return [
            group
            for group in self.cluster.groups()
            if any(one == topic for one, _ in self.cluster.committed(group, None))
        ]

    def _committed(self, settings: LogSettings, group: str) -> list[int | None]:
        return self._offsets_of(settings, group, patience=math.inf)

    def _committed_now(self, settings: LogSettings, group: str) -> list[int | None]:
        return self._offsets_of(settings, group, patience=self.cluster.timeout / 2)

    def _offsets_of(self, settings: LogSettings, group: str, *, patience: float) -> list[int | None]:
        places = self._places(settings)
        offsets = self.cluster.committed(group, places, patience=patience)
        return [offsets.get((place.topic, place.partition)) for place in places]

    def _reset(self, group: str, offsets: Mapping[Partition, int]) -> None:
        if any(LEASES.is_held(lease_key(self.cluster, group, partition)) for partition in offsets):
            raise _taken(group)
        self.cluster.set_committed(group, [self.cluster.place(one, offset) for one, offset in offsets.items()])

    def _forget(self, group: str, name: str | None) -> bool:
        if LEASES.has_reader(self.cluster.servers, self.cluster.prefix, group):
            raise _taken(group)
        found = self.cluster.committed(group, None)
        mine = {
            place: offset for place, offset in found.items() if name in (None, place[0][len(self.cluster.prefix) :])
        }
        if not mine:
            return False
        self.cluster.delete_group(group)
        # Kafka forgets a group as a whole: what it has in other logs is written again.
        others = [Place(*place, offset) for place, offset in found.items() if place not in mine]
        if others:
            self.cluster.set_committed(group, others)
        return True

    # --- writing and reading -----------------------------------------------------------------------------

    def _shared(self) -> Outlet:
        with self._lock:
            if self.closed:
                raise Closed(f"{self.name} was closed.", hint="Open it again.")
            if self._outlet is None:
                self._outlet = Outlet(self.cluster)
            return self._outlet

    def open_sink(self, settings: LogSettings, *, exclusive: bool, producer: str | None) -> Sink:
        """Shared, or a named producer's own."""
        sink: Sink
        if producer is None:
            sink = SharedSink(self._shared(), settings, self.clock.fixed)
        else:
            sink = NamedSink(self.cluster, settings, producer, self.clock.fixed)
        return _counted(sink, self.cluster, [settings.name])

    def open_assigned(
        self, partitions: Sequence[Partition], group: str, *, out_of_range: OutOfRange, max_poll: timedelta
    ) -> Source:
        """Exactly these partitions."""
        source = AssignedSource(self, self.cluster, partitions, group, policy=out_of_range, max_poll=max_poll)
        return _counted(source, self.cluster, sorted({one.log for one in partitions}))

    def open_subscribed(
        self,
        logs: Sequence[LogSettings],
        group: str,
        listener: Listener,
        *,
        out_of_range: OutOfRange,
        max_poll: timedelta,
    ) -> Source:
        """Partitions that follow the group."""
        if not self.cluster.may_subscribe:
            raise self.unsupported("subscribe (subscribe.disable=true in the URL)")
        names = [one.name for one in logs]
        source = SubscribedSource(self, self.cluster, names, group, listener, policy=out_of_range, max_poll=max_poll)
        return _counted(source, self.cluster, names)

    def transact(self, commit: Commit) -> Committed:
        """Appends and offsets in one transaction of Kafka's."""
        try:
            return self._transact(commit)
        except ProducerFenced:
            # Another handle went on under this name; what it has done is in the marks, which are read again.
            return self._transact(commit)

    def _transact(self, commit: Commit) -> Committed:
        if commit.producer is not None:
            return self._transact_named(commit, commit.producer)
        self._check_owned(commit)
        with self._staging if commit.staged else contextlib.nullcontext():
            for staged in commit.staged:
                check_free(self.cluster, staged)
            with self._outlets.any() as outlet:
                offsets = transact(outlet, lambda: self._write(outlet, None, commit))
        return self._visible(offsets)

    def _transact_named(self, commit: Commit, producer: str) -> Committed:
        with self._outlets.named(producer) as (outlet, marks):
            if commit.sequence is not None:
                done = marks.transaction(producer)
                if done is not None and commit.sequence <= done:
                    return Committed(duplicate=True)
            self._check_owned(commit)
            offsets = transact(outlet, lambda: self._write(outlet, marks, commit))
        return self._visible(offsets)

    def _check_owned(self, commit: Commit) -> None:
        for source, offsets in commit.offsets:
            _kafka_source(source).check_owned(offsets)

    def _visible(self, offsets: dict[Partition, Sequence[int]]) -> Committed:
        self.cluster.wait_visible({(self.cluster.topic(one.log), one.index): at for one, at in offsets.items()})
        return Committed(offsets)

    def _write(self, outlet: Outlet, marks: Marks | None, commit: Commit) -> dict[Partition, Sequence[int]]:
        now = self.clock.fixed()
        places: list[Partition] = []
        deliveries = []
        staged = (one for each in commit.staged for one in staged_records(self.cluster, each))
        for partition, records in chain(commit.outputs, staged):
            places.append(partition)
            deliveries.append(outlet.append(self.cluster.topic(partition.log), partition.index, records, now))
        made: dict[Partition, list[int]] = {}
        for partition, found in zip(places, outlet.wait(deliveries), strict=True):
            made.setdefault(partition, []).extend(found)
        for source, offsets in commit.offsets:
            ends = [self.cluster.place(partition, offset) for partition, offset in offsets.items()]
            if ends:
                metadata = _kafka_source(source).consumer.consumer_group_metadata()
                with self.cluster.errors():
                    outlet.producer.send_offsets_to_transaction(ends, metadata, self.cluster.timeout * 3)
        if marks is not None and commit.producer is not None and commit.sequence is not None:
            marks.write_transaction(outlet.producer, commit.producer, commit.sequence)
        elif commit.staged:
            for one in commit.staged:
                take(outlet, one)
        return dict(made)

    def _stage(self, settings: LogSettings) -> Stage:
        return KafkaStage(self._shared(), settings)

    def staged_commit(self) -> str:
        """What is done with the bytes of staged records."""
        return (
            "all bytes pass through it: it reads them from the topic of staged records and produces them again, in the "
            "one transaction that a producer of Kafka can have"
        )

    def _discard(self, staged: Sequence[Staged]) -> None:
        """They go by themselves, after a day."""

    # --- looking after it ------------------------------------------------------------------------------

    def check(self) -> list[Finding]:
        """What doctor says: brokers, replicas, and that offsets are kept longer than records."""
        admin = self.cluster.admin
        with self.cluster.errors():
            metadata = admin.list_topics(timeout=self.cluster.timeout)
            broker = next(iter(metadata.brokers))
            config = _config(admin, ConfigResource(ResourceType.BROKER, str(broker)), self.cluster.timeout)
        found = [Finding("good", "brokers", f"{len(metadata.brokers)} answer")]
        minutes = int(config.get("offsets.retention.minutes", "10080"))
        kept = timedelta(minutes=minutes)
        for name in self.names():
            topic = self.cluster.topic(name)
            settings = _config(admin, ConfigResource(ResourceType.TOPIC, topic), self.cluster.timeout)
            millis = int(settings.get("retention.ms", "-1"))
            if millis < 0 or kept < 2 * timedelta(milliseconds=millis):
                age = "forever" if millis < 0 else f"for {timedelta(milliseconds=millis)}"
                found.append(
                    Finding(
                        "warning", f"retention of {name}",
                        f"records are kept {age}, a group's offsets for {kept} after its last member left: a group "
                        "that pauses longer starts again at the earliest record. Set offsets.retention.minutes of the "
                        "brokers to at least twice the retention of the logs",
                    )
                )  # fmt: skip
            replicas = min((len(one.replicas) for one in metadata.topics[topic].partitions.values()), default=0)
            if replicas < 2:
                found.append(Finding("warning", f"replicas of {name}", "one broker has them: lost with its disk"))
        return found

    def now(self) -> Micros:
        """By the millisecond, as Kafka keeps it."""
        return super().now() // 1000 * 1000

    def _close(self) -> None:
        self._outlets.close()
        with self._lock:
            if self._outlet is not None:
                self._outlet.close()


def _config(admin: Any, resource: Any, timeout: float) -> dict[str, str]:
    [future] = admin.describe_configs([resource], request_timeout=timeout).values()
    return {name: entry.value for name, entry in future.result(timeout * 2).items() if entry.value is not None}


def _taken(group: str) -> PartitionTaken:
    return PartitionTaken(f"group {group} has an open tailer there.", hint="Stop the group's readers first.")


def _kafka_source(source: Source) -> KafkaSource:
    assert isinstance(source, KafkaSource)  # noqa: S101 - a transaction takes tailers of its own store only
    return source


# --- what the handles of one process share -----------------------------------------------------------------

_caches: dict[tuple[str, str], dict[str, tuple[float, LogSettings | None]]] = {}
_open: dict[tuple[str, str, str], int] = {}
_books = threading.Lock()


def _settings_cache(cluster: Cluster) -> dict[str, tuple[float, LogSettings | None]]:
    with _books:
        return _caches.setdefault((cluster.servers, cluster.prefix), {})


def _forget_everywhere(cluster: Cluster, name: str) -> None:
    _settings_cache(cluster).pop(name, None)


def _users(cluster: Cluster, name: str) -> int:
    with _books:
        return _open.get((cluster.servers, cluster.prefix, name), 0)


def _counted(opened: Opened, cluster: Cluster, logs: Sequence[str]) -> Opened:
    """Count what is open on a log until it is closed: an open log is not deleted."""
    keys = [(cluster.servers, cluster.prefix, log) for log in logs]
    with _books:
        for key in keys:
            _open[key] = _open.get(key, 0) + 1
    close = opened.close
    once = threading.Lock()

    def close_and_count() -> None:
        if once.acquire(blocking=False):
            with _books:
                for key in keys:
                    _open[key] -= 1
        close()

    opened.close = close_and_count  # type: ignore[method-assign]
    return opened

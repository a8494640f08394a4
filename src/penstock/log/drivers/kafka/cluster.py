"""Cluster: the connection to a Kafka cluster, with the options from the URL and the admin calls."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec, TopicDescription

from penstock.errors import (
    BadInput,
    CannotOpen,
    Conflict,
    Fenced,
    LogNotFound,
    PartitionTaken,
    PayloadTooLarge,
    PenstockError,
    ProducerFenced,
    StoreUnavailable,
)
from penstock.location import Location
from penstock.log.record import Partition
from penstock.names import did_you_mean

# Penstock's options. Every other option with a dot, and those in PLAIN, go to librdkafka as they are.
OURS = frozenset({"default.replication.factor", "subscribe.disable", "timeout", "record_limit"})
PLAIN = frozenset({"acks", "debug", "retries"})
PRODUCING = ("acks", "compression.", "linger.", "batch.", "message.", "queue.", "delivery.", "retries", "transaction.")
CONSUMING = (
    "session.", "heartbeat.", "max.poll.", "fetch.", "group.protocol", "partition.assignment.", "group.instance.",
)  # fmt: skip
SEQUENCES = "penstock-marks"  # the topic with the last sequences of producers
SETTINGS = "penstock-settings"  # the topic with the settings of logs
STAGED = "penstock-staged"  # the topic with staged records
_GONE = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_FENCED = {
    KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID, KafkaError._ASSIGNMENT_LOST, KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.FENCED_MEMBER_EPOCH,
}  # fmt: skip
_UNSTABLE = KafkaError.UNSTABLE_OFFSET_COMMIT
_ENDING = 20.0  # brokers look for transactions to end every 10 s, and then have to write that down
_PRODUCER_FENCED = {KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED, KafkaError._FENCED}
# While a topic is being created or a broker is away, ask again in a moment.
_SOON = {
    KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR,
}  # fmt: skip
_MOVED = {KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH}
_REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED,
}  # fmt: skip


class Cluster:
    """The brokers, the clients' options, and the prefix of topics and groups."""

    def __init__(self, location: Location) -> None:
        """Read the URL and check that a broker answers."""
        hosts, _, prefix = location.path.partition("/")
        if not hosts:
            raise BadInput(f"{location.masked} names no broker.", hint='Write it as "kafka://localhost:9092/prefix".')
        self.servers = ",".join(host if ":" in host else f"{host}:9092" for host in hosts.rpartition("@")[2].split(","))
        self.prefix = f"{prefix.strip('/').replace('/', '-')}-" if prefix.strip("/") else ""
        self.name = location.masked
        self.durable = location.durability == "durable"
        self.timeout = location.seconds("timeout", 10.0)
        self.replicas = int(_number(location, "default.replication.factor", 1))
        self.may_subscribe = location.options.get("subscribe.disable", "false") != "true"
        self._given = _driver_options(location)
        self._admin: AdminClient | None = None
        self._created: dict[str, float] = {}  # topics created here, until all brokers must know them
        self._lock = threading.Lock()
        try:
            self.admin.list_topics(timeout=self.timeout)
        except KafkaException as cause:
            unavailable = StoreUnavailable(
                f"no broker of {self.name} answers: {cause.args[0].str()}.",
                hint="Check the address, and that the broker runs and advertises one that this machine can reach.",
            )
            raise CannotOpen(str(unavailable)) from unavailable

    # --- clients -------------------------------------------------------------------------------------

    def options(self, *kinds: Sequence[str], **more: Any) -> dict[str, Any]:
        """The options of a client: the brokers, those of the URL for its kind, and ``more``."""
        excluded = {*PRODUCING, *CONSUMING} - {prefix for kind in kinds for prefix in kind}
        given = {name: value for name, value in self._given.items() if not name.startswith(tuple(excluded))}
        return {
            "bootstrap.servers": self.servers, "client.id": "penstock", "log_level": 2, "error_cb": _ignore,
            "socket.timeout.ms": int(self.timeout * 1000), **given,
            **{name.replace("_", "."): value for name, value in more.items()},
        }  # fmt: skip

    def consumer(self, group: str, **more: Any) -> Consumer:
        """A consumer that does not commit or seek by itself."""
        with self.errors():
            return Consumer(
                self.options(
                    CONSUMING, group_id=self.group_id(group), enable_auto_commit=False, auto_offset_reset="error",
                    isolation_level="read_committed", enable_partition_eof=True, **more,
                )
            )  # fmt: skip

    @property
    def admin(self) -> AdminClient:
        """The admin client."""
        with self._lock:
            if self._admin is None:
                with self.errors():
                    self._admin = AdminClient(self.options())
            return self._admin

    # --- names ---------------------------------------------------------------------------------------

    def topic(self, log: str) -> str:
        """The topic of a log."""
        return self.prefix + log

    def group_id(self, group: str) -> str:
        """Kafka's name for a group."""
        return self.prefix + group

    def kafka_partition(self, partition: Partition, offset: int | None = None) -> TopicPartition:
        """The client's name for a partition, with an offset in it."""
        topic = self.topic(partition.log)
        return (
            TopicPartition(topic, partition.index) if offset is None else TopicPartition(topic, partition.index, offset)
        )

    def partition(self, topic: str, index: int) -> Partition:
        """The partition that the client calls this."""
        return Partition(topic[len(self.prefix) :], index)

    # --- topics --------------------------------------------------------------------------------------

    def partitions(self, topic: str) -> int:
        """The number of partitions of a topic; 0 if it does not exist."""
        description = self._described(topic)
        return 0 if description is None else len(description.partitions)

    def topic_id(self, topic: str) -> str | None:
        """Kafka's topic id, which changes when a topic is deleted and created again.

        None if the topic does not exist, empty before Kafka 2.8.
        """
        description = self._described(topic)
        if description is None:
            return None
        id_ = description.topic_id
        is_given = id_ is not None and (id_.get_most_significant_bits() or id_.get_least_significant_bits())
        return str(id_) if is_given else ""

    def _described(self, topic: str) -> TopicDescription | None:
        pause = threading.Event()
        while (description := self._describe(topic)) is None and time.monotonic() < self._created.get(topic, 0.0):
            pause.wait(0.02)  # this broker does not know it yet
        return description

    def _describe(self, topic: str) -> TopicDescription | None:
        # Not list_topics(), which waits for a topic that does not exist.
        [future] = self.admin.describe_topics(TopicCollection([topic]), request_timeout=self.timeout).values()
        try:
            description: TopicDescription = future.result(self.timeout * 2)
        except KafkaException as error:
            if error.args[0].code() in _GONE:
                return None
            raise self.translated(error) from error
        return description if description.partitions else None

    def topics(self) -> list[str]:
        """All topics with the prefix, except Penstock's own."""
        with self.errors():
            names = self.admin.list_topics(timeout=self.timeout).topics
        own = {self.topic(SEQUENCES), self.topic(SETTINGS), self.topic(STAGED)}
        return sorted(name for name in names if name.startswith(self.prefix) and name not in own and name[:2] != "__")

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> bool:
        """Create a topic and wait until it can be used. Returns False if it exists."""
        new = NewTopic(topic, partitions, self.replicas, config=dict(config))
        try:
            self.admin.create_topics([new], operation_timeout=self.timeout)[topic].result(self.timeout * 2)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise self.translated(error) from error
        self.until(lambda: self._is_ready(topic, partitions), f"topic {topic} is not ready")
        self._created[topic] = time.monotonic() + self.timeout
        return True

    def _is_ready(self, topic: str, partitions: int) -> bool:
        metadata = self.admin.list_topics(topic, timeout=self.timeout).topics[topic].partitions
        return len(metadata) == partitions and all(partition.leader >= 0 for partition in metadata.values())

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and wait until it is gone."""
        self._created.pop(topic, None)
        with self.errors():
            self.admin.delete_topics([topic], operation_timeout=self.timeout)[topic].result(self.timeout * 2)
        self.until(
            lambda: topic not in self.admin.list_topics(timeout=self.timeout).topics, f"topic {topic} is still there"
        )

    def until(self, condition: Any, pending: str, seconds: float | None = None) -> None:
        """Wait until a condition holds; ``pending`` says what does not hold yet, for the error."""
        deadline = time.monotonic() + (self.timeout * 2 if seconds is None else seconds)
        pause = threading.Event()
        while True:
            try:
                if condition():
                    return
            except KafkaException as error:
                if error.args[0].code() not in _SOON or time.monotonic() > deadline:
                    raise self.translated(error) from error
                if error.args[0].code() in _MOVED:
                    # Otherwise the client keeps asking the old leader for minutes.
                    with contextlib.suppress(KafkaException):
                        self.admin.list_topics(timeout=self.timeout)
            if time.monotonic() > deadline:
                raise StoreUnavailable(f"{self.name} timed out: {pending}.", hint="Check the brokers' logs.")
            pause.wait(0.005)

    def ends(self, partitions: Sequence[TopicPartition], *, start: bool = False) -> list[int]:
        """The ends (or starts) of partitions, as a reader of committed records sees them."""
        spec = OffsetSpec.earliest() if start else OffsetSpec.latest()
        return self._offsets(dict.fromkeys(partitions, spec), partitions)

    def wait_visible(self, offsets: Mapping[tuple[str, int], Sequence[int]]) -> None:
        """Wait until readers see these offsets; the brokers confirm a commit before they have finished it."""
        last = {TopicPartition(*partition): span[-1] for partition, span in offsets.items() if span}
        partitions = list(last)
        if partitions:
            self.until(
                lambda: all(
                    end > last[partition] for partition, end in zip(partitions, self.ends(partitions), strict=True)
                ),
                "the committed records are not visible",
            )

    def delete_before(self, offsets: Sequence[TopicPartition]) -> None:
        """Remove the records before the offsets of these partitions."""
        with self.errors():
            futures = self.admin.delete_records(list(offsets), request_timeout=self.timeout)
            for future in futures.values():
                future.result(self.timeout * 2)

    def offset_at(self, partition: TopicPartition, millis: int) -> int:
        """The first offset at or after a time, or -1."""
        return self._offsets({partition: OffsetSpec.for_timestamp(millis)}, [partition])[0]

    def _offsets(self, wanted: dict[TopicPartition, Any], partitions: Sequence[TopicPartition]) -> list[int]:
        answers: dict[tuple[str, int], Any] = {}

        def ask() -> bool:
            futures = self.admin.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self.timeout
            )
            for partition, future in futures.items():
                answers[partition.topic, partition.partition] = future.result(self.timeout * 2)
            return True

        self.until(ask, "a partition has no leader")
        return [answers[partition.topic, partition.partition].offset for partition in partitions]

    @property
    def transaction_timeout(self) -> float:
        """Seconds after which the brokers abort a transaction whose producer is gone or cut off."""
        given = self.options(PRODUCING).get("transaction.timeout.ms")
        return self.timeout * 3 if given is None else float(given) / 1000

    def committed(
        self, group: str, partitions: Sequence[TopicPartition] | None, *, patience: float = math.inf
    ) -> dict[tuple[str, int], int]:
        """A group's offsets in these partitions, or in all.

        A producer that died in a transaction leaves them undecided until the brokers abort it, and this waits for that.
        With ``patience`` it waits at most that many seconds, and then returns the offsets from before the transaction.
        """
        offsets: dict[tuple[str, int], int] = {}
        unstable_from = time.monotonic() + patience

        def are_settled() -> bool:
            settled = self._group_offsets(group, partitions, stable=time.monotonic() < unstable_from)
            offsets.update(settled or {})
            return settled is not None

        self.until(are_settled, f"a transaction holds offsets of group {group}", self.transaction_timeout + _ENDING)
        return offsets

    def _group_offsets(
        self, group: str, partitions: Sequence[TopicPartition] | None, *, stable: bool
    ) -> dict[tuple[str, int], int] | None:
        """The offsets. With ``stable``, None while a transaction holds offsets of the group."""
        request = ConsumerGroupTopicPartitions(self.group_id(group), None if partitions is None else list(partitions))
        [future] = self.admin.list_consumer_group_offsets(
            [request], require_stable=stable, request_timeout=self.timeout
        ).values()
        answers = future.result(self.timeout * 2).topic_partitions
        if any(answer.error is not None and answer.error.code() == _UNSTABLE for answer in answers):
            return None
        return {(answer.topic, answer.partition): answer.offset for answer in answers if answer.offset >= 0}

    def set_committed(self, group: str, offsets: Sequence[TopicPartition]) -> None:
        """Set the offsets of a group without members."""
        request = ConsumerGroupTopicPartitions(self.group_id(group), list(offsets))
        with self.errors():
            [future] = self.admin.alter_consumer_group_offsets([request], request_timeout=self.timeout).values()
            for answer in future.result(self.timeout * 2).topic_partitions:
                if answer.error is not None:
                    raise self.translated(KafkaException(answer.error))

    def delete_group(self, group: str) -> bool:
        """Delete a group. Returns False if it does not exist."""
        [future] = self.admin.delete_consumer_groups([self.group_id(group)], request_timeout=self.timeout).values()
        try:
            future.result(self.timeout * 2)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return False
            raise self.translated(error) from error
        return True

    def groups(self) -> list[str]:
        """All groups with the prefix."""
        with self.errors():
            listed = self.admin.list_consumer_groups(request_timeout=self.timeout).result(self.timeout * 2)
        names = [group.group_id for group in listed.valid]
        return sorted(name[len(self.prefix) :] for name in names if name.startswith(self.prefix))

    # --- errors --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raise the client's errors as Penstock's."""
        try:
            yield
        except KafkaException as error:
            raise self.translated(error) from error

    def translated(self, error: KafkaException) -> PenstockError:
        """The typed error for an error of the client."""
        first = error.args[0]
        if not isinstance(first, KafkaError):
            return BadInput(f"{self.name}: {first}.", hint="Check the options in the URL.")
        code, text = first.code(), first.str()
        if code in _PRODUCER_FENCED:
            return ProducerFenced(f"{self.name}: {text}.", hint="Another appender of this producer took over.")
        if code in _FENCED:
            return Fenced(
                f"{self.name}: {text}.", hint="Another tailer or appender of this name took over; open again."
            )
        if code in _GONE:
            return LogNotFound(f"{self.name}: {text}.", hint="Create the log first.")
        if code in (KafkaError.NON_EMPTY_GROUP, KafkaError.GROUP_SUBSCRIBED_TO_TOPIC):
            return PartitionTaken(f"{self.name}: {text}.", hint="Stop the group's readers first.")
        if code in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE):
            return PayloadTooLarge(f"{self.name}: {text}.", hint="Raise message.max.bytes of broker and URL.")
        if code in _REFUSED:
            return CannotOpen(f"{self.name}: {text}.", hint="Check the credentials and the ACLs.")
        if code == KafkaError._INVALID_ARG:
            return BadInput(f"{self.name}: {text}.", hint="Check the options in the URL.")
        if code in (KafkaError.INVALID_REPLICATION_FACTOR, KafkaError.INVALID_PARTITIONS, KafkaError.INVALID_CONFIG):
            return BadInput(f"{self.name}: {text}.", hint="Check default.replication.factor and the settings.")
        if code == KafkaError.CONCURRENT_TRANSACTIONS:
            return Conflict(f"{self.name}: {text}.", hint="Try again.")
        return StoreUnavailable(f"{self.name}: {text}.", hint="Check the brokers; the client retries by itself.")


def poll_messages(consumer: Consumer, limit: int, seconds: float) -> list[Any]:
    """At most ``limit`` messages; waits only for the first, unlike the client's own ``consume``."""
    first = consumer.poll(seconds)
    if first is None:
        return []
    return [first, *(consumer.consume(limit - 1, 0) if limit > 1 else ())]


def _driver_options(location: Location) -> dict[str, str]:
    given = {}
    for name, value in location.options.items():
        if name in OURS:
            continue
        if "." not in name and name not in PLAIN:
            meant, known = did_you_mean(name, (*OURS, "durability", "space")), ", ".join(sorted(OURS))
            raise BadInput(
                f"option {name!r} in {location.masked} is unknown.",
                hint=f"{meant}Known: {known}, and the options of librdkafka by their names.",
            )
        given[name] = value
    return given


def _number(location: Location, option: str, default: float) -> float:
    text = location.options.get(option, str(default))
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise BadInput(f"{option} {text!r} in {location.masked} is not a number above 0.", hint="Give a number.")
    return value


def _ignore(_: KafkaError) -> None:
    """Ignore it: the call that waits for an answer gets the error too."""


def encoded(value: Any) -> bytes:
    """A value as Penstock's own topics store it."""
    return msgspec.json.encode(value)

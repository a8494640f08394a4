"""The connection to a Kafka cluster: options from the URL, admin calls, and errors in Penstock's words."""

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
)
from confluent_kafka import TopicPartition as Place
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

# Options of ours; whatever else has a dot in it, or is one of the plain ones below, goes to librdkafka as it is.
OURS = frozenset({"default.replication.factor", "subscribe.disable", "timeout", "record_limit"})
PLAIN = frozenset({"acks", "debug", "retries"})
PRODUCING = ("acks", "compression.", "linger.", "batch.", "message.", "queue.", "delivery.", "retries", "transaction.")
CONSUMING = (
    "session.", "heartbeat.", "max.poll.", "fetch.", "group.protocol", "partition.assignment.", "group.instance.",
)  # fmt: skip
MARKS = "penstock-marks"  # the topic that remembers what producers have done
SETTINGS = "penstock-settings"  # the topic that keeps the settings of logs
STAGED = "penstock-staged"  # the topic in which staged records wait
_GONE = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_FENCED = {
    KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID, KafkaError._ASSIGNMENT_LOST, KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.FENCED_MEMBER_EPOCH,
}  # fmt: skip
_UNSTABLE = KafkaError.UNSTABLE_OFFSET_COMMIT
_ENDING = 20.0  # brokers look for transactions to end every 10 s, and then have to write that down
_PRODUCER_FENCED = {KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED, KafkaError._FENCED}
# While a topic is being made or a broker went: ask again in a moment.
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
    """Where the brokers are, how to talk to them, and under which prefix topics and groups are kept."""

    def __init__(self, location: Location) -> None:
        """Read the URL and see that a broker answers."""
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
        self._made: dict[str, float] = {}  # topics made here, until all brokers must have heard of them
        self._lock = threading.Lock()
        try:
            self.admin.list_topics(timeout=self.timeout)
        except KafkaException as cause:
            away = StoreUnavailable(
                f"no broker of {self.name} answers: {cause.args[0].str()}.",
                hint="Check the address, and that the broker runs and advertises one that can be reached from here.",
            )
            raise CannotOpen(str(away)) from away

    # --- clients -------------------------------------------------------------------------------------

    def options(self, *kinds: Sequence[str], **more: Any) -> dict[str, Any]:
        """The settings of a client: where, security, what the URL says for its kind, and what we need."""
        other = {*PRODUCING, *CONSUMING} - {one for kind in kinds for one in kind}
        given = {name: value for name, value in self._given.items() if not name.startswith(tuple(other))}
        return {
            "bootstrap.servers": self.servers, "client.id": "penstock", "log_level": 2, "error_cb": _ignore,
            "socket.timeout.ms": int(self.timeout * 1000), **given,
            **{name.replace("_", "."): value for name, value in more.items()},
        }  # fmt: skip

    def consumer(self, group: str, **more: Any) -> Consumer:
        """A consumer that neither commits nor seeks by itself."""
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
        """The group as Kafka knows it."""
        return self.prefix + group

    def place(self, partition: Partition, offset: int | None = None) -> Place:
        """A partition as the driver names it."""
        topic = self.topic(partition.log)
        return Place(topic, partition.index) if offset is None else Place(topic, partition.index, offset)

    def partition(self, topic: str, index: int) -> Partition:
        """A partition of ours from the driver's."""
        return Partition(topic[len(self.prefix) :], index)

    # --- asking --------------------------------------------------------------------------------------

    def partitions(self, topic: str) -> int:
        """How many a topic has; 0 if there is none."""
        found = self._described(topic)
        return 0 if found is None else len(found.partitions)

    def topic_id(self, topic: str) -> str | None:
        """What Kafka tells a topic by from another one of its name, or None if there is none, empty on old brokers."""
        found = self._described(topic)
        if found is None:
            return None
        id_ = found.topic_id
        is_given = id_ is not None and (id_.get_most_significant_bits() or id_.get_least_significant_bits())
        return str(id_) if is_given else ""

    def _described(self, topic: str) -> TopicDescription | None:
        pause = threading.Event()
        while (found := self._describe(topic)) is None and time.monotonic() < self._made.get(topic, 0.0):
            pause.wait(0.02)  # this broker has not heard of it yet
        return found

    def _describe(self, topic: str) -> TopicDescription | None:
        # Not list_topics(): asked for a topic that is not there, it waits for it to come.
        [asked] = self.admin.describe_topics(TopicCollection([topic]), request_timeout=self.timeout).values()
        try:
            found: TopicDescription = asked.result(self.timeout * 2)
        except KafkaException as error:
            if error.args[0].code() in _GONE:
                return None
            raise self.translated(error) from error
        return found if found.partitions else None

    def topics(self) -> list[str]:
        """All topics under our prefix but those we keep our books in."""
        with self.errors():
            found = self.admin.list_topics(timeout=self.timeout).topics
        own = {self.topic(MARKS), self.topic(SETTINGS), self.topic(STAGED)}
        return sorted(name for name in found if name.startswith(self.prefix) and name not in own and name[:2] != "__")

    def make_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> bool:
        """Make a topic and wait until it can be used. Returns False if it is there."""
        new = NewTopic(topic, partitions, self.replicas, config=dict(config))
        try:
            self.admin.create_topics([new], operation_timeout=self.timeout)[topic].result(self.timeout * 2)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise self.translated(error) from error
        self.until(lambda: self._is_ready(topic, partitions), f"topic {topic} is ready")
        self._made[topic] = time.monotonic() + self.timeout
        return True

    def _is_ready(self, topic: str, partitions: int) -> bool:
        found = self.admin.list_topics(topic, timeout=self.timeout).topics[topic]
        return len(found.partitions) == partitions and all(one.leader >= 0 for one in found.partitions.values())

    def delete_topic(self, topic: str) -> None:
        """Remove a topic and wait until it is gone."""
        self._made.pop(topic, None)
        with self.errors():
            self.admin.delete_topics([topic], operation_timeout=self.timeout)[topic].result(self.timeout * 2)
        self.until(lambda: topic not in self.admin.list_topics(timeout=self.timeout).topics, f"topic {topic} is gone")

    def until(self, condition: Any, what: str, seconds: float | None = None) -> None:
        """Wait for the cluster to agree with itself."""
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
                    # The client goes on asking the leader it knows until it looks again, minutes later.
                    with contextlib.suppress(KafkaException):
                        self.admin.list_topics(timeout=self.timeout)
            if time.monotonic() > deadline:
                raise StoreUnavailable(f"{self.name}: not in time: {what}.", hint="Look at the brokers' logs.")
            pause.wait(0.005)

    def ends(self, places: Sequence[Place], *, start: bool = False) -> list[int]:
        """The ends (or starts) of partitions as a reader of what is committed sees them."""
        spec = OffsetSpec.earliest() if start else OffsetSpec.latest()
        return self._offsets(dict.fromkeys(places, spec), places)

    def wait_visible(self, offsets: Mapping[tuple[str, int], Sequence[int]]) -> None:
        """Wait until readers of what is committed see these: the brokers end a transaction after they have said so."""
        last = {Place(*place): found[-1] for place, found in offsets.items() if found}
        places = list(last)
        if places:
            self.until(
                lambda: all(end > last[place] for place, end in zip(places, self.ends(places), strict=True)),
                "what was committed is visible",
            )

    def offsets_at(self, place: Place, millis: int) -> int:
        """The first offset at or after a time; -1 if there is none."""
        return self._offsets({place: OffsetSpec.for_timestamp(millis)}, [place])[0]

    def _offsets(self, wanted: dict[Place, Any], places: Sequence[Place]) -> list[int]:
        found: dict[tuple[str, int], Any] = {}

        def ask() -> bool:
            asked = self.admin.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self.timeout
            )
            found.update({(one.topic, one.partition): future.result(self.timeout * 2) for one, future in asked.items()})
            return True

        self.until(ask, "the partitions have leaders")
        return [found[place.topic, place.partition].offset for place in places]

    @property
    def transaction_timeout(self) -> float:
        """After how many seconds the brokers may end a transaction whose writer is gone, or was cut off."""
        given = self.options(PRODUCING).get("transaction.timeout.ms")
        return self.timeout * 3 if given is None else float(given) / 1000

    def committed(
        self, group: str, places: Sequence[Place] | None, *, patience: float = math.inf
    ) -> dict[tuple[str, int], int]:
        """A group's offsets in these partitions, or in all.

        A writer that died inside a transaction leaves them undecided until the brokers end it: waits for that. Who
        only looks says for how long; it then sees the offsets from before the transaction.
        """
        offsets: dict[tuple[str, int], int] = {}
        last = time.monotonic() + patience

        def are_settled() -> bool:
            settled = self._group_offsets(group, places, stable=time.monotonic() < last)
            offsets.update(settled or {})
            return settled is not None

        self.until(are_settled, f"the offsets of group {group} are settled", self.transaction_timeout + _ENDING)
        return offsets

    def _group_offsets(
        self, group: str, places: Sequence[Place] | None, *, stable: bool
    ) -> dict[tuple[str, int], int] | None:
        """None while a transaction holds offsets of the group, and ``stable`` ones are asked for."""
        asked = ConsumerGroupTopicPartitions(self.group_id(group), None if places is None else list(places))
        [future] = self.admin.list_consumer_group_offsets(
            [asked], require_stable=stable, request_timeout=self.timeout
        ).values()
        answers = future.result(self.timeout * 2).topic_partitions
        if any(answer.error is not None and answer.error.code() == _UNSTABLE for answer in answers):
            return None
        return {(answer.topic, answer.partition): answer.offset for answer in answers if answer.offset >= 0}

    def set_committed(self, group: str, offsets: Sequence[Place]) -> None:
        """Set a group's offsets from outside; only while it has no members."""
        asked = ConsumerGroupTopicPartitions(self.group_id(group), list(offsets))
        with self.errors():
            [future] = self.admin.alter_consumer_group_offsets([asked], request_timeout=self.timeout).values()
            for one in future.result(self.timeout * 2).topic_partitions:
                if one.error is not None:
                    raise self.translated(KafkaException(one.error))

    def delete_group(self, group: str) -> bool:
        """Remove a group. Returns False if there is none."""
        [future] = self.admin.delete_consumer_groups([self.group_id(group)], request_timeout=self.timeout).values()
        try:
            future.result(self.timeout * 2)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return False
            raise self.translated(error) from error
        return True

    def groups(self) -> list[str]:
        """All groups under our prefix."""
        with self.errors():
            listed = self.admin.list_consumer_groups(request_timeout=self.timeout).result(self.timeout * 2)
        names = [one.group_id for one in listed.valid]
        return sorted(name[len(self.prefix) :] for name in names if name.startswith(self.prefix))

    # --- errors --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """The driver's errors as ours."""
        try:
            yield
        except KafkaException as error:
            raise self.translated(error) from error

    def translated(self, error: KafkaException) -> PenstockError:
        """One that says what it means and what to do."""
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
        return StoreUnavailable(f"{self.name}: {text}.", hint="It is tried again once a broker answers.")


def fetched(consumer: Consumer, limit: int, seconds: float) -> list[Any]:
    """What has come, at most so many; waits for the first only, as the driver's own call does not."""
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
            known = ", ".join(sorted(OURS))
            raise BadInput(
                f"option {name!r} in {location.masked} is unknown.",
                hint=f"Known: {known}, and the options of librdkafka by their names.",
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
    """Whoever waits for an answer is told; the driver also says it here."""


def packed(value: Any) -> bytes:
    """What our books hold."""
    return msgspec.json.encode(value)

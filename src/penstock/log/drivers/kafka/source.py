"""Reading from Kafka for a group: partitions that are fixed, or dealt out by Kafka's own groups."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException

from penstock.errors import Fenced, PartitionTaken, PenstockError
from penstock.log.drivers.kafka.cluster import CONSUMING, Cluster, fetched
from penstock.log.drivers.kafka.sink import MICROS
from penstock.log.group import Listener
from penstock.log.protocol import Source
from penstock.log.record import NO_HEADERS, Bounds, Headers, Partition, RecordBatch
from penstock.log.store import LogStore, OutOfRange

AHEAD = 1000  # messages taken from the driver beforehand, so that partitions take turns
SLICE = 0.05  # seconds of one wait, after which a wake-up is looked for
GRACE = 5.0  # seconds within which what is there has to come, even if the caller would not wait
SHORTEST = 6_000  # milliseconds: what brokers take as they come
SESSION = 10_000  # milliseconds after which a silent member is given up by the brokers


_DEALING = (KafkaError.REBALANCE_IN_PROGRESS, KafkaError.ILLEGAL_GENERATION)


class KafkaSource(Source):
    """What both ways of reading share: positions, polling, seeking, committing."""

    def __init__(self, store: LogStore, cluster: Cluster, group: str, policy: OutOfRange, consumer: Consumer) -> None:
        """Own nothing yet."""
        self.store = store
        self.group = group
        self.consumer = consumer
        self._cluster = cluster
        self._policy = policy
        self._positions: dict[Partition, int] = {}
        self._seeks: dict[Partition, int] = {}
        self._ahead: dict[Partition, list[Any]] = {}  # messages that have come and were not handed out
        self._ends: dict[Partition, int] = {}  # where the driver found the end of a partition
        self._turn = 0
        self._woken = threading.Event()
        self._closed = False
        self._in_callback = False  # the driver is telling us of a change
        self._failure: BaseException | None = None  # told by the next poll that has no records to hand out before
        self._dealt = False  # partitions came or went since messages were taken the last time

    # --- the contract ------------------------------------------------------------------------------

    def assignment(self) -> list[Partition]:
        """The partitions it owns now."""
        return sorted(self._positions)

    def poll(self, limit: int, seconds: float) -> list[RecordBatch]:
        """Read what has come; wait for the first if there is nothing."""
        deadline = time.monotonic() + seconds
        promised: float | None = None
        while True:
            self._check_lost()
            self._settle()
            self._apply_seeks()
            left = deadline - time.monotonic()
            batches = self._fetch(limit, min(max(left, 0.0 if promised is None else SLICE), SLICE))
            if batches or self._woken.is_set():
                return batches
            now = time.monotonic()
            if now >= deadline:
                # The driver fetches in the background: what is there already counts as there.
                if promised is None:
                    promised = now + GRACE
                if now >= promised or not self._is_behind():
                    return []

    def position(self, partition: Partition) -> int:
        """The next offset to read."""
        return self._positions[partition]

    def seek(self, partition: Partition, offset: int) -> None:
        """Read on there, from the next poll on."""
        if partition in self._positions:
            self._positions[partition] = offset
            self._seeks[partition] = offset
            self._drop_ahead(partition)

    def _drop_ahead(self, partition: Partition) -> None:
        self._ahead.pop(partition, None)
        self._ends.pop(partition, None)

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Keep them for the group."""
        places = [self._cluster.place(partition, offset) for partition, offset in offsets.items()]
        deadline = time.monotonic() + GRACE
        while places:
            self.check_owned(offsets)
            error = self._commit_once(places)
            if error is None:
                return
            # The members are dealing again: once that is over, what is still ours can be committed.
            if error.code() not in _DEALING or time.monotonic() > deadline or self._in_callback:
                raise self._cluster.translated(KafkaException(error))
            self._take(fetched(self.consumer, 1, SLICE))

    def _commit_once(self, places: list[Any]) -> KafkaError | None:
        """What prevented it, if anything."""
        try:
            done = self.consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            return error.args[0]
        return next((one.error for one in done or () if one.error is not None), None)

    def check_owned(self, offsets: Mapping[Partition, int]) -> None:
        """Raise for a partition that is another one's now."""
        for partition in offsets:
            if partition not in self._positions:
                raise fenced(partition, self.group)

    def wake(self) -> None:
        """End a poll."""
        self._woken.set()

    def close(self) -> None:
        """Leave."""
        if not self._closed:
            self._closed = True
            try:
                self._leave()
            finally:
                self._positions.clear()
                self.consumer.close()

    # --- inside ------------------------------------------------------------------------------------

    def _check_lost(self) -> None:
        """Raise if the partitions are another one's."""

    def _settle(self) -> None:
        """Begin with what was assigned and could not be begun yet."""

    def _leave(self) -> None:
        """Before the consumer is closed."""

    def _start_positions(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Where the group has committed, or the first record.

        Asked through the consumer: its connections are the ones that are known to work when partitions are dealt out.
        """
        if not partitions:
            return {}
        places = [self._cluster.place(one) for one in partitions]
        seconds = self._cluster.timeout * 2
        starts: dict[Partition, int] = {}

        def ask() -> bool:
            """False while a transaction that holds offsets of the group is being ended."""
            for place in self.consumer.committed(places, seconds):
                if place.error is not None:
                    if place.error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT:
                        return False
                    raise KafkaException(place.error)
                offset = place.offset if place.offset >= 0 else self.consumer.get_watermark_offsets(place, seconds)[0]
                starts[self._cluster.partition(place.topic, place.partition)] = offset
            return True

        self._cluster.until(ask, f"where group {self.group} goes on")
        return starts

    def _apply_seeks(self) -> None:
        deadline = time.monotonic() + GRACE
        while self._seeks:
            partition, offset = next(iter(self._seeks.items()))
            try:
                self.consumer.seek(self._cluster.place(partition, offset))
            except KafkaException as error:
                # A partition that was assigned a moment ago cannot be sought in yet.
                if time.monotonic() > deadline:
                    raise self._cluster.translated(error) from error
                self._take(fetched(self.consumer, 1, 0.01))
            else:
                self._seeks.pop(partition, None)

    def _fetch(self, limit: int, seconds: float) -> list[RecordBatch]:
        """What has come, in turn over the partitions: the driver hands out one after the other."""
        self._tell_failure()
        here = sum(map(len, self._ahead.values()))
        with self._cluster.errors():
            # Also when enough is here: changes of the group are told in a poll.
            messages = fetched(self.consumer, max(1, AHEAD - here), 0.0 if here else seconds)
        # The driver gives a message once: whatever came beside an error is kept, and handed out before it is told.
        self._take(messages)
        batches = self._hand_out(limit)
        if not batches:
            self._tell_failure()
        return batches

    def _tell_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _take(self, messages: Sequence[Any]) -> None:
        """Keep what has come, by partition."""
        dealt, self._dealt = self._dealt, False
        if len(self._positions) == 1 and not self._seeks and not dealt:
            [only] = self._positions
            good = [message for message in messages if message.error() is None]
            if good:
                self._ahead.setdefault(only, []).extend(good)
            if len(good) == len(messages):
                return
            messages = [message for message in messages if message.error() is not None]
        for message in messages:
            error = message.error()
            if error is not None:
                try:
                    self._note(message, error)
                except PenstockError as failure:
                    self._failure = self._failure or failure
                continue
            partition = self._cluster.partition(message.topic(), message.partition())
            if partition in self._positions and partition not in self._seeks:
                self._ahead.setdefault(partition, []).append(message)

    def _hand_out(self, limit: int) -> list[RecordBatch]:
        ready = sorted(self._ahead)
        if not ready:
            self._pass_marks()
            return []
        self._turn += 1
        turn = self._turn % len(ready)
        ready = ready[turn:] + ready[:turn]
        share = max(1, limit // len(ready))
        batches: list[RecordBatch] = []
        for amount in (share, limit):
            for partition in ready:
                waiting = self._ahead.get(partition)
                count = min(amount, limit, len(waiting or ()))
                if not waiting or count < 1:
                    continue
                fresh, self._ahead[partition] = waiting[:count], waiting[count:]
                if not self._ahead[partition]:
                    del self._ahead[partition]
                if fresh[0].offset() < self._positions[partition]:
                    fresh = [message for message in fresh if message.offset() >= self._positions[partition]]
                if fresh:
                    self._positions[partition] = fresh[-1].offset() + 1
                    batches.append(KafkaBatch(partition, fresh))
                    limit -= len(fresh)
        self._pass_marks()
        return batches

    def _pass_marks(self) -> None:
        """Marks of transactions have offsets too: behind the last record of a partition there may be some."""
        for partition, end in list(self._ends.items()):
            if partition not in self._ahead and partition not in self._seeks and partition in self._positions:
                self._positions[partition] = max(self._positions[partition], end)
                del self._ends[partition]

    def _note(self, message: Any, error: KafkaError) -> None:
        """The end of a partition, or something that went wrong with it."""
        if error.code() in (KafkaError._MAX_POLL_EXCEEDED, KafkaError._ALL_BROKERS_DOWN):
            return  # the loss of the partitions is told besides; and brokers may come back
        if message.topic() is None:
            raise self._cluster.translated(KafkaException(error))
        partition = self._cluster.partition(message.topic(), message.partition())
        if error.code() == KafkaError._PARTITION_EOF:
            if partition in self._positions and partition not in self._seeks:
                self._ends[partition] = message.offset()
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            self._out_of_range(partition)
        else:
            raise self._cluster.translated(KafkaException(error))

    def _out_of_range(self, partition: Partition) -> None:
        position = self._positions.get(partition)
        if position is None:
            return
        place = self._cluster.place(partition)
        [start], [end] = self._cluster.ends([place], start=True), self._cluster.ends([place])
        if start <= position <= end:
            self._seeks[partition] = position
            return
        if self._policy == "error":
            self._seeks[partition] = position  # so that the next poll finds it again
            raise self.store.out_of_range(partition, position, Bounds(partition.index, start, end))
        target = start if self._policy == "earliest" else end
        self.store.signals.tell(
            "skipped", partition.log, (), self.store.now(), group=self.group, partition=partition.index,
            offset=target, records=max(0, target - position),
        )  # fmt: skip
        self._positions[partition] = self._seeks[partition] = target

    def _is_behind(self) -> bool:
        """Whether there is something that has not come yet."""
        partitions = list(self._positions)
        if not partitions:
            return False
        ends = self._cluster.ends([self._cluster.place(one) for one in partitions])
        return any(self._positions.get(one, end) < end for one, end in zip(partitions, ends, strict=True))


# --- fixed partitions ----------------------------------------------------------------------------------


class Leases:
    """Who reads which partition for a group, among the tailers of this process: Kafka itself does not care."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[tuple[Any, ...], tuple[int, float, float]] = {}  # owner, last sign of life, patience
        self._ids = itertools.count(1)

    def take(self, keys: Sequence[tuple[Any, ...]], patience: float) -> int:
        """A new owner of all of them; raises if one is held by somebody who lives."""
        now = time.monotonic()
        with self._lock:
            for key in keys:
                if self.is_held(key):
                    raise PartitionTaken(
                        f"{key[-1]} is read by another tailer of group {key[-2]}.",
                        hint="Close that one first, use another group, or subscribe() to share the partitions.",
                    )
            owner = next(self._ids)
            self._held.update(dict.fromkeys(keys, (owner, now, patience)))
            return owner

    def beat(self, keys: Sequence[tuple[Any, ...]], owner: int) -> bool:
        """Say that the owner lives. Returns False if it has been taken over."""
        now = time.monotonic()
        with self._lock:
            for key in keys:
                if self._held.get(key, (0, 0, 0))[0] != owner:
                    return False
            for key in keys:
                self._held[key] = (owner, now, self._held[key][2])
            return True

    def is_held(self, key: tuple[Any, ...]) -> bool:
        """Whether somebody who lives reads it."""
        held = self._held.get(key)
        return held is not None and time.monotonic() - held[1] <= held[2]

    def has_reader(self, *place: str) -> bool:
        """Whether anything of a group is being read."""
        return any(key[:-1] == place and self.is_held(key) for key in list(self._held))

    def let_go(self, keys: Sequence[tuple[Any, ...]], owner: int) -> None:
        """The owner has ended."""
        with self._lock:
            for key in keys:
                if self._held.get(key, (0, 0, 0))[0] == owner:
                    del self._held[key]


LEASES = Leases()


class AssignedSource(KafkaSource):
    """Exactly these partitions; one open tailer per group and partition within this process."""

    def __init__(
        self, store: LogStore, cluster: Cluster, partitions: Sequence[Partition], group: str, *, policy: OutOfRange,
        max_poll: timedelta,
    ) -> None:  # fmt: skip
        """Take them all, or none."""
        self._keys = [lease_key(cluster, group, one) for one in partitions]
        owner = self._owner = LEASES.take(self._keys, max_poll.total_seconds())
        try:
            super().__init__(store, cluster, group, policy, cluster.consumer(group))
            self._positions = self._start_positions(partitions)
            with cluster.errors():
                self.consumer.assign([cluster.place(one, offset) for one, offset in self._positions.items()])
        except BaseException:
            LEASES.let_go(self._keys, owner)
            raise

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Keep them, unless another tailer took over while this one was silent."""
        self.check_owned(offsets)
        super().commit(offsets)

    def check_owned(self, offsets: Mapping[Partition, int]) -> None:
        """Raise for what is another one's."""
        super().check_owned(offsets)
        if not LEASES.beat(self._keys, self._owner):
            raise fenced(next(iter(offsets)), self.group)

    def _check_lost(self) -> None:
        if not LEASES.beat(self._keys, self._owner):
            raise Fenced(
                f"partitions of group {self.group} went to another tailer while this one was silent.",
                hint="Read more often than max_poll, or open another tailer.",
            )

    def _leave(self) -> None:
        LEASES.let_go(self._keys, self._owner)


def lease_key(cluster: Cluster, group: str, partition: Partition) -> tuple[Any, ...]:
    """What a lease is on."""
    return (cluster.servers, cluster.prefix, group, partition)


# --- Kafka's own groups ----------------------------------------------------------------------------------


class SubscribedSource(KafkaSource):
    """Partitions that follow the group's members, over all processes and machines."""

    def __init__(
        self, store: LogStore, cluster: Cluster, logs: Sequence[str], group: str, listener: Listener, *,
        policy: OutOfRange, max_poll: timedelta,
    ) -> None:  # fmt: skip
        """Join with the first poll."""
        millis = max(1, int(max_poll.total_seconds() * 1000))
        given = cluster.options(CONSUMING)
        options: dict[str, Any] = {"max_poll_interval_ms": millis}
        if given.get("group.protocol") != "consumer":
            # Brokers refuse short sessions, and the driver refuses a session that is longer than the patience.
            session = int(given.get("session.timeout.ms", min(SESSION, max(millis, SHORTEST))))
            options["max_poll_interval_ms"] = max(millis, session)
            options |= {
                "session_timeout_ms": session, "heartbeat_interval_ms": max(1, session // 4),
                "partition_assignment_strategy": "cooperative-sticky",
            }  # fmt: skip
        super().__init__(store, cluster, group, policy, cluster.consumer(group, **options))
        self._listener: Listener | None = listener
        self._unplaced: set[Partition] = set()  # ours, but where to begin is not known yet
        with cluster.errors():
            self.consumer.subscribe(
                [cluster.topic(log) for log in logs], on_assign=self._assigned, on_revoke=self._revoked,
                on_lost=self._lost,
            )  # fmt: skip

    def _assigned(self, consumer: Consumer, places: Sequence[Any]) -> None:
        partitions = [self._cluster.partition(place.topic, place.partition) for place in places]
        self._dealt = True
        try:
            starts = self._start_positions(partitions)
            consumer.incremental_assign([self._cluster.place(one, offset) for one, offset in starts.items()])
        except BaseException as error:  # the driver would print it and go on
            self._unplaced.update(partitions)
            self._failure = error
        else:
            self._begun(starts)

    def _settle(self) -> None:
        if self._unplaced:
            starts = self._start_positions(sorted(self._unplaced))
            with self._cluster.errors():
                # The driver may have assigned by itself what we did not, without a place to begin.
                mine = {(self._cluster.topic(one.log), one.index) for one in starts}
                there = [one for one in self.consumer.assignment() if (one.topic, one.partition) in mine]
                if there:
                    self.consumer.incremental_unassign(there)
                self.consumer.incremental_assign([self._cluster.place(one, offset) for one, offset in starts.items()])
            self._unplaced.clear()
            self._dealt = True
            self._begun(starts)
            self._tell_failure()

    def _begun(self, starts: Mapping[Partition, int]) -> None:
        self._positions.update(starts)
        try:
            if starts and self._listener is not None and self._listener.on_assigned is not None:
                self._listener.on_assigned(sorted(starts))
        except BaseException as error:
            self._failure = error

    def _revoked(self, consumer: Consumer, places: Sequence[Any]) -> None:
        self._gone(places, None if self._listener is None else self._listener.on_revoked)
        consumer.incremental_unassign(list(places))

    def _lost(self, consumer: Consumer, places: Sequence[Any]) -> None:
        self._gone(places, None if self._listener is None else self._listener.on_lost)
        consumer.incremental_unassign(list(places))

    def _gone(self, places: Sequence[Any], callback: Any) -> None:
        partitions = sorted(
            one
            for one in (self._cluster.partition(place.topic, place.partition) for place in places)
            if one in self._positions
        )
        self._unplaced.difference_update(self._cluster.partition(place.topic, place.partition) for place in places)
        self._dealt = True
        self._in_callback = True
        try:
            if partitions and callback is not None:
                callback(partitions)
        except BaseException as error:
            self._failure = error
        finally:
            self._in_callback = False
            for partition in partitions:
                self._positions.pop(partition, None)
                self._seeks.pop(partition, None)
                self._drop_ahead(partition)

    def _leave(self) -> None:
        listener, self._listener = self._listener, None
        owned = sorted(self._positions)
        if owned and listener is not None and listener.on_revoked is not None:
            listener.on_revoked(owned)


def fenced(partition: Partition, group: str) -> Fenced:
    """The error for a partition that somebody else has now."""
    return Fenced(
        f"{partition} of group {group} went to another tailer; nothing was committed.",
        hint="Read on: the tailer drops what it lost, and the other one reads from the last commit.",
    )


class KafkaBatch(RecordBatch):
    """Messages of one partition; their columns are made when they are asked for."""

    __slots__ = ("_extra", "_keys", "_messages", "_offsets")

    def __init__(self, partition: Partition, messages: Sequence[Any]) -> None:
        """At least one message."""
        super().__init__(partition)
        self._messages = messages
        self._offsets: Sequence[int] | None = None
        self._keys: Sequence[str | None] | None = None
        self._extra: tuple[list[int], list[Headers]] | None = None  # times and headers: they are read together

    @property
    def offsets(self) -> Sequence[int]:
        """One per message; a range unless marks of transactions lie between."""
        if self._offsets is None:
            first, last = self._messages[0].offset(), self._messages[-1].offset()
            dense = last - first + 1 == len(self._messages)
            self._offsets = range(first, last + 1) if dense else [message.offset() for message in self._messages]
        return self._offsets

    def payloads(self) -> list[bytes]:
        """The values; a tombstone has none."""
        return [message.value() or b"" for message in self._messages]

    def keys(self) -> Sequence[str | None]:
        """The keys, as text."""
        if self._keys is None:
            self._keys = [
                None if (key := message.key()) is None else key.decode("utf-8", "surrogateescape")
                for message in self._messages
            ]
        return self._keys

    def times(self) -> Sequence[int]:
        """The timestamps, with what Kafka's milliseconds cannot hold."""
        return self._both()[0]

    def headers(self) -> Sequence[Headers]:
        """The headers, without our own."""
        return self._both()[1]

    def slice(self, start: int, stop: int) -> RecordBatch:
        """Only some of them."""
        part = KafkaBatch(self.partition, self._messages[start:stop])
        part.codec = self.codec
        return part

    def __len__(self) -> int:
        """How many."""
        return len(self._messages)

    def _both(self) -> tuple[list[int], list[Headers]]:
        if self._extra is None:
            times: list[int] = []
            headers: list[Headers] = []
            for message in self._messages:
                given = message.headers()
                micros = message.timestamp()[1] * 1000
                own: Headers = NO_HEADERS
                if given:
                    own = {name: _header(value) for name, value in given}
                    exact = own.get(MICROS)
                    if exact is not None and (given_micros := _micros(exact)) is not None:
                        micros = given_micros
                        del own[MICROS]
                times.append(micros)
                headers.append(own)
            self._extra = (times, headers)
        return self._extra


def _micros(text: str | bytes) -> int | None:
    """What a header says, or None for one that others wrote and that is not a time: the broker's own has to do."""
    try:
        value = int(text)
    except ValueError:
        return None
    return value if -(1 << 63) <= value < 1 << 63 else None


def _header(value: bytes | None) -> str | bytes:
    try:
        return (value or b"").decode()
    except UnicodeDecodeError:
        return value or b""

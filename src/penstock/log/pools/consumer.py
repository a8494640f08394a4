"""ConsumerPool: threads that consume a log in batches, with retries, isolation of what fails, and a known end.

A batch is begun, its records are accepted one by one, then it is committed: first by the consumer, then in the log. A
failure rolls it back, waits as the retry policy says, and replays the same records one at a time, so that only the one
that fails is ever skipped or stops the pool.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

from penstock.clock import duration
from penstock.errors import BadInput, Closed, Fenced
from penstock.log.group import round_robin
from penstock.log.log import Log
from penstock.log.pools.producer import FORCE, PILL, ProducerPool
from penstock.log.pools.threads import Crew
from penstock.log.record import Partition, Record
from penstock.log.tailer import Tailer
from penstock.policy import Batching, Retry

T = TypeVar("T")

logger = logging.getLogger("penstock.log.pools.consumer")

LOOK = 0.1  # seconds after which a waiting consumer looks whether it is to end


class Consumer(Protocol[T]):
    """What a pool drives; :class:`Each` and :class:`Together` make one out of a function."""

    def begin(self) -> None:
        """A batch begins."""

    def accept(self, record: Record[T]) -> None:
        """One record of the batch."""

    def commit(self) -> None:
        """Make the batch final; if it raises, the batch is replayed."""

    def rollback(self) -> None:
        """Forget the batch."""

    def close(self) -> None:
        """The pool ends."""


class Each(Generic[T]):
    """A consumer out of a function of one record."""

    def __init__(self, function: Callable[[Record[T]], object]) -> None:
        """Call it for every record."""
        self._function = function

    def begin(self) -> None: ...

    def accept(self, record: Record[T]) -> None:
        self._function(record)

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


class Together(Generic[T]):
    """A consumer out of a function of a whole batch."""

    def __init__(self, function: Callable[[list[Record[T]]], object]) -> None:
        """Call it when the batch is complete."""
        self._function = function
        self._records: list[Record[T]] = []

    def begin(self) -> None:
        self._records.clear()

    def accept(self, record: Record[T]) -> None:
        self._records.append(record)

    def commit(self) -> None:
        self._function(list(self._records))

    def rollback(self) -> None:
        self._records.clear()

    def close(self) -> None: ...


class ConsumerPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a pool consumes.

    ``bounded`` ends every consumer at the end of the log as it was when the pool started, or when ``until`` (the
    producers) had ended. ``on_failure`` is for a record whose attempts are used up: ``stop`` that consumer, or
    ``continue`` without the record, which is told to ``on_skip``. ``start`` is where to begin; anything but
    ``committed`` needs fixed partitions. ``salted`` starts the clocks of the batches at random, so that many consumers
    do not all commit at once.
    """

    batch: Batching = Batching(size=10, linger=timedelta(seconds=10))
    retry: Retry = Retry(attempts=1)
    on_failure: Literal["stop", "continue"] = "stop"
    bounded: bool = False
    start: Literal["committed", "start", "end"] = "committed"
    threads: int | None = None  # at most one per partition
    subscribe: bool = False  # share the partitions with other pools of the group
    salted: bool = False

    def __post_init__(self) -> None:
        """Refuse what could not work."""
        if self.on_failure not in ("stop", "continue"):
            raise BadInput(f"on_failure={self.on_failure!r} is unknown.", hint="Use 'stop' or 'continue'.")
        if self.start not in ("committed", "start", "end"):
            raise BadInput(f"start={self.start!r} is unknown.", hint="Use 'committed', 'start' or 'end'.")
        if self.threads is not None and self.threads < 1:
            raise BadInput(f"ConsumerPolicy(threads={self.threads}) consumes nothing.", hint="Use 1 or more.")
        if self.subscribe and self.start != "committed":
            raise BadInput(
                "a subscription starts where its group has committed.", hint="Leave start out, or subscribe=False."
            )


BOUNDED = ConsumerPolicy(bounded=True)
ENDLESS = ConsumerPolicy(on_failure="continue")


class ConsumerStatus(msgspec.Struct):
    """What one consumer came to: ``accepted`` counts replays too, ``committed`` counts each record once."""

    consumer: int
    accepted: int = 0
    committed: int = 0
    batches: int = 0
    failures: int = 0
    skipped: int = 0
    seconds: float = 0.0
    error: BaseException | None = None

    @property
    def failed(self) -> bool:
        """Whether it ended with an error."""
        return self.error is not None


class ConsumerPool(Crew[ConsumerStatus], Generic[T]):
    """Consumes a log for a group, each consumer in a thread of its own."""

    def __init__(
        self,
        log: Log[T],
        group: str,
        make: Callable[[int], Consumer[T]],
        policy: ConsumerPolicy = ENDLESS,
        *,
        until: ProducerPool[Any] | None = None,
        on_skip: Callable[[Record[T], BaseException], None] | None = None,
        progress: Callable[[int, int | None], None] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """``make(number)`` makes a consumer; ``progress`` is told how many records are committed, and of how many."""
        self.log = log
        self.group = group
        self.policy = policy
        self.until = until
        count = min(log.settings.partitions, policy.threads or log.settings.partitions)
        super().__init__([ConsumerStatus(number) for number in range(count)])
        self.rng = rng or random.Random()
        self._make = make
        self._on_skip = on_skip
        self._progress = progress
        self.stopping = threading.Event()  # after the batch under way
        self.killed = threading.Event()  # at once
        self._ends: dict[Partition, int] | None = None
        self._lock = threading.Lock()

    # --- life --------------------------------------------------------------------------------------

    def start(self) -> ConsumerPool[T]:
        """Begin in the background."""
        members = [str(number) for number in range(len(self.statuses))]
        shares = round_robin(members, self.log.partitions)
        threads = []
        for status in self.statuses:
            share = [] if self.policy.subscribe else shares[str(status.consumer)]
            name = f"penstock-consumer-{status.consumer}"
            threads.append(threading.Thread(target=self._run, args=(status, share), name=name, daemon=True))
        self._launch(threads)
        return self

    def run(self) -> list[ConsumerStatus]:
        """Start and wait for the end; for bounded pools."""
        return self.start().wait()

    @property
    def committed(self) -> int:
        """Records committed so far."""
        return sum(status.committed for status in self.statuses)

    def stop(self) -> list[ConsumerStatus]:
        """Commit the batches under way, then end."""
        self.stopping.set()
        return self.wait()

    def close(self) -> list[ConsumerStatus]:
        """End at once: batches under way are rolled back, and read again by the next pool of the group."""
        self.killed.set()
        self.stopping.set()
        return self.wait()

    def _run(self, status: ConsumerStatus, share: list[Partition]) -> None:
        begin = time.monotonic()
        try:
            with self._tailer(share, status) as tailer:
                runner = Runner(self, status, tailer, self._make(status.consumer))
                runner.run()
        except BaseException as error:
            status.error = error
            if not isinstance(error, Closed):
                logger.error("consumer %d of group %s ended: %r", status.consumer, self.group, error)
        finally:
            status.seconds = time.monotonic() - begin

    def _tailer(self, share: list[Partition], status: ConsumerStatus) -> Tailer[T]:
        if self.policy.subscribe:
            return self.log.subscribe(self.group)
        tailer = self.log.tailer(self.group, [one.index for one in share])
        if self.policy.start == "start":
            tailer.to_start()
        elif self.policy.start == "end":
            tailer.to_end()
        return tailer

    # --- for the consumers -------------------------------------------------------------------------

    def ends(self) -> dict[Partition, int] | None:
        """Where a bounded pool ends, or None while the producers are not done, or if it is endless."""
        if not self.policy.bounded or (self.until is not None and not self.until.done):
            return None
        with self._lock:
            if self._ends is None:
                bounds = self.log.bounds()
                self._ends = {Partition(self.log.name, one.partition): one.end for one in bounds}
            return self._ends

    def at_end(self, tailer: Tailer[T]) -> bool:
        """Whether this tailer has read all there is to consume in its partitions."""
        ends = self.ends()
        return ends is not None and all(tailer.position(one).value >= ends[one] for one in tailer.assignment())

    def is_over(self, tailer: Tailer[T]) -> bool:
        """Whether nothing is left to consume, by this tailer or, if partitions may still come to it, by anybody."""
        ends = self.ends()
        if ends is None or not self.policy.subscribe:
            return self.at_end(tailer)
        committed = self.log.store.committed(self.log.name, self.group)
        return all((committed[one.index] or 0) >= end for one, end in ends.items())

    def tell(self) -> None:
        """Say how far it is."""
        if self._progress is not None:
            ends = self.ends()
            total = None if ends is None else sum(ends.values()) - sum(one.start for one in self.log.bounds())
            self._progress(self.committed, total)

    def skip(self, record: Record[T], error: BaseException) -> None:
        """A record is given up."""
        logger.error("record %s is skipped by group %s: %r", record.place, self.group, error)
        self.log.store.signals.tell(
            "skipped", self.log.name, (), self.log.store.now(), group=self.group, partition=record.partition,
            offset=record.offset, records=1, error=repr(error),
        )  # fmt: skip
        if self._on_skip is not None:
            self._on_skip(record, error)


class Runner(Generic[T]):
    """One consumer over its tailer."""

    def __init__(self, pool: ConsumerPool[T], status: ConsumerStatus, tailer: Tailer[T], consumer: Consumer[T]) -> None:
        """Nothing read yet."""
        self._pool = pool
        self._policy = pool.policy
        self._status = status
        self._tailer = tailer
        self._consumer = consumer
        self._ahead: list[Record[T]] = []  # read and not yet in a batch
        self._pill = False
        self._linger = duration(pool.policy.batch.linger).total_seconds()
        self._owned: set[Partition] = set()

    def run(self) -> None:
        """Until the end, a pill, a stop or a failure."""
        try:
            while not self._pill and not self._pool.stopping.is_set():
                records = self._collect()
                if records or self._pill:
                    self._consume(records)
                if not records and not self._pill and not self._ahead and self._pool.is_over(self._tailer):
                    return
            if self._pool.killed.is_set():
                raise Closed("the pool was closed.", hint="What was not committed is read by the next one.")
        finally:
            self._consumer.close()

    # --- collecting --------------------------------------------------------------------------------

    def _collect(self) -> list[Record[T]]:
        """The records of the next batch: full, forced, out of time, before a pill, or all there is at the end."""
        batch: list[Record[T]] = []
        deadline: float | None = None
        while len(batch) < self._policy.batch.size:
            if not self._ahead:
                self._ahead = self._read(self._policy.batch.size - len(batch), deadline)
                if self._moved():
                    return []
            if not self._ahead:
                over = deadline is not None and time.monotonic() >= deadline
                if over or self._pool.stopping.is_set() or self._pool.at_end(self._tailer):
                    return batch
                continue
            record = self._ahead.pop(0)
            headers = record.headers
            if PILL in headers:
                self._pill = True
                self._last = record
                return batch
            batch.append(record)
            if deadline is None:
                salt = self._pool.rng.random() if self._policy.salted and not self._status.batches else 1.0
                deadline = time.monotonic() + self._linger * salt
            if FORCE in headers:
                return batch
        return batch

    def _read(self, limit: int, deadline: float | None) -> list[Record[T]]:
        patience = LOOK if deadline is None else min(LOOK, max(0.0, deadline - time.monotonic()))
        return self._tailer.read(limit, timedelta(seconds=patience))

    def _moved(self) -> bool:
        """After a change of the assignment what was read and not committed is somebody else's, or comes again."""
        owned = set(self._tailer.assignment())
        if owned == self._owned:
            return False
        before, self._owned = self._owned, owned
        if before:
            self._ahead = []
            self._tailer.to_committed()
            return True
        return False

    # --- consuming ---------------------------------------------------------------------------------

    def _consume(self, records: list[Record[T]]) -> None:
        attempt = 1
        error = self._attempt(records)
        while error is not None:
            self._status.failures += 1
            if self._pool.killed.is_set():
                raise Closed("the pool was closed.") from error
            if isinstance(error, Fenced):
                self._ahead = []
                return  # it is another one's now, who reads it from the last commit
            if len(records) > 1 and self._policy.on_failure == "stop" and not self._again(attempt):
                raise error
            if len(records) > 1:
                # Find out which one it is: each by itself, with all its attempts.
                self._pause(attempt)
                for record in records:
                    self._consume_one(record, attempt)
                self._keep((), pill=self._pill)
                return
            if not self._again(attempt):
                if records:
                    self._give_up(records[0], error)
                self._keep((), pill=self._pill)
                return
            self._pause(attempt)
            attempt += 1
            error = self._attempt(records)

    def _consume_one(self, record: Record[T], spent: int) -> None:
        attempt = spent
        while True:
            error = self._attempt([record], last=False)
            if error is None or isinstance(error, Fenced):
                return
            self._status.failures += 1
            attempt += 1
            if self._pool.killed.is_set():
                raise Closed("the pool was closed.") from error
            if not self._again(attempt):
                self._give_up(record, error)
                return
            self._pause(attempt)

    def _again(self, attempt: int) -> bool:
        return self._policy.retry.delay(attempt, self._pool.rng) is not None

    def _pause(self, attempt: int) -> None:
        delay = self._policy.retry.delay(attempt, self._pool.rng)
        self._pool.killed.wait(0.0 if delay is None else delay.total_seconds())

    def _give_up(self, record: Record[T], error: BaseException) -> None:
        if self._policy.on_failure == "stop":
            raise error
        self._status.skipped += 1
        self._pool.skip(record, error)
        self._keep([record])

    def _attempt(self, records: list[Record[T]], *, last: bool = True) -> BaseException | None:
        """Begin, accept, commit. Returns None if all went well, else what went wrong, with the batch rolled back."""
        consumer = self._consumer
        begun = False
        try:
            if records:
                consumer.begin()
                begun = True
                for record in records:
                    if self._pool.killed.is_set():
                        raise Closed("the pool was closed.", hint="The batch under way was rolled back.")
                    self._status.accepted += 1
                    consumer.accept(record)
                consumer.commit()
            self._keep(records, pill=last and self._pill)
        except Exception as error:
            if begun:
                self._roll_back()
            if isinstance(error, Closed):
                raise
            return error
        self._status.committed += len(records)
        self._status.batches += bool(records)
        self._pool.tell()
        return None

    def _keep(self, records: Iterable[Record[T]], *, pill: bool = False) -> None:
        """Commit in the log: behind each record, and behind the pill that ended the batch."""
        offsets = {record.batch.partition: record.offset + 1 for record in records}
        if pill:
            offsets[self._last.batch.partition] = self._last.offset + 1
        if offsets:
            self._tailer.commit(offsets)

    def _roll_back(self) -> None:
        try:
            self._consumer.rollback()
        except Exception:
            logger.exception("consumer %d failed to roll back; the first error counts", self._status.consumer)

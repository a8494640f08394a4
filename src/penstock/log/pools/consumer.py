"""ConsumerPool: threads that consume a log in batches.

A batch begins, its records are accepted one by one, and then it is committed: first by the consumer, then in the log. A
failure rolls it back. After the pause of the retry policy, its records are replayed one at a time, so that only the
record that fails is skipped or stops the pool.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar

import msgspec

from penstock.errors import BadInput, Closed
from penstock.log.group import round_robin
from penstock.log.log import Log
from penstock.log.pools.consumer_loop import ConsumerLoop
from penstock.log.pools.consumers import Consumer
from penstock.log.pools.producer import ProducerPool
from penstock.log.pools.threads import ThreadedPool
from penstock.log.record import Partition, Record
from penstock.log.tailer import Tailer
from penstock.policy import Batching, Retry

T = TypeVar("T")

logger = logging.getLogger("penstock.log.pools")


class ConsumerPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a pool consumes.

    With ``bounded``, every consumer ends at the end of the log as it was when the pool started, or when the producers
    given as ``after`` ended. ``on_failure`` is for a record without attempts left: ``stop`` the consumer, or
    ``continue`` without the record and call ``on_skip``. ``start`` is where to begin; anything but ``committed`` needs
    fixed partitions. With ``jitter``, the first batch of each consumer lingers for a random part of its time, so that
    many consumers do not commit at once.
    """

    batch: Batching = Batching(size=10, linger=timedelta(seconds=10))
    retry: Retry = Retry(attempts=1)
    on_failure: Literal["stop", "continue"] = "stop"
    bounded: bool = False
    start: Literal["committed", "start", "end"] = "committed"
    threads: int | None = None  # at most, and at most one per partition
    subscribe: bool = False  # share the partitions with other pools of the group
    jitter: bool = False

    def __post_init__(self) -> None:
        """Raise for values that cannot work."""
        if self.on_failure not in ("stop", "continue"):
            raise BadInput(f"on_failure={self.on_failure!r} is unknown.", hint="Use 'stop' or 'continue'.")
        if self.start not in ("committed", "start", "end"):
            raise BadInput(f"start={self.start!r} is unknown.", hint="Use 'committed', 'start' or 'end'.")
        if self.threads is not None and self.threads < 1:
            raise BadInput(f"ConsumerPolicy(threads={self.threads}) consumes nothing.", hint="Use 1 or more.")
        if self.subscribe and self.start != "committed":
            raise BadInput(
                "a subscription starts at the committed offsets.", hint="Leave out start, or use subscribe=False."
            )


BOUNDED = ConsumerPolicy(bounded=True)
ENDLESS = ConsumerPolicy(on_failure="continue")


class ConsumerStatus(msgspec.Struct):
    """What one consumer has done: ``accepted`` counts replays, ``committed`` counts each record once."""

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


class ConsumerPool(ThreadedPool[ConsumerStatus], Generic[T]):
    """Consumes a log for a group, each consumer in its own thread.

    Args:
        log: what they read
        group: whose offsets count
        make: called with the number of the consumer
        policy: batches, retries, and when it ends
        after: a pool of producers: it ends when they have ended and all is read
        on_skip: called with a record that is skipped and the error
        progress: called with the number of records so far, and of all if that is known
        rng: randomness of retries, for tests
    """

    def __init__(
        self,
        log: Log[T],
        group: str,
        make: Callable[[int], Consumer[T]],
        policy: ConsumerPolicy = ENDLESS,
        *,
        after: ProducerPool[Any] | None = None,
        on_skip: Callable[[Record[T], BaseException], None] | None = None,
        progress: Callable[[int, int | None], None] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """``make(number)`` returns a consumer; ``progress`` is called with the committed records and their total."""
        self.log = log
        self.group = group
        self.policy = policy
        self.after = after
        count = min(log.settings.partitions, policy.threads or log.settings.partitions)
        super().__init__([ConsumerStatus(number) for number in range(count)])
        self.rng = rng or random.Random()
        self._make = make
        self._on_skip = on_skip
        self._progress = progress
        self.stopping = threading.Event()  # end after the current batch
        self.killed = threading.Event()  # end at once
        self._ends: dict[Partition, int] | None = None
        self._lock = threading.Lock()

    # --- life --------------------------------------------------------------------------------------

    def start(self) -> ConsumerPool[T]:
        """Start the threads."""
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
        """Start, and wait for the end; for bounded pools."""
        return self.start().wait()

    @property
    def committed(self) -> int:
        """The number of records committed so far."""
        return sum(status.committed for status in self.statuses)

    def stop(self) -> list[ConsumerStatus]:
        """Commit the current batches, then end."""
        self.stopping.set()
        return self.wait()

    def close(self) -> list[ConsumerStatus]:
        """End at once. Current batches are rolled back, and the next pool of the group reads them again."""
        self.killed.set()
        self.stopping.set()
        return self.wait()

    def _run(self, status: ConsumerStatus, share: list[Partition]) -> None:
        begin = time.monotonic()
        try:
            with self._tailer(share, status) as tailer:
                ConsumerLoop(self, status, tailer, self._make(status.consumer)).run()
        except BaseException as error:
            status.error = error
            if not isinstance(error, Closed):
                logger.error("consumer %d of group %s ended with an error: %r", status.consumer, self.group, error)
        finally:
            status.seconds = time.monotonic() - begin

    def _tailer(self, share: list[Partition], status: ConsumerStatus) -> Tailer[T]:
        if self.policy.subscribe:
            return self.log.subscribe(self.group)
        tailer = self.log.tailer(self.group, [partition.index for partition in share])
        if self.policy.start == "start":
            tailer.to_start()
        elif self.policy.start == "end":
            tailer.to_end()
        return tailer

    # --- for the loops -------------------------------------------------------------------------

    def ends(self) -> dict[Partition, int] | None:
        """Where a bounded pool ends, or None while the producers are not done or if the pool is endless."""
        if not self.policy.bounded or (self.after is not None and not self.after.done):
            return None
        with self._lock:
            if self._ends is None:
                bounds = self.log.bounds()
                self._ends = {Partition(self.log.name, part.partition): part.end for part in bounds}
            return self._ends

    def at_end(self, tailer: Tailer[T]) -> bool:
        """Whether a tailer has read everything up to the end of its partitions."""
        ends = self.ends()
        if ends is None:
            return False
        return all(tailer.position(partition).value >= ends[partition] for partition in tailer.assignment())

    def is_over(self, tailer: Tailer[T]) -> bool:
        """Whether nothing is left to consume: for this tailer, or for the whole group if it may get more partitions."""
        ends = self.ends()
        if ends is None or not self.policy.subscribe:
            return self.at_end(tailer)
        committed = self.log.store.committed(self.log.name, self.group)
        return all((committed[partition.index] or 0) >= end for partition, end in ends.items())

    def report_progress(self) -> None:
        """Call ``progress``."""
        if self._progress is not None:
            ends = self.ends()
            total = None if ends is None else sum(ends.values()) - sum(part.start for part in self.log.bounds())
            self._progress(self.committed, total)

    def skip(self, record: Record[T], error: BaseException) -> None:
        """Skip a record that has no attempts left."""
        logger.error("group %s skips record %s: %r", self.group, record.position, error)
        self.log.store.signals.tell(
            "skipped", self.log.name, (), self.log.store.now(), group=self.group, partition=record.partition,
            offset=record.offset, records=1, error=repr(error),
        )  # fmt: skip
        if self._on_skip is not None:
            self._on_skip(record, error)

"""ConsumerLoop: one consumer over its tailer: collecting batches, attempts, replays and commits."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Generic, TypeVar

from penstock.clock import duration
from penstock.errors import Closed, Fenced
from penstock.log.pools.consumers import Consumer
from penstock.log.pools.producer import FORCE, PILL
from penstock.log.record import Partition, Record
from penstock.log.tailer import Tailer

if TYPE_CHECKING:
    from penstock.log.pools.consumer import ConsumerPool, ConsumerStatus

T = TypeVar("T")

logger = logging.getLogger("penstock.log.pools")

CHECK_EVERY = 0.1  # seconds after which a waiting consumer checks whether it should end


class ConsumerLoop(Generic[T]):
    """One consumer over its tailer."""

    def __init__(self, pool: ConsumerPool[T], status: ConsumerStatus, tailer: Tailer[T], consumer: Consumer[T]) -> None:
        """Read nothing yet."""
        self._pool = pool
        self._policy = pool.policy
        self._status = status
        self._tailer = tailer
        self._consumer = consumer
        self._ahead: list[Record[T]] = []  # read, but not in a batch yet
        self._pill: Record[T] | None = None  # the poison pill that ends this consumer
        self._linger = duration(pool.policy.batch.linger).total_seconds()
        self._owned: set[Partition] = set()

    def run(self) -> None:
        """Consume until the end of the log, a poison pill, a stop or a failure."""
        try:
            while not self._pill and not self._pool.stopping.is_set():
                records = self._collect()
                if records or self._pill:
                    self._consume(records)
                if not records and not self._pill and not self._ahead and self._pool.is_over(self._tailer):
                    return
            if self._pool.killed.is_set():
                raise Closed("the pool was closed.", hint="The next pool reads what was not committed.")
        finally:
            self._consumer.close()

    # --- collecting --------------------------------------------------------------------------------

    def _collect(self) -> list[Record[T]]:
        """The next batch: until it is full, forced, lingered long enough, at a pill, or at the end of the log."""
        batch: list[Record[T]] = []
        deadline: float | None = None
        while len(batch) < self._policy.batch.size:
            if not self._ahead:
                self._ahead = self._read(self._policy.batch.size - len(batch), deadline)
                if self._was_reassigned():
                    return []
            if not self._ahead:
                is_late = deadline is not None and time.monotonic() >= deadline
                if is_late or self._pool.stopping.is_set() or self._pool.at_end(self._tailer):
                    return batch
                continue
            record = self._ahead.pop(0)
            headers = record.headers
            if PILL in headers:
                self._pill = record
                return batch
            batch.append(record)
            if deadline is None:
                part = self._pool.rng.random() if self._policy.jitter and not self._status.batches else 1.0
                deadline = time.monotonic() + self._linger * part
            if FORCE in headers:
                return batch
        return batch

    def _read(self, limit: int, deadline: float | None) -> list[Record[T]]:
        seconds = CHECK_EVERY if deadline is None else min(CHECK_EVERY, max(0.0, deadline - time.monotonic()))
        return self._tailer.read(limit, timedelta(seconds=seconds))

    def _was_reassigned(self) -> bool:
        """Whether the assignment has changed. Records that were not committed then go to others, or come again."""
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
                return  # another member owns the partition, and reads from the last commit
            if len(records) > 1 and self._policy.on_failure == "stop" and not self._has_attempts_left(attempt):
                raise error
            if len(records) > 1:
                # Find out which record fails: try each alone, with all its attempts.
                self._pause(attempt)
                for record in records:
                    self._consume_one(record, attempt)
                self._commit_offsets((), with_pill=True)
                return
            if not self._has_attempts_left(attempt):
                if records:
                    self._give_up(records[0], error)
                self._commit_offsets((), with_pill=True)
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
            if not self._has_attempts_left(attempt):
                self._give_up(record, error)
                return
            self._pause(attempt)

    def _has_attempts_left(self, attempt: int) -> bool:
        return self._policy.retry.delay(attempt, self._pool.rng) is not None

    def _pause(self, attempt: int) -> None:
        delay = self._policy.retry.delay(attempt, self._pool.rng)
        self._pool.killed.wait(0.0 if delay is None else delay.total_seconds())

    def _give_up(self, record: Record[T], error: BaseException) -> None:
        if self._policy.on_failure == "stop":
            raise error
        self._status.skipped += 1
        self._pool.skip(record, error)
        self._commit_offsets([record])

    def _attempt(self, records: list[Record[T]], *, last: bool = True) -> BaseException | None:
        """Begin, accept, commit. Returns None, or the error after the batch was rolled back."""
        consumer = self._consumer
        begun = False
        try:
            if records:
                consumer.begin()
                begun = True
                for record in records:
                    if self._pool.killed.is_set():
                        raise Closed("the pool was closed.", hint="The current batch was rolled back.")
                    self._status.accepted += 1
                    consumer.accept(record)
                consumer.commit()
            self._commit_offsets(records, with_pill=last)
        except Exception as error:
            if begun:
                self._roll_back()
            if isinstance(error, Closed):
                raise
            return error
        self._status.committed += len(records)
        self._status.batches += bool(records)
        self._pool.report_progress()
        return None

    def _commit_offsets(self, records: Iterable[Record[T]], *, with_pill: bool = False) -> None:
        """Commit in the log past each record, and past the pill that ended the batch."""
        offsets = {record.batch.partition: record.offset + 1 for record in records}
        if with_pill and self._pill is not None:
            offsets[self._pill.batch.partition] = self._pill.offset + 1
        if offsets:
            self._tailer.commit(offsets)

    def _roll_back(self) -> None:
        try:
            self._consumer.rollback()
        except Exception:
            logger.exception("consumer %d could not roll back; its first error counts", self._status.consumer)

"""The log of plans, and the one transaction that makes a batch visible.

A computation on Spark has a log ``<computation>.batches``. A driver that starts writes its predecessor's last plan
again, under a new epoch; then it writes every batch down before it runs. All its transactions carry one
producer's name and numbers of (epoch, count) that rise. The store accepts only numbers that are higher than
the last, so a driver with a successor can neither plan nor commit: it is :class:`Fenced`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock import failpoints
from penstock.errors import Fenced, StoreUnavailable, Undecodable
from penstock.log.protocol import Commit, Committed, Source, Staged
from penstock.log.record import NewRecords, Partition
from penstock.log.settings import Retention
from penstock.log.store import LogStore
from penstock.spark.runner.appends import records_of
from penstock.spark.runner.micro_batch import MicroBatch, TaskResult, decoded_batch, encoded
from penstock.stream.engine.checkpoint import Appends, concatenated
from penstock.stream.internal_logs import batch_log, last_payload

PLANS_KEPT = "1h"
PLAN_SEGMENT = 1024 * 1024
COUNT_BITS = 32  # of a transaction's number, below the epoch

Offsets = list[tuple[Source, dict[Partition, int]]]


class BatchLog:
    """What a driver of a computation has planned, and its right to commit."""

    def __init__(self, store: LogStore, computation: str) -> None:
        """Create the log; nothing is written before :meth:`begin`."""
        self._store = store
        self._computation = computation
        self._partition = Partition(batch_log(computation), 0)
        self._producer = batch_log(computation)
        self.epoch = 0
        self._count = 0
        store.create(
            self._partition.log, 1, retention=Retention(age=PLANS_KEPT), segment_bytes=PLAN_SEGMENT
        )  # fmt: skip

    def begin(self) -> MicroBatch | None:
        """Raise the epoch: from here on no other driver can commit. Returns the last plan, which may not be done."""
        epoch = 0
        while True:
            last = self._last()
            # Offsets are never reused, unless the log was deleted: then higher numbers are tried.
            end = self._store.bounds_of(self._partition).end
            epoch = max(end + 1, 2 * epoch, 0 if last is None else last.epoch + 1)
            self.epoch, self._count = epoch, 0
            taken_over = msgspec.structs.replace(last or MicroBatch(), epoch=epoch)
            if not self._transact([(self._partition, NewRecords([encoded(taken_over)]))], []).duplicate:
                return last

    def plan(self, batch: MicroBatch) -> None:
        """Write a batch down before it runs. Raises :class:`Fenced` if another driver has begun."""
        batch.epoch, batch.sequence = self.epoch, self._count
        # Versions of the state mean something to the workers of this driver only.
        tasks = [msgspec.structs.replace(plan, versions=[]) for plan in batch.tasks]
        written = msgspec.structs.replace(batch, tasks=tasks)
        self.commit([(self._partition, NewRecords([encoded(written)]))], [])
        failpoints.point("spark.batch.planned")

    def commit_batch(self, results: Sequence[TaskResult], offsets: Offsets) -> Committed:
        """Commit outputs, state, dead letters and offsets of all tasks, together or not at all."""
        parts = [(Partition(part.log, part.partition), records_of(part)) for done in results for part in done.parts]
        failpoints.point("stream.checkpoint.before")
        committed = self.commit(parts, offsets, [staged for done in results for staged in done.staged])
        failpoints.point("stream.checkpoint.after")
        return committed

    def commit(self, appends: Appends, offsets: Offsets, staged: Sequence[Staged] = ()) -> Committed:
        """Commit one transaction of this driver."""
        try:
            committed = self._transact(appends, offsets, staged)
        except Fenced as fenced:
            # Kafka fences the former holder of a producer's name, even if that tries once more.
            if not self._store.capabilities.dense and self._is_driving():
                raise StoreUnavailable(
                    f"a transaction of {self._computation} was refused: {fenced.message}"
                ) from fenced
            raise
        if committed.duplicate:
            raise Fenced(
                f"another driver has begun to run {self._computation}.", hint="Run it once; this one has stopped."
            )
        return committed

    def _transact(self, appends: Appends, offsets: Offsets, staged: Sequence[Staged] = ()) -> Committed:
        number = (self.epoch << COUNT_BITS) + self._count
        self._count += 1
        return self._store.transact(Commit(merged(appends), offsets, list(staged), self._producer, number))

    def _is_driving(self) -> bool:
        """Whether no other driver has begun since."""
        last = self._last()
        return last is None or last.epoch == self.epoch

    def _last(self) -> MicroBatch | None:
        last = last_payload(self._store, self._partition)
        if last is None:
            return None
        offset, payload = last
        try:
            return decoded_batch(payload)
        except msgspec.MsgspecError as cause:
            raise Undecodable(
                f"offset {offset} of {self._partition} is not a plan of {self._computation}: {cause}.",
                hint=f"Only runners may append to it. Stop all of them, and delete the log {self._partition.log!r}.",
                partition=str(self._partition), offset=offset,
            ) from cause  # fmt: skip


def merged(appends: Appends) -> Appends:
    """Merge the parts of each partition: several tasks may write to one."""
    parts: dict[Partition, list[NewRecords]] = {}
    for partition, records in appends:
        parts.setdefault(partition, []).append(records)
    return [
        (partition, several[0] if len(several) == 1 else concatenated(several))
        for partition, several in sorted(parts.items())
    ]

"""LogCopy: a whole log into another store, with its order, keys, timestamps, headers and the offsets of its groups.

Records travel in batches that carry their place in the source as a sequence, so a copy that was broken off goes on
behind what is there. When it ends, both sides have been counted and compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import msgspec

from penstock.errors import BadInput, Conflict
from penstock.log.appender import Appender
from penstock.log.protocol import LogSettings, Retention
from penstock.log.record import Partition, RecordBatch, key_bytes
from penstock.log.store import LogStore

LOAD = 1000  # records of one append


class LogCopied(msgspec.Struct):
    """What a copy came to: records per partition on both sides, how many this run carried, and the groups' offsets."""

    records: list[int]
    carried: int
    groups: dict[str, list[int | None]]
    checksum: str


class LogCopy:
    """One copy of one log."""

    def __init__(
        self,
        source: LogStore,
        target: LogStore,
        log: str,
        *,
        to: str | None = None,
        groups: bool = True,
        report: Callable[[int, int], None] | None = None,
    ) -> None:
        """``to`` is the name there, ``report`` is told how many records are there, and of how many."""
        if source is target and to in (None, log):
            raise BadInput(f"log {log} cannot be copied onto itself.", hint="Give it another name: to=…")
        self.source = source
        self.target = target
        self.log = source.settings(log)
        self.name = to or log
        self._groups = groups
        self._report = report or (lambda done, total: None)

    def run(self) -> LogCopied:
        """Copy, or go on with a copy that was broken off."""
        there = self._make()
        carried = 0
        total = sum(bounds.end - bounds.start for bounds in self.source.bounds(self.log.name))
        with self.target.appender(self.name, bytes, producer=f"copy-of-{self.log.name}") as out:
            if there:
                self._check_ours(out)
            for partition in self.source.partitions(self.log.name):
                # The sequence of a batch is the offset in the source that follows it.
                start = out.last_sequence(partition.index)
                for batches in _loads(self.source.batches(partition, start)):
                    records = [record for batch in batches for record in batch.records()]
                    out.append_many(
                        [record.payload for record in records], keys=[_key(record.key) for record in records],
                        timestamps=[record.time_us for record in records],
                        headers=[record.headers for record in records], partition=partition.index,
                        sequence=batches[-1].next_offset,
                    )  # fmt: skip
                    carried += len(records)
                    self._report(carried, total)
        return self._checked(carried)

    def _make(self) -> bool:
        """Make the target; whether it was there."""
        there = self.target.exists(self.name)
        if not there:
            self.target.create(
                self.name, self.log.partitions, partitioner=self.log.partitioner, codec=self.log.codec,
                retention=_retention(self.log, self.target),
            )  # fmt: skip
        count = len(self.target.partitions(self.name))
        if count != self.log.partitions:
            raise Conflict(
                f"log {self.name} of {self.target.name} has {count} partitions, not {self.log.partitions}.",
                hint="Copy into a log that is not there yet.",
            )
        return there

    def _check_ours(self, out: Appender[bytes]) -> None:
        """What is there has to be what this copy left."""
        for bounds in self.target.bounds(self.name):
            if bounds.start != bounds.end and out.last_sequence(bounds.partition) is None:
                raise Conflict(
                    f"log {self.name} of {self.target.name} has records of others.",
                    hint="Copy into a log that is not there yet, or is empty.",
                )

    def _checked(self, carried: int) -> LogCopied:
        counts, sums = [], []
        for partition in self.source.partitions(self.log.name):
            mine = _sum(self.source.batches(partition))
            theirs = _sum(self.target.batches(Partition(self.name, partition.index)))
            if mine != theirs:
                raise Conflict(
                    f"{partition} has {mine[0]:,} records, its copy in {self.target.name} {theirs[0]:,}, "
                    "or they are not the same.",
                    hint="Somebody appended meanwhile, or retention removed some: start again, or into a fresh log.",
                )
            counts.append(mine[0])
            sums.append(mine[1])
        kept = self._carry_groups() if self._groups else {}
        return LogCopied(counts, carried, kept, hashlib.blake2b("".join(sums).encode(), digest_size=16).hexdigest())

    def _carry_groups(self) -> dict[str, list[int | None]]:
        carried: dict[str, list[int | None]] = {}
        for group in self.source.groups(self.log.name):
            offsets: dict[Partition, int] = {}
            for index, offset in enumerate(self.source.committed(self.log.name, group)):
                if offset is not None:
                    offsets[Partition(self.name, index)] = self._there(index, offset)
            self.target.reset(group, offsets)
            carried[group] = self.target.committed(self.name, group)
        return carried

    def _there(self, index: int, offset: int) -> int:
        """The offset in the target of what is at an offset in the source."""
        here = self.source.bounds(self.log.name)[index]
        there = self.target.bounds(self.name)[index]
        if offset >= here.end:
            return there.end
        rank = sum(
            sum(1 for one in batch.offsets if one < offset)
            for batch in self.source.batches(Partition(self.log.name, index), None, offset)
        )
        if self.target.capabilities.dense:
            return there.start + rank
        for batch in self.target.batches(Partition(self.name, index)):
            if rank < len(batch):
                return batch.offsets[rank]
            rank -= len(batch)
        return there.end


def _loads(batches: Iterator[RecordBatch]) -> Iterator[list[RecordBatch]]:
    """Batches that are worth a call."""
    load: list[RecordBatch] = []
    for batch in batches:
        load.append(batch)
        if sum(map(len, load)) >= LOAD:
            yield load
            load = []
    if load:
        yield load


def _retention(settings: LogSettings, target: LogStore) -> Retention:
    if target.capabilities.retention:
        return settings.retention
    return Retention(age=settings.retention.age, size=settings.retention.size)


def _key(key: str | None) -> bytes | None:
    return None if key is None else key_bytes(key)


def _sum(batches: Iterator[RecordBatch]) -> tuple[int, str]:
    digest, count = hashlib.blake2b(digest_size=16), 0
    for batch in batches:
        for row in zip(batch.payloads(), batch.times(), batch.keys(), batch.headers(), strict=True):
            payload, time_us, key, headers = row
            packed = msgspec.msgpack.encode((payload, time_us, _key(key), dict(headers)), order="deterministic")
            digest.update(len(packed).to_bytes(4, "big") + packed)
        count += len(batch)
    return count, digest.hexdigest()

"""LogCopy: copies a whole log into another store, with its order, keys, timestamps, headers and groups' offsets.

Every append has the offset in the source as its sequence, so an interrupted copy continues where it stopped. At the
end, both sides are counted and compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import msgspec

from penstock.errors import BadInput, Conflict
from penstock.log.appender import Appender
from penstock.log.record import Partition, RecordBatch, key_bytes
from penstock.log.settings import LogSettings, Retention
from penstock.log.store import LogStore

APPEND_RECORDS = 1000  # records of one append


class LogCopied(msgspec.Struct):
    """The result of a copy: records per partition, how many this run carried over, and the groups' offsets."""

    records: list[int]
    carried: int
    groups: dict[str, list[int | None]]
    checksum: str


class LogCopy:
    """Copies one log."""

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
        """``to`` is the name of the copy; ``report`` is called with the number of copied records and the total."""
        if source is target and to in (None, log):
            raise BadInput(f"log {log} cannot be copied onto itself.", hint="Give it another name: to=…")
        self.source = source
        self.target = target
        self.log = source.settings(log)
        self.name = to or log
        self._groups = groups
        self._report = report or (lambda done, total: None)

    def run(self) -> LogCopied:
        """Copy, or continue a copy that was interrupted."""
        existed = self._create_target()
        copied = 0
        total = sum(bounds.end - bounds.start for bounds in self.source.bounds(self.log.name))
        with self.target.appender(self.name, bytes, producer=f"copy-of-{self.log.name}") as out:
            if existed:
                self._check_own_copy(out)
            for partition in self.source.partitions(self.log.name):
                # The sequence of a batch is the offset in the source that follows it.
                start = out.last_sequence(partition.index)
                for batches in _grouped(self.source.batches(partition, start)):
                    records = [record for batch in batches for record in batch.records()]
                    out.append_many(
                        [record.payload for record in records], keys=[_key(record.key) for record in records],
                        timestamps=[record.time_us for record in records],
                        headers=[record.headers for record in records], partition=partition.index,
                        sequence=batches[-1].next_offset,
                    )  # fmt: skip
                    copied += len(records)
                    self._report(copied, total)
        return self._compare(copied)

    def _create_target(self) -> bool:
        """Create the target log. Returns whether it existed."""
        existed = self.target.exists(self.name)
        if not existed:
            self.target.create(
                self.name, self.log.partitions, partitioner=self.log.partitioner, codec=self.log.codec,
                retention=_retention(self.log, self.target),
            )  # fmt: skip
        count = len(self.target.partitions(self.name))
        if count != self.log.partitions:
            raise Conflict(
                f"log {self.name} of {self.target.name} has {count} partitions, not {self.log.partitions}.",
                hint="Copy into a log that does not exist yet.",
            )
        return existed

    def _check_own_copy(self, out: Appender[bytes]) -> None:
        """Raise ``Conflict`` if the target has records of others."""
        for bounds in self.target.bounds(self.name):
            if bounds.start != bounds.end and out.last_sequence(bounds.partition) is None:
                raise Conflict(
                    f"log {self.name} of {self.target.name} has records that this copy did not write.",
                    hint="Copy into a log that does not exist yet or is empty.",
                )

    def _compare(self, copied: int) -> LogCopied:
        counts, sums = [], []
        for partition in self.source.partitions(self.log.name):
            count, checksum = _checksum(self.source.batches(partition))
            copied_count, copied_checksum = _checksum(self.target.batches(Partition(self.name, partition.index)))
            if (count, checksum) != (copied_count, copied_checksum):
                raise Conflict(
                    f"{partition} has {count:,} records and its copy in {self.target.name} {copied_count:,}, "
                    "or their contents differ.",
                    hint="Records were appended or removed meanwhile: copy again, or into a new log.",
                )
            counts.append(count)
            sums.append(checksum)
        groups = self._copy_groups() if self._groups else {}
        return LogCopied(counts, copied, groups, hashlib.blake2b("".join(sums).encode(), digest_size=16).hexdigest())

    def _copy_groups(self) -> dict[str, list[int | None]]:
        copied: dict[str, list[int | None]] = {}
        for group in self.source.groups(self.log.name):
            offsets: dict[Partition, int] = {}
            for index, offset in enumerate(self.source.committed(self.log.name, group)):
                if offset is not None:
                    offsets[Partition(self.name, index)] = self._offset_in_copy(index, offset)
            self.target.reset(group, offsets)
            copied[group] = self.target.committed(self.name, group)
        return copied

    def _offset_in_copy(self, index: int, offset: int) -> int:
        """The offset in the target of the record at an offset in the source."""
        bounds = self.source.bounds(self.log.name)[index]
        copy_bounds = self.target.bounds(self.name)[index]
        if offset >= bounds.end:
            return copy_bounds.end
        rank = sum(
            sum(1 for earlier in batch.offsets if earlier < offset)
            for batch in self.source.batches(Partition(self.log.name, index), None, offset)
        )
        if self.target.capabilities.dense:
            return copy_bounds.start + rank
        for batch in self.target.batches(Partition(self.name, index)):
            if rank < len(batch):
                return batch.offsets[rank]
            rank -= len(batch)
        return copy_bounds.end


def _grouped(batches: Iterator[RecordBatch]) -> Iterator[list[RecordBatch]]:
    """Groups of batches, each large enough for one append."""
    group: list[RecordBatch] = []
    for batch in batches:
        group.append(batch)
        if sum(map(len, group)) >= APPEND_RECORDS:
            yield group
            group = []
    if group:
        yield group


def _retention(settings: LogSettings, target: LogStore) -> Retention:
    if target.capabilities.retention:
        return settings.retention
    return Retention(age=settings.retention.age, size=settings.retention.size)


def _key(key: str | None) -> bytes | None:
    return None if key is None else key_bytes(key)


def _checksum(batches: Iterator[RecordBatch]) -> tuple[int, str]:
    digest, count = hashlib.blake2b(digest_size=16), 0
    for batch in batches:
        for row in zip(batch.payloads(), batch.times(), batch.keys(), batch.headers(), strict=True):
            payload, time_us, key, headers = row
            packed = msgspec.msgpack.encode((payload, time_us, _key(key), dict(headers)), order="deterministic")
            digest.update(len(packed).to_bytes(4, "big") + packed)
        count += len(batch)
    return count, digest.hexdigest()

"""Committing a transaction: the numbered steps that :mod:`journal` describes."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

import msgspec

from penstock import failpoints
from penstock.ids import new_nonce
from penstock.log.drivers.files.format.control import APPLIED, End
from penstock.log.drivers.files.format.frames import MAX_FRAME, Encoded, encode, split
from penstock.log.drivers.files.format.segments import segment_path
from penstock.log.drivers.files.groups.membership import FileMembership
from penstock.log.drivers.files.transactions.journal import Journal
from penstock.log.drivers.files.transactions.pruning import prune
from penstock.log.drivers.files.transactions.records import JournalRecord, OffsetChange, Output
from penstock.log.drivers.files.transactions.writes import TransactionWrites
from penstock.log.drivers.files.writing.partition import PartitionFile
from penstock.log.drivers.files.writing.producers import ProducerStamp, producer_id
from penstock.log.drivers.files.writing.staging import discard
from penstock.log.drivers.shared.source import EmbeddedSource
from penstock.log.protocol import Commit, Committed, Staged
from penstock.log.record import NewRecords, Partition

COPIERS = 4  # partitions whose staged records are copied at the same time


class CommitPlan(NamedTuple):
    """A transaction, ready to be committed: what it writes, and the offsets of its sources with their epochs."""

    commit: Commit
    frames: dict[Partition, list[Encoded]]
    parts: dict[Partition, PartitionFile]  # every partition that is written, in the order of their locks
    offsets: list[tuple[FileMembership, dict[Partition, tuple[int, int]]]]


def commit_transaction(journal: Journal, commit: Commit) -> Committed:
    """Commit all of it or nothing."""
    plan = _plan(journal, commit)
    if not plan.parts and not plan.offsets and not commit.staged and commit.producer is None:
        return Committed()
    file = journal.made_file()
    while True:
        journal.resolve()
        with ExitStack() as held:
            # 1. Locks: partitions in order, then groups, then the journal.
            for part in plan.parts.values():
                held.enter_context(part.lock)
                part.begin()
            for log in {partition.log for partition in plan.parts}:
                journal.driver.folder(log).check_appendable()
            for membership, _ in sorted(plan.offsets, key=lambda offsets: offsets[0].group.name):
                held.enter_context(membership.state.committing())
            held.enter_context(file.lock)
            end = file.begin()
            if file.slot.words[APPLIED] != end.next:
                continue  # a committer died meanwhile
            for membership, offsets in plan.offsets:
                membership.check(offsets)
            committed = _commit_locked(journal, file, plan)
        prune(journal, file)
        return committed


def _plan(journal: Journal, commit: Commit) -> CommitPlan:
    frames: dict[Partition, list[Encoded]] = {}
    for partition, records in commit.outputs:
        frames.setdefault(partition, []).extend(_encoded(journal, partition.log, records))
    staged_partitions = {Partition(staged.log, index) for staged in commit.staged for index in staged.counts}
    offsets = [
        (_membership(source), source.with_epochs(chosen)) for source, chosen in _embedded_sources(commit.offsets)
    ]
    folder = journal.driver.folder
    written = sorted(frames.keys() | staged_partitions)
    parts = {partition: folder(partition.log).partition(partition.index) for partition in written}
    return CommitPlan(commit, frames, parts, offsets)


def _commit_locked(journal: Journal, file: PartitionFile, plan: CommitPlan) -> Committed:
    commit, driver = plan.commit, journal.driver
    end = file.begin()
    stamp = None
    if commit.producer is not None:
        stamp = ProducerStamp(commit.producer, producer_id(commit.producer), 0, commit.sequence)
        file.producers.catch_up(end)
        last = file.producers.last(stamp.producer)
        if last is not None and commit.sequence is not None and commit.sequence <= last:
            discard(journal.root, [staged.path for staged in commit.staged])
            return Committed(duplicate=True)
    txn = int(new_nonce(), 16) or 1
    now = driver.now()
    writes = TransactionWrites(journal.root, commit.staged, (txn, end.next), now)
    try:
        # 2. Frames beyond the ends.
        _for_each(
            lambda partition: writes.write(plan.parts[partition], plan.frames.get(partition, [])), plan.parts,
            in_parallel=bool(commit.staged),
        )  # fmt: skip
        if driver.durable:
            for part in plan.parts.values():
                part.durability.sync_current()
        # 3. The commit point.
        record = _journal_record(txn, writes, plan.offsets, commit.staged)
        committed_end = _append_record(journal, file, record, stamp)
    except BaseException:
        for partition, before in writes.before.items():
            writes.abandon(plan.parts[partition], before)
        raise
    failpoints.point("log.transaction.committed")
    # 4. Ends and offsets.
    _finish(journal, file, committed_end, plan.parts, writes.after, record)
    return Committed({partition: writes.span(partition) for partition in plan.parts})


def _append_record(journal: Journal, file: PartitionFile, record: JournalRecord, stamp: ProducerStamp | None) -> End:
    end, now = file.slot.end(), journal.driver.now()
    frame = encode(NewRecords([msgspec.msgpack.encode(record)]))
    at, _ = file.reserve([frame], end, now)
    if at.base != end.base:
        file.slot.words[APPLIED] = at.next
    failpoints.point("log.transaction.before")
    written = file.write([frame], at, now, stamp)
    if journal.driver.durable:
        try:
            file.durability.sync_current()
        except BaseException:
            file.abandon(at)
            raise
    return written


def _finish(  # noqa: PLR0917 - the steps need all of it
    journal: Journal,
    file: PartitionFile,
    committed_end: End,
    parts: Mapping[Partition, PartitionFile],
    after: Mapping[Partition, End],
    record: JournalRecord,
) -> None:
    """After the commit point: any process can repeat everything here."""
    driver = journal.driver
    file.publish(committed_end)
    if driver.durable:
        file.durability.make_visible(committed_end)
    for partition, part in parts.items():
        base = part.slot.end().base
        part.publish(after[partition])
        if driver.durable:
            part.durability.make_visible(after[partition])
            os.utime(segment_path(part.folder, after[partition].base))
        if after[partition].base != base:
            part.adopted(driver.now())
        failpoints.point("log.transaction.published")
    journal.apply_offsets(record, committed_end.next)
    failpoints.point("log.transaction.offsets")
    file.slot.words[APPLIED] = committed_end.next
    discard(journal.root, record.staged)


def _journal_record(
    txn: int,
    writes: TransactionWrites,
    all_offsets: Sequence[tuple[FileMembership, Mapping[Partition, tuple[int, int]]]],
    staged: Sequence[Staged],
) -> JournalRecord:
    spans = {partition: writes.span(partition) for partition in writes.before}
    outputs = [Output(partition.log, partition.index, span.start, len(span)) for partition, span in spans.items()]
    changes = []
    for membership, offsets in all_offsets:
        for partition, (offset, epoch) in offsets.items():
            last = membership.file(partition.log).read(partition.index)
            generation = last.generation + 1 if last else 1
            changes.append(
                OffsetChange(membership.group.name, partition.log, partition.index, generation, offset, epoch)
            )
    return JournalRecord(txn, outputs, changes, [records.path for records in staged])


def _encoded(journal: Journal, log: str, records: NewRecords) -> list[Encoded]:
    settings = journal.driver.settings(log)
    return [encode(part, settings.compression) for part in split(records, MAX_FRAME // 2)]


def _for_each(work: Callable[[Partition], None], partitions: Collection[Partition], *, in_parallel: bool) -> None:
    """Call ``work`` for every partition; in threads if much is checked and copied, which releases the interpreter."""
    if not in_parallel or len(partitions) < 2:
        for partition in partitions:
            work(partition)
        return
    with ThreadPoolExecutor(max_workers=min(len(partitions), COPIERS)) as pool:
        for future in [pool.submit(work, partition) for partition in partitions]:
            future.result()


def _embedded_sources(
    offsets: Iterable[tuple[Any, dict[Partition, int]]],
) -> Iterator[tuple[EmbeddedSource, dict[Partition, int]]]:
    for source, chosen in offsets:
        assert isinstance(source, EmbeddedSource)  # noqa: S101 - the transaction takes tailers of its own store only
        if chosen:
            yield source, chosen


def _membership(source: EmbeddedSource) -> FileMembership:
    assert isinstance(source.membership, FileMembership)  # noqa: S101 - of this driver
    return source.membership

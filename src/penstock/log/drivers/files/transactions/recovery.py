"""Transactions after a restart of the machine: undoing those that did not reach the disk whole."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from penstock.log.drivers.files.format.control import APPLIED
from penstock.log.drivers.files.groups.offsets import CommittedOffset, GroupFolder, OffsetsFile
from penstock.log.drivers.files.transactions.journal import LAST_OFFSET, Journal
from penstock.log.drivers.files.transactions.records import JournalRecord, OffsetChange
from penstock.log.drivers.files.writing.recovery import cut_at

logger = logging.getLogger("penstock.log")


def recover_transactions(journal: Journal) -> None:
    """After all partitions are recovered: go back to before the transactions that did not reach the disk whole.

    In the durable profile there are none. In the fast profile, a transaction counts only if its journal record and all
    its frames are there. Otherwise it is cut, with everything after it in those partitions, and its offsets go back.
    """
    file = journal.file()
    if file is None:
        return
    with file.lock:
        end = file.begin()
    records = list(journal.read(file, 0, end.next))
    whole = _whole_prefix(journal, records)
    undone = records[len(whole) :]
    if undone:
        logger.warning("%d transactions did not reach the disk before the power cut and are undone", len(undone))
        with file.lock:
            cut_at(file, undone[0][0])
    for group in (journal.root / "groups").glob("*"):
        _reset_offsets(journal, GroupFolder(journal.root, group.name), [record for _, record in whole])
    with file.lock:
        file.slot.words[APPLIED] = file.slot.end().next


def _whole_prefix(
    journal: Journal, records: Sequence[tuple[int, JournalRecord]]
) -> Sequence[tuple[int, JournalRecord]]:
    """The records up to the first transaction that is not whole; that one and all later ones are cut."""
    for rank, (_, record) in enumerate(records):
        # Both what it wrote and what it read must be there: a lost input would be appended and read once more.
        needs = [(output.log, output.partition, output.first + output.count) for output in record.outputs]
        needs += [(change.log, change.partition, change.offset) for change in record.offsets]
        if any(_end(journal, log, index) < end for log, index, end in needs):
            _cut_outputs(journal, (later for _, later in records[rank:]))
            return records[:rank]
    return records


def _end(journal: Journal, log: str, index: int) -> int:
    if journal.driver.find_settings(log) is None:
        return LAST_OFFSET  # the log was deleted, so there is nothing to compare with
    return journal.driver.folder(log).partition(index).slot.end().next


def _cut_outputs(journal: Journal, records: Iterable[JournalRecord]) -> None:
    for record in records:
        for output in record.outputs:
            if journal.driver.find_settings(output.log) is not None:
                part = journal.driver.folder(output.log).partition(output.partition)
                with part.lock:
                    if part.slot.end().next > output.first:
                        cut_at(part, output.first)


def _reset_offsets(journal: Journal, group: GroupFolder, records: Sequence[JournalRecord]) -> None:
    """Of the offsets in the slots and in the journal, take the newest that was really committed."""
    last: dict[tuple[str, int], OffsetChange] = {}
    committed = set()
    for record in records:
        for change in record.offsets:
            if change.group == group.name:
                last[change.log, change.partition] = change
                committed.add((change.log, change.partition, change.generation))
    if not group.exists:
        return
    for log in sorted({path.name for path in group.offsets.iterdir()} | {log for log, _ in last}):
        settings = journal.driver.find_settings(log)
        if settings is None:
            continue
        file = OffsetsFile(group, log, settings.partitions)
        try:
            for index in range(settings.partitions):
                slots = file.slots(index)
                valid = [slot for slot in slots if not slot.txn or (log, index, slot.generation) in committed]
                final_change = last.get((log, index))
                if final_change is not None:
                    valid.append(CommittedOffset(final_change.generation, final_change.offset, final_change.epoch, 0))
                end = journal.driver.folder(log).partition(index).slot.end().next
                _reset_offset(file, index, slots, max(valid, default=None), end)
            file.sync()
        finally:
            file.close()


def _reset_offset(
    file: OffsetsFile, index: int, slots: Sequence[CommittedOffset], valid: CommittedOffset | None, end: int
) -> None:
    if valid is None:
        if slots:
            file.clear(index)
        return
    offset = min(valid.offset, end)  # in the fast profile, the log may have lost more than the group
    newest = max(slots, default=None)
    if newest is None or newest.generation != valid.generation or newest.offset != offset:
        generation = max(valid.generation, newest.generation if newest else 0) + 1
        file.write(index, CommittedOffset(generation, offset, valid.epoch, 0))

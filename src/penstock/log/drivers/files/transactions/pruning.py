"""Pruning the journal: dropping segments whose transactions are done and on disk."""

from __future__ import annotations

import msgspec

from penstock import failpoints
from penstock.log.drivers.files.format.control import APPLIED, START
from penstock.log.drivers.files.format.frames import encode
from penstock.log.drivers.files.format.segments import bases
from penstock.log.drivers.files.transactions.journal import Journal
from penstock.log.drivers.files.transactions.records import JournalRecord, OffsetChange
from penstock.log.drivers.files.writing.partition import PartitionFile
from penstock.log.record import NewRecords

SEGMENTS_TO_KEEP = 2


def prune(journal: Journal, file: PartitionFile) -> None:
    """Drop ended segments of the journal once their transactions are on disk everywhere.

    The last offsets of the groups in the journal are appended once more first, as they decide after a power cut. No
    lock is held while partitions are synced, as committers take the journal's lock last.
    """
    if file.slot.end().base == file.slot.words[START]:
        return
    all_bases = bases(file.folder)
    if len(all_bases) <= SEGMENTS_TO_KEEP or journal.driver.has_writers():
        return  # a writer may have died, and then only the journal can judge its frames: prune another time
    first_kept = all_bases[-SEGMENTS_TO_KEEP]
    _sync_touched(journal, file, first_kept)
    with file.lock:
        end = file.begin()
        if file.slot.words[APPLIED] != end.next:
            return
        _append_last_offsets(journal, file)
        file.durability.sync_locked()
        failpoints.point("log.journal.before")
        file.slot.words[APPLIED] = file.slot.end().next
        file.slot.words[START] = first_kept
        for base in all_bases:
            if base < first_kept:
                for path in file.folder.glob(f"{base:020d}.*"):
                    path.unlink(missing_ok=True)
        failpoints.point("log.journal.after")


def _sync_touched(journal: Journal, file: PartitionFile, stop: int) -> None:
    """Bring everything to disk that the transactions before an offset have written."""
    records = [record for _, record in journal.read(file, 0, stop)]
    touched = {(output.log, output.partition) for record in records for output in record.outputs}
    touched |= {(change.log, change.partition) for record in records for change in record.offsets}
    for log, index in sorted(touched):
        if journal.driver.find_settings(log) is not None:
            journal.driver.folder(log).partition(index).durability.sync()
    journal.driver.sync_offsets()


def _append_last_offsets(journal: Journal, file: PartitionFile) -> None:
    """Append a record with the last offset of every group and partition in the journal."""
    end, now = file.slot.end(), journal.driver.now()
    newest: dict[tuple[str, str, int], OffsetChange] = {}
    for _, record in journal.read(file, 0, end.next):
        for change in record.offsets:
            newest[change.group, change.log, change.partition] = change
    frame = encode(NewRecords([msgspec.msgpack.encode(JournalRecord(0, [], list(newest.values())))]))
    at, _ = file.reserve([frame], end, now)
    file.publish(file.write([frame], at, now))

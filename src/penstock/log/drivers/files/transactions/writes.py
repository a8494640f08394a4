"""TransactionWrites: what a transaction writes beyond the ends of its partitions before its commit point."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from penstock import failpoints
from penstock.clock import Micros
from penstock.log.drivers.files.format.control import End
from penstock.log.drivers.files.format.frames import Encoded
from penstock.log.drivers.files.writing.adoption import StagedSegment, adopt, can_adopt, files_for, undo_adoption
from penstock.log.drivers.files.writing.partition import PartitionFile
from penstock.log.drivers.files.writing.staging import staged_frames
from penstock.log.protocol import Staged
from penstock.log.record import Partition

logger = logging.getLogger("penstock.log")


class TransactionWrites:
    """One transaction's writes, with the end of each partition before and after them."""

    def __init__(self, root: Path, staged: Sequence[Staged], txn: tuple[int, int], now: Micros) -> None:
        """``txn`` is the transaction's id, and where to look for it in the journal."""
        self._root = root
        self._staged = staged
        self._txn = txn
        self._now = now
        self._adopting: set[Partition] = set()
        self.before: dict[Partition, End] = {}
        self.after: dict[Partition, End] = {}

    def write(self, part: PartitionFile, frames: Sequence[Encoded]) -> None:
        """Under the partition's lock: write the frames, then the records that were staged for the partition."""
        segments = files_for(self._root, self._staged, part.partition)
        is_adopting = can_adopt(part, segments)
        size = sum(frame.size for frame in frames)
        size += 0 if is_adopting else sum(segment.file.size for segment in segments)
        at = part.slot.end()
        if size:
            at, _ = part.reserve_bytes(size, at, self._now)
        self.before[part.partition] = at
        if frames:
            at = part.write(frames, at, self._now, txn=self._txn)
        if is_adopting:
            self._adopting.add(part.partition)
            self.after[part.partition] = adopt(part, segments, at, self._now, self._txn)
        else:
            self.after[part.partition] = self._copy(part, segments, at)
        failpoints.point("log.transaction.written")

    def _copy(self, part: PartitionFile, segments: Sequence[StagedSegment], at: End) -> End:
        for segment in segments:
            for frames in staged_frames(segment.path, segment.file, part.partition):
                at = part.write(frames, at, self._now, txn=self._txn)
        return at

    def abandon(self, part: PartitionFile, before: End) -> None:
        """Under the partition's lock: remove everything that was written."""
        try:
            if part.partition in self._adopting:
                undo_adoption(part, before)
        except OSError as error:
            logger.warning("%s keeps files beyond its end until the next append: %s", part.partition, error)
            return  # it is still marked as being written, so the next append recovers it
        part.abandon(before)

    def span(self, partition: Partition) -> range:
        """The offsets that a partition gets."""
        return range(self.before[partition].next, self.after[partition].next)

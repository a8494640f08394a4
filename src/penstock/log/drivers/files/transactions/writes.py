"""What a transaction writes: beyond the ends of its partitions, where nobody sees it before the journal has it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from penstock import failpoints
from penstock.clock import Micros
from penstock.log.drivers.files.format.control import End
from penstock.log.drivers.files.format.frame import Encoded
from penstock.log.drivers.files.writing.adoption import Aside, adopt, files_for, give_back, is_adopted
from penstock.log.drivers.files.writing.partition import PartitionFile
from penstock.log.drivers.files.writing.staging import staged_frames
from penstock.log.protocol import Staged
from penstock.log.record import Partition

logger = logging.getLogger("penstock.log")


class Writes:
    """One transaction's writes, with where each partition ended before and ends behind them."""

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
        """Under the partition's lock: the frames, then all that was written aside for it."""
        asides = files_for(self._root, self._staged, part.place)
        adopting = is_adopted(part, asides)
        size = sum(frame.size for frame in frames)
        size += 0 if adopting else sum(aside.file.size for aside in asides)
        at = part.slot.end()
        if size:
            at, _ = part.place_of_size(size, at, self._now)
        self.before[part.place] = at
        if frames:
            at = part.write(frames, at, self._now, txn=self._txn)
        if adopting:
            self._adopting.add(part.place)
            self.after[part.place] = adopt(part, asides, at, self._now, self._txn)
        else:
            self.after[part.place] = self._copied(part, asides, at)
        failpoints.point("log.transaction.written")

    def _copied(self, part: PartitionFile, asides: Sequence[Aside], at: End) -> End:
        for aside in asides:
            for frames in staged_frames(aside.path, aside.file, part.place):
                at = part.write(frames, at, self._now, txn=self._txn)
        return at

    def abandon(self, part: PartitionFile, before: End) -> None:
        """Under the partition's lock: take everything back."""
        try:
            if part.place in self._adopting:
                give_back(part, before)
        except OSError as error:
            logger.warning("%s keeps files beyond its end until the next append: %s", part.place, error)
            return  # still marked as being written, so the next one recovers
        part.abandon(before)

    def span(self, place: Partition) -> range:
        """The offsets that a partition gets."""
        return range(self.before[place].next, self.after[place].next)

"""FileSink: appends to the partitions of a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.log.drivers.files.folder import AppenderLock, LogFolder
from penstock.log.drivers.files.format.frames import MAX_FRAME, encode, split
from penstock.log.drivers.files.writing.producers import ProducerEpoch
from penstock.log.protocol import Sink
from penstock.log.record import NewRecords
from penstock.process import this_process

if TYPE_CHECKING:
    from penstock.log.drivers.files.driver import FileDriver


class FileSink(Sink):
    """Appends to the partitions of a log."""

    def __init__(self, driver: FileDriver, folder: LogFolder, exclusive: bool, producer: str | None) -> None:
        """Mark the log as having an open appender."""
        self._driver = driver
        self._folder = folder
        self._lock = AppenderLock(folder.folder, folder.settings.name, exclusive=exclusive)
        self._exclusive = exclusive
        if exclusive:
            folder.exclusive = True
            folder.wait_for_writers()  # a transaction that began before ends first
        self._compression = folder.settings.compression
        self._process = this_process()
        self._producer = None
        if producer is not None:
            self._producer = ProducerEpoch(driver.root / "producers", producer)

    def append(self, parts: Sequence[tuple[int, NewRecords]], sequence: int | None = None) -> list[Sequence[int]]:
        """Append records; those of one partition are one write."""
        driver = self._driver
        if driver.closed or self._process is not this_process():
            driver.check_open()
        spans: list[Sequence[int]] = []
        for index, records in parts:
            frames = [encode(piece, self._compression) for piece in split(records, MAX_FRAME // 2)]
            part = self._folder.partition(index)
            producer = self._producer
            if producer is None:
                spans.append(part.append(frames, driver.now()))
            else:
                spans.append(part.append(frames, driver.now(), producer.stamp(sequence), producer.check))
        return spans

    def last_sequence(self, partition: int) -> int | None:
        """The highest sequence of this producer in a partition."""
        if self._producer is None:
            return super().last_sequence(partition)
        return self._folder.partition(partition).last_sequence(self._producer.id)

    def close(self) -> None:
        """Unlock the log."""
        if self._exclusive:
            self._exclusive = self._folder.exclusive = False
        self._lock.close()
        if self._producer is not None:
            self._producer.close()

"""BackgroundSync: the fast profile brings appended records to disk a moment later."""

from __future__ import annotations

import logging
import threading

from penstock.log.drivers.files.writing.partition import PartitionFile

logger = logging.getLogger("penstock.log")

SYNC_BYTES = 8 * 1024 * 1024  # with more unsynced bytes, a partition does not wait for the interval


class BackgroundSync:
    """Collects the partitions that were written and syncs them at an interval."""

    def __init__(self, seconds: float) -> None:
        """Start no thread until something is written."""
        self._seconds = seconds
        self._dirty: dict[int, PartitionFile] = {}
        self._mutex = threading.Lock()
        self._bell = threading.Event()
        self._thread: threading.Thread | None = None
        self._ended = False

    def add(self, part: PartitionFile) -> None:
        """Sync this partition with the next round."""
        if id(part) not in self._dirty:
            with self._mutex:
                self._dirty[id(part)] = part
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="penstock-sync", daemon=True)
                    self._thread.start()
        if part.unsynced > SYNC_BYTES:
            self._bell.set()

    def sync_all(self) -> None:
        """Sync all collected partitions; the journal last, so that what it refers to is on disk."""
        with self._mutex:
            parts, self._dirty = list(self._dirty.values()), {}
        failed: Exception | None = None
        for part in sorted(parts, key=lambda part: part.is_journal):
            try:
                part.durability.sync()
            except Exception as error:  # the other partitions must not wait for the next round
                if not part.is_gone:
                    failed = failed or error
                    with self._mutex:
                        self._dirty.setdefault(id(part), part)
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Sync once more and stop."""
        self._ended = True
        self._bell.set()
        if self._thread is not None:
            self._thread.join()
        self.sync_all()

    def _run(self) -> None:
        while not self._ended:
            self._bell.wait(self._seconds)
            self._bell.clear()
            try:
                self.sync_all()
            except Exception:
                logger.exception("the background sync could not write records to disk; it tries again")

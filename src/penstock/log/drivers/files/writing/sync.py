"""The fast profile's background: what was appended reaches the disk a little later."""

from __future__ import annotations

import logging
import threading

from penstock.log.drivers.files.writing.partition import PartitionFile

logger = logging.getLogger("penstock.log")

BYTES = 8 * 1024 * 1024  # more than this of a partition does not wait for the interval


class Syncing:
    """Collects partitions that were written and brings them to disk, every so often."""

    def __init__(self, seconds: float) -> None:
        """No thread before something is written."""
        self._seconds = seconds
        self._dirty: dict[int, PartitionFile] = {}
        self._mutex = threading.Lock()
        self._bell = threading.Event()
        self._thread: threading.Thread | None = None
        self._ended = False

    def add(self, part: PartitionFile) -> None:
        """A partition was written."""
        number = id(part)
        if number not in self._dirty:
            with self._mutex:
                self._dirty[number] = part
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="penstock-sync", daemon=True)
                    self._thread.start()
        if part.unsynced > BYTES:
            self._bell.set()

    def now(self) -> None:
        """Bring all of it to disk; the journal last, so that what it tells of is there."""
        with self._mutex:
            parts, self._dirty = list(self._dirty.values()), {}
        failed: Exception | None = None
        for part in sorted(parts, key=lambda one: one.folder.parent.name == "txn" and one.place.log == "txn"):
            try:
                part.sync()
            except Exception as error:  # the others must not wait for the next time
                if not part.is_gone:
                    failed = failed or error
                    with self._mutex:
                        self._dirty.setdefault(id(part), part)
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Once more, then end."""
        self._ended = True
        self._bell.set()
        if self._thread is not None:
            self._thread.join()
        self.now()

    def _run(self) -> None:
        while not self._ended:
            self._bell.wait(self._seconds)
            self._bell.clear()
            try:
                self.now()
            except Exception:
                logger.exception("records could not be brought to disk in the background")

"""Presence: a worker tells the store that it lives, what it serves and how busy it is.

Every worker has a document of its own, written when it starts and every few seconds after, together with its figures in
one call, and removed when it stops. One that was killed leaves its document: it is shown as lost for a day.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from penstock.clock import SECOND, Micros
from penstock.codec import prepared
from penstock.errors import PenstockError
from penstock.queue.protocol import DocumentWrite
from penstock.queue.results import PROGRESS
from penstock.queue.worker import figures
from penstock.queue.worker.figures import Figures
from penstock.version import VERSION

if TYPE_CHECKING:
    from penstock.queue.queues import QueueStore

logger = logging.getLogger("penstock.queue.worker")

PREFIX = "penstock.worker."
BEAT_SECONDS = 8.0
LOST_AFTER: Micros = 30 * SECOND  # three beats and a little: one that is late is not lost
KEPT: Micros = 24 * 60 * 60 * SECOND
TIDY_BEATS = 100  # between two looks for what is too old

WorkerState = Literal["alive", "stopping", "lost"]


class Serving(msgspec.Struct, frozen=True):
    """One handler of a worker: its queue or family, how many entries it runs and how many it may."""

    queue: str
    is_family: bool
    busy: int
    slots: int


@prepared
class WorkerRecord(msgspec.Struct, frozen=True):
    """What a worker tells about itself."""

    owner: str  # as in the leases of its entries
    node: str
    pid: int
    version: str
    started_us: Micros
    is_stopping: bool
    serving: tuple[Serving, ...]


class KnownWorker(msgspec.Struct, frozen=True):
    """A worker as others see it: what it said last, when that was, and what follows from that."""

    record: WorkerRecord
    seen_us: Micros
    state: WorkerState

    @property
    def busy(self) -> int:
        """How many entries it runs."""
        return sum(handler.busy for handler in self.record.serving)

    @property
    def slots(self) -> int:
        """How many entries it may run at once."""
        return sum(handler.slots for handler in self.record.serving)


class Presence:
    """Tells about one worker, from a thread of its own."""

    def __init__(self, store: QueueStore, owner: str, serving: Callable[[], tuple[Serving, ...]]) -> None:
        """``serving`` says what the worker does at the moment."""
        self._store = store
        self._owner = owner
        self._serving = serving
        name = _document_part(owner)
        self._document = PREFIX + name
        self.figures = Figures(name)
        self._started_us: Micros = 0
        self._is_stopping = False
        self._is_over = False
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Tell now, and again every few seconds."""
        self._is_stopping = self._is_over = False
        self._started_us = 0
        self._wake.clear()
        self._thread = threading.Thread(target=self._run, name="penstock-presence", daemon=True)
        self._thread.start()

    def stopping(self) -> None:
        """Tell that the worker takes no more work."""
        self._is_stopping = True
        self._wake.set()

    def stop(self) -> None:
        """Tell the last figures, and that the worker is gone."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._is_over = True
        self._wake.set()
        thread.join(timeout=10)
        self._write([DocumentWrite(self._document, None)])

    def write_figures(self) -> None:
        """Tell the figures of a worker that does not run in the background."""
        self._write([])

    def _run(self) -> None:
        beats = 0
        while not self._is_over:
            self._wake.clear()
            beats = beats + 1 if self._beat() else 0
            if beats % TIDY_BEATS == 1:
                self._tidy()
            self._wake.wait(BEAT_SECONDS)

    def _beat(self) -> bool:
        try:
            if not self._started_us:
                self._started_us = self._store.now()
        except PenstockError:
            return False
        record = WorkerRecord(
            self._owner, self._store.node, os.getpid(), VERSION, self._started_us, self._is_stopping,
            self._serving(),
        )  # fmt: skip
        return self._write([DocumentWrite(self._document, msgspec.json.encode(record))])

    def _write(self, notes: list[DocumentWrite]) -> bool:
        """Write notes and figures in one call. Returns whether it succeeded. What failed goes with the next call."""
        more, blocks = self.figures.notes()
        if not notes and not more:
            return True
        try:
            self._store.driver.write([*notes, *more])
        except Exception as error:  # telling must never harm the work
            self.figures.not_written(blocks)
            if not self._store.closed:
                logger.debug("worker %s could not tell that it lives: %s", self._owner, error)
            return False
        self.figures.written(blocks)
        return True

    def _tidy(self) -> None:
        try:
            forget_old(self._store)
        except PenstockError as error:
            logger.debug("old traces of workers could not be removed: %s", error)


def known_workers(store: QueueStore) -> list[KnownWorker]:
    """The workers that live and those that were lost within a day, by node and owner."""
    now = store.now()
    known = []
    for document in store.driver.documents(PREFIX, since_us=now - KEPT):
        record = msgspec.json.decode(document.value, type=WorkerRecord)
        state: WorkerState = "stopping" if record.is_stopping else "alive"
        if now - document.changed_us > LOST_AFTER:
            state = "lost"
        known.append(KnownWorker(record, document.changed_us, state))
    return sorted(known, key=lambda worker: (worker.record.node, worker.record.owner))


def forget_old(store: QueueStore) -> int:
    """Remove workers that were lost a day ago, and old figures. Returns how many documents were removed."""
    now = store.now()
    old = [document.name for document in store.driver.documents(PREFIX) if document.changed_us < now - KEPT]
    for prefix, age in ((figures.PREFIX, figures.KEPT), (figures.HOURS_PREFIX, figures.HOURS_KEPT), (PROGRESS, KEPT)):
        old += [document.name for document in store.driver.documents(prefix) if document.changed_us < now - age]
    for start in range(0, len(old), 100):
        store.driver.write([DocumentWrite(name, None) for name in old[start : start + 100]])
    return len(old)


def is_trace(document: str) -> bool:
    """Whether a document describes workers of this store. It would be wrong in a copy of the store."""
    return document.startswith((PREFIX, figures.PREFIX, figures.HOURS_PREFIX, PROGRESS))


def _document_part(owner: str) -> str:
    """The owner as part of a name; its node is an allowed name already."""
    return owner.replace("/", ".").replace("..", "._")[:80]

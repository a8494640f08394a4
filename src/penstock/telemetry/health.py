"""Health of a worker: is it live, is it ready.

*Live*: its loop runs. Waiting for the store counts as running, so that a worker is not restarted because its store is
away. *Ready*: the store has answered within ten seconds and the worker takes work.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from penstock.queue.worker import Worker
from penstock.telemetry.snapshot import Snapshot

logger = logging.getLogger("penstock.telemetry")

LIVE_SECONDS = 15.0  # the loop runs several times a second
ANSWER_SECONDS = 300.0  # no store call takes longer, so the loop waits for something else
READY_SECONDS = 10.0
ASK_EVERY = 3.0
WRITE_EVERY = 1.0


class HealthState(msgspec.Struct, frozen=True):
    """The answer to a probe; ``why`` says in words what is wrong."""

    live: bool
    ready: bool
    why: str = ""


class HealthSource(Protocol):
    """A process, or several, that can be asked."""

    def state(self) -> HealthState:
        """Its health now."""

    def snapshot(self) -> Snapshot:
        """Its metrics now."""


class WorkerHealth:
    """The health of one worker. A thread asks the store now and then."""

    def __init__(self, worker: Worker) -> None:
        """Nothing is known of the store yet."""
        self._worker = worker
        self._started = time.monotonic()
        self._answered = 0.0
        self._over = threading.Event()
        threading.Thread(target=self._ask, name="penstock-health", daemon=True).start()

    def close(self) -> None:
        """Stop asking."""
        self._over.set()

    def state(self) -> HealthState:
        """Live and ready, or why not."""
        pulse, now = self._worker.pulse(), time.monotonic()
        silent = now - (pulse.passed or self._started)
        live = pulse.is_stopping or silent < (ANSWER_SECONDS if pulse.asks_store else LIVE_SECONDS)
        if not live:
            return HealthState(False, False, f"the worker's loop has not gone round for {silent:.0f}s")
        if pulse.is_stopping:
            return HealthState(True, False, "the worker is stopping")
        if now - max(self._answered, pulse.answered) > READY_SECONDS:
            return HealthState(True, False, f"the store has not answered for {READY_SECONDS:.0f}s")
        return HealthState(True, True)

    def _ask(self) -> None:
        while not self._over.is_set():
            try:
                self._worker.store.locks("none")
                self._answered = time.monotonic()
            except Exception as error:  # any error means that there was no answer
                logger.debug("the store did not answer a look at its health: %s", error)
            self._over.wait(ASK_EVERY)


class HealthFile:
    """Writes health into a file every second. A probe reads the file and its age."""

    def __init__(self, path: Path, state: Callable[[], HealthState]) -> None:
        """Begin now; a file that cannot be written raises."""
        self._path = path
        self._state = state
        self._written: HealthState | None = None
        self._over = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._run, name="penstock-health-file", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Remove the file: an ended worker is neither live nor ready."""
        self._over.set()
        self._thread.join(timeout=5)
        self._path.unlink(missing_ok=True)

    def _run(self) -> None:
        while not self._over.wait(WRITE_EVERY):
            try:
                self._write()
            except OSError as error:
                logger.warning("the health file cannot be written: %s", error)

    def _write(self) -> None:
        state = self._state()
        if state == self._written:
            try:
                os.utime(self._path)
                return
            except FileNotFoundError:
                pass  # it was removed by hand
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        beside.write_bytes(msgspec.json.encode(state))
        os.replace(beside, self._path)
        self._written = state

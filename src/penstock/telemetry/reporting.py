"""Reporting: worker processes report their metrics and health to their parent, over one socket pair each.

The parent asks with one byte, and the child answers with a report. The child also sends one before it ends. When it is
gone, the counts of its last report stay in the sums.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable

import msgspec

from penstock.codec import prepared
from penstock.telemetry.health import HealthState
from penstock.telemetry.snapshot import Snapshot

logger = logging.getLogger("penstock.telemetry")

ASK_EVERY = 2.0  # seconds; what a killed child did since is not in the sums
ANSWER_SECONDS = 1.0  # that a scrape waits for a child
START_SECONDS = 60.0  # that a child may take until its first report
SILENT_SECONDS = 15.0
_LENGTH = struct.Struct(">I")


@prepared
class _Report(msgspec.Struct, array_like=True):
    metrics: msgspec.Raw
    state: HealthState


class Reporter:
    """In a child: answers the parent."""

    def __init__(self, fd: int, snapshot: Callable[[], Snapshot], state: Callable[[], HealthState]) -> None:
        """``fd`` is this end of the socket pair."""
        os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=fd)
        self._snapshot = snapshot
        self._state = state
        self._lock = threading.Lock()
        threading.Thread(target=self._answer, name="penstock-reporter", daemon=True).start()

    def send(self) -> None:
        """Send a report now, unless the parent is gone."""
        state = self._state()  # first, so that the metrics of a process that says it is ready are those of a ready one
        report = msgspec.json.encode(_Report(msgspec.Raw(self._snapshot().encode()), state))
        with self._lock, contextlib.suppress(OSError):
            self._socket.sendall(_LENGTH.pack(len(report)) + report)

    def close(self) -> None:
        """Send the last report."""
        self.send()

    def _answer(self) -> None:
        with self._socket, contextlib.suppress(OSError):
            while self._socket.recv(1):
                self.send()


class ChildReports:
    """In the parent: the reports of one child."""

    def __init__(self, changed: threading.Condition) -> None:
        """``theirs`` is the end for the child; close it here once the child has it."""
        self._ours, self.theirs = socket.socketpair()
        self._changed = changed
        self.asked = self.heard = self.started = time.monotonic()
        self.snapshot = Snapshot()
        self.state: HealthState | None = None
        self._reader = threading.Thread(target=self._read, name="penstock-child-reports", daemon=True)
        self._reader.start()

    def ask(self) -> None:
        """Have the child report."""
        self.asked = time.monotonic()
        with contextlib.suppress(OSError):
            self._ours.send(b"?", socket.MSG_DONTWAIT)

    def health(self) -> HealthState:
        """The child's health, or that it does not answer."""
        now = time.monotonic()
        if self.state is None:
            live = now - self.started < START_SECONDS
            return HealthState(live, False, "a process is starting" if live else "a process does not start")
        if now - self.heard > SILENT_SECONDS:
            return HealthState(False, False, f"a process has not answered for {now - self.heard:.0f}s")
        return self.state

    def end(self) -> Snapshot:
        """Read the last report of a child that is gone. Returns what stays in the sums."""
        self._reader.join(timeout=ANSWER_SECONDS)  # until everything it sent is read
        self._ours.close()
        return self.snapshot.totals()

    def _read(self) -> None:
        with contextlib.suppress(OSError, EOFError, msgspec.DecodeError):
            while True:
                (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
                report = msgspec.json.decode(self._exactly(length), type=_Report)
                snapshot = Snapshot.decode(bytes(report.metrics))
                with self._changed:
                    self.snapshot, self.state, self.heard = snapshot, report.state, time.monotonic()
                    self._changed.notify_all()

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._ours.recv(min(count - len(parts), 1 << 16))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)


class Reports:
    """In the parent: the reports of all children, also of those that are gone."""

    def __init__(self, processes: int) -> None:
        """``processes`` is how many there should be."""
        self._processes = processes
        self._changed = threading.Condition()
        self._children: dict[int, ChildReports] = {}
        self._past = Snapshot()
        self._passed = time.monotonic()
        self._asked = 0.0
        self.is_stopping = False

    def open(self, number: int) -> socket.socket:
        """Prepare for a new child. Returns its end of the socket pair."""
        reports = ChildReports(self._changed)
        with self._changed:
            self._children[number] = reports
        return reports.theirs

    def ended(self, number: int) -> None:
        """Note that a child is gone."""
        with self._changed:
            reports = self._children.pop(number, None)
        if reports is not None:
            totals = reports.end()
            with self._changed:
                self._past.join(totals)

    def pass_(self) -> None:
        """Called by the parent's loop: ask now and then, so that little is lost with a killed child."""
        self._passed = now = time.monotonic()
        if now - self._asked > ASK_EVERY:
            self._asked = now
            for reports in self._live():
                reports.ask()

    def snapshot(self) -> Snapshot:
        """The sums over all children; a child that does not answer in time counts with its last report."""
        asked, children = time.monotonic(), self._live()
        for reports in children:
            reports.ask()
        with self._changed:
            self._changed.wait_for(
                lambda: all(reports.heard > asked or reports.state is None for reports in children), ANSWER_SECONDS
            )
            total = Snapshot()
            total.join(self._past)
            for reports in self._children.values():
                total.join(reports.snapshot)
            total.add("penstock_processes", (), len(self._children))
            return total

    def state(self) -> HealthState:
        """Live if the parent and all its children are; ready if all are there and ready."""
        silent = time.monotonic() - self._passed
        if silent > SILENT_SECONDS:
            return HealthState(False, False, f"the parent process has not gone round for {silent:.0f}s")
        states = [reports.health() for reports in self._live()]
        whys = [state.why for state in states if state.why]
        live = all(state.live for state in states)
        if self.is_stopping:
            return HealthState(live, False, "the worker is stopping")
        if len(states) < self._processes:
            return HealthState(live, False, f"{len(states)} of {self._processes} processes run")
        return HealthState(live, all(state.ready for state in states), whys[0] if whys else "")

    def _live(self) -> list[ChildReports]:
        with self._changed:
            return list(self._children.values())

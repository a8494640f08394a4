"""The parent of several worker processes: starts them, passes signals on, restarts those that die.

Exit codes: 0 all stopped in order; 1 a child had to be cut off; 2 the application cannot be loaded.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.telemetry.reporting import Reports

logger = logging.getLogger("penstock.cli.parent")

CANNOT_START = 2
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
LIVED_WELL = 30.0  # seconds after which a death starts the pauses again
LOOK_EVERY = 0.1
# On top of the grace time: to release what is left and to end the interpreter.
MARGIN = 10.0


@dataclass
class _Child:
    number: int
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    pause: float = FIRST_PAUSE
    start_at: float = 0.0
    killed: bool = False


class Children:
    """Several processes of one command."""

    def __init__(
        self, command: list[str], processes: int, *, grace_seconds: float, reports: Reports | None = None
    ) -> None:
        """``command`` runs one worker; it is given ``--lifeline``, a pipe that closes with this process.

        If ``reports`` are wanted, it is also given ``--report-to``, its end of a socket pair.
        """
        self._reports = reports
        self._command = command
        self._children = [_Child(number) for number in range(1, processes + 1)]
        self._grace = grace_seconds
        self._signals: list[int] = []
        self._stop_by: float | None = None
        self._code = 0

    def run(self) -> int:
        """Keep them running until SIGTERM or SIGINT; the exit code."""
        self._lifeline, ours = os.pipe()
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while not self._over():
                self._pass_signals_on()
                if self._reports is not None:
                    self._reports.pass_()
                for child in self._children:
                    self._look_after(child)
                time.sleep(LOOK_EVERY)
        finally:
            for number, old in before.items():
                signal.signal(number, old)
            os.close(ours)
            os.close(self._lifeline)
        logger.info("all %d processes have ended", len(self._children))
        return self._code

    def _on_signal(self, number: int, _frame: object) -> None:
        self._signals.append(number)

    def _over(self) -> bool:
        return self._stop_by is not None and all(child.process is None for child in self._children)

    def _pass_signals_on(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if self._stop_by is None:
                logger.info(
                    "%s: stopping, running handlers get %gs; again to end at once",
                    signal.Signals(number).name, self._grace,
                )  # fmt: skip
            self._stop(number)

    def _stop(self, number: int) -> None:
        if self._stop_by is None:
            self._stop_by = time.monotonic() + self._grace + MARGIN
        if self._reports is not None:
            self._reports.is_stopping = True
        for child in self._children:
            if child.process is not None:
                child.process.send_signal(number)

    def _look_after(self, child: _Child) -> None:
        if child.process is None:
            if self._stop_by is None and time.monotonic() >= child.start_at:
                self._start(child)
            return
        code = child.process.poll()
        if code is not None:
            self._ended(child, child.process.pid, code)
        elif self._stop_by is not None and time.monotonic() > self._stop_by and not child.killed:
            logger.error("process %d (%d) did not end in time; killing it", child.number, child.process.pid)
            child.killed = True
            child.process.kill()

    def _start(self, child: _Child) -> None:
        # A session of its own: a Ctrl-C of the terminal reaches the children once, through this process.
        command, fds = [*self._command, "--lifeline", str(self._lifeline)], [self._lifeline]
        with contextlib.ExitStack() as handed_over:
            if self._reports is not None:
                theirs = handed_over.enter_context(self._reports.open(child.number))
                command += ["--report-to", str(theirs.fileno())]
                fds.append(theirs.fileno())
            child.process = subprocess.Popen(  # noqa: S603 - our own command
                command, pass_fds=fds, stdin=subprocess.DEVNULL, start_new_session=True
            )
        child.started = time.monotonic()
        logger.info("process %d is %d", child.number, child.process.pid)

    def _ended(self, child: _Child, pid: int, code: int) -> None:
        child.process = None
        if self._reports is not None:
            self._reports.ended(child.number)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if self._stop_by is not None:
            # A child that got the signal before it had begun dies of the signal, with nothing in hand.
            if code not in (0, -signal.SIGTERM, -signal.SIGINT):
                logger.warning("process %d (%d) %s", child.number, pid, how)
                self._code = max(self._code, 1)
            return
        if code == CANNOT_START:
            logger.error("process %d (%d) cannot start; stopping", child.number, pid)
            self._code = CANNOT_START
            self._stop(signal.SIGTERM)
            return
        now = time.monotonic()
        if now - child.started >= LIVED_WELL:
            child.pause = FIRST_PAUSE
        logger.error("process %d (%d) %s; restarting it in %gs", child.number, pid, how, child.pause)
        child.start_at = now + child.pause
        child.pause = min(child.pause * 2, LONGEST_PAUSE)

"""SIGTERM and SIGINT while a worker runs or drains: the first stops it in order, the second ends the process."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger("penstock.queue.worker")

ASKED_BY = (signal.SIGTERM, signal.SIGINT)
# Seconds. `timeout` and some supervisors send a signal to the process and to its group: that is one wish, not two.
AT_ONCE = 0.1


@contextmanager
def until_asked(grace: float) -> Iterator[threading.Event]:
    """For a worker in the background: an event that the first signal sets; the second one leaves at once."""
    ended = threading.Event()
    asked_at = 0.0

    def on_signal(number: int, _frame: object) -> None:
        nonlocal asked_at
        if ended.is_set() and time.monotonic() - asked_at < AT_ONCE:
            return
        if ended.is_set():
            # A second signal means now: what is in hand comes back when its lease runs out.
            raise SystemExit(128 + number)
        logger.info("%s: stopping, running handlers get %gs; again to end at once", _name(number), grace)
        asked_at = time.monotonic()
        ended.set()

    with _handled(on_signal):
        yield ended


@contextmanager
def between_handlers() -> Iterator[threading.Event]:
    """For handlers in the calling thread: an event to look at before the next one; leaving raises what was asked."""
    asked = threading.Event()
    signals: list[int] = []

    def on_signal(number: int, _frame: object) -> None:
        signals.append(number)
        asked.set()
        # Not a handler of ours: the second one has to work also where Python code is not reached.
        for stop_signal in ASKED_BY:
            signal.signal(stop_signal, signal.SIG_DFL)
        logger.info("%s: stopping when the running handler has ended; again to end at once", _name(number))

    with _handled(on_signal):
        yield asked
    if signals:
        raise KeyboardInterrupt if signals[0] == signal.SIGINT else SystemExit(128 + signals[0])


@contextmanager
def _handled(handler: Any) -> Iterator[None]:
    """Handle the signals inside, as before outside; elsewhere than in the main thread leave them alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in ASKED_BY}
    try:
        yield
    finally:
        for number, old in before.items():
            # None is a handler that was not set by Python, and that Python cannot set again.
            signal.signal(number, signal.SIG_DFL if old is None else old)


def _name(number: int) -> str:
    return signal.Signals(number).name

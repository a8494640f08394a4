"""Ctrl-C in a loop that looks again and again."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def remembered_interrupts() -> Iterator[Callable[[], None]]:
    """Inside, Ctrl-C raises ``KeyboardInterrupt`` as always, and the function that is given raises it once more.

    Python drops an exception that is raised while a finalizer or a callback of a C library runs, and with it
    the only word that somebody wants the loop to end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    interrupted = False

    def on_interrupt(_number: int, _frame: object) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    def check() -> None:
        if interrupted:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)

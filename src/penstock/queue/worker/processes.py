"""HandlerProcess: a process that runs a handler for one slot: it can be killed and replaced, a thread cannot.

The function goes to the process by its name, so it has to be defined at the top of a module that can be imported there;
values and results go through a pipe. A process ends with its worker, however that ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

from penstock.errors import HandlerDied, HandlerTimeout
from penstock.queue.handling.outcomes import RemoteTraceback

# Not fork: a worker has many threads, and a fork copies the locks they hold.
_SPAWN = multiprocessing.get_context("spawn")
START_SECONDS = 60.0
END_SECONDS = 2.0


class HandlerProcess:
    """Runs one call after the other; started with the first, replaced after it died or was killed."""

    def __init__(self, function: Callable[[Any], Any], title: str) -> None:
        """Start nothing yet."""
        self._function = function
        self._title = title
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._killed = False

    def call(self, value: Any, timeout: float | None) -> Any:
        """What the function returns or raises there; ``HandlerTimeout`` if that takes too long."""
        pipe = self._started()
        try:
            pipe.send(value)
        except OSError:
            raise self._death() from None
        if not pipe.poll(timeout):
            self.kill()
            raise HandlerTimeout(
                f"handler {self._title} took longer than {timeout:g}s; its process was killed.",
                hint="Give it more time with timeout=, or find out what it waits for.",
            )
        try:
            result, error, text = pipe.recv()
        except (EOFError, OSError):
            raise self._death() from None
        if error is None:
            return result
        error.__cause__ = RemoteTraceback(text)
        raise error

    def kill(self) -> None:
        """End it now, whatever it is doing."""
        process = self._process
        if process is not None:
            self._killed = True
            process.kill()

    def close(self) -> None:
        """End it if it is idle; kill it if it does not end."""
        process, pipe, self._process, self._pipe = self._process, self._pipe, None, None
        if process is None or pipe is None:
            return
        pipe.close()
        process.join(0 if self._killed else END_SECONDS)
        if process.is_alive():
            process.kill()
        process.join(END_SECONDS)

    def _started(self) -> Connection:
        if self._process is not None and self._pipe is not None and not self._killed and self._process.is_alive():
            return self._pipe
        self.close()
        self._killed = False
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_serve, args=(theirs, self._function), name=f"penstock-{self._title}")
        process.start()
        theirs.close()
        self._process, self._pipe = process, ours
        try:
            # Importing the handler's module takes its time, which is not the handler's.
            if ours.poll(START_SECONDS):
                ours.recv()
                return ours
        except (EOFError, OSError):
            raise self._death() from None
        self.kill()
        raise HandlerDied(
            f"the process of handler {self._title} did not start within {START_SECONDS:g}s.",
            hint="Look at what its module does when it is imported.",
        )

    def _death(self) -> HandlerDied:
        process = self._process
        if process is not None:
            process.join(END_SECONDS)
        code = None if process is None else process.exitcode
        how = f"was ended by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with {code}"
        self.close()
        return HandlerDied(
            f"the process of handler {self._title} {how} before the handler did.",
            hint="Its stderr may say why (a module that cannot be imported), or the kernel's log (out of memory).",
        )


# --- in the process --------------------------------------------------------------------------------


def _serve(pipe: Connection, function: Callable[[Any], Any]) -> None:
    # A signal to the whole group (Ctrl-C, a supervisor's stop) is the worker's to answer: it lets handlers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_worker, daemon=True).start()
    pipe.send("ready")
    while True:
        try:
            value = pipe.recv()
        except (EOFError, OSError):
            return
        reply = _reply_of(function, value)
        with contextlib.suppress(OSError):
            pipe.send(reply)


def _end_with_worker() -> None:
    """Nobody waits for the outcome any more, and another worker may have the entry."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _reply_of(function: Callable[[Any], Any], value: Any) -> tuple[Any, BaseException | None, str]:
    """Result, error and the error's traceback, such that they can be sent."""
    try:
        result = function(value)
    except BaseException as error:
        frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
        text = "".join(traceback.format_exception(type(error), error, frames or error.__traceback__))
        return None, error if _can_be_sent(error) else _stand_in(error), text
    return (result if _can_be_sent(result) else None), None, ""


def _can_be_sent(thing: Any) -> bool:
    try:
        ForkingPickler.loads(ForkingPickler.dumps(thing))
    except Exception:
        return False
    return True


def _stand_in(error: BaseException) -> BaseException:
    """For an error that cannot be sent: one that says the same."""
    return RuntimeError(f"{type(error).__name__}: {error}")

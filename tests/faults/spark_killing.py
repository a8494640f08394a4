"""In the middle of a task: the death of a Python worker, of the executor it belongs to, or of the executor's host."""

import os
import signal
from pathlib import Path


def kill_once(what: str, mark: str) -> None:
    """Kill once in all; several tasks come here at the same time, and the one that makes the mark does it."""
    try:
        with Path(mark).open("x", encoding="ascii") as book:
            book.write(what)
    except FileExistsError:
        return
    executor = parent(os.getppid())  # between it and us is the daemon that forks workers
    if what == "host":
        os.kill(parent(executor), signal.SIGKILL)  # the worker of a standalone cluster
    os.kill(os.getpid() if what == "worker" else executor, signal.SIGKILL)


def parent(pid: int) -> int:
    """Of another process."""
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[1])

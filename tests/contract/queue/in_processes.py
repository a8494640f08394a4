"""Handlers that run in processes: a process imports them from here."""

import os
import time
from pathlib import Path
from typing import Any

from penstock import Reject, Retry, Snooze, TryAgain


class Awkward(Exception):
    """An error that cannot be sent to another process."""

    def __init__(self, first: str, second: object) -> None:
        super().__init__(first)
        self.second = second


def sleep_or_return(value: str) -> None:
    if value == "long":
        time.sleep(60)


def note_pid(folder: str) -> None:
    """Leave a file with the name of the process, then go on for long."""
    (Path(folder) / str(os.getpid())).touch()
    while True:
        time.sleep(0.02)


def outcome(value: str) -> Any:
    match value:
        case "false":
            return False
        case "reject":
            return Reject("no such address")
        case "snooze":
            raise Snooze("1h")
        case "again":
            return TryAgain(Retry(attempts=None, delays=["2h"]), "the carrier asked for it")
        case "error":
            raise ValueError("bad value")
        case "awkward":
            raise Awkward("cannot be sent", lambda: None)
        case "exit":
            os._exit(3)
        case "system exit":
            raise SystemExit(5)
        case "unsendable":
            return lambda: None
    return None

"""Calls: what several threads want to write at the same time, run in one transaction."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from penstock.queue.drivers.sql.sqlite_errors import translated

T = TypeVar("T")


class Call(Generic[T]):
    """One caller's part of a shared commit."""

    __slots__ = ("_work", "done", "error", "guarded", "result", "woken")

    def __init__(self, work: Callable[[sqlite3.Connection], T], *, guarded: bool) -> None:
        """``guarded``: the work may fail half-way, and what it did is undone then."""
        self._work = work
        self.guarded = guarded
        self.result: T | None = None
        self.error: BaseException | None = None
        self.done = False
        self.woken = threading.Lock()
        self.woken.acquire()

    def tell(self) -> None:
        """Wake the caller. A second call before it looks changes nothing."""
        with contextlib.suppress(RuntimeError):
            self.woken.release()

    def run(self, db: sqlite3.Connection) -> None:
        """Do the work; a failure is this caller's own unless it took the whole transaction with it."""
        self.error = None
        try:
            self.result = self._work(db)
        except Exception as error:
            if not db.in_transaction:
                raise
            self.error = error

    def outcome(self, path: Path) -> T:
        """What the caller gets."""
        if isinstance(self.error, sqlite3.Error):
            raise translated(self.error, path) from self.error
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


def run_together(db: sqlite3.Connection, calls: list[Call[Any]]) -> None:
    """Run calls inside one transaction; each that fails is undone by itself.

    Work that does not fail half-way needs no savepoint. If it fails all the same, all is done again with them.
    """
    db.execute("SAVEPOINT callers")
    for call in calls:
        if call.guarded:
            _run_guarded(db, call)
        else:
            call.run(db)
        if call.error is not None and not call.guarded:
            db.execute("ROLLBACK TO callers")
            for each in calls:
                _run_guarded(db, each)
            break
    db.execute("RELEASE callers")


def _run_guarded(db: sqlite3.Connection, call: Call[Any]) -> None:
    db.execute("SAVEPOINT caller")
    call.run(db)
    if call.error is not None:
        db.execute("ROLLBACK TO caller")
    db.execute("RELEASE caller")

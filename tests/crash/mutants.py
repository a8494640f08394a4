"""Planted bugs: each makes the store break a promise in one process, so that the checker can show that it notices."""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.crash.scenes import Stage, claim

from penstock.queue.entry import Lease
from penstock.queue.store import ClaimRequest, Ending, Settled, Step
from penstock.queue.stores.sql import statements
from penstock.queue.stores.sql.operations import Operations
from penstock.queue.stores.sql.rows import Row
from penstock.queue.stores.sql.sqlite import SqliteStore
from penstock.queue.stores.sql.sqlite_file import SqliteFile


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def mutated(bug: str, scene: Callable[..., Any], *args: Any) -> None:
    """Plant a bug in this process, then play a scene."""
    BUGS[bug]()
    scene(*args)


def no_token_check() -> None:
    """Whoever knows an entry may end it."""
    honest = Operations._end

    def end(self: Operations, row: Row | None, ending: Ending) -> None:
        lease: Lease = ending.lease if row is None or row.token is None else replace(ending.lease, token=row.token)
        honest(self, row, replace(ending, lease=lease))

    Operations._end = end  # type: ignore[method-assign]
    Operations._finish_many = lambda self, steps: False  # type: ignore[method-assign]


def acknowledge_early() -> None:
    """Commit only every fourth call, and say each time that it is done."""
    lock, calls = threading.RLock(), 0

    def write(self: SqliteFile, work: Callable[[Any], Any], **_: Any) -> Any:
        nonlocal calls
        with lock:
            if not self._writer.in_transaction:
                self._writer.execute("BEGIN IMMEDIATE")
            result = work(self._writer)
            calls += 1
            if calls % 4 == 0:
                self._writer.execute("COMMIT")
            return result

    SqliteFile.write = write  # type: ignore[method-assign]


def unit_in_two_transactions() -> None:
    """First the endings, then the puts; and the process dies in between."""
    honest = SqliteStore._settle

    def settle(self: SqliteStore, steps: Sequence[Step], request: ClaimRequest | None, connection: Any) -> Settled:
        if any(step.endings and step.puts for step in steps):
            honest(self, [replace(step, puts=()) for step in steps], None, connection)
            die()
        return honest(self, steps, request, connection)

    SqliteStore._settle = settle  # type: ignore[method-assign]


def finish_in_two_transactions() -> None:
    """The row of history first; the process dies before the entry leaves."""
    honest = SqliteStore._settle

    def settle(self: SqliteStore, steps: Sequence[Step], request: ClaimRequest | None, connection: Any) -> Settled:
        for step in steps:
            for ending in step.endings:
                lease = ending.lease
                row = self._write(lambda work, lease=lease: work.row(work.sql.by_id, lease.entry))
                written = ("done", None, self.now(), 0, None, True, row.seq)
                self._write(lambda work, written=written: work.db.execute(work.sql.to_history, written))
                die()
        return honest(self, steps, request, connection)

    SqliteStore._settle = settle  # type: ignore[method-assign]


def attempt_not_counted_at_claim() -> None:
    """A crash costs no attempt."""
    change("lease", "attempt = attempt + 1", "attempt = attempt")


def fence_used_again() -> None:
    """The fence does not rise with a claim."""
    change("lease", "fence = fence + 1,", "fence = fence,")


def leased_handed_out() -> None:
    """Claims do not care whether somebody has the entry already."""
    change("lane_heads", "state = 0", "state <> 2")
    change("candidates", "e.state = 0", "e.state <> 2")
    change("lane_next", "SET next_due = ?", "SET next_due = coalesce(?, 0)")


def claimed_early() -> None:
    """Due within the hour is near enough."""
    change("candidates", "e.due <= ?", "e.due <= ? + 3600000000")
    change("ready_named", "next_due <= ?", "next_due <= ? + 3600000000")
    change("lane_heads", "(SELECT e.due FROM", "(SELECT e.due - 3600000000 FROM")


def change(statement: str, text: str, other: str) -> None:
    """Change a statement; a bug that cannot be planted any more must be noticed."""
    honest = statements._TEMPLATES[statement]
    assert text in honest, f"the statement {statement!r} reads differently now: plant this bug anew"
    statements._TEMPLATES[statement] = honest.replace(text, other)


BUGS: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (
        no_token_check, acknowledge_early, unit_in_two_transactions, finish_in_two_transactions,
        attempt_not_counted_at_claim, fence_used_again, leased_handed_out, claimed_early,
    )
}  # fmt: skip


# --- scenes that show them -------------------------------------------------------------------------------------------


def put_ten(folder: Path) -> None:
    """Ten puts, then the end."""
    stage = Stage(folder)
    for number in range(10):
        stage.queue("jobs").put(number)
    die()


def claim_twice(folder: Path) -> None:
    """One claim, and another one while the first holds."""
    stage = Stage(folder)
    claim(stage.queue("jobs"), 1)
    claim(stage.queue("jobs"), 1)
    stage.store.close()

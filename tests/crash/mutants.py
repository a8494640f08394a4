"""Planted bugs: each makes the store break a promise in one process, so that the checker can show that it notices."""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.crash.scenes import Stage, claim

from penstock.queue.drivers.sql import settle as settling
from penstock.queue.drivers.sql import statements
from penstock.queue.drivers.sql.driver import SqlDriver
from penstock.queue.drivers.sql.rows import Live
from penstock.queue.drivers.sql.session import Session
from penstock.queue.drivers.sql.sqlite_file import SqliteFile
from penstock.queue.protocol import ClaimRequest, Ending, Settled, Step


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def mutated(bug: str, scene: Callable[..., Any], *args: Any) -> None:
    """Plant a bug in this process, then play a scene."""
    BUGS[bug]()
    scene(*args)


def no_token_check() -> None:
    """Whoever knows an entry may end it."""

    def held(session: Session, endings: Sequence[Ending]) -> dict[int, Live]:
        rows = [session.row("live_by_seq", seq=ending.lease.ref.seq) for ending in endings]
        return {live.seq: live for live in (Live(*row) for row in rows if row is not None) if live.claim is not None}

    settling._held = held
    settling.is_plain = lambda step, **_: False


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
    honest = SqlDriver._settle

    def settle(self: SqlDriver, steps: Sequence[Step], request: ClaimRequest | None, connection: Any) -> Settled:
        if any(step.endings and step.puts for step in steps):
            honest(self, [replace(step, puts=()) for step in steps], None, connection)
            die()
        return honest(self, steps, request, connection)

    SqlDriver._settle = settle  # type: ignore[method-assign, assignment]


def finish_in_two_transactions() -> None:
    """The row of history first; the process dies before the entry leaves."""
    honest = SqlDriver._settle

    def record(session: Session, ending: Ending) -> None:
        ref = ending.lease.ref
        session.change("end_one_done", seq=ref.seq, claim=ref.claim, started=None, moment=session.now)

    def settle(self: SqlDriver, steps: Sequence[Step], request: ClaimRequest | None, connection: Any) -> Settled:
        for step in steps:
            for ending in step.endings:
                self._write(lambda session, ending=ending: record(session, ending))
                die()
        return honest(self, steps, request, connection)

    SqlDriver._settle = settle  # type: ignore[method-assign, assignment]


def attempt_not_counted_at_claim() -> None:
    """A crash costs no attempt."""
    change("hold_one", "attempt = attempt + 1", "attempt = attempt")
    change("lease", "%(attempts)s", "%(attempts)s - 1")


def fence_used_again() -> None:
    """The fence does not rise with a claim."""
    change("hold_one", "fence = fence + 1", "fence = fence")
    change("lease", "%(fences)s", "%(fences)s - 1")


def leased_handed_out() -> None:
    """Claims do not care whether somebody has the entry already."""
    change("plain_due", "record IS NULL", "seq IS NOT NULL")


def claimed_early() -> None:
    """Due within the hour is near enough."""
    change("plain_due", "r.due <= %(moment)s", "r.due <= %(moment)s + 3600000000")


def change(statement: str, text: str, other: str) -> None:
    """Change a statement; a bug that cannot be planted any more must be noticed."""
    honest = statements.read_statements

    def read(file: str, space: str) -> dict[str, str]:
        texts = honest(file, space)
        assert text in texts[statement], f"the statement {statement!r} reads differently now: plant this bug again"
        return {**texts, statement: texts[statement].replace(text, other)}

    statements.read_statements = read


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

"""SQLite's errors, as ones that say what to do."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from penstock.errors import (
    CannotOpen,
    OutcomeUnknown,
    PenstockError,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)

FULL = ("SQLITE_FULL", "SQLITE_IOERR_SHMSIZE")  # no room in the file system, or none for the index of the log


def no_room(path: Path) -> StoreFull:
    """The error for a full disk."""
    return StoreFull(f"no room left for {path}; nothing was written.", hint="Free space on that disk.")


def says_full(error: BaseException | None) -> bool:
    """Whether SQLite had no room."""
    return isinstance(error, sqlite3.Error) and (getattr(error, "sqlite_errorname", "") or "") in FULL


def is_already_there(error: BaseException) -> bool:
    """Whether a statement of a migration failed because the column that it adds is there."""
    return isinstance(error, sqlite3.OperationalError) and "duplicate column name" in str(error)


def in_doubt(error: BaseException, path: Path) -> BaseException:
    """What a commit that failed means: a disk that fails while it syncs may still have kept it."""
    if not isinstance(error, sqlite3.Error) or not (getattr(error, "sqlite_errorname", "") or "").startswith(
        "SQLITE_IOERR"
    ):
        return error
    doubt = OutcomeUnknown(
        f"the disk under {path} failed during a commit: {error}.",
        hint="Check the disk and open the store again; then repeat the call with the same ids, or look.",
    )
    doubt.__cause__ = error
    return doubt


def translated(cause: sqlite3.Error, path: Path) -> PenstockError:
    """A SQLite error as one that says what to do."""
    code = getattr(cause, "sqlite_errorname", "") or ""
    if isinstance(cause, sqlite3.ProgrammingError) and "closed" in str(cause):
        return StoreUnavailable(f"the store {path} is closed.", hint="Open it again.")
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreUnavailable(
            f"{path} is locked: another process or transaction kept the write lock too long ({cause}).",
            hint="If this thread holds the transaction, pass it as connection= (and take before you write); otherwise "
            "end long write transactions on this file, and begin your own with BEGIN IMMEDIATE.",
        )
    if code in FULL:
        return no_room(path)
    if code.startswith("SQLITE_READONLY"):
        return StoreReadOnly(f"{path} cannot be written: {cause}.", hint="Check the rights of the file and its folder.")
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreCorrupt(
            f"{path} is damaged or no SQLite database: {cause}.",
            hint="Nothing was changed. Restore a copy, or save what can be read with the sqlite3 tool's .recover.",
        )
    if code.startswith("SQLITE_CANTOPEN"):
        return CannotOpen(f"cannot open {path}: {cause}.", hint="Check that the path and its rights are right.")
    if code.startswith("SQLITE_IOERR"):
        return StoreUnavailable(
            f"the disk under {path} failed: {cause}.",
            hint="Check the disk, then open the store again.",
        )
    if "no such table" in str(cause):
        return StoreCorrupt(
            f"{path} has lost tables while it was open: {cause}.",
            hint="Nothing was changed. Restore a copy, or start this program again to begin with new tables.",
        )
    return StoreUnavailable(f"{path}: {type(cause).__name__}: {cause}.", hint="See the cause above.")

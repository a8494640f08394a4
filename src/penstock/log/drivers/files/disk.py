"""The operating system's errors as Penstock's."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import PenstockError, StoreFull, StoreReadOnly, StoreUnavailable

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


def disk_error(error: OSError, what: str) -> PenstockError:
    """The typed error for an OSError."""
    if error.errno in _FULL:
        return StoreFull(
            f"there is no room for {what}: {error}; nothing of the call was written.",
            hint="Free some space or shorten the retention; appends then work again.",
        )
    if error.errno in _FORBIDDEN:
        return StoreReadOnly(
            f"{what} cannot be written: {error}.", hint="Check the permissions of the folder and its mount."
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return StoreUnavailable(
            f"{what} cannot be opened: {error}.", hint="Raise the limit of open files, or read fewer partitions."
        )
    return StoreUnavailable(f"{what} cannot be read or written: {error}.", hint="Check the disk.")


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Raise typed errors for the OSErrors of a block."""
    try:
        yield
    except OSError as error:
        if isinstance(error, PenstockError):
            raise
        raise disk_error(error, what) from error

"""What the disk's errors mean to a user."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.errors import PenstockError, StoreFull, StoreReadOnly, StoreUnavailable

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)


def disk_error(error: OSError, what: str) -> PenstockError:
    """The typed error for one of the operating system."""
    if error.errno in _FULL:
        return StoreFull(
            f"there is no room for {what}: {error}; nothing of the call was written.",
            hint="Free some space or shorten the retention; it then goes on by itself.",
        )
    if error.errno in _FORBIDDEN:
        return StoreReadOnly(f"{what} cannot be written: {error}.", hint="Check the folder's rights and its mount.")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return StoreUnavailable(
            f"{what} cannot be opened: {error}.", hint="Raise the limit of open files, or read fewer partitions."
        )
    return StoreUnavailable(f"{what} cannot be read or written: {error}.", hint="Look at the disk.")


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Turn what the operating system says within a block into typed errors."""
    try:
        yield
    except OSError as error:
        if isinstance(error, PenstockError):
            raise
        raise disk_error(error, what) from error

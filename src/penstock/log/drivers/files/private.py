"""Files and folders that only their owner may read, whatever the umask says."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import IO

FOLDER_MODE = 0o700
FILE_MODE = 0o600


def make_private(folder: Path, *, exist_ok: bool = False) -> None:
    """Create a folder and its missing parents."""
    if not folder.parent.exists():
        make_private(folder.parent, exist_ok=True)
    folder.mkdir(FOLDER_MODE, exist_ok=exist_ok)


def open_private(path: Path, mode: str) -> IO[bytes]:
    """Open a file for writing, in a binary mode; only the owner may read a new one."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, FILE_MODE))


def write_private(path: Path, content: bytes) -> None:
    """Write a whole file."""
    with open_private(path, "wb") as file:
        file.write(content)


def copy_private(source: Path, target: Path) -> None:
    """Copy the content of a file."""
    with source.open("rb") as file, open_private(target, "wb") as out:
        shutil.copyfileobj(file, out)

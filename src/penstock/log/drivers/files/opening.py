"""Opening a folder of logs: options of the URL, the format mark, and recovery after a restart."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.errors import BadInput, CannotOpen, SchemaMismatch, StoreCorrupt
from penstock.log.drivers.files.private import make_private, write_private
from penstock.log.drivers.files.writing.durability import sync_folder

if TYPE_CHECKING:
    from penstock.location import Location

FORMAT = 2
MARK = "penstock-logs.json"
FOLDERS = ("logs", "groups", "producers", "staged")
OPTIONS = frozenset({"record_limit", "min_free", "sync", "network"})


class _Mark(msgspec.Struct):
    format: int = FORMAT


def check_location(location: Location) -> None:
    """Raise for a URL that does not name a folder of this machine."""
    location.reject_unknown_options(OPTIONS)
    if location.space != "penstock":
        raise BadInput(f"logs have no spaces ({location.masked}).", hint="Use another folder.")
    if not location.path.strip("/"):
        raise BadInput(f"{location.masked} names no folder.", hint='Write it as "file:///var/lib/shop/logs".')
    if not sys.platform.startswith("linux"):
        raise CannotOpen("file:// needs Linux: its locks belong to open files.", hint="Use memory:// or kafka:// here.")
    if location.options.get("network", "refuse") not in ("refuse", "allow"):
        raise BadInput(f"network={location.options['network']!r} is unknown.", hint="Use refuse (default) or allow.")


def size_option(location: Location, name: str, default: int, *, least: int = 0) -> int:
    """An option of the URL that is a number of bytes."""
    text = location.options.get(name, str(default))
    if not text.isdecimal() or int(text) < least:
        raise BadInput(f"{name} {text!r} in {location.masked} is not a size.", hint="Give a number of bytes.")
    return int(text)


def prepare_root(root: Path, name: str) -> None:
    """Create the folders of a store, or check that a folder is one."""
    mark = root / MARK
    if not mark.exists():
        _create(root, name)
    try:
        version = msgspec.json.decode(mark.read_bytes() or b"{}", type=_Mark).format
    except msgspec.MsgspecError as cause:
        raise StoreCorrupt(
            f"{mark} cannot be read: {cause}.",
            hint=f'Restore it from a backup of the folder; it says {{"format": {FORMAT}}}.',
        ) from cause
    if version != FORMAT:
        raise SchemaMismatch(
            f"{name} has format {version}; this version reads format {FORMAT}.",
            hint="Use a version of Penstock that reads it.",
        )


def _create(root: Path, name: str) -> None:
    root.parent.mkdir(parents=True, exist_ok=True)
    make_private(root, exist_ok=True)
    foreign = [path.name for path in root.iterdir() if path.name not in (*FOLDERS, MARK, "lock", "txn")]
    if foreign:
        raise CannotOpen(
            f"{name} holds files that are not Penstock's ({min(foreign)}).",
            hint="Use an empty folder, or one that does not exist.",
        )
    for folder in FOLDERS:
        make_private(root / folder, exist_ok=True)
    write_private(root / MARK, msgspec.json.encode({"format": FORMAT}))
    sync_folder(root)

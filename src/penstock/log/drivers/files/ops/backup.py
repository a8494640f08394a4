"""Backup of a store that is in use."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import BadInput, Conflict
from penstock.log.drivers.files.folder import make_folder, partition_folder
from penstock.log.drivers.files.format.control import BOOT, NO_TIME, START, VISIBLE, Control, End
from penstock.log.drivers.files.format.frames import TXN, pack_header
from penstock.log.drivers.files.format.index import read_index, rebuild_index
from penstock.log.drivers.files.format.segments import bases, headers, mapped, producers_path, segment_path
from penstock.log.drivers.files.groups.offsets import GroupFolder
from penstock.log.drivers.files.opening import FOLDERS, MARK
from penstock.log.drivers.files.private import FILE_MODE, copy_private, make_private, open_private, write_private
from penstock.log.drivers.files.writing.durability import sync_folder
from penstock.log.protocol import Finding

if TYPE_CHECKING:
    from penstock.log.drivers.files.driver import FileDriver


COPY_BYTES = 1 << 20  # of one read


class Extent(NamedTuple):
    """What a backup copies of a partition: segments, the last one up to a position."""

    bases: list[int]
    base: int
    position: int
    end: int
    records: int


def backup(driver: FileDriver, target: Path, *, dry_run: bool) -> list[Finding]:
    """Copy everything that is visible at one moment: whole transactions, and no offset ahead of its log."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Conflict(f"{target} is not an empty folder.", hint="Use a new folder for every backup.")
    if target.absolute().is_relative_to(driver.root):
        raise BadInput(f"{target} is inside the store itself.", hint="Use a folder outside of it.")
    with ExitStack() as held:
        driver.journal.resolve()
        journal = driver.journal.file()
        if journal is not None:
            held.enter_context(journal.lock)  # so that no transaction is copied in part
        offsets = {
            path.relative_to(driver.root): path.read_bytes() for path in (driver.root / "groups").glob("*/offsets/*")
        }
        extents = {
            name: [_extent(driver, name, index) for index in range(driver.settings(name).partitions)]
            for name in driver.names()
        }
    findings = []
    for name, parts in extents.items():
        log_folder = driver.root / "logs" / name
        size = sum(_bytes(partition_folder(log_folder, index), extent) for index, extent in enumerate(parts))
        count = sum(extent.records for extent in parts)
        verb = "would copy" if dry_run else "copied"
        findings.append(Finding("good", name, f"{verb} {count:,} records, {size:,} bytes, {len(parts)} partitions"))
    if dry_run:
        return findings
    _copy_all(driver, target, extents, offsets)
    return findings


def _copy_all(
    driver: FileDriver, target: Path, extents: Mapping[str, Sequence[Extent]], offsets: Mapping[Path, bytes]
) -> None:
    make_private(target, exist_ok=True)
    for folder in FOLDERS:
        make_private(target / folder)
    for name, parts in extents.items():
        make_folder(target / "logs" / name, driver.settings(name), driver.find_identity(name))
        control = Control(target / "logs" / name / "ctl", len(parts))
        for index, extent in enumerate(parts):
            copy = partition_folder(target / "logs" / name, index)
            _copy(partition_folder(driver.root / "logs" / name, index), copy, extent)
            size = segment_path(copy, extent.base).stat().st_size
            end = extent.end if size else extent.base  # retention removed it before it was copied
            slot = control.slot(index)
            slot.set_durable(End(end, size, extent.base))
            slot.words[BOOT] = 0  # so that it is recovered when it is first opened
        control.flush()
    for path, raw in offsets.items():
        GroupFolder(target, path.parts[1]).make()
        write_private(target / path, raw)
    for path in (driver.root / "producers").iterdir():
        if path.is_file():
            copy_private(path, target / "producers" / path.name)
    # Last: without this file, an unfinished copy is not taken for a store.
    copy_private(driver.root / MARK, target / MARK)
    for copied in target.rglob("*"):
        if copied.is_file():
            with copied.open("rb") as file:
                os.fsync(file.fileno())
        else:
            sync_folder(copied)
    sync_folder(target)


def _extent(driver: FileDriver, name: str, index: int) -> Extent:
    folder = driver.folder(name)
    slot = folder.slot(index)
    visible, start = int(slot.words[VISIBLE]), int(slot.words[START])
    path = folder.path(index)
    chosen = [base for base in bases(path) if base < max(visible, 1)] or [start]
    last = chosen[-1]
    position = 0
    try:
        data = mapped(segment_path(path, last))
    except FileNotFoundError:
        data = b""  # retention has removed it
    entries = [entry for entry in read_index(path, last) if entry.offset < visible]
    position = entries[-1].position if entries else 0
    for at, header in headers(data, last, position, len(data)):
        if header.next_offset > visible:
            break
        position = at + header.size
    return Extent(chosen, last, position, visible, visible - start)


def _bytes(folder: Path, extent: Extent) -> int:
    size = extent.position
    for base in extent.bases[:-1]:
        path = segment_path(folder, base)
        size += path.stat().st_size if path.exists() else 0
    return size


def _copy(source: Path, target: Path, extent: Extent) -> None:
    segment_path(target, 0).unlink(missing_ok=True)
    highest = NO_TIME
    for base in extent.bases:
        path = segment_path(source, base)
        try:
            with path.open("rb") as file, open_private(segment_path(target, base), "wb") as out:
                left = extent.position if base == extent.base else os.fstat(file.fileno()).st_size
                while left:
                    chunk = file.read(min(left, COPY_BYTES))
                    if not chunk:
                        break
                    out.write(chunk)
                    left -= len(chunk)
        except FileNotFoundError:
            segment_path(target, base).unlink(missing_ok=True)  # retention has removed it
            continue
        if base == extent.base:
            _clear_transactions(segment_path(target, base), base)
        entries = read_index(source, base)
        if entries and entries[0].position == 0:
            highest = max(highest, entries[0].max_time)
        highest = rebuild_index(target, base, highest)
        with suppress(FileNotFoundError):
            copy_private(producers_path(source, base), producers_path(target, base))
    if not bases(target):
        segment_path(target, extent.base).touch(FILE_MODE)


def _clear_transactions(path: Path, base: int) -> None:
    """Remove the ids of transactions: the journal is not copied, so recovery of the copy must not look for them."""
    data = mapped(path)
    with path.open("r+b") as out:
        for position, header in headers(data, base, 0, len(data)):
            if header.flags & TXN:
                out.seek(position)
                out.write(pack_header(header._replace(flags=header.flags & ~TXN, txn=0, hint=0), base))

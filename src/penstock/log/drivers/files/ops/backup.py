"""Backup of a store that is in use, verifying every byte, and putting damaged records aside."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import BadInput, Conflict
from penstock.log.drivers.files.filesystem import filesystem
from penstock.log.drivers.files.folder import make_folder, partition_folder
from penstock.log.drivers.files.format.control import BOOT, EPOCH, NO_TIME, START, VISIBLE, Control, End
from penstock.log.drivers.files.format.frame import TXN, gap, pack_header, read_header
from penstock.log.drivers.files.format.segment import (
    bases,
    good_frame,
    headers,
    index_path,
    mapped,
    next_good,
    producers_path,
    read_index,
    rebuild_index,
    segment_path,
)
from penstock.log.drivers.files.groups.membership import GroupFolder
from penstock.log.drivers.files.private import FILE_MODE, copy_private, make_private, open_private, write_private
from penstock.log.drivers.files.writing.partition import PartitionFile, sync_folder
from penstock.log.protocol import Finding, LogSettings
from penstock.log.record import Partition

if TYPE_CHECKING:
    from penstock.log.drivers.files.driver import FileLogStore


class Damage(NamedTuple):
    """A stretch of a segment that cannot be read: bytes, and the offsets that were there."""

    base: int
    position: int
    until: int  # the byte where it goes on
    first: int
    following: int  # the offset where it goes on
    why: str


class Extent(NamedTuple):
    """What a backup takes of a partition: segments, the last one up to a byte."""

    bases: list[int]
    base: int
    position: int
    end: int
    records: int


# --- backup ----------------------------------------------------------------------------------------------------------


def backup(store: FileLogStore, target: Path, *, dry_run: bool) -> list[Finding]:
    """Copy everything that is shown at one moment; whole transactions, and no offset ahead of its log."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Conflict(f"{target} is not an empty folder.", hint="Give a new folder for every backup.")
    if target.absolute().is_relative_to(store.root):
        raise BadInput(f"{target} is inside the store itself.", hint="Give a folder elsewhere.")
    with ExitStack() as held:
        store.journal.resolve()
        journal = store.journal.file()
        if journal is not None:
            held.enter_context(journal.line)  # no transaction is half seen
        offsets = {
            path.relative_to(store.root): path.read_bytes() for path in (store.root / "groups").glob("*/offsets/*")
        }
        extents = {
            name: [_extent(store, name, index) for index in range(store.settings(name).partitions)]
            for name in store.names()
        }
    findings = []
    for name, parts in extents.items():
        size = sum(_bytes(partition_folder(store.root / "logs" / name, i), one) for i, one in enumerate(parts))
        count = sum(one.records for one in parts)
        verb = "would copy" if dry_run else "copied"
        findings.append(Finding("good", name, f"{verb} {count:,} records, {size:,} bytes, {len(parts)} partitions"))
    if dry_run:
        return findings
    _copy_all(store, target, extents, offsets)
    return findings


def _copy_all(
    store: FileLogStore, target: Path, extents: Mapping[str, Sequence[Extent]], offsets: Mapping[Path, bytes]
) -> None:
    from penstock.log.drivers.files.driver import FOLDERS, MARK

    make_private(target, exist_ok=True)
    for folder in FOLDERS:
        make_private(target / folder)
    for name, parts in extents.items():
        make_folder(target / "logs" / name, store.settings(name), store.identity(name))
        control = Control(target / "logs" / name / "ctl", len(parts))
        for index, extent in enumerate(parts):
            place = partition_folder(target / "logs" / name, index)
            _copy(partition_folder(store.root / "logs" / name, index), place, extent)
            size = segment_path(place, extent.base).stat().st_size
            end = extent.end if size else extent.base  # retention was faster than the copy
            slot = control.slot(index)
            slot.set_durable(End(end, size, extent.base))
            slot.words[BOOT] = 0  # opened for the first time it is looked through
        control.flush()
    for path, raw in offsets.items():
        GroupFolder(target, path.parts[1]).make()
        write_private(target / path, raw)
    for path in (store.root / "producers").iterdir():
        if path.is_file():
            copy_private(path, target / "producers" / path.name)
    # Last: a folder without it is not a store, so a copy that was broken off is not taken for one.
    copy_private(store.root / MARK, target / MARK)
    for copied in target.rglob("*"):
        if copied.is_file():
            with copied.open("rb") as file:
                os.fsync(file.fileno())
        else:
            sync_folder(copied)
    sync_folder(target)


def _extent(store: FileLogStore, name: str, index: int) -> Extent:
    folder = store.folder(name)
    slot = folder.slot(index)
    visible, start = int(slot.words[VISIBLE]), int(slot.words[START])
    path = folder.path(index)
    chosen = [base for base in bases(path) if base < max(visible, 1)] or [start]
    last = chosen[-1]
    position = 0
    try:
        data = mapped(segment_path(path, last))
    except FileNotFoundError:
        data = b""  # retention was faster
    lines = [line for line in read_index(path, last) if line.offset < visible]
    position = lines[-1].position if lines else 0
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
                    chunk = file.read(min(left, 1 << 20))
                    if not chunk:
                        break
                    out.write(chunk)
                    left -= len(chunk)
        except FileNotFoundError:
            segment_path(target, base).unlink(missing_ok=True)  # retention was faster
            continue
        if base == extent.base:
            _without_transactions(segment_path(target, base), base)
        lines = read_index(source, base)
        if lines and lines[0].position == 0:
            highest = max(highest, lines[0].max_time)
        highest = rebuild_index(target, base, highest)
        with suppress(FileNotFoundError):
            copy_private(producers_path(source, base), producers_path(target, base))
    if not bases(target):
        segment_path(target, extent.base).touch(FILE_MODE)


def _without_transactions(path: Path, base: int) -> None:
    """The journal stays behind, so recovery of the copy must not ask it."""
    data = mapped(path)
    with path.open("r+b") as out:
        for position, header in headers(data, base, 0, len(data)):
            if header.flags & TXN:
                out.seek(position)
                out.write(pack_header(header._replace(flags=header.flags & ~TXN, txn=0, hint=0), base))


# --- verify ----------------------------------------------------------------------------------------------------------


def verify(store: FileLogStore, names: Sequence[str]) -> list[Finding]:
    """Every byte of every segment, every index, every group's offsets."""
    findings = []
    for name in names:
        settings = store.settings(name)
        folder = store.folder(name)
        bad = 0
        for index in range(settings.partitions):
            part = folder.partition(index)
            for damage in damages(part):
                bad += 1
                findings.append(Finding("bad", str(part.place), _words(damage)))
            for words in _index_damages(part):
                findings.append(Finding("warning", str(part.place), words))
        findings += _offset_findings(store, settings)
        if not bad:
            count = sum(one.count for one in store.bounds(name))
            findings.append(Finding("good", name, f"{count:,} records in {settings.partitions} partitions are whole"))
    return findings


def damages(part: PartitionFile) -> Iterator[Damage]:
    """What cannot be read below the shown end, segment by segment."""
    # At one moment, under the lock: a segment that begins between two looks is not damage.
    with part.line:
        part.begin()
        end = part.slot.end()
        all_bases = [base for base in bases(part.folder) if base <= end.base]
        expected = int(part.slot.words[START])
    if not all_bases:
        if expected < end.next:
            yield Damage(expected, 0, 0, expected, end.next, "all segments are missing")
        return
    if all_bases[0] > expected:
        yield Damage(expected, 0, 0, expected, all_bases[0], "a segment is missing")
    for base, following in zip(all_bases, [*all_bases[1:], end.next], strict=True):
        try:
            data = mapped(segment_path(part.folder, base))
        except FileNotFoundError:
            if part.slot.words[START] < following:
                yield Damage(base, 0, 0, base, following, "a segment is missing")
            continue  # else retention was faster
        stop = end.position if base == end.base else len(data)
        offset, position = base, 0
        while offset < following:
            good = good_frame(data, base, position, offset, stop)
            if good is not None:
                offset, position = good
                continue
            until, next_offset = next_good(data, base, position, (offset, following), stop)
            why = "the file ends early" if position >= len(data) else "a bad frame"
            yield Damage(base, position, until, offset, next_offset, why)
            offset, position = next_offset, until
            if position >= stop:
                break


def _words(damage: Damage) -> str:
    last = damage.following - 1
    span = f"offset {damage.first}" if last <= damage.first else f"offsets {damage.first} to {last}"
    return f"{damage.why} in {damage.base:020d}.seg at byte {damage.position}: {span} cannot be read"


def _index_damages(part: PartitionFile) -> Iterator[str]:
    for base in bases(part.folder):
        path = index_path(part.folder, base)
        try:
            size = path.stat().st_size if path.exists() else 0  # first: lines come while we look
            lines = read_index(part.folder, base)
            data = mapped(segment_path(part.folder, base))
        except FileNotFoundError:
            continue  # retention was faster
        wrong = size > 32 * len(lines)
        for line in lines:
            if line.position < len(data):
                header = read_header(data, line.position, base)
                wrong = wrong or header is None or header.offset != line.offset
        if wrong:
            yield f"the index {path.name} is damaged; reading does without, repair() rebuilds it"


def _offset_findings(store: FileLogStore, settings: LogSettings) -> Iterator[Finding]:
    groups = {group: store.committed(settings.name, group) for group in store.groups(settings.name)}
    bounds = store.bounds(settings.name)  # after the offsets: what is committed meanwhile is below an end read later
    for group, offsets in groups.items():
        for index, kept in enumerate(offsets):
            if kept is not None and kept > bounds[index].end:
                place = Partition(settings.name, index)
                yield Finding("bad", str(place), f"group {group} is at {kept}, beyond the end {bounds[index].end}")


# --- repair ----------------------------------------------------------------------------------------------------------


def repair(store: FileLogStore, name: str, *, dry_run: bool) -> list[Finding]:
    """Rewrite damaged segments without what cannot be read; the old files stay beside them as ``.damaged``."""
    findings = []
    settings = store.settings(name)
    for index in range(settings.partitions):
        part = store.folder(name).partition(index)
        found = list(damages(part))
        if found and not dry_run:
            with part.line:
                # Once more, alone: another one may have repaired it, or retention removed it.
                found = list(damages(part))
                if found:
                    _rewrite(store, part, found)
        for damage in found:
            verb = "would leave out" if dry_run else "left out"
            findings.append(Finding("bad", str(part.place), f"{verb}: {_words(damage)}"))
        for words in list(_index_damages(part)):
            findings.append(Finding("warning", str(part.place), words))
        if not dry_run:
            highest = NO_TIME
            with part.line:
                for base in bases(part.folder):
                    stop = part.slot.end().position if base == part.slot.end().base else None
                    highest = rebuild_index(part.folder, base, highest, stop)
                part.close()
                part.slot.words[EPOCH] += 1
    return findings or [Finding("good", name, "nothing is damaged")]


def _rewrite(store: FileLogStore, part: PartitionFile, found: Sequence[Damage]) -> None:
    part.begin()
    end = part.slot.end()
    now = store.now()
    for base in sorted({damage.base for damage in found}):
        path = segment_path(part.folder, base)
        data = mapped(path) if path.exists() else b""
        stop = end.position if base == end.base else len(data)
        fresh = path.with_suffix(".seg.fresh")
        with open_private(fresh, "wb") as out:
            position = 0
            for damage in (one for one in found if one.base == base):
                out.write(data[position : damage.position])
                out.write(gap(base, damage.first, damage.following - damage.first, now))
                position = damage.until
            out.write(data[position:stop])
            size = out.tell()
            out.flush()
            os.fsync(out.fileno())
        if path.exists():
            os.rename(path, path.with_suffix(".seg.damaged"))
        os.rename(fresh, path)
        sync_folder(part.folder)
        if base == end.base:
            part.close()
            moved = End(end.next, size, base)
            part.slot.set_end(*moved)
            part.slot.set_durable(moved)
    part.producers.forget()
    part.slot.words[EPOCH] += 1


# --- doctor ----------------------------------------------------------------------------------------------------------


def check(store: FileLogStore) -> list[Finding]:
    """What is worth knowing about the folder."""
    room = os.statvfs(store.root)
    free = room.f_bavail * room.f_frsize
    kind = filesystem(store.root) or "unknown"
    level = "durable" if store.durable else "fast: a power cut may take the last 200 ms"
    findings = [
        Finding("good" if store.durable else "warning", "durability", level),
        Finding("unknown" if kind == "unknown" else "good", "file system", kind),
        Finding(
            "warning" if free < 4 * store.min_free else "good",
            "room",
            f"{free:,} bytes free; appends are refused below {store.min_free:,}",
        ),
    ]
    staged = list((store.root / "staged").iterdir())
    if staged:
        findings.append(Finding("warning", "staged", f"{len(staged)} sets of records wait for a transaction"))
    return findings

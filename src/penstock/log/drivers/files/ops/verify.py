"""Verify: checking every byte of every segment, every index, and every group's offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.log.drivers.files.format.control import START
from penstock.log.drivers.files.format.frames import read_header
from penstock.log.drivers.files.format.index import ENTRY_BYTES, read_index
from penstock.log.drivers.files.format.segments import bases, good_frame, index_path, mapped, next_good, segment_path
from penstock.log.drivers.files.writing.partition import PartitionFile
from penstock.log.protocol import Finding
from penstock.log.record import Partition
from penstock.log.settings import LogSettings

if TYPE_CHECKING:
    from penstock.log.drivers.files.driver import FileDriver


class Damage(NamedTuple):
    """A part of a segment that cannot be read: its bytes, and its offsets."""

    base: int
    position: int
    until: int  # the position after the damage
    first: int
    following: int  # the offset after the damage
    why: str


def verify(driver: FileDriver, names: Sequence[str]) -> list[Finding]:
    """Check these logs."""
    findings = []
    for name in names:
        settings = driver.settings(name)
        folder = driver.folder(name)
        bad = 0
        for index in range(settings.partitions):
            part = folder.partition(index)
            for damage in damages(part):
                bad += 1
                findings.append(Finding("bad", str(part.partition), describe(damage)))
            for text in index_damages(part):
                findings.append(Finding("warning", str(part.partition), text))
        findings += _offset_findings(driver, settings)
        if not bad:
            count = sum(bounds.count for bounds in driver.bounds(settings))
            findings.append(Finding("good", name, f"{count:,} records in {settings.partitions} partitions are whole"))
    return findings


def damages(part: PartitionFile) -> Iterator[Damage]:
    """What cannot be read below the end, segment by segment."""
    # Under the lock, as a segment that begins meanwhile is not damage.
    with part.lock:
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
            continue  # retention has removed it
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


def describe(damage: Damage) -> str:
    """The damage in words."""
    last = damage.following - 1
    span = f"offset {damage.first}" if last <= damage.first else f"offsets {damage.first} to {last}"
    return f"{damage.why} in {damage.base:020d}.seg at byte {damage.position}: {span} cannot be read"


def index_damages(part: PartitionFile) -> Iterator[str]:
    """Damaged indexes, in words."""
    for base in bases(part.folder):
        path = index_path(part.folder, base)
        try:
            size = path.stat().st_size if path.exists() else 0  # first, as appends add entries meanwhile
            entries = read_index(part.folder, base)
            data = mapped(segment_path(part.folder, base))
        except FileNotFoundError:
            continue  # retention has removed it
        is_wrong = size > ENTRY_BYTES * len(entries)
        for entry in entries:
            if entry.position < len(data):
                header = read_header(data, entry.position, base)
                is_wrong = is_wrong or header is None or header.offset != entry.offset
        if is_wrong:
            yield f"the index {path.name} is damaged; reading works without it, and repair() rebuilds it"


def _offset_findings(driver: FileDriver, settings: LogSettings) -> Iterator[Finding]:
    groups = {group: driver.committed(settings, group) for group in driver.groups(settings.name)}
    bounds = driver.bounds(settings)  # after the offsets, as an offset is never beyond an end that is read later
    for group, offsets in groups.items():
        for index, offset in enumerate(offsets):
            if offset is not None and offset > bounds[index].end:
                partition = Partition(settings.name, index)
                text = f"group {group} is at {offset}, beyond the end {bounds[index].end}"
                yield Finding("bad", str(partition), text)

"""Retention: removing the oldest segments of a partition, whole and ended ones only."""

from __future__ import annotations

from pathlib import Path

from penstock import failpoints
from penstock.clock import Micros, duration_micros
from penstock.log.drivers.files.format.control import START
from penstock.log.drivers.files.format.frame import HEADER, read_header
from penstock.log.drivers.files.format.segment import bases, index_path, last_header, producers_path, segment_path
from penstock.log.drivers.files.writing.partition import PartitionFile
from penstock.log.protocol import Removed, Retention
from penstock.log.record import Partition


def may_retain(part: PartitionFile, rule: Retention, now: Micros) -> bool:
    """A cheap look, made at every roll: whether anything could be old enough at all."""
    if rule.size is not None or rule.hard_size is not None or rule.consumed:
        return True
    if rule.age is None:
        return False
    try:
        base = int(part.slot.words[START])
        with segment_path(part.folder, base).open("rb") as file:
            first = read_header(file.read(HEADER), 0, base)
    except FileNotFoundError:
        return True
    return first is None or first.appended < now - duration_micros(rule.age)


def retain(
    part: PartitionFile, rule: Retention, consumed: int | None, now: Micros, *, dry_run: bool, seal: bool = True
) -> Removed | None:
    """Under the partition's lock: remove what the rule allows.

    ``consumed`` is the lowest offset that the groups to keep for have committed. With ``seal`` a written segment that
    is old as a whole is ended first, so that an idle log ages too.
    """
    end = part.begin()
    ended = end.base if end.position == 0 else None
    all_bases = bases(part.folder)
    sizes = {base: segment_path(part.folder, base).stat().st_size for base in all_bases}
    sizes[end.base] = end.position
    nexts = dict(zip(all_bases, [*all_bases[1:], end.next], strict=True))
    total = sum(sizes.values())
    start, reason = int(part.slot.words[START]), ""
    for base in all_bases:
        active = base == end.base
        if active and (ended is not None or not seal):
            break
        why = _why(part.folder, rule, consumed, now, base, nexts[base], total, None if not active else end.position)
        if not why or (active and why != "age"):
            break
        start, reason = nexts[base], why
        total -= sizes[base]
        if active and not dry_run:
            part.roll(end, quiet=True)
    if start <= part.slot.words[START]:
        return None
    count = start - int(part.slot.words[START])
    gone = [base for base in all_bases if nexts[base] <= start]
    removed = Removed(
        Partition(part.place.log, part.place.index), start, count, sum(sizes[one] for one in gone), reason
    )
    if not dry_run:
        durable = part.slot.durable()
        if durable is None or durable.next < start:
            part.sync_locked()  # recovery begins at the durable mark, which has to lie in what is left
        part.slot.words[START] = start
        failpoints.point("log.retain.before")
        written = part.slot.end().base  # begun just now, perhaps, and empty
        for base in gone:
            if base == written:
                break
            for file in (segment_path, index_path, producers_path):
                file(part.folder, base).unlink(missing_ok=True)
            failpoints.point("log.retain.removed")
    return removed


def _why(  # noqa: PLR0917 - all of it decides
    folder: Path,
    rule: Retention,
    consumed: int | None,
    now: Micros,
    base: int,
    following: int,
    total: int,
    stop: int | None,
) -> str:
    """Why a segment may go; empty if it may not."""
    if rule.hard_size is not None and total > rule.hard_size:
        return "hard_size"
    if rule.keep_for:
        if consumed is None or following > consumed:
            return ""
        if rule.consumed:
            return "consumed"
    if rule.size is not None and total > rule.size:
        return "size"
    if rule.age is not None:
        last = last_header(folder, base, stop)
        if last is not None and last.appended < now - duration_micros(rule.age):
            return "age"
    return ""

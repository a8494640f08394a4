"""Retention: removing the oldest segments of a partition. Only whole, ended segments are removed."""

from __future__ import annotations

from pathlib import Path

from penstock import failpoints
from penstock.clock import Micros, duration_micros
from penstock.log.drivers.files.format.control import START
from penstock.log.drivers.files.format.frames import HEADER, read_header
from penstock.log.drivers.files.format.index import last_header
from penstock.log.drivers.files.format.segments import bases, segment_path
from penstock.log.drivers.files.writing.partition import PartitionFile
from penstock.log.protocol import Removed
from penstock.log.settings import Retention


def may_remove(part: PartitionFile, rule: Retention, now: Micros) -> bool:
    """A cheap check at every roll: whether any segment could be old enough."""
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


def enforce_retention(
    part: PartitionFile, rule: Retention, consumed: int | None, now: Micros, *, dry_run: bool, seal: bool = True
) -> Removed | None:
    """Under the partition's lock: remove the segments that the rule lets go of.

    ``consumed`` is the lowest offset that the groups in ``keep_for`` have committed. With ``seal``, the current segment
    is ended first if all of it is too old, so that an idle log shrinks too.
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
        is_current = base == end.base
        if is_current and (ended is not None or not seal):
            break
        why = _reason_to_remove(
            part.folder, rule, consumed, now, base, nexts[base], total, end.position if is_current else None
        )
        if not why or (is_current and why != "age"):
            break
        start, reason = nexts[base], why
        total -= sizes[base]
        if is_current and not dry_run:
            part.roll(end, quiet=True)
    if start <= part.slot.words[START]:
        return None
    count = start - int(part.slot.words[START])
    removable = [base for base in all_bases if nexts[base] <= start]
    removed = Removed(part.partition, start, count, sum(sizes[base] for base in removable), reason)
    if not dry_run:
        durable = part.slot.durable()
        if durable is None or durable.next < start:
            part.durability.sync_locked()  # recovery begins at the durable mark, which must be in what remains
        part.slot.words[START] = start
        failpoints.point("log.retain.before")
        current = part.slot.end().base  # it may have begun just now and be empty
        for base in removable:
            if base == current:
                break
            part.remove_segment(base)
            failpoints.point("log.retain.removed")
    return removed


def _reason_to_remove(  # noqa: PLR0917 - each of them matters
    folder: Path,
    rule: Retention,
    consumed: int | None,
    now: Micros,
    base: int,
    following: int,
    total: int,
    stop: int | None,
) -> str:
    """Why a segment may be removed; empty if it may not."""
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

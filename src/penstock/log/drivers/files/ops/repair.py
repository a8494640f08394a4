"""Repair: moving damaged records aside, so that reading continues after them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.log.drivers.files.format.control import EPOCH, NO_TIME, End
from penstock.log.drivers.files.format.frames import gap
from penstock.log.drivers.files.format.index import rebuild_index
from penstock.log.drivers.files.format.segments import bases, mapped, segment_path
from penstock.log.drivers.files.ops.verify import Damage, damages, describe, index_damages
from penstock.log.drivers.files.private import open_private
from penstock.log.drivers.files.writing.durability import sync_folder
from penstock.log.drivers.files.writing.partition import PartitionFile
from penstock.log.protocol import Finding

if TYPE_CHECKING:
    from penstock.log.drivers.files.driver import FileDriver


def repair(driver: FileDriver, name: str, *, dry_run: bool) -> list[Finding]:
    """Rewrite damaged segments without what cannot be read. The old files are kept beside them as ``.damaged``."""
    findings = []
    settings = driver.settings(name)
    for index in range(settings.partitions):
        part = driver.folder(name).partition(index)
        all_damage = list(damages(part))
        if all_damage and not dry_run:
            with part.lock:
                # Look again under the lock: another process may have repaired it, or retention removed it.
                all_damage = list(damages(part))
                if all_damage:
                    _rewrite(driver, part, all_damage)
        for damage in all_damage:
            verb = "would leave out" if dry_run else "left out"
            findings.append(Finding("bad", str(part.partition), f"{verb}: {describe(damage)}"))
        for text in list(index_damages(part)):
            findings.append(Finding("warning", str(part.partition), text))
        if not dry_run:
            highest = NO_TIME
            with part.lock:
                for base in bases(part.folder):
                    stop = part.slot.end().position if base == part.slot.end().base else None
                    highest = rebuild_index(part.folder, base, highest, stop)
                part.close()
                part.slot.words[EPOCH] += 1
    return findings or [Finding("good", name, "nothing is damaged")]


def _rewrite(driver: FileDriver, part: PartitionFile, all_damage: Sequence[Damage]) -> None:
    part.begin()
    end = part.slot.end()
    now = driver.now()
    for base in sorted({damage.base for damage in all_damage}):
        path = segment_path(part.folder, base)
        data = mapped(path) if path.exists() else b""
        stop = end.position if base == end.base else len(data)
        fresh = path.with_suffix(".seg.fresh")
        with open_private(fresh, "wb") as out:
            position = 0
            for damage in all_damage:
                if damage.base != base:
                    continue
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

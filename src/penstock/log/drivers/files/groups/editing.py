"""Changing a group's offsets from outside, while it has no open tailer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.log.drivers.files.groups.leases import GroupState, check_no_owner
from penstock.log.drivers.files.groups.offsets import PARTITION_SLOTS, CommittedOffset, GroupFolder, OffsetsFile
from penstock.log.record import Partition
from penstock.log.settings import LogSettings


def set_offsets(
    state: GroupState,
    group: GroupFolder,
    offsets: Mapping[Partition, int],
    settings: Callable[[str], LogSettings],
    *,
    durable: bool,
) -> None:
    """Set offsets. Raises ``PartitionTaken`` while a tailer owns one of the partitions."""
    with state.changing():
        for log in {partition.log for partition in offsets}:
            chosen = [partition.index for partition in offsets if partition.log == log]
            check_no_owner(group, settings(log), chosen)
        for partition, offset in offsets.items():
            file = OffsetsFile(group, partition.log, settings(partition.log).partitions)
            try:
                last = file.read(partition.index)
                generation = last.generation + 1 if last else 1
                file.write(partition.index, CommittedOffset(generation, offset, 0, 0))
                if durable:
                    file.sync()
            finally:
                file.close()


def forget_offsets(
    state: GroupState, group: GroupFolder, name: str | None, find_settings: Callable[[str], LogSettings | None]
) -> bool:
    """Delete the offsets in one log, or in all. Returns False if there were none."""
    with state.changing():
        for path in group.leases.iterdir():
            settings = find_settings(path.name) if name in (None, path.name) else None
            if settings is not None:
                check_no_owner(group, settings, range(settings.partitions))
        files = [path for path in group.offsets.iterdir() if name in (None, path.name)]
        had_offsets = any(any(group.committed(path.name, path.stat().st_size // PARTITION_SLOTS)) for path in files)
        for path in files:
            path.unlink()
        return had_offsets


def delete_log(group: GroupFolder, settings: LogSettings) -> None:
    """Delete the offsets and leases of a log that is being deleted."""
    state = GroupState(group)
    try:
        with state.changing():
            check_no_owner(group, settings, range(settings.partitions))
            (group.offsets / settings.name).unlink(missing_ok=True)
            (group.leases / settings.name).unlink(missing_ok=True)
    finally:
        state.close()

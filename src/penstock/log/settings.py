"""The settings of a log: partitions, partitioner, retention, segments, compression, codec."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from penstock.clock import Duration, duration
from penstock.errors import BadInput, PartitionNotFound
from penstock.log.partitioner import DEFAULT, partitioner
from penstock.names import check_name

MAX_PARTITIONS = 10_000
MIN_SEGMENT_BYTES = 4096


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which records may be removed: those older than ``age``, and the oldest beyond ``size`` bytes per partition.

    Records that a group in ``keep_for`` has not consumed stay, unless a partition grows beyond ``hard_size`` bytes.
    With ``consumed=True``, records that all groups in ``keep_for`` have consumed are removed at any age.
    """

    age: Duration | None = timedelta(days=4)
    size: int | None = None
    keep_for: tuple[str, ...] = ()
    consumed: bool = False
    hard_size: int | None = None

    def __post_init__(self) -> None:
        """Raise for values that could never work."""
        if self.age is not None:
            duration(self.age, name="Retention(age)")
        for name in ("size", "hard_size"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise BadInput(f"Retention({name}={value!r}) is not a size.", hint="Give a number of bytes, or None.")
        if isinstance(self.keep_for, str):
            raise BadInput("Retention(keep_for=) is a string.", hint='Give a tuple of groups: ("billing",).')
        for group in self.keep_for:
            check_name(group, kind="group")
        if self.consumed and not self.keep_for:
            raise BadInput("Retention(consumed=True) names no group.", hint='Add keep_for=("billing",).')


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a log, stored with it when it is created; they apply to every process."""

    name: str
    partitions: int
    partitioner: str = DEFAULT
    retention: Retention = Retention()
    segment_bytes: int = 256 * 1024 * 1024
    segment_age: Duration = timedelta(hours=24)
    compression: str | None = None
    codec: str | None = None  # if set, appenders and tailers with another codec are refused (except bytes)


def checked_settings(
    name: str, partitions: int, hashing: str, retention: Retention | None, options: dict[str, Any]
) -> LogSettings:
    """The settings for a new log. Raises :class:`BadInput` for values that no driver could use."""
    check_name(name, kind="log")
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= MAX_PARTITIONS:
        raise BadInput(f"log {name} cannot have {partitions!r} partitions.", hint=f"Use 1 to {MAX_PARTITIONS:,}.")
    partitioner(hashing)
    unknown = options.keys() - set(LogSettings.__struct_fields__)
    if unknown:
        raise BadInput(
            f"log setting {sorted(unknown)[0]!r} is unknown.",
            hint=f"Known: {', '.join(LogSettings.__struct_fields__[2:])}.",
        )
    settings = LogSettings(name, partitions, hashing, retention or Retention(), **options)
    if not isinstance(settings.segment_bytes, int) or settings.segment_bytes < MIN_SEGMENT_BYTES:
        raise BadInput(
            f"segment_bytes {settings.segment_bytes!r} is too small.", hint=f"Use {MIN_SEGMENT_BYTES:,} or more."
        )
    duration(settings.segment_age, name="segment_age")
    if settings.compression not in (None, "zlib"):
        raise BadInput(f"compression {settings.compression!r} is unknown.", hint="Use None or 'zlib'.")
    if settings.codec not in (None, "json", "bytes"):
        raise BadInput(f"codec {settings.codec!r} is unknown.", hint="Use None, 'json' or 'bytes'.")
    return settings


def check_index(settings: LogSettings, index: object) -> int:
    """Return the partition number. Raises :class:`PartitionNotFound` if the log does not have it."""
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < settings.partitions:
        raise PartitionNotFound(
            f"log {settings.name} has no partition {index!r}; it has {settings.partitions}.",
            hint=f"Use 0 to {settings.partitions - 1}.",
        )
    return index

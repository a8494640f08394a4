"""``log.json``: the settings of a log as they are stored in its folder."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import msgspec

from penstock.clock import Micros, duration_micros
from penstock.errors import SchemaMismatch, StoreCorrupt
from penstock.log.settings import LogSettings, Retention

FORMAT = 2
FILE = "log.json"


class StoredSettings(msgspec.Struct, forbid_unknown_fields=True):
    """The content of ``log.json``."""

    format: int
    name: str
    partitions: int
    partitioner: str
    age_us: Micros | None
    size: int | None
    keep_for: tuple[str, ...]
    consumed: bool
    hard_size: int | None
    segment_bytes: int
    segment_age_us: Micros
    compression: str | None = None
    codec: str | None = None
    id: str = ""  # the identity; logs of older versions have none


def dump_settings(settings: LogSettings, identity: str) -> bytes:
    """Settings as JSON."""
    retention = settings.retention
    age = None if retention.age is None else duration_micros(retention.age)
    return msgspec.json.encode(
        StoredSettings(
            FORMAT, settings.name, settings.partitions, settings.partitioner, age, retention.size, retention.keep_for,
            retention.consumed, retention.hard_size, settings.segment_bytes, duration_micros(settings.segment_age),
            settings.compression, settings.codec, identity,
        )
    )  # fmt: skip


def read_identity(folder: Path) -> str | None:
    """The identity of a log, or None if there is no log."""
    stored = _stored(folder)
    return None if stored is None else stored.id


def read_settings(folder: Path) -> LogSettings | None:
    """The settings of a log, or None if there is no log."""
    stored = _stored(folder)
    if stored is None:
        return None
    age = None if stored.age_us is None else timedelta(microseconds=stored.age_us)
    return LogSettings(
        stored.name, stored.partitions, stored.partitioner,
        Retention(age, stored.size, stored.keep_for, stored.consumed, stored.hard_size),
        stored.segment_bytes, timedelta(microseconds=stored.segment_age_us), stored.compression, stored.codec,
    )  # fmt: skip


def _stored(folder: Path) -> StoredSettings | None:
    try:
        raw = (folder / FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        version = msgspec.json.decode(raw, type=_Format).format
        if version != FORMAT:
            raise SchemaMismatch(
                f"log {folder.name} has format {version}; this version reads format {FORMAT}.",
                hint="Use a version of Penstock that reads it.",
            )
        return msgspec.json.decode(raw, type=StoredSettings)
    except msgspec.MsgspecError as cause:
        raise StoreCorrupt(
            f"{folder / FILE} cannot be read: {cause}.", hint="Restore it from a backup of the folder."
        ) from cause


class _Format(msgspec.Struct):
    format: int

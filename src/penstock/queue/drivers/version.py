"""The version of what a store has written: every store notes it, and refuses what a newer Penstock wrote."""

from __future__ import annotations

from penstock.errors import SchemaMismatch


def check_version(version: int, space: str, known: int) -> None:
    """Refuse a space that a newer Penstock wrote."""
    if version > known:
        raise SchemaMismatch(
            f"space {space!r} has schema version {version}, but this Penstock knows only up to {known}.",
            hint="Upgrade Penstock here: pip install --upgrade penstock",
        )

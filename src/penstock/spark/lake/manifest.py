"""What a lake consists of: one small file names all others, so that a change of many files is seen at once or never.

A manifest is a numbered file in ``_manifests`` that is written once. The one with the highest number counts. It ends
with a checksum: an incomplete one is ignored.
"""

from __future__ import annotations

import hashlib

import msgspec

from penstock.codec import prepared
from penstock.errors import CannotOpen

FOLDER = "_manifests"
FORMAT = 1
_SUFFIX = ".json"


class DataFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of a table."""

    path: str
    bytes: int
    day: str = ""  # of all its rows; empty in a table that is not kept by days


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a source was read: the last ``seq`` of a store, the next offsets of a log."""

    url: str = ""
    after: int = 0
    offsets: dict[str, int] = {}


@prepared
class Manifest(msgspec.Struct, frozen=True):
    """All files of a lake, and how far its sources were read for them."""

    number: int = 0
    format: int = FORMAT
    sources: dict[str, Position] = {}
    files: dict[str, list[DataFile]] = {}
    file_format: str = "parquet"  # of all files

    def paths(self) -> set[str]:
        """The paths of all files."""
        return {file.path for files in self.files.values() for file in files}

    def days_of(self, table: str, days: set[str]) -> list[DataFile]:
        """The files of some days."""
        return [file for file in self.files.get(table, []) if file.day in days]


def name_of(number: int) -> str:
    """The path of a manifest."""
    return f"{FOLDER}/{number:010d}{_SUFFIX}"


def numbers(names: list[str]) -> list[int]:
    """The numbers of the manifests among some file names, the highest first."""
    plain = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
    return sorted((int(text) for text in plain if text.isdecimal()), reverse=True)


def encode(manifest: Manifest) -> bytes:
    """Encode a manifest, followed by its checksum."""
    content = msgspec.json.encode(manifest)
    return content + b"\n" + _sum(content) + b"\n"


def decode(content: bytes, *, name: str) -> Manifest | None:
    """Decode a manifest. Returns None if it is incomplete."""
    body, _, tail = content.partition(b"\n")
    if tail.strip() != _sum(body):
        return None
    manifest = msgspec.json.decode(body, type=Manifest)
    if manifest.format > FORMAT:
        raise CannotOpen(
            f"{name} has format {manifest.format}, and this version reads up to {FORMAT}.",
            hint="Use the version of Penstock that wrote the lake, or a newer one.",
        )
    return manifest


def _sum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).hexdigest().encode()

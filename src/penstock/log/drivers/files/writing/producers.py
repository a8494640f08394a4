"""Producers: who they are, which incarnation may append, and what of theirs is in a partition already."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

import msgspec

from penstock.errors import Conflict, Fenced
from penstock.log.drivers.files.format.control import End
from penstock.log.drivers.files.format.segment import headers, mapped, producers_path, segment_path
from penstock.log.drivers.files.locks import LockFile
from penstock.log.drivers.files.private import make_private, write_private

REMEMBERED = 5  # sequences of a producer whose offsets are known
MOST = 10_000  # producers that a partition remembers
_EPOCH = struct.Struct("<Q")


class Stamp(msgspec.Struct, frozen=True):
    """Who appends what: the producer, its incarnation, and its sequence number if it has one."""

    name: str
    producer: int
    epoch: int
    sequence: int | None = None

    @property
    def wire(self) -> int:
        """The sequence in a frame: 0 means none."""
        return 0 if self.sequence is None else self.sequence + 1


def producer_id(name: str) -> int:
    """A number for a name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") or 1


class Registration:
    """One incarnation of a producer; a newer one fences it."""

    def __init__(self, folder: Path, name: str) -> None:
        """Register, which ends all earlier ones."""
        make_private(folder, exist_ok=True)
        self.name = name
        self.id = producer_id(name)
        self._file = LockFile(str(folder / name))
        with self._file.held(0):
            self.epoch = self._stored() + 1
            os.pwrite(self._file.fd, _EPOCH.pack(self.epoch), 0)
            os.fdatasync(self._file.fd)

    def stamp(self, sequence: int | None) -> Stamp:
        """What to write into a frame."""
        return Stamp(self.name, self.id, self.epoch, sequence)

    def check(self) -> None:
        """Under a partition's lock, behind which a newer incarnation waits: raise when there is one."""
        if self._stored() != self.epoch:
            raise Fenced(f"producer {self.name} has another appender now.", hint="Only the newest one may append.")

    def _stored(self) -> int:
        raw = os.pread(self._file.fd, 8, 0)
        value: int = _EPOCH.unpack(raw)[0] if len(raw) == 8 else 0
        return value

    def close(self) -> None:
        """Close its file."""
        self._file.close()


class ProducerTable:
    """The last sequences of every producer in one partition, read from frames and from the note made at each roll."""

    def __init__(self, folder: Path) -> None:
        """Know nothing yet."""
        self._folder = folder
        self._known: dict[int, list[tuple[int, int, int]]] = {}
        self._base = -1
        self._position = 0

    def read_on(self, end: End) -> None:
        """Under the lock: take in what was written since, by whomever."""
        if self._base != end.base:
            self._known = self._load(end.base)
            self._base, self._position = end.base, 0
        if self._position >= end.position:
            return
        data = mapped(segment_path(self._folder, end.base))
        for _, header in headers(data, end.base, self._position, end.position):
            if header.sequence:
                self._note(header.producer, header.sequence - 1, header.offset, header.records)
        self._position = end.position

    def known(self, stamp: Stamp) -> range | None:
        """The offsets of a sequence that is there already, or None for a new one."""
        if stamp.sequence is None:
            return None
        marks = self._known.get(stamp.producer)
        if not marks or stamp.sequence > marks[-1][0]:
            return None
        for sequence, first, count in marks:
            if sequence == stamp.sequence:
                return range(first, first + count)
        raise Conflict(
            f"producer {stamp.name} is at sequence {marks[-1][0]}; "
            f"{stamp.sequence} is too long ago to say where it went.",
            hint="Go on after last_sequence().",
        )

    def last(self, producer: int) -> int | None:
        """The highest sequence of a producer."""
        marks = self._known.get(producer)
        return marks[-1][0] if marks else None

    def add(self, stamp: Stamp, offsets: range, position: int, base: int) -> None:
        """Under the lock: what was just written."""
        if self._base == base and stamp.sequence is not None:
            self._note(stamp.producer, stamp.sequence, offsets.start, len(offsets))
        if self._base == base:
            self._position = position

    def forget(self) -> None:
        """Read everything again the next time."""
        self._base = -1

    def save(self, path: Path, base: int) -> None:
        """Note what is known for the segment that begins."""
        newest = sorted(self._known.items(), key=lambda one: one[1][-1][1])[-MOST:]
        write_private(path, msgspec.msgpack.encode(dict(newest)))
        self._base, self._position = base, 0

    def _note(self, producer: int, sequence: int, first: int, count: int) -> None:
        marks = self._known.setdefault(producer, [])
        if marks and marks[-1][0] == sequence and marks[-1][1] + marks[-1][2] == first:
            marks[-1] = (sequence, marks[-1][1], marks[-1][2] + count)  # a batch of several frames
            return
        marks.append((sequence, first, count))
        del marks[:-REMEMBERED]

    def _load(self, base: int) -> dict[int, list[tuple[int, int, int]]]:
        try:
            raw = producers_path(self._folder, base).read_bytes()
            return msgspec.msgpack.decode(raw, type=dict[int, list[tuple[int, int, int]]])
        except FileNotFoundError:
            return {}
        except msgspec.MsgspecError:
            return self._from_all_segments(base)

    def _from_all_segments(self, base: int) -> dict[int, list[tuple[int, int, int]]]:
        """The note is damaged: the frames of everything before say the same."""
        self._known = {}
        for path in sorted(self._folder.glob("*.seg")):
            if int(path.stem) < base:
                data = mapped(path)
                for _, header in headers(data, int(path.stem), 0, len(data)):
                    if header.sequence:
                        self._note(header.producer, header.sequence - 1, header.offset, header.records)
        return self._known

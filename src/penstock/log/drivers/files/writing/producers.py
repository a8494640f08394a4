"""Producers: which appender of a name may append, and which sequences a partition already has."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

import msgspec

from penstock.log.drivers.files.format.control import End
from penstock.log.drivers.files.format.segments import headers, mapped, producers_path, segment_path
from penstock.log.drivers.files.locks import LockFile
from penstock.log.drivers.files.private import make_private, write_private
from penstock.log.drivers.shared.errors import producer_fenced, sequence_too_old

REMEMBERED = 5  # sequences of a producer whose offsets are remembered
MOST = 10_000  # producers that a partition remembers
_EPOCH = struct.Struct("<Q")


class ProducerStamp(msgspec.Struct, frozen=True):
    """What a frame says about its producer: the producer, its epoch, and its sequence number if it has one."""

    name: str
    producer: int
    epoch: int
    sequence: int | None = None

    @property
    def wire(self) -> int:
        """The sequence as a frame stores it; 0 stands for none."""
        return 0 if self.sequence is None else self.sequence + 1


def producer_id(name: str) -> int:
    """The number that frames store for a producer's name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") or 1


class ProducerEpoch:
    """One appender of a producer's name; a newer one fences it."""

    def __init__(self, folder: Path, name: str) -> None:
        """Raise the epoch, which fences all earlier appenders of the name."""
        make_private(folder, exist_ok=True)
        self.name = name
        self.id = producer_id(name)
        self._file = LockFile(str(folder / name))
        with self._file.held(0):
            self.epoch = self._stored() + 1
            os.pwrite(self._file.fd, _EPOCH.pack(self.epoch), 0)
            os.fdatasync(self._file.fd)

    def stamp(self, sequence: int | None) -> ProducerStamp:
        """The stamp for an append."""
        return ProducerStamp(self.name, self.id, self.epoch, sequence)

    def check(self) -> None:
        """Under a partition's lock: raise ``Fenced`` if a newer appender has the name."""
        if self._stored() != self.epoch:
            raise producer_fenced(self.name)

    def _stored(self) -> int:
        raw = os.pread(self._file.fd, 8, 0)
        value: int = _EPOCH.unpack(raw)[0] if len(raw) == 8 else 0
        return value

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class ProducerTable:
    """The last sequences of every producer in one partition, from its frames and from the table saved at each roll."""

    def __init__(self, folder: Path) -> None:
        """Empty until it is needed."""
        self._folder = folder
        self._sequences: dict[int, list[tuple[int, int, int]]] = {}  # sequence, first offset, count
        self._base = -1
        self._position = 0

    def catch_up(self, end: End) -> None:
        """Under the lock: read the frames that were written since, by any process."""
        if self._base != end.base:
            self._sequences = self._load(end.base)
            self._base, self._position = end.base, 0
        if self._position >= end.position:
            return
        data = mapped(segment_path(self._folder, end.base))
        for _, header in headers(data, end.base, self._position, end.position):
            if header.sequence:
                self._add(header.producer, header.sequence - 1, header.offset, header.records)
        self._position = end.position

    def offsets_of(self, stamp: ProducerStamp) -> range | None:
        """The offsets of a sequence that was appended before, or None for a new one."""
        if stamp.sequence is None:
            return None
        appended = self._sequences.get(stamp.producer)
        if not appended or stamp.sequence > appended[-1][0]:
            return None
        for sequence, first, count in appended:
            if sequence == stamp.sequence:
                return range(first, first + count)
        raise sequence_too_old(stamp.name, stamp.sequence, appended[-1][0])

    def last(self, producer: int) -> int | None:
        """The highest sequence of a producer."""
        appended = self._sequences.get(producer)
        return appended[-1][0] if appended else None

    def add(self, stamp: ProducerStamp, offsets: range, position: int, base: int) -> None:
        """Under the lock: add what was just written."""
        if self._base == base and stamp.sequence is not None:
            self._add(stamp.producer, stamp.sequence, offsets.start, len(offsets))
        if self._base == base:
            self._position = position

    def forget(self) -> None:
        """Read everything again next time."""
        self._base = -1

    def save(self, path: Path, base: int) -> None:
        """Save the table for the segment that begins."""
        newest = sorted(self._sequences.items(), key=lambda producer: producer[1][-1][1])[-MOST:]
        write_private(path, msgspec.msgpack.encode(dict(newest)))
        self._base, self._position = base, 0

    def _add(self, producer: int, sequence: int, first: int, count: int) -> None:
        appended = self._sequences.setdefault(producer, [])
        if appended and appended[-1][0] == sequence and sum(appended[-1][1:]) == first:
            appended[-1] = (sequence, appended[-1][1], appended[-1][2] + count)  # a batch of several frames
            return
        appended.append((sequence, first, count))
        del appended[:-REMEMBERED]

    def _load(self, base: int) -> dict[int, list[tuple[int, int, int]]]:
        try:
            raw = producers_path(self._folder, base).read_bytes()
            return msgspec.msgpack.decode(raw, type=dict[int, list[tuple[int, int, int]]])
        except FileNotFoundError:
            return {}
        except msgspec.MsgspecError:
            return self._from_all_segments(base)

    def _from_all_segments(self, base: int) -> dict[int, list[tuple[int, int, int]]]:
        """The saved table is damaged: read the same from the frames of all earlier segments."""
        self._sequences = {}
        for path in sorted(self._folder.glob("*.seg")):
            if int(path.stem) < base:
                data = mapped(path)
                for _, header in headers(data, int(path.stem), 0, len(data)):
                    if header.sequence:
                        self._add(header.producer, header.sequence - 1, header.offset, header.records)
        return self._sequences

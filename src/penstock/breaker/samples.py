"""Samples: what a process writes down of its outcomes, in a few small documents, for the other nodes to read.

Every settle call carries one document: the outcomes it settles, added to those of a document that is not full yet. So a
busy worker writes one row for a hundred outcomes, a slow one rewrites a short row, and nobody else writes to either.
"""

from __future__ import annotations

from collections import deque

import msgspec

from penstock.clock import Micros
from penstock.queue.protocol import DocumentWrite

# What one settle call brought: when, the ids of requests that succeeded, and of those that failed.
Outcomes = tuple[Micros, list[str], list[str]]
FULL = 64
LONGEST_ID = 64

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Outcomes])


class Chunk:
    """One document under way or kept."""

    __slots__ = ("name", "outcomes", "size")

    def __init__(self, name: str) -> None:
        """Start empty."""
        self.name = name
        self.outcomes: list[Outcomes] = []
        self.size = 0


class Samples:
    """The documents of one process for one circuit. Not thread safe: its circuit's lock guards it."""

    def __init__(self, prefix: str) -> None:
        """``prefix`` names the process and the circuit."""
        self._prefix = prefix
        self._number = 0
        self._epoch = -1
        self._free: list[Chunk] = []  # neither full nor under way
        self._kept: deque[tuple[str, int, Micros]] = deque()  # full ones: name, how many, the newest of them
        self._size = 0  # of those together

    def take(self, outcomes: Outcomes, epoch: int, *, most: int, oldest: Micros) -> tuple[Chunk, list[DocumentWrite]]:
        """A document with these outcomes, and what to write: it, and the removal of what does not count any more."""
        if epoch != self._epoch:
            # What was written of earlier epochs is swept.
            self._epoch, self._free, self._size = epoch, [], 0
            self._kept.clear()
        if self._free:
            chunk = self._free.pop()
        else:
            self._number += 1
            chunk = Chunk(f"{self._prefix}.{epoch}.{self._number}")
        chunk.outcomes.append(outcomes)
        chunk.size += len(outcomes[1]) + len(outcomes[2])
        writes = [DocumentWrite(chunk.name, _encoder.encode(chunk.outcomes))]
        while self._kept and (self._size > most or self._kept[0][2] < oldest):
            name, size, _ = self._kept.popleft()
            self._size -= size
            writes.append(DocumentWrite(name, None))
        return chunk, writes

    def give_back(self, chunk: Chunk, epoch: int) -> None:
        """The document was written, or will be written again with the next outcomes."""
        if epoch != self._epoch:
            return
        if chunk.size < FULL:
            self._free.append(chunk)
        else:
            self._kept.append((chunk.name, chunk.size, chunk.outcomes[-1][0]))
            self._size += chunk.size


def read_outcomes(value: bytes) -> list[Outcomes]:
    """A document's outcomes."""
    return _decoder.decode(value)

"""Answers: how often the head of a queue was given an answer that one of its retry headers is about.

An entry's attempts count everything that went wrong; ``x-queue-retry-503: 2`` is about that answer alone. A FIFO queue
has one head, so one document per queue is enough, and only those have one whose head asks for it and fails.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.codec import prepared
from penstock.gateway.batches import document_of, key_of
from penstock.queue.entry import Entry
from penstock.queue.protocol import DocumentWrite
from penstock.queue.queues import QueueStore


@prepared
class _Count(msgspec.Struct, frozen=True):
    entry: str
    answers: dict[str, int]  # by the header that counts them


class Answers:
    """The counts of the queues of one store."""

    def __init__(self, store: QueueStore) -> None:
        """Start without state: the store keeps it."""
        self._store = store

    def count(self, entry: Entry[Any], header: str) -> int:
        """Count one more answer that this header is about. Returns how many there have been."""
        known = self._read(entry) if entry.attempt > 1 else {}
        known[header] = known.get(header, 0) + 1
        count = _Count(key_of(entry), known)
        self._store.driver.write([DocumentWrite(document_of("answers", entry.queue), msgspec.json.encode(count))])
        return known[header]

    def forget(self, entry: Entry[Any]) -> None:
        """The entry is about to end."""
        self._store.driver.write([DocumentWrite(document_of("answers", entry.queue), None)])

    def _read(self, entry: Entry[Any]) -> dict[str, int]:
        document = self._store.driver.document(document_of("answers", entry.queue))
        try:
            count = None if document is None else msgspec.json.decode(document.value, type=_Count)
        except msgspec.DecodeError:
            return {}
        return dict(count.answers) if count is not None and count.entry == key_of(entry) else {}

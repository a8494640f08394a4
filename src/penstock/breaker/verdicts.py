"""Verdicts: what attempts say of the far side, and the writes that carry them."""

from __future__ import annotations

from hashlib import blake2b

from penstock.breaker.circuit import CircuitRecord
from penstock.breaker.ledger import Circuit
from penstock.breaker.samples import LONGEST_ID, Chunk
from penstock.queue.protocol import DocumentWrite

# What one attempt said: circuit, request id, whether the far side was well (None: it says nothing), queue, and the
# permit of a probe ("*" where probes need none).
Verdict = tuple[Circuit, str, bool | None, str, str]


class Pending(list[DocumentWrite]):
    """Writes on their way, and what they mean when they have arrived."""

    def __init__(self) -> None:
        """Start empty."""
        super().__init__()
        self.chunks: list[tuple[Circuit, Chunk, int]] = []
        self.changes: list[tuple[int, Circuit, CircuitRecord, CircuitRecord, list[Verdict]]] = []


def short_ids(ids: list[str]) -> list[str]:
    """Request ids of bearable length."""
    if max(map(len, ids), default=0) <= LONGEST_ID:
        return ids
    return [id_ if len(id_) <= LONGEST_ID else blake2b(id_.encode(), digest_size=20).hexdigest() for id_ in ids]

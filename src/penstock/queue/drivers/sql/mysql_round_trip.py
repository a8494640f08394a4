"""What a worker and a plain put do most often, in one message each."""

from __future__ import annotations

from collections.abc import Sequence

import pymysql

from penstock.queue.drivers.sql.round_trip import Hint, Trip
from penstock.queue.drivers.sql.rows import write_map
from penstock.queue.drivers.sql.session import Session
from penstock.queue.messages import ClaimRequest, NewEntry, PutResult, Step

_NO_QUEUE, _TAKEN = 1048, 1062


def put_plain(session: Session, entry: NewEntry) -> PutResult | None:
    """Put one plain entry; None if that needs a closer look."""
    try:
        [(due,)] = session.rows(
            "put_one", now=session.fixed_now, queue=entry.queue, node=entry.node or "", id=entry.id,
            priority=entry.priority, due=entry.due_us, delay=entry.delay_us, headers=write_map(entry.headers),
            expires=entry.expires_us, expires_in=entry.expires_in_us, codec=entry.codec, type=entry.type,
            payload=entry.payload,
        )  # fmt: skip
    except pymysql.err.MySQLError as error:
        if error.args[0] not in (_NO_QUEUE, _TAKEN):
            raise
        session.execute("ROLLBACK")
        return None
    return PutResult(entry.id, entry.queue, True, due)


def round_trip(
    session: Session, steps: Sequence[Step], claim: ClaimRequest, hints: dict[str, Hint], rings: int
) -> Trip:
    """End plain successes and claim from one queue."""
    return Trip(set(), None, session.now)

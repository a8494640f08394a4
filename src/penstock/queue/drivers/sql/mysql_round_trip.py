"""What a worker and a plain put do most often, in one message each."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import msgspec
import pymysql

from penstock import failpoints
from penstock.clock import Micros
from penstock.queue.drivers.sql.mysql_statements import Script
from penstock.queue.drivers.sql.round_trip import MOST_ATTEMPTS, WHOLE_LOOK_CLAIMS, Hint, Trip
from penstock.queue.drivers.sql.rows import Ref, read_map, write_map
from penstock.queue.drivers.sql.session import Session
from penstock.queue.drivers.sql.statements import Catalogue
from penstock.queue.entry import HELD, Entry, Lease
from penstock.queue.protocol import Claimed, ClaimRequest, Ending, NewEntry, PutResult, Step

_NO_VALUE, _TAKEN = 1048, 1062


def add_round_trips(catalogue: Catalogue) -> None:
    """Make one message of settling and claiming."""
    settle: Any = catalogue.statements["settle_done"]
    claim: Any = catalogue.statements["claim_plain"]
    begin: Any = catalogue.dialect.statement("START TRANSACTION")
    check: Any = catalogue.statements["check_all_are_held"]
    keep: Any = catalogue.statements["keep_results_of_held"]
    consume: Any = catalogue.statements["consume_links_of_held"]
    # The links of what is held are locked before it is let go.
    before_end = next(place for place, part in enumerate(settle.parts) if part.text.startswith("DELETE h "))
    for name, between in (
        ("settle_and_claim", ()),
        ("settle_keep_and_claim", check.parts + keep.parts),
        ("settle_consume_and_claim", check.parts + consume.parts),
        ("settle_keep_consume_and_claim", check.parts + keep.parts + consume.parts),
    ):
        catalogue.add(name, Script((*settle.parts[:before_end], *between, *settle.parts[before_end:], *claim.parts)))
    catalogue.add("only_claim", Script(begin.parts + claim.parts))


class RoundTrips:
    """Round trips of one handle. A queue in which the last claim found nothing is peeked into, unless the bell rang."""

    def __init__(self) -> None:
        """Begin without memory."""
        self._empty: dict[tuple[str, str], int] = {}  # what was empty, and how often the bell had rung then

    def round_trip(
        self, session: Session, steps: Sequence[Step], claim: ClaimRequest, hints: dict[str, Hint], rings: int
    ) -> Trip:
        """End plain successes and claim from one queue."""
        if not session.alone:
            return Trip(None, None, session.now)  # a message of several statements would end the transaction
        key = (claim.sources[0].name, claim.node)
        trip = peek(session, claim) if self._empty.pop(key, None) == rings and not steps else None
        if trip is None:
            trip = round_trip(session, steps, claim, hints, rings)
        if trip.claimed is not None and not trip.claimed.entries:
            self._empty[key] = rings
        return trip


def put_plain(session: Session, entry: NewEntry) -> PutResult | None:
    """Put one plain entry. Returns None if that needs a closer look."""
    try:
        [(due,)] = session.rows(
            "put_one", now=session.fixed_now, queue=entry.queue, node=entry.node or "", id=entry.id,
            priority=entry.priority, due=entry.due_us, delay=entry.delay_us, headers=write_map(entry.headers),
            expires=entry.expires_us, expires_in=entry.expires_in_us, codec=entry.codec, type=entry.type,
            payload=entry.payload,
        )  # fmt: skip
    except pymysql.err.MySQLError as error:
        if error.args[0] not in (_NO_VALUE, _TAKEN):
            raise
        session.execute("ROLLBACK")
        return None
    return PutResult(entry.id, entry.queue, True, due)


def round_trip(
    session: Session, steps: Sequence[Step], claim: ClaimRequest, hints: dict[str, Hint], rings: int
) -> Trip:
    """End plain successes and claim from one queue. ``hints`` are kept between claims, ``rings`` are the bell's."""
    [source] = claim.sources
    limit = min(claim.limit, source.limit)
    hint = hints.pop(source.name, None)
    if hint is not None and not (steps and hint.holds(rings)):
        hint = None
    endings = [step.endings[0] for step in steps]
    claims: dict[str, int] = {}
    named = [
        (ending.lease.ref.seq, claims.setdefault(ending.lease.ref.claim, len(claims) + 1), ending.started_us)
        for ending in endings
    ]
    results, places = _results(endings)
    linked = [ending.lease.entry for ending in endings if ending.lease.ref.linked]
    settling = f"settle{'_keep' if results else ''}{'_consume' if linked else ''}_and_claim"
    try:
        rows = session.rows(
            settling if steps else "only_claim", now=session.fixed_now, results=results, result_places=places,
            linked=linked, held=HELD,
            claims=",".join(claims), endings=msgspec.json.encode(named).decode(), count=len(named),
            queue=source.name, node=claim.node, limit=limit, max_attempts=source.attempts,
            attempts=MOST_ATTEMPTS if source.attempts is None else source.attempts,
            claim=claim.id, owner=claim.owner, lease=claim.lease_us, whole=not steps,
            urgency=None if hint is None else -hint.priority, from_at=None if hint is None else hint.due,
        )  # fmt: skip
    except pymysql.err.MySQLError as error:
        if error.args[0] != _NO_VALUE:
            raise
        # An entry needs a closer look: nothing of the message happened.
        session.execute("ROLLBACK")
        return Trip(set() if steps else None, None, session.now)
    now, number, several, ended, bodies, next_at, released = rows[0]
    if linked:
        failpoints.point("links.consumed")
    rang = bool(linked and released)
    failpoints.point("claim.leased")
    settled = None if not steps or ended == len(steps) else set(msgspec.json.decode(bodies or "[]"))
    if number is None or several:
        return Trip(settled, None, now, rang)
    entries = _entries(rows[1:], source.name, claim, now)
    if len(entries) == limit:
        hints[source.name] = _hint_after(entries[-1], hint, rings)
    # Where less than all was looked at, it is looked at next.
    soon = bool(entries or steps or hint is not None)
    next_us = now if soon else next_at
    return Trip(settled, Claimed(entries, next_us), now, rang)


def size_of_results(steps: Sequence[Step]) -> int:
    """How many bytes of a message what handlers returned will take."""
    results = (step.endings[0].result for step in steps)
    return sum(len(result.value) for result in results if result is not None) * 4 // 3


def _results(endings: Sequence[Ending]) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """What handlers returned, as rows of JSON; and what many have in common, which each names by a number."""
    numbers: dict[tuple[Any, ...], int] = {}
    rows = []
    for ending in endings:
        result = ending.result
        if result is not None:
            place = (result.generation, result.codec, result.kept_us, result.queue, result.batch)
            value = b64encode(result.value).decode()
            rows.append((ending.lease.entry, value, numbers.setdefault(place, len(numbers))))
    return rows, [(number, *place) for place, number in numbers.items()]


def peek(session: Session, claim: ClaimRequest) -> Trip | None:
    """The answer of a claim that finds nothing, learnt in one statement, or None if it may find something."""
    [source] = claim.sources
    rows = session.rows("peek", now=session.fixed_now, queue=source.name, node=claim.node)
    if not rows:
        return None
    [(now, special, locked, needs_look, head)] = rows
    if special or needs_look:
        return Trip(None, None, now)
    if locked or head is None:
        return Trip(None, Claimed(), now)
    return None if head <= now else Trip(None, Claimed([], head), now)


def _hint_after(last: Entry[Any], hint: Hint | None, rings: int) -> Hint:
    left, looked_at = (WHOLE_LOOK_CLAIMS, time.monotonic()) if hint is None else (hint.claims_left, hint.looked_at)
    return Hint(last.priority, last.due_us, last.seq, rings, left - 1, looked_at)


_read_numbers = msgspec.json.Decoder(list[int]).decode


def _entries(rows: Sequence[tuple[Any, ...]], queue: str, claim: ClaimRequest, now: Micros) -> list[Entry[Any]]:
    """What this claim holds, in the order of its queue. The numbers of each come as one text, which is read at once."""
    until, nonce, owner = now + claim.lease_us, claim.id, claim.owner
    entries: list[Entry[Any]] = []
    for numbers, id_, error, labels, headers, unique_key, expires, codec, type_, payload in rows:
        seq, body, priority, created, due, first_due, generation, attempt, fence, linked = _read_numbers(numbers)
        ref = Ref(seq, body, nonce, fence, unique_key is None, linked == 1)
        lease = Lease(id_, queue, f"{fence}-{nonce}", fence, owner, now, until, ref)
        entries.append(
            Entry(
                id_, queue, "leased", payload, codec, type_, seq, priority, created, due, first_due, attempt,
                generation, {} if labels is None else read_map(labels), {} if headers is None else read_map(headers),
                unique_key, expires, None, error, lease,
            )
        )  # fmt: skip
    entries.sort(key=lambda entry: (entry.due_us, entry.seq))
    return entries

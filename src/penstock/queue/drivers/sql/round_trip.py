"""The round trip of a worker on one plain queue: end what was done and claim the next entries, in one statement."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import msgspec

from penstock import failpoints
from penstock.clock import Micros
from penstock.queue.drivers.sql.rows import Ref, byte_strings, is_linked, numbers, read_map, texts
from penstock.queue.drivers.sql.session import Session
from penstock.queue.drivers.sql.statements import Catalogue
from penstock.queue.entry import HELD, Entry, Lease
from penstock.queue.protocol import Claimed, ClaimRequest, Ending, Step

MOST_ATTEMPTS = 2**31 - 1
LOWEST = -(2**31)  # below every priority
WHOLE_LOOK_CLAIMS, WHOLE_LOOK_SECONDS = 20, 0.5
DEAR_SECONDS = 0.01  # a whole look that takes so long steps over much that was deleted and cannot be vacuumed


class Hint(msgspec.Struct, frozen=True):
    """Where the last claim from a plain queue ended, so that the next one need not step over what it took.

    What comes back before that place, say by a retry of another process, is found by the next whole look: that is after
    some claims or half a second, or when the bell has rung. Where whole looks are dear, say because somebody keeps a
    snapshot open, only time counts, and they take no more than a third of it.
    """

    priority: int
    due: Micros
    seq: int
    rings: int
    claims_left: int
    looked_at: float  # when all was looked at
    looks: tuple[float, float] = (0.0, 0.0)  # seconds that the last two claims with a whole look took
    hinted: float = 0.0  # seconds that the last claim with a hint took

    @property
    def extra_seconds(self) -> float:
        """What a whole look takes beyond a hinted one. A single one may just have waited for a lock."""
        return min(self.looks) - self.hinted

    def holds(self, rings: int) -> bool:
        """Whether it may be used."""
        age, dear = time.monotonic() - self.looked_at, self.extra_seconds
        if dear >= DEAR_SECONDS:
            return age < max(WHOLE_LOOK_SECONDS, 2 * dear)
        return self.rings == rings and self.claims_left > 0 and age < WHOLE_LOOK_SECONDS

    def renewed(self, rings: int, now: float) -> Hint:
        """The same as of a whole look that begins now."""
        return msgspec.structs.replace(self, rings=rings, claims_left=WHOLE_LOOK_CLAIMS, looked_at=now)


class Trip(msgspec.Struct):
    """What a plain round trip gave. ``claimed`` is None where the claim needs the general way."""

    settled: set[int] | None  # bodies of what was ended, or None for all
    claimed: Claimed | None
    now: Micros
    rings: bool = False  # whether what it ended has released something


def is_plain(claim: ClaimRequest) -> bool:
    """Whether one statement may do: a claim from one queue by name."""
    return (
        len(claim.sources) == 1
        and not claim.repeat
        and not claim.sources[0].family
        and min(claim.limit, claim.sources[0].limit) > 0
    )


def add_round_trips(catalogue: Catalogue) -> None:
    """The plain round trip, and those that also keep results or consume links; the plain one pays for neither."""
    text = catalogue.text("round_trip")
    for results in ("", "keep_results_of_past"):
        for links in ("", "consume_links"):
            parts = {
                "{results}": results and catalogue.text(results),
                "{links}": links and catalogue.text(links),
                "{rings}": links and ", (SELECT rings FROM follow)",
            }
            whole = text
            for place, part in parts.items():
                whole = whole.replace(place, part)
            catalogue.add(_name(bool(results), bool(links)), catalogue.dialect.statement(whole))


def _name(keeps: bool, links: bool) -> str:
    return f"round_trip{'_keeps' if keeps else ''}{'_consumes' if links else ''}"


def round_trip(
    session: Session, steps: Sequence[Step], claim: ClaimRequest, hints: dict[str, Hint], rings: int
) -> Trip:
    """End plain successes and claim from one queue. ``hints`` are kept between claims, ``rings`` are the bell's."""
    [source] = claim.sources
    limit = min(claim.limit, source.limit)
    endings = sorted((step.endings[0] for step in steps), key=_claim_of)  # as they were within a claim
    refs: list[Ref] = [ending.lease.ref for ending in endings]
    sizes = Counter(ref.claim for ref in refs)
    lasts = list(accumulate(sizes.values()))
    begun, last_hint = time.monotonic(), hints.pop(source.name, None)
    hint = last_hint if last_hint is not None and last_hint.holds(rings) else None
    if last_hint is not None:
        # Until this claim is over, others of this process go on from there; one whole look at a time is enough.
        hints[source.name] = last_hint if hint else last_hint.renewed(rings, begun)
    linked = [(ending.lease.ref.body, ending.lease.entry) for ending in endings if ending.lease.ref.linked]
    results = _results(endings)
    rows = session.rows(
        _name(bool(results), bool(linked)), now=session.fixed_now, claims=list(sizes),
        firsts=[last - size + 1 for last, size in zip(lasts, sizes.values(), strict=True)], lasts=lasts,
        seqs=numbers(ref.seq for ref in refs),
        started=numbers(ending.started_us for ending in endings),
        queue=source.name, node=claim.node, limit=limit, max_attempts=source.attempts,
        attempts=MOST_ATTEMPTS if source.attempts is None else source.attempts,
        claim=claim.id, owner=claim.owner, lease=claim.lease_us, above=LOWEST if hint is None else hint.priority,
        from_due=None if hint is None else hint.due, from_seq=None if hint is None else hint.seq,
        linked_bodies=numbers(body for body, _ in linked), sources=texts(source for _, source in linked), held=HELD,
        channel=session.channel, **results,
    )  # fmt: skip
    if linked:
        failpoints.point("links.consumed")
    now, number, odd, ended, next_due = rows[0][:5]
    failpoints.point("claim.leased")
    hints.pop(source.name, None)
    settled, released = None if ended is None else set(ended), bool(linked) and rows[0][-1]
    if number is None or odd:
        return Trip(settled, None, now, released)
    taken = [] if rows[0][5] is None else [row[5:25] for row in rows]
    entries = plain_entries(taken, source.name, claim, now)
    if len(entries) == limit:
        hints[source.name] = _hint_after(entries[-1], hint, last_hint, begun, rings)
    # With a hint a part was not looked at: it is looked at next.
    soon = len(entries) == limit or hint is not None
    return Trip(settled, Claimed(entries, now if soon else next_due), now, released)


def _claim_of(ending: Ending) -> str:
    claim: str = ending.lease.ref.claim
    return claim


def _results(endings: Sequence[Ending]) -> dict[str, Any]:
    """What handlers returned, column by column; what many have in common is named once, and numbered from 1."""
    places: dict[tuple[int, str, Micros, str, str | None], int] = {}
    rows = []
    for ending in endings:
        result = ending.result
        if result is not None:
            place = (result.generation, result.codec, result.kept_us, result.queue, result.batch)
            rows.append((ending.lease.ref.body, places.setdefault(place, len(places) + 1), result.value))
    if not rows:
        return {}
    generations, codecs, lasting, queues, batches = map(list, zip(*places, strict=True))
    return {
        "result_bodies": numbers(body for body, _, _ in rows),
        "result_places": numbers(place for _, place, _ in rows),
        "values": byte_strings(value for _, _, value in rows),
        "generations": generations, "codecs": codecs, "lasting": lasting, "result_queues": queues, "batches": batches,
    }  # fmt: skip


def _hint_after(last: Entry[Any], hint: Hint | None, before: Hint | None, begun: float, rings: int) -> Hint:
    """The next hint after a claim with ``hint``, or after a whole look; ``before`` is the one there was."""
    now = time.monotonic()
    if hint is not None:
        left, looked_at, looks, hinted = hint.claims_left, hint.looked_at, hint.looks, now - begun
    else:
        left, looked_at = WHOLE_LOOK_CLAIMS, now
        looks = (0.0 if before is None else before.looks[1], now - begun)
        hinted = 0.0 if before is None else before.hinted
    return Hint(last.priority, last.due_us, last.seq, rings, left - 1, looked_at, looks, hinted)


def plain_entries(rows: Sequence[tuple[Any, ...]], queue: str, claim: ClaimRequest, now: Micros) -> list[Entry[Any]]:
    """Rows as they were before this claim took them, as entries that it holds."""
    until, nonce, owner = now + claim.lease_us, claim.id, claim.owner
    entries: list[Entry[Any]] = []
    for (
        seq, body, id_, priority, created, due, first_due, generation, attempt, fence, _, error, labels, headers,
        unique_key, unique_mode, expires, codec, type_, payload,
    ) in rows:  # fmt: skip
        fence += 1  # noqa: PLW2901 - the statement counted it up
        ref = Ref(seq, body, nonce, fence, unique_key is None, unique_mode is not None and is_linked(unique_mode))
        lease = Lease(id_, queue, f"{fence}-{nonce}", fence, owner, now, until, ref)
        entries.append(
            Entry(
                id_, queue, "leased", payload, codec, type_, seq, priority, created, due, first_due, attempt + 1,
                generation, {} if labels is None else read_map(labels), {} if headers is None else read_map(headers),
                unique_key, expires, None, error, lease,
            )
        )  # fmt: skip
    return entries

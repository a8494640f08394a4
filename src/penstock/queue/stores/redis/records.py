"""What is sent to the scripts and what comes back: entries, steps, claims, rows as packed lists, and the reverse."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from penstock.clock import Micros, duration_micros
from penstock.errors import (
    BadInput,
    Conflict,
    EntryLeased,
    EntryNotFound,
    LeaseLost,
    PenstockError,
    StoreFull,
    UniqueHeld,
)
from penstock.queue.entry import Entry, HistoryRow, Lease
from penstock.queue.store import Claimed, ClaimRequest, Document, NewEntry, Note, PutResult, Step, StepDone

Maybe: TypeAlias = Any  # the value, or False for none
Reply: TypeAlias = Any  # nested lists of bytes and integers, as the driver reads them

PAYLOADS_FROM = 4  # where payloads begin among a script's arguments, counted as Lua does
_EXACT = 2**53  # above it Lua's numbers are multiples of 32 at worst, for as long as datetime reaches
_DONE = StepDone()


class Kept(msgspec.Struct, array_like=True, gc=False):
    """An entry as the server keeps it, a list; the scripts name these fields e[ID], e[QUEUE], … False: absent."""

    id: str
    queue: str
    node: Maybe
    seq: int
    priority: int
    created: Micros
    due: Micros
    first_due: Micros
    expires: Maybe
    attempt: int
    generation: int
    fence: int
    suspect: bool
    parked: Maybe
    labels: Maybe
    headers: Maybe
    unique: Maybe
    mode: Maybe
    error: Maybe
    codec: str
    type: str
    settled: Maybe
    nonce: Maybe
    owner: Maybe
    claimed: Maybe
    most: Maybe


class New(msgspec.Struct, array_like=True, gc=False):
    """A new entry as it is sent, without its payload; the scripts name these fields new[N.ID], new[N.QUEUE], …"""

    id: str
    queue: str
    codec: str
    type: str
    priority: int
    due: Micros | None
    delay: Micros
    labels: str | None
    headers: str | None
    key: str | None
    mode: str | None
    conflict: str | None
    period: Micros
    expires: Micros | None
    expires_in: Micros | None
    node: str | None
    repeat: bool


class Head(msgspec.Struct, array_like=True):
    """How an attempt ended, before the entry in the text of a row or a dead letter."""

    state: Any
    started: Maybe
    ended: Micros
    error: Maybe
    attempt: int
    settled: bool


_PREFIX = struct.Struct("<IIdIBB")
_kept = msgspec.msgpack.Decoder(Kept).decode
_head = msgspec.msgpack.Decoder(Head).decode
_map = msgspec.json.Decoder(dict[str, str]).decode
_pack = msgspec.msgpack.Encoder().encode
_json = msgspec.json.Encoder().encode


def packed(request: dict[str, Any]) -> bytes:
    """A script's request."""
    return _pack(request)


def exact(moment: Micros | None) -> Micros | None:
    """A time the server can hold: from the year 2255 on to the nearest 32 microseconds before."""
    return moment if moment is None or moment < _EXACT else moment & ~31


def write_map(values: dict[str, str]) -> str | None:
    """Labels or headers as the server keeps them."""
    return _json(values).decode() if values else None


def read_map(text: Maybe) -> dict[str, str]:
    """Labels or headers as users see them."""
    return _map(text) if isinstance(text, str) else {}


# --- what is sent ----------------------------------------------------------------------------------


def new_entry(new: NewEntry) -> New:
    """A new entry without its payload."""
    unique = new.unique
    if unique is None:
        key = mode = conflict = None
        period = 0
    else:
        key, mode, conflict = unique.key, unique.mode, unique.on_conflict
        period = 0 if unique.period is None else duration_micros(unique.period)
    return New(
        new.id, new.queue, new.codec, new.type, new.priority, exact(new.due_us), new.delay_us, write_map(new.labels),
        write_map(new.headers), key, mode, conflict, period, exact(new.expires_us), new.expires_in_us, new.node,
        new.repeat,
    )  # fmt: skip


def write_steps(steps: Iterable[Step], payloads: list[bytes], *, repeat: bool) -> list[Any]:
    """Steps as the script reads them; their payloads are added to those that go beside them."""
    written: list[Any] = []
    for step in steps:
        again = repeat or step.repeat
        endings = step.endings
        if len(endings) == 1 and not again and not step.puts and not step.events:
            ending = endings[0]
            if ending.outcome == "done" and ending.error is None:
                # A plain success, what workers send by the hundred.
                written.append((ending.lease.entry, ending.lease.token, ending.started_us))
                continue
        written.append(
            (
                again,
                [
                    (
                        one.lease.entry, one.lease.token, one.outcome, one.started_us, exact(one.due_us), one.delay_us,
                        one.error,
                    )
                    for one in endings
                ],
                [new_entry(new) for new in step.puts],
                [(event.types, new_entry(event.template)) for event in step.events],
                PAYLOADS_FROM + len(payloads),
            )
        )  # fmt: skip
        payloads += [new.payload for new in step.puts]
        payloads += [event.template.payload for event in step.events]
    return written


def write_notes(notes: Iterable[Note], payloads: list[bytes]) -> list[Any]:
    """Documents as the script reads them; their values are added to what goes beside them."""
    written = []
    for note in notes:
        wanted = False if note.version is None else note.version
        if note.value is None:
            written.append((note.name, wanted, 0))
        else:
            written.append((note.name, wanted, PAYLOADS_FROM + len(payloads)))
            payloads.append(note.value)
    return written


def read_document(name: bytes, text: bytes) -> Document:
    """A document: its version, when it was written, and its value."""
    version, changed = struct.unpack_from("<dd", text)
    return Document(name.decode(), text[16:], int(version), int(changed))


def write_claim(claim: ClaimRequest, *, repeat: bool) -> dict[str, Any]:
    """A claim as the script reads it."""
    return {
        "id": claim.id,
        "owner": claim.owner,
        "node": claim.node,
        "limit": claim.limit,
        "lease": claim.lease_us,
        "alone": claim.alone,
        "repeat": repeat or claim.repeat,
        "sources": [
            {"name": one.name, "limit": one.limit, "attempts": one.attempts, "family": one.family}
            for one in claim.sources
        ],
    }


# --- what comes back -------------------------------------------------------------------------------


def read_entry(text: bytes, payload: bytes | None, until_us: Micros) -> Entry[Any]:
    """A live entry."""
    fence, attempt, claimed, nonce, owner, rest = _read_prefix(text)
    kept = _kept(text[rest:])
    id_, queue = kept.id, kept.queue
    lease = Lease(id_, queue, f"{fence}-{nonce}", fence, owner, claimed, until_us) if nonce else None
    return Entry(
        id_, queue, "waiting" if lease is None else "leased", payload or b"", kept.codec, kept.type, kept.seq,
        kept.priority, kept.created, kept.due, kept.first_due, attempt, kept.generation,
        {} if kept.labels is False else read_map(kept.labels),
        {} if kept.headers is False else read_map(kept.headers),
        kept.unique or None, kept.expires or None, kept.node or None,
        None if kept.error is False else kept.error, lease,
    )  # fmt: skip


def _read_prefix(text: bytes, start: int = 0) -> tuple[int, int, Micros, str, str, int]:
    """Fence, attempt, start of the lease, claim id, owner, and where the list begins; see lua/entries.lua."""
    fence, attempt, claimed, _, _, size = _PREFIX.unpack_from(text, start)
    at = start + _PREFIX.size + size + 2
    end = at + (text[at - 2] | text[at - 1] << 8)
    nonce = text[at:end].decode()
    at = end + 2
    end = at + (text[at - 2] | text[at - 1] << 8)
    return fence, attempt, int(claimed), nonce, text[at:end].decode(), end


def read_kept(text: bytes, start: int = 0) -> tuple[Kept, str]:
    """The entry as it is kept, and who held it."""
    fence, attempt, _, _, owner, rest = _read_prefix(text, start)
    kept = _kept(text[rest:])
    kept.fence, kept.attempt = fence, attempt
    return kept, owner


def read_ended(text: bytes) -> tuple[Head, Kept, str]:
    """How it ended, the entry, and who held it."""
    start = 2 + int.from_bytes(text[:2], "little")
    return _head(text[2:start]), *read_kept(text, start)


def read_dead(text: bytes, payload: bytes | None) -> Entry[Any]:
    """A dead letter."""
    head, kept, _ = read_ended(text)
    return Entry(
        kept.id, kept.queue, "dead", payload or b"", kept.codec, kept.type, kept.seq, kept.priority, kept.created,
        kept.due, kept.first_due, kept.attempt, kept.generation, read_map(kept.labels), read_map(kept.headers),
        kept.unique or None, kept.expires or None, kept.node or None, None if head.error is False else head.error,
        None, head.ended,
    )  # fmt: skip


def read_row(seq: bytes, text: bytes, payload: bytes | None) -> HistoryRow:
    """A row of the history; the payload is kept with the final row only, for a dead one with the letter."""
    head, kept, owner = read_ended(text)
    return HistoryRow(
        int(seq), kept.id, kept.queue, kept.generation, head.attempt, head.state, owner or None, kept.created,
        kept.due, None if head.started is False else head.started, head.ended,
        None if head.error is False else head.error, read_map(kept.labels), read_map(kept.headers), kept.codec,
        kept.type, payload if head.state in ("done", "cancelled", "expired") else None,
    )  # fmt: skip


def read_result(step: Step, result: Reply) -> StepDone | PenstockError:
    """What became of a step."""
    if result == 1:
        return _DONE
    if result[0] == 0:
        return problem(result[1:], step)
    _, puts, published = result
    if not puts and not published:
        return _DONE
    return StepDone(
        tuple([_put_result(new.id, new.queue, one) for new, one in zip(step.puts, puts, strict=True)]),
        tuple(tuple(_put_result(id_.decode(), queue.decode(), one) for id_, queue, one in some) for some in published),
    )


def _put_result(id_: str, queue: str, result: Reply) -> PutResult:
    if isinstance(result, int):
        return PutResult(id_, queue, True, result)
    return PutResult(result[0].decode(), queue, False, result[1])


def read_claimed(reply: Reply, claim: ClaimRequest, now: Micros) -> Claimed:
    """What a claim gave."""
    flat, upcoming, said, dead, untils = reply
    until = now + claim.lease_us
    if untils:
        entries = [read_entry(flat[2 * n], flat[2 * n + 1], end) for n, end in enumerate(untils)]
    else:
        entries = [read_entry(text, payload, until) for text, payload in zip(flat[::2], flat[1::2], strict=True)]
    return Claimed(entries, upcoming, said == b"waits", said == b"suspect", tuple([one.decode() for one in dead]))


def pairs(flat: list[bytes]) -> list[tuple[str, str]]:
    """Ids and their queues."""
    return [(id_.decode(), queue.decode()) for id_, queue in zip(flat[::2], flat[1::2], strict=True)]


def problem(said: list[Any], step: Step | None = None) -> PenstockError:
    """What a script says prevented something, as an error."""
    kind, *told = [one.decode() if isinstance(one, bytes) else one for one in said]
    if kind == "lost":
        owner = next((one.lease.owner for one in step.endings if one.lease.entry == told[0]), "") if step else ""
        queue = next((one.lease.queue for one in step.endings if one.lease.entry == told[0]), "") if step else ""
        return LeaseLost(
            f"{owner} no longer holds entry {told[0]} of queue {queue}.",
            hint="The lease ran out or was taken away; nothing was changed. Extend leases while working.",
        )
    if kind == "conflict":
        return Conflict(
            f"id {told[0]} belongs to another entry, in queue {told[1]}.",
            hint="Take a fresh id; only a repeat of the same put may carry it again.",
        )
    if kind == "unique":
        return UniqueHeld(
            f"unique id {told[1]!r} of queue {told[0]} is held by entry {told[2]}.",
            hint="Wait until that one lets go of it, cancel it, or put with on_conflict='keep'.",
        )
    if kind == "fifo":
        return BadInput(f"queue {told[0]} is FIFO: it knows neither priorities nor nodes.", hint="Leave them out.")
    if kind == "priority":
        return BadInput(f"priority {told[0]} is not allowed.", hint="Use -100 to 100; higher goes first.")
    if kind == "full":
        return StoreFull("the server is out of memory; nothing was written.", hint="Raise maxmemory or prune history.")
    if kind == "leased":
        return EntryLeased(
            f"entry {told[0]} of queue {told[1]} is being worked on by {told[2]}.",
            hint="Wait for its end, or take it away from its worker with force=True.",
        )
    if kind == "holds":
        return Conflict(
            f"queue {told[0]} holds {told[1]:,} entries and cannot change its order.",
            hint="Let it run empty before changing that, or use another queue.",
        )
    if kind == "unended":
        return EntryNotFound(f"no ended entry {told[0]} is kept.", hint="It may have been pruned or purged.")
    return EntryNotFound(f"no live entry {told[0]} is here.", hint="See history() and dead().")

"""What lies in the znodes, as msgpack: bodies, waiting entries, claims, history pages, heads of queues, the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from operator import attrgetter
from typing import Any

import msgspec

from penstock.clock import Micros
from penstock.codec import prepared
from penstock.policy import Rate
from penstock.queue.entry import Lock
from penstock.queue.rules.queue_order import LiveQueue
from penstock.queue.rules.rows import Attempt, Body, Claim, Dead, Hold, Live

encode = msgspec.msgpack.encode
decode = msgspec.msgpack.decode

# Finds the body of a number, or None where it is not there (any more).
FindBody = Callable[[int], Body | None]

_body_values = attrgetter(
    "number", "id", "payload", "codec", "type", "created_us", "labels", "headers", "unique", "unique_mode", "period_us"
)
_live_values = attrgetter(
    "body.number", "seq", "priority", "due_us", "first_due_us", "generation", "attempt", "fence", "suspect",
    "expires_us", "node", "error",
)  # fmt: skip


def digest(payload: bytes) -> bytes:
    """What stands for a payload in the mirror: equal payloads, and in practice no others, have it in common."""
    return blake2b(payload, digest_size=20).digest()


def number_of(seq: int) -> int:
    """The number in the names of znodes."""
    return seq >> 16


# --- bodies and live entries ---------------------------------------------------------------------------


def write_put(live: Live) -> bytes:
    """A body without its payload, and the entry as it was put."""
    return encode((_body_values(live.body), _live_values(live)))


def read_put(queue: str, data: bytes) -> Live:
    """The entry as it was put; its body has the digest in the payload's place."""
    body, live = decode(data)
    return _live(live, _body(queue, body))


def write_body(put: bytes, payload: bytes) -> bytes:
    """What the node of a body holds."""
    return encode((put, payload))


def read_body(data: bytes) -> tuple[bytes, bytes]:
    """Body and entry as they were put, and the payload."""
    put, payload = decode(data)
    return put, payload


def _body(queue: str, values: Sequence[Any]) -> Body:
    number, id_, *rest = values
    return Body(number, id_, queue, *rest)


def _live(values: Sequence[Any], body: Body) -> Live:
    return Live(body, *values[1:])


def write_live(live: Live) -> bytes:
    """A waiting entry; its body is elsewhere."""
    return encode(_live_values(live))


def read_live(data: bytes, find_body: FindBody) -> Live | None:
    """A waiting entry, or None if its body is not there."""
    values = decode(data)
    body = find_body(values[0])
    return None if body is None else _live(values, body)


def write_dead(letter: Dead) -> bytes:
    """A dead letter."""
    return encode((_live_values(letter.live), letter.ended_us))


def read_dead(data: bytes, find_body: FindBody) -> Dead | None:
    """A dead letter, or None if its body is not there."""
    values, ended = decode(data)
    body = find_body(values[0])
    return None if body is None else Dead(_live(values, body), ended)


# --- claims --------------------------------------------------------------------------------------------


def write_claim(claim: Claim) -> bytes:
    """A record of a claim, with what it holds."""
    held = [_live_values(live) for live in claim.held.values()]
    return encode((claim.owner, claim.claimed_us, claim.until_us, claim.max_attempts, claim.session, held))


def read_claim(queue: str, claim_id: str, data: bytes, find_body: FindBody) -> Claim:
    """A record of a claim; without those whose bodies are not there."""
    owner, claimed, until, attempts, session, entries = decode(data)
    held = {body.id: _live(values, body) for values in entries if (body := find_body(values[0])) is not None}
    return Claim(claim_id, queue, owner, claimed, until, attempts, held, session)


# --- pages of the history ------------------------------------------------------------------------------

Settled = tuple[str, str, str]  # id, token, outcome


def write_page(at_us: Micros, rows: Sequence[Attempt], settled: Sequence[Settled]) -> bytes:
    """Attempts that ended in one commit, and what was settled without one."""
    texts: dict[str | None, int] = {None: 0}

    def place(text: str | None) -> int:
        return texts.setdefault(text, len(texts))

    packed = []
    for row in rows:
        claim_id = None if row.token is None else row.token.partition("-")[2]
        packed.append((
            row.seq, row.state, row.attempt, place(row.owner), row.started_us, row.ended_us, row.error, place(claim_id),
            row.live.body.id, row.live.body.payload, _live_values(row.live),
        ))  # fmt: skip
    return encode((at_us, list(texts), packed, settled))


def read_page(queue: str, data: bytes, find_body: FindBody) -> tuple[Micros, list[Attempt], list[Settled]]:
    """When, attempts and settlements; a body that is gone is known by its id and digest only."""
    at_us, texts, packed, settled = decode(data)
    rows = []
    for seq, state, attempt, owner, started, ended, error, claim, id_, payload, values in packed:
        body = find_body(values[0]) or Body(values[0], id_, queue, payload, "", "", 0, {}, {})
        live = _live(values, body)
        token = f"{live.fence}-{texts[claim]}" if claim else None
        rows.append(Attempt(seq, live, state, attempt, texts[owner], started, ended, error, token))
    return at_us, rows, [(id_, token, outcome) for id_, token, outcome in settled]


# --- unique ids ----------------------------------------------------------------------------------------


def write_hold(hold: Hold) -> bytes:
    """Who holds a unique id; the key is in the node's name."""
    return encode((hold.id, hold.until_us))


def read_hold(data: bytes) -> Hold:
    """Who holds a unique id."""
    return Hold(*decode(data))


# --- queues ------------------------------------------------------------------------------------------


class Head(msgspec.Struct, array_like=True):
    """What is kept of a queue itself. Whoever changes anything in the queue sets its head, with a version check."""

    defined: bool = False
    fifo: bool = False
    rate: tuple[int, int] | None = None
    label_limit: tuple[str, int] | None = None
    locks: list[tuple[str, str, Micros]] = []
    tat: str = "0"  # as text: it may need more than 64 bits
    served: tuple[Micros, int] = (0, 0)
    tick: int = 0  # the highest number given out in this queue
    buckets: list[int] = []  # those there are, in order


def head_of(queue: LiveQueue | None, tick: int, buckets: list[int]) -> Head:
    """The head of a queue as it is now; None: nothing is left of it."""
    if queue is None:
        return Head(tick=tick, buckets=buckets)
    rate = None if queue.rate is None else (queue.rate.count, queue.rate.period)
    locks = sorted((lock.holder, lock.reason, lock.since_us) for lock in queue.locks.values())
    return Head(queue.defined, queue.fifo, rate, queue.label_limit, locks, str(queue.tat), queue.served, tick, buckets)


def restore(queue: LiveQueue, head: Head) -> None:
    """Make a queue what its head says."""
    queue.defined = head.defined
    queue.fifo = head.fifo
    queue.rate = None if head.rate is None else Rate(*head.rate)
    queue.limit_label(head.label_limit)
    queue.locks = {holder: Lock(queue.name, holder, reason, since) for holder, reason, since in head.locks}
    queue.tat = int(head.tat)
    queue.served = head.served


# --- the log -----------------------------------------------------------------------------------------


class Change(msgspec.Struct, array_like=True, gc=False):
    """One value that a commit changed. ``data`` is None where it is gone; ``extra`` is what its kind needs."""

    kind: str  # put, body, claim, ready, dead, hold, page, gone, schedule, document, links, wait, result, subscriptions
    queue: str
    key: str
    data: bytes | None
    extra: int = 0


@prepared
class Record(msgspec.Struct, array_like=True):
    """One commit, as the other mirrors read it."""

    handle: str
    op: str
    heads: Mapping[str, tuple[int, Head]] = {}  # with their new versions
    changes: list[Change] = []
    reload: list[str] = []  # queues that have changed too much to list here


def read_record(data: bytes) -> Record:
    """A record of the log."""
    return decode(data, type=Record)


def read_head(data: bytes) -> Head:
    """The head of a queue."""
    return decode(data, type=Head) if data else Head()

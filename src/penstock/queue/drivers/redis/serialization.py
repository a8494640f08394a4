"""What is sent to the functions and what comes back: entries, rows, documents, links and refusals, packed and read."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from penstock.clock import duration_micros
from penstock.errors import (
    BadInput,
    PenstockError,
    SchemaMismatch,
    StoreFull,
)
from penstock.queue import refusals
from penstock.queue.drivers.redis.bodies import STRIPPED, Body, Item, exact, pack, read_body, read_item
from penstock.queue.entry import HELD, Counts, Entry, HistoryRow, Lease, Lock
from penstock.queue.protocol import (
    Document,
    Ending,
    KeptResult,
    Link,
    NewEntry,
    Schedule,
    Step,
    Subscription,
    Wait,
)

Reply: TypeAlias = Any  # nested lists of bytes and integers, as the driver reads them


def packed(request: dict[str, Any]) -> bytes:
    """A function's request."""
    return pack(request)


# --- what is sent ----------------------------------------------------------------------------------


def new_entry(new: NewEntry) -> tuple[Any, ...]:
    """A new entry without its payload, in the order of ``lua/put.lua``."""
    unique = new.unique
    key = mode = conflict = None
    period = 0
    if unique is not None:
        key, mode, conflict = unique.key, unique.mode, unique.on_conflict
        period = 0 if unique.period is None else duration_micros(unique.period)
    return (
        new.id, new.queue, new.priority, exact(new.due_us), new.delay_us, key, mode, conflict, period,
        exact(new.expires_us), new.expires_in_us, new.node, new.repeat, new.labels or False, new.headers or False,
        new.codec, new.type,
    )  # fmt: skip


def lease_number(lease: Lease) -> int | None:
    """The sequence number of what is leased, or None for a lease that did not come from here."""
    return int.from_bytes(lease.ref[2], "big") if lease.ref else None


def write_ending(ending: Ending) -> tuple[Any, ...]:
    """An ending in the order of ``lua/settle.lua``."""
    lease = ending.lease
    return (
        lease.entry, lease_number(lease), lease.token, ending.outcome, ending.started_us,
        exact(ending.due_us), ending.delay_us, ending.error,
    )  # fmt: skip


# --- what comes back -------------------------------------------------------------------------------


def _text_or_none(value: Reply) -> str | None:
    return None if value is None else value.decode()


def _entry(state: Any, item: Item, body: Body, node: bytes, error: Reply) -> Entry[Any]:
    meta = body.meta
    return Entry(
        meta.id, meta.queue, state, body.payload, meta.codec, meta.type, item.seq, item.priority, body.created,
        item.due, body.first_due, item.attempt, item.generation, body.labels, body.headers,
        meta.unique or None, body.expires, node.decode() or None, _text_or_none(error),  # type: ignore[arg-type]
    )  # fmt: skip


def read_live(hit: Reply) -> Entry[Any]:
    """A live entry."""
    text, content, node, error, *held = hit
    item = read_item(text)
    body = read_body(content)
    entry = _entry("leased" if held else "waiting", item, body, node, error)
    if item.due == HELD:
        entry.state, entry.due_us = "held", body.first_due
    if held:
        key, claim, owner, claimed, until = held
        token = f"{item.fence}-{claim.decode()}"
        ref = (token, key, text[9:15], claim.decode())
        entry.lease = Lease(entry.id, entry.queue, token, item.fence, owner.decode(), claimed, until, ref)
    return entry


def read_dead(hit: Reply) -> Entry[Any]:
    """A dead letter."""
    text, content, node, error, ended, number = hit
    entry = _entry("dead", read_item(text), read_body(content), node, error)
    entry.seq, entry.ended_us = number, ended
    return entry


def row_payload(body: Body) -> bytes | None:
    """What a row shows: the payload that its attempt saw, unless that was removed."""
    return None if body.flags & STRIPPED else body.payload


def read_row(hit: Reply) -> HistoryRow:
    """A row of the history."""
    number, text, content, started, state, owner, error, _, ended = hit
    item, body = read_item(text), read_body(content)
    meta = body.meta
    return HistoryRow(
        number, meta.id, meta.queue, item.generation, item.attempt, state.decode(), _text_or_none(owner),
        body.created, item.due, started or None, ended, _text_or_none(error), body.labels, body.headers,
        meta.codec, meta.type, row_payload(body),
    )  # fmt: skip


def read_document(name: bytes, text: bytes) -> Document:
    """A document: its version, when it was written, and its value."""
    version, changed = struct.unpack_from("<dd", text)
    return Document(name.decode(), text[16:], int(version), int(changed))


def triples(flat: list[bytes]) -> list[tuple[str, str, str]]:
    """Ids, their queues and reasons."""
    words = [word.decode() for word in flat]
    return list(zip(words[::3], words[1::3], words[2::3], strict=True))


def pairs(flat: list[bytes]) -> list[tuple[str, str]]:
    """Ids and their queues."""
    return [(id_.decode(), queue.decode()) for id_, queue in zip(flat[::2], flat[1::2], strict=True)]


# --- queues, schedules, subscriptions ----------------------------------------------------------------


def read_counts(reply: Reply) -> list[Counts]:
    """What queues hold, by name."""
    counted = [
        Counts(
            name.decode(), ready, delayed, retrying, leased, dead, held, oldest,
            tuple(sorted(map(read_lock, locks), key=lambda lock: lock.holder)), bool(fifo),
        )
        for name, ready, delayed, retrying, leased, dead, oldest, fifo, locks, held in reply
    ]  # fmt: skip
    return sorted(counted, key=lambda counts: counts.queue)


def read_lock(reply: Reply) -> Lock:
    """A lock."""
    queue, holder, reason, since = reply
    return Lock(queue.decode(), holder.decode(), reason.decode(), since)


def read_schedules(texts: list[bytes]) -> list[Schedule]:
    """Schedules, by name."""
    stored = [msgspec.msgpack.decode(text) for text in texts]
    schedules = [
        msgspec.structs.replace(msgspec.json.decode(text, type=Schedule), next_us=next_us)
        for _, next_us, text in stored
    ]
    return sorted(schedules, key=lambda schedule: schedule.name)


def read_subscriptions(flat: list[bytes]) -> list[Subscription]:
    """Names and packed lists in turn, as subscriptions by name."""
    subscriptions = []
    for name, text in zip(flat[::2], flat[1::2], strict=True):
        queue, types = msgspec.msgpack.decode(text)
        subscriptions.append(Subscription(name.decode(), queue, tuple(types)))
    return sorted(subscriptions, key=lambda subscription: subscription.name)


# --- what prevented something ------------------------------------------------------------------------


# By the word that a function says: the refusal, and how many of the details it names.
_REFUSALS: dict[str, tuple[Callable[..., PenstockError], int]] = {
    "conflict": (refusals.id_taken, 2),
    "unique": (refusals.unique_held, 3),
    "fifo": (refusals.not_for_fifo, 1),
    "leased": (refusals.entry_leased, 3),
    "holds": (refusals.fifo_fixed, 1),
    "held": (refusals.held_in_fifo, 1),
    "unheld": (refusals.not_held, 1),
    "unsourced": (refusals.unknown_source, 1),
    "never": (refusals.source_ended, 2),
    "unended": (refusals.not_ended, 1),
}


def refusal(said: list[Any], step: Step | None = None) -> PenstockError:
    """What a function says prevented something, as an error."""
    kind, *details = [word.decode() if isinstance(word, bytes) else word for word in said]
    if kind == "lost" and step is not None:
        return refusals.lease_lost(next(ending.lease for ending in step.endings if ending.lease.entry == details[0]))
    if str(kind) in _REFUSALS:
        refusal_of, count = _REFUSALS[str(kind)]
        return refusal_of(*details[:count])
    match kind:
        case "priority":
            return BadInput(f"priority {details[0]} is not allowed.", hint="Use -100 to 100; higher goes first.")
        case "cycle":
            return refusals.cycle(details)
        case "full":
            return StoreFull(
                "the server is out of memory; nothing was written.", hint="Raise maxmemory or prune history."
            )
    return refusals.not_live(details[0])


# --- links and results -------------------------------------------------------------------------------


def read_waits(flat: list[bytes]) -> list[Wait]:
    """Ids and packed lists in turn, by id."""
    read = [Wait(id_.decode(), *msgspec.msgpack.decode(text)) for id_, text in zip(flat[::2], flat[1::2], strict=True)]
    return sorted(read, key=lambda wait: wait.id)


def read_links(flat: list[bytes]) -> list[Link]:
    """Sources and packed lists in turn, by source and target."""
    links = []
    for source, text in zip(flat[::2], flat[1::2], strict=True):
        words = msgspec.msgpack.decode(text)
        links += [Link(source.decode(), *pair) for pair in zip(words[::2], words[1::2], strict=True)]
    return sorted(links, key=lambda link: (link.source, link.target))


def read_result(text: bytes) -> KeptResult:
    """A result: the length of a packed list, the list, the value."""
    size = int.from_bytes(text[:4], "big")
    head = msgspec.msgpack.decode(text[4 : 4 + size])
    if len(head) != 5:  # without queue and batch
        raise SchemaMismatch(
            "a result in this space was kept by a Penstock that was never released, in a form that is no longer read.",
            hint="Wait until the time is over for which it is kept, or delete the keys {space}:results and "
            "{space}:result_ends.",
        )
    generation, codec, until, queue, batch = head
    return KeptResult(generation, codec, int(until), text[4 + size :], queue, batch or None)


def write_result(result: KeptResult) -> bytes:
    """The same, to be stored."""
    head = msgspec.msgpack.encode(
        (result.generation, result.codec, result.until_us, result.queue, result.batch or False)
    )
    return len(head).to_bytes(4, "big") + head + result.value


def read_results(flat: list[bytes]) -> list[tuple[str, KeptResult]]:
    """Ids and results in turn, by id."""
    return sorted((id_.decode(), read_result(text)) for id_, text in zip(flat[::2], flat[1::2], strict=True))

"""What is sent to the functions and what comes back: steps, claims, entries and rows, packed and read.

A body is a prefix, a packed list and the payload; an item is what changes in an entry's life. Both are described in
``lua/lib/entries.lua``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from penstock.clock import Micros, duration_micros
from penstock.errors import (
    BadInput,
    PenstockError,
    StoreFull,
)
from penstock.queue import refusals
from penstock.queue.entry import HELD, Entry, HistoryRow, Lease
from penstock.queue.protocol import (
    Claimed,
    ClaimRequest,
    Document,
    DocumentWrite,
    Ending,
    KeptResult,
    Link,
    NewEntry,
    PutResult,
    Step,
    StepDone,
    Wait,
)

Reply: TypeAlias = Any  # nested lists of bytes and integers, as the driver reads them

ARGUMENTS_FROM = 3  # where payloads begin among a function's arguments, counted as Lua does
STRIPPED = 8  # the flag of a body whose payload is gone
_EXACT = 2**53  # above it Lua's numbers are multiples of 32 at worst, for as long as datetime reaches
_DONE = StepDone()


class Meta(msgspec.Struct, array_like=True, gc=False):
    """The packed list in a body: what never changes in an entry. False: absent."""

    id: str
    queue: str
    codec: str
    type: str
    labels: dict[str, str] | bool = False
    headers: dict[str, str] | bool = False
    unique: str | bool = False
    mode: str | bool = False
    linked: bool = False  # others wait for it


# Flags, priority (100 less it), created, first due, expires or 0, size of the packed list.
_PREFIX = struct.Struct(">BBqQqI")
# Priority, due, sequence number and number of the body (each in two parts), attempt, generation, fence, flags.
_SIGN = 1 << 63  # of times that sort: it is flipped, so that those before 1970 come first
_ITEM = struct.Struct(">BQHIHIIIIB")
_meta = msgspec.msgpack.Decoder(Meta).decode
_pack = msgspec.msgpack.Encoder().encode


class Body(msgspec.Struct, gc=False):
    """A body, read."""

    flags: int
    created: Micros
    first_due: Micros
    expires: Micros | None
    meta: Meta
    payload: bytes

    @property
    def labels(self) -> dict[str, str]:
        """As users see them."""
        return self.meta.labels or {}  # type: ignore[return-value]

    @property
    def headers(self) -> dict[str, str]:
        """As users see them."""
        return self.meta.headers or {}  # type: ignore[return-value]


class Item(msgspec.Struct, gc=False):
    """An item, read."""

    priority: int
    due: Micros
    seq: int
    attempt: int
    generation: int
    fence: int
    suspect: bool


def read_body(text: bytes) -> Body:
    """A body from its text."""
    flags, _, created, first_due, expires, size = _PREFIX.unpack_from(text)
    end = _PREFIX.size + size
    return Body(flags, created, first_due - _SIGN, expires or None, _meta(text[_PREFIX.size : end]), text[end:])


def read_item(text: bytes) -> Item:
    """An item from its text."""
    priority, due, high, low, _, _, attempt, generation, fence, flags = _ITEM.unpack(text)
    return Item(100 - priority, due - _SIGN, high << 32 | low, attempt, generation, fence, flags % 2 == 1)


def packed(request: dict[str, Any]) -> bytes:
    """A function's request."""
    return _pack(request)


def exact(moment: Micros | None) -> Micros | None:
    """A time the server can hold: from the year 2255 on to the nearest 32 microseconds before."""
    return moment if moment is None or moment < _EXACT else moment & ~31


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


def _is_plain(new: NewEntry) -> bool:
    """Whether it needs nothing but its place in the queue."""
    return (
        not new.labels
        and new.unique is None
        and new.node is None
        and new.expires_us is None
        and new.expires_in_us is None
        and not new.repeat
    )


def _plain_text(new: NewEntry) -> bytes:
    """The part of a plain entry's body that the client knows."""
    meta: tuple[Any, ...] = (new.id, new.queue, new.codec, new.type)
    if new.headers:
        meta = (*meta, False, new.headers)
    text = _pack(meta)
    return len(text).to_bytes(4, "big") + text + new.payload


class _Group:
    """Plain successes of one claim, which end together."""

    __slots__ = ("claim", "fences", "indexes", "seqs", "starts")

    def __init__(self, claim: str) -> None:
        self.claim = claim
        self.indexes: list[int] = []
        self.seqs: list[bytes] = []
        self.starts: list[int] = []
        self.fences: list[int] = []

    def write(self, key: bytes, payloads: list[Any]) -> tuple[Any, ...]:
        """As the function reads it; a packed request cannot hold bytes, so they are added to the arguments."""
        first, count = ARGUMENTS_FROM + len(payloads), len(self.seqs)
        starts, fences = struct.pack(f">{count}q", *self.starts), struct.pack(f">{count}I", *self.fences)
        payloads += (key, b"".join(self.seqs), starts, fences)
        return first, self.claim


class SettleCall:
    """One call of settle: its steps, its documents and its claim, and what its reply means."""

    def __init__(self, steps: Sequence[Step], claim: ClaimRequest | None, documents: Sequence[DocumentWrite]) -> None:
        """Nothing is written yet."""
        self.steps = steps
        self.claim = claim
        self.documents = documents
        self._groups: dict[bytes, _Group] = {}
        self._general: list[int] = []  # which steps go by themselves

    @property
    def size(self) -> int:
        """How many bytes it carries, about."""
        total = sum(len(document.value or b"") for document in self.documents)
        for step in self.steps:
            if step.puts or step.events:
                total += sum(len(new.payload) for new in step.puts)
                total += sum(len(event.template.payload) for event in step.events)
        return total

    def write(self, payloads: list[Any], *, repeat: bool) -> tuple[Any, ...]:
        """As the function reads it; what is large is added to the arguments beside it."""
        self._groups, self._general = {}, []
        written: list[Any] = []
        for index, step in enumerate(self.steps):
            again = repeat or step.repeat
            if not again and self._joins_group(index, step):
                continue
            self._general.append(index)
            written.append(_write_step(step, payloads, repeat=again))
        groups = [group.write(key, payloads) for key, group in self._groups.items()]
        claim = None if self.claim is None else _write_claim(self.claim, repeat=repeat)
        return groups, written, claim, _write_documents(self.documents, payloads)

    def write_puts(self) -> list[Any] | None:
        """The arguments of a call that only puts plain entries, or None for any other."""
        steps = self.steps
        if len(steps) != 1 or self.claim is not None or self.documents:
            return None
        step = steps[0]
        if step.repeat or step.endings or step.events or step.links or not step.puts:
            return None
        arguments: list[Any] = []
        plain = _write_plain_puts(step.puts, arguments)
        if plain is None:
            return None
        self._groups, self._general = {}, [0]
        _, queue, priority, due, delay, _, _ = plain
        return [queue, priority, "" if due is None else due, delay, *arguments]

    def _joins_group(self, index: int, step: Step) -> bool:
        """Plain successes are what workers send by the hundred: those of one claim go together."""
        if len(step.endings) != 1 or step.puts or step.events or step.links:
            return False
        ending = step.endings[0]
        lease = ending.lease
        if ending.result is not None or ending.outcome != "done" or ending.error is not None or lease.ref is None:
            return False
        token, key, seq, claim = lease.ref
        if token != lease.token:
            return False
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(claim)
        group.indexes.append(index)
        group.seqs.append(seq)
        group.starts.append(lease.claimed_us if ending.started_us is None else ending.started_us)
        group.fences.append(lease.fence)
        return True

    def read(self, reply: Reply, now: Micros) -> tuple[list[StepDone | PenstockError], Claimed, list[bool]]:
        """What became of the steps, what was claimed, which documents were written."""
        finished, results, claimed, written = reply
        outcomes: list[Any] = [_DONE] * len(self.steps)
        for group, said in zip(self._groups.values(), finished, strict=True):
            if said != 1:
                for index, fine in zip(group.indexes, said, strict=True):
                    if not fine:
                        outcomes[index] = refusals.lease_lost(self.steps[index].endings[0].lease)
        for index, said in zip(self._general, results, strict=True):
            outcomes[index] = _read_result(self.steps[index], said)
        taken = Claimed() if self.claim is None else _read_claimed(claimed, self.claim)
        return outcomes, taken, [bool(said) for said in written]


def _write_step(step: Step, payloads: list[Any], *, repeat: bool) -> tuple[Any, ...]:
    if step.puts and not repeat and not step.endings and not step.events and not step.links:
        plain = _write_plain_puts(step.puts, payloads)
        if plain is not None:
            return plain
    endings = [_write_ending(ending, payloads) for ending in step.endings]
    first = ARGUMENTS_FROM + len(payloads)
    puts = [new_entry(new) for new in step.puts]
    events = [(event.types, new_entry(event.template)) for event in step.events]
    payloads += [new.payload for new in step.puts]
    payloads += [event.template.payload for event in step.events]
    if step.links:
        return repeat, endings, puts, events, first, [(link.source, link.target, link.on) for link in step.links]
    return repeat, endings, puts, events, first


def _write_plain_puts(puts: Sequence[NewEntry], payloads: list[Any]) -> tuple[Any, ...] | None:
    """Puts of plain entries into one queue with one due time, or None if they are not such."""
    head = puts[0]
    queue, priority, due, delay = head.queue, head.priority, head.due_us, head.delay_us
    arguments: list[Any] = []
    for new in puts:
        same = new.queue == queue and new.priority == priority and new.due_us == due and new.delay_us == delay
        if not same or not _is_plain(new):
            return None
        arguments += (new.id, _plain_text(new))
    first = ARGUMENTS_FROM + len(payloads)
    payloads += arguments
    return "put", queue, priority, exact(due), delay, first, len(puts)


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


def _write_ending(ending: Ending, payloads: list[Any]) -> tuple[Any, ...]:
    """An ending, and its result among the arguments."""
    result = ending.result
    if result is None:
        return write_ending(ending)
    payloads.append(result.value)
    return (*write_ending(ending), (result.codec, result.kept_us, ARGUMENTS_FROM + len(payloads) - 1))


def _write_documents(documents: Sequence[DocumentWrite], payloads: list[Any]) -> list[Any]:
    written = []
    for document in documents:
        wanted = False if document.version is None else document.version
        if document.value is None:
            written.append((document.name, wanted, 0))
        else:
            written.append((document.name, wanted, ARGUMENTS_FROM + len(payloads)))
            payloads.append(document.value)
    return written


def _write_claim(claim: ClaimRequest, *, repeat: bool) -> dict[str, Any]:
    return {
        "id": claim.id, "owner": claim.owner, "node": claim.node, "limit": claim.limit, "lease": claim.lease_us,
        "alone": claim.alone, "repeat": repeat or claim.repeat,
        "sources": [(source.name, source.limit, source.attempts, source.family) for source in claim.sources],
    }  # fmt: skip


# --- what comes back -------------------------------------------------------------------------------


def _read_claimed(reply: Reply, claim: ClaimRequest) -> Claimed:
    records, numbers, items, bodies, errors, upcoming, said, dead = reply
    claim_id, owner = claim.id, claim.owner
    failed = {errors[n] - 1: errors[n + 1].decode() for n in range(0, len(errors), 2)} if errors else {}
    read = [
        (key, queue.decode(), node.decode() or None, claimed, until) for key, queue, node, claimed, until in records
    ]
    entries: list[Entry[Any]] = []
    key, queue, node, claimed, until = read[0] if read else (b"", "", None, 0, 0)
    for index, (item, text) in enumerate(zip(_ITEM.iter_unpack(items), bodies, strict=True)):
        if numbers:
            at = (numbers[2 * index] << 8 | numbers[2 * index + 1]) - 1
            key, queue, node, claimed, until = read[at]
        priority, due, high, low, _, _, attempt, generation, fence, _ = item
        _, _, created, first_due, expires, size = _PREFIX.unpack_from(text)
        end = 30 + size
        meta = _meta(text[30:end])
        id_, token = meta.id, f"{fence}-{claim_id}"
        start = 34 * index + 9
        ref = (token, key, items[start : start + 6], claim_id)
        entries.append(
            Entry(
                id_, queue, "leased", text[end:], meta.codec, meta.type, high << 32 | low, 100 - priority, created,
                due - _SIGN, first_due - _SIGN, attempt, generation, meta.labels or {}, meta.headers or {},  # type: ignore[arg-type]
                meta.unique or None, expires or None, node,  # type: ignore[arg-type]
                failed.get(index) if failed else None,
                Lease(id_, queue, token, fence, owner, claimed, until, ref),
            )
        )  # fmt: skip
    return Claimed(entries, upcoming, said == b"waits", said == b"suspect", tuple([id_.decode() for id_ in dead]))


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
    text, content, node, error, ended = hit
    entry = _entry("dead", read_item(text), read_body(content), node, error)
    entry.ended_us = ended
    return entry


def row_payload(state: str, body: Body) -> bytes | None:
    """What a row shows: the payload is kept with the final row only, for a dead one with the letter."""
    return body.payload if state in ("done", "cancelled", "expired") and body.flags < STRIPPED else None


def read_row(hit: Reply) -> HistoryRow:
    """A row of the history."""
    number, text, content, started, state, owner, error, _, ended = hit
    item, body = read_item(text), read_body(content)
    meta, said = body.meta, state.decode()
    return HistoryRow(
        number, meta.id, meta.queue, item.generation, item.attempt, said, _text_or_none(owner), body.created, item.due,
        started or None, ended, _text_or_none(error), body.labels, body.headers, meta.codec, meta.type,
        row_payload(said, body),
    )  # fmt: skip


def read_document(name: bytes, text: bytes) -> Document:
    """A document: its version, when it was written, and its value."""
    version, changed = struct.unpack_from("<dd", text)
    return Document(name.decode(), text[16:], int(version), int(changed))


def _read_result(step: Step, result: Reply) -> StepDone | PenstockError:
    if len(result) == 1:  # plain puts
        return StepDone(tuple([PutResult(new.id, new.queue, True, result[0]) for new in step.puts]))
    if result[0] == 0:
        return refusal(result[1:], step)
    _, puts, published = result
    if not puts and not published:
        return _DONE
    return StepDone(
        tuple([_put_result(new.id, new.queue, result) for new, result in zip(step.puts, puts, strict=True)]),
        tuple(
            tuple(_put_result(id_.decode(), queue.decode(), result) for id_, queue, result in puts)
            for puts in published
        ),
    )


def _put_result(id_: str, queue: str, result: Reply) -> PutResult:
    if isinstance(result, int):
        return PutResult(id_, queue, True, result)
    return PutResult(result[0].decode(), queue, False, result[1])


def triples(flat: list[bytes]) -> list[tuple[str, str, str]]:
    """Ids, their queues and reasons."""
    words = [word.decode() for word in flat]
    return list(zip(words[::3], words[1::3], words[2::3], strict=True))


def pairs(flat: list[bytes]) -> list[tuple[str, str]]:
    """Ids and their queues."""
    return [(id_.decode(), queue.decode()) for id_, queue in zip(flat[::2], flat[1::2], strict=True)]


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
    generation, codec, until = msgspec.msgpack.decode(text[4 : 4 + size])
    return KeptResult(generation, codec, int(until), text[4 + size :])


def write_result(result: KeptResult) -> bytes:
    """The same, to be stored."""
    head = msgspec.msgpack.encode((result.generation, result.codec, result.until_us))
    return len(head).to_bytes(4, "big") + head + result.value


def read_results(flat: list[bytes]) -> list[tuple[str, KeptResult]]:
    """Ids and results in turn, by id."""
    return sorted((id_.decode(), read_result(text)) for id_, text in zip(flat[::2], flat[1::2], strict=True))

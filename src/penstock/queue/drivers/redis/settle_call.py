"""SettleCall: one call that settles, writes documents and claims: what is sent of it, and what its reply means."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from penstock.clock import Micros
from penstock.errors import PenstockError
from penstock.queue import refusals
from penstock.queue.drivers.redis.bodies import ITEM, PREFIX, SIGN, exact, pack, read_meta
from penstock.queue.drivers.redis.serialization import Reply, new_entry, refusal, write_ending
from penstock.queue.entry import Entry, Lease
from penstock.queue.protocol import (
    Claimed,
    ClaimRequest,
    DocumentWrite,
    Ending,
    NewEntry,
    NewResult,
    PutResult,
    Step,
    StepDone,
)

ARGUMENTS_FROM = 3  # where payloads begin among a function's arguments, counted as Lua does
_DONE = StepDone()


class _Group:
    """Plain successes of one claim, which end together."""

    __slots__ = ("claim", "fences", "indexes", "results", "seqs", "starts")

    def __init__(self, claim: str) -> None:
        self.claim = claim
        self.indexes: list[int] = []
        self.seqs: list[bytes] = []
        self.starts: list[int] = []
        self.fences: list[int] = []
        self.results: list[tuple[int, str, NewResult]] = []  # what handlers returned: place and id of each entry

    def write(self, key: bytes, payloads: list[Any]) -> tuple[Any, ...]:
        """As the function reads it; a packed request cannot hold bytes, so they are added to the arguments."""
        first, count = ARGUMENTS_FROM + len(payloads), len(self.seqs)
        starts, fences = struct.pack(f">{count}q", *self.starts), struct.pack(f">{count}I", *self.fences)
        payloads += (key, b"".join(self.seqs), starts, fences)
        if not self.results:
            return first, self.claim
        return first, self.claim, _write_results(self.results, payloads)


class SettleCall:
    """One call of settle: its steps, its documents and its claim, and what its reply means."""

    def __init__(self, steps: Sequence[Step], claim: ClaimRequest | None, documents: Sequence[DocumentWrite]) -> None:
        """Keep what is to be sent."""
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
        if ending.outcome != "done" or ending.error is not None or lease.ref is None:
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
        if ending.result is not None:
            group.results.append((len(group.seqs), lease.entry, ending.result))
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
    text = pack(meta)
    return len(text).to_bytes(4, "big") + text + new.payload


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


def _write_ending(ending: Ending, payloads: list[Any]) -> tuple[Any, ...]:
    """An ending, and its result among the arguments."""
    result = ending.result
    if result is None:
        return write_ending(ending)
    payloads.append(result.value)
    at = ARGUMENTS_FROM + len(payloads) - 1
    return (*write_ending(ending), (result.codec, result.kept_us, at, *_origin(result)))


def _write_results(results: Sequence[tuple[int, str, NewResult]], payloads: list[Any]) -> list[Any]:
    """Results that differ in nothing but their values together; the values are added to the arguments as one."""
    alike: dict[tuple[Any, ...], tuple[list[int], list[str], list[bytes]]] = {}
    for place, id_, result in results:
        common = (result.generation, result.codec, result.kept_us, result.queue, result.batch or False)
        columns = alike.get(common)
        if columns is None:
            columns = alike[common] = ([], [], [])
        places, ids, values = columns
        places.append(place)
        ids.append(id_)
        values.append(result.value)
    written = []
    for common, (places, ids, values) in alike.items():
        written.append((*common, ARGUMENTS_FROM + len(payloads), places, ids))
        payloads += (struct.pack(f">{len(values)}I", *map(len, values)), b"".join(values))
    return written


def _origin(result: NewResult) -> tuple[str, str | bool]:
    """Of which queue and batch the entry is."""
    return result.queue, result.batch or False


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


def _read_claimed(reply: Reply, claim: ClaimRequest) -> Claimed:
    records, numbers, items, bodies, errors, upcoming, said, dead = reply
    claim_id, owner = claim.id, claim.owner
    failed = {errors[n] - 1: errors[n + 1].decode() for n in range(0, len(errors), 2)} if errors else {}
    read = [
        (key, queue.decode(), node.decode() or None, claimed, until) for key, queue, node, claimed, until in records
    ]
    entries: list[Entry[Any]] = []
    key, queue, node, claimed, until = read[0] if read else (b"", "", None, 0, 0)
    for index, (item, text) in enumerate(zip(ITEM.iter_unpack(items), bodies, strict=True)):
        if numbers:
            at = (numbers[2 * index] << 8 | numbers[2 * index + 1]) - 1
            key, queue, node, claimed, until = read[at]
        priority, due, high, low, _, _, attempt, generation, fence, _ = item
        _, _, created, first_due, expires, size = PREFIX.unpack_from(text)
        end = 30 + size
        meta = read_meta(text[30:end])
        id_, token = meta.id, f"{fence}-{claim_id}"
        start = 34 * index + 9
        ref = (token, key, items[start : start + 6], claim_id)
        entries.append(
            Entry(
                id_, queue, "leased", text[end:], meta.codec, meta.type, high << 32 | low, 100 - priority, created,
                due - SIGN, first_due - SIGN, attempt, generation, meta.labels or {}, meta.headers or {},  # type: ignore[arg-type]
                meta.unique or None, expires or None, node,  # type: ignore[arg-type]
                failed.get(index) if failed else None,
                Lease(id_, queue, token, fence, owner, claimed, until, ref),
            )
        )  # fmt: skip
    return Claimed(entries, upcoming, said == b"waits", said == b"suspect", tuple([id_.decode() for id_ in dead]))


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

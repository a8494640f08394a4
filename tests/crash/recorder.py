"""The witness: writes down every call of a process on its store, line by line, so that a kill loses no line.

Puts, completions and units of work are all one thing in the store's contract, a step; so two places see everything:
``settle``, and the shorter way that a single put may take. A step that has an invocation and no result is one whose
outcome nobody knows.
"""

import itertools
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock import QueueStore
from penstock.errors import OutcomeUnknown, PenstockError, StoreUnavailable
from penstock.queue.protocol import ClaimRequest, NewEntry, PutResult, Settled, Step

_numbers = itertools.count()  # of this process, whatever number of handles it opens


class Recorder:
    """Appends events to one file per process."""

    def __init__(self, folder: Path) -> None:
        self._handle = os.open(folder / f"{os.getpid()}.events", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, op: str, **fields: Any) -> None:
        """One line, in one write: either whole or not there."""
        event = {"op": op, "process": os.getpid(), "at": time.monotonic_ns(), **fields}
        os.write(self._handle, json.dumps(event).encode() + b"\n")

    def watch(self, store: QueueStore) -> QueueStore:
        """Note everything that goes through this handle from now on."""
        settle, extend, put_plain = store.driver.settle, store.driver.extend, store.driver._put_plain

        def noted_put(entry: NewEntry) -> PutResult | None:
            number = next(_numbers)
            self.note("step", number=number, phase="invoke", endings=[], puts=[_noted(entry)])
            try:
                result = put_plain(entry)
            except PenstockError as error:
                phase = "info" if isinstance(error, StoreUnavailable | OutcomeUnknown) else "fail"
                self.note("step", number=number, phase=phase, error=type(error).__name__)
                raise
            if result is None:
                self.note("withdrawn", number=number)  # it goes the other way, as another step
            else:
                self.note("step", number=number, phase="ok", created=[result.id] if result.created else [])
            return result

        def noted_settle(steps: Sequence[Step], claim: ClaimRequest | None = None, **options: Any) -> Settled:
            numbers = [next(_numbers) for _ in steps]
            for number, step in zip(numbers, steps, strict=True):
                endings = [(ending.lease.entry, ending.lease.token, ending.outcome) for ending in step.endings]
                self.note(
                    "step", number=number, phase="invoke", endings=endings, puts=[_noted(put) for put in step.puts]
                )
            try:
                reply = settle(steps, claim, **options)
            except PenstockError as error:
                phase = "info" if isinstance(error, StoreUnavailable | OutcomeUnknown) else "fail"
                for number in numbers:
                    self.note("step", number=number, phase=phase, error=type(error).__name__)
                raise
            for number, result in zip(numbers, reply.results, strict=True):
                if isinstance(result, PenstockError):
                    self.note("step", number=number, phase="fail", error=type(result).__name__)
                else:
                    created = [put.id for put in result.puts if put.created]
                    self.note("step", number=number, phase="ok", created=created)
            self._note_claimed(claim, reply)
            return reply

        def noted_extend(leases: Any, lease_us: int) -> list[int | None]:
            ends = extend(leases, lease_us)
            for lease, end in zip(leases, ends, strict=True):
                self.note("extended", id=lease.entry, token=lease.token, until=end)
            return ends

        store.driver.settle = noted_settle  # type: ignore[method-assign]
        store.driver._put_plain = noted_put  # type: ignore[method-assign]
        store.driver.extend = noted_extend  # type: ignore[method-assign]
        return store

    def _note_claimed(self, claim: ClaimRequest | None, reply: Settled) -> None:
        for entry in reply.claimed.entries:
            lease = entry.lease
            if lease is None or claim is None:
                continue
            attempts = [
                source.attempts for source in claim.sources
                if entry.queue == source.name or (source.family and entry.queue.startswith(source.name))
            ]  # fmt: skip
            self.note(
                "claimed", id=entry.id, queue=entry.queue, token=lease.token, fence=lease.fence, attempt=entry.attempt,
                generation=entry.generation, claimed=lease.claimed_us, until=lease.until_us, due=entry.due_us,
                max=attempts[0],
            )  # fmt: skip

    def started(self, ctx: Any) -> None:
        """A handler starts."""
        self.note(
            "start", id=ctx.entry.id, generation=ctx.entry.generation, attempt=ctx.entry.attempt, fence=ctx.lease.fence
        )


def _noted(put: NewEntry) -> dict[str, Any]:
    return {"id": put.id, "queue": put.queue, "payload": put.payload.hex(), "unique": put.unique is not None}


def read_events(folder: Path) -> list[dict[str, Any]]:
    """What all processes wrote, in the order of time; a line that was cut off by a kill is left out."""
    events = []
    for path in sorted(folder.glob("*.events")):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                events.append(json.loads(line))
    withdrawn = {_step(event) for event in events if event["op"] == "withdrawn"}
    known = [event for event in events if event["op"] not in ("step", "withdrawn") or _step(event) not in withdrawn]
    return sorted(known, key=lambda event: event["at"])


def _step(event: dict[str, Any]) -> tuple[int, int]:
    return event["process"], event["number"]

"""What driver and workers tell each other: tickets, which say what to do, and what was done."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.clock import Micros
from penstock.codec import prepared
from penstock.log.store import Staged
from penstock.stream.engine.watermark import LOWEST, Promise, Reach, SilentInput


class Again(msgspec.Struct, array_like=True, frozen=True):
    """A record that failed and is to be tried again, after a pause that the driver waits for."""

    log: str
    offset: int
    attempt: int
    error: str
    delay_us: Micros = 0


@prepared
class Job(msgspec.Struct):
    """One task's part of a ticket."""

    task: int
    ranges: dict[str, tuple[int, int]] = {}  # by log: from, to before
    again: Again | None = None
    low: Micros = LOWEST  # what is known of event time, for a task that keeps nothing itself
    highs: dict[str, Micros] = {}
    firm: Micros = LOWEST  # what was promised before
    # By the computation's own names of its inputs: how far the writers had come, before the range and at its end.
    reaches: dict[str, tuple[Reach, Reach]] = {}
    silent: dict[str, SilentInput] = {}  # inputs that are read to their ends, where nothing comes


@prepared
class Ticket(msgspec.Struct):
    """One turn of a computation: the offset of its query. Everything a repetition needs is in it."""

    turn: int = 0
    now: Micros = 0
    jobs: list[Job] = []
    finish: bool | None = None  # the input has ended: True also for event time
    skipped: int = 0  # failures passed over so far
    inputs: dict[str, str] = {}  # which logs the ranges are of: their identities


@prepared
class Errand(msgspec.Struct):
    """A job with what it needs of its ticket: what a task gets."""

    turn: int
    now: Micros
    job: Job
    finish: bool | None = None
    skipped: int = 0


@prepared
class Done(msgspec.Struct):
    """What came of an errand."""

    task: int
    turn: int
    positions: dict[str, int] = {}
    staged: list[Staged] = []
    records: int = 0
    produced: int = 0
    timers: int = 0
    failures: int = 0
    skipped: int = 0
    low: Micros = LOWEST
    highs: dict[str, Micros] = {}
    heard: dict[str, Micros] = {}
    firm: Micros = LOWEST
    promise: Promise = Promise()
    next_event: Micros | None = None
    next_processing: Micros | None = None
    again: Again | None = None
    error: str | None = None
    finished: bool = False  # with what the end of the input means


def as_offset(ticket: Ticket) -> dict[str, Any]:
    """A ticket as Spark keeps it."""
    found: dict[str, Any] = msgspec.to_builtins(ticket)
    return found


def from_offset(offset: dict[str, Any]) -> Ticket:
    """The way back."""
    return msgspec.convert(offset, Ticket)


def errands(ticket: Ticket) -> list[Errand]:
    """A ticket taken apart."""
    return [Errand(ticket.turn, ticket.now, job, ticket.finish, ticket.skipped) for job in ticket.jobs]


def pack(one: Errand | Done) -> bytes:
    """As bytes, for a row."""
    return msgspec.msgpack.encode(one)


def errand_of(row: bytes) -> Errand:
    """The way back."""
    return msgspec.msgpack.decode(row, type=Errand)


def done_of(row: bytes) -> Done:
    """The way back."""
    return msgspec.msgpack.decode(row, type=Done)

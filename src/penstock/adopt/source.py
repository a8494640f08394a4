"""Source: a seed system's own data, read as entries; nothing here ever writes to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.clock import FIRST_TIME, LAST_TIME, Micros
from penstock.codec import BYTES, JSON
from penstock.errors import UnexpectedLayout
from penstock.ids import derived_id
from penstock.queue.protocol import Part, TransferRow

LONGEST_UNIQUE = 255
MOST_ATTEMPTS = 2**31 - 1  # a column of some stores holds no more


class SeedLock(msgspec.Struct, frozen=True):
    """A lock on a queue, as the seed has it."""

    queue: str
    holder: str
    reason: str


class Source(ABC):
    """What lives in one seed system. ``name`` is where, for messages and for the ids that are derived from it."""

    seed: str
    fifo = False  # whether its queues keep their order

    def __init__(self, name: str) -> None:
        """Know where it is."""
        self.name = name
        self.notes: list[str] = []  # what the last reading left out or could not know

    @abstractmethod
    def rows(self, began_us: Micros) -> Iterator[TransferRow]:
        """Everything, always in the same order: history, dead letters, live entries.

        ``began_us`` stands for times that the seed does not store; it is the same in every run of one adoption.
        """

    def locks(self) -> list[SeedLock]:
        """Its locks on queues."""
        return []

    def running(self) -> str | None:
        """What shows that somebody still works there, or None where nothing does."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Give the connection back."""

    def id_of(self, *parts: object) -> str:
        """The id of an entry: the same for the same thing, however often it is read."""
        return derived_id("adopt", self.seed, self.name, *map(str, parts))


def row(
    part: Part,
    *,
    where: str,
    id: str,
    queue: str,
    payload: bytes | None,
    created_us: Micros,
    due_us: Micros,
    **rest: Any,
) -> TransferRow:
    """One row; what a seed has no word for is as in an entry that was just put.

    ``where`` it was found is for the error about what no store can keep.
    """
    fields: dict[str, Any] = {
        "seq": 0, "state": "dead" if part == "dead" else "waiting", "codec": JSON, "type": "", "first_due_us": due_us,
        "attempt": 0, "generation": 1, "labels": {}, "headers": {}, **rest,
    }  # fmt: skip
    _check(where, {"created_us": created_us, "due_us": due_us, **fields})
    return TransferRow(
        part=part, id=id, queue=queue, payload=payload, created_us=created_us, due_us=due_us, **fields
    )  # fmt: skip


def _check(where: str, fields: dict[str, Any]) -> None:
    for name, word in _TIMES.items():
        if (moment := fields.get(name)) is not None and not FIRST_TIME <= moment <= LAST_TIME:
            raise unexpected(where, f"{word} is outside of the calendar", "a time in the years 1 to 9999")
    if not 0 <= fields["attempt"] <= MOST_ATTEMPTS:
        raise unexpected(where, f"it counts {fields['attempt']} attempts", f"a number from 0 to {MOST_ATTEMPTS}")


_TIMES = {
    "created_us": "its time of creation", "due_us": "its due time", "first_due_us": "its first due time",
    "expires_us": "its expiry", "ended_us": "its end",
}  # fmt: skip


def codec_of(payload: bytes) -> str:
    """How a payload is stored: as JSON if it is."""
    try:
        msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return BYTES
    return JSON


def unexpected(what: str, actual: str, documented: str) -> UnexpectedLayout:
    """The error for something that is not what the seed's documentation says."""
    return UnexpectedLayout(
        f"{what}: {actual}; documented is {documented}.",
        hint="Check the URL and the names of tables or keys; nothing was changed, here or there.",
    )

"""Server: what the module of one database gives the driver of all SQL databases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from penstock.queue.drivers.sql.migrations import Version
from penstock.queue.drivers.sql.round_trip import Hint, Trip
from penstock.queue.drivers.sql.session import Session
from penstock.queue.drivers.sql.transactions import Runner
from penstock.queue.protocol import ClaimRequest, Finding, NewEntry, Part, PutResult, Step
from penstock.queue.wakeup import Bell


class Server(Protocol):
    """What a database server's own module gives besides transactions."""

    payload_limit: int
    overlaps_round_trips: bool
    trips_keep_results: bool  # whether a round trip also keeps what handlers returned; or that follows in a transaction
    trips_consume_links: bool  # whether it also releases what waits for successes; or that follows in a transaction

    @property
    def transactions(self) -> Runner:
        """What runs its transactions."""

    @property
    def bell(self) -> Bell:
        """What wakes those who wait for work."""

    @property
    def works_alone(self) -> bool:
        """Whether the two calls below may be made outside a transaction."""

    def put_plain(self, session: Session, entry: NewEntry) -> PutResult | None:
        """Put an entry that needs no look first, the shortest way. Returns None if it needs one after all."""

    def round_trip(
        self, session: Session, steps: Sequence[Step], claim: ClaimRequest, hints: dict[str, Hint], rings: int
    ) -> Trip:
        """Settle plain successes and claim from one queue, the shortest way."""

    def listen(self) -> None:
        """Listen for other processes' puts from now on."""

    def hears(self) -> bool:
        """Whether all of them are heard at the moment."""

    def mark(self, session: Session, part: Part, after: int) -> int:
        """The last number of a part below which nothing new can appear; the caller knows all up to ``after``."""

    def schema_version(self) -> Version:
        """How far the tables of the space have come."""

    def migrate(self, phase: Any) -> list[str]:
        """Bring the tables to this version. Returns what was done."""

    def check(self, session: Session) -> list[Finding]:
        """What doctor says about the server."""

    def forked(self) -> None:
        """This is a child: leave the parent's connections alone."""

    def close(self) -> None:
        """Close all connections."""


@runtime_checkable
class PlainEnding(Protocol):
    """A server that ends plain successes in a shorter way than the general one also where nothing is claimed."""

    def end_plain(self, session: Session, steps: Sequence[Step]) -> set[int] | None:
        """End plain successes. Returns the bodies of those that were still held, or None if all were."""

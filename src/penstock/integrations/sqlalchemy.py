"""SQLAlchemy: an outbox in the program's own database, for queues whose store is elsewhere (Redis, ZooKeeper, …).

Queues in the same database need none: ``queue.put(value, connection=session)`` is in the session's transaction.

    outbox = Outbox(open_queues("postgresql://…"), into=open_queues("redis://…"))
    with Session(engine) as session, session.begin():
        session.add(order)
        outbox.put(mails, Mail(to=order.to), connection=session)

A worker of the outbox's store relays what was committed: ``Worker(outbox.store)``. Entries keep their ids, so a relay
that is killed and repeats itself puts nothing twice.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, Unpack
from zlib import crc32

import msgspec

from penstock.clock import Micros, duration
from penstock.errors import (
    BadInput,
    CannotOpen,
    OutcomeUnknown,
    PenstockError,
    StoreFull,
    StoreUnavailable,
    Unsupported,
)
from penstock.policy import Reject, Retry
from penstock.queue.entry import Unique
from penstock.queue.options import PutOptions, check_options
from penstock.queue.protocol import NewEntry

if TYPE_CHECKING:
    from penstock.queue.queue import Queue
    from penstock.queue.queues import QueueStore

T = TypeVar("T")

AWAY = (StoreUnavailable, OutcomeUnknown, StoreFull, CannotOpen)
ENDLESS = Retry(attempts=None, backoff="1s", max_backoff="1m")


class Outbox:
    """Puts that are committed with a transaction of one database, and relayed to queues of another store.

    Args:
        store: in the database of your transactions: entries are kept here until they are in the other
        into: the other store
        name: of the queues in ``store``
        lanes: how many queues are relayed at a time; entries of one queue go in the order of their puts
    """

    def __init__(self, store: QueueStore, *, into: QueueStore, name: str = "outbox", lanes: int = 4) -> None:
        """Define the queues that keep what is to be relayed."""
        if not store.capabilities.transactional:
            raise Unsupported(
                f"{store.name} joins no transactions, so it cannot hold an outbox.",
                hint="Keep it in the database of your transactions: sqlite://, postgresql:// or mysql://.",
            )
        if not isinstance(lanes, int) or lanes < 1:
            raise BadInput(f"an outbox with lanes={lanes!r} moves nothing.", hint="Use 1 or more.")
        self.store = store
        self.into = into
        # Defined here: there is no time for it inside a caller's transaction.
        self._lanes = [store.queue(f"{name}.{number}", dict, fifo=True) for number in range(lanes)]
        for lane in self._lanes:
            lane.add_handler(self._relay, retry=ENDLESS, concurrency=1)

    def put(self, queue: Queue[T], value: T, *, connection: Any, **options: Unpack[PutOptions]) -> str:
        """Put into a queue of the other store when the caller's transaction commits.

        Args:
            queue: of the other store
            value: of the queue's type
            connection: SQLAlchemy's, or a session, in a transaction
            **options: those of :meth:`penstock.Queue.put`

        Returns:
            the entry's id
        """
        if connection is None:
            raise BadInput("outbox.put() was given no connection.", hint="Without a transaction use queue.put().")
        if queue.store is not self.into:
            raise BadInput(
                f"queue {queue.name!r} is kept in {queue.store.name}, not in {self.into.name}.",
                hint="An outbox serves the queues of one store.",
            )
        check_options(options, "outbox.put")
        entry = _with_moments(queue.new(value, **options), self.store.clock.micros())
        lane = self._lanes[crc32(queue.name.encode()) % len(self._lanes)]
        lane.put(_packed(entry), id=entry.id, headers=entry.headers, connection=connection)
        return entry.id

    def _relay(self, packed: dict[str, Any]) -> Reject | None:
        """Put one entry into the other store; retried while that store is away."""
        try:
            self.into.driver.put((_unpacked(packed),))
        except AWAY:
            raise
        except PenstockError as refused:
            return Reject(f"{self.into.name} refused it: {refused}")
        return None


def _packed(entry: NewEntry) -> dict[str, Any]:
    """An entry as plain JSON."""
    fields = msgspec.structs.asdict(entry)
    if entry.unique is not None:
        fields["unique"] = msgspec.structs.asdict(entry.unique)
        if entry.unique.period is not None:
            fields["unique"]["period"] = duration(entry.unique.period).total_seconds()
    return {**fields, "payload": b64encode(entry.payload).decode()}


def _unpacked(packed: dict[str, Any]) -> NewEntry:
    """The entry again, as one that may have been put before."""
    unique = packed["unique"]
    if unique is not None:
        period = unique["period"]
        unique = Unique(**{**unique, "period": None if period is None else timedelta(seconds=period)})
    return NewEntry(**{**packed, "unique": unique, "payload": b64decode(packed["payload"]), "repeat": True})


def _with_moments(entry: NewEntry, now: Micros) -> NewEntry:
    """Make delays absolute: they count from the program's put, not from the relay's."""
    due = entry.due_us if entry.due_us is not None else (now + entry.delay_us if entry.delay_us else None)
    expires = entry.expires_us if entry.expires_in_us is None else now + entry.expires_in_us
    return msgspec.structs.replace(entry, due_us=due, delay_us=0, expires_us=expires, expires_in_us=None)

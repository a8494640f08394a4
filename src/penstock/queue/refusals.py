"""What a store refuses, in one text for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import (
    BadInput,
    Conflict,
    EntryLeased,
    EntryNotFound,
    LeaseLost,
    NotHeld,
    PayloadTooLarge,
    StoreFull,
    UniqueHeld,
    Unsupported,
)
from penstock.queue.entry import Lease


def lease_lost(lease: Lease) -> LeaseLost:
    """For a late owner."""
    return LeaseLost(
        f"entry {lease.entry} of queue {lease.queue!r} is no longer held with token {lease.token}.",
        hint="Its lease ran out or was voided; nothing was changed, another worker has it or had it.",
    )


def unique_held(queue: str, key: str, holder: str) -> UniqueHeld:
    """For a unique id that another entry holds."""
    return UniqueHeld(
        f"unique id {key!r} of queue {queue!r} is held by entry {holder}.",
        hint="Wait until it is released, or use on_conflict='keep'.",
    )


def id_taken(id_: str, queue: str) -> Conflict:
    """For a put whose id stands for something else."""
    return Conflict(
        f"id {id_!r} is already taken by another entry of queue {queue!r}.",
        hint="Use a fresh id, or leave it out to have one made.",
    )


def entry_leased(id_: str, queue: str, owner: str | None) -> EntryLeased:
    """For a change to an entry that is being worked on."""
    return EntryLeased(
        f"entry {id_} of queue {queue!r} is being worked on by {owner}.",
        hint="Wait for it, or pass force=True to take it away from its worker.",
    )


def not_live(id_: str) -> EntryNotFound:
    """For an id that no live entry has."""
    return EntryNotFound(f"no live entry {id_!r}.", hint="It may have ended: see history() and dead().")


def not_ended(id_: str) -> EntryNotFound:
    """For an id that no ended entry has."""
    return EntryNotFound(
        f"no ended entry {id_!r} is kept.", hint="History is pruned after a while; dead letters are not."
    )


def not_for_fifo(queue: str) -> BadInput:
    """For a priority or a node in a FIFO queue."""
    return BadInput(
        f"queue {queue!r} is FIFO: its order is that of the puts, so priority and sticky mean nothing.",
        hint="Leave them out, or use a queue without fifo.",
    )


def fifo_fixed(queue: str) -> Conflict:
    """For a queue that is to become FIFO, or stop being it, while it holds entries."""
    return Conflict(
        f"queue {queue!r} cannot become FIFO, or stop being FIFO, while it holds entries.",
        hint="Let it run empty first, or use another queue.",
    )


def not_held(id_: str) -> NotHeld:
    """For an entry that more is to be waited for, and that waits no longer."""
    return NotHeld(
        f"entry {id_!r} is not held, so nothing can be added that it waits for.",
        hint="It was released, cancelled or never held; put a new batch.",
    )


def held_in_fifo(queue: str) -> BadInput:
    """For an entry that is to be held in a FIFO queue."""
    return BadInput(
        f"queue {queue!r} is FIFO: an entry that is held would block all behind it.",
        hint="Put it into a queue without fifo; what it waits for may be in a FIFO queue.",
    )


def unknown_source(id_: str) -> EntryNotFound:
    """For an id that is to be waited for and that nobody knows."""
    return EntryNotFound(
        f"no entry {id_!r} is known that could be waited for.",
        hint="Check the id and the space; an entry that ended long ago is forgotten with its history.",
    )


def source_ended(id_: str, state: str) -> Conflict:
    """For an entry that is to be waited for and will not be done any more."""
    return Conflict(
        f"entry {id_!r} has ended as {state}, so waiting until it is done would never end.",
        hint="Replay it first, or wait with on='ended'.",
    )


def too_many_waiters(id_: str, most: int) -> StoreFull:
    """For an entry that more would wait for than its store can release."""
    return StoreFull(
        f"entry {id_!r} may be waited for by {most:,} entries here, no more.",
        hint="Let a few entries wait for it and the others for those, or use another store.",
    )


def cycle(ids: Sequence[str]) -> BadInput:
    """For entries that would wait for each other."""
    return BadInput(f"entries would wait for each other: {' -> '.join(ids)}.", hint="Leave one of the links out.")


def unsupported(store: str, what: str) -> Unsupported:
    """For a call that a store excludes."""
    return Unsupported(
        f"{store} does not support {what}.", hint="The table of capabilities in the docs shows which stores do."
    )


def too_large(size: int, limit: int, store: str) -> PayloadTooLarge:
    """For a payload over the limit."""
    return PayloadTooLarge(
        f"a payload of {size:,} bytes is over the limit of {limit:,} in {store}.",
        hint="Store the data elsewhere and put a reference, or raise payload_limit in the URL.",
    )

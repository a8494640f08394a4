"""Entry ids of keys with a prefix: the id that a caller gave, and the one under which the entry is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.ids import derived_id
from penstock.queue.batch import state_of
from penstock.queue.protocol import Find
from penstock.queue.queue import Queue
from penstock.queue.queues import QueueStore
from penstock.service.keys import ApiKey


def own_id(key: ApiKey, given: str) -> str:
    """The id under which an entry is stored.

    Ids belong to the whole store. A key with a prefix gets ids that no other prefix can name, or else it could take an
    id before its owner, and learn which ones are in use.
    """
    return derived_id("id", key.prefix, given) if key.prefix else given


def stored_id(handle: Queue[Any], key: ApiKey, given: str, *, ended: bool = False) -> str:
    """The stored id of an entry that a caller names by its stored id, or by the id that this key gave it."""
    return stored_ids(handle, key, [given], ended=ended)[0]


def stored_ids(handle: Queue[Any], key: ApiKey, given: Sequence[str], *, ended: bool = False) -> list[str]:
    """The stored ids of the entries of a queue that a caller names; with ``ended`` also of those that have ended."""
    if not key.prefix:
        return list(given)
    own_ids = tuple(dict.fromkeys(own_id(key, id_) for id_ in given))
    known = {entry.id for entry in handle.store.driver.find(Find(queue=handle.name, ids=own_ids, limit=len(own_ids)))}
    if ended:
        known.update(id_ for id_ in own_ids if id_ not in known and _has_ended(handle, id_))
    # A caller may name one entry by both of its ids.
    return list(dict.fromkeys(own if (own := own_id(key, id_)) in known else id_ for id_ in given))


def visible_id(store: QueueStore, key: ApiKey, given: str) -> str | None:
    """The stored id of an entry of any queue, or None if the key has a prefix and sees no such entry."""
    if not key.prefix:
        return given
    for id_ in (own_id(key, given), given):
        known = state_of(store, id_)
        if known is not None and key.sees(known[0]):
            return id_
    return None


def _has_ended(handle: Queue[Any], id_: str) -> bool:
    """Whether an entry is a dead letter, or has a row in the history, which is pruned after a while."""
    where = Find(queue=handle.name, ids=(id_,), limit=1)
    return bool(handle.store.driver.dead(where) or handle.store.driver.history(where))

"""Changes: who changed what in a store by hand, and how it was before and after.

Each change is a document of its own, named by a time-ordered id, so that nobody waits for anybody to write one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.clock import SECOND, Micros
from penstock.ids import new_id
from penstock.queue.protocol import DocumentWrite

if TYPE_CHECKING:
    from penstock.queue.queues import QueueStore

PREFIX = "penstock.change."
KEPT: Micros = 30 * 24 * 60 * 60 * SECOND
LONGEST_TEXT = 2000


class Change(msgspec.Struct, frozen=True):
    """What somebody did: to what, why, and the state of it before and after, in words."""

    by: str
    did: str
    target: str  # the name of the queue, log, schedule or circuit
    before: str
    after: str
    why: str = ""
    at_us: Micros = 0


def record_change(store: QueueStore, change: Change) -> None:
    """Keep a change; those of more than 30 days ago are removed with it."""
    now = store.now()
    shortened = msgspec.structs.replace(
        change, at_us=now, before=change.before[:LONGEST_TEXT], after=change.after[:LONGEST_TEXT],
        why=change.why[:LONGEST_TEXT],
    )  # fmt: skip
    old = [document.name for document in store.driver.documents(PREFIX) if document.changed_us < now - KEPT][:100]
    store.driver.write(
        [DocumentWrite(PREFIX + new_id(), msgspec.json.encode(shortened)), *(DocumentWrite(name, None) for name in old)]
    )


def recent_changes(store: QueueStore, target: str | None = None) -> list[Change]:
    """The changes of the last 30 days, of all or of one target, the newest first."""
    documents = store.driver.documents(PREFIX, since_us=store.now() - KEPT)
    changes = [msgspec.json.decode(document.value, type=Change) for document in documents]
    chosen = [change for change in changes if target is None or change.target == target]
    return sorted(chosen, key=lambda change: change.at_us, reverse=True)

"""What a driver refuses before anything is sent: steps, entries, documents and changes it cannot take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.clock import check_time
from penstock.errors import BadInput, UnitTooLarge
from penstock.names import check_name
from penstock.queue.linking import check_links
from penstock.queue.protocol import Changes, DocumentWrite, NewEntry, Step

if TYPE_CHECKING:
    from penstock.queue.driver import Driver


def check_connection(driver: Driver, connection: Any) -> None:
    """Refuse the caller's connection where the store has no transactions to share."""
    if connection is not None and not driver.capabilities.transactional:
        raise driver.unsupported("calls inside the caller's transaction (connection=)")


def check_step(driver: Driver, step: Step) -> None:
    """Refuse a step that is too large, ends an entry twice, or uses what the store does not support."""
    size = len(step.endings) + len(step.puts) + len(step.events)
    if size == 1 and step.endings:
        return
    total = 0
    for entry in (*step.puts, *(event.template for event in step.events)):
        check_entry(driver, entry)
        total += len(entry.payload)
    if size > driver.unit_limit or total > driver.unit_bytes:
        raise UnitTooLarge(
            f"{size:,} endings and puts with {total:,} bytes are over what {driver.name} commits in one step "
            f"({driver.unit_limit:,} and {driver.unit_bytes:,} bytes).",
            hint="Split it, for put_many with chunk=.",
        )
    if step.links:
        if not driver.capabilities.links:
            raise driver.unsupported("entries that wait for others")
        check_links(step.links, step.puts)
    if len({ending.lease.entry for ending in step.endings}) != len(step.endings):
        raise BadInput("a step ends the same entry twice.", hint="End every entry once.")


def check_entry(driver: Driver, entry: NewEntry) -> None:
    """Refuse a payload over the limit, and times that no calendar has."""
    if len(entry.payload) > driver.payload_limit:
        raise driver.too_large(len(entry.payload))
    if entry.due_us is not None:
        check_time(entry.due_us + entry.delay_us, name="due")
    if entry.expires_us is not None:
        check_time(entry.expires_us, name="expires")


def check_changes(driver: Driver, changes: Changes) -> None:
    """Refuse the same in changes to a waiting entry."""
    if changes.payload is not None and len(changes.payload) > driver.payload_limit:
        raise driver.too_large(len(changes.payload))
    check_time(changes.due_us, name="due")


def check_write(driver: Driver, write: DocumentWrite, connection: Any) -> None:
    """Refuse a document that is too large, has no proper name, or is written in the caller's transaction."""
    check_name(write.name, kind="document")
    if connection is not None:
        raise BadInput(
            "documents are not written inside the caller's transaction.",
            hint="Leave out connection, or the documents.",
        )
    if write.value is not None and len(write.value) > driver.payload_limit:
        raise driver.too_large(len(write.value))

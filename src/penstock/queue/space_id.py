"""Which space of which store this is: an id that is stored in the space itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import CannotOpen, StoreReadOnly
from penstock.ids import new_id
from penstock.queue.protocol import DocumentWrite

if TYPE_CHECKING:
    from penstock.queue.driver import Driver

# The document that says which space this is. It is not copied with the others, because the copy is another space,
# which gives out the same numbers again.
IDENTITY = "penstock.identity"


def space_id(driver: Driver) -> str:
    """The space's identity, stored on first use; empty where none is stored and none can be."""
    document = driver.document(IDENTITY)
    if document is None:
        try:
            driver.write([DocumentWrite(IDENTITY, new_id().encode(), 0)])  # the first writer decides for all
        except (StoreReadOnly, CannotOpen):
            return ""
        document = driver.document(IDENTITY)
    return "" if document is None else document.value.decode()

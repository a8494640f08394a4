"""Queues in the memory of one process: for tests, for trying out, and as the contract in its plainest form.

``store`` is the handle and what people ask of entries, ``state`` the tables and how entries leave them, ``steps``
endings, puts and events, ``claims`` leases and the reaper, ``lineup`` which queue is next, ``lanes`` which entry,
``moving`` what is carried to and from another store.
"""

from penstock.queue.stores.memory.store import MemoryStore, open_store

__all__ = ["MemoryStore", "open_store"]

"""Logs in the memory of one process.

driver   MemoryDriver: the contract's calls
state    the records, groups and producers that the handles of one name share
sink     appending and staging
group    readers, memberships, and waiting
"""

from penstock.log.drivers.memory.driver import MemoryDriver, open_driver

__all__ = ["MemoryDriver", "open_driver"]

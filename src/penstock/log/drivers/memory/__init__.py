"""Logs in the memory of one process.

driver   the driver, its state and its groups
"""

from penstock.log.drivers.memory.driver import open_store

__all__ = ["open_store"]

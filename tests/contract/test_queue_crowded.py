"""Several at once, on every store."""

from penstock.testing.contract.crowded import (
    TestCrowdedLocks,
    TestCrowdedProcesses,
    TestCrowdedUniqueIds,
    TestCrowdedWorkers,
)

__all__ = ["TestCrowdedLocks", "TestCrowdedProcesses", "TestCrowdedUniqueIds", "TestCrowdedWorkers"]

"""Workers in the background on every store."""

from penstock.testing.contract.running import TestComingAndGoing, TestRunning, TestStopping

__all__ = ["TestComingAndGoing", "TestRunning", "TestStopping"]

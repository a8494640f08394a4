"""One bad thing harms no other, on every store."""

from penstock.testing.contract.stubborn import (
    TestStubbornClaims,
    TestStubbornFamilies,
    TestStubbornLeases,
    TestStubbornMaintenance,
    TestStubbornWorkers,
)

__all__ = [
    "TestStubbornClaims",
    "TestStubbornFamilies",
    "TestStubbornLeases",
    "TestStubbornMaintenance",
    "TestStubbornWorkers",
]

"""Circuits on every store."""

from penstock.testing.contract.circuits import TestCircuits

__all__ = ["TestCircuits"]

"""Signals on every store."""

from penstock.testing.contract.telling import TestSignals

__all__ = ["TestSignals"]

"""Leases, tokens and fences on every store."""

from penstock.testing.contract.leases import TestExtending, TestFences, TestHeartbeat, TestTokens

__all__ = ["TestExtending", "TestFences", "TestHeartbeat", "TestTokens"]

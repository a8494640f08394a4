"""Exclusive appenders and sequences on every log store."""

from tests.contract.logs import logs_url, open_logs

from penstock.testing.log_contract.producers import TestExclusive, TestSequences

__all__ = ["TestExclusive", "TestSequences", "logs_url", "open_logs"]

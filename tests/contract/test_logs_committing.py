"""Offsets of groups, lag and latency on every log store."""

from tests.contract.logs import logs_url, open_logs

from penstock.testing.log_contract.committing import TestCommits, TestLag, TestResets

__all__ = ["TestCommits", "TestLag", "TestResets", "logs_url", "open_logs"]

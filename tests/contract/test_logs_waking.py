"""Waiting for records and commits on every log store."""

from tests.contract.logs import logs_url, open_logs

from penstock.testing.log_contract.waking import TestWaitingForGroups, TestWaking

__all__ = ["TestWaitingForGroups", "TestWaking", "logs_url", "open_logs"]

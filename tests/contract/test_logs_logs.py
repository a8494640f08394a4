"""Creating, listing and deleting logs on every log store."""

from tests.contract.logs import logs_url, open_logs

from penstock.testing.log_contract.logs import TestDeletion, TestIdentity, TestLogs

__all__ = ["TestDeletion", "TestIdentity", "TestLogs", "logs_url", "open_logs"]

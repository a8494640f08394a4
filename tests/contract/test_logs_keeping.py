"""Retention on every log store."""

from tests.contract.logs import logs_url, open_logs

from penstock.testing.log_contract.keeping import TestRetention, TestRetentionElsewhere

__all__ = ["TestRetention", "TestRetentionElsewhere", "logs_url", "open_logs"]

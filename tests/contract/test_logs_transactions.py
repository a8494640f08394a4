"""Transactions and staging on every log store."""

from tests.contract.logs import logs_url, open_logs

from penstock.testing.log_contract.transactions import TestStaging, TestTransactions

__all__ = ["TestStaging", "TestTransactions", "logs_url", "open_logs"]

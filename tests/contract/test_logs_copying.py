"""Copies of logs between every log store and another."""

from tests.contract.logs import logs_url, open_logs

from penstock.testing.log_contract.copying import TestCopies, other

__all__ = ["TestCopies", "logs_url", "open_logs", "other"]

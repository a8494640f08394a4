"""Appending on every log store."""

from tests.contract.logs import logs_url, open_logs

from penstock.testing.log_contract.appending import TestAppending, TestLingering, TestTypes

__all__ = ["TestAppending", "TestLingering", "TestTypes", "logs_url", "open_logs"]

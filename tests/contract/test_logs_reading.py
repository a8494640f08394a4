"""Reading, seeking and ranges on every log store."""

from tests.contract.logs import logs_url, open_logs

from penstock.testing.log_contract.reading import TestOutOfRange, TestRanges, TestReading, TestSeeking

__all__ = ["TestOutOfRange", "TestRanges", "TestReading", "TestSeeking", "logs_url", "open_logs"]

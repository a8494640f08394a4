"""Pools of producers and consumers on every log store."""

from tests.contract.logs import logs_url, open_logs

from penstock.testing.log_contract.pools import (
    TestBatches,
    TestBoundedPools,
    TestEnding,
    TestFailures,
    TestProducerPools,
)

__all__ = [
    "TestBatches",
    "TestBoundedPools",
    "TestEnding",
    "TestFailures",
    "TestProducerPools",
    "logs_url",
    "open_logs",
]

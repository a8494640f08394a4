"""Owners of partitions and subscribers on every log store."""

from tests.contract.logs import logs_url, open_logs

from penstock.testing.log_contract.groups import TestOwners, TestSubscribers

__all__ = ["TestOwners", "TestSubscribers", "logs_url", "open_logs"]

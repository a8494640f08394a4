"""penstock.aio over every log store."""

from tests.contract.logs import logs_url, open_logs

from penstock.testing.log_contract.awaiting import TestAwaitedLogs

__all__ = ["TestAwaitedLogs", "logs_url", "open_logs"]

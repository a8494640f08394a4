"""Bad input on every log store."""

from tests.contract.logs import logs_url, open_logs

from penstock.testing.log_contract.inputs import TestInputs

__all__ = ["TestInputs", "logs_url", "open_logs"]

"""Every log store under the contract tests; its name is part of every test's id."""

from tests.contract.log.places import logs_url, open_logs

__all__ = ["logs_url", "open_logs"]

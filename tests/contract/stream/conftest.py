"""Every runner under the contract tests; its name is part of every test's id."""

from tests.contract.stream.places import kind, logs, runner

__all__ = ["kind", "logs", "runner"]

"""The stream contract on every runner: keeping."""

from tests.contract.streams import kind, logs, runner

from penstock.testing.stream_contract.keeping import TestKeeping, TestVersions

__all__ = ["TestKeeping", "TestVersions", "kind", "logs", "runner"]

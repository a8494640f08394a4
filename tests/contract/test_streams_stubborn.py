"""The stream contract on every runner: what must hold although something is wrong."""

from tests.contract.streams import kind, logs, runner

from penstock.testing.stream_contract.stubborn import TestStubbornStates, TestStubbornTimes

__all__ = ["TestStubbornStates", "TestStubbornTimes", "kind", "logs", "runner"]

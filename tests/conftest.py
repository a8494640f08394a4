"""Rules for all tests: readable asserts in what the contract tests share, and no skips for a missing server in CI."""

import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings
from tools.kafka import QUICK_ABORTS, SHARED, Kafka
from tools.servers import SERVERS, Missing, Server

pytest.register_assert_rewrite("tests.contract")

# No test asserts on time: how long an example takes is up to the machine.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")

# Reasons that stay good in CI: a store declares in its capabilities that it does not offer what a test is about.
DECLARED = "declares"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[None]:  # a missing server is a failure in CI, a visible skip on a laptop
    report = yield
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if DECLARED not in reason:
            report.outcome = "failed"
            report.longrepr = f"skipped, which counts as a failure with CI=true: {reason}"
    return report


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], Server]]:
    """Real servers, each started when a test first asks for it and stopped with the session."""
    running: dict[str, Server] = {}

    def running_server(name: str) -> Server:
        if name not in running:
            try:
                if name == Kafka.name and SHARED in os.environ:
                    running[name] = Kafka(port=int(os.environ[SHARED]))  # started and stopped by tools/test.py
                else:
                    running[name] = (Kafka(**QUICK_ABORTS) if name == Kafka.name else SERVERS[name]()).start()
            except Missing as missing:
                pytest.skip(f"{name} is not installed here: {missing}")
        return running[name]

    yield running_server
    for server in running.values():
        server.close()

"""PostgreSQL beside a transaction open for FAULTS_SNAPSHOT_SECONDS (120): nothing that is deleted can be vacuumed."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.open_snapshot import measure

SECONDS = float(os.environ.get("FAULTS_SNAPSHOT_SECONDS", "120"))

pytestmark = [pytest.mark.faults, pytest.mark.timeout(int(SECONDS) + 600)]


def test_a_drain_goes_on_beside_an_open_snapshot(own: Callable[..., Any]) -> None:
    """At half of the rate without it at least; within a minute of its end the rates are alike."""
    figures = measure("ours", own("postgres"), own("postgres"), SECONDS)
    print(f"{figures.without:,.0f}/s, {figures.share:.2f}x beside it, alike after {figures.recovered_seconds:.0f} s")
    assert figures.share >= 0.5
    assert figures.recovered_seconds <= 60

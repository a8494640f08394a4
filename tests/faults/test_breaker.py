"""The edge of capacity in the seed's own example: ten thousand active queues when a backend goes down."""

from pathlib import Path

import pytest
from tests import capacity

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


def test_ten_thousand_queues_there_and_back(tmp_path: Path) -> None:
    run = capacity.play(f"sqlite:///{tmp_path / 'store.db'}?durability=fast", queues=10_000, each=2, patience=400)
    print(
        f"opened after {run.calls_until_open} calls, {run.locked} locked, unlocked in {run.unlock_seconds:.0f} s, "
        f"all delivered after {run.seconds:.0f} s, {run.grown_mb:.0f} MB more than before"
    )
    capacity.check(run, queues=10_000, each=2)
    assert run.grown_mb < 200

"""`make demo` end to end: it ends by itself, its sums add up, and what it leaves behind can be looked at."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import ROOT


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ended = subprocess.run(
        [sys.executable, "examples/shop/demo.py", "--data", str(data)],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    assert "NO " not in ended.stdout
    assert ended.stdout.count("yes  ") == 8
    assert "kill -9" in ended.stdout
    assert str(data) in ended.stdout
    listed = subprocess.run(
        [sys.executable, "-m", "penstock", "queue", "list", "--json", "--url", f"sqlite:///{data}/shop.db"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    queues = {one["queue"]: one for one in json.loads(listed.stdout)}
    assert queues["parcels"]["dead"] == 1
    assert queues["reminders"]["delayed"] == 1
    assert queues["invoices"]["leased"] == 0

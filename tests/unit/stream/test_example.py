"""The example of clicks, sessions and alerts ends well."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_clicks_become_sessions_and_alerts_although_a_runner_is_killed(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "clicks" / "demo.py"), "--data", str(tmp_path / "data")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "clicks → [sessions x2] → sessions" in ended.stdout
    assert "every click is in one session: True" in ended.stdout

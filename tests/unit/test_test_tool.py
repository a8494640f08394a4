"""tools/test.py: a test that fails has failed."""

from pathlib import Path

import pytest
from tools.test import Group, run

SECOND_TIME_LUCKY = """
from pathlib import Path

def test_lucky():
    tried = Path(__file__).with_suffix(".tried")
    before = tried.exists()
    tried.touch()
    assert before
"""


def test_a_test_that_would_pass_the_second_time_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS", "0")
    tests = tmp_path / "test_lucky.py"
    tests.write_text(SECOND_TIME_LUCKY)
    result = run(Group("lucky", ()), [str(tests)], tmp_path / "report.xml")
    assert (result.passed, result.failed) == (0, 1)
    assert not result.note

"""The page of figures says what the benchmarks measured, and nothing else."""

import pytest
from benchmarks import figures


def test_the_page_is_made_of_the_results() -> None:
    assert list(figures.RESULTS.glob("*.json")), "no benchmark has left a result"
    assert figures.PAGE.read_text() == figures.page(), "make the page anew: python -m benchmarks.figures"


def test_a_result_that_is_recorded_is_on_the_page(tmp_path: figures.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "RESULTS", tmp_path / "results")
    figures.record("Queues on paper", [("a | drain", ">= 1.0x", "0.93x", False)], ["by hand", "quiet"], "quiet")
    page = figures.page()
    assert "## Queues on paper" in page
    assert "| ✗ | a \\| drain | 0.93x | >= 1.0x |" in page
    assert page.count("quiet") == 1, "what the machine was like is said once"
    assert "- by hand" in page

"""The page of figures says what the benchmarks measured, and nothing else."""

import pytest
from benchmarks import dashboard, figures, sizes, telemetry


def test_the_page_is_made_of_the_results() -> None:
    assert list(figures.RESULTS.glob("*.json")), "no benchmark has left a result"
    assert figures.PAGE.read_text() == figures.page(), "make the page again: python -m benchmarks.figures"


def test_the_table_of_sizes_is_made_of_its_result() -> None:
    assert sizes.PAGE.read_text() == sizes.page(), "run: python -m benchmarks.sizes --page"


def test_a_result_that_is_recorded_is_on_the_page(tmp_path: figures.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "RESULTS", tmp_path / "results")
    figures.record("Queues on paper", [("a | drain", ">= 1.0x", "0.93x", False)], ["by hand", "quiet"], "quiet")
    page = figures.page()
    assert "## Queues on paper" in page
    assert "| ✗ | a \\| drain | 0.93x | >= 1.0x |" in page
    assert page.count("quiet") == 1, "what the machine was like is said once"
    assert "- by hand" in page


@pytest.mark.parametrize(
    ("added", "kind", "holds"), [(2, "figures", True), (4, "figures", False), (4, "otel", True), (6, "otel", False)]
)
def test_what_telemetry_may_cost_is_the_median_of_fifteen_pairs(added: int, kind: str, holds: bool) -> None:
    runs = {"without": 0, "with it": 0}

    def run(way: str, cost: float) -> float:
        runs[way] += 1
        return cost * (10 if runs[way] < 100 else 1)  # a machine that is busy at first disturbs both alike

    compared = telemetry.compare(lambda: run("without", 100), lambda: run("with it", 100 + added), telemetry.PAIRS)
    bar = telemetry.bar_of("a drain", compared, telemetry.MOST.get(kind, telemetry.MOST_OTHERS))
    assert (bar.good, bar.wanted) == (holds, "at most 3 %" if kind == "figures" else "at most 5 %")
    assert "half of 15 pairs" in bar.measured
    assert runs["without"] == runs["with it"] == 15 * telemetry.ROUNDS


def test_the_pages_are_measured_on_a_million_entries_and_on_ten_thousand_queues() -> None:
    assert [str(scene) for scene in dashboard.SCENES] == [
        "1,000,000 entries in 1,002 queues", "100,000 entries in 10,002 queues",
    ]  # fmt: skip
    for scene in dashboard.SCENES:
        rows = [dashboard.row(scene, number, 1_000_000_000) for number in range(scene.queues * 5)]
        assert len({row.queue for row in rows}) == scene.queues + 2

"""The report of a lake in a browser: wide and on a phone, light and dark, with charts that say what they show."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed here")
pytest.importorskip("matplotlib", reason="matplotlib is not installed here")
pytest.importorskip("datasketches", reason="datasketches is not installed here")

from tests.browser.test_pages import findings, is_too_wide, shoot
from tests.unit.test_lake_report import START, attempt, from_attempts

from penstock.spark.lake.report import write_report


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark"), (1280, "dark"), (390, "light")])
def test_a_page_to_show_to_a_colleague(tmp_path: Path, open_page: Any, width: int, scheme: str) -> None:
    chance = random.Random(1)
    rows = []
    for queue in ("mails", "invoices.render", *(f"customer.{number}" for number in range(40))):
        for _ in range(30):
            ended = START + timedelta(seconds=chance.uniform(0, 7200))
            state = chance.choices(("done", "retried", "dead"), (20, 3, 1))[0]
            rows.append(attempt(queue, ended, state=state, took=chance.expovariate(2)))
    written = tmp_path / "report.html"
    charts = write_report(from_attempts(tmp_path / "lake", rows), written)
    page = open_page(width, scheme)
    page.goto(written.as_uri())
    assert page.title() == "Penstock report"
    shown = page.locator("svg")
    assert shown.count() == charts == 4
    for number in range(charts):
        box = shown.nth(number).bounding_box()
        assert box["width"] > 250, "wide enough to be read"
        assert box["height"] > 100
    assert findings(page) == []
    assert not is_too_wide(page)
    assert page.get_by_text("customer.*").first.is_visible()
    shoot(page, f"report-{width}-{scheme}")

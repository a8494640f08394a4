"""The report of a lake: bins that fit the span, families, totals that add up; without Spark."""

import random
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BadInput, CannotOpen

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed here")
pytest.importorskip("matplotlib", reason="matplotlib is not installed here")
datasketches = pytest.importorskip("datasketches", reason="datasketches is not installed here")

import pyarrow.parquet as pq  # noqa: E402

from penstock.spark.lake import manifest  # noqa: E402
from penstock.spark.lake.figures import MOST_BINS, MOST_LINES, bin_for, families, figures_of, over_time  # noqa: E402
from penstock.spark.lake.reading import LakeReader  # noqa: E402
from penstock.spark.lake.report import write_report  # noqa: E402

START = datetime(2026, 3, 1, 10, tzinfo=UTC)
STATES = ("done", "retried", "dead", "reaped", "expired", "cancelled")


def make_lake(folder: Path, **tables: Iterable[dict[str, Any]]) -> Path:
    """A lake with one file of each table and day."""
    files: dict[str, list[manifest.DataFile]] = {}
    for table, rows in tables.items():
        by_day: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            by_day.setdefault(str(row.pop("day", "")), []).append(row)
        for day, some in by_day.items():
            path = f"data/{table}/run=1/" + (f"day={day}/" if day else "") + "part.parquet"
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(some), folder / path)
            files.setdefault(table, []).append(manifest.DataFile(path, 1, day))
    (folder / manifest.FOLDER).mkdir(parents=True)
    (folder / manifest.name_of(1)).write_bytes(manifest.encode(manifest.Manifest(1, files=files)))
    return folder


def attempt(queue: str, ended: datetime, *, state: str = "done", number: int = 1, took: float = 0.5) -> dict[str, Any]:
    started = ended - timedelta(seconds=took)
    return {
        "queue": queue, "state": state, "attempt": number, "due": started - timedelta(seconds=2), "started": started,
        "ended": ended, "day": ended.date(),
    }  # fmt: skip


def hour(queue: str, at: datetime, took: list[float], **counts: int) -> dict[str, Any]:
    sketch = datasketches.kll_doubles_sketch()
    for value in took:
        sketch.update(value)
    return {
        "queue": queue, "hour": at, **dict.fromkeys(STATES, 0), **counts, "waiting": None,
        "processing": sketch.serialize(), "day": at.date(),
    }  # fmt: skip


def from_attempts(folder: Path, attempts: list[dict[str, Any]]) -> Path:
    """With ``hours`` beside them, by which the span is known."""
    hours = {(one["queue"], one["ended"].replace(minute=0, second=0, microsecond=0)) for one in attempts}
    return make_lake(folder, history=attempts, hours=[hour(queue, at, []) for queue, at in hours])


def test_a_minute_is_shown_by_seconds(tmp_path: Path) -> None:
    rng = random.Random(3)
    rows = [attempt("mails", START + timedelta(seconds=rng.uniform(0, 60)), took=rng.uniform(0, 3)) for _ in range(500)]
    took = sorted((one["ended"] - one["started"]).total_seconds() for one in rows)
    figures = figures_of(LakeReader(from_attempts(tmp_path, rows)))
    assert figures.bin_seconds == 1
    assert sum(one.counts["done"] for one in figures.by_bin["mails"].values()) == figures.total.attempts == 500
    assert took[450] < figures.total.quantile("processing", 0.95) < took[499]
    assert figures.total.quantile("waiting", 0.5) == pytest.approx(2, abs=0.001)


def test_a_month_is_shown_by_hours_or_more_and_quantiles_of_queues_are_merged(tmp_path: Path) -> None:
    hours = []
    for number in range(30 * 24):
        at = START + timedelta(hours=number)
        hours += [hour("customer.1", at, [1.0] * 90, done=90), hour("customer.2", at, [9.0] * 10, done=10)]
        hours += [hour(f"other{index}", at, [], dead=1) for index in range(6)]
    figures = figures_of(LakeReader(make_lake(tmp_path, hours=hours)))
    assert figures.bin_seconds == 6 * 3600
    assert next(iter(figures.families)) == "customer.*", "one line for the family, the busiest first"
    family = figures.families["customer.*"]
    assert family.counts["done"] == 30 * 24 * 100
    assert (family.quantile("processing", 0.5), family.quantile("processing", 0.95)) == (1.0, 9.0)
    assert len(figures.families) <= MOST_LINES
    assert figures.total.counts["dead"] == 30 * 24 * 6


@pytest.mark.parametrize("seconds", [0, 1, 59, 600, 3600, 86_400, 172_800, 30 * 86_400, 365 * 86_400])
def test_bins_are_neither_too_many_nor_too_few(seconds: int) -> None:
    bins = seconds / bin_for(seconds)
    assert bins <= MOST_BINS
    assert bins >= MOST_BINS / 8 or bin_for(seconds) == 1


def test_every_queue_has_a_line_and_there_are_few() -> None:
    attempts = {f"customer.{number}": 1 for number in range(1000)} | {f"solo{number}": number for number in range(20)}
    lines = families(attempts)
    assert set(lines) == set(attempts)
    assert len(set(lines.values())) == MOST_LINES
    assert lines["customer.7"] == "customer.*"
    assert lines["solo1"] == "others"
    assert families({"a.1": 5, "a.2": 5}) == {"a.1": "a.1", "a.2": "a.2"}, "few queues speak for themselves"


def test_a_pause_is_drawn_as_one(tmp_path: Path) -> None:
    rows = [attempt("mails", START + timedelta(seconds=second)) for second in (0, 1, 30)]
    figures = figures_of(LakeReader(from_attempts(tmp_path, rows)))
    values = [value for _, value in over_time(figures.by_bin["mails"], figures.bin_seconds, "done")]
    assert values == [1, 1, 0, 0, 1]


def test_the_page_says_totals_first_and_nothing_in_it_is_markup(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>"
    rows = [attempt(bad, START + timedelta(seconds=number)) for number in range(19)]
    rows.append(attempt(bad, START, state="dead"))
    lake = from_attempts(tmp_path / "lake", rows)
    found = manifest.decode((lake / manifest.name_of(1)).read_bytes(), name="m")
    assert found is not None
    errors = [{"queue": bad, "error": bad, "count": 7, "day": START.date()}]
    circuits = [{"circuit": bad, "since": START, "until": None, "seconds": None, "why": bad}]
    more = make_lake(tmp_path / "more", errors=errors, circuits=circuits)
    for table in ("errors", "circuits"):
        (more / "data" / table).rename(lake / "data" / table)
    files = {**found.files, **LakeReader(more).manifest.files}
    (lake / manifest.name_of(2)).write_bytes(manifest.encode(manifest.Manifest(2, files=files)))
    page = tmp_path / "report.html"
    assert write_report(lake, page) == 4
    text = page.read_text()
    assert bad not in text
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 5
    assert text.index("95.0%") < text.index("<svg"), "totals come before charts"
    assert "still open" in text
    assert not re.search(r"src=|href=\"[^#]|https?://|@import|url\([^#]", text), "it needs nothing from elsewhere"
    ids = re.findall(r'<g id="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_what_is_no_lake(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="Run the pipeline first"):
        write_report(tmp_path / "nothing", tmp_path / "page.html")
    with pytest.raises(CannotOpen, match="cannot be read"):
        LakeReader("nosuch://bucket/lake")
    (tmp_path / "torn" / manifest.FOLDER).mkdir(parents=True)
    whole = manifest.encode(manifest.Manifest(1))
    for cut in range(len(whole) - 1):
        assert manifest.decode(whole[:cut], name="torn") is None
    (tmp_path / "torn" / manifest.name_of(1)).write_bytes(whole[:-5])
    with pytest.raises(BadInput, match="Run the pipeline first"):
        LakeReader(tmp_path / "torn")

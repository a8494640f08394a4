"""The history pipeline: every row once, late and repeated ones included; tables that add up; a page of charts."""

import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock import Breaker, BreakerConfig, FakeClock, LogStore, QueueStore, Retry, Worker, open_queues
from penstock.errors import BadInput
from penstock.spark.lake.pipeline import Pipeline, Sources, _short, tables
from penstock.spark.lake.report import write_report


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(datetime(2026, 3, 1, 10, 30, tzinfo=UTC))


@pytest.fixture
def queues_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture
def shop(queues_url: str, clock: FakeClock) -> Iterator[QueueStore]:
    with open_queues(queues_url, clock=clock) as store:
        yield store


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def work(shop: QueueStore, clock: FakeClock, number: int) -> None:
    """Entries that wait a second, take two, and every third of which fails once."""
    queue = shop.queue("mails", int)

    def handle(value: int, ctx: Any) -> None:
        clock.advance("2s")
        if value % 3 == 0 and ctx.entry.attempt == 1:
            raise RuntimeError(f"no luck\nwith {value}")

    if ("mails", False) not in shop.handlers:
        queue.add_handler(handle, retry=Retry(attempts=3, delays=["0s"]))
    for value in range(number):
        queue.put(value)
        clock.advance("1s")
        Worker(shop).drain()


def content(lake: Path) -> dict[str, float]:
    return {str(path.relative_to(lake)): path.stat().st_mtime for path in (lake / "tables").rglob("*.parquet")}


def test_from_history_to_tables(
    spark: Any, shop: QueueStore, queues_url: str, clock: FakeClock, lake: Path, store: LogStore, url: str
) -> None:
    work(shop, clock, 6)
    shop.queue("other").put(1)
    shop.queue("other").cancel(shop.queue("other").find()[0].id)
    store.create("lag", 1)
    with store.appender("lag") as samples:
        for minute, behind in enumerate((5, 9, 3)):
            at = (clock.now() + timedelta(minutes=minute)).isoformat()
            samples.append({"at": at, "log": "clicks", "group": "billing", "lag": behind})
        samples.append({"nonsense": True})
    pipeline = Pipeline(spark, lake, Sources(queues=(queues_url,), lags=((url, "lag"),)))
    ran = pipeline.run()
    assert sorted(ran.rows.values()) == [3, 9]
    assert ran.days == ("2026-03-01",)
    found = tables(lake)
    [mails] = [one for one in found["hours"].to_pylist() if one["queue"] == "mails"]
    assert (mails["attempts"], mails["done"], mails["retried"], mails["dead"]) == (8, 6, 2, 0)
    assert mails["waiting_p50"] == pytest.approx(1, abs=0.01)
    assert mails["processing_p99"] == pytest.approx(2, abs=0.01)
    assert [(one["error"], one["count"]) for one in found["errors"].to_pylist()] == [("RuntimeError: no luck", 2)]
    assert [(one["most"], one["last"]) for one in found["lag"].to_pylist()] == [(9, 3)]
    [other] = [one for one in found["hours"].to_pylist() if one["queue"] == "other"]
    assert other["cancelled"] == 1

    before = content(lake)
    again = pipeline.run()
    assert (set(again.rows.values()), again.days, content(lake)) == ({0}, (), before), "a rerun changes nothing"

    clock.advance("1d")
    work(shop, clock, 3)
    later = pipeline.run()
    assert later.days == ("2026-03-02",)
    changed = {name for name, at in content(lake).items() if before.get(name) != at}
    assert changed
    assert all("day=2026-03-02" in name for name in changed), "only the new day is made anew"
    assert sum(one["done"] for one in tables(lake)["hours"].to_pylist()) == 9


@pytest.mark.faults
def test_a_batch_that_comes_again_counts_once(
    spark: Any, shop: QueueStore, queues_url: str, clock: FakeClock, lake: Path
) -> None:
    work(shop, clock, 4)
    pipeline = Pipeline(spark, lake, Sources(queues=(queues_url,)))
    pipeline.run()
    before = tables(lake)["hours"].to_pylist()
    for commit in (lake / "_state").rglob("commits/*"):
        commit.unlink()
    assert pipeline.run().days == ("2026-03-01",)
    assert tables(lake)["hours"].to_pylist() == before


def test_a_column_that_comes_later_survives(
    spark: Any, shop: QueueStore, queues_url: str, clock: FakeClock, lake: Path
) -> None:
    work(shop, clock, 2)
    Pipeline(spark, lake, Sources(queues=(queues_url,))).run()
    old = list((lake / "history").rglob("*.parquet"))
    narrow = spark.read.parquet(str(old[0])).drop("owner").localCheckpoint()
    for path in old:
        path.unlink()
    narrow.coalesce(1).write.mode("append").parquet(str(old[0].parent))
    work(shop, clock, 1)
    Pipeline(spark, lake, Sources(queues=(queues_url,))).run()
    assert sum(one["done"] for one in tables(lake)["hours"].to_pylist()) == 3


@pytest.mark.faults
def test_a_table_of_an_older_lake_has_fewer_columns(
    spark: Any, shop: QueueStore, queues_url: str, clock: FakeClock, lake: Path, tmp_path: Path
) -> None:
    work(shop, clock, 2)
    Pipeline(spark, lake, Sources(queues=(queues_url,))).run()
    [old] = (lake / "tables" / "hours").rglob("*.parquet")
    narrow = pq.ParquetFile(old).read().drop_columns(["reaped", "waiting_p99"])
    pq.write_table(narrow, old)
    assert write_report(lake, tmp_path / "page.html"), "as it is"
    clock.advance("1d")
    work(shop, clock, 3)
    Pipeline(spark, lake, Sources(queues=(queues_url,))).run()
    first, second = sorted(tables(lake)["hours"].to_pylist(), key=lambda one: one["hour"])
    assert (first["done"], first["reaped"], first["waiting_p99"]) == (2, None, None)
    assert (second["done"], second["reaped"]) == (3, 0)
    assert second["waiting_p99"] == pytest.approx(1, abs=0.01)
    assert write_report(lake, tmp_path / "page.html")


def test_late_rows_find_their_day_and_those_that_are_there_twice_count_once(
    spark: Any, shop: QueueStore, queues_url: str, clock: FakeClock, lake: Path, store: LogStore, url: str
) -> None:
    store.create("lag", 1)

    def sample(behind: int, days: int = 0) -> None:
        at = (datetime(2026, 3, 1, 12, tzinfo=UTC) + timedelta(days=days)).isoformat()
        with store.appender("lag") as samples:
            samples.append({"at": at, "log": "clicks", "group": "billing", "lag": behind})

    work(shop, clock, 3)
    sample(5)
    sample(6, days=1)
    pipeline = Pipeline(spark, lake, Sources(queues=(queues_url,), lags=((url, "lag"),)))
    assert pipeline.run().days == ("2026-03-01", "2026-03-02")
    before = tables(lake)["hours"].to_pylist()
    # A batch that was cut differently the first time: its rows lie there under another number too.
    for run in list((lake / "history").glob("day=*/queue=*/run=*")):
        shutil.copytree(run, run.with_name(f"{run.name}0"))
    sample(9)
    assert pipeline.run().days == ("2026-03-01",)
    assert tables(lake)["hours"].to_pylist() == before
    assert [one["most"] for one in sorted(tables(lake)["lag"].to_pylist(), key=lambda one: one["day"])] == [9, 6]


def make_anew(shop: QueueStore, tmp_path: Path) -> None:
    shop.close()
    for path in tmp_path.glob("shop.db*"):
        path.unlink()


def done(lake: Path) -> int:
    return sum(one["done"] for one in tables(lake)["hours"].to_pylist())


@pytest.mark.parametrize("more", [2, pytest.param(9, marks=pytest.mark.faults)])
def test_a_database_made_anew_is_another_source(
    spark: Any, queues_url: str, clock: FakeClock, lake: Path, tmp_path: Path, more: int
) -> None:
    pipeline = Pipeline(spark, lake, Sources(queues=(queues_url,)))
    with open_queues(queues_url, clock=clock) as shop:
        work(shop, clock, 4)
        pipeline.run()
        make_anew(shop, tmp_path)
    with open_queues(queues_url, clock=clock) as shop:
        work(shop, clock, more)
        assert set(pipeline.run().rows.values()) == {more + -(-more // 3)}
        assert done(lake) == 4 + more
        work(shop, clock, 1)
        pipeline.run()
        assert done(lake) == 5 + more
        assert set(pipeline.run().rows.values()) == {0}


@pytest.mark.parametrize("kept", ["nothing", "an identity"])
@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.faults
def test_a_lake_older_than_identities_goes_on(
    spark: Any, queues_url: str, clock: FakeClock, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    kept: str, anew: bool,
) -> None:  # fmt: skip
    """Its state is named by the URL alone; its checkpoint may know the identity or not."""
    pipeline = Pipeline(spark, lake, Sources(queues=(queues_url,)))
    with open_queues(queues_url, clock=clock) as shop:
        work(shop, clock, 4)
        with monkeypatch.context() as older:
            older.setattr(Pipeline, "_named", lambda self, kind, url, *more: _short(url))
            pipeline.run()
        [state] = (lake / "_state").glob("history-*")
        if kept == "nothing":
            for path in (state / "offsets").glob("[0-9]*"):
                path.write_text(re.sub(r'"id": ?"[^"]*"', '"id":""', path.read_text()))
                path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        if anew:
            make_anew(shop, tmp_path)
    with open_queues(queues_url, clock=clock) as shop:
        work(shop, clock, 2)
        pipeline.run()
        assert done(lake) == 6
        assert len([one for one in (lake / "_state").glob("history-*") if one.is_dir()]) == 1 + anew
        work(shop, clock, 1)
        pipeline.run()
        assert done(lake) == 7


@pytest.mark.faults
def test_a_log_of_samples_made_anew(spark: Any, lake: Path, store: LogStore, url: str, clock: FakeClock) -> None:
    pipeline = Pipeline(spark, lake, Sources(lags=((url, "lag"),)))
    for behind, count in ((5, 3), (7, 2)):
        if store.exists("lag"):
            store.delete("lag")
        store.create("lag", 1)
        with store.appender("lag") as samples:
            for _ in range(count):
                at = clock.now().isoformat()
                samples.append({"at": at, "log": f"clicks{behind}", "group": "billing", "lag": behind})
        assert set(pipeline.run().rows.values()) == {count}
    assert {(one["log"], one["most"]) for one in tables(lake)["lag"].to_pylist()} == {("clicks5", 5), ("clicks7", 7)}


def test_circuits_and_the_page(
    spark: Any, shop: QueueStore, queues_url: str, clock: FakeClock, lake: Path, tmp_path: Path
) -> None:
    work(shop, clock, 3)
    for name in ("007", "7", "1e2"):  # names, though they look like numbers
        shop.queue(name, int).add_handler(lambda value: None)
        shop.queue(name, int).put(1)
    Worker(shop).drain()
    breaker = Breaker(shop, BreakerConfig())
    breaker.report("crm", "first", True)
    breaker.open("crm", by="ann", why="<script>alert(1)</script>")
    clock.advance("90s")
    breaker.close("crm", by="ann", why="better")
    Pipeline(spark, lake, Sources(queues=(queues_url,))).run()
    assert set(tables(lake)["hours"].column("queue").to_pylist()) == {"mails", "007", "7", "1e2"}
    [period] = tables(lake)["circuits"].to_pylist()
    assert (period["circuit"], round(period["seconds"])) == ("crm", 90)
    page = tmp_path / "report.html"
    assert 3 <= write_report(lake, page) <= 6
    text = page.read_text()
    assert text.count("<svg") <= 6
    assert "mails" in text
    assert "<script>alert" not in text
    assert not re.search(r"(src|href)=|https?://|@import|url\(", text), "it needs nothing from elsewhere"


def test_what_cannot_be(spark: Any, lake: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nothing to do"):
        Pipeline(spark, lake, Sources())
    with pytest.raises(BadInput, match="Run the pipeline first"):
        write_report(lake, tmp_path / "page.html")

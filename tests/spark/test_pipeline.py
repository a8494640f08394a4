"""The history pipeline: every row once, also late ones and after a kill; tables that add up; a page of charts."""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import Breaker, LogStore, QueueStore, Retry, Worker, open_queues
from penstock.breaker import BreakerConfig
from penstock.errors import BadInput, CannotOpen, Conflict
from penstock.spark.lake import manifest
from penstock.spark.lake import tables as lake_tables
from penstock.spark.lake.lake import Lake, Run
from penstock.spark.lake.pipeline import Pipeline, Sources
from penstock.spark.lake.reading import LakeReader, tables
from penstock.spark.lake.report import write_report
from penstock.testing import FakeClock


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


def content(lake: Path) -> dict[str, str]:
    """The files of the tables, and their days."""
    return {
        one.path: one.day for name, files in LakeReader(lake).manifest.files.items() for one in files
        if name in ("hours", "errors", "lag", "circuits")
    }  # fmt: skip


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
    assert (other["cancelled"], other["processing_p50"]) == (1, None)

    before = content(lake)
    again = pipeline.run()
    assert (set(again.rows.values()), again.days, content(lake)) == ({0}, (), before), "a rerun changes nothing"

    clock.advance("1d")
    work(shop, clock, 3)
    later = pipeline.run()
    assert later.days == ("2026-03-02",)
    changed = {day for path, day in content(lake).items() if path not in before}
    assert changed == {"2026-03-02"}, "only the new day changes"
    assert done(lake) == 9


def done(lake: Path) -> int:
    return sum(one["done"] for one in tables(lake)["hours"].to_pylist())


class Killed(BaseException):
    """Nobody handles it, as nobody handles SIGKILL."""


@pytest.mark.parametrize(
    "at",
    [
        pytest.param("before the commit", marks=pytest.mark.faults),
        "in the middle of it",
        pytest.param("after it", marks=pytest.mark.faults),
    ],
)
def test_a_run_that_is_killed_counts_once(
    spark: Any, shop: QueueStore, queues_url: str, clock: FakeClock, lake: Path, at: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pipeline = Pipeline(spark, lake, Sources(queues=(queues_url,)))
    work(shop, clock, 2)
    pipeline.run()
    work(shop, clock, 4)
    whole = Run.commit

    def commit(run: Run) -> None:
        if at == "after it":
            whole(run)
        if at == "in the middle of it":
            (lake / manifest.name_of(run.base.number + 1)).write_bytes(b'{"number": 2, "sources"')
        raise Killed

    with monkeypatch.context() as killed:
        killed.setattr(Run, "commit", commit)
        with pytest.raises(Killed):
            pipeline.run()
    assert done(lake) == (6 if at == "after it" else 2), "all of a run counts, or nothing"
    if at == "in the middle of it":
        with pytest.raises(Conflict, match="Run it again"):
            pipeline.run()  # somebody may be writing it at this moment
        monkeypatch.setattr("penstock.spark.lake.lake.CUT_OFF_MS", -60_000)
    pipeline.run()
    assert done(lake) == 6
    monkeypatch.setattr("penstock.spark.lake.lake.ABANDONED_MS", -60_000)
    left = {"before the commit": 3, "in the middle of it": 6, "after it": 0}
    assert Lake(spark, lake).sweep() == left[at], "what did not count is swept away: three tables a run"
    assert Lake(spark, lake).frame("history").count() == 9


def test_two_runs_at_once(spark: Any, shop: QueueStore, queues_url: str, clock: FakeClock, lake: Path) -> None:
    work(shop, clock, 2)
    pipeline = Pipeline(spark, lake, Sources(queues=(queues_url,)))
    with Lake(spark, lake).change(), pytest.raises(Conflict, match="another run works on"):
        pipeline.run()
    first, second = Run(Lake(spark, lake)), Run(Lake(spark, lake))  # on two hosts, where no lock is shared
    for run in (first, second):
        run.sources["some"] = manifest.Position(after=1)
    first.commit()
    with pytest.raises(Conflict, match="nothing of this one counts"):
        second.commit()
    pipeline.run()
    assert done(lake) == 2


def test_many_small_runs_come_to_the_same_as_one(
    spark: Any, queues_url: str, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of four days, in any order, in many runs: against sums made by hand."""
    monkeypatch.setattr("penstock.spark.lake.pipeline.MANY", 3)
    rng = random.Random(7)
    pipeline = Pipeline(spark, lake, Sources(queues=(queues_url,)))
    for _ in range(9):
        start = datetime(2026, 3, 1 + rng.randrange(4), rng.randrange(24), 5, tzinfo=UTC)
        clock = FakeClock(start)
        with open_queues(queues_url, clock=clock) as shop:
            work(shop, clock, rng.randrange(1, 5))
        pipeline.run()
    with open_queues(queues_url) as shop:
        rows = shop.queue("mails").history(limit=1000)
    counts = Counter((one.ended.replace(minute=0, second=0, microsecond=0), one.state) for one in rows)
    took: dict[datetime, list[float]] = defaultdict(list)
    for one in rows:
        took[one.ended.replace(minute=0, second=0, microsecond=0)].append((one.ended - one.started).total_seconds())
    found = tables(lake)["hours"].to_pylist()
    assert len(found) == len(took)
    for row in found:
        hour = row["hour"].replace(tzinfo=UTC)
        for state in ("done", "retried"):
            assert row[state] == counts[hour, state]
        assert row["processing_p50"] == sorted(took[hour])[-(-len(took[hour]) // 2) - 1], "exact while there are few"
    errors = sum(one.error is not None for one in rows)
    assert sum(one["count"] for one in tables(lake)["errors"].to_pylist()) == errors
    history = LakeReader(lake).manifest.files["history"]
    assert max(Counter(one.day for one in history).values()) <= 3, "small files of a day are merged"
    assert Lake(spark, lake).frame("history").count() == len(rows)
    by_day = lake_tables.merge_hours(Lake(spark, lake).frame("hours"), by="day").collect()
    assert sum(one.attempts for one in by_day) == len(rows)
    assert all(one.processing_p99 == pytest.approx(2, abs=0.01) for one in by_day)


def test_what_old_manifests_name_is_deleted_when_they_are(
    spark: Any, shop: QueueStore, queues_url: str, clock: FakeClock, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.spark.lake.lake.KEPT", 2)
    pipeline = Pipeline(spark, lake, Sources(queues=(queues_url,)))
    for number in range(4):
        work(shop, clock, 1)
        pipeline.run()
        assert done(lake) == number + 1
    assert len(list((lake / "_manifests").glob("*.json"))) == 2
    assert len(list((lake / "data" / "hours").rglob("*.parquet"))) == 2
    assert len(list((lake / "data" / "history").rglob("*.parquet"))) == 4


def test_a_lake_on_another_file_system(
    spark: Any, shop: QueueStore, queues_url: str, clock: FakeClock, tmp_path: Path
) -> None:
    """Hadoop's viewfs: nothing that is known of a local disk holds there."""
    conf = spark._jsc.hadoopConfiguration()
    conf.set("fs.viewfs.mounttable.shop.link./data", f"file://{tmp_path}/elsewhere")
    (tmp_path / "elsewhere").mkdir()
    work(shop, clock, 3)
    pipeline = Pipeline(spark, "viewfs://shop/data/lake", Sources(queues=(queues_url,)))
    assert set(pipeline.run().rows.values()) == {4}
    assert set(pipeline.run().rows.values()) == {0}
    work(shop, clock, 2)
    assert set(pipeline.run().rows.values()) == {3}
    assert done(tmp_path / "elsewhere" / "lake") == 5
    assert not (tmp_path / "elsewhere" / "lake" / "_lock").exists()
    first, second = (Run(Lake(spark, "viewfs://shop/data/lake")) for _ in range(2))
    for run in (first, second):
        run.sources["some"] = manifest.Position(after=1)
    first.commit()
    with pytest.raises(Conflict, match="nothing of this one counts"):
        second.commit()


def test_a_place_that_cannot_be_a_lake(spark: Any, queues_url: str, shop: QueueStore, tmp_path: Path) -> None:
    sources = Sources(queues=(queues_url,))
    with pytest.raises(CannotOpen, match="nosuch://bucket/lake cannot be used"):
        Pipeline(spark, "nosuch://bucket/lake", sources)
    with pytest.raises(BadInput, match="which Spark reads as a pattern"):
        Pipeline(spark, tmp_path / "lake[1]", sources)
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotOpen, match="cannot hold a lake"):
        Pipeline(spark, tmp_path / "file", sources).run()
    later = tmp_path / "later"
    (later / "_manifests").mkdir(parents=True)
    (later / manifest.name_of(1)).write_bytes(manifest.encode(manifest.Manifest(1, format=2)))
    with pytest.raises(CannotOpen, match="has format 2"):
        tables(later)
    with pytest.raises(BadInput, match="a lake has no table 'hors'"):
        Lake(spark, tmp_path).frame("hors")


def test_a_lake_of_another_format(
    spark: Any, shop: QueueStore, queues_url: str, clock: FakeClock, lake: Path, tmp_path: Path
) -> None:
    sources = Sources(queues=(queues_url,))
    for place, file_format in ((lake, "orc"), (tmp_path / "plain", None)):
        work(shop, clock, 3)
        Pipeline(spark, place, sources, file_format=file_format).run()
        work(shop, clock, 3)
        Pipeline(spark, place, sources).run()  # goes on with the format that the lake has
        suffix = ".orc" if file_format else ".parquet"
        files = [file.path for each in LakeReader(place).manifest.files.values() for file in each]
        assert files
        assert all(path.endswith(suffix) for path in files)
        history = shop.queue("mails", int).history(limit=1000)
        assert Lake(spark, place).frame("history").count() == len(history)
        assert LakeReader(place).table("hours").num_rows == Lake(spark, place).frame("hours").count() > 0
        assert write_report(place, tmp_path / f"report{suffix}.html") > 0
    with pytest.raises(Conflict, match="files of format orc, not parquet"):
        Pipeline(spark, lake, sources, file_format="parquet").run()
    with pytest.raises(BadInput, match=r"cannot have the format 'delta'") as refused:
        Pipeline(spark, lake, sources, file_format="delta")
    assert "no release for Spark 4.3" in str(refused.value)
    assert "parquet, orc" in str(refused.value)


def test_late_samples_find_their_day(spark: Any, lake: Path, store: LogStore, url: str) -> None:
    store.create("lag", 1)

    def sample(behind: int, days: int = 0) -> None:
        at = (datetime(2026, 3, 1, 12, tzinfo=UTC) + timedelta(days=days)).isoformat()
        with store.appender("lag") as samples:
            samples.append({"at": at, "log": "clicks", "group": "billing", "lag": behind})

    sample(5)
    sample(6, days=1)
    pipeline = Pipeline(spark, lake, Sources(lags=((url, "lag"),)))
    assert pipeline.run().days == ("2026-03-01", "2026-03-02")
    sample(9)
    assert pipeline.run().days == ("2026-03-01",)
    assert [one["most"] for one in sorted(tables(lake)["lag"].to_pylist(), key=lambda one: one["day"])] == [9, 6]


def make_anew(shop: QueueStore, tmp_path: Path) -> None:
    shop.close()
    for path in tmp_path.glob("shop.db*"):
        path.unlink()


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
    assert 3 <= text.count("<svg") <= 6
    assert "mails" in text
    assert "<script>alert" not in text
    assert not re.search(r"src=|href=\"[^#]|https?://|@import|url\([^#]", text), "it needs nothing from elsewhere"


def test_what_cannot_be(spark: Any, lake: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nothing to do"):
        Pipeline(spark, lake, Sources())
    with pytest.raises(BadInput, match="Run the pipeline first"):
        write_report(lake, tmp_path / "page.html")

"""Import of files into logs and queues, once; export of a log to Parquet."""

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import LogStore, open_logs, open_queues
from penstock.errors import BadInput, CannotOpen, Conflict, LogNotFound
from penstock.spark.lake.export import export
from penstock.spark.lake.ingest import Import, prepare, run


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


def rows(store: LogStore, log: str) -> list[Any]:
    return [record for part in store.partitions(log) for record in store.log(log, dict).records(part.index)]


def test_json_lines_into_a_log(spark: Any, url: str, store: LogStore, files: Path, tmp_path: Path) -> None:
    store.create("orders", 2)
    good = [json.dumps({"id": f"o{n}", "at": 1_700_000_000 + n, "n": n}) for n in range(20)]
    (files / "a.jsonl").write_text("\n".join([*good[:10], "{broken", "", '{"n": 1}']) + "\n")
    (files / "b.jsonl").write_text("\n".join(good[10:]) + "\n")
    order = Import(source=str(files), url=url, target="log:orders", key="id", time="at", state=tmp_path / "state")
    told: list[tuple[int, int]] = []
    done = run(spark, order, lambda taken, bad: told.append((taken, bad)))
    assert (done.taken, done.rejected) == (20, 3) == told[-1]
    found = rows(store, "orders")
    assert sorted(one.value["n"] for one in found) == list(range(20))
    assert {one.key for one in found} == {f"o{n}" for n in range(20)}
    assert min(one.time_us for one in found) == 1_700_000_000_000_000
    aside = [json.loads(line) for path in done.aside.rglob("*.json") for line in path.read_text().splitlines()]
    reasons = sorted(one["reason"].partition(":")[0] for one in aside)
    assert reasons == ["an empty line", "no id", "not JSON"]
    written = [path.name for path in done.aside.rglob("*") if path.is_file()]
    assert written == ["rows.json"], "by this process: the disks of workers may be elsewhere"
    assert all(one["file"].endswith("a.jsonl") for one in aside)

    again = run(spark, order)
    assert (again.taken, again.rejected) == (0, 0), "nothing comes twice"
    (files / "c.jsonl").write_text(json.dumps({"id": "new", "at": 1, "n": 99}) + "\n")
    assert run(spark, order).taken == 1
    assert len(rows(store, "orders")) == 21


def test_csv_into_a_queue(spark: Any, files: Path, tmp_path: Path) -> None:
    (files / "people.csv").write_text("id,name,age\n1,Ann,30\n2,Bob,forty\n3,Cyd,50\n")
    url = f"sqlite:///{tmp_path}/q.db"
    with open_queues(url) as store:
        order = Import(
            source=str(files), url=url, target="queue:people", schema="id STRING, name STRING, age INT",
            state=tmp_path / "state",
        )  # fmt: skip
        done = run(spark, order)
        assert (done.taken, done.rejected) == (2, 1)
        found = sorted(entry.value["name"] for entry in store.queue("people", dict).find())
        assert found == ["Ann", "Cyd"]


def test_parquet_and_back(spark: Any, url: str, store: LogStore, files: Path, tmp_path: Path) -> None:
    store.create("numbers", 1)
    spark.range(30).selectExpr("id", "id * 2 AS twice").write.parquet(f"{files}/p")
    order = Import(source=str(files), url=url, target="log:numbers", form="parquet", state=tmp_path / "state")
    assert run(spark, order).taken == 30
    out = tmp_path / "out"
    assert export(spark, url, "numbers", out, schema="id BIGINT, twice BIGINT").records == 30
    assert export(spark, url, "numbers", out, schema="id BIGINT, twice BIGINT").records == 0
    back = spark.read.parquet(str(out))
    assert "day" in back.columns
    assert back.selectExpr("sum(data.twice)").collect()[0][0] == 2 * sum(range(30))


def test_a_batch_that_comes_again_is_there_once(
    spark: Any, url: str, store: LogStore, files: Path, tmp_path: Path
) -> None:
    """As after a crash between the write and the end of the batch."""
    store.create("orders", 1)
    (files / "a.jsonl").write_text("\n".join(json.dumps({"n": n}) for n in range(5)) + "\n")
    order = Import(source=str(files), url=url, target="log:orders", state=tmp_path / "state")
    run(spark, order)
    (tmp_path / "state" / "batches" / "0.json").unlink()
    run(spark, order)
    assert len(rows(store, "orders")) == 5


def test_what_cannot_be(spark: Any, url: str, store: LogStore, files: Path, tmp_path: Path) -> None:
    (files / "a.csv").write_text("a,b\n1,2\n")

    def asked(**changes: Any) -> Import:
        given = {"source": str(files), "url": url, "target": "log:x", "state": tmp_path / "state", **changes}
        return Import(**given)

    for changes, said in (
        ({"source": str(files / "none")}, "there is no"),
        ({"target": "table:x"}, "cannot be read"),
        ({"source": str(tmp_path)}, "holds"),
        ({"key": "c", "state": tmp_path / "s2"}, "no column 'c'"),
    ):
        (tmp_path / "b.parquet").touch()
        with pytest.raises(BadInput, match=said):
            run(spark, asked(**changes))
    with pytest.raises(BadInput, match="is not known"):
        run(spark, asked(form="jsonl"))
    (files / "b.csv").write_text("b,a\n2,1\n")
    with pytest.raises(BadInput, match=r"b\.csv has the columns b, a"):
        run(spark, asked())
    (files / "b.csv").unlink()
    with pytest.raises(LogNotFound):
        run(spark, asked())
    assert not (tmp_path / "state").exists(), "nothing is remembered of what cannot be"
    for name in ("x", "y"):
        store.create(name)
    for schema, said in (
        ("a INTT, b INT", "cannot be read as INTT"),
        ("b INT, a INT", "the schema has the columns b, a"),
        ("a INT, b ARRAY<INT>", "cannot be array"),
    ):
        with pytest.raises(BadInput, match=said):
            run(spark, asked(schema=schema))
    elsewhere = f"file://{tmp_path}/elsewhere"
    with open_logs(elsewhere) as other:
        other.create("x")
    assert run(spark, asked()).taken == 1
    for changes in ({"target": "log:y"}, {"url": elsewhere}):
        with pytest.raises(Conflict, match="another import"):
            run(spark, asked(**changes))


def test_what_cannot_be_exported(spark: Any, url: str, store: LogStore, tmp_path: Path) -> None:
    for name in ("a", "b"):
        store.create(name)
    out = tmp_path / "out"
    with pytest.raises(LogNotFound):
        export(spark, url, "none", out)
    for options, said in (
        ({"schema": "x INTT"}, "cannot be read as INTT"),
        ({"type": "nowhere:Type"}, "cannot be imported"),
        ({"type": "builtins:int", "schema": "x INT"}, "both type and schema"),
    ):
        with pytest.raises(BadInput, match=said):
            export(spark, url, "a", out, **options)
    assert not out.exists()
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="is not a folder"):
        export(spark, url, "a", tmp_path / "file")
    assert export(spark, url, "a", out).records == 0
    with pytest.raises(Conflict, match="export of another log"):
        export(spark, url, "b", out)
    with pytest.raises(Conflict, match="has files of format parquet, not orc"):
        export(spark, url, "a", out, file_format="orc")
    with pytest.raises(BadInput, match="an export cannot have the format 'delta'"):
        export(spark, url, "a", tmp_path / "delta", file_format="delta")


def test_export_to_orc(spark: Any, url: str, store: LogStore, tmp_path: Path) -> None:
    store.create("clicks")
    for first in (0, 3):
        store.log("clicks", int).append_many(range(first, first + 3))
        assert export(spark, url, "clicks", tmp_path / "out", file_format="orc").records == 3
    assert list((tmp_path / "out").rglob("*.orc"))
    assert not list((tmp_path / "out").rglob("*.parquet"))
    written = spark.read.orc(str(tmp_path / "out"))
    assert sorted(row.offset for row in written.collect()) == list(range(6))


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_import_from_another_file_system(spark: Any, url: str, store: LogStore, tmp_path: Path, form: str) -> None:
    spark._jsc.hadoopConfiguration().set(f"fs.viewfs.mounttable.{form}.link./data", f"file://{tmp_path}/elsewhere")
    folder = tmp_path / "elsewhere" / "rows [1]" / "day=1"
    folder.mkdir(parents=True)
    store.create("rows", 1)
    if form == "json":
        (folder / "a.jsonl").write_text('{"id": "1"}\n{"id": "2"} x\n')
    elif form == "csv":
        (folder / "a.csv.gz").write_bytes(gzip.compress(b'id,note\n1,"two\nlines"\n2,"never closed\n3,x\n'))
    else:
        pq.write_table(pa.table({"id": ["1"]}), folder / "a.parquet")
    order = Import(
        source=f"viewfs://{form}/data/rows [1]/", url=url, target="log:rows", key="id", state=tmp_path / f"state-{form}"
    )
    with pytest.raises(BadInput, match="only be seen with a session"):
        prepare(order)
    done = run(spark, order)
    assert (done.taken, done.rejected) == (1, 0 if form == "parquet" else 1)
    assert [record.key for record in store.log("rows", bytes).records(0)] == ["1"]
    for line in [line for path in done.aside.rglob("*.json") for line in path.read_text().splitlines()]:
        assert json.loads(line)["file"].startswith(f"viewfs://{form}/data/rows [1]/day=1/a.")
        assert ("a quote is never closed" in line) == (form == "csv")
    assert run(spark, order).taken == 0
    with pytest.raises(BadInput, match=r"there is no viewfs://.*/none"):
        run(spark, msgspec.structs.replace(order, source=f"viewfs://{form}/data/none", state=tmp_path / "none"))
    with pytest.raises(CannotOpen, match="nowhere://x"):
        run(spark, msgspec.structs.replace(order, source="nowhere://x/y", state=tmp_path / "none"))


def test_export_to_another_file_system(spark: Any, url: str, store: LogStore, tmp_path: Path) -> None:
    spark._jsc.hadoopConfiguration().set("fs.viewfs.mounttable.out.link./data", f"file://{tmp_path}/elsewhere")
    (tmp_path / "elsewhere").mkdir()
    store.create("numbers", 2)
    store.log("numbers").append_many([{"n": number} for number in range(20)])
    target = "viewfs://out/data/numbers"
    assert export(spark, url, "numbers", target, schema="n BIGINT").records == 20
    assert export(spark, url, "numbers", target, schema="n BIGINT").records == 0
    assert sorted(row.n for row in spark.read.parquet(target).select("data.n").collect()) == list(range(20))
    store.create("others", 1)
    with pytest.raises(Conflict, match="export of another log"):
        export(spark, url, "others", target)
    (tmp_path / "elsewhere" / "numbers" / "_export.json").write_text("{")
    (tmp_path / "elsewhere" / "numbers" / "._export.json.crc").unlink(missing_ok=True)
    with pytest.raises(CannotOpen, match="is broken"):
        export(spark, url, "numbers", target)

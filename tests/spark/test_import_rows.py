"""What an import makes of odd files and odd rows: it takes what can be taken and says why the rest was not."""

import gzip
import json
import os
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import LogStore, open_queues
from penstock.errors import BadInput
from penstock.spark.lake import ingest_rows
from penstock.spark.lake.ingest import Import, Imported, run


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


def values(store: LogStore, log: str = "rows") -> list[Any]:
    return [one.value for part in store.partitions(log) for one in store.log(log, dict).records(part.index)]


def aside(done: Imported) -> dict[str, str]:
    """Rejected rows and why."""
    lines = [line for path in done.aside.rglob("*.json") for line in path.read_text().splitlines()]
    return {one["row"]: one["reason"] for one in map(json.loads, lines)}


@pytest.fixture
def take(spark: Any, url: str, store: LogStore, files: Path, tmp_path: Path) -> Any:
    """Import the folder into a log."""
    store.create("rows", 1)

    def call(**changes: Any) -> Imported:
        return run(
            spark,
            Import(**{"source": str(files), "url": url, "target": "log:rows", "state": tmp_path / "state", **changes}),
        )

    return call


LINES = [
    b'{"id":"a","at":1700000000}', b'{"id":7,"at":"2026-03-02T10:00:00Z","x":[1,{"y":null}]}', b'{"id":true,"at":1.5}',
    b' {"at":0,"id":"\\u00e4"} ', b'\xef\xbb\xbf{"id":"bom","at":5}', b'{"id":"a"} more', b'{"id":"a"}{"id":"b"}',
    b"{'id':1}", b'{"id":"\\ud800"}', b'{"id":"\xe9"}', b"17", b"", b'{"id":{},"at":1}', b'{"id":"k","at":1e300}',
    b'{"id":"a","id":"b","at":1}', b'{"id":"k","at":null}', b'{"at":1}', b'{"id":"' + b"l" * 300 + b'","at":3}',
]  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("form", ["json", "csv"])
def test_rows_come_to_the_same_in_columns_and_one_by_one(seed: int, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    lines = [rng.choice(LINES[: rng.choice((4, len(LINES)))]) for _ in range(60)]
    is_json = form == "json"
    times = ["1700000000", "2026-03-02 10:00:00", "1.5", "tomorrow", "1e300", None]
    text = [line if is_json else b'{"n":"%d"}' % rank for rank, line in enumerate(lines)]
    none = [None] * len(lines)
    rows = pa.RecordBatch.from_pydict(
        {
            "text": pa.array(text, pa.binary()),
            "key": pa.array(none if is_json else [rng.choice(("k", "ä", None)) for _ in lines], pa.string()),
            "time": pa.array(none if is_json else [rng.choice(times) for _ in lines], pa.string()),
            "fault": pa.array(none if is_json else [rng.choice((None, None, "broken")) for _ in lines], pa.string()),
            "raw": pa.array(none if is_json else [f"row {rank}" for rank in range(len(lines))], pa.string()),
            "suspect": [is_json and line.count(b'"id"') > 1 for line in lines],
            "file": ["file:///in/rows"] * len(lines),
        }
    )
    reading = ingest_rows.Reading(is_json, rng.choice(("id", None)), rng.choice(("at", None)))
    found = {}
    for together in (1, 3, 1000):
        monkeypatch.setattr(ingest_rows, "TOGETHER", together)
        batches = ingest_rows.take_records([rows], reading, "rows", 200)
        found[together] = [row for batch in batches for row in batch.to_pylist()]
    monkeypatch.setattr(ingest_rows, "_columns", lambda *_: None)
    [alone] = ingest_rows.take_records([rows], reading, "rows", 200)
    assert found == dict.fromkeys(found, alone.to_pylist())


def test_odd_lines_of_json(take: Any, store: LogStore, files: Path) -> None:
    huge = json.dumps({"id": "h", "at": 1, "a": "x" * 9_000_000})
    odd = {
        b'{"id":"a","id":"b"}': "the field 'id' comes twice",
        b'{"id":"a","b":{"c":1,"c":2}}': "the field 'c' comes twice",
        b'{"id":NaN}': "not JSON: JSON is malformed",
        b"17": "not a JSON object but a number",
        b"null": "not a JSON object but null",
        b'"text"': "not a JSON object but a text",
        b"[1,2]": "not a JSON object but an array",
        b"true": "not a JSON object but true or false",
        b'{"id":"a"} more': "not JSON: JSON is malformed",
        b"{'id':1}": "not JSON: JSON is malformed",
        b'{"id":"\xe9"}': "not JSON",
        b"": "an empty line",
        b"[" * 5000: "not JSON",
        b'{"x":1}': "no id",
        b'{"id":null}': "no id",
        b'{"id":{"x":1}}': "id is neither text nor a number",
        b'{"id":"k","at":1700000000000}': "at 1700000000000, in seconds since 1970, is outside of the calendar",
        b'{"id":"k","at":1e300}': "at 1e+300, in seconds since 1970, is outside of the calendar",
        b'{"id":"k","at":"tomorrow"}': "at is not a time: 'tomorrow'",
        b'{"id":"k","at":"99999-01-01"}': "at is not a time: '99999-01-01'",
        b'{"id":"k","at":true}': "at is not a time: 'True'",
        b'{"id":"k","at":"0001-01-01T00:00:00+14:00"}': "at 0001-01-01T00:00:00+14:00 is outside of the calendar",
        b'{"id":"k","at":"9999-12-31T23:59:59-14:00"}': "at 9999-12-31T23:59:59-14:00 is outside of the calendar",
        b'{"id":"k"}': "no at",
        huge.encode(): "is over the limit of 8,388,608 bytes of log rows",
    }
    good = [
        b'\xef\xbb\xbf{"id":"bom","at":5}',
        b'{"id":17,"at":"2026-01-02"}\r',
        b'{"id":1.5,"at":"1700000000.25"}',
        b'{"id":false,"at":"2026-01-02T03:04:05+02:00","big":123456789012345678901234567890}',
        b'{"id":"","at":-1}',
    ]
    (files / "a.jsonl").write_bytes(b"\n".join([*good, *odd]) + b"\n")
    done = take(key="id", time="at")
    found = [one for part in store.partitions("rows") for one in store.log("rows", dict).records(part.index)]
    assert {one.key: one.time for one in found} == {
        "bom": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC),
        "17": datetime(2026, 1, 2, tzinfo=UTC),
        "1.5": datetime(2023, 11, 14, 22, 13, 20, 250_000, UTC),
        "false": datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC),
        "": datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
    }
    assert all(one.value["id"] is not None for one in found)
    why = aside(done)
    for row, reason in odd.items():
        if row:
            # what is empty, and nothing else, has no row
            assert reason in why[row.decode(errors="replace")], row[:40]
    assert (done.taken, done.rejected) == (len(good), len(odd)) == (done.all_taken, done.all_rejected)


def test_csv_as_others_write_it(take: Any, store: LogStore, files: Path) -> None:
    """Line breaks and doubled quotes in fields; columns called as ours, with a dot, or alike but for capitals."""
    (files / "a.csv").write_text(
        'id,ID,file,raw,a.b,text\n1,2,x.txt,r,dot,"two\nlines, and ""quotes"" \\"\n'
        '3,4,y.txt,,"",plain\n5,6\n7,8,9,10,11,12,13\n'
    )
    (files / "b.csv").touch()
    with gzip.open(files / "c.csv.gz", "wt") as packed:
        packed.write("\ufeffid,ID,file,raw,a.b,text\n20,21,22,23,24,25\n")
    (files / "d.csv").write_bytes(b"id,ID,file,raw,a.b,text\nM\xfcller,1,2,3,4,5\n")
    (files / "README.txt").write_text("not for you\n")
    (files / "_hidden.csv").write_text("other,columns\n1,2\n")
    done = take(key="file")
    assert sorted(values(store), key=lambda one: int(one["id"])) == [
        {"id": "1", "ID": "2", "file": "x.txt", "raw": "r", "a.b": "dot", "text": 'two\nlines, and "quotes" \\'},
        {"id": "3", "ID": "4", "file": "y.txt", "text": "plain"},
        {"id": "20", "ID": "21", "file": "22", "raw": "23", "a.b": "24", "text": "25"},
    ]
    assert (done.taken, done.rejected) == (3, 3)
    assert sorted(aside(done).values()) == ["the row does not fit its columns"] * 2 + ["the row is not UTF-8"]


@pytest.mark.parametrize("target", ["log:rows", "queue:rows"])
def test_a_quote_that_is_never_closed(take: Any, files: Path, tmp_path: Path, target: str) -> None:
    """It makes the rest of its file one row, which must not pass for a good one; lines in closed quotes are good."""
    swallowed = "".join(f"{n},row {n}\n" for n in range(100))
    for name, text in (
        ("a", f'1,ok\n2,"never closed\n{swallowed}'),
        ("b", f'1,ok\n2,"never ""closed\n{swallowed}'.replace("\n", "\r\n")),
        ("c", '1,"two\nlines"\n2,"never\nclosed'),
        ("d", f'1,ok\n"2,never closed\n{swallowed}'),
        ("good", '1,"two\nlines"\n2,"three\n\nlines\n"\n'),
        ("good2", '1,"a\nb"\n2,"a\n""b"""'),
    ):
        (files / f"{name}.csv").write_bytes(b"id,text\n" + text.encode())
    (files / "e.csv.gz").write_bytes(gzip.compress(f'id,text\n1,ok\n2,"never closed\n{swallowed}'.encode()))
    url = f"sqlite:///{tmp_path}/q.db"
    with open_queues(url):
        pass
    done = take() if target.startswith("log") else take(target=target, url=url)
    assert (done.taken, done.rejected) == (9, 5), aside(done)
    assert set(aside(done).values()) == {"a quote is never closed"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,a\n1,2\n", "two columns are named 'a'"),
        ("a,,c\n1,2,3\n", "column 2 has no name"),
    ],
)
def test_csv_without_good_names(take: Any, files: Path, text: str, said: str) -> None:
    (files / "a.csv").write_text(text)
    with pytest.raises(BadInput, match=said):
        take()


@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_nothing_there(take: Any, files: Path, form: str) -> None:
    assert take(form=form).taken == 0
    if form == "csv":
        (files / "a.csv").touch()
        assert take().taken == 0
        (files / "b.csv").write_text("a,b\n")
        assert take().taken == 0
        (files / "c.csv").write_text("a,b\n1,2\n")
        assert take().taken == 1


@pytest.mark.parametrize("name", ["in [x] {a,b} #1 100% ?", "a*b", "back\\slash", "t[1-9]"])
def test_characters_of_a_path_mean_themselves(take: Any, store: LogStore, tmp_path: Path, name: str) -> None:
    for folder in (name, "t1", "aab"):  # what a pattern would find
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jsonl").write_text(json.dumps({"from": folder}) + "\n")
    (tmp_path / name / "b.jsonl").write_text("{\n")
    done = take(source=str(tmp_path / name))
    assert values(store) == [{"from": name}]
    [line] = [line for path in done.aside.rglob("*.json") for line in path.read_text().splitlines()]
    assert json.loads(line)["file"].endswith(f"{name}/b.jsonl")


def test_columns_that_come_with_later_parquet(take: Any, spark: Any, store: LogStore, files: Path) -> None:
    spark.sql("SELECT 1 AS a, X'ff' AS file").write.parquet(str(files / "p1"))
    spark.sql("SELECT 2 AS a, map('x', 1) AS later").write.parquet(str(files / "p2"))
    assert take().taken == 2
    assert sorted(values(store), key=lambda one: one["a"]) == [{"a": 1, "file": "/w=="}, {"a": 2, "later": {"x": 1}}]
    with pytest.raises(BadInput, match="there is no column 'b'"):
        take(key="b", state=files.parent / "other")


def test_a_moment_is_one_whatever_the_zone_of_the_session(take: Any, spark: Any, store: LogStore, files: Path) -> None:
    spark.sql("SELECT 1 AS n, TIMESTAMP'2026-07-01 12:00:00.123456 UTC' AS at").write.parquet(str(files / "p"))
    spark.conf.set("spark.sql.session.timeZone", "America/Lima")
    try:
        assert take(time="at").taken == 1
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    [record] = store.log("rows", dict).records(0)
    assert record.time == datetime(2026, 7, 1, 12, 0, 0, 123_456, UTC)


def test_a_file_that_is_no_parquet(take: Any, spark: Any, store: LogStore, files: Path) -> None:
    spark.range(5).write.parquet(str(files / "good"))
    broken = files / "broken.parquet"
    broken.write_bytes(b"not parquet at all")
    with pytest.raises(BadInput, match=r"broken\.parquet cannot be read: Could not read footer") as caught:
        take()
    assert "\n" not in str(caught.value)
    assert values(store) == []
    broken.unlink()
    assert take().taken == 5


def test_parquet_that_spark_cannot_read(take: Any, store: LogStore, files: Path) -> None:
    """It is said which column of which file it is, before anything is taken."""

    def write(name: str, **columns: Any) -> None:
        pq.write_table(pa.table(columns), files / name)

    def refused(said: str) -> None:
        with pytest.raises(BadInput, match=said) as caught:
            take()
        assert "\n" not in str(caught.value)

    write("b.parquet", id=["1"], ID=["2"])
    refused(r"b\.parquet: Spark cannot tell the columns 'id' and 'ID' apart")
    write("a.parquet", id=["1"])
    write("b.parquet", id=[1])
    refused(r"column 'id' is String in .*a\.parquet and INT64 in .*b\.parquet")
    write("b.parquet", at=pa.array([0], pa.timestamp("ns", tz="UTC")))
    refused(r"b\.parquet: column 'at' holds times with nanoseconds.*coerce_timestamps")
    assert values(store) == []
    write("b.parquet", id=["2"], at=pa.array([0], pa.timestamp("us", tz="UTC")))
    assert take().taken == 2


@pytest.mark.parametrize("cure", ["mended", pytest.param("moved away", marks=pytest.mark.faults)])
def test_parquet_that_is_broken_inside(take: Any, spark: Any, store: LogStore, files: Path, cure: str) -> None:
    """Its footer is good, so nobody sees it before it is read; what was taken stays, and the next run goes on."""
    for number in range(3):
        rows = spark.range(number * 5000, number * 5000 + 5000).coalesce(1)
        rows.write.option("compression", "none").parquet(str(files / f"p{number}"))
        [path] = (files / f"p{number}").glob("*.parquet")
        os.utime(path, (number, number))  # they are taken by age
    [path] = (files / "p1").glob("*.parquet")
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xff" * 300 + whole[304:])
    os.utime(path, (1, 1))
    with pytest.raises(BadInput, match=r"p1/.*\.parquet cannot be read") as caught:
        take(files_at_once=1)
    assert "\n" not in str(caught.value)
    assert "footer" not in str(caught.value)
    assert len(values(store)) == 5000
    if cure == "mended":
        path.write_bytes(whole)
        assert take(files_at_once=1).all_taken == 15_000
        assert sorted(one["id"] for one in values(store)) == list(range(15_000))
    else:
        path.unlink()
        done = take(files_at_once=1)
        assert (done.all_taken, done.rejected) == (10_000, 1)
        assert sorted(one["id"] for one in values(store)) == [*range(5000), *range(10_000, 15_000)]
        assert list(aside(done).values()) == ["the file is gone, and was not taken"]


def test_entries_that_a_queue_refuses(spark: Any, files: Path, tmp_path: Path) -> None:
    """Too large, ids that are none, ids of other entries: in the same file, in a later one, or put by somebody else."""
    url = f"sqlite:///{tmp_path}/q.db"
    lines = [
        {"id": "x", "v": 1},
        {"id": "x", "v": 2},
        {"id": "y", "v": 3},
        {"id": "y", "v": 3},
        {"id": "", "v": 4},
        {"id": "ü", "v": 5},
        {"id": "z" * 65, "v": 6},
        {"id": "big", "v": "x" * 300_000},
        {"id": "theirs", "v": 7},
        {"id": "late", "v": 8, "due": 1e12},
        {"id": "due", "v": 9, "due": "2050-01-01"},
    ]
    (files / "a.jsonl").write_text("".join(json.dumps({"due": 0, **one}) + "\n" for one in lines))
    with open_queues(url) as store:
        queue = store.queue("in", dict)
        queue.put({"other": True}, id="theirs")
        order = Import(
            source=str(files), url=url, target="queue:in", key="id", time="due", state=tmp_path / "state",
            rejected=tmp_path / "aside",
        )  # fmt: skip
        done = run(spark, order)
        (files / "b.jsonl").write_text('{"id": "x", "v": 99, "due": 0}\n{"id": "new", "v": 10, "due": 0}\n')
        later = run(spark, order)
        found = {one.id: one for one in queue.find()}
        assert set(found) == {"x", "y", "theirs", "due", "new"}
        assert found["x"].value["v"] in (1, 2)
        assert found["theirs"].value == {"other": True}
        assert found["due"].due == datetime(2050, 1, 1, tzinfo=UTC)
    assert (done.taken, done.rejected) == (4, 7)
    assert (later.taken, later.rejected, later.all_taken, later.all_rejected) == (1, 1, 5, 8)
    assert done.aside.parent == tmp_path / "aside"
    reasons = sorted(aside(later).values())
    assert len([one for one in reasons if "already taken by another entry" in one]) == 3
    assert len([one for one in reasons if one.startswith("column id: id ")]) == 3
    assert any("a payload of 300," in one for one in reasons)
    assert any("due 1000000000000" in one for one in reasons)


def test_rows_without_ids_are_put_once_however_files_are_cut(spark: Any, files: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/q.db?durability=fast"
    (files / "a.jsonl").write_text("".join(f'{{"n": {n % 50}}}\n' for n in range(200)))
    order = Import(source=str(files), url=url, target="queue:in", state=tmp_path / "state")
    with open_queues(url) as store:
        run(spark, order)
        assert store.counts("in")[0].ready == 200
        (tmp_path / "state" / "batches" / "0.json").unlink()
        before = spark.conf.get("spark.sql.files.maxPartitionBytes")
        spark.conf.set("spark.sql.files.maxPartitionBytes", "100")
        spark.conf.set("spark.sql.files.openCostInBytes", "1")
        try:
            again = run(spark, order)
        finally:
            spark.conf.set("spark.sql.files.maxPartitionBytes", before)
            spark.conf.unset("spark.sql.files.openCostInBytes")
        assert store.counts("in")[0].ready == 200
    assert (again.taken, again.all_taken) == (200, 200), "the batch came again; it counts once"

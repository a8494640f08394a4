"""Reading logs: batches by offset and time, streams with limits, new and lost records."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import written

from penstock import LogStore
from penstock.errors import BadInput, OffsetOutOfRange
from penstock.log import Retention
from penstock.log.record import NewRecords
from penstock.spark import explain, plain_errors
from penstock.spark.datasource.log_reader import rationed


def filled(store: LogStore, name: str = "in", count: int = 100, partitions: int = 3) -> None:
    store.create(name, partitions)
    with store.appender(name, bytes) as out:
        for begin in range(0, count, 10):
            part = range(begin, min(begin + 10, count))
            out.append_many(
                [b"%d" % at for at in part],
                keys=[f"k{at % 7}" for at in part],
                timestamps=[at * 1_000_000 for at in part],
                headers=[{"n": str(at), "raw": b"\xff"} if at % 2 else None for at in part],
            )


def values(frame: Any) -> list[int]:
    return sorted(int(row.value) for row in frame.collect())


def test_every_record_with_all_it_has(store: LogStore, read: Any) -> None:
    filled(store)
    rows = {int(row.value): row for row in read("in", columns="log,partition,offset,time,key,value,headers").collect()}
    assert sorted(rows) == list(range(100))
    for partition in store.partitions("in"):
        for record in store.log("in", bytes).records(partition.index):
            row = rows[int(record.payload)]
            assert (row.log, row.partition, row.offset) == ("in", partition.index, record.offset)
            assert bytes(row.key).decode() == record.key
            assert row.time.replace(tzinfo=UTC) == record.time
            given = {name: text if isinstance(text, bytes) else text.encode() for name, text in record.headers.items()}
            assert {name: bytes(text) for name, text in (row.headers or {}).items()} == given


def test_ranges_by_offset_time_and_partition(store: LogStore, read: Any) -> None:
    filled(store)
    assert read("in", tasks=8).rdd.getNumPartitions() in range(7, 11)
    assert values(read("in", tasks=8)) == list(range(100))
    begin = datetime.fromtimestamp(20, UTC)
    stop = (begin + timedelta(seconds=30)).isoformat()
    assert values(read("in", start=begin.isoformat(), stop=stop)) == list(range(20, 50))
    only = [int(one.payload) for one in store.log("in", bytes).records(1)]
    assert values(read("in", partitions="1")) == sorted(only)
    cut = read("in", partitions="1", start='{"1": 3}', stop='{"1": 5}').orderBy("offset")
    assert [int(row.value) for row in cut.collect()] == only[3:5]
    assert read("in", start="latest").count() == 0
    assert read("in", columns="offset,key").columns == ["offset", "key"]


def test_a_stream_by_pieces_then_what_came_later(store: LogStore, follow: Any, drain: Any) -> None:
    filled(store)
    store.create("out", 2)
    frame = follow("in", limit=30).select("value")
    query = drain(frame, log="out")
    assert [one["numInputRows"] for one in query.recentProgress] == [30, 30, 30, 10]
    with store.appender("in", bytes) as out:
        out.append_many([b"100", b"101"])
    assert [one["numInputRows"] for one in drain(frame, log="out").recentProgress] == [2]
    assert sorted(int(one.payload) for one in written(store, "out")) == list(range(102))


def test_a_stream_may_begin_at_the_end_and_show_its_lag(store: LogStore, follow: Any, drain: Any) -> None:
    filled(store, count=30)
    store.create("out")
    frame = follow("in", start="latest", group="spark").select("value")
    drain(frame, log="out")
    for more in (b"30", b"31"):
        with store.appender("in", bytes) as out:
            out.append(more, partition=0)
        drain(frame, log="out")
    assert [one.payload for one in written(store, "out")] == [b"30", b"31"]
    # Spark tells a source of a batch when the next one begins.
    assert store.lag("in", "spark").lag == 1


def test_what_retention_took_is_an_error_or_is_skipped(
    store: LogStore, follow: Any, drain: Any, tmp_path: Path
) -> None:
    store.create("in", 1, retention=Retention(size=1), segment_bytes=4096)
    store.create("out")
    frame = follow("in").select("value")

    def append(first: int) -> None:
        with store.appender("in", bytes) as out:
            for number in range(first, first + 10):
                out.append(b"%04d" % number + b" " * 1000)

    append(0)
    start = store.bounds("in")[0].start
    drain(frame, log="out")
    first = {int(one.payload) for one in written(store, "out")}
    assert first == set(range(start, 10))
    append(10)
    append(20)
    store.enforce_retention("in")
    start = store.bounds("in")[0].start
    assert start > 10
    ours = explain(drain(frame, log="out").exception())
    assert isinstance(ours, OffsetOutOfRange)
    assert f"offsets 10 to {start - 1} of in-00 were removed" in str(ours)
    drain(follow("in", lost="skip").select("value"), log="out")
    assert {int(one.payload) for one in written(store, "out")} == first | set(range(start, 30))


def test_a_checkpoint_of_another_log(store: LogStore, follow: Any, drain: Any) -> None:
    filled(store, count=10)
    filled(store, "other", count=10)
    store.create("out")
    drain(follow("in").select("value"), log="out")
    ours = explain(drain(follow("other").select("value"), log="out").exception())
    assert isinstance(ours, BadInput)
    assert "the checkpoint is of log 'in'" in str(ours)


def test_times_that_no_calendar_has(store: LogStore, read: Any) -> None:
    """Somebody took milliseconds for microseconds, or nothing for a time: rows are there all the same."""
    store.create("in")
    times = [1 << 60, -(1 << 61), 5]
    stage = store.stage("in")
    stage.append([(0, NewRecords([b"0", b"1", b"2"], times=times))])
    with store.transaction() as transaction:
        transaction.append_staged(stage.close())
        transaction.commit()
    records = list(store.log("in", bytes).records(0))
    assert [one.time_us for one in records] == times
    rows = read("in").orderBy("offset").collect()
    assert [row.time.year for row in rows] == [one.time.year for one in records] == [9999, 1, 1970]


def test_a_schema_of_the_users_own(spark: Any, store: LogStore, url: str) -> None:
    filled(store, count=10)
    reader = spark.read.format("penstock").options(url=url, log="in")
    assert reader.schema("value BINARY, offset BIGINT").load().count() == 10
    with pytest.raises(BadInput, match="column offset is BIGINT, not STRING") as caught, plain_errors():
        reader.schema("value BINARY, offset STRING").load().collect()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"log": "nope"}, "there is no log 'nope'"),
        ({"lgo": "in", "log": "in"}, "Did you mean log? Known: url, log"),
        ({"log": "in", "queue": "q"}, "both a log and a queue"),
        ({}, "neither a log nor a queue"),
        ({"log": "in", "start": "yesterday"}, "start='yesterday' is not a place"),
        ({"log": "in", "start": "2026-01-01T00:00:00"}, "has no zone"),
        ({"log": "in", "start": '{"7": 1}'}, "partition 7"),
        ({"log": "in", "stop": '{"0": 999}'}, "ends at 5, but 999"),
        ({"log": "in", "columns": "kye"}, "Did you mean key?"),
        ({"log": "in", "limit": "many"}, "limit='many'"),
        ({"log": "in", "lost": "maybe"}, "Known: fail, skip"),
        ({"log": "in", "url": "memory://x"}, "memory:// is in one process"),
        ({"log": "in", "url": "file:///nowhere/at/all"}, "there is no folder of logs"),
        ({"log": "in", "url": "flie:///x"}, "Did you mean file://?"),
        ({"log": "in", "type": "nomodule:Thing"}, "cannot be imported"),
        ({"log": "in", "kind": "dead"}, "kind=dead is for queues"),
        ({"log": "in", "limit": "5"}, "option 'limit' means nothing for a batch read of a log"),
        ({"log": "in", "group": "g"}, "option 'group' means nothing for a batch read of a log"),
        ({"log": "in", "partitions": ""}, "partitions '' is not a list of numbers"),
        ({"log": "in", "partitions": "7"}, "log in has no partition 7; it has 3. Use 0 to 2."),
        ({"log": "in", "columns": ""}, "columns names no column"),
        ({"log": "in", "start": '{"0": 3}', "stop": '{"0": 1}'}, "is after stop"),
        ({"log": "in", "schema": "a BIGINTT"}, "payloads cannot be read as BIGINTT. Did you mean BIGINT?"),
        ({"log": "in", "schema": "a INT, a INT"}, "schema names column 'a' twice"),
        ({"log": "in", "schema": "a INT b"}, "a comma is expected before 'b'"),
    ],
)
def test_bad_input_is_one_line(spark: Any, store: LogStore, url: str, options: dict[str, str], words: str) -> None:
    filled(store, count=10)
    with pytest.raises(Exception) as caught, plain_errors():
        spark.read.format("penstock").options(**{"url": url, **options}).load().collect()
    assert words in str(caught.value), caught.value
    assert "\n" not in str(caught.value)
    assert type(caught.value).__module__ == "penstock.errors"


def test_a_share_for_everybody() -> None:
    assert rationed({0: 0, 1: 5}, {0: 10, 1: 6}, 100) == {0: 10, 1: 6}
    for limit in range(1, 30):
        ends = rationed({0: 0, 1: 5, 2: 9}, {0: 100, 1: 6, 2: 30}, limit)
        assert sum(ends.values()) - 14 == limit
        assert ends[0] <= 100
        assert ends[1] <= 6

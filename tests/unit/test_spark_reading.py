"""Reading side of ``format("penstock")`` without a JVM: options, schemas, and where a stream goes on."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.contract.queue.shorthand import end, put, take_one

from penstock import LogStore, QueueStore, open_logs, open_queues
from penstock.clock import from_micros
from penstock.errors import BadInput, Conflict, PartitionNotFound

pytest.importorskip("pyspark", reason="pyspark is not installed here")

from pyspark.sql import types as t
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from penstock.spark.datasource.arrow_batches import arrow_fields, in_calendar
from penstock.spark.datasource.columns import LOG_COLUMNS
from penstock.spark.datasource.log_reader import LogReader, LogStreamReader
from penstock.spark.datasource.options import Options, read_options
from penstock.spark.datasource.queue_reader import QueueStreamReader
from penstock.spark.datasource.schema import columns_of
from penstock.spark.datasource.source import PenstockSource, schema_of

ALL = ReadAllAvailable()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/logs?durability=fast"


@pytest.fixture
def store(url: str) -> Iterator[LogStore]:
    with open_logs(url) as opened:
        yield opened


@pytest.fixture
def place(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shop.db?durability=fast"


def filled(store: LogStore, count: int, partitions: int = 2) -> None:
    store.create("in", partitions)
    with store.appender("in", bytes) as out:
        for number in range(count):
            out.append(b"%d" % number, partition=number % partitions)


def reader(url: str, **options: Any) -> LogStreamReader:
    asked = read_options({"url": url, "log": "in", "columns": "offset,value", **options})
    return LogStreamReader(asked, schema_of(asked))


def batch(one: Any, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    """What the tasks of a batch read."""
    found: list[bytes] = []
    for part in one.partitions(start, end):
        for rows in one.read(part):
            found += rows.column("value").to_pylist()
    return found


class TestWhichLog:
    """A checkpoint belongs to one log, whatever its name."""

    def test_offsets_say_which(self, url: str, store: LogStore) -> None:
        filled(store, 4)
        offset = reader(url).initialOffset()
        assert offset == {"log": "in", "id": store.identity("in"), "offsets": {"0": 0, "1": 0}}
        assert reader(url).latestOffset(offset, ALL)["id"] == store.identity("in")
        assert reader(url).reportLatestOffset()["id"] == store.identity("in")

    @pytest.mark.parametrize("lost", ["fail", "skip"])
    def test_a_log_made_anew_is_refused_wherever_an_offset_comes_in(self, url: str, store: LogStore, lost: str) -> None:
        filled(store, 4)
        stream = reader(url, lost=lost, group="g")
        start = stream.initialOffset()
        stop = stream.latestOffset(start, ALL)
        store.delete("in")
        filled(store, 100)
        for call in (
            lambda: stream.latestOffset(stop, ALL),
            lambda: stream.partitions(start, stop),
            lambda: stream.commit(stop),
            lambda: reader(url, lost=lost).latestOffset(stop, ALL),
        ):
            with pytest.raises(BadInput, match=r"another log 'in'.*created again.*new checkpointLocation") as caught:
                call()
            assert "\n" not in str(caught.value)
        assert store.groups("in") == []

    def test_the_same_name_in_another_store(self, url: str, store: LogStore, tmp_path: Path) -> None:
        filled(store, 4)
        other = f"file://{tmp_path}/other?durability=fast"
        with open_logs(other) as elsewhere:
            filled(elsewhere, 30)
        stop = reader(url).latestOffset(reader(url).initialOffset(), ALL)
        with pytest.raises(BadInput, match="or the URL is another one"):
            reader(other).latestOffset(stop, ALL)

    def test_a_backup_is_gone_on_with(self, url: str, store: LogStore, tmp_path: Path) -> None:
        filled(store, 4)
        stop = reader(url).latestOffset(reader(url).initialOffset(), ALL)
        store.backup(str(tmp_path / "copy"))
        copy = f"file://{tmp_path}/copy?durability=fast"
        with open_logs(copy) as restored, restored.appender("in", bytes) as out:
            out.append(b"more", partition=0)
        stream = reader(copy)
        assert batch(stream, stop, stream.latestOffset(stop, ALL)) == [b"more"]

    def test_a_checkpoint_older_than_identities_goes_on_and_gets_one(self, url: str, store: LogStore) -> None:
        filled(store, 4)
        old = {"log": "in", "offsets": {"0": 1, "1": 2}}
        stop = reader(url).latestOffset(old, ALL)
        assert stop["id"] == store.identity("in")
        assert batch(reader(url), old, stop) == [b"2"]
        assert reader(url).latestOffset({**old, "id": ""}, ALL) == stop

    def test_a_log_older_than_identities(self, url: str, store: LogStore, tmp_path: Path) -> None:
        filled(store, 4)
        known = reader(url).initialOffset()
        settings = tmp_path / "logs" / "logs" / "in" / "log.json"
        kept = json.loads(settings.read_text())
        assert kept.pop("id")
        settings.write_text(json.dumps(kept))
        with open_logs(url) as again:
            assert again.identity("in") == ""
            assert again.create("in", 2) is False
            assert again.settings("in").partitions == 2
            again.backup(str(tmp_path / "copy"))
        with open_logs(f"file://{tmp_path}/copy") as copy:
            assert copy.identity("in") == ""
        stream = reader(url)
        assert stream.initialOffset()["id"] == ""
        assert sorted(batch(stream, known, stream.latestOffset(known, ALL))) == [b"0", b"1", b"2", b"3"]

    def test_a_task_reads_the_log_that_the_driver_saw(self, url: str, store: LogStore) -> None:
        filled(store, 4, partitions=1)
        asked = read_options({"url": url, "log": "in"})
        one = LogReader(asked, schema_of(asked))
        [part] = one.partitions()
        store.delete("in")
        filled(store, 9, partitions=1)
        with pytest.raises(Conflict, match="is not the log that the driver saw"):
            list(one.read(part))

    def test_a_log_that_goes_while_a_task_reads(self, url: str, store: LogStore) -> None:
        store.create("in")
        with store.appender("in", bytes) as out:
            for _ in range(3):
                out.append_many([b"old"] * 10_000)
        asked = read_options({"url": url, "log": "in"})
        one = LogReader(asked, schema_of(asked))
        [part] = one.partitions()
        rows = one.read(part)
        next(rows)
        store.delete("in")
        filled(store, 5, partitions=1)
        with pytest.raises(Conflict, match="is not the log"):
            list(rows)


class TestPartitions:
    """Which partitions a stream reads, and that it never forgets one."""

    def test_new_ones_are_read_from_their_beginning_once(self, url: str, store: LogStore) -> None:
        filled(store, 9, partitions=3)
        stream = reader(url)
        first = {**stream.initialOffset(), "offsets": {"0": 0}}  # as if there had been one partition then
        stop = stream.latestOffset({**first, "offsets": {"0": 3}}, ALL)
        assert stop["offsets"] == {"0": 3, "1": 3, "2": 3}
        assert sorted(batch(stream, {**first, "offsets": {"0": 3}}, stop)) == [b"1", b"2", b"4", b"5", b"7", b"8"]
        assert stream.latestOffset(stop, ALL) == stop
        # In pieces too: nothing of them is passed over.
        seen: list[bytes] = []
        at = first
        while (following := stream.latestOffset(at, ReadMaxRows(2))) != at:
            got = batch(stream, at, following)
            assert len(got) <= 2
            seen += got
            at = following
        assert sorted(seen) == [b"%d" % number for number in range(9)]

    def test_those_left_out_for_a_while_are_gone_on_with(self, url: str, store: LogStore) -> None:
        filled(store, 6)
        stream = reader(url)
        start = stream.initialOffset()
        stop = stream.latestOffset(start, ALL)
        with store.appender("in", bytes) as out:
            for index in (0, 1):
                out.append(b"new-%d" % index, partition=index)
        one = reader(url, partitions="0", group="g")
        then = one.latestOffset(stop, ALL)
        assert then["offsets"] == {"0": 4, "1": 3}
        assert batch(one, stop, then) == [b"new-0"]
        one.commit(then)
        assert store.committed("in", "g") == [4, None]
        assert batch(stream, then, stream.latestOffset(then, ALL)) == [b"new-1"]
        # A batch that was begun with all of them is the same when it is run again with one.
        assert len(batch(one, start, stop)) == 6

    def test_what_is_there_now_has_an_end(self, url: str, store: LogStore) -> None:
        filled(store, 6, partitions=3)
        stream = reader(url)
        start = stream.initialOffset()
        stream.prepareForTriggerAvailableNow()
        assert stream._final is not None
        del stream._final[2]  # a partition that came later
        with store.appender("in", bytes) as out:
            out.append(b"late", partition=0)
        stop = stream.latestOffset(start, ALL)
        assert stop["offsets"] == {"0": 2, "1": 2, "2": 0}
        assert stream.latestOffset(stop, ALL) == stop

    def test_one_that_is_not_there(self, url: str, store: LogStore) -> None:
        filled(store, 2)
        with pytest.raises(PartitionNotFound, match="Use 0 to 1"):
            reader(url, partitions="0,7").initialOffset()


class TestQueues:
    """The same for the history of queues."""

    @staticmethod
    def reader(url: str) -> QueueStreamReader:
        asked = read_options({"url": url, "kind": "history"})
        return QueueStreamReader(asked, schema_of(asked))

    @staticmethod
    def worked(store: QueueStore, count: int) -> None:
        for number in range(count):
            put(store, "q", number)
            end(store, take_one(store, "q"))

    def test_a_database_made_anew_is_refused(self, place: str, tmp_path: Path) -> None:
        with open_queues(place) as store:
            self.worked(store, 3)
            identity = store.driver.identity()
        stream = self.reader(place)
        start = stream.initialOffset()
        assert start["id"] == identity
        stop = stream.latestOffset(start, ALL)
        assert len(batch_of_queue(stream, start, stop)) == 3
        for path in tmp_path.glob("shop.db*"):
            path.unlink()
        with open_queues(place) as store:
            self.worked(store, 14)
        # Also by a reader that had the old one open.
        for one in (stream, self.reader(place)):
            with pytest.raises(BadInput, match=r"another history.*created again.*new checkpointLocation"):
                one.latestOffset(stop, ALL)
            with pytest.raises(BadInput, match="created again"):
                one.partitions(start, stop)

    def test_a_checkpoint_without_identity(self, place: str) -> None:
        with open_queues(place) as store:
            self.worked(store, 5)
            last = store.driver.mark("history")
        old = {"kind": "history", "queue": None, "after": last - 2}
        stream = self.reader(place)
        stop = stream.latestOffset(old, ALL)
        assert (stop["after"], stop["id"]) == (last, stream.identity())
        assert len(batch_of_queue(stream, old, stop)) == 2
        with pytest.raises(BadInput, match=f"it ends at {last} there, and {last + 9} was read before"):
            stream.latestOffset({**old, "after": last + 9}, ALL)

    def test_all_of_the_history_may_be_gone(self, place: str) -> None:
        with open_queues(place):
            stream = self.reader(place)
            start = {**stream.initialOffset(), "after": 17}
            assert stream.latestOffset(start, ALL)["after"] == 17


def batch_of_queue(one: QueueStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    found: list[int] = []
    for part in one.partitions(start, end):
        for rows in one.read(part):
            found += rows.column("seq").to_pylist()
    return found


class TestOptions:
    """What was asked for, and that it means something."""

    URL = "file:///x"

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"log": "a", "queue": "q"}, "both a log and a queue"),
            ({"log": "a", "kind": "dead"}, "kind=dead is for queues, but a log was named"),
            ({"log": "a", "partitions": ""}, "partitions '' is not a list of numbers"),
            ({"log": "a", "partitions": " , "}, "is not a list of numbers"),
            ({"log": "a", "partitions": "0;1"}, "is not a list of numbers"),
            ({"log": "a", "start": "17"}, "start='17' is not a place in a log"),
            ({"log": "a", "start": ""}, "start='' is not a place in a log"),
            ({"log": "a", "stop": "later"}, "stop='later' is not a place in a log"),
            ({"queue": "q", "start": '{"0": 1}'}, "is not a place in a queue"),
            ({"queue": "q", "start": "-3"}, "start='-3' is not a place in a queue"),
            ({"log": "a", "start": '{"0": -5}'}, "is not JSON of offsets"),
            ({"log": "a", "start": '{"0": 1.7}'}, "is not JSON of offsets"),
            ({"log": "a", "start": '{"0": true}'}, "is not JSON of offsets"),
            ({"log": "a", "start": '{"0": '}, "is not JSON of offsets"),
            ({"log": "a", "start": '{"x": 1}'}, "start names partition 'x', which is not a number"),
            ({"log": "a", "start": '{"0": 3}', "stop": '{"0": 1}'}, "is after stop"),
            ({"queue": "q", "start": "9", "stop": "3"}, "start=9 is after stop=3"),
            ({"log": "a", "start": "2026-01-02T00:00:00Z", "stop": "2026-01-01T00:00:00Z"}, "is after stop"),
            ({"log": "a", "tasks": "²"}, "tasks='²' is not a number from 1"),
            ({"log": "a", "type": "a:B", "schema": "a INT"}, "both type and schema"),
        ],
    )
    def test_what_is_refused(self, options: dict[str, str], words: str) -> None:
        with pytest.raises(BadInput) as caught:
            read_options({"url": self.URL, **options})
        assert words in str(caught.value)
        assert caught.value.hint
        assert "\n" not in str(caught.value)

    def test_places_that_are_right(self) -> None:
        for options in (
            {"log": "a", "start": "earliest", "stop": "latest"},
            {"log": "a", "start": '{"0": 3, "1": 9}', "stop": '{"0": 3, "2": 0}'},
            {"log": "a", "start": "2026-01-02T00:00:00Z", "stop": '{"0": 3}'},
            {"queue": "q", "start": "3", "stop": "3"},
            {"queue": "q", "start": "3", "stop": "2026-01-02T00:00:00+01:00"},
        ):
            assert read_options({"url": self.URL, **options}).start == options["start"]

    @pytest.mark.parametrize(
        ("call", "options", "words"),
        [
            ("reader", {"log": "a", "limit": "5"}, "'limit' means nothing for a batch read of a log; it is for a stre"),
            ("reader", {"log": "a", "group": "g"}, "'group' means nothing for a batch read of a log"),
            ("reader", {"log": "a", "producer": "p", "sequence": "1"}, "'producer' means nothing"),
            ("reader", {"queue": "q", "limit": "5"}, "'limit' means nothing for a batch read of queues"),
            ("reader", {"queue": "q", "lost": "skip"}, "'lost' means nothing for a batch read of queues"),
            ("reader", {"kind": "live", "partitions": "0"}, "'partitions' means nothing for a batch read of queues"),
            ("streamReader", {"log": "a", "stop": "latest"}, "'stop' means nothing for a stream of a log"),
            ("streamReader", {"queue": "q", "stop": "9"}, "'stop' means nothing for a stream of queues"),
            ("streamReader", {"queue": "q", "group": "g"}, "'group' means nothing for a stream of queues"),
            ("writer", {"log": "a", "start": "latest"}, "'start' means nothing for a write into logs"),
            ("writer", {"log": "a", "columns": "value"}, "'columns' means nothing for a write into logs"),
            ("writer", {"queue": "q", "kind": "live"}, "'kind' means nothing for a write into queues"),
            ("streamWriter", {"queue": "q", "limit": "5"}, "'limit' means nothing for a write into queues"),
        ],
    )
    def test_options_that_would_do_nothing(self, call: str, options: dict[str, str], words: str) -> None:
        source = PenstockSource({"url": self.URL, **options})
        more = (False,) if "riter" in call else ()
        with pytest.raises(BadInput) as caught:
            getattr(source, call)(columns_of("value STRING"), *more)
        assert words in str(caught.value)
        assert "Known here: " in str(caught.value)

    @pytest.mark.parametrize(
        ("familiar", "ours"),
        [
            ({"subscribe": "in"}, {"log": "in"}),
            ({"log": "in", "startingOffsets": "latest"}, {"log": "in", "start": "latest"}),
            ({"log": "in", "startingOffsets": '{"in":{"0":17,"1":4}}'}, {"log": "in", "start": '{"0":17,"1":4}'}),
            ({"log": "in", "startingOffsets": '{"in":{"0":-2,"1":-2}}'}, {"log": "in", "start": "earliest"}),
            ({"subscribe": "in", "endingOffsets": '{"in":{"0":-1}}'}, {"log": "in", "stop": "latest"}),
            ({"log": "in", "endingOffsets": '{"0": 3}'}, {"log": "in", "stop": '{"0": 3}'}),
            (
                {"log": "in", "startingTimestamp": "1767225600000"},
                {"log": "in", "start": "2026-01-01T00:00:00+00:00"},
            ),
            (
                {"log": "in", "endingTimestamp": "2026-01-01T00:00:00Z", "minPartitions": "8"},
                {"log": "in", "stop": "2026-01-01T00:00:00Z", "tasks": "8"},
            ),
            (
                {"log": "in", "maxOffsetsPerTrigger": "100", "failOnDataLoss": "false"},
                {"log": "in", "limit": "100", "lost": "skip"},
            ),
            ({"log": "in", "FAILONDATALOSS": "true"}, {"log": "in", "lost": "fail"}),
            (
                {"log": "in", "txnAppId": "nightly", "txnVersion": "17"},
                {"log": "in", "producer": "nightly", "sequence": "17"},
            ),
        ],
    )
    def test_names_of_kafka_s_connector_and_of_delta(
        self, url: str, familiar: dict[str, str], ours: dict[str, str]
    ) -> None:
        assert read_options({"url": url, **familiar}) == read_options({"url": url, **ours})

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"log": "in", "subscribe": "in"}, "says the same"),
            ({"log": "in", "start": "latest", "startingOffsets": "latest"}, "says the same"),
            ({"log": "in", "startingOffsets": "latest", "startingTimestamp": "0"}, "says the same"),
            ({"log": "in", "failOnDataLoss": "perhaps"}, "neither true nor false"),
            ({"log": "in", "startingOffsets": '{"other":{"0":1}}'}, "offsets of other were given, but in is read"),
            ({"log": "in", "startingOffsets": '{"in":{"0":1,"1":-2}}'}, "mixes offsets"),
        ],
    )
    def test_familiar_names_that_are_misused(self, url: str, options: dict[str, str], words: str) -> None:
        with pytest.raises(BadInput, match=words):
            read_options({"url": url, **options})

    def test_every_option_is_for_something(self) -> None:
        from penstock.spark.datasource.options import USES

        used = {name for names in USES.values() for name in names}
        assert used | {"url", "log", "queue"} == set(Options.__struct_fields__)


class TestSchemas:
    """Columns out of DDL, and columns that a user gave."""

    def test_types(self) -> None:
        found = columns_of(
            "a INT NOT NULL COMMENT 'it''s', `b c` array<struct<x:int,y: decimal(5,2)>>,\n"
            " m MAP<STRING, ARRAY<BIGINT>>, group timestamp_ntz, d NUMERIC, s struct<>, t TIMESTAMP"
        )
        assert found.simpleString() == (
            "struct<a:int,b c:array<struct<x:int,y:decimal(5,2)>>,m:map<string,array<bigint>>,group:timestamp_ntz,"
            "d:decimal(10,0),s:struct<>,t:timestamp>"
        )
        assert [one.name for one in found.fields if not one.nullable] == ["a"]

    @pytest.mark.parametrize(
        ("ddl", "words"),
        [
            ("a BIGINTT", "payloads cannot be read as BIGINTT. Did you mean BIGINT?"),
            ("a INTERVAL DAY", "payloads cannot be read as INTERVAL"),
            ("a VARIANT", "payloads cannot be read as VARIANT"),
            ("a INT, a INT", "schema names column 'a' twice"),
            ("s STRUCT<b: INT, b: INT>", "schema names column 'b' twice"),
            ("", "schema names no column"),
            ("a", "a type is expected at its end"),
            ("a INT,", "a column is expected at its end"),
            ("a INT b INT", "a comma is expected before 'b INT'"),
            ("a ARRAY<INT", "> is expected at its end"),
            ("a MAP<INT>", ", is expected before '>'"),
            ("a DECIMAL(99)", "DECIMAL(99, 0)"),
            ("a DECIMAL(x)", "a number is expected"),
            ("a INT NOT", "NULL is expected"),
            ("`a INT", "the name of a column is expected"),
            ("a INT; DROP", "a comma is expected before '; DROP'"),
            ("a " + "ARRAY<" * 90 + "INT" + ">" * 90, "nested more than 50 deep"),
        ],
    )
    def test_slips(self, ddl: str, words: str) -> None:
        with pytest.raises(BadInput) as caught:
            schema_of(read_options({"url": "file:///x", "log": "a", "schema": ddl}))
        assert words in str(caught.value)
        assert caught.value.hint
        assert "\n" not in str(caught.value)

    def test_a_schema_that_a_user_gave(self) -> None:
        assert arrow_fields(columns_of("value BINARY, offset BIGINT"), LOG_COLUMNS).names == ["value", "offset"]
        for ddl, words in (
            ("offset STRING", "column offset is BIGINT, not STRING"),
            ("headers MAP<STRING, STRING>", "column headers is MAP<STRING, BINARY>"),
            ("vlaue BINARY", "Did you mean value?"),
            ("data STRUCT<a: INT>", "there is no column 'data'"),
        ):
            with pytest.raises(BadInput) as caught:
                arrow_fields(columns_of(ddl), LOG_COLUMNS)
            assert words in str(caught.value)
        twice = t.StructType([t.StructField("key", t.BinaryType()), t.StructField("key", t.BinaryType())])
        with pytest.raises(BadInput, match="names column 'key' twice"):
            arrow_fields(twice, LOG_COLUMNS)


class TestTimes:
    """Times that no calendar has: kept by whoever wrote them, shown as its end."""

    def test_columns(self) -> None:
        kind = pa.timestamp("us", tz="UTC")
        good = pa.array([0, None, -62_135_596_800_000_000, 253_402_300_799_999_999], pa.int64()).cast(kind)
        assert in_calendar(good) is good
        assert in_calendar(pa.array([], kind)).to_pylist() == []
        odd = pa.array([1 << 60, None, 5, -(1 << 63)], pa.int64()).cast(kind)
        assert in_calendar(odd).to_pylist() == [
            from_micros(1 << 60), None, datetime(1970, 1, 1, microsecond=5, tzinfo=UTC), datetime(1, 1, 2, tzinfo=UTC),
        ]  # fmt: skip

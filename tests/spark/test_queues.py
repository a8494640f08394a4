"""Queues: history and live entries as tables and streams, and entries out of DataFrames."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark import TaskContext
from pyspark.sql import functions as f
from tests.contract.queue.shorthand import end, put, take, take_one
from tests.store_urls import STORES

from penstock import QueueStore, open_queues
from penstock.errors import BadInput, Unsupported
from penstock.spark import explain, plain_errors


class Mail(msgspec.Struct):
    to: str
    size: int = 0


@pytest.fixture
def place(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shop.db?durability=fast"


def worked(store: QueueStore, queue: str, count: int) -> None:
    for number in range(count):
        put(store, queue, {"to": f"a{number}", "size": number}, labels={"n": str(number)})
    for entry in take(store, queue, limit=count):
        end(store, entry)


def load(spark: Any, url: str, **options: Any) -> Any:
    return spark.read.format("penstock").options(url=url, **options).load()


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql", "redis"])
def test_history_and_live_entries(spark: Any, kind: str, tmp_path: Path, servers: Callable[[str], Any]) -> None:
    url = STORES[kind](tmp_path, servers).url
    with open_queues(url) as store:
        worked(store, "mails", 30)
        worked(store, "other", 5)
        put(store, "mails", {"to": "late"})
        put(store, "mails", {"to": "held"}, priority=5)
        held = take_one(store, "mails")
        rows = load(spark, url, queue="mails", tasks=4, type=f"{__name__}:Mail")
        assert rows.rdd.getNumPartitions() == 4
        found = rows.orderBy("seq").collect()
        assert [(row.data.to, row.state, row.labels) for row in found] == [
            (f"a{number}", "done", {"n": str(number)}) for number in range(30)
        ]
        assert all(row.created <= row.started <= row.ended and row.owner == "worker-a" for row in found)
        assert load(spark, url, kind="history").groupBy("queue").count().collect() != []
        assert load(spark, url, kind="history").count() == 35
        middle = found[10].seq
        assert load(spark, url, queue="mails", start=middle, stop=found[20].seq).count() == 10
        live = {row.id: row for row in load(spark, url, kind="live", queue="mails").collect()}
        assert sorted(row.state for row in live.values()) == ["leased", "waiting"]
        assert live[held.id].owner == "worker-a"


def test_rows_show_what_their_attempt_saw_or_say_why_not(
    spark: Any, tmp_path: Path, servers: Callable[[str], Any]
) -> None:
    url = STORES["sqlite"](tmp_path, servers).url
    with open_queues(url) as store:
        queue = store.queue("mails", dict)
        id_ = queue.put({"to": "first"}).id
        end(store, take_one(store, "mails"), "retry")
        queue.update(id_, {"to": "second"})
        end(store, take_one(store, "mails"), "dead")
        rows = load(spark, url, queue="mails", type=f"{__name__}:Mail").orderBy("seq").collect()
        assert [(row.data.to, row.gap, row.bad) for row in rows] == [("first", None, None), ("second", None, None)]
        queue.purge_dead()
        rows = load(spark, url, queue="mails", type=f"{__name__}:Mail").collect()
        assert [(row.data, row.payload, row.gap) for row in rows] == [(None, None, "removed")] * 2
        assert {row.bad for row in rows} == {"the payload was removed with its dead letter"}


def test_the_history_is_followed(spark: Any, place: str, tmp_path: Path) -> None:
    out = str(tmp_path / "parquet")

    def run(**options: Any) -> Any:
        source = spark.readStream.format("penstock").options(url=place, queue="mails", **options).load()
        writer = source.select("seq", "payload").writeStream.format("parquet").option("path", out)
        query = writer.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start()
        query.awaitTermination(60)
        return query

    with open_queues(place) as store:
        worked(store, "mails", 20)
        run(limit=8)
        worked(store, "mails", 7)
        run()
    rows = spark.read.parquet(out)
    assert rows.count() == rows.select("seq").distinct().count() == 27


def test_entries_out_of_rows_once(spark: Any, place: str) -> None:
    with open_queues(place) as store:

        def flaky(batches: Any) -> Any:
            yield from batches
            if TaskContext.get().attemptNumber() == 0:
                raise RuntimeError("not this time")

        rows = spark.range(40).select(
            f.to_json(f.struct(f.concat(f.lit("a"), (f.col("id") % 10)).alias("to"))).alias("payload"),
            f.when(f.col("id") % 2 == 0, "even").otherwise("odd").alias("queue"),
            f.create_map(f.lit("k"), f.lit("v")).alias("labels"),
        )
        shaky = rows.repartition(2).mapInArrow(flaky, rows.schema)
        for _ in range(2):  # the same write twice, each with tasks that fail at first
            shaky.write.format("penstock").options(url=place, producer="load", sequence=1).mode("append").save()
        assert (store.counts("even")[0].ready, store.counts("odd")[0].ready) == (20, 20)
        mail = store.queue("odd", Mail).find()[0]
        assert (mail.value.to[0], mail.labels) == ("a", {"k": "v"})
        # Also after the entries have ended.
        for entry in take(store, "even", limit=20):
            end(store, entry)
        shaky.write.format("penstock").options(url=place, producer="load", sequence=1).mode("append").save()
        assert (store.counts("even")[0].ready, store.counts("odd")[0].ready) == (0, 20)
        shaky.write.format("penstock").options(url=place, producer="load", sequence=2).mode("append").save()
        assert store.counts("even")[0].ready == 20


def test_a_stream_of_entries_replayed(spark: Any, place: str, url: str, store: Any, tmp_path: Path) -> None:
    store.create("in", 2)
    with store.appender("in", bytes) as out:
        out.append_many([b'{"to": "%d"}' % (at % 5) for at in range(30)])
    source = spark.readStream.format("penstock").options(url=url, log="in").load()
    frame = source.select(f.col("value").cast("string").alias("payload"))
    with open_queues(place) as queues:
        for _ in range(2):
            writer = frame.writeStream.format("penstock").options(url=place, queue="mails", type=f"{__name__}:Mail")
            query = writer.option("checkpointLocation", str(tmp_path / "check")).trigger(availableNow=True).start()
            query.awaitTermination(60)
            for path in (tmp_path / "check" / "commits").glob("*0*"):
                path.unlink()
        assert queues.counts("mails")[0].ready == 30


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("'{}' AS payload", {}, "no target was named"),
        ("'{}' AS paylod", {"queue": "q"}, "no column payload"),
        ("'{' AS payload", {"queue": "q"}, "cannot be read as"),
        ("'{}' AS payload", {"queue": "q", "type": f"{__name__}:Mail"}, "missing required field `to`"),
        ("'{}' AS payload, map('a', 1) AS labels", {"queue": "q"}, "column labels is map<string,int>"),
        ("'{}' AS payload, map(1, 'a') AS headers", {"queue": "q"}, "column headers is map<int,string>"),
        ("'{}' AS payload, map('a', CAST(NULL AS STRING)) AS labels", {"queue": "q"}, "column labels: label a=None"),
        ("'{}' AS payload, map('a b', 'c') AS labels", {"queue": "q"}, "column labels: label name 'a b'"),
        ("'{}' AS payload, map('a', CAST(NULL AS STRING)) AS headers", {"queue": "q"}, "column headers: header 'a'"),
        (
            "'{}' AS payload, map('a', repeat('h', 70000)) AS headers",
            {"queue": "q"},
            "column headers: headers of 70,001",
        ),
        ("'{}' AS payload, 101 AS priority", {"queue": "q"}, "column priority: priority 101 is out of range"),
        ("'{}' AS payload, '' AS id", {"queue": "q"}, "column id: id '' is not allowed"),
        ("'{}' AS payload, repeat('x', 5000) AS id", {"queue": "q"}, "column id: id 'xxx"),
        ("'{}' AS payload, '' AS unique", {"queue": "q"}, "column unique: unique id ''"),
        (
            "'{}' AS payload, timestamp_micros(9223372036854775807) AS due",
            {"queue": "q"},
            "column due: 92233720368547758",
        ),
        ("concat('\"', repeat('x', 300000), '\"') AS payload", {"queue": "q"}, "a payload of 300,002 bytes"),
        ("'{}' AS payload, 'q' AS queue", {"queue": "q"}, "the option queue=q and a column queue both say where"),
        ("'{}' AS payload, 'no way' AS queue", {}, "column queue: queue name 'no way'"),
        ("'{}' AS payload, CAST(NULL AS STRING) AS queue", {}, "its column queue is null"),
        ("'{}' AS payload, 'no' AS due", {"queue": "q"}, "An entry needs TIMESTAMP"),
    ],
)
def test_bad_entries_are_one_line(spark: Any, place: str, columns: str, options: dict[str, str], words: str) -> None:
    with open_queues(place) as store:
        with pytest.raises(Exception) as caught, plain_errors():
            spark.sql(f"SELECT {columns}").write.format("penstock").options(url=place, **options).mode("append").save()
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
        assert store.counts("q")[0].ready == 0


def test_bad_questions_are_one_line(spark: Any, place: str) -> None:
    with open_queues(place) as store:
        put(store, "mails")
        for options, words in (
            ({"queue": "mail"}, "Did you mean mails?"),
            ({"kind": "histroy"}, "Did you mean history?"),
            ({"queue": "mails", "start": "soon"}, "start='soon' is not a place in a queue"),
            ({"queue": "mails", "group": "g"}, "option 'group' means nothing for a batch read of queues"),
            ({"queue": "mails", "url": "sqlite:////nowhere/x.db"}, "there is no database"),
            ({"queue": "mails", "url": "zookeeper://127.0.0.1:1/x"}, "does not read or write queues in ZooKeeper"),
        ):
            with pytest.raises(Exception) as caught:
                load(spark, **{"url": place, **options}).collect()
            ours = explain(caught.value)
            assert isinstance(ours, BadInput | Unsupported) or "database" in words
            assert words in str(ours)
        followed = spark.readStream.format("penstock").options(url=place, queue="mails", kind="live").load()
        with pytest.raises(Exception) as caught:
            followed.writeStream.format("noop").start().awaitTermination(30)
        assert isinstance(explain(caught.value), Unsupported)

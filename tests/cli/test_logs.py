"""``penstock log`` on a real folder of logs."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.app import app
from penstock.log.record import NewRecords, Partition
from penstock.queue.changes import recent_changes

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return f"file://{tmp_path}/logs"


@pytest.fixture
def run(folder: str) -> Run:
    def invoke(*arguments: str, given: str | bytes | None = None) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["log", *arguments], env={"PENSTOCK_LOGS_URL": folder}, input=given)
        return done.exit_code, done.output

    return invoke


@pytest.fixture
def clicks(folder: str) -> str:
    with penstock.open_logs(folder) as store:
        store.create("clicks", partitions=2)
        with store.appender("clicks") as out:
            for number in range(6):
                out.append({"n": number}, key=f"user-{number % 2}", partition=number % 2)
        with store.tailer("clicks", "billing") as tail:
            tail.read(3)
            tail.commit()
    return "clicks"


def test_the_tools_of_a_log(run: Run, folder: str) -> None:
    assert run("create", "clicks", "--partitions", "2") == (0, "clicks was created with 2 partitions.\n")
    assert "there already" in run("create", "clicks")[1]
    assert run("append", "clicks", '{"a": 1}', '{"b": 2}', "--key", "ann")[1] == "Appended 2 records to clicks.\n"
    assert run("append", "clicks", given='{"c": 3}\n{"d": 4}\n')[1] == "Appended 2 records to clicks.\n"
    [row] = json.loads(run("list", "--json")[1])
    assert (row["log"], row["partitions"], row["records"]) == ("clicks", 2, 4)
    shown = run("cat", "clicks")[1]
    assert '{"a": 1}' in shown
    assert " ann " in shown


def test_what_a_typed_reader_could_not_read_is_not_appended(run: Run, folder: str) -> None:
    run("create", "visits")

    def payloads() -> list[bytes]:
        with penstock.open_logs(folder) as store:
            return [record.payload for record in store.log("visits", bytes).records(0)]

    code, said = run("append", "visits", "1", "hello")
    assert (code, "record 2 is not JSON" in said, "--raw" in said) == (2, True, True)
    assert payloads() == []
    code, said = run("append", "visits", given="1\nhello\n2\n")
    assert (code, "record 2 (those before it were appended) is not JSON" in said) == (2, True)
    assert payloads() == [b"1"]
    assert run("append", "visits", "--from-json", given='{"bytes": "aGVsbG8="}\n')[0] == 2
    assert run("append", "visits", "--from-json", given='{"value": 1, "bytes": "aGVsbG8="}\n')[0] == 2
    assert run("append", "visits", "--from-json", given='{"val": "1"}\n')[0] == 2
    assert run("append", "visits", "--from-json", given="hello\n")[0] == 2
    assert payloads() == [b"1"]
    assert run("append", "visits", "--raw", "hello")[0] == 0
    assert run("append", "visits", "--raw", "--from-json", given='{"bytes": "aGVsbG8="}\n')[0] == 0
    assert run("append", "visits", "--raw", "--from-json", given='{"bytes": "%"}\n')[0] == 2
    assert payloads() == [b"1", b"hello", b"hello"]


TYPES = """
import msgspec
import penstock

class Click(msgspec.Struct):
    user: str
    count: int = 1

@penstock.versioned(lambda old: {"user": old["name"]})
class Visit(msgspec.Struct):
    user: str

an_int = 5
"""


@pytest.fixture
def types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_types.py").write_text(TYPES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("shop_types", None)


@pytest.mark.usefixtures("types")
class TestAppendOfAType:
    def payloads(self, folder: str) -> list[bytes]:
        with penstock.open_logs(folder) as store:
            return [record.payload for record in store.log("clicks", bytes).records(0)]

    def test_what_readers_of_the_type_can_read_is_taken_as_it_is(self, run: Run, folder: str) -> None:
        run("create", "clicks")
        assert run("append", "clicks", "--type", "shop_types:Click", '{"user":  "ann"}')[0] == 0
        assert run("append", "clicks", "--type", "shop_types:Click", given='{"user": "bob", "count": 2}\n')[0] == 0
        row = '{"value": {"user": "eve"}}\n'
        assert run("append", "clicks", "--type", "shop_types:Click", "--from-json", given=row)[0] == 0
        assert self.payloads(folder) == [b'{"user":  "ann"}', b'{"user": "bob", "count": 2}', b'{"user": "eve"}']

    @pytest.mark.parametrize(
        ("value", "field"),
        [('{"user": "ann", "count": "many"}', "$.count"), ('{"count": 1}', "`user`"), ("5", "object")],
    )
    def test_anything_else_is_refused_with_its_field(self, run: Run, folder: str, value: str, field: str) -> None:
        run("create", "clicks")
        good = '{"user": "ann"}'
        code, said = run("append", "clicks", "--type", "shop_types:Click", good, value)
        assert (code, "record 2 cannot be read as Click" in said, field in said) == (2, True, True), said
        assert self.payloads(folder) == [], "all of them are checked first"
        code, said = run("append", "clicks", "--type", "shop_types:Click", given=f"{good}\n{value}\n")
        assert (code, "(those before it were appended)" in said, field in said) == (2, True, True), said
        code, said = run("append", "clicks", "--type", "shop_types:Click", "--from-json", given=f'{{"value": {value}}}')
        assert (code, field in said) == (2, True), said
        assert self.payloads(folder) == [good.encode()]
        assert run("append", "clicks", value)[0] == 0, "any JSON without a type"

    def test_a_log_of_bytes_too(self, run: Run, folder: str) -> None:
        with penstock.open_logs(folder) as store:
            store.create("clicks", codec="bytes")
        assert run("append", "clicks", "--type", "shop_types:Click", "hello")[0] == 2
        assert run("append", "clicks", "--type", "builtins:bytes", "hello")[0] == 0

    def test_of_versions(self, run: Run, folder: str) -> None:
        run("create", "clicks")
        assert run("append", "clicks", "--type", "shop_types:Visit", '{"name": "ann"}')[0] == 0, "version 1"
        code, said = run("append", "clicks", "--type", "shop_types:Visit", '{"user": "ann"}')
        assert (code, "record 1 cannot be read as Visit" in said, "version 1" in said) == (2, True, True), said
        assert run("append", "clicks", "--type", "shop_types:Visit", '{"$version": 2, "user": "ann"}')[0] == 0

    @pytest.mark.parametrize(
        ("name", "said"),
        [
            ("Click", "does not name a type"),
            ("shop_types:Clack", "has no 'Clack'"),
            ("nowhere_at_all:Click", "no module 'nowhere_at_all'"),
            ("shop_types:an_int", "5"),
        ],
    )
    def test_names_of_types(self, run: Run, name: str, said: str) -> None:
        run("create", "clicks")
        code, out = run("append", "clicks", "--type", name, "1")
        assert (code, said in out, "Traceback" in out) == (2, True, False), out

    def test_raw_is_of_no_type(self, run: Run) -> None:
        run("create", "clicks")
        assert run("append", "clicks", "--type", "shop_types:Click", "--raw", "1")[0] == 2


@pytest.mark.parametrize("depth", [256, 5000])
def test_what_is_nested_too_deep_is_not_appended(run: Run, folder: str, depth: int) -> None:
    run("create", "visits")
    deep, deepest = "[" * depth + "]" * depth, "[" * 255 + "]" * 255
    row = f'{{"value": {deep}}}'
    for code, said in (
        run("append", "visits", "1", deep), run("append", "visits", given=deep),
        run("append", "visits", "--from-json", given=row),
    ):  # fmt: skip
        assert (code, "nested more than 255 deep" in said, "--raw" in said) == (2, True, True)
    with penstock.open_logs(folder) as store:
        assert not list(store.log("visits", bytes).records(0))
    assert run("append", "visits", deepest)[0] == 0
    assert run("append", "visits", "--raw", deep)[0] == 0


def test_a_log_of_bytes_takes_any_text(run: Run, folder: str) -> None:
    with penstock.open_logs(folder) as store:
        store.create("lines", codec="bytes")
    assert run("append", "lines", "hello")[0] == 0


def test_cat_begins_and_ends_where_told(run: Run, clicks: str) -> None:
    rows = [
        json.loads(line) for line in run("cat", clicks, "--partition", "1", "--start", "1", "--json")[1].splitlines()
    ]
    assert [(row["offset"], row["value"], row["key"]) for row in rows] == [
        (1, {"n": 3}, "user-1"),
        (2, {"n": 5}, "user-1"),
    ]
    assert len(run("cat", clicks, "--limit", "2")[1].splitlines()) == 2
    assert len(run("cat", clicks, "--since", "1h")[1].splitlines()) == 6


def test_json_of_cat_is_taken_back_as_it_was(run: Run, folder: str) -> None:
    run("create", "from")
    run("create", "to")
    payloads = [b'{"to": "ann", "n": 1.50}', b'"text"', b"12345678901234567890123", b'{"a":\n [1]}']
    odd = [b"hello", b"\xff\x00", b"", b'{"a":']
    with penstock.open_logs(folder) as store, store.appender("from", bytes) as out:
        for payload in (*payloads, *odd):
            out.append(payload)
    lines = run("cat", "from", "--json")[1]
    rows = [json.loads(line) for line in lines.splitlines()]
    assert rows[0]["value"] == {"to": "ann", "n": 1.5}
    assert [("value" in row, "bytes" in row) for row in rows] == [(True, False)] * 4 + [(False, True)] * 4
    code, said = run("append", "to", "--raw", "--from-json", given=lines)
    assert code == 0, said
    with penstock.open_logs(folder) as store:
        stored = [record.payload for record in store.log("to", bytes).records(0)]
    assert [json.loads(payload) for payload in stored[:4]] == [json.loads(payload) for payload in payloads]
    assert stored[4:] == odd


def test_tail_looks_or_reads_for_a_group(run: Run, clicks: str, folder: str) -> None:
    assert len(run("tail", clicks, "--no-follow", "-n", "2")[1].splitlines()) == 4
    assert len(run("tail", clicks, "--no-follow", "--group", "billing")[1].splitlines()) == 3
    with penstock.open_logs(folder) as store:
        assert store.lag(clicks, "billing").lag == 0


def test_lag_and_reset(run: Run, clicks: str, folder: str) -> None:
    rows = json.loads(run("lag", clicks, "--json")[1])
    assert sum(row["lag"] for row in rows) == 3
    assert "billing" in run("lag", clicks)[1]
    code, said = run("reset", clicks, "--group", "billing", "--to", "start")
    assert (code, "--yes" in said) == (4, True)
    with penstock.open_logs(folder) as store:
        assert store.lag(clicks, "billing").lag == 3
    for to, lag in (("end", 0), ("1", 4), ("start", 6), ("1h", 6)):
        assert run("reset", clicks, "--group", "billing", "--to", to, "--yes")[0] == 0
        with penstock.open_logs(folder) as store:
            assert store.lag(clicks, "billing").lag == lag


def test_a_reset_tells_that_it_makes_a_group(run: Run, clicks: str, folder: str) -> None:
    code, said = run("reset", clicks, "--group", "biling", "--to", "start")
    assert (code, "new group" in said, "Did you mean billing?" in said) == (4, True, True)
    with penstock.open_logs(folder) as store:
        assert store.groups(clicks) == ["billing"]
    assert "is made" in run("reset", clicks, "--group", "biling", "--to", "start", "--yes")[1]
    assert "is made" not in run("reset", clicks, "--group", "biling", "--to", "start", "--yes")[1]


def test_a_reset_is_recorded_in_the_queue_store_or_says_that_it_is_not(
    clicks: str, folder: str, tmp_path: Path
) -> None:
    reset = ["log", "reset", clicks, "--group", "billing", "--to", "start", "--yes"]
    queues = f"sqlite:///{tmp_path}/q.db"
    with penstock.open_queues(queues) as store:
        alone = CliRunner().invoke(app, reset, env={"PENSTOCK_LOGS_URL": folder, "PENSTOCK_URL": ""})
        [line] = alone.stderr.splitlines()
        assert "not recorded: set PENSTOCK_URL to the queue store" in line
        assert recent_changes(store) == []
        beside = CliRunner().invoke(app, reset, env={"PENSTOCK_LOGS_URL": folder, "PENSTOCK_URL": queues})
        assert (beside.exit_code, beside.stderr) == (0, "")
        assert [change.did for change in recent_changes(store)] == ["reset of group"]


def test_what_cat_prints_can_be_appended(run: Run, clicks: str) -> None:
    printed = run("cat", clicks, "--json")[1]
    run("create", "again", "--partitions", "2")
    assert run("append", "again", "--from-json", given=printed)[0] == 0
    assert run("cat", "again", "--json")[1] == printed


def test_times_that_no_calendar_has_are_shown_as_they_are(run: Run, folder: str) -> None:
    """Written by somebody who took milliseconds for microseconds, by a way that does not look at times."""
    with penstock.open_logs(folder) as store:
        store.create("odd")
        stage = store.stage("odd")
        stage.append([(0, NewRecords([b"far", b"long ago", b"good"], times=[1 << 60, -(1 << 60), 0]))])
        with store.transaction() as transaction:
            transaction.append_staged(stage.close())
            transaction.commit()
    for command in (("cat", "odd"), ("tail", "odd", "--no-follow"), ("tail", "odd", "--no-follow", "--group", "g")):
        code, said = run(*command)
        assert code == 0
        assert [line.split()[2] for line in said.splitlines()] == [
            str(1 << 60), str(-(1 << 60)), "1970-01-01T00:00:00+00:00",
        ]  # fmt: skip
    printed = run("cat", "odd", "--json")[1].splitlines()
    assert [json.loads(line)["time"] for line in printed] == [1 << 60, -(1 << 60), "1970-01-01T00:00:00+00:00"]
    run("create", "again")
    assert run("append", "again", "--from-json", "--raw", given=printed[2])[0] == 0
    code, said = run("append", "again", "--from-json", "--raw", given=printed[0])
    assert (code, "is not in the years 1 to 9999" in said) == (2, True)


def test_copy_backup_verify_repair(run: Run, clicks: str, folder: str, tmp_path: Path) -> None:
    code, said = run("copy", clicks, folder, f"file://{tmp_path}/other")
    assert (code, "6 records in 2 partitions are the same" in said, "billing" in said) == (0, True, True)
    assert json.loads(run("copy", clicks, folder, f"file://{tmp_path}/other", "--json")[1])["carried"] == 0
    assert run("backup", str(tmp_path / "backup"))[0] == 4
    assert not (tmp_path / "backup").exists()
    assert run("backup", str(tmp_path / "backup"), "--yes")[0] == 0
    assert run("verify", "--url", f"file://{tmp_path}/backup")[0] == 0
    assert run("verify")[0] == 0
    assert run("repair", clicks)[0] == 4
    assert run("repair", clicks, "--yes")[0] == 0
    assert run("enforce-retention")[0] == 0


def test_delete_asks_first(run: Run, clicks: str) -> None:
    code, said = run("delete", clicks)
    assert (code, "6 records and 1 group" in said) == (4, True)
    assert run("delete", clicks, "--yes")[0] == 0
    assert run("list")[1] == "There is no log yet.\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cat", "click"), "Did you mean clicks?"),
        (("list", "--url", "file://nowhere"), "no folder"),
        (("list", "--url", "memory://"), "inside one process"),
        (("list", "--url", "carrier-pigeon://x"), "carrier-pigeon"),
        (("cat", "clicks", "--partition", "9"), "no partition 9"),
        (("cat", "clicks", "--start", "99", "--partition", "0"), "offset 99"),
        (("reset", "clicks", "--group", "billing", "--to", "soon", "--yes"), "soon"),
        (("create", "clicks/7"), "clicks/7"),
        (("lag", "clicks", "--group", "bad name"), "bad name"),
    ],
)
def test_bad_input_is_one_line(run: Run, clicks: str, arguments: tuple[str, ...], said: str) -> None:
    code, out = run(*arguments)
    assert code == 2
    assert said in out
    assert "Traceback" not in out


def test_doctor_of_logs(clicks: str, folder: str) -> None:
    done = CliRunner().invoke(app, ["doctor", folder])
    assert done.exit_code == 0
    assert "file system" in done.output


def test_bytes_that_are_no_text_go_in_raw_only(run: Run, folder: str) -> None:
    run("create", "bytes")
    code, said = run("append", "bytes", given=b"\xff\xfe\n")
    assert (code, "is not JSON" in said) == (2, True)
    assert run("append", "bytes", "--raw", given=b"\xff\xfe\n") == (0, "Appended 1 record to bytes.\n")
    with penstock.open_logs(folder) as logs:
        [batch] = logs.batches(Partition("bytes", 0))
        assert list(batch.payloads()) == [b"\xff\xfe"]

"""``penstock import`` and ``export``: what is wrong is said in one line, before any JVM is started."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.app import app

pytest.importorskip("pyspark", reason="pyspark is not installed here")


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Stores and files; and a session that must not be asked for."""

    def session(*_: Any, **__: Any) -> None:
        raise AssertionError("a JVM was started")

    monkeypatch.setattr("penstock.spark.session", session)
    monkeypatch.chdir(tmp_path)
    made = {"logs": f"file://{tmp_path}/logs", "queues": f"sqlite:///{tmp_path}/q.db"}
    with penstock.open_logs(made["logs"]) as store:
        store.create("orders")
    with penstock.open_queues(made["queues"]):
        pass
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("id,name\n1,Ann\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "mixed").mkdir()
    for name in ("a.csv", "b.jsonl"):
        (tmp_path / "mixed" / name).touch()
    (tmp_path / "colon").mkdir()
    (tmp_path / "colon" / "T08:00.jsonl").touch()
    (tmp_path / "x:y [1]").mkdir()
    (tmp_path / "x:y [1]" / "a.jsonl").touch()
    (tmp_path / "days" / "day=2026-01-01").mkdir(parents=True)
    (tmp_path / "days" / "day=2026-01-01" / "a.csv").write_text("id\n1\n")
    for name in ("_a.jsonl", ".a.jsonl"):
        (tmp_path / name).write_text("{}\n")
    for name, text in (("empty", ""), ("torn", '{"source":'), ("other", "[]")):
        (tmp_path / f"state-{name}").mkdir()
        (tmp_path / f"state-{name}" / "import.json").write_text(text)
    return made


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["import", "nowhere", "--to", "log:orders", "--url", "LOGS"], "there is no nowhere"),
        (["import", "empty", "--to", "log:orders", "--url", "LOGS"], "holds nothing that is known"),
        (["import", "mixed", "--to", "log:orders", "--url", "LOGS"], "holds csv and json"),
        (["import", "in", "--to", "orders", "--url", "LOGS"], "target 'orders' cannot be read"),
        (["import", "in", "--to", "table:orders", "--url", "LOGS"], "cannot be read. Write log:NAME or queue:NAME"),
        (["import", "in", "--to", "log:", "--url", "LOGS"], "log name '' is not allowed"),
        (["import", "in", "--to", "log:order", "--url", "LOGS"], "there is no log 'order'"),
        (["import", "in", "--to", "log:orders", "--form", "xml", "--url", "LOGS"], "form 'xml' is not known"),
        (["import", "in", "--to", "log:orders", "--key", "ID", "--url", "LOGS"], "no column 'ID'"),
        (["import", "in", "--to", "log:orders", "--schema", "id INTT, name STRING", "--url", "LOGS"], "INTT"),
        (["import", "in", "--to", "log:orders", "--schema", "id INT", "--url", "LOGS"], "the files have id, name"),
        (["import", "in", "--to", "log:orders", "--url", "QUEUES"], "sqlite"),
        (["import", "in", "--to", "queue:orders", "--url", "LOGS"], "file"),
        (["import", "in", "--to", "queue:orders", "--url", "sqlite:///none.db"], "there is no database"),
        (["import", "in", "--to", "queue:orders", "--url", "memory://"], "memory:// is in one process"),
        (["import", "in", "--to", "log:orders", "--url", "file:///nowhere/logs"], "there is no folder of logs"),
        (["import", "_a.jsonl", "--to", "log:orders", "--url", "LOGS"], "_a.jsonl would be passed over"),
        (["import", ".a.jsonl", "--to", "log:orders", "--url", "LOGS"], "Rename it"),
        (
            ["import", "colon", "--to", "log:orders", "--url", "LOGS"],
            "T08:00.jsonl cannot be read by Spark: there is a",
        ),
        (["import", "x:y [1]", "--to", "log:orders", "--url", "LOGS"], "there is a colon in its path"),
        (["import", "days", "--to", "log:orders", "--key", "day", "--url", "LOGS"], "in the names of folders (day=…)"),
        (["import", "in", "--to", "log:orders", "--state", "in/a.csv", "--url", "LOGS"], "a.csv is not a folder"),
        (["import", "in", "--to", "log:orders", "--state", "in/a.csv/b/c", "--url", "LOGS"], "a.csv is not a folder"),
        (["import", "in", "--to", "log:orders", "--rejected", "in/a.csv", "--url", "LOGS"], "a.csv is not a folder"),
        (["import", "in", "--to", "log:orders", "--state", "state-empty", "--url", "LOGS"], "import.json is broken"),
        (["import", "in", "--to", "log:orders", "--state", "state-torn", "--url", "LOGS"], "import.json is broken"),
        (["import", "in", "--to", "log:orders", "--state", "state-other", "--url", "LOGS"], "import.json is broken"),
        (["export", "orders", "in/a.csv/out", "--url", "LOGS"], "a.csv is not a folder"),
        (["export", "order", "out", "--url", "LOGS"], "there is no log 'order'"),
        (["export", "orders", "in/a.csv", "--url", "LOGS"], "is not a folder"),
        (["export", "orders", "out", "--schema", "x INTT", "--url", "LOGS"], "INTT"),
        (["export", "orders", "out", "--type", "nowhere:T", "--url", "LOGS"], "cannot be imported"),
        (["export", "orders", "out", "--schema", "x INT", "--type", "builtins:int", "--url", "LOGS"], "both type and"),
    ],
)
def test_one_line_before_spark(places: dict[str, str], tmp_path: Path, arguments: list[str], said: str) -> None:
    names = {"LOGS": places["logs"], "QUEUES": places["queues"]}
    done = CliRunner().invoke(app, [names.get(one, one) for one in arguments])
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert done.output.count("\n") == 1
    assert done.output.startswith("error: ")
    assert not (tmp_path / ".penstock").exists(), "nothing is remembered of what cannot be"
    assert not (tmp_path / "out").exists()


def test_an_import_needs_a_target(places: dict[str, str]) -> None:
    done = CliRunner().invoke(app, ["import", "in", "--url", places["logs"]])
    assert done.exit_code == 2
    assert "--to" in done.output


def test_a_state_is_of_one_way_to_read(places: dict[str, str], tmp_path: Path) -> None:
    """The same files with another key are another import."""
    from penstock.spark.lake.ingest import Import, prepare

    given: dict[str, Any] = {"source": "in", "url": places["logs"], "target": "log:orders", "state": tmp_path / "state"}
    plan = prepare(Import(**given, key="id"))
    assert prepare(Import(**given, key="id")).id == plan.id
    command = ["import", "in", "--to", "log:orders", "--url", places["logs"], "--state", "state"]
    for options, said in (
        ([], "its key is 'id', not None"),
        (["--key", "name"], "its key is 'id', not 'name'"),
        (["--key", "id", "--time", "name"], "its time is None, not 'name'"),
        (["--key", "id", "--schema", "id INT, name STRING"], "its schema is None, not 'id INT, name STRING'"),
        (["--key", "id", "--form", "json"], "its form is 'csv', not 'json'"),
    ):
        done = CliRunner().invoke(app, [*command, *options])
        assert done.exit_code == 2, done.output
        assert said in done.output
        assert done.output.count("\n") == 1
    note = tmp_path / "state" / "import.json"
    old = json.loads(note.read_text())
    note.write_text(json.dumps({name: old[name] for name in ("source", "target", "form", "url", "id")}))
    assert prepare(Import(**given, key="name")).id == plan.id, "a state of an earlier version goes on"


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_what_was_made_anew(places: dict[str, str], tmp_path: Path, kind: str) -> None:
    """What the state counts as taken is not in it, so going on would lose it silently."""
    from penstock.spark.lake.ingest import Import, prepare

    order = Import(source="in", url=places[f"{kind}s"], target=f"{kind}:orders", state=tmp_path / "state")
    assert prepare(order).id == prepare(order).id
    if kind == "log":
        with penstock.open_logs(places["logs"]) as store:
            store.delete("orders")
            store.create("orders")
    else:
        for path in tmp_path.glob("q.db*"):
            path.rename(tmp_path / f"old-{path.name}")
        with penstock.open_queues(places["queues"]):
            pass
    with pytest.raises(penstock.errors.Conflict, match=f"{kind}:orders was created again since.*--state"):
        prepare(order)


def test_names_of_folders_are_not_lost_silently(places: dict[str, str]) -> None:
    command = ["import", "days", "--to", "log:orders", "--url", places["logs"]]
    done = CliRunner().invoke(app, command)
    assert str(done.exception) == "a JVM was started"
    assert done.output == "note: what the names of folders say (day=…) is not taken; only what is in the files\n"

"""``penstock import`` and ``export``: what is wrong is said in one line, before any JVM is started."""

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
        (["export", "order", "out", "--url", "LOGS"], "there is no log 'order'"),
        (["export", "orders", "in/a.csv", "--url", "LOGS"], "is no folder"),
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

"""``penstock queue copy`` on real SQLite files."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.app import app


@pytest.fixture
def shop(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/shop.db"
    with penstock.open_queues(url) as store:
        store.queue("mails", str).put_many(["a", "b", "c"])
    return url


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["queue", "copy", *arguments])
    return done.exit_code, done.output


def test_without_yes_nothing_changes(shop: str, tmp_path: Path) -> None:
    code, out = run(shop, f"sqlite:///{tmp_path}/new.db")
    assert code == 4
    assert "3 live entries" in out
    assert "--yes" in out
    assert not (tmp_path / "new.db").exists()
    with penstock.open_queues(shop) as store:
        assert store.locks() == []


def test_a_dry_run_refuses_what_the_run_would(shop: str, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    with penstock.open_queues(other) as store:
        store.queue("mails", str).put("mine")
    code, out = run(shop, other)
    assert (code, "is not empty" in out) == (2, True)
    code, out = run(shop, "zookeeper://127.0.0.1:1/nobody?timeout=1s")
    assert (code, "does not answer" in out) == (3, True)


def test_a_dry_run_after_the_copy_says_so(shop: str, tmp_path: Path) -> None:
    assert run(shop, f"sqlite:///{tmp_path}/new.db", "--yes")[0] == 0
    code, out = run(shop, f"sqlite:///{tmp_path}/new.db")
    assert (code, "finished before" in out) == (1, True)


def test_it_moves_and_says_what(shop: str, tmp_path: Path) -> None:
    code, out = run(shop, f"sqlite:///{tmp_path}/new.db", "--yes")
    assert code == 0
    assert "checksums of both sides are equal" in out
    code, out = run(shop, f"sqlite:///{tmp_path}/new.db", "--yes")
    assert code == 0
    assert "finished before" in out
    with penstock.open_queues(f"sqlite:///{tmp_path}/new.db") as store:
        assert [entry.value for entry in store.queue("mails", str).find()] == ["a", "b", "c"]


def test_json(shop: str, tmp_path: Path) -> None:
    code, out = run(shop, f"sqlite:///{tmp_path}/new.db", "--yes", "--json")
    assert code == 0
    assert json.loads(out)["carried"]["live"] == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("{shop}", "{shop}", "--yes"), "same space"),
        (("{shop}", "{new}", "--yes", "--leave-out", "everything"), "cannot be left out"),
        (("sqlite:///nowhere.db", "{new}", "--yes"), "no store"),
        (("{shop}", "nosuch://x", "--yes"), "nosuch"),
        (("{shop}", "{new}", "--yes", "--wait", "soon"), "wait"),
    ],
)
def test_bad_input_is_one_line(shop: str, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    code, out = run(*(one.format(shop=shop, new=f"sqlite:///{tmp_path}/new.db") for one in arguments))
    assert code == 2
    assert said in out
    assert "Traceback" not in out

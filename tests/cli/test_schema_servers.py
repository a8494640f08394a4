"""``penstock schema`` and ``doctor`` on real database servers."""

from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.app import app
from penstock.ids import new_nonce


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.output


@pytest.fixture(params=["postgres", "mysql"])
def url(request: pytest.FixtureRequest, servers: Callable[[str], Any]) -> str:
    server = servers(request.param).url
    return f"{server}{'&' if '?' in server else '?'}durability=fast&space=s{new_nonce()[:10].lower()}"


def test_check_looks_and_migrate_makes(url: str) -> None:
    code, said = run("schema", "check", url)
    assert (code, "version 0" in said, "schema migrate" in said) == (1, True, True)
    assert run("schema", "check", url)[0] == 1  # looking made nothing
    code, said = run("schema", "migrate", url)
    assert (code, "create the tables" in said) == (0, True)
    assert run("schema", "check", url)[0] == 0
    assert "up to date" in run("schema", "migrate", url)[1]
    with penstock.open_queues(url) as store:
        store.queue("q", int).put(1)
    assert run("queue", "list", "--url", url)[0] == 0
    assert run("doctor", url)[0] in (0, 1)


def test_in_two_phases(url: str) -> None:
    assert run("schema", "migrate", url, "--pre")[0] == 0
    assert run("schema", "migrate", url, "--post")[0] == 0
    assert run("schema", "check", url)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("check", "postgresql://nobody:x@127.0.0.1:1/none?timeout=1"), 2),
        (("check", "redis://127.0.0.1:1/0"), 2),
        (("migrate", "postgrsql://x/y"), 2),
    ],
)
def test_what_cannot_be_is_one_line(arguments: tuple[str, ...], code: int) -> None:
    got, said = run("schema", *arguments)
    assert got in (code, 3)
    assert "Traceback" not in said
    assert said.startswith("error:")

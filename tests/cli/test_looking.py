"""Looking never creates a store: on every server a space that is not there is an error, and stays away."""

from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli.app import app
from penstock.cli.opened import is_there
from penstock.ids import new_nonce
from penstock.location import read_url


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.output


@pytest.fixture(params=["postgres", "mysql", "redis", "zookeeper"])
def server(request: pytest.FixtureRequest, servers: Callable[[str], Any]) -> str:
    url = str(servers(request.param).url)
    return f"{url}&" if "?" in url else f"{url}?durability=fast&"


@pytest.fixture
def missing(server: str) -> str:
    return f"{server}space=s{new_nonce()[:10].lower()}"


def test_no_command_makes_a_space(missing: str) -> None:
    for command in (("queue", "list", "--url", missing), ("queue", "show", "mails", "--url", missing),
                    ("queue", "put", "mails", "1", "--url", missing), ("doctor", missing),
                    ("breaker", "list", "--url", missing), ("workers", "--url", missing),
                    ("schedule", "list", "--url", missing)):  # fmt: skip
        code, said = run(*command)
        assert (code, "has no space" in said) == (2, True), (command, said)
        assert not is_there(read_url(missing))


def test_what_is_there_is_found(missing: str) -> None:
    with penstock.open_queues(missing) as store:
        store.queue("mails", str).put("a")
    assert is_there(read_url(missing))
    code, said = run("queue", "list", "--url", missing)
    assert (code, "mails" in said) == (0, True)


def test_a_copy_neither_comes_from_nor_dry_runs_into_nowhere(missing: str, tmp_path: Any) -> None:
    shop = f"sqlite:///{tmp_path}/shop.db"
    code, said = run("queue", "copy", missing, shop, "--yes")
    assert (code, "has no space" in said) == (2, True)
    assert not (tmp_path / "shop.db").exists()
    with penstock.open_queues(shop) as store:
        queue = store.queue("mails", str)
        queue.cancel(queue.put("ended").id)
        queue.put("a")
    code, said = run("queue", "copy", shop, missing)
    if missing.startswith("zookeeper"):
        assert (code, "--leave-out history" in said) == (2, True)
    else:
        assert (code, "Would lock 1 queue" in said) == (4, True)
    assert not is_there(read_url(missing))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://nobody@127.0.0.1:1/none?timeout=1",
        "mysql://nobody@127.0.0.1:1/none?timeout=1",
        "redis://127.0.0.1:1/0",
        "zookeeper://127.0.0.1:1/x?timeout=1s",
    ],
)
def test_a_server_that_does_not_answer_is_told_apart(url: str) -> None:
    code, said = run("queue", "list", "--url", url)
    assert (code, said.startswith("error: ")) == (3, True)

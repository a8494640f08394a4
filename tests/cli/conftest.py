"""What every test of the command line needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock import QueueStore
from penstock.cli.app import app

Run = Callable[..., "Result"]


class Result:
    """What a command printed and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def json(self):
        return json.loads(self.out)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture
def store(url: str):
    with penstock.open_queues(url) as opened:
        yield opened


@pytest.fixture
def run(url: str, store: QueueStore) -> Run:
    """Run a command on the store; its URL comes from the environment."""

    def call(*words: str, code: int = 0, stdin: str | None = None, env: dict[str, str] | None = None) -> Result:
        ended = CliRunner().invoke(app, list(words), input=stdin, env={"PENSTOCK_URL": url} if env is None else env)
        assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
        assert ended.exit_code == code, ended.output
        return Result(ended.exit_code, ended.stdout, ended.stderr)

    return call


@pytest.fixture(autouse=True)
def _no_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """A width in the environment of whoever runs the tests must not cut what they look at."""
    monkeypatch.delenv("COLUMNS", raising=False)

"""``python -m tools.servers``: what a person types and reads."""

from collections.abc import Callable
from typing import Any

import pytest
from tools.servers import main, opens

import penstock


def test_unknown_names_are_one_line_and_nothing_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"no server oracle here. Known: postgres, .*mariadb"):
        main(["postgres", "oracle"])
    assert capsys.readouterr().out == ""


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    said = capsys.readouterr().out
    assert "python -m tools.servers" in said
    assert "zookeeper" in said


@pytest.mark.parametrize("name", ["postgres", "mysql", "redis", "zookeeper"])
def test_what_is_printed_can_be_opened(servers: Callable[[str], Any], name: str) -> None:
    with penstock.open_queues(opens(servers(name))) as store:
        assert store.now() > 0

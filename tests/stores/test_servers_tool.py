"""``python -m tools.servers``: what a person types and reads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tools.servers import Server, main, opens

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


class Restarting(Server):
    """Starts another child for every one that ends, as PostgreSQL does."""

    name = "restarting"
    scheme = "none"
    url = ""

    def prepare(self) -> None:
        return

    def command(self) -> list[str]:
        return ["sh", "-c", "while :; do sleep 300 & touch up; wait $!; done"]

    def answers(self) -> bool:
        return (self.folder / "up").exists()


def test_a_crash_leaves_nothing_behind_that_was_restarted(tmp_path: Path) -> None:
    server = Restarting(base=tmp_path)
    for _ in range(5):
        server.start()
        server.crash()
        assert _running_in(server.folder) == []
    server.close()


def _running_in(folder: Path) -> list[str]:
    """The processes that have this folder as their own."""
    there = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder:
                there.append((process / "cmdline").read_text())
        except OSError:
            continue
    return there

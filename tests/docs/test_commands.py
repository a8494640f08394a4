"""Commands that the pages mention are there."""

import re
from pathlib import Path

import pytest
import typer
from tests.docs.test_pages import ROOT, WRITTEN

from penstock.cli.app import app

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
# In code: `penstock queue show mails`, $ penstock doctor, and lines of a block of shell.
MENTIONED = re.compile(r"(?:`|^\$ |^)penstock ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?", re.MULTILINE)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_command_of_a_page_is_there(page: Path) -> None:
    for first, second in MENTIONED.findall(page.read_text()):
        assert first in COMMANDS, f"penstock {first}"
        group = getattr(COMMANDS[first], "commands", None)
        if group is not None and second:
            assert second in group, f"penstock {first} {second}"


def test_wrong_commands_would_be_found() -> None:
    assert MENTIONED.findall("`penstock queue shwo mails`\n$ penstock doctor URL\n") == [
        ("queue", "shwo"),
        ("doctor", ""),
    ]
    assert "copy" not in COMMANDS
    assert "copy" in COMMANDS["queue"].commands

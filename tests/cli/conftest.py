"""What every test of the command line needs."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_terminal_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """A width in the environment of whoever runs the tests must not cut what they look at."""
    monkeypatch.delenv("COLUMNS", raising=False)

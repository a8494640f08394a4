"""The table of capabilities says what the flags in the code say."""

from __future__ import annotations

from tools import capabilities


def test_the_table_is_up_to_date() -> None:
    assert capabilities.page() == capabilities.PAGE.read_text(), "run: python -m tools.capabilities"

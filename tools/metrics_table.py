"""Writes the table of metrics, from the catalog in the code, into docs/telemetry.md.

`python -m tools.metrics_table` writes it; with `--check` it only fails if the page is old.
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.telemetry.catalog import table

PAGE = Path(__file__).parent.parent / "docs" / "telemetry.md"
BEGIN, END = "<!-- metrics: begin -->\n", "<!-- metrics: end -->\n"


def page() -> str:
    """The page as it should be."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def main() -> None:
    """Write or check."""
    wanted = page()
    if "--check" in sys.argv:
        sys.exit(wanted != PAGE.read_text())
    PAGE.write_text(wanted)


if __name__ == "__main__":
    main()

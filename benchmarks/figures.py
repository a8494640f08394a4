"""The page of figures: what the benchmarks measured last, as ``docs/figures.md`` tells it.

A benchmark that runs with ``--record`` leaves its result in ``benchmarks/results``; ``python -m benchmarks.figures``
makes the page of them.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "figures.md"

INTRODUCTION = """\
# Figures

What `make bench` and `make spark-bench` measured last. Every figure stands beside a peer, or beside the bare driver, in
the same run and with the same durability; runs are interleaved and the median counts. Ratios are what can be compared
with your machine: absolute figures hold for the machine, the load and the disk that stand beside them.

A figure that misses the bar that we set ourselves is marked with ✗.
"""


def record(title: str, bars: Iterable[tuple[str, str, str, bool]], notes: list[str], conditions: str) -> None:
    """Leave a result for the page."""
    result = {
        "title": title,
        "date": datetime.now(UTC).date().isoformat(),
        "version": _version(),
        "conditions": conditions,
        "bars": [list(bar) for bar in bars],
        "notes": [note.strip() for note in notes if note.strip() and note != conditions],
    }
    RESULTS.mkdir(exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def page() -> str:
    """The page, from all results there are."""
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    return "\n".join([INTRODUCTION, *(_section(result) for result in results)])


def _section(result: dict[str, Any]) -> str:
    rows = [
        f"| {'✓' if good else '✗'} | {_cell(what)} | {_cell(measured)} | {_cell(wanted)} |"
        for what, wanted, measured, good in result["bars"]
    ]
    notes = [f"- {note}" for note in result["notes"]]
    return "\n".join([
        f"## {result['title']}", "",
        f"{result['date']}, commit {result['version']}. {result['conditions']}.", "",
        "| | work | measured | bar |", "|---|---|---|---|", *rows, "", *notes, "",
    ])  # fmt: skip


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _version() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(PAGE.relative_to(ROOT))

"""Writes the table of what every queue store can do, from the flags in the code, into docs/stores/index.md.

`python -m tools.capabilities` writes it; with `--check` it only fails if the page is old.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from penstock.opening import QUEUE_STORES
from penstock.queue.store import Capabilities, QueueStore

PAGE = Path(__file__).parent.parent / "docs" / "stores" / "index.md"
BEGIN, END = "<!-- capabilities -->", "<!-- /capabilities -->"
TITLES = {
    "durable": "an acknowledged put survives a power cut (durable profile)",
    "transactional": "calls inside your own database transaction",
    "full_history": "full history",
    "label_search": "indexed search by labels",
    "label_limits": "in-flight limits per label value",
}


def stores() -> dict[str, type[QueueStore]]:
    """The store classes by their first scheme."""
    found: dict[str, type[QueueStore]] = {}
    for scheme, place in QUEUE_STORES.items():
        module = importlib.import_module(place.module)
        kind = getattr(module, module.open_store.__annotations__["return"])
        if kind not in found.values():
            found[scheme] = kind
    return found


def table() -> str:
    """The table as Markdown."""
    kinds = stores()
    lines = ["| | " + " | ".join(f"`{scheme}://`" for scheme in kinds) + " |", "|---|" + ":-:|" * len(kinds)]
    for flag in Capabilities.__struct_fields__:
        marks = ("yes" if getattr(kind.capabilities, flag) else "no" for kind in kinds.values())
        lines.append(f"| {TITLES[flag]} | " + " | ".join(marks) + " |")
    return "\n".join(lines)


def page() -> str:
    """The page with a fresh table in it."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if page() == PAGE.read_text() else "docs/stores/index.md is old: run python -m tools.capabilities")
    PAGE.write_text(page())

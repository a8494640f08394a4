"""Writes the tables of what every queue and log store can do, from the flags in the code, into docs/stores/index.md.

`python -m tools.capabilities` writes them; with `--check` it only fails if the page is old.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from penstock.log.protocol import LogCapabilities
from penstock.opening import LOG_STORES, QUEUE_STORES
from penstock.queue.protocol import Capabilities

PAGE = Path(__file__).parent.parent / "docs" / "stores" / "index.md"
QUEUES = {
    "durable": "an acknowledged put survives a power cut (durable profile)",
    "transactional": "calls inside your own database transaction",
    "full_history": "full history",
    "label_search": "indexed search by labels",
    "label_limits": "in-flight limits per label value",
    "links": "entries that wait for others: batches and chains",
}
LOGS = {
    "durable": "an acknowledged append survives a power cut (durable profile)",
    "dense": "offsets without holes",
    "exclusive": "an appender may keep a log to itself",
    "mixing": "fixed and subscribed tailers of one group never overlap",
    "sequences": "numbered appends that can be repeated",
    "staging": "records written aside by many processes, committed by one",
    "retention": "retention by consumption; `enforce_retention` at once",
    "copies": "backup, verify, repair",
}
TABLES = (
    ("capabilities", QUEUE_STORES, Capabilities, QUEUES),
    ("log capabilities", LOG_STORES, LogCapabilities, LOGS),
)


def stores(places: Any) -> dict[str, Any]:
    """The store classes by their first scheme."""
    first_schemes = {place.module: scheme for scheme, place in reversed(places.items())}
    found: dict[str, Any] = {}
    for scheme, place in places.items():
        if first_schemes[place.module] == scheme:
            module = importlib.import_module(place.module)
            found[scheme] = getattr(module, module.open_driver.__annotations__["return"])
    return found


def table(places: Any, flags: Any, titles: dict[str, str]) -> str:
    """A table as Markdown."""
    kinds = stores(places)
    lines = ["| | " + " | ".join(f"`{scheme}://`" for scheme in kinds) + " |", "|---|" + ":-:|" * len(kinds)]
    for flag in flags.__struct_fields__:
        marks = ("yes" if getattr(kind.capabilities, flag) else "no" for kind in kinds.values())
        lines.append(f"| {titles[flag]} | " + " | ".join(marks) + " |")
    return "\n".join(lines)


def page() -> str:
    """The page with fresh tables in it."""
    text = PAGE.read_text()
    for name, places, flags, titles in TABLES:
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, _, rest = text.partition(begin)
        after = rest.partition(end)[2]
        text = f"{before}{begin}\n{table(places, flags, titles)}\n{end}{after}"
    return text


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if page() == PAGE.read_text() else "docs/stores/index.md is old: run python -m tools.capabilities")
    PAGE.write_text(page())

"""Tables for people, JSON for scripts, and times as people read them."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.clock import SECOND, Micros, from_micros

WITHOUT_YES = 4  # the exit code of a command that waits for --yes

# Without a terminal the width does not matter; lines are for grep and logs then.
WIDTH_WITHOUT_TERMINAL = 160
PREVIEW = 60
ID_WIDTH = 36


def console() -> Console:
    """The console for tables."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return Console(highlight=False)
    return Console(highlight=False, width=WIDTH_WITHOUT_TERMINAL)


def table(*columns: str, title: str = "", numbers: tuple[str, ...] = ()) -> Table:
    """An empty table; the columns named in ``numbers`` are aligned right."""
    grid = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold", pad_edge=False)
    for column in columns:
        # Half an id is useless: ids are never wrapped, however narrow the terminal.
        whole = column == "id"
        grid.add_column(
            column, justify="right" if column in numbers else "left", overflow="fold", no_wrap=whole,
            min_width=ID_WIDTH if whole else None,
        )  # fmt: skip
    return grid


def without(columns: dict[str, Any], rows: list[Any]) -> dict[str, Any]:
    """The columns (name to cell function) without those that are empty in every row."""
    return {name: cell for name, cell in columns.items() if any(str(cell(row)) for row in rows)}


def add(to: Table, *cells: Any, style: str = "") -> None:
    """Add a row of plain text: data of a store is never read as markup."""
    to.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in cells), style=style or None)


_indent = 2


@contextmanager
def one_line_of_json() -> Iterator[None]:
    """Print JSON on one line, for commands that run again and again."""
    global _indent  # noqa: PLW0603 - commands print from many places
    _indent = -1
    try:
        yield
    finally:
        _indent = 2


def print_json(value: Any) -> None:
    """Print JSON on standard output, indented unless it is one of many."""
    encoded = msgspec.json.encode(value)
    typer.echo((msgspec.json.format(encoded, indent=_indent) if _indent >= 0 else encoded).decode())


def span(micros: Micros) -> str:
    """A length of time, in its one or two largest units.

    >>> span(95 * SECOND), span(1_500_000), span(26 * 3600 * SECOND), span(12_000)
    ('1m 35s', '1.5s', '1d 2h', '12ms')
    """
    seconds = abs(micros) / SECOND
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    left, parts = int(seconds), []
    for unit, size in units:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def when(moment: Micros, now: Micros) -> str:
    """A moment as seen from now.

    >>> when(0, 90 * SECOND), when(90 * SECOND, 0)
    ('1m 30s ago', 'in 1m 30s')
    """
    return f"in {span(moment - now)}" if moment > now else f"{span(now - moment)} ago"


def iso(moment: Micros | None) -> str | None:
    """A moment as text for scripts."""
    return None if moment is None else from_micros(moment).isoformat()


def payload(data: bytes | None, codec: str) -> Any:
    """A payload for scripts: the JSON value, or other bytes as ``{"base64": ...}``."""
    if data is None:
        return None
    if codec == "json":
        try:
            return msgspec.json.decode(data)
        except msgspec.DecodeError:
            pass
    return {"base64": base64.b64encode(data).decode()}


def preview(data: bytes | None) -> str:
    """The beginning of a payload."""
    if data is None:
        return ""
    text = "".join(
        character if character.isprintable() else "\N{MIDDLE DOT}"
        for character in data[: 4 * PREVIEW].decode(errors="replace")
    )
    return text if len(text) <= PREVIEW else f"{text[: PREVIEW - 1]}…"


def pairs(labels: dict[str, str]) -> str:
    """Labels as ``k=v``."""
    return " ".join(f"{key}={value}" for key, value in labels.items())


def count(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun.

    >>> count(1, "dead letter"), count(2, "entry", "entries")
    ('1 dead letter', '2 entries')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def needs_yes(did: str = "changed", *, is_said: bool = True) -> NoReturn:
    """End a command that was called without --yes, and has said what it would do."""
    if is_said:
        typer.echo(f"Nothing was {did}; add --yes to do it.")
    raise typer.Exit(WITHOUT_YES)

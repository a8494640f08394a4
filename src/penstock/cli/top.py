"""``penstock top``: a live view of a store in the terminal."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock.cli import logs as log_commands
from penstock.cli.interrupts import remembered_interrupts
from penstock.cli.observing import Observer, QueueLine, Snapshot, as_json
from penstock.cli.opened import AsJson, Url, open_existing
from penstock.cli.printing import add, console, count, print_json, span, table
from penstock.cli.reading import length
from penstock.clock import SECOND, from_micros
from penstock.errors import BadInput, StoreReadOnly, StoreUnavailable
from penstock.names import did_you_mean

# Name of a column -> its sort key; the largest first, except for names.
COLUMNS = {
    "name": lambda line: line.name,
    "ready": lambda line: line.ready,
    "delayed": lambda line: line.delayed + line.retrying,
    "held": lambda line: line.held,
    "leased": lambda line: line.leased,
    "dead": lambda line: line.dead,
    "oldest": lambda line: line.oldest or 0,
    "put": lambda line: line.put_rate or 0,
    "done": lambda line: line.done_rate,
    "failed": lambda line: line.failed_rate,
}
MOST_PLAIN = 1000  # queues in the view that is printed once
KEYS = "q ends   s sorts by the next column   r the other way   / filters   space holds"
NUMBERS = ("ready", "delayed", "retrying", "held", "leased", "dead", "oldest", "put/s", "done/s", "failed/s")


class View(msgspec.Struct):
    """What the user chose: the sorting, the filter, a pause."""

    sort: str = "ready"
    is_reversed: bool = False
    filter: str = ""
    is_typing: bool = False
    is_held: bool = False
    is_over: bool = False

    def press(self, key: str) -> None:
        """Handle a key."""
        if self.is_typing:
            self._type(key)
        elif key in ("q", "Q", "\x03"):
            self.is_over = True
        elif key == "s":
            names = list(COLUMNS)
            self.sort = names[(names.index(self.sort) + 1) % len(names)]
        elif key == "r":
            self.is_reversed = not self.is_reversed
        elif key == "/":
            self.is_typing, self.filter = True, ""
        elif key == " ":
            self.is_held = not self.is_held
        elif key == "\x1b":
            self.filter = ""

    def _type(self, key: str) -> None:
        if key in ("\r", "\n"):
            self.is_typing = False
        elif key == "\x1b":
            self.is_typing, self.filter = False, ""
        elif key in ("\x7f", "\x08"):
            self.filter = self.filter[:-1]
        elif key.isprintable():
            self.filter += key

    def chosen(self, lines: list[QueueLine]) -> list[QueueLine]:
        """The lines that fit the filter, sorted."""
        fitting = sorted((line for line in lines if self.filter in line.name), key=lambda line: line.name)
        by_number = self.sort != "name"
        return sorted(fitting, key=COLUMNS[self.sort], reverse=by_number != self.is_reversed)


def top(  # noqa: PLR0917 - one parameter per option
    url: Url,
    logs: Annotated[
        str | None,
        typer.Option("--logs", envvar="PENSTOCK_LOGS_URL", metavar="URL", help="A log store, to see lags too."),
    ] = None,
    sort: Annotated[str, typer.Option(metavar="COLUMN", help=f"{', '.join(COLUMNS)}.")] = "ready",
    reverse: Annotated[bool, typer.Option("--reverse", help="Sort the other way round.")] = False,
    filter_: Annotated[str, typer.Option("--filter", help="Only queues whose name contains this.")] = "",
    members: Annotated[bool, typer.Option("--members", help="Each queue of a family by itself.")] = False,
    every: Annotated[str, typer.Option(metavar="TIME", help="How often it looks.")] = "2s",
    once: Annotated[bool, typer.Option("--once", help="Print it once, plainly, and end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Queues, workers, circuits and lags, live; without a terminal they are printed once.

    Done and failed are what all workers did per second over the last one to two minutes; put is what came in while you
    watched, over the last minute at most.
    """
    if sort not in COLUMNS:
        hint = f"{did_you_mean(sort, COLUMNS)}Use one of {', '.join(COLUMNS)}."
        raise BadInput(f"there is no column {sort!r} to sort by.", hint=hint)
    pause = length(every, "every", least="200ms") / SECOND
    view = View(sort, reverse, filter_)
    with contextlib.ExitStack() as opened:
        store = opened.enter_context(open_existing(url))
        log_store = None if not logs else opened.enter_context(log_commands.open_existing(logs))
        observer = Observer(store, log_store, members=members)
        if as_json:
            snapshot = observer.look()
            print_json(_json(msgspec.structs.replace(snapshot, queues=view.chosen(snapshot.queues))))
        elif once or not (sys.stdout.isatty() and sys.stdin.isatty()):
            console().print(drawn(observer.look(), view, store.name, MOST_PLAIN))
        else:
            _live(observer, view, store.name, pause)


_json = as_json


def _live(observer: Observer, view: View, name: str, pause: float) -> None:
    """Draw, wait for a key or for the next snapshot, until the user quits."""
    screen = console()
    with (
        remembered_interrupts() as check_for_interrupt,
        _keys() as pressed,
        Live(console=screen, screen=True, auto_refresh=False) as live,
    ):
        snapshot, error, due = observer.look(), "", time.monotonic() + pause
        while not view.is_over:
            check_for_interrupt()
            lines = max(3, screen.size.height - 12 - min(len(snapshot.workers), 6) - min(len(snapshot.lags), 4))
            live.update(Group(drawn(snapshot, view, name, lines), _foot(view, error)), refresh=True)
            for key in pressed(max(0.0, due - time.monotonic())):
                view.press(key)
            if time.monotonic() < due:
                continue
            due = time.monotonic() + pause
            if not view.is_held:
                try:
                    snapshot, error = observer.look(), ""
                except StoreUnavailable as failure:
                    if isinstance(failure, StoreReadOnly):
                        raise
                    error = f"{datetime.now(UTC):%H:%M:%S} {failure}"


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Keys as they are pressed, without Enter; the terminal is left as it was."""
    import termios
    import tty

    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([number], [], [], seconds)
        return os.read(number, 64).decode(errors="ignore") if ready else ""

    try:
        tty.setcbreak(number)
        yield pressed
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


# --- drawing ---------------------------------------------------------------------------------------


def drawn(snapshot: Snapshot, view: View, name: str, most: int) -> RenderableType:
    """The whole view, with at most so many queues."""
    chosen = view.chosen(snapshot.queues)
    parts: list[RenderableType] = [_head(snapshot, name), _queues(chosen[:most], view)]
    if len(chosen) > most:
        parts.append(Text(f"... and {count(len(chosen) - most, 'more queue')}", style="dim"))
    if snapshot.workers:
        parts.append(_workers(snapshot))
    if snapshot.circuits:
        parts.append(_circuits(snapshot))
    if snapshot.lags:
        parts.append(_lags(snapshot))
    return Group(*parts)


def _head(snapshot: Snapshot, name: str) -> Text:
    lines = snapshot.queues
    live = [worker for worker in snapshot.workers if worker.state != "lost"]
    lost = len(snapshot.workers) - len(live)
    ready, leased, dead = (sum(getattr(line, kind) for line in lines) for kind in ("ready", "leased", "dead"))
    done, failed = sum(line.done_rate for line in lines), sum(line.failed_rate for line in lines)
    text = Text(f"{from_micros(snapshot.now_us):%Y-%m-%d %H:%M:%S} UTC  {name}\n", style="bold")
    text.append(
        f"{ready:,} ready  {leased:,} leased  {dead:,} dead  {_rate(done)}/s done  {_rate(failed)}/s failed  "
        f"{count(len(live), 'worker')}{f', {lost} lost' if lost else ''}",
        style="",
    )
    return text


def _queues(lines: list[QueueLine], view: View) -> Table:
    marks = {"delayed": "delayed", "put": "put/s", "done": "done/s", "failed": "failed/s", "name": "queue"}
    sorted_by = marks.get(view.sort, view.sort)
    names = ("queue", *NUMBERS, "locks")
    shown = table(*(f"{column} ↓" if column == sorted_by else column for column in names),
                  numbers=(*NUMBERS, f"{sorted_by} ↓" if sorted_by != "queue" else ""))  # fmt: skip
    for line in lines:
        leased = f"{line.leased:,}/{line.slots:,}" if line.slots else f"{line.leased:,}"
        add(
            shown, line.name, f"{line.ready:,}", f"{line.delayed:,}", f"{line.retrying:,}",
            f"{line.held:,}", leased, f"{line.dead:,}",
            "" if line.oldest is None else span(int(line.oldest * SECOND)),
            "" if line.put_rate is None else _rate(line.put_rate), _rate(line.done_rate), _rate(line.failed_rate),
            line.locks, style="yellow" if line.locks else "red" if line.dead else "",
        )  # fmt: skip
    return shown


def _workers(snapshot: Snapshot) -> Table:
    shown = table("worker", "pid", "state", "busy", "up", "heard of", numbers=("pid", "busy", "up", "heard of"))
    for worker in snapshot.workers[:6]:
        add(
            shown, worker.record.node, worker.record.pid, worker.state, f"{worker.busy}/{worker.slots}",
            span(snapshot.now_us - worker.record.started_us), f"{span(snapshot.now_us - worker.seen_us)} ago",
            style="red" if worker.state == "lost" else "",
        )  # fmt: skip
    if len(snapshot.workers) > 6:
        add(shown, f"and {len(snapshot.workers) - 6} more", "", "", "", "", "")
    return shown


def _circuits(snapshot: Snapshot) -> Table:
    shown = table("circuit", "state", "failed %", "locked queues", "for", numbers=("failed %", "locked queues", "for"))
    for circuit in snapshot.circuits[:6]:
        add(
            shown, circuit.circuit, circuit.state.replace("_", " "), circuit.ratio, circuit.locked,
            span(snapshot.now_us - circuit.since_us) if circuit.since_us else "", style="red",
        )  # fmt: skip
    return shown


def _lags(snapshot: Snapshot) -> Table:
    shown = table("log", "group", "lag", numbers=("lag",))
    for line in snapshot.lags[:4]:
        add(shown, line.log, line.group, f"{line.lag:,}")
    return shown


def _foot(view: View, error: str) -> Text:
    if error:
        return Text(f"the store did not answer: {error}", style="red")
    if view.is_typing:
        return Text(f"/{view.filter}_   Enter keeps it, Esc clears it", style="bold")
    held = "   held: space continues" if view.is_held else ""
    filtered = f"   only *{view.filter}*: Esc shows all" if view.filter else ""
    return Text(f"{KEYS}{filtered}{held}", style="dim")


def _rate(per_second: float) -> str:
    if per_second == 0:
        return "0"
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}" if per_second >= 0.1 else "<0.1"

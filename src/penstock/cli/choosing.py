"""Which entries a command means: by id, by label, by what their error mentions, or all of a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import msgspec
import typer

from penstock.cli.printing import add, console, count, pairs, preview, table, when
from penstock.clock import Micros
from penstock.errors import BadInput
from penstock.gateway.item import masked_payload
from penstock.queue.entry import Entry, with_traceback
from penstock.queue.protocol import Find
from penstock.queue.queues import QueueStore
from penstock.queue.search import mentions, resolve_id

Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="Entries by id, or by the end or beginning of it if no other has that."),
]
Label = Annotated[
    list[str] | None, typer.Option(metavar="K=V", help="Those with this label; may be repeated, all must be there.")
]
Error = Annotated[str, typer.Option(help="Those that failed with an error that mentions this.")]
All = Annotated[bool, typer.Option("--all", help="All of the queue.")]

SHOWN = 10
PAGE = 1000

Read = Callable[[Find], list[Entry[Any]]]


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The entries that the options ask for."""

    ids: list[str]
    labels: dict[str, str]
    error: str
    everything: bool

    def check(self, verb: str) -> None:
        """Require exactly one way to choose entries; a label and an error may go together."""
        ways = [bool(self.ids), bool(self.labels or self.error), self.everything]
        if sum(ways) != 1:
            raise BadInput(
                f"{verb} needs ids, --label and --error, or --all.",
                hint="Give exactly one of the three ways; `queue show` lists ids.",
            )

    def in_words(self) -> str:
        """The choice in words, for the record of changes."""
        if self.ids:
            return f"{len(self.ids)} by id"
        parts = [f"label {pairs(self.labels)}"] if self.labels else []
        parts += [f"error mentions {self.error!r}"] if self.error else []
        return ", ".join(parts) or "all"

    def resolve(self, store: QueueStore, queue: str) -> list[str]:
        """Resolve the typed ids to full ids."""
        return [resolve_id(store, text, queue=queue) for text in self.ids]


class Chosen(msgspec.Struct):
    """The entries that are meant: all ids, and the first of them to be shown."""

    ids: list[str] = []
    first: list[Entry[Any]] = []

    def take(self, entry: Entry[Any]) -> None:
        """Add an entry."""
        self.ids.append(entry.id)
        if len(self.first) < SHOWN:
            self.first.append(with_traceback(entry))


def chosen_from(read: Read, where: Find, choice: Choice) -> Chosen:
    """The entries of a queue that are meant; only their ids are kept, however many there are."""
    chosen = Chosen([], [])
    for entry in _pages(read, msgspec.structs.replace(where, labels=choice.labels)):
        if mentions(entry.error, choice.error):
            chosen.take(entry)
    return chosen


def _pages(read: Read, where: Find) -> Iterator[Entry[Any]]:
    after = 0
    while page := read(msgspec.structs.replace(where, after=after, limit=PAGE)):
        yield from page
        after = page[-1].seq


def announce(verb: str, chosen: Chosen, noun: tuple[str, str], name: str, now: Micros) -> None:
    """Print how many entries are meant, and the first of them."""
    if not chosen.ids:
        typer.echo(f"{name} has no such {noun[1]}")
        return
    typer.echo(f"{verb} {count(len(chosen.ids), *noun)} of {name}:")
    is_dead = all(entry.state == "dead" for entry in chosen.first)
    shown = table("id", "died" if is_dead else "due", "attempt", "labels", "error", "payload", numbers=("attempt",))
    for entry in chosen.first:
        moment = entry.ended_us if entry.ended_us is not None else entry.due_us
        add(
            shown, entry.id, when(moment, now), entry.attempt, pairs(entry.labels), entry.error or "",
            preview(masked_payload(entry.payload, entry.type)),
        )  # fmt: skip
    console().print(shown)
    if len(chosen.ids) > len(chosen.first):
        typer.echo(f"... and {len(chosen.ids) - len(chosen.first):,} more")

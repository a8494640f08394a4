"""``penstock queue entry`` and ``penstock queue find``: one entry and its life; entries of all queues."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from penstock.cli.opened import AsJson, Url, open_existing
from penstock.cli.printing import add, console, iso, pairs, print_json, span, table, when
from penstock.cli.queues import entry_json, history_json, shown_payload
from penstock.cli.reading import labels as read_labels
from penstock.cli.watching import watchable
from penstock.clock import Micros, from_micros
from penstock.queue.entry import Entry, HistoryRow, with_traceback
from penstock.queue.held import reasons
from penstock.queue.protocol import Find
from penstock.queue.queues import QueueStore
from penstock.queue.results import Progress, kept_value, progress_of
from penstock.queue.search import Hit, resolve_id, search

MOST_ATTEMPTS = 500  # of one entry that are shown

Id = Annotated[str, typer.Argument(metavar="ID", help="Its id, or the beginning or end of it if no other has that.")]


class Known(msgspec.Struct, frozen=True):
    """Everything that a store knows of an entry: its current state, unless it has ended, and its ended attempts."""

    entry: Entry[Any] | None
    rows: list[HistoryRow]
    waits: tuple[str, ...] = ()  # why it is held
    tally: dict[str, int] = {}  # how those it waited for have ended
    progress: Progress | None = None
    result: bytes | None = None  # what its handler returned, if that is kept

    @property
    def last(self) -> Entry[Any] | HistoryRow:
        """The most informative record of it."""
        return self.entry or self.rows[-1]


@watchable
def entry(
    id: Id,
    url: Url,
    queue: Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Look in this queue only.")] = None,
    traceback: Annotated[bool, typer.Option("--traceback", help="Also the traceback of each failed attempt.")] = False,
    as_json: AsJson = False,
) -> None:
    """One entry of any queue, live or ended: what it holds, and its life from the put to now."""
    with open_existing(url) as store:
        known, now = _known(store, resolve_id(store, id, queue=queue)), store.now()
    if as_json:
        print_json(_as_json(known))
        return
    _print_facts(known, now)
    _print_life(known, now)
    if traceback:
        attempts: list[Entry[Any] | HistoryRow] = [*known.rows] or [known.last]
        for row in attempts:
            if row.traceback is not None:
                typer.echo(f"\nattempt {row.attempt}: {row.error}\n{row.traceback.rstrip()}")


@watchable
def find(  # noqa: PLR0917 - one parameter per option
    url: Url,
    text: Annotated[
        str,
        typer.Argument(metavar="TEXT", help="An id or a part of it, a unique id, or label=value.", show_default=False),
    ] = "",
    label: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="Only what has this label; may be repeated.")
    ] = None,
    error: Annotated[str, typer.Option(help="Only what failed with an error that mentions this.")] = "",
    family: Annotated[str, typer.Option(help="Only queues whose name starts with this.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Entries of all queues, live or ended, by id, unique id, label or error."""
    with open_existing(url) as store:
        now = store.now()
        options = {"error": error, "family": family or None, "limit": limit}
        hits = _hits(store, text, read_labels(label), options)
    if as_json:
        print_json([_hit_json(hit) for hit in hits])
    elif hits:
        _print_hits(hits, now)
        if len(hits) == limit:
            typer.echo(f"There may be more: --limit {limit * 10} shows them.", err=True)
    else:
        typer.echo("Nothing matches.")
    if not hits:
        raise typer.Exit(1)


# --- inside ----------------------------------------------------------------------------------------


def _hits(store: QueueStore, text: str, labels: dict[str, str], options: dict[str, Any]) -> list[Hit]:
    hits = search(store, text, labels=labels, **options)
    if not hits and "=" in text:
        hits = search(store, labels={**labels, **read_labels([text])}, **options)
    return hits


def _hit_json(hit: Hit) -> dict[str, Any]:
    shown = msgspec.structs.asdict(hit)
    del shown["at_us"]
    return {**shown, "at": iso(hit.at_us)}


def _print_hits(hits: list[Hit], now: Micros) -> None:
    shown = table("id", "queue", "state", "found by", "due or ended", "labels", "error")
    for hit in hits:
        add(
            shown, hit.id, hit.queue, hit.state, hit.by, when(hit.at_us, now), pairs(hit.labels), hit.error or "",
            style="red" if hit.state == "dead" else "",
        )  # fmt: skip
    console().print(shown)


def _known(store: QueueStore, id_: str) -> Known:
    where = Find(ids=(id_,), limit=1)
    live = next(iter(store.driver.find(where)), None) or next(iter(store.driver.dead(where)), None)
    rows = store.driver.history(Find(ids=(id_,), limit=MOST_ATTEMPTS))
    wait = next(iter(store.driver.waits([id_])), None)
    is_held = live is not None and live.state == "held"
    return Known(
        None if live is None else with_traceback(live), [with_traceback(row) for row in rows],
        tuple(reasons(store, wait)) if wait is not None and is_held else (),
        {} if wait is None else {state: count for state, count in wait.tally.items() if count},
        None if live is None else progress_of(store, live),
        kept_value(store, rows[-1]) if live is None and rows else None,
    )  # fmt: skip


def _as_json(known: Known) -> dict[str, Any]:
    rows = [history_json(row) for row in known.rows]
    if known.entry is not None:
        more = {"waits_for": list(known.waits), "tally": known.tally, "progress": _progress_json(known.progress)}
        return {"queue": known.entry.queue, **entry_json(known.entry), **more, "history": rows}
    last = known.rows[-1]
    more = {"tally": known.tally, "result": None if known.result is None else msgspec.json.decode(known.result)}
    return {"queue": last.queue, **history_json(last), **more, "history": rows}


def _progress_json(progress: Progress | None) -> dict[str, Any] | None:
    if progress is None:
        return None
    return {"done": progress.done, "total": progress.total, "text": progress.text, "at": iso(progress.at_us)}


def _print_facts(known: Known, now: Micros) -> None:
    last = known.last
    facts = {
        "entry": last.id,
        "queue": last.queue,
        "state": _state(known, now),
        "attempt": str(last.attempt),
        "generation": str(last.generation) if last.generation > 1 else "",
        "put": f"{_clock(last.created_us)} ({when(last.created_us, now)})",
        "labels": pairs(last.labels),
        "headers": ", ".join(last.headers),
        "type": last.type,
    }
    if isinstance(last, Entry):
        facts["unique id"] = last.unique or ""
        facts["priority"] = str(last.priority or "")
        facts["expires"] = "" if last.expires_us is None else when(last.expires_us, now)
    facts["before"] = ", ".join(f"{count:,} {state}" for state, count in known.tally.items())
    facts["progress"] = "" if known.progress is None else str(known.progress)
    facts["error"] = last.error or ""
    for name, value in facts.items():
        if value:
            typer.echo(f"{name:>10}  {value}")
    for reason in known.waits:
        typer.echo(f"{'held':>10}  {reason}")
    data = shown_payload(last)
    if data is not None:
        typer.echo(f"{'payload':>10}  {_payload_text(data, last.codec)}")
    elif isinstance(last, HistoryRow):
        typer.echo(f"{'payload':>10}  {last.gap}")
    if known.result is not None:
        typer.echo(f"{'result':>10}  {_payload_text(known.result, 'json')}")


def _payload_text(data: bytes, codec: str) -> str:
    if codec == "json":
        try:
            return msgspec.json.format(data, indent=2).decode().replace("\n", "\n            ")
        except (msgspec.DecodeError, UnicodeError):
            pass
    return f"{len(data):,} bytes: {data[:200].decode('utf-8', 'backslashreplace')}"


def _state(known: Known, now: Micros) -> str:
    entry = known.entry
    if entry is None:
        return f"{known.rows[-1].state}, {when(known.rows[-1].ended_us, now)}"
    if entry.lease is not None:
        return f"leased by {entry.lease.owner}, until {when(entry.lease.until_us, now)}"
    if entry.state == "dead":
        return "dead letter" if entry.ended_us is None else f"dead letter, {when(entry.ended_us, now)}"
    if entry.state == "held":
        return f"held, {len(known.waits)} to wait for" if known.waits else "held"
    if entry.due_us <= now:
        return f"ready, for {span(now - entry.due_us)}"
    return f"{'retrying' if entry.attempt else 'delayed'}, due {when(entry.due_us, now)}"


def _print_life(known: Known, now: Micros) -> None:
    shown = table(
        "when",
        "generation",
        "attempt",
        "what",
        "took",
        "worker",
        "error",
        title="life",
        numbers=("generation", "attempt", "took"),
    )
    add(shown, _clock(known.last.created_us), 1, "", "put", "", "", "")
    for row in known.rows:
        took = "" if row.started_us is None else span(row.ended_us - row.started_us)
        add(
            shown, _clock(row.ended_us), row.generation, row.attempt, row.state, took, row.owner or "", row.error or "",
            style="red" if row.error else "",
        )  # fmt: skip
    entry = known.entry
    if entry is not None and entry.state != "dead":
        moment = entry.due_us if entry.lease is None else entry.lease.claimed_us
        owner = "" if entry.lease is None else entry.lease.owner
        took = "" if entry.lease is None else span(now - entry.lease.claimed_us)
        what = "running" if entry.lease is not None else str(entry.state)
        add(shown, _clock(moment), entry.generation, entry.attempt or "", what, took, owner, "")
    console().print(shown)
    for row in known.rows:  # of another content than the entry has now
        data = shown_payload(row)
        if data is not None and row.payload != known.last.payload:
            of = f" of generation {row.generation}" if known.last.generation > 1 else ""
            typer.echo(f"attempt {row.attempt}{of} saw {_payload_text(data, row.codec)}")


def _clock(moment: Micros) -> str:
    return f"{from_micros(moment):%Y-%m-%d %H:%M:%S}"

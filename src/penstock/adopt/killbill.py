"""killbill-queue: bus events and notifications in four tables of PostgreSQL, MariaDB or MySQL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.adopt.source import Source, row, unexpected
from penstock.adopt.sql_tables import Tables, open_tables
from penstock.clock import Micros, to_micros
from penstock.errors import BadInput
from penstock.location import Location
from penstock.names import escape_name
from penstock.queue.protocol import TransferRow

TABLES = ("bus_events", "notifications")
_SHARED = (
    "record_id", "class_name", "event_json", "user_token", "created_date", "creating_owner", "processing_owner",
    "processing_available_date", "processing_state", "error_count", "search_key1", "search_key2",
)  # fmt: skip
_DATED = ("queue_name", "effective_date", "future_user_token")
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# What a row of the history ended as. REAPED: the row was written again, and lives on as that.
_ENDINGS = {"PROCESSED": "done", "FAILED": "dead", "REMOVED": "cancelled", "REAPED": "reaped"}
_STATES = ("AVAILABLE", "IN_PROCESSING")
_RETRIES = "org.killbill.queue.retry.RetryNotificationEvent"
_SUBSCRIBERS = "org.killbill.queue.retry.SubscriberNotificationEvent"
_RETRIED_LATER = "FAILED without a counted error: retried as an entry of its own, or given up"


class _Row(msgspec.Struct):
    """One row of a table; bus events have no queue and no date of their own."""

    record_id: int
    class_name: str
    event_json: str
    user_token: str | None
    created_date: datetime
    creating_owner: str
    processing_owner: str | None
    processing_available_date: datetime | None
    processing_state: str
    error_count: int
    search_key1: int | None
    search_key2: int | None
    queue_name: str | None = None
    effective_date: datetime | None = None
    future_user_token: str | None = None
    event: Any = None  # an _Event, once it is read


class _Retry(msgspec.Struct):
    """An event that waits for a retry by a schedule: what was to be handled, since when, and which retry it is."""

    originalEvent: str
    originalEventClass: str
    originalEffectiveDate: datetime
    retryNb: int


class _Subscribed(msgspec.Struct):
    """A bus event that one subscriber retries."""

    busEvent: msgspec.Raw
    busEventClass: str


class _Event(msgspec.Struct):
    """What a row is about; ``attempts`` that were made under other rows, ``first_due_us`` of the first of them."""

    payload: bytes
    type: str
    attempts: int = 0
    first_due_us: Micros | None = None


class Killbill(Source):
    """The tables of one instance, or of several: each table named here, and its history."""

    seed = "killbill"

    def __init__(self, location: Location, tables: Sequence[str] = ()) -> None:
        """``tables`` are the live ones; unless given, those that exist of ``bus_events`` and ``notifications``."""
        super().__init__(" ".join((location.masked.partition("?")[0], *sorted(tables))))
        self._location = location
        self._tables = tuple(tables)
        for table in tables:
            if not _TABLE.match(table):
                raise BadInput(f"{table!r} is not the name of a table.", hint="Use letters, digits and '_'.")

    def rows(self, began_us: Micros) -> Iterator[TransferRow]:
        """The history of all tables, the dead letters among it, then what lives."""
        self.notes = []
        with open_tables(self._location) as tables:
            columns_of = self._check(tables.columns())
            histories = [(f"{table}_history", columns) for table, columns in columns_of.items()]
            for part in ("history", "dead"):
                for name, columns in histories:
                    for event_row in self._read(tables, name, columns):
                        if part == "history":
                            yield self._ended(name, event_row)
                        elif _is_dead_letter(event_row):
                            yield self._dead(name, event_row)
            for name, columns in columns_of.items():
                for event_row in self._read(tables, name, columns):
                    yield self._live(name, event_row)

    def close(self) -> None:
        """Every reading has a connection of its own."""

    def _check(self, columns: dict[str, set[str]]) -> dict[str, tuple[str, ...]]:
        """The live tables and the columns that are read of each and of its history."""
        wanted = self._tables or tuple(table for table in TABLES if table in columns)
        if not wanted:
            raise unexpected(self.name, "it has no such tables", f"tables {' and '.join(TABLES)}")
        columns_of: dict[str, tuple[str, ...]] = {}
        for table in wanted:
            dated = bool(set(_DATED) & columns.get(table, set()))
            needed = (*_SHARED, *_DATED) if dated else _SHARED
            for name in (table, f"{table}_history"):
                if name not in columns:
                    raise unexpected(f"{self.name} table {name}", "it does not exist", "one table and its history")
                if missing := sorted(set(needed) - columns[name]):
                    raise unexpected(
                        f"{self.name} table {name}", f"it has no column {', '.join(missing)}", ", ".join(needed)
                    )
            columns_of[table] = needed
        return columns_of

    def _read(self, tables: Tables, name: str, columns: tuple[str, ...]) -> Iterator[_Row]:
        query = f"SELECT {', '.join(columns)} FROM {name} ORDER BY record_id"  # noqa: S608 - both were looked up
        for values in tables.rows(query, f"{self.name} table {name}"):
            try:
                event_row = msgspec.convert(dict(zip(columns, values, strict=True)), _Row)
                event_row.event = _event_of(event_row)
            except (msgspec.ValidationError, msgspec.DecodeError, RecursionError) as cause:
                what = f"{self.name} table {name} record_id {values[0]}"
                raise unexpected(what, str(cause), "an event in JSON, with dates and a state") from cause
            yield event_row

    # --- one row -------------------------------------------------------------------------------------

    def _live(self, table: str, event_row: _Row) -> TransferRow:
        state = event_row.processing_state
        if state not in _STATES:
            raise self._unknown_state(table, event_row, _STATES)
        created = _micros(event_row.created_date)
        due = created if event_row.effective_date is None else _micros(event_row.effective_date)
        event: _Event = event_row.event
        first_due, in_hand = event.first_due_us or due, state == "IN_PROCESSING"
        if in_hand and event_row.processing_available_date is not None:
            due = max(due, _micros(event_row.processing_available_date))  # as long as its node may still be at it
        return row(
            "live", **self._fields(table, event_row), created_us=created, due_us=due, first_due_us=first_due,
            attempt=event.attempts + event_row.error_count + in_hand, suspect=in_hand,
        )  # fmt: skip

    def _ended(self, table: str, event_row: _Row) -> TransferRow:
        if event_row.processing_state not in _ENDINGS:
            raise self._unknown_state(table, event_row, tuple(_ENDINGS))
        state = _ENDINGS[event_row.processing_state]
        if state == "dead" and not _is_dead_letter(event_row):
            state = "cancelled"
        fields = self._fields(table, event_row)
        if state in ("reaped", "dead"):
            fields["payload"] = None  # the row that it lives on as has it, or the dead letter
        return row("history", **fields, **_times(event_row), state=state, owner=event_row.processing_owner)

    def _dead(self, table: str, event_row: _Row) -> TransferRow:
        return row("dead", **self._fields(table, event_row), **_times(event_row))

    def _fields(self, table: str, event_row: _Row) -> dict[str, Any]:
        keys = (("search_key1", event_row.search_key1), ("search_key2", event_row.search_key2))
        context = (
            ("user_token", event_row.user_token), ("future_user_token", event_row.future_user_token),
            ("creating_owner", event_row.creating_owner), ("record_id", str(event_row.record_id)),
        )  # fmt: skip
        return {
            "where": self._where(table, event_row),
            "id": self.id_of(table, event_row.record_id),
            "queue": escape_name(event_row.queue_name or table.removesuffix("_history")),
            "payload": event_row.event.payload,
            "type": event_row.event.type,
            "labels": {name: str(value) for name, value in keys if value is not None},
            "headers": {name: value for name, value in context if value},
        }

    def _where(self, table: str, event_row: _Row) -> str:
        return f"{self.name} table {table} record_id {event_row.record_id}"

    def _unknown_state(self, table: str, event_row: _Row, known: tuple[str, ...]) -> Exception:
        what = self._where(table, event_row)
        return unexpected(what, f"its state is {event_row.processing_state!r}", " or ".join(known))


def _event_of(event_row: _Row) -> _Event:
    """The event of a row; one that waits for a retry is unwrapped, so that it is handled as the first time."""
    if event_row.class_name != _RETRIES:
        msgspec.json.decode(event_row.event_json)
        return _Event(event_row.event_json.encode(), event_row.class_name)
    retry = msgspec.json.decode(event_row.event_json, type=_Retry)
    event = _Event(
        retry.originalEvent.encode(), retry.originalEventClass, retry.retryNb, _micros(retry.originalEffectiveDate)
    )
    if retry.originalEventClass == _SUBSCRIBERS:
        subscribed = msgspec.json.decode(retry.originalEvent, type=_Subscribed)
        event.payload, event.type = bytes(subscribed.busEvent), subscribed.busEventClass
    msgspec.json.decode(event.payload)
    return event


def _is_dead_letter(event_row: _Row) -> bool:
    """Whether it failed for good; without a counted error it was retried as another row."""
    return event_row.processing_state == "FAILED" and event_row.error_count > 0


def _times(event_row: _Row) -> dict[str, Any]:
    ended = event_row.processing_available_date or event_row.created_date
    handled = event_row.processing_state in ("PROCESSED", "FAILED", "REAPED")
    error = None
    if event_row.processing_state == "FAILED":
        error = f"failed {event_row.error_count + 1} times" if event_row.error_count else _RETRIED_LATER
    return {
        "created_us": _micros(event_row.created_date),
        "due_us": _micros(event_row.effective_date or event_row.created_date),
        "attempt": event_row.event.attempts + event_row.error_count + handled,
        "ended_us": _micros(ended),
        "error": error,
    }


def _micros(moment: datetime) -> Micros:
    """Kill Bill writes UTC, in columns without a time zone."""
    return to_micros(moment.replace(tzinfo=moment.tzinfo or UTC))

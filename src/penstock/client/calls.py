"""Calls for queues, entries, leases, records and circuits: what is sent, what comes back, what may be sent twice."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar

import msgspec

from penstock.client import answers
from penstock.client.call import TOKEN, Call, get_call, json_reader, log_path, nothing, path_part
from penstock.client.content import NewEntry, NewRecord, content_of, duration_text, entry_content, time_text
from penstock.clock import Duration
from penstock.errors import BadInput
from penstock.ids import new_id

T = TypeVar("T")

Outcome = Literal["done", "retry", "dead", "release"]

_PATH = re.compile(r"/[^\x00-\x20\x7f\ud800-\udfff]*")


# --- queues ------------------------------------------------------------------------------------------


def queues(
    *, prefix: str = "", after: str = "", limit: int | None = None
) -> Call[answers.Page[answers.QueueCounts, str | None]]:
    """A page of queues by name, with what they hold."""
    query = {"prefix": prefix, "after": after, "limit": limit}
    return get_call("/v1/queues", answers.Page[answers.QueueCounts, str | None], query)


def queue(name: str) -> Call[answers.QueueCounts]:
    """What a queue holds right now."""
    return get_call(_queue(name), answers.QueueCounts)


def define(
    name: str, *, fifo: bool | None = None, rate: str | None = None, in_flight: dict[str, int] | None = None
) -> Call[answers.QueueCounts]:
    """Say how a queue behaves for everybody; what is left out stays as it is."""
    given = {"fifo": fifo, "rate": rate, "in_flight": in_flight}
    body = {key: value for key, value in given.items() if value is not None}
    return Call("PATCH", _queue(name), json_reader(answers.QueueCounts), body=body, repeatable=True)


def put(
    queue: str,
    value: Any = None,
    *,
    raw: bytes | None = None,
    due: datetime | None = None,
    delay: Duration | None = None,
    priority: int = 0,
    unique: str | None = None,
    unique_period: Duration | None = None,
    on_conflict: Literal["keep", "replace", "raise"] = "keep",
    labels: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
    expires: Duration | None = None,
    id: str | None = None,
    after: Sequence[str] = (),
    on: Literal["done", "ended"] = "done",
    batch: str | None = None,
    idempotency_key: str | None = None,
) -> Call[answers.Put]:
    """Put one entry; when it returns the entry is stored, once, however often the request had to be sent.

    ``after`` names entries that it waits for, ``batch`` a batch that it becomes a member of.
    An ``id`` or an ``idempotency_key`` of your own makes it safe to repeat also from another process; give one of them.
    """
    entry = NewEntry(
        value=value, raw=raw, due=due, delay=delay, priority=priority, unique=unique, unique_period=unique_period,
        on_conflict=on_conflict, labels=labels or {}, headers=headers or {}, expires=expires, id=id,
        after=after, on=on, batch=batch,
    )  # fmt: skip
    return Call(
        "POST", f"{_queue(queue)}/entries", json_reader(answers.Put), body=entry_content(entry),
        headers=_key(idempotency_key, [entry]), repeatable=True,
    )  # fmt: skip


def put_many(queue: str, entries: Iterable[Any], *, idempotency_key: str | None = None) -> Call[list[answers.Put]]:
    """Put up to 1,000 entries as one unit, all or none: values, or ``NewEntry`` for those with options."""
    given = [entry if isinstance(entry, NewEntry) else NewEntry(value=entry) for entry in entries]
    return Call(
        "POST", f"{_queue(queue)}/entries/bulk", _items(answers.Put),
        body={"entries": [entry_content(entry) for entry in given]}, headers=_key(idempotency_key, given),
        repeatable=True,
    )  # fmt: skip


def entries(
    queue: str,
    *,
    state: Literal["waiting", "held", "leased"] | None = None,
    labels: dict[str, str] | None = None,
    due_from: datetime | None = None,
    due_before: datetime | None = None,
    after: int = 0,
    limit: int | None = None,
) -> Call[answers.Page[answers.Entry, int | None]]:
    """A page of live entries in the order they were put."""
    query = {
        "state": state, "label": _labels(labels), "due_from": time_text(due_from), "due_before": time_text(due_before),
        "after": after, "limit": limit,
    }  # fmt: skip
    return get_call(f"{_queue(queue)}/entries", answers.Page[answers.Entry, int | None], query)


def entry(queue: str, id: str) -> Call[answers.Entry]:
    """A live entry."""
    return get_call(f"{_queue(queue)}/entries/{path_part(id)}", answers.Entry)


def result(queue: str, id: str) -> Call[answers.Result]:
    """What has become of an entry, live or ended, and what its handler returned if that is kept."""
    return get_call(f"{_queue(queue)}/results/{path_part(id)}", answers.Result)


def batch(id: str) -> Call[answers.Batch]:
    """What has become of a batch."""
    return get_call(f"/v1/batches/{path_part(id)}", answers.Batch)


def change(
    queue: str,
    id: str,
    value: Any = None,
    *,
    raw: bytes | None = None,
    labels: dict[str, str] | None = None,
    priority: int | None = None,
    due: datetime | None = None,
    delay: Duration | None = None,
    force: bool = False,
) -> Call[answers.Entry | None]:
    """Change a waiting entry's content, labels, priority or due time. Returns None if it has ended since."""
    given: dict[str, Any] = {"labels": labels, "priority": priority, "due": time_text(due)}
    given["delay"] = None if delay is None else duration_text(delay)
    body = {name: given_value for name, given_value in given.items() if given_value is not None}
    if value is not None or raw is not None:
        content = content_of(NewEntry(value=value, raw=raw))
        body |= {name: content[name] for name in ("value", "bytes") if name in content}
    path = f"{_queue(queue)}/entries/{path_part(id)}"
    return Call("PATCH", path, _entry_or_none, query={"force": _flag(force)}, body=body)


def delete_queue(queue: str) -> Call[None]:
    """Take an empty queue off the lists and forget its settings and locks."""
    return Call("DELETE", _queue(queue), nothing)


def purge_dead(queue: str, *, before: datetime, labels: dict[str, str] | None = None) -> Call[int]:
    """Remove dead letters that died before a time, for good. Returns how many were removed."""
    query = {"before": time_text(before), "label": _labels(labels)}
    return Call("DELETE", f"{_queue(queue)}/dead", _count, query=query)


def cancel(queue: str, *ids: str, force: bool = False) -> Call[int]:
    """Cancel waiting entries, all or none. Returns how many were cancelled. ``force`` also cancels leased ones."""
    return Call("POST", f"{_queue(queue)}/cancel", _count, body={"ids": ids}, query={"force": _flag(force)})


def replay(queue: str, *ids: str) -> Call[int]:
    """Put ended entries back into their queue. Returns how many were put back."""
    return Call("POST", f"{_queue(queue)}/replay", _count, body={"ids": ids})


def history(
    queue: str,
    id: str | None = None,
    *,
    state: str | None = None,
    labels: dict[str, str] | None = None,
    since: datetime | None = None,
    before: datetime | None = None,
    after: int = 0,
    limit: int | None = None,
) -> Call[answers.Page[answers.HistoryRow, int | None]]:
    """A page of ended attempts, oldest first."""
    query = {
        "id": id, "state": state, "label": _labels(labels), "since": time_text(since), "before": time_text(before),
        "after": after, "limit": limit,
    }  # fmt: skip
    return get_call(f"{_queue(queue)}/history", answers.Page[answers.HistoryRow, int | None], query)


def dead(
    queue: str, *, labels: dict[str, str] | None = None, after: int = 0, limit: int | None = None
) -> Call[answers.Page[answers.Entry, int | None]]:
    """A page of dead letters."""
    query = {"label": _labels(labels), "after": after, "limit": limit}
    return get_call(f"{_queue(queue)}/dead", answers.Page[answers.Entry, int | None], query)


def locks(*, after: str = "", limit: int | None = None) -> Call[answers.Page[answers.Lock, str | None]]:
    """A page of locks by queue and holder."""
    return get_call("/v1/locks", answers.Page[answers.Lock, str | None], {"after": after, "limit": limit})


def lock(queue: str, holder: str, *, reason: str = "") -> Call[answers.Lock]:
    """Stop claims from a queue until this holder unlocks it."""
    path = f"{_queue(queue)}/locks/{path_part(holder)}"
    return Call("PUT", path, json_reader(answers.Lock), body={"reason": reason}, repeatable=True)


def unlock(queue: str, holder: str) -> Call[None]:
    """Let go; other holders' locks stay."""
    return Call("DELETE", f"{_queue(queue)}/locks/{path_part(holder)}", nothing)


# --- working -----------------------------------------------------------------------------------------


def claim(
    queue: str,
    *,
    limit: int = 1,
    lease: Duration = "60s",
    attempts: int | None = 5,
    owner: str = "http",
    wait: float = 0.0,
) -> Call[list[answers.Leased]]:
    """Take leases on due entries, if need be after waiting up to 20 seconds for them."""
    body = {"limit": limit, "lease": duration_text(lease), "attempts": attempts, "owner": owner}
    return Call(
        "POST", f"{_queue(queue)}/claims", _items(answers.Leased), body=body, query={"wait": wait}, wait=wait
    )  # fmt: skip


def end(
    entries: Sequence[answers.Leased], outcome: Outcome = "done", *, delay: Duration = "0s", error: str | None = None
) -> Call[list[answers.Ended]]:
    """Say how attempts at entries of one queue ended; each counts for itself.

    One that came too late, or for the second time, is answered with ``ok=False`` and changes nothing.
    """
    body = [
        {"id": entry.id, "token": entry.token, "outcome": outcome, "delay": duration_text(delay), "error": error}
        for entry in entries
    ]
    # Sent again it changes nothing more, but would say of what it has ended that it was not held.
    return Call("POST", f"{_one_queue(entries)}/outcomes", _items(answers.Ended), body={"outcomes": body})


def extend(entries: Sequence[answers.Leased], *, lease: Duration = "60s") -> Call[list[answers.Ended]]:
    """Keep entries of one queue for longer."""
    body = {"leases": [{"id": entry.id, "token": entry.token} for entry in entries], "lease": duration_text(lease)}
    return Call("POST", f"{_one_queue(entries)}/extend", _items(answers.Ended), body=body, repeatable=True)


# --- queued requests ---------------------------------------------------------------------------------


def send(
    queue: str, method: str, path: str, body: bytes = b"", *, headers: Mapping[str, str] | None = None
) -> Call[str]:
    """Queue a request for delivery to a backend, in the queue's order. Once it is stored, returns its entry's id."""
    if not _PATH.fullmatch(path):
        raise BadInput(f"{path!r} is not a path.", hint="Write /crm/customers/7: a route of the service leads on.")
    if not TOKEN.fullmatch(method):
        raise BadInput(f"{method!r} is not a method.", hint="Use PUT, POST, PATCH or DELETE.")
    if not isinstance(body, bytes | bytearray):
        raise BadInput(f"a body that is a {type(body).__name__} cannot be sent.", hint="Give it as bytes.")
    return Call(method.upper(), path, _entry_id, content=body, headers={**(headers or {}), "x-queue": queue})


# --- logs --------------------------------------------------------------------------------------------


def logs() -> Call[list[str]]:
    """All logs, by name."""
    return Call("GET", "/v1/logs", _items(str), repeatable=True)


def create_log(log: str, *, partitions: int = 1, retention_age: Duration | None = "4d") -> Call[answers.Log]:
    """Create a log; one that is there with as many partitions is left alone. ``retention_age=None`` keeps all."""
    body = {"partitions": partitions, "retention_age": None if retention_age is None else duration_text(retention_age)}
    return Call("PUT", log_path(log), json_reader(answers.Log), body=body, repeatable=True)


def append(log: str, records: Iterable[Any], *, partition: int | None = None) -> Call[list[answers.Place]]:
    """Append up to 1,000 records: values, or ``NewRecord`` for those with a key, headers or raw bytes."""
    contents = [content_of(record if isinstance(record, NewRecord) else NewRecord(value=record)) for record in records]
    body = {"records": contents} if partition is None else {"records": contents, "partition": partition}
    return Call("POST", f"{log_path(log)}/records", _items(answers.Place), body=body)


def records(
    log: str,
    *,
    partition: int | None = None,
    start: int | None = None,
    since: datetime | None = None,
    limit: int | None = None,
) -> Call[answers.RecordPage]:
    """Records of one partition, in order; ``next`` of a page is the ``start`` of the next one."""
    query = {"partition": partition, "start": start, "since": time_text(since), "limit": limit}
    return get_call(f"{log_path(log)}/records", answers.RecordPage, query)


def group(log: str, name: str) -> Call[answers.GroupLag]:
    """How far a group is in a log."""
    return get_call(f"{log_path(log)}/groups/{path_part(name)}", answers.GroupLag)


# --- circuits ----------------------------------------------------------------------------------------


def circuits(*, after: str = "", limit: int | None = None) -> Call[answers.Page[answers.Circuit, str | None]]:
    """A page of the breaker's circuits by name, each with the first hundred of the queues that it locks."""
    return get_call("/v1/circuits", answers.Page[answers.Circuit, str | None], {"after": after, "limit": limit})


def set_circuit(circuit: str, state: Literal["open", "half_open", "close"], *, why: str = "") -> Call[answers.Circuit]:
    """Open, half open or close a circuit, by its name or its hash."""
    body = {"state": state, "why": why}
    return Call("PUT", f"/v1/circuits/{path_part(circuit)}/state", json_reader(answers.Circuit), body=body)


# --- inside ------------------------------------------------------------------------------------------


def _items(type: type[T]) -> Callable[[bytes, Mapping[str, str]], list[T]]:
    decoder = msgspec.json.Decoder(answers.Items[type])  # type: ignore[valid-type]
    return lambda content, headers: decoder.decode(content).items


def _entry_or_none(content: bytes, headers: Mapping[str, str]) -> answers.Entry | None:
    return msgspec.json.decode(content, type=answers.Entry) if content else None


def _count(content: bytes, headers: Mapping[str, str]) -> int:
    return msgspec.json.decode(content, type=answers.Number).count


def _entry_id(content: bytes, headers: Mapping[str, str]) -> str:
    return headers["x-penstock-entry"]


def _queue(name: str) -> str:
    return f"/v1/queues/{path_part(name)}"


def _one_queue(entries: Sequence[answers.Leased]) -> str:
    names = {entry.queue for entry in entries}
    if len(names) != 1:
        raise BadInput(f"entries of {len(names)} queues cannot be ended by one call.", hint="Send one call per queue.")
    return _queue(names.pop())


def _key(given: str | None, entries: Sequence[NewEntry] = ()) -> dict[str, str]:
    """The key by which a repeat is known; entries with ids of their own need none."""
    own = [entry.id is not None for entry in entries]
    if given is not None and any(own):
        raise BadInput("an entry has both an id and an idempotency key.", hint="Give one of them.")
    if any(own) and not all(own):
        raise BadInput("some entries have an id, others have none.", hint="Give all of them an id, or none.")
    return {} if any(own) else {"idempotency-key": given or new_id()}


def _labels(labels: dict[str, str] | None) -> list[str] | None:
    return None if labels is None else [f"{name}={value}" for name, value in labels.items()]


def _flag(value: bool) -> str:
    return "true" if value else "false"

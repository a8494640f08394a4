"""Every call: what is sent, what comes back, and whether it may be sent twice."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

import msgspec

from penstock.client import answers
from penstock.clock import Duration, duration
from penstock.codec import codec_for
from penstock.errors import BadInput
from penstock.ids import new_id

T = TypeVar("T")

Outcome = Literal["done", "retry", "dead", "release"]


_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER = re.compile(r"[ -~\t]*")
_PATH = re.compile(r"/[^\x00-\x20\x7f\ud800-\udfff]*")


class Call(Generic[T]):
    """One request, and how its answer is read. ``repeatable``: sent again after a lost reply it has one effect."""

    def __init__(
        self,
        method: str,
        path: str,
        read: Callable[[bytes, Mapping[str, str]], T],
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = False,
        wait: float = 0.0,
    ) -> None:
        """``body`` goes as JSON, ``content`` as it is; ``wait`` is for how long the service may take its time."""
        self.method = method
        self.path = path
        self.read = read
        self.query = {name: value for name, value in (query or {}).items() if value is not None}
        self.headers = dict(headers or {})
        self.content = content
        if body is not None:
            self.content = _encoded(body, f"{method} {path}")
            self.headers["content-type"] = "application/json"
        for name, value in self.headers.items():
            if not _TOKEN.fullmatch(name) or not isinstance(value, str) or not _HEADER.fullmatch(value):
                raise BadInput(
                    f"header {name!r} cannot be sent as {value!r:.100}.",
                    hint="Use printable ASCII without line breaks.",
                )
        self.repeatable = repeatable
        self.wait = wait


class NewEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One of several entries to be put; ``raw`` instead of a value for queues of bytes."""

    value: Any = None
    raw: bytes | None = None
    due: datetime | None = None
    delay: Duration | None = None
    priority: int = 0
    unique: str | None = None
    unique_period: Duration | None = None
    on_conflict: Literal["keep", "replace", "raise"] = "keep"
    labels: dict[str, str] = {}
    headers: dict[str, str] = {}
    expires: Duration | None = None


class NewRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record to be appended; ``raw`` instead of a value for logs of bytes."""

    value: Any = None
    raw: bytes | None = None
    key: str | None = None
    headers: dict[str, str] = {}


# --- queues ------------------------------------------------------------------------------------------


def queues(
    *, prefix: str = "", after: str = "", limit: int | None = None
) -> Call[answers.Page[answers.QueueCounts, str | None]]:
    """A page of queues by name, with what they hold."""
    query = {"prefix": prefix, "after": after, "limit": limit}
    return _get("/v1/queues", answers.Page[answers.QueueCounts, str | None], query)


def queue(name: str) -> Call[answers.QueueCounts]:
    """What a queue holds right now."""
    return _get(_queue(name), answers.QueueCounts)


def define(
    name: str, *, fifo: bool | None = None, rate: str | None = None, in_flight: dict[str, int] | None = None
) -> Call[answers.QueueCounts]:
    """Say how a queue behaves for everybody; what is left out stays as it is."""
    given = {"fifo": fifo, "rate": rate, "in_flight": in_flight}
    body = {key: value for key, value in given.items() if value is not None}
    return Call("PATCH", _queue(name), _json(answers.QueueCounts), body=body, repeatable=True)


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
    idempotency_key: str | None = None,
) -> Call[answers.Put]:
    """Put one entry; when it returns the entry is stored, once, however often the request had to be sent.

    An ``idempotency_key`` of your own makes it safe to repeat also from another process.
    """
    entry = NewEntry(
        value=value, raw=raw, due=due, delay=delay, priority=priority, unique=unique, unique_period=unique_period,
        on_conflict=on_conflict, labels=labels or {}, headers=headers or {}, expires=expires,
    )  # fmt: skip
    return Call(
        "POST", f"{_queue(queue)}/entries", _json(answers.Put), body=_entry(entry), headers=_key(idempotency_key),
        repeatable=True,
    )  # fmt: skip


def put_many(queue: str, entries: Iterable[Any], *, idempotency_key: str | None = None) -> Call[list[answers.Put]]:
    """Put up to 1,000 entries as one unit, all or none: values, or ``NewEntry`` for those with options."""
    body = [_entry(one if isinstance(one, NewEntry) else NewEntry(value=one)) for one in entries]
    return Call(
        "POST", f"{_queue(queue)}/entries/bulk", _items(answers.Put), body={"entries": body},
        headers=_key(idempotency_key), repeatable=True,
    )  # fmt: skip


def entries(
    queue: str,
    *,
    state: Literal["waiting", "leased"] | None = None,
    labels: dict[str, str] | None = None,
    due_from: datetime | None = None,
    due_before: datetime | None = None,
    after: int = 0,
    limit: int | None = None,
) -> Call[answers.Page[answers.Entry, int | None]]:
    """A page of live entries in the order they were put."""
    query = {
        "state": state, "label": _labels(labels), "due_from": _time(due_from), "due_before": _time(due_before),
        "after": after, "limit": limit,
    }  # fmt: skip
    return _get(f"{_queue(queue)}/entries", answers.Page[answers.Entry, int | None], query)


def entry(queue: str, id: str) -> Call[answers.Entry]:
    """A live entry."""
    return _get(f"{_queue(queue)}/entries/{_part(id)}", answers.Entry)


def cancel(queue: str, *ids: str, force: bool = False) -> Call[int]:
    """End waiting entries as cancelled, all or none; how many it were. ``force`` also takes leased ones away."""
    return Call("POST", f"{_queue(queue)}/cancel", _count, body={"ids": ids}, query={"force": _flag(force)})


def replay(queue: str, *ids: str) -> Call[int]:
    """Put ended entries back into their queue; how many it were."""
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
        "id": id, "state": state, "label": _labels(labels), "since": _time(since), "before": _time(before),
        "after": after, "limit": limit,
    }  # fmt: skip
    return _get(f"{_queue(queue)}/history", answers.Page[answers.HistoryRow, int | None], query)


def dead(
    queue: str, *, labels: dict[str, str] | None = None, after: int = 0, limit: int | None = None
) -> Call[answers.Page[answers.Entry, int | None]]:
    """A page of dead letters."""
    query = {"label": _labels(labels), "after": after, "limit": limit}
    return _get(f"{_queue(queue)}/dead", answers.Page[answers.Entry, int | None], query)


def locks(*, after: str = "", limit: int | None = None) -> Call[answers.Page[answers.Lock, str | None]]:
    """A page of locks by queue and holder."""
    return _get("/v1/locks", answers.Page[answers.Lock, str | None], {"after": after, "limit": limit})


def lock(queue: str, holder: str, *, reason: str = "") -> Call[answers.Lock]:
    """Stop claims from a queue until this holder unlocks it."""
    path = f"{_queue(queue)}/locks/{_part(holder)}"
    return Call("PUT", path, _json(answers.Lock), body={"reason": reason}, repeatable=True)


def unlock(queue: str, holder: str) -> Call[None]:
    """Let go; other holders' locks stay."""
    return Call("DELETE", f"{_queue(queue)}/locks/{_part(holder)}", _nothing)


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
    body = {"limit": limit, "lease": _duration(lease), "attempts": attempts, "owner": owner}
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
        {"id": one.id, "token": one.token, "outcome": outcome, "delay": _duration(delay), "error": error}
        for one in entries
    ]
    # Sent again it changes nothing more, but would say of what it has ended that it was not held.
    return Call("POST", f"{_one_queue(entries)}/outcomes", _items(answers.Ended), body={"outcomes": body})


def extend(entries: Sequence[answers.Leased], *, lease: Duration = "60s") -> Call[list[answers.Ended]]:
    """Keep entries of one queue for longer."""
    body = {"leases": [{"id": one.id, "token": one.token} for one in entries], "lease": _duration(lease)}
    return Call("POST", f"{_one_queue(entries)}/extend", _items(answers.Ended), body=body, repeatable=True)


# --- queued requests ---------------------------------------------------------------------------------


def send(
    queue: str, method: str, path: str, body: bytes = b"", *, headers: Mapping[str, str] | None = None
) -> Call[str]:
    """Have a request delivered to a backend in its queue's order; the id of its entry once it is stored."""
    if not _PATH.fullmatch(path):
        raise BadInput(f"{path!r} is no path.", hint="Write /crm/customers/7: a route of the service leads on.")
    if not _TOKEN.fullmatch(method):
        raise BadInput(f"{method!r} is no method.", hint="Use PUT, POST, PATCH or DELETE.")
    if not isinstance(body, bytes | bytearray):
        raise BadInput(f"a body that is a {type(body).__name__} cannot be sent.", hint="Give it as bytes.")
    return Call(method.upper(), path, _entry_id, content=body, headers={**(headers or {}), "x-queue": queue})


# --- logs --------------------------------------------------------------------------------------------


def logs() -> Call[list[str]]:
    """All logs, by name."""
    return Call("GET", "/v1/logs", _items(str), repeatable=True)


def create_log(log: str, *, partitions: int = 1, retention_age: Duration | None = "4d") -> Call[answers.Log]:
    """Create a log; one that is there with as many partitions is left alone. ``retention_age=None`` keeps all."""
    body = {"partitions": partitions, "retention_age": None if retention_age is None else _duration(retention_age)}
    return Call("PUT", _log(log), _json(answers.Log), body=body, repeatable=True)


def append(log: str, records: Iterable[Any], *, partition: int | None = None) -> Call[list[answers.Place]]:
    """Append up to 1,000 records: values, or ``NewRecord`` for those with a key, headers or raw bytes."""
    made = [_content(one if isinstance(one, NewRecord) else NewRecord(value=one)) for one in records]
    body = {"records": made} if partition is None else {"records": made, "partition": partition}
    return Call("POST", f"{_log(log)}/records", _items(answers.Place), body=body)


def records(
    log: str,
    *,
    partition: int | None = None,
    start: int | None = None,
    since: datetime | None = None,
    limit: int | None = None,
) -> Call[answers.RecordPage]:
    """Records of one partition, in order; ``next`` of a page is the ``start`` of the next one."""
    query = {"partition": partition, "start": start, "since": _time(since), "limit": limit}
    return _get(f"{_log(log)}/records", answers.RecordPage, query)


def group(log: str, name: str) -> Call[answers.GroupLag]:
    """How far a group is in a log."""
    return _get(f"{_log(log)}/groups/{_part(name)}", answers.GroupLag)


# --- circuits ----------------------------------------------------------------------------------------


def circuits(*, after: str = "", limit: int | None = None) -> Call[answers.Page[answers.Circuit, str | None]]:
    """A page of the breaker's circuits by name, each with the first hundred of the queues that it locks."""
    return _get("/v1/circuits", answers.Page[answers.Circuit, str | None], {"after": after, "limit": limit})


def set_circuit(circuit: str, state: Literal["open", "half_open", "close"], *, why: str = "") -> Call[answers.Circuit]:
    """Open, half open or close a circuit, by its name or its hash."""
    body = {"state": state, "why": why}
    return Call("PUT", f"/v1/circuits/{_part(circuit)}/state", _json(answers.Circuit), body=body)


# --- inside ------------------------------------------------------------------------------------------


def _get(path: str, type: type[T], query: Mapping[str, Any] | None = None) -> Call[T]:
    return Call("GET", path, _json(type), query=query, repeatable=True)


def _json(type: type[T]) -> Callable[[bytes, Mapping[str, str]], T]:
    decoder = msgspec.json.Decoder(type)
    return lambda content, headers: decoder.decode(content)


def _items(type: type[T]) -> Callable[[bytes, Mapping[str, str]], list[T]]:
    decoder = msgspec.json.Decoder(answers.Items[type])  # type: ignore[valid-type]
    return lambda content, headers: decoder.decode(content).items


def _count(content: bytes, headers: Mapping[str, str]) -> int:
    return msgspec.json.decode(content, type=answers.Number).count


def _nothing(content: bytes, headers: Mapping[str, str]) -> None:
    return None


def _entry_id(content: bytes, headers: Mapping[str, str]) -> str:
    return headers["x-penstock-entry"]


def _queue(name: str) -> str:
    return f"/v1/queues/{_part(name)}"


def _log(name: str) -> str:
    return f"/v1/logs/{_part(name)}"


def _part(name: str) -> str:
    if not isinstance(name, str) or not name or name in (".", ".."):
        raise BadInput(f"{name!r} is no name.", hint="Give the name of what is meant.")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError as cause:
        raise BadInput(f"{name!r} is no name: {cause}.", hint="Give the name of what is meant.") from cause


def _one_queue(entries: Sequence[answers.Leased]) -> str:
    names = {one.queue for one in entries}
    if len(names) != 1:
        raise BadInput(f"entries of {len(names)} queues cannot be ended by one call.", hint="Send one call per queue.")
    return _queue(names.pop())


def _key(given: str | None) -> dict[str, str]:
    return {"idempotency-key": given or new_id()}


def _entry(entry: NewEntry) -> dict[str, Any]:
    made = _content(entry)
    _time(entry.due)
    for name in ("delay", "unique_period", "expires"):
        if name in made:
            made[name] = _duration(getattr(entry, name))
    return made


def _content(given: NewEntry | NewRecord) -> dict[str, Any]:
    if given.raw is not None and given.value is not None:
        raise BadInput("both a value and raw bytes were given.", hint="Give one of them.")
    made = {name: value for name in given.__struct_fields__ if (value := getattr(given, name)) is not None}
    for name in ("labels", "headers"):
        if not made.get(name, True):
            del made[name]
    if given.raw is not None:
        made["bytes"] = base64.b64encode(made.pop("raw")).decode()
    else:
        made["value"] = _value(given.value)
    return made


def _value(given: Any) -> msgspec.Raw:
    """A value as JSON, if it comes back as what it was: the same rule as for a put without a service."""
    if isinstance(given, bytes | bytearray | memoryview):
        raise BadInput("bytes are no JSON.", hint="Send them with raw=, to a queue or log of bytes.")
    plain = given is None or isinstance(given, str | int | float | dict | list | tuple)
    return msgspec.Raw(codec_for(Any if plain else type(given)).encode(given))


def _encoded(body: Any, what: str) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, RecursionError) as cause:
        raise BadInput(f"{what} cannot be sent: {cause}.", hint="Give text, numbers and aware times.") from cause


def _duration(given: Duration) -> str:
    return f"{duration(given).total_seconds():f}s"


def _labels(labels: dict[str, str] | None) -> list[str] | None:
    return None if labels is None else [f"{name}={value}" for name, value in labels.items()]


def _time(moment: datetime | None) -> str | None:
    if moment is not None and not isinstance(moment, datetime):
        raise BadInput(f"{moment!r} is not a time.", hint="Use an aware datetime: a number could mean anything.")
    if moment is not None and moment.tzinfo is None:
        raise BadInput(f"{moment.isoformat()} has no time zone.", hint="Use an aware time.")
    return None if moment is None else moment.isoformat()


def _flag(value: bool) -> str:
    return "true" if value else "false"

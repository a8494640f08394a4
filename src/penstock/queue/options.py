"""The options of a put: as types, for those who pass them on, and the checks of what was given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, TypeVar, get_args

from penstock.clock import Duration, Micros, duration_micros, to_micros
from penstock.codec import Codec
from penstock.errors import BadInput, PayloadTooLarge
from penstock.names import check_name, did_you_mean, text_bytes
from penstock.policy import Rate
from penstock.queue.entry import Unique
from penstock.queue.protocol import On

T = TypeVar("T")

PRIORITIES = range(-100, 101)
MOST_HEADER_BYTES = 64 * 1024
MOST_IN_FLIGHT = (1 << 31) - 1
MOST_SEARCHED = 16  # labels in one search


class QueueOptions(TypedDict, total=False):
    """What may be said of a queue when its handle is made; see ``penstock.Queue``."""

    fifo: bool | None
    rate: str | Rate | None
    in_flight: dict[str, int] | None
    codec: Codec[Any] | None


class ManyOptions(TypedDict, total=False):
    """What may be said of every entry of a ``put_many``; see ``penstock.Queue.put``."""

    due: datetime | None
    delay: Duration | None
    priority: int
    unique: str | Unique | None
    labels: dict[str, str] | None
    headers: dict[str, str] | None
    expires: datetime | Duration | None
    sticky: bool | str


class PutOptions(ManyOptions, total=False):
    """What may be said of one entry; see ``penstock.Queue.put``."""

    id: str | None


class ManyLinkOptions(ManyOptions, total=False):
    """The same for entries that wait for others, or that others wait for."""

    after: Sequence[str]
    on: On
    batch: str | None


class LinkOptions(PutOptions, total=False):
    """What may be said of one entry that waits for others, or that others wait for; see ``penstock.Queue.put``."""

    after: Sequence[str]
    on: On
    batch: str | None


def check_options(options: Mapping[str, Any], call: str, known: type = PutOptions) -> None:
    """Refuse an unknown option. The error names the call that was made."""
    for name in options:
        names = known.__annotations__
        if name not in names:
            raise BadInput(
                f"{call}() has no option {name!r}.",
                hint=f"{did_you_mean(name, names)}Options: {', '.join(sorted(names))}.",
            )


def check_labels(labels: dict[str, str]) -> dict[str, str]:
    """Labels are search keys: short names, short text."""
    if not isinstance(labels, dict):
        raise BadInput(f"labels {labels!r} are not a dict.", hint='Write them as {"customer": "ann"}.')
    for key, value in labels.items():
        check_name(key, kind="label")
        if not 0 <= text_bytes(value) <= 255 or "\0" in value:
            raise BadInput(f"label {key}={value!r} is not allowed.", hint="Use text of at most 255 bytes without NUL.")
    return dict(labels)


def check_searched(labels: dict[str, str]) -> dict[str, str]:
    """Labels to look for: each of them costs as much again."""
    if len(check_labels(labels)) > MOST_SEARCHED:
        raise BadInput(
            f"nothing is searched by {len(labels)} labels at once.",
            hint=f"Give at most {MOST_SEARCHED}, the rarest; look at the others in what was found.",
        )
    return labels


def check_id(id_: str) -> str:
    """An id of the caller's own."""
    if not isinstance(id_, str) or not 1 <= len(id_) <= 64 or not id_.isascii() or not id_.isprintable():
        raise BadInput(f"id {id_!r} is not allowed.", hint="Use 1 to 64 printable ASCII characters, best a UUID.")
    if not {".", ".."}.isdisjoint(id_.split("/")):
        # Browsers and HTTP clients take these out of an address, however they are written: nobody could reach it.
        raise BadInput(f"id {id_!r} is not allowed: '.' or '..' stands alone in it.", hint="Use another, best a UUID.")
    return id_


def check_ids(ids: Iterable[str], what: str = "an id") -> tuple[str, ...]:
    """Ids to look for: any text that a store could hold."""
    checked = tuple(ids)
    for id_ in checked:
        if not isinstance(id_, str):
            raise BadInput(f"{type(id_).__name__} is not the type of {what}.", hint="Give the id, such as put(...).id.")
        check_text(id_, what)
    return checked


def check_text(text: str, what: str) -> str:
    """Text to look for, which need not be there."""
    if text_bytes(text) < 0:
        raise BadInput(f"{text!r} is not {what}.", hint="Use text that can be written as UTF-8.")
    return text


def check_flag(flag: bool, what: str) -> bool:
    """Yes or no; another value may be an argument in the wrong place."""
    if not isinstance(flag, bool):
        raise BadInput(f"{what}={flag!r} is neither yes nor no.", hint="Use True or False.")
    return flag


def check_seq(seq: int) -> int:
    """Where a listing continues."""
    if isinstance(seq, bool) or not isinstance(seq, int) or not -(1 << 63) <= seq < 1 << 63:
        raise BadInput(f"after={seq!r} is not a place in a listing.", hint="Give the seq of the last one you have.")
    return seq


def check_values(values: Iterable[T], call: str) -> Iterator[T]:
    """Several values; a text is more likely one value."""
    if isinstance(values, str | bytes | bytearray):
        raise BadInput(f"{call}({values[:20]!r}) is a single value, not a list.", hint="Use put(), or a list.")
    if not isinstance(values, Iterable):
        raise BadInput(f"{call}({values!r}) is not a list of values.", hint="Use put(), or a list.")
    return iter(values)


def check_headers(headers: dict[str, str]) -> dict[str, str]:
    """Headers are text to text."""
    if not isinstance(headers, dict):
        raise BadInput(f"headers {headers!r} are not a dict.", hint='Write them as {"trace": "..."}.')
    size = 0
    for key, value in headers.items():
        if text_bytes(key) < 0 or text_bytes(value) < 0:
            raise BadInput(f"header {key!r}: {value!r} is not text.", hint="Headers are text to text.")
        size += text_bytes(key) + text_bytes(value)
    if size > MOST_HEADER_BYTES:
        raise PayloadTooLarge(
            f"headers of {size:,} bytes are over the limit of {MOST_HEADER_BYTES:,}.", hint="Put it into the payload."
        )
    return dict(headers)


def check_reason(reason: str) -> str:
    """Why a queue is locked: a line for people."""
    if not 0 <= text_bytes(reason) <= 1000 or "\0" in reason:
        raise BadInput(f"reason {reason!r} is not allowed.", hint="Use text of at most 1,000 bytes without NUL.")
    return reason


def check_priority(priority: int) -> None:
    """A whole number; higher is sooner."""
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise BadInput(f"priority {priority!r} is not a whole number.", hint="Use -100 to 100; higher is sooner.")
    if priority not in PRIORITIES:
        raise BadInput(f"priority {priority!r} is out of range.", hint="Use -100 to 100; higher is sooner.")


def read_unique(unique: str | Unique) -> Unique:
    """Text alone is a unique id until done."""
    if isinstance(unique, Unique):
        return unique
    if not isinstance(unique, str):
        raise BadInput(f"unique {unique!r} is not text.", hint='Write it as "order-17" or Unique("order-17", ...).')
    return Unique(unique)


def sticky_node(sticky: bool | str, own: str) -> str | None:
    """The node an entry is kept for."""
    if sticky is False:
        return None
    return own if sticky is True else check_name(sticky, kind="node")[:45]  # as open_queues() cuts it


def read_label_limit(in_flight: dict[str, int] | None) -> tuple[str, int] | None:
    """The label and how many of each of its values may be in flight; a count of 0 removes the limit."""
    if in_flight is None:
        return None
    if not in_flight:
        return "", 0
    if not isinstance(in_flight, dict) or len(in_flight) != 1:
        raise BadInput(f"in_flight={in_flight!r} is not a limit.", hint='Name one label: {"customer": 2}.')
    if any(not isinstance(limit, int) or not 1 <= limit <= MOST_IN_FLIGHT for limit in in_flight.values()):
        raise BadInput(f"in_flight={in_flight!r} is not a limit.", hint='Name one label: {"customer": 2}.')
    [(label, limit)] = in_flight.items()
    return check_name(label, kind="label"), limit


def moment_or_duration(value: datetime | Duration | None, name: str) -> tuple[Micros | None, Micros | None]:
    """A moment, or a length of time from the put."""
    if value is None:
        return None, None
    if isinstance(value, datetime):
        return to_micros(value, name=name), None
    return None, duration_micros(value, name=name)


def read_state(state: str | None, known: Any) -> tuple[str, ...] | None:
    """The state to look for, one of those of a literal type, or None for all of them."""
    if state is None:
        return None
    if state not in get_args(known):
        raise BadInput(f"state {state!r} is unknown here.", hint=f"Use one of {', '.join(get_args(known))}.")
    return (state,)

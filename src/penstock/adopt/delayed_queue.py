"""delayedQueue: events in a hash, their due times in a sorted set, and a list per type of what is ready."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.adopt.redis_keys import RedisKeys
from penstock.adopt.source import LONGEST_UNIQUE, Source, row, unexpected
from penstock.clock import Micros
from penstock.location import Location
from penstock.names import escape_name
from penstock.queue.protocol import TransferRow

PREFIX = "de_"
SEPARATOR = "###"
_MILLISECOND: Micros = 1000
_BEYOND = 1e15  # milliseconds; no calendar has them


class _Id(msgspec.Struct):
    id: str


class _Envelope(msgspec.Struct):
    """An event as it is stored; attempt 1 was not pushed to a handler yet."""

    payload: msgspec.Raw
    type: str
    attempt: int
    logContext: dict[str, str | None] = {}

    @property
    def member(self) -> str:
        """What it is called in the hash and the sorted set."""
        return f"{self.type}{SEPARATOR}{msgspec.json.decode(self.payload, type=_Id).id}"


class DelayedQueue(Source):
    """The keys of one service."""

    seed = "delayedqueue"

    def __init__(self, location: Location, prefix: str = PREFIX) -> None:
        """``prefix`` is the service's ``dataSetPrefix``."""
        self._keys = RedisKeys(location)
        self._prefix = prefix
        super().__init__(f"{self._keys.name}/{prefix}")

    def rows(self, began_us: Micros) -> Iterator[TransferRow]:
        """Events without a due time as dead letters; then what is ready; then the rest, by due time."""
        self.notes = []
        events = self._events()
        scores = self._keys.scores(f"{self._prefix}delayed_events".encode())
        due = {_text(member): _moment(score) for member, score in scores.items()}
        for member in sorted(events.keys() - due.keys()):
            error = f"in {self._prefix}events without a due time: delayedQueue would never have delivered it"
            event = events[member]
            yield self._row("dead", member, event, began_us, began_us, ended_us=began_us, error=error)
        taken: set[str] = set()
        for member, event in self._ready():
            stored = events.get(member)
            if member in taken and (stored is None or stored.payload == event.payload):
                continue  # pushed again, because nobody handled it in time
            again = stored is not None and member in due and stored.payload != event.payload
            yield self._row("live", member, event, began_us, began_us, copy=again)
            if not again:
                taken.add(member)
        for member, moment in sorted(due.items(), key=lambda item: (item[1], item[0])):
            if member not in events:
                self.notes.append(f"{member} has a due time but no event; delayedQueue drops it, too")
            elif member not in taken:
                yield self._row("live", member, events[member], began_us, moment)

    def close(self) -> None:
        """Give the connection back."""
        self._keys.close()

    def _events(self) -> dict[str, _Envelope]:
        key = f"{self._prefix}events"
        stored = self._keys.fields(key.encode())
        return {_text(member): self._envelope(f"{key} {_text(member)}", text) for member, text in stored.items()}

    def _ready(self) -> Iterator[tuple[str, _Envelope]]:
        """What was pushed for handlers, oldest first."""
        own = {f"{self._prefix}{name}".encode() for name in ("events", "delayed_events", "delayed_events_lock")}
        for key in self._keys.find(self._prefix):
            if key in own or self._keys.type_of(key) != "list":
                continue
            pushed = list(self._keys.items(key))
            for number, text in enumerate(reversed(pushed)):
                event = self._envelope(f"{_text(key)}[{len(pushed) - 1 - number}]", text)
                yield event.member, event

    def _envelope(self, where: str, text: bytes) -> _Envelope:
        try:
            envelope = msgspec.json.decode(text, type=_Envelope)
            _ = envelope.member
            bytes(envelope.payload).decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as cause:
            raise unexpected(
                f"{self._keys.name} key {where}",
                str(cause),
                "JSON with payload (an object with an id), type and attempt",
            ) from cause
        return envelope

    def _row(
        self, part: str, member: str, event: _Envelope, began_us: Micros, due_us: Micros, *, copy: bool = False,
        ended_us: Micros | None = None, error: str | None = None,
    ) -> TransferRow:  # fmt: skip
        """One event; a copy with other content than the stored event has its own id, and holds no unique id."""
        name = member.removeprefix(f"{event.type}{SEPARATOR}")
        is_unique = part == "live" and not copy and 1 <= len(name.encode()) <= LONGEST_UNIQUE and "\0" not in name
        content = bytes(event.payload)
        return row(
            "dead" if part == "dead" else "live", where=f"{self._keys.name} event {member}",
            id=self.id_of(member, content.decode()) if copy else self.id_of(member),
            queue=escape_name(event.type), payload=content, type=event.type, created_us=began_us, due_us=due_us,
            attempt=max(0, event.attempt - 1), headers={key: value or "" for key, value in event.logContext.items()},
            unique=name if is_unique else None, mode="done" if is_unique else None, ended_us=ended_us, error=error,
        )  # fmt: skip


def _moment(score: float) -> Micros:
    """Milliseconds; a score may also be infinite."""
    return int(min(max(score, -_BEYOND), _BEYOND)) * _MILLISECOND


def _text(data: bytes) -> str:
    return data.decode(errors="replace")

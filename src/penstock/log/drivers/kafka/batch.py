"""KafkaBatch: messages of one partition as a batch of records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.log.record import NO_HEADERS, Headers, Partition, RecordBatch

MICROS = "penstock-us"  # a header with the timestamp in microseconds, of which Kafka stores milliseconds


class KafkaBatch(RecordBatch):
    """Messages of one partition. Columns are built when they are needed."""

    __slots__ = ("_extra", "_keys", "_messages", "_offsets")

    def __init__(self, partition: Partition, messages: Sequence[Any]) -> None:
        """At least one message."""
        super().__init__(partition)
        self._messages = messages
        self._offsets: Sequence[int] | None = None
        self._keys: Sequence[str | None] | None = None
        self._extra: tuple[list[int], list[Headers]] | None = None  # times and headers, which are read together

    @property
    def offsets(self) -> Sequence[int]:
        """One per message; a range unless transaction markers are between them."""
        if self._offsets is None:
            first, last = self._messages[0].offset(), self._messages[-1].offset()
            dense = last - first + 1 == len(self._messages)
            self._offsets = range(first, last + 1) if dense else [message.offset() for message in self._messages]
        return self._offsets

    def payloads(self) -> list[bytes]:
        """The values; empty for a tombstone."""
        return [message.value() or b"" for message in self._messages]

    def keys(self) -> Sequence[str | None]:
        """The keys, as text."""
        if self._keys is None:
            self._keys = [
                None if (key := message.key()) is None else key.decode("utf-8", "surrogateescape")
                for message in self._messages
            ]
        return self._keys

    def times(self) -> Sequence[int]:
        """The timestamps, to the microsecond if the producer was Penstock."""
        return self._times_and_headers()[0]

    def headers(self) -> Sequence[Headers]:
        """The headers, without Penstock's own."""
        return self._times_and_headers()[1]

    def slice(self, start: int, stop: int) -> RecordBatch:
        """Some of the records."""
        part = KafkaBatch(self.partition, self._messages[start:stop])
        part.codec = self.codec
        return part

    def __len__(self) -> int:
        """The number of records."""
        return len(self._messages)

    def _times_and_headers(self) -> tuple[list[int], list[Headers]]:
        if self._extra is None:
            times: list[int] = []
            headers: list[Headers] = []
            for message in self._messages:
                given = message.headers()
                micros = message.timestamp()[1] * 1000
                own: Headers = NO_HEADERS
                if given:
                    own = {name: _header(value) for name, value in given}
                    exact = own.get(MICROS)
                    if exact is not None and (given_micros := _micros(exact)) is not None:
                        micros = given_micros
                        del own[MICROS]
                times.append(micros)
                headers.append(own)
            self._extra = (times, headers)
        return self._extra


def _micros(text: str | bytes) -> int | None:
    """The time in a header, or None if another program wrote one that is not a time."""
    try:
        value = int(text)
    except ValueError:
        return None
    return value if -(1 << 63) <= value < 1 << 63 else None


def _header(value: bytes | None) -> str | bytes:
    try:
        return (value or b"").decode()
    except UnicodeDecodeError:
        return value or b""

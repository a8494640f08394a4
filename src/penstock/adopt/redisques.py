"""redisques: one list per queue, and a hash of locks."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.adopt.redis_keys import RedisKeys
from penstock.adopt.source import SeedLock, Source, codec_of, row, unexpected
from penstock.clock import SECOND, Micros
from penstock.errors import Undecodable
from penstock.gateway.headers import expires_after
from penstock.gateway.intake import FAMILY
from penstock.gateway.item import TYPE_NAME, QueuedRequest, read_item
from penstock.gateway.queuing import HOLDER
from penstock.location import Location
from penstock.names import escape_name
from penstock.queue.protocol import TransferRow

PREFIX = "redisques:"
STATISTICS = "redisques:stats"  # redisques writes it under this name, whatever its prefix is
LONGEST_EXPIRY = 10**9


class _Lock(msgspec.Struct):
    requestedBy: str
    timestamp: int | None = None


class _Figures(msgspec.Struct):
    failures: int = 0


class Redisques(Source):
    """The keys of one installation; each queue becomes a FIFO queue of a family, that of queued requests by default."""

    seed = "redisques"
    fifo = True

    def __init__(self, location: Location, prefix: str = PREFIX, family: str = FAMILY) -> None:
        """``prefix`` is redisques' ``redis-prefix``."""
        self._keys = RedisKeys(location)
        self._prefix = prefix
        self._family = family
        super().__init__(f"{self._keys.name}/{prefix}")

    def rows(self, began_us: Micros) -> Iterator[TransferRow]:
        """The items of every queue, in their order."""
        failures = self._failures()
        queues = f"{self._prefix}queues:".encode()
        for key in self._keys.find(queues.decode()):
            name = self._name(key.removeprefix(queues))
            for number, item in enumerate(self._keys.items(key)):
                attempt = failures.get(name, 0) if number == 0 else 0  # only the head was ever tried
                yield self._row(name, number, item, attempt, began_us)

    def locks(self) -> list[SeedLock]:
        """Whoever locked a queue is named as the reason of one lock, as the HTTP interface writes and shows it."""
        key = f"{self._prefix}locks"
        locks = []
        for name, text in sorted(self._keys.fields(key.encode()).items()):
            try:
                lock = msgspec.json.decode(text, type=_Lock)
            except (msgspec.DecodeError, RecursionError) as cause:
                what = f"{self._keys.name} key {key} field {name.decode(errors='replace')}"
                raise unexpected(what, str(cause), "JSON with requestedBy and timestamp") from cause
            locks.append(SeedLock(self._queue(self._name(name)), HOLDER, lock.requestedBy))
        return locks

    def running(self) -> str | None:
        """A node that owns queues renews a key for each of them; it is gone 20 seconds after the node."""
        for kind in ("consumers:", "{consumers}:"):
            if owned := self._keys.find(self._prefix + kind):
                return f"key {owned[0].decode(errors='replace')} says that a node owns this queue"
        return None

    def close(self) -> None:
        """Give the connection back."""
        self._keys.close()

    def _row(self, name: str, number: int, item: bytes, attempt: int, began_us: Micros) -> TransferRow:
        try:
            request: QueuedRequest | None = read_item(item)
        except Undecodable:
            request = None
        created, expires = began_us, None
        if request is not None and request.queued_ms is not None:
            created = min(began_us, request.queued_ms * 1000)
        if request is not None and (seconds := expires_after(request)) is not None:
            expires = created + min(seconds, LONGEST_EXPIRY) * SECOND
        return row(
            "live", where=f"{self._keys.name} key {self._prefix}queues:{name} item {number}",
            id=self.id_of(name, number), queue=self._queue(name), payload=item,
            codec="json" if request is not None else codec_of(item), type=TYPE_NAME if request is not None else "",
            created_us=created, due_us=created, attempt=attempt, expires_us=expires,
        )  # fmt: skip

    def _failures(self) -> dict[str, int]:
        """How often the head of each queue has failed."""
        counted = {}
        for name, text in self._keys.fields(STATISTICS.encode()).items():
            try:
                counted[self._name(name)] = max(0, msgspec.json.decode(text, type=_Figures).failures)
            except (msgspec.DecodeError, RecursionError) as cause:
                what = f"{self._keys.name} key {STATISTICS} field {name.decode(errors='replace')}"
                raise unexpected(what, str(cause), "JSON with failures") from cause
        return counted

    def _queue(self, name: str) -> str:
        return escape_name(self._family + name)

    def _name(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as cause:
            raise unexpected(f"{self._keys.name} queue {raw!r}", "its name is not UTF-8", "a name in UTF-8") from cause

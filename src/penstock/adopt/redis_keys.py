"""Keys of another system in Redis, read with commands that change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.adopt.source import unexpected
from penstock.errors import BadInput, StoreUnavailable
from penstock.location import Location
from penstock.opening import QUEUE_STORES, store_module

PAGE = 1000


class RedisKeys:
    """One database of a server."""

    def __init__(self, location: Location) -> None:
        """Connect with the first call."""
        if location.scheme not in ("redis", "rediss"):
            raise BadInput(f"{location.masked} is not a Redis server.", hint='Write it as "redis://host:6379/0".')
        store_module(location, QUEUE_STORES, "queue")  # says that the driver is not installed
        import redis

        from penstock.queue.drivers.redis.connection import Address

        address = Address(location)
        self.name = address.name
        self._errors = redis.RedisError
        options: dict[str, Any] = {
            "host": address.host, "port": address.port, "db": address.db, "username": address.user,
            "password": address.password, "socket_timeout": address.timeout, "ssl": address.tls,
            "socket_connect_timeout": address.connect_timeout, **address.tls_files,
        }  # fmt: skip
        self._client: Any = redis.Redis(**options)

    def find(self, prefix: str) -> list[bytes]:
        """The keys that begin so, sorted."""
        pattern = "".join(f"\\{char}" if char in "*?[]\\" else char for char in prefix) + "*"
        return sorted({*self._run(lambda client: list(client.scan_iter(pattern, PAGE)))})

    def type_of(self, key: bytes) -> str:
        """What a key holds."""
        return str(self._run(lambda client: client.type(key)).decode())

    def items(self, key: bytes) -> Iterator[bytes]:
        """A list, from its head, a page at a time."""
        self._check(key, "list")
        start = 0
        while page := self._run(lambda client, start=start: client.lrange(key, start, start + PAGE - 1)):
            yield from page
            start += len(page)

    def fields(self, key: bytes) -> dict[bytes, bytes]:
        """A hash."""
        self._check(key, "hash")
        return dict(self._run(lambda client: client.hgetall(key)))

    def scores(self, key: bytes) -> dict[bytes, float]:
        """A sorted set."""
        self._check(key, "zset")
        return dict(self._run(lambda client: client.zrange(key, 0, -1, withscores=True)))

    def close(self) -> None:
        """Give the connections back."""
        self._client.close()

    def _check(self, key: bytes, wanted: str) -> None:
        kind = self.type_of(key)
        if kind not in (wanted, "none"):
            raise unexpected(f"{self.name} key {key.decode(errors='replace')}", f"it is a {kind}", f"a {wanted}")

    def _run(self, call: Any) -> Any:
        try:
            return call(self._client)
        except self._errors as cause:
            raise StoreUnavailable(
                f"{self.name} cannot be read: {' '.join(str(cause).split())}.",
                hint="Is the server up, and may this user read?",
            ) from cause

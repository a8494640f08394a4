"""ZkQueue: items, what is known of their redelivery, and rejected items as znodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.adopt.source import Source, codec_of, row, unexpected
from penstock.clock import Micros
from penstock.errors import BadInput, StoreUnavailable
from penstock.location import Location
from penstock.names import escape_name
from penstock.opening import QUEUE_STORES, store_module
from penstock.queue.protocol import TransferRow

_ITEM = re.compile(r"item-(\d{10})\Z")
_META = re.compile(r"meta-(\d{10})\Z")
FOLDERS = ("items", "locks", "meta", "dlq")
REJECTED = "rejected by ZkQueue's redelivery policy"
META_HEADER = "zkqueue_meta"


class Zkqueue(Source):
    """The queues below one root, such as ``zookeeper://host:2181/zms``."""

    seed = "zkqueue"

    def __init__(self, location: Location) -> None:
        """The path of the URL is the root."""
        if location.scheme not in ("zookeeper", "zk"):
            raise BadInput(f"{location.masked} is not a ZooKeeper.", hint='Write it as "zookeeper://host:2181/zms".')
        store_module(location, QUEUE_STORES, "queue")  # says that the driver is not installed
        from penstock.queue.drivers.zookeeper.connection import Address

        self._address = Address(location)
        self._client: Any = None
        super().__init__(location.masked.partition("?")[0])

    def rows(self, began_us: Micros) -> Iterator[TransferRow]:
        """Rejected items of every queue as dead letters, then the items, each in the order of their numbers."""
        self.notes = []
        with self._answering():
            queues = self._queues()
            for queue in queues:
                for number, path in self._numbered(queue, "dlq", _ITEM):
                    yield self._dead(queue, number, path)
            for queue in queues:
                meta = dict(self._numbered(queue, "meta", _META))
                for number, path in self._numbered(queue, "items", _ITEM):
                    yield self._live(queue, number, path, meta.get(number))

    def running(self) -> str | None:
        """A lock is ephemeral: whoever made it is connected."""
        with self._answering():
            for queue in self._queues():
                if locks := self._children(f"{queue}/locks"):
                    return f"{self._path(queue)}/locks/{locks[0]} is held by a session"
        return None

    def close(self) -> None:
        """End the session."""
        if self._client is not None:
            self._client.stop()
            self._client.close()

    # --- znodes --------------------------------------------------------------------------------------

    def _queues(self) -> list[str]:
        queues = self._children("")
        for queue in queues:
            folders = self._children(queue)
            if "items" not in folders or not set(folders) <= {*FOLDERS}:
                actual = f"it has {', '.join(folders) or 'nothing'} below it"
                raise unexpected(self._path(queue), actual, f"a queue with {', '.join(FOLDERS)}")
        return queues

    def _numbered(self, queue: str, folder: str, form: re.Pattern[str]) -> list[tuple[int, str]]:
        numbered = []
        for name in self._children(f"{queue}/{folder}"):
            if not (match := form.match(name)):
                example = f"{form.pattern.partition('-')[0]}-0000000001"
                raise unexpected(f"{self._path(queue)}/{folder}/{name}", "its name is another one", example)
            numbered.append((int(match[1]), f"{queue}/{folder}/{name}"))
        return sorted(numbered)

    def _dead(self, queue: str, number: int, path: str) -> TransferRow:
        data, stat = self._read(path)
        moment = stat.ctime * 1000
        return row(
            "dead", where=self._path(path), id=self.id_of(queue, "dlq", number), queue=escape_name(queue),
            payload=data, codec=codec_of(data), created_us=moment, due_us=moment, attempt=1,
            ended_us=moment, error=REJECTED, headers=_number(number),
        )  # fmt: skip

    def _live(self, queue: str, number: int, path: str, meta: str | None) -> TransferRow:
        data, stat = self._read(path)
        moment = stat.ctime * 1000
        attempt, headers = 0, _number(number)
        if meta is not None:
            text = self._read(meta)[0].decode(errors="replace").strip()
            # What is in there is documented nowhere. A number can only be how often the item was taken.
            attempt = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 1
            headers[META_HEADER] = text
        return row(
            "live", where=self._path(path), id=self.id_of(queue, "items", number), queue=escape_name(queue),
            payload=data, codec=codec_of(data), created_us=moment, due_us=moment, attempt=attempt, headers=headers,
        )  # fmt: skip

    def _children(self, path: str) -> list[str]:
        from kazoo.exceptions import NoNodeError

        try:
            return sorted(self._connected().get_children(self._path(path)))
        except NoNodeError as cause:
            if path in ("",) or path.endswith("/items"):
                raise unexpected(self._path(path), "it does not exist", "a root with one znode per queue") from cause
            return []

    def _read(self, path: str) -> tuple[bytes, Any]:
        from kazoo.exceptions import NoNodeError

        try:
            data, stat = self._connected().get(self._path(path))
        except NoNodeError as cause:
            raise StoreUnavailable(
                f"{self._path(path)} vanished while it was read.", hint="Stop the consumers first; then start again."
            ) from cause
        return data or b"", stat

    def _path(self, path: str) -> str:
        return f"{self._address.chroot}/{path}".rstrip("/") or "/"

    def _connected(self) -> Any:
        if self._client is None:
            from kazoo.client import KazooClient

            auth = [("digest", ":".join(self._address.login))] if self._address.login else None
            client = KazooClient(self._address.hosts, timeout=self._address.session, auth_data=auth)
            try:
                client.start(timeout=self._address.patience)
            except Exception:
                client.stop()
                client.close()
                raise
            self._client = client
        return self._client

    @contextmanager
    def _answering(self) -> Iterator[None]:
        from kazoo.exceptions import KazooException
        from kazoo.handlers.threading import KazooTimeoutError

        try:
            yield
        except (KazooException, KazooTimeoutError) as cause:
            raise StoreUnavailable(
                f"{self.name} cannot be read: {type(cause).__name__} {cause}.".replace(" .", "."),
                hint="Is the server up, and may this user read?",
            ) from cause


def _number(number: int) -> dict[str, str]:
    return {"zkqueue_item": f"{number:010}"}

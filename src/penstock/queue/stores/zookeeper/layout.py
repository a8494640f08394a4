"""Where everything lies in ZooKeeper: the znodes of one space."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote, unquote

BUCKET = 1000
QUEUE_FOLDERS = ("items", "locks", "meta", "dlq", "ended", "kept", "unique")


class Layout:
    """The paths of one space. Names of queues, schedules and nodes are safe as they are; unique ids are escaped."""

    def __init__(self, chroot: str, space: str) -> None:
        """All paths begin with the chroot and the space."""
        self.root = f"{chroot.rstrip('/')}/{space}"
        self.schema = f"{self.root}/schema"
        self.log = f"{self.root}/log"
        self.bell = f"{self.root}/bell"
        self.handles = f"{self.root}/handles"
        self.nodes = f"{self.root}/nodes"
        self.queues = f"{self.root}/queues"
        self.schedules = f"{self.root}/schedules"
        self.subscriptions = f"{self.root}/subscriptions"
        self.documents = f"{self.root}/documents"

    @property
    def folders(self) -> tuple[str, ...]:
        """What is made when the space is first opened."""
        return (
            self.log, self.bell, self.handles, self.nodes, self.queues, self.schedules, self.subscriptions,
            self.documents,
        )  # fmt: skip

    def record(self, number: int) -> str:
        """One record of the log."""
        return f"{self.log}/c-{number:010d}"

    def queue(self, queue: str) -> str:
        """The head of a queue; its folders lie below."""
        return f"{self.queues}/{queue}"

    def folder(self, queue: str, folder: str) -> str:
        """One of a queue's folders."""
        return f"{self.queues}/{queue}/{folder}"

    def queue_nodes(self, queue: str) -> Iterator[str]:
        """A queue's folders."""
        return (self.folder(queue, folder) for folder in QUEUE_FOLDERS)

    def bucket_nodes(self, queue: str, bucket: int) -> Iterator[str]:
        """The buckets of one thousand numbers."""
        return (f"{self.folder(queue, folder)}/{bucket:07d}" for folder in ("items", "meta", "dlq"))

    def item(self, queue: str, number: int) -> str:
        """An entry as it was put, with its payload."""
        return f"{self.folder(queue, 'items')}/{number // BUCKET:07d}/item-{number:010d}"

    def meta(self, queue: str, number: int) -> str:
        """An entry as it is now, once it differs from what was put."""
        return f"{self.folder(queue, 'meta')}/{number // BUCKET:07d}/meta-{number:010d}"

    def dlq(self, queue: str, number: int) -> str:
        """A dead letter, whole; it keeps its number."""
        return f"{self.folder(queue, 'dlq')}/{number // BUCKET:07d}/item-{number:010d}"

    def lock(self, queue: str, number: int) -> str:
        """The ephemeral lock on an entry: exclusion."""
        return f"{self.folder(queue, 'locks')}/lock-{number:010d}"

    def guard(self, queue: str, number: int, token: str) -> str:
        """The ephemeral node with the lease's token in its name: identity."""
        return f"{self.lock(queue, number)}_{token}"

    def ended(self, queue: str, page: str) -> str:
        """History rows and remembered ids of one commit."""
        return f"{self.folder(queue, 'ended')}/{page}"

    def kept(self, queue: str, page: str) -> str:
        """The payloads to the rows of a page."""
        return f"{self.folder(queue, 'kept')}/{page}"

    def hold(self, queue: str, key: str) -> str:
        """Who holds a unique id."""
        return f"{self.folder(queue, 'unique')}/u-{quote(key, safe='')}"

    def key(self, name: str) -> str:
        """The unique id in the name of its node."""
        return unquote(name.removeprefix("u-"))

    def schedule(self, name: str) -> str:
        """One schedule."""
        return f"{self.schedules}/{name}"

    def document(self, name: str) -> str:
        """One document."""
        return f"{self.documents}/{name}"

    def node(self, name: str) -> str:
        """When a node was last heard of."""
        return f"{self.nodes}/{name}"

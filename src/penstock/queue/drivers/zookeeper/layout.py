"""Where everything lies in ZooKeeper: the znodes of one space."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote, unquote

BUCKET = 1000
QUEUE_FOLDERS = ("entries", "ready", "claims", "history", "dead", "unique")
BUCKETED = ("entries", "dead")  # the others hold no more than a queue may


class Layout:
    """The paths of one space. Names of queues, schedules and nodes are safe as they are; ids are escaped."""

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
        self.links = f"{self.root}/links"
        self.waits = f"{self.root}/waits"
        self.results = f"{self.root}/results"

    @property
    def folders(self) -> tuple[str, ...]:
        """What is made when the space is first opened."""
        return (
            self.log, self.bell, self.handles, self.nodes, self.queues, self.schedules, self.subscriptions,
            self.documents, *self.folders_of_links,
        )  # fmt: skip

    @property
    def folders_of_links(self) -> tuple[str, ...]:
        """What a space of version 3 lacks."""
        return self.links, self.waits, self.results

    def record(self, number: int) -> str:
        """One record of the log."""
        return f"{self.log}/c-{number:010d}"

    def session(self, name: str) -> str:
        """The ephemeral node of a handle's session; its claims end with it."""
        return f"{self.handles}/{name}"

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
        return (f"{self.folder(queue, folder)}/{bucket:07d}" for folder in BUCKETED)

    def body(self, queue: str, number: int) -> str:
        """What was put: written once."""
        return f"{self.queues}/{queue}/entries/{number // BUCKET:07d}/{number:010d}"

    def ready(self, queue: str, number: int) -> str:
        """A waiting entry, once it differs from what was put."""
        return f"{self.queues}/{queue}/ready/{number:010d}"

    def claim(self, queue: str, claim_id: str, part: int) -> str:
        """One record of a claim."""
        return f"{self.queues}/{queue}/claims/{quote(claim_id, safe='')}~{part}"

    def claim_of(self, name: str) -> tuple[str, int]:
        """The claim and the number of its record in the name of a node."""
        claim_id, _, part = name.rpartition("~")
        return unquote(claim_id), int(part)

    def page(self, queue: str, page: str) -> str:
        """Attempts that ended in one commit."""
        return f"{self.queues}/{queue}/history/{page}"

    def dead(self, queue: str, number: int) -> str:
        """A dead letter; its body stays where it is."""
        return f"{self.queues}/{queue}/dead/{number // BUCKET:07d}/{number:010d}"

    def hold(self, queue: str, key: str) -> str:
        """Who holds a unique id."""
        return f"{self.queues}/{queue}/unique/u-{quote(key, safe='')}"

    def key(self, name: str) -> str:
        """The unique id in the name of its node."""
        return unquote(name.removeprefix("u-"))

    def schedule(self, name: str) -> str:
        """One schedule."""
        return f"{self.schedules}/{name}"

    def document(self, name: str) -> str:
        """One document."""
        return f"{self.documents}/{name}"

    def of_id(self, folder: str, id_: str) -> str:
        """What a folder of the space has for an entry."""
        return f"{folder}/i-{quote(id_, safe='')}"

    def id_of(self, name: str) -> str:
        """The id in the name of such a node."""
        return unquote(name.removeprefix("i-"))

    def node(self, name: str) -> str:
        """When a node was last heard of."""
        return f"{self.nodes}/{name}"

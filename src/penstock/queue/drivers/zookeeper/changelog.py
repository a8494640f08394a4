"""Following the space: a mirror is loaded once, then kept current from the log that every commit appends to.

The log's records are numbered by the server in the order of commits, so a reader that asks for the next number misses
none. Old ones are trimmed; a mirror that fell behind is loaded again. The log also tells a client whose reply was lost
whether its commit happened.
"""

from __future__ import annotations

import logging
import time

from penstock.errors import StoreUnavailable
from penstock.queue.drivers.zookeeper import serialization
from penstock.queue.drivers.zookeeper.connection import Connection, Op, Pending, Unanswered
from penstock.queue.drivers.zookeeper.layout import Layout
from penstock.queue.drivers.zookeeper.loading import Loading
from penstock.queue.drivers.zookeeper.mirror import Mirror
from penstock.queue.drivers.zookeeper.serialization import Record

logger = logging.getLogger("penstock.queue.zookeeper")

KEPT_RECORDS = 256
TRIM_EVERY = 64
FAR_BEHIND = 64  # records of others; beyond this they are followed before the next call
# The server's counter has 31 bits; long before that the log is created again.
LAST_NUMBER = 2_000_000_000


class Changelog:
    """Reads the log into the mirror."""

    def __init__(self, connection: Connection, layout: Layout, mirror: Mirror, handle: str) -> None:
        """Nothing is read before the first :meth:`sync`."""
        self._connection = connection
        self._layout = layout
        self._mirror = mirror
        self._handle = handle
        self._loading = Loading(connection, layout, mirror)
        self.position = -1
        self._created = 0  # which log: it may be created again
        self._floor = 0  # the first record that is there
        self._knows_floor = True
        self._loaded = False
        self._newest = -1  # of our own commits
        self._synced_at = 0.0
        self._trimming: tuple[int, Pending] | None = None  # the first record that it leaves, and its reply
        self._accepted: set[str] = set()
        self.happened: set[str] = set()  # commits of ours whose replies were lost, and which did happen

    @property
    def is_far_behind(self) -> bool:
        """Whether too much has happened since it was followed, or nothing was read yet."""
        return not self._loaded or not self._knows_floor or self._newest - self.position > FAR_BEHIND

    def is_older_than(self, seconds: float) -> bool:
        """Whether the log was last followed longer ago than this."""
        return time.monotonic() - self._synced_at > seconds

    def sync(self) -> None:
        """Follow everything that was committed so far."""
        if not self._loaded:
            self._load()
        ahead = 2
        while True:
            numbers = range(self.position + 1, self.position + 1 + ahead)
            # The log itself comes last: what is missing above was trimmed only if it says so.
            *nodes, log = self._connection.read_many([*map(self._layout.record, numbers), self._layout.log])
            if log is None:
                raise self._connection.away("its nodes were removed")
            data, stat = log
            self._floor, self._knows_floor = int(data or b"0"), True
            if stat.czxid != self._created or self._floor > self.position + 1:
                self._load()
                continue
            for node in nodes:
                if node is None:
                    self._synced_at = time.monotonic()
                    return
                self.position += 1
                self._follow(serialization.read_record(node[0]))
            ahead = min(ahead * 4, 64)

    @property
    def place(self) -> tuple[int, int]:
        """Which log it is, and how far it was followed."""
        return self._created, self.position

    def tells_since(self, place: tuple[int, int]) -> bool:
        """Whether everything is still known that was committed after that place."""
        created, position = place
        return created == self._created and self._floor <= position + 1

    def forget(self) -> None:
        """Load everything with the next sync: the mirror is not what is stored."""
        self._loaded = False

    def accepted(self, op: str, number: int) -> None:
        """The mirror has this commit of ours already; unless others came before it, its record need not be read."""
        self._newest = number
        if number == self.position + 1:
            self.position = number
        else:
            self._accepted.add(op)

    def _follow(self, record: Record) -> None:
        if record.handle == self._handle:
            if record.op in self._accepted:
                self._accepted.discard(record.op)
                return
            self.happened.add(record.op)
        mirror = self._mirror
        with mirror.following():
            for queue, (version, head) in record.heads.items():
                mirror.set_head(queue, version, head)
            for change in record.changes:
                mirror.follow(change)
        if record.reload:
            self._loaded = False  # unless it goes well
            self._loading.load_queues(record.reload)
            self._loaded = True

    def _load(self) -> None:
        connection, layout = self._connection, self._layout
        [[log], [names]] = connection.read_many([layout.log]), connection.list_many([layout.log])
        if log is None or names is None:
            raise connection.away("its nodes were removed")
        # Skip nodes that Penstock did not create.
        suffixes = (name.rpartition("c-")[2] for name in names)
        numbers = sorted(int(suffix) for suffix in suffixes if suffix.isdigit())
        for node in connection.read_many([layout.record(number) for number in numbers]):
            if node is not None and (record := serialization.read_record(node[0])).handle == self._handle:
                self.happened.add(record.op)
        self._accepted.clear()
        self.position = self._newest = numbers[-1] if numbers else int(log[0] or b"0") - 1
        self._created = log[1].czxid
        self._loading.load()
        self._loaded = True

    # --- trimming ----------------------------------------------------------------------------------------

    def trim(self, number: int) -> None:
        """Now and then, after a commit with this number: remove records that nobody should need."""
        if number > LAST_NUMBER:
            self._try(self._anew())
        elif number % TRIM_EVERY == 0 and self._is_trimmed() and number - KEPT_RECORDS > self._floor:
            old = range(self._floor, number - KEPT_RECORDS)[:2000]
            floor = Op("set", self._layout.log, str(old[-1] + 1).encode())
            deletes = [Op("delete", self._layout.record(old_number)) for old_number in old]
            # Nobody has to wait for it: if it does not happen, the next one does it.
            self._trimming = old[-1] + 1, self._connection.send([floor, *deletes])

    def _is_trimmed(self) -> bool:
        """Whether it is known where the log begins: the last trim was answered, or there was none."""
        if self._trimming is None:
            return True
        floor, pending = self._trimming
        happened = pending.happened
        if happened is None:
            return False
        self._trimming = None
        if happened:
            self._floor = max(self._floor, floor)
        else:
            # Somebody else was first: the next call reads where the log begins now.
            self._knows_floor = False
        return happened

    def _anew(self) -> list[Op]:
        [names] = self._connection.list_many([self._layout.log])
        deletes = [Op("delete", f"{self._layout.log}/{name}") for name in names or ()]
        return [*deletes, Op("delete", self._layout.log), Op("create", self._layout.log)]

    def _try(self, ops: list[Op]) -> None:
        try:
            reply = self._connection.multi(ops)
        except StoreUnavailable as error:
            reply = Unanswered(str(error))
        if not isinstance(reply, list):
            # Somebody else has, or the next one will.
            logger.debug("the log was not created again: %s", reply)

"""Following the space: a mirror is loaded once, then kept current from the log that every commit appends to.

The log's records are numbered by the server in the order of commits, so a reader that asks for the next number misses
none. Old ones are trimmed; a mirror that fell behind is loaded anew. The log also tells a client whose reply was lost
whether its commit happened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.errors import StoreUnavailable
from penstock.queue.stores.zookeeper import records
from penstock.queue.stores.zookeeper.layout import Layout
from penstock.queue.stores.zookeeper.mirror import Mirror
from penstock.queue.stores.zookeeper.records import Change, Record
from penstock.queue.stores.zookeeper.session import Op, Session, Unanswered

logger = logging.getLogger("penstock.queue.zookeeper")

KEPT_RECORDS = 256
TRIM_EVERY = 64
# The server's counter has 31 bits; long before that the log is made anew.
LAST_NUMBER = 2_000_000_000


class Journal:
    """Reads the log into the mirror."""

    def __init__(self, session: Session, layout: Layout, mirror: Mirror, handle: str) -> None:
        """Nothing is read before the first :meth:`sync`."""
        self._session = session
        self._layout = layout
        self._mirror = mirror
        self._handle = handle
        self._position = -1
        self._made = 0  # which log: it may be made anew
        self._floor = 0
        self._loaded = False
        self._accepted: set[str] = set()
        self.found: set[str] = set()  # commits of ours whose replies were lost, and which did happen

    def sync(self) -> None:
        """Follow everything that was committed so far."""
        if not self._loaded:
            self._load()
        ahead = 2
        while True:
            numbers = range(self._position + 1, self._position + 1 + ahead)
            # The log itself comes last: what is missing above was trimmed only if it says so.
            *found, log = self._session.read_many([*map(self._layout.record, numbers), self._layout.log])
            if log is None:
                raise self._session.away("its nodes were removed")
            data, stat = log
            self._floor = int(data or b"0")
            if stat.czxid != self._made or self._floor > self._position + 1:
                self._load()
                continue
            for one in found:
                if one is None:
                    return
                self._position += 1
                self._follow(records.read_record(one[0]))
            ahead = min(ahead * 4, 64)

    @property
    def place(self) -> tuple[int, int]:
        """Which log it is, and how far it was followed."""
        return self._made, self._position

    def tells_since(self, place: tuple[int, int]) -> bool:
        """Whether everything is still known that was committed after that place."""
        made, position = place
        return made == self._made and self._floor <= position + 1

    def forget(self) -> None:
        """Load everything anew with the next sync: the mirror is not what is stored."""
        self._loaded = False

    def accepted(self, op: str, number: int) -> None:
        """The mirror has this commit of ours already; unless others came before it, its record need not be read."""
        if number == self._position + 1:
            self._position = number
        else:
            self._accepted.add(op)

    def _follow(self, record: Record) -> None:
        if record.handle == self._handle:
            if record.op in self._accepted:
                self._accepted.discard(record.op)
                return
            self.found.add(record.op)
        mirror = self._mirror
        with mirror.following():
            for queue, (version, head) in record.heads.items():
                mirror.set_head(queue, version, head)
            for change in record.changes:
                mirror.follow(change)
        if record.reload:
            self._loaded = False  # unless it goes well
            self._load_queues(record.reload)
            self._loaded = True

    # --- loading -----------------------------------------------------------------------------------------

    def _load(self) -> None:
        session, layout, mirror = self._session, self._layout, self._mirror
        [[log], [names], [queues], [schedules], [documents]] = (
            session.read_many([layout.log]),
            session.list_many([layout.log]),
            session.list_many([layout.queues]),
            session.list_many([layout.schedules]),
            session.list_many([layout.documents]),
        )
        if log is None or names is None or queues is None or schedules is None:
            raise session.away("its nodes were removed")
        # Nodes that somebody else made there are none of ours.
        ours = (name.rpartition("c-")[2] for name in names)
        numbers = sorted(int(number) for number in ours if number.isdigit())
        for one in session.read_many([layout.record(number) for number in numbers]):
            if one is not None and (record := records.read_record(one[0])).handle == self._handle:
                self.found.add(record.op)
        self._accepted.clear()
        self._position = numbers[-1] if numbers else int(log[0] or b"0") - 1
        self._made = log[1].czxid
        for queue in set(mirror.heads) - set(queues):
            with mirror.following():
                mirror.forget_queue(queue)
        self._load_queues(queues)
        with mirror.following():
            self._load_named("schedule", set(mirror.schedules), schedules, layout.schedule)
            self._load_named("document", set(mirror.documents), documents or [], layout.document)
            [subscriptions] = session.read_many([layout.subscriptions])
            if subscriptions is not None:
                mirror.set_subscriptions(subscriptions[0], subscriptions[1].version)
        self._loaded = True

    def _load_named(self, kind: str, known: set[str], names: list[str], path: Callable[[str], str]) -> None:
        """Read schedules or documents anew."""
        stored = dict(zip(names, self._session.read_many([path(name) for name in names]), strict=True))
        for name in known | set(names):
            one = stored.get(name)
            self._mirror.follow(Change(kind, "", name, one and one[0], one[1].version if one else 0))

    def _load_queues(self, queues: list[str]) -> None:
        """Read queues anew: heads first, so that a head is never newer than what is read below it."""
        session, layout, mirror = self._session, self._layout, self._mirror
        heads = session.read_many([layout.queue(queue) for queue in queues])
        with mirror.following():
            for queue, head in zip(queues, heads, strict=True):
                mirror.forget_queue(queue)
                if head is not None:
                    mirror.set_head(queue, head[1].version, records.read_head(head[0]))
        self._load_live(queues)
        for queue, paths in self._below(queues, "dlq"):
            self._load_dead(queue, paths)
        kept = {(queue, name) for queue, names in self._names(queues, "kept") for name in names}
        pages = [(queue, name) for queue, names in self._names(queues, "ended") for name in sorted(names)]
        found = session.read_many([layout.ended(*page) for page in pages])
        with mirror.following():
            for (queue, name), one in zip(pages, found, strict=True):
                if one is not None:
                    mirror.follow(Change("page", queue, name, one[0], int((queue, name) in kept)))
        self._load_holds(queues)

    def _load_live(self, queues: list[str]) -> None:
        metas = {(queue, _number(path)): path for queue, paths in self._below(queues, "meta") for path in paths}
        items = {(queue, _number(path)): path for queue, paths in self._below(queues, "items") for path in paths}
        places = list(items)
        found = self._session.read_many([metas.get(place, items[place]) for place in places])
        with self._mirror.following():
            for place, one in zip(places, found, strict=True):
                if one is None:
                    continue  # the log tells what became of it
                data = one[0] if place in metas else records.decode(one[0])[0]
                id_ = records.read_item(data).id
                self._mirror.follow(Change("live", place[0], id_, data, int(place in metas)))

    def _load_dead(self, queue: str, paths: list[str]) -> None:
        found = self._session.read_many(paths)
        with self._mirror.following():
            for one in found:
                if one is not None:
                    data = records.decode(one[0])[0]
                    self._mirror.follow(Change("dead", queue, records.read_item(data).id, data))

    def _load_holds(self, queues: list[str]) -> None:
        for queue, names in self._names(queues, "unique"):
            folder = self._layout.folder(queue, "unique")
            found = self._session.read_many([f"{folder}/{name}" for name in names])
            with self._mirror.following():
                for name, one in zip(names, found, strict=True):
                    if one is not None:
                        self._mirror.follow(Change("hold", queue, self._layout.key(name), one[0]))

    def _names(self, queues: list[str], folder: str) -> list[tuple[str, list[str]]]:
        found = self._session.list_many([self._layout.folder(queue, folder) for queue in queues])
        return [(queue, names) for queue, names in zip(queues, found, strict=True) if names]

    def _below(self, queues: list[str], folder: str) -> list[tuple[str, list[str]]]:
        """The nodes in the buckets of a folder, by queue."""
        buckets = [
            (queue, f"{self._layout.folder(queue, folder)}/{name}")
            for queue, names in self._names(queues, folder)
            for name in sorted(names)
        ]
        found = self._session.list_many([bucket for _, bucket in buckets])
        below: dict[str, list[str]] = {}
        for (queue, bucket), names in zip(buckets, found, strict=True):
            below.setdefault(queue, []).extend(f"{bucket}/{name}" for name in sorted(names or ()))
        return list(below.items())

    # --- trimming ----------------------------------------------------------------------------------------

    def trim(self, number: int) -> None:
        """Now and then, after a commit with this number: remove records that nobody should need."""
        if number > LAST_NUMBER:
            self._try(self._anew())
        elif number % TRIM_EVERY == 0 and number - KEPT_RECORDS > self._floor:
            old = range(self._floor, number - KEPT_RECORDS)[:2000]
            floor = Op("set", self._layout.log, str(old[-1] + 1).encode())
            self._try([floor, *(Op("delete", self._layout.record(one)) for one in old)])

    def _anew(self) -> list[Op]:
        [names] = self._session.list_many([self._layout.log])
        deletes = [Op("delete", f"{self._layout.log}/{name}") for name in names or ()]
        return [*deletes, Op("delete", self._layout.log), Op("create", self._layout.log)]

    def _try(self, ops: list[Op]) -> None:
        try:
            said = self._session.multi(ops)
        except StoreUnavailable as error:
            said = Unanswered(str(error))
        if not isinstance(said, list):
            # Somebody else has, or the next one will.
            logger.debug("the log was not trimmed: %s", said)


def _number(path: str) -> int:
    return int(path.rpartition("-")[2])

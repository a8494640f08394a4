"""QueueStore: what :func:`penstock.open_queues` returns: the queues of one space of one store."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from penstock.clock import Clock, Duration, Micros
from penstock.names import escape_name
from penstock.queue.batch import Batch, chain
from penstock.queue.entry import Counts, Lock
from penstock.queue.options import ManyOptions, PutOptions, QueueOptions, check_text
from penstock.queue.protocol import Capabilities, Finding, On, Schedule
from penstock.queue.queue import Queue
from penstock.queue.removal import without_deleted
from penstock.queue.task import TaskMaker, TaskOptions, task_maker
from penstock.queue.unit import UnitOfWork
from penstock.signals import Signals

if TYPE_CHECKING:
    from penstock.queue.driver import Driver

T = TypeVar("T")


class QueueStore:
    """The queues of one space. Open it with :func:`penstock.open_queues`; it is safe to share between threads.

    ``driver`` speaks to the database; its interface is for the authors of stores and may change in any release.
    """

    def __init__(self, driver: Driver, *, node: str | None = None) -> None:
        """Use this driver; ``node`` names this machine for sticky entries (default: the host name)."""
        self.driver = driver
        self.node = node or default_node()
        # Queue or family name -> how it is handled; filled by Queue.handler(), read by Worker.
        self.handlers: dict[tuple[str, bool], Any] = {}
        # Around every handler of this store: middleware(ctx, call_next); read when a worker is made.
        self.middleware: list[Any] = []

    # --- queues --------------------------------------------------------------------------------------

    @overload
    def queue(self, name: str, type: type[T], **options: Unpack[QueueOptions]) -> Queue[T]: ...

    @overload
    def queue(self, name: str, type: Any = ..., **options: Unpack[QueueOptions]) -> Queue[Any]: ...

    def queue(self, name: str, type: Any = Any, **options: Unpack[QueueOptions]) -> Queue[Any]:
        """A typed handle on one queue.

        Args:
            name: 1 to 128 ASCII letters, digits, ``.``, ``_`` or ``-``, starting with a letter or digit
            type: of the payloads: a ``msgspec.Struct``, dataclass, pydantic model, JSON type or ``bytes``
            **options: ``fifo``: one entry after the other, in the order of puts; ``rate``: starts of all workers
                together, such as ``"5/s"``; ``in_flight``: at most so many at once per value of a label, such as
                ``{"customer": 2}``; ``codec``: how values become bytes. What is not given is as it is stored.

        Raises:
            BadInput: a bad name, type or option
            Conflict: ``fifo`` would change while the queue holds entries
        """
        return Queue(self, name, type, **options)

    @overload
    def family(self, prefix: str, type: type[T], **options: Unpack[QueueOptions]) -> Queue[T]: ...

    @overload
    def family(self, prefix: str, type: Any = ..., **options: Unpack[QueueOptions]) -> Queue[Any]: ...

    def family(self, prefix: str, type: Any = Any, **options: Unpack[QueueOptions]) -> Queue[Any]:
        """A handle on all queues whose name starts with ``prefix``: one handler for all of them.

        Args:
            prefix: what the names start with
            type: of the payloads
            **options: those of a queue
        """
        return Queue(self, prefix, type, family=True, **options)

    def task(self, name: str, **options: Unpack[TaskOptions]) -> TaskMaker:
        """Decorate a function whose calls are entries of this queue; see :class:`penstock.Task`.

        Args:
            name: of the queue
            **options: those of a queue and of :meth:`penstock.Queue.handler`
        """
        return task_maker(self.queue, name, options)

    def unit(self, *, lease: Duration = "60s") -> UnitOfWork:
        """Start a unit of work: take N and put K, committed together or not at all.

        Args:
            lease: how long taken entries are held
        """
        return UnitOfWork(self, lease=lease)

    def batch(
        self,
        then: tuple[Queue[T], T],
        *,
        on: On = "done",
        inside: Batch | str | None = None,
        within: Duration = "1h",
        **options: Unpack[PutOptions],
    ) -> Batch:
        """Entries, and one that is held until all of them are done.

        >>> with store.batch(then=(reports, Report(7)), on="ended") as batch:
        ...     for page in pages:
        ...         batch.put(scans, page)

        It is put when the block ends: all of it or nothing. One that is too large for one step of the store is put in
        parts, and cancelled if its maker dies meanwhile.

        Args:
            then: queue and value of the entry that waits
            on: ``"done"``, or ``"ended"``: it waits for their end, whatever it is
            inside: another batch, or its id: this one becomes a member of it
            within: how long putting all the parts may take before a batch counts as abandoned
            **options: those of :meth:`penstock.Queue.put`, for the entry that waits
        """
        return Batch(self, then, on=on, inside=inside, within=within, **options)

    def chain(self, *steps: tuple[Queue[Any], Any], on: On = "done", **options: Unpack[ManyOptions]) -> list[str]:
        """Put entries of which each is held until the one before is done, or has ended.

        >>> store.chain((resize, image), (upload, image), (notify, user))

        Args:
            *steps: queue and value of each
            on: ``"done"`` or ``"ended"``
            **options: those of :meth:`penstock.Queue.put_many`, for all of them

        Returns:
            their ids
        """
        return chain(self, steps, options, on=on)

    # --- looking over all queues ---------------------------------------------------------------------

    def counts(self, queue: str | None = None, family: str | None = None) -> list[Counts]:
        """What queues hold, by name: one, a family, or all.

        Args:
            queue: this one only
            family: only queues whose name starts so
        """
        for name, kind in ((queue, "the name of a queue"), (family, "the beginning of names")):
            if name is not None:
                check_text(name, kind)
        counts = self.driver.counts(queue, family)
        return counts if queue is not None else without_deleted(self, counts)

    def locks(self, queue: str | None = None) -> list[Lock]:
        """Locks on one queue, or all.

        Args:
            queue: this one only
        """
        return self.driver.locks(None if queue is None else check_text(queue, "the name of a queue"))

    def schedules(self) -> list[Schedule]:
        """All schedules, by name."""
        return self.driver.schedules()

    def remove_schedule(self, name: str) -> bool:
        """Forget a schedule. Returns whether there was one.

        Args:
            name: of the schedule
        """
        return self.driver.remove_schedule(check_text(name, "the name of a schedule"))

    def check(self) -> list[Finding]:
        """Look at the store the way ``penstock doctor`` does."""
        return self.driver.check()

    # --- the store itself ----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The URL without its password."""
        return self.driver.name

    @property
    def space(self) -> str:
        """The space of the store that holds these queues."""
        return self.driver.space

    @property
    def clock(self) -> Clock:
        """Where the time comes from; tests bring their own."""
        return self.driver.clock

    @property
    def signals(self) -> Signals:
        """What happens here, for those who listen."""
        return self.driver.signals

    @property
    def capabilities(self) -> Capabilities:
        """What this kind of store can do."""
        return self.driver.capabilities

    def now(self) -> Micros:
        """The store's time, in microseconds since 1970."""
        return self.driver.now()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self.driver.closed

    def close(self) -> None:
        """Give everything back; safe to repeat."""
        self.driver.close()

    def __enter__(self) -> QueueStore:
        """Use the store as a context manager to have it closed."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """The URL without its password, and the space."""
        return f"<QueueStore {self.name} space={self.space}>"


def default_node() -> str:
    """The name of this machine among the nodes of a store: its host name, cut to 45 characters."""
    return escape_name(socket.gethostname() or "node")[:45]

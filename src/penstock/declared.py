"""Queues: queues, handlers and schedules declared without a store and opened later; importing connects to nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, Unpack, overload

from penstock.clock import Clock
from penstock.errors import BadInput, Conflict, NotOpen
from penstock.opening import open_queues
from penstock.queue.handling.handler import Handler
from penstock.queue.handling.middleware import Middleware, check_middleware
from penstock.queue.options import QueueOptions
from penstock.queue.queue import Queue
from penstock.queue.queues import QueueStore
from penstock.queue.task import TaskMaker, TaskOptions, task_maker

T = TypeVar("T")


class Queues:
    """Declare queues, handlers and schedules at import; open them when the program starts.

    >>> queues = Queues()
    >>> mails = queues.queue("mails", str)
    >>> mails.handler(print) is print
    True
    >>> with queues.open("memory://"):
    ...     mails.put("x").queue
    'mails'

    Args:
        middleware: functions ``(ctx, call_next)`` around every handler
    """

    def __init__(self, *, middleware: Iterable[Middleware] = ()) -> None:
        """``middleware`` stands around every handler."""
        self.handlers: dict[tuple[str, bool], Handler] = {}
        self._middleware = check_middleware(middleware, "Queues")
        self._queues: list[Queue[Any]] = []
        self._schedules: list[Callable[[], object]] = []
        self._store: QueueStore | None = None

    def __repr__(self) -> str:
        """Where they are, or which there are."""
        if self.is_open:
            return f"<Queues in {self._store!r}>"
        return f"<Queues, not open: {', '.join(queue.name for queue in self._queues) or 'none declared'}>"

    @overload
    def queue(self, name: str, type: type[T], **options: Unpack[QueueOptions]) -> Queue[T]: ...

    @overload
    def queue(self, name: str, type: Any = ..., **options: Unpack[QueueOptions]) -> Queue[Any]: ...

    def queue(self, name: str, type: Any = Any, **options: Unpack[QueueOptions]) -> Queue[Any]:
        """Declare a queue, as :meth:`penstock.QueueStore.queue` makes one.

        Args:
            name: of the queue
            type: of the payloads
            **options: ``fifo``, ``rate``, ``in_flight``, ``codec``
        """
        return self._declared(Queue(self._store or self, name, type, **options))

    @overload
    def family(self, prefix: str, type: type[T], **options: Unpack[QueueOptions]) -> Queue[T]: ...

    @overload
    def family(self, prefix: str, type: Any = ..., **options: Unpack[QueueOptions]) -> Queue[Any]: ...

    def family(self, prefix: str, type: Any = Any, **options: Unpack[QueueOptions]) -> Queue[Any]:
        """Declare all queues whose name starts with ``prefix``: one handler for all of them.

        Args:
            prefix: what the names start with
            type: of the payloads
            **options: those of a queue
        """
        return self._declared(Queue(self._store or self, prefix, type, family=True, **options))

    def task(self, name: str, **options: Unpack[TaskOptions]) -> TaskMaker:
        """Declare a function whose calls are entries of this queue; see :class:`penstock.Task`.

        Args:
            name: of the queue
            **options: those of a queue and of :meth:`penstock.Queue.handler`
        """
        return task_maker(self.queue, name, options)

    def _declared(self, queue: Queue[Any]) -> Queue[Any]:
        self._queues.append(queue)
        return queue

    def declare_schedule(self, set_schedule: Callable[[], object]) -> None:
        """Set this schedule when the queues are opened. ``queue.schedule`` calls this before that."""
        self._schedules.append(set_schedule)

    def open_when_used(self) -> bool:
        """Open them for a call that needs a store. Without a URL they wait for :meth:`open`."""
        return False

    # --- opening -----------------------------------------------------------------------------------

    def open(self, url: str | QueueStore, *, clock: Clock | None = None, node: str | None = None) -> QueueStore:
        """Open the store of a URL, as ``penstock.open_queues`` does, or take one that is open.

        From then on the declared queues are as if the store had made them. Options of queues and handlers
        that contradict the store are refused here. A schedule that was changed without another version is a warning.

        Args:
            url: of the store, or an open store
            clock: the system's by default; for tests
            node: names this machine for sticky entries

        Returns:
            the store

        Raises:
            Conflict: it is open already, or an option contradicts what is stored
        """
        if self.is_open:
            raise Conflict(f"these queues are open already, in {self.store.name}.", hint="Close them first.")
        if not isinstance(url, str | QueueStore):
            raise BadInput(f"open({url!r}) names no store.", hint='Give a URL, such as "sqlite:///shop.db".')
        store = url if isinstance(url, QueueStore) else open_queues(url, clock=clock, node=node)
        try:
            self._bind(store)
        except BaseException:
            for queue in self._queues:
                queue.unbind(self)
            if store is not url:
                store.close()
            raise
        self._store = store
        return store

    def _bind(self, store: QueueStore) -> None:
        for queue in self._queues:
            queue.bind(store)
        if self._store is not None:  # opened for a second time: with what has come since the first
            self.handlers = dict(self._store.handlers)
        for handler in self.handlers.values():
            handler.check_queue()
        for (name, _), handler in ((key, store.handlers[key]) for key in self.handlers if key in store.handlers):
            raise Conflict(
                f"{name!r} has the handler {handler.title} in {store.name} already.",
                hint="Remove it first with remove_handler().",
            )
        store.handlers.update(self.handlers)
        store.middleware[:0] = self._middleware
        for set_schedule in self._schedules:
            set_schedule()

    @property
    def is_open(self) -> bool:
        """Whether they are in a store now."""
        return self._store is not None and not self._store.closed

    @property
    def store(self) -> QueueStore:
        """The store in which they were opened."""
        if self._store is None:
            raise NotOpen("these queues are declared, but not open.", hint="Call queues.open(url) first.")
        return self._store

    def close(self) -> None:
        """Close the store, if it is open. The queues can be opened again."""
        if self._store is not None:
            self._store.close()

"""Queue: the typed handle on one queue (or family): put, find, change, lock, history, and its handler."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from datetime import datetime
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    TypeVar,
    Unpack,
    overload,
)

import msgspec

from penstock.clock import Duration, Micros, duration, duration_micros, to_micros
from penstock.codec import Codec, codec_for
from penstock.errors import BadInput, Conflict, EntryLeased, EntryNotFound, NotOpen, WrongType
from penstock.ids import new_id
from penstock.names import check_name
from penstock.policy import Rate, Retry
from penstock.queue import results
from penstock.queue.batch import linked_entries, linked_entry
from penstock.queue.declarations import Declarations
from penstock.queue.entry import (
    AttemptState,
    Counts,
    Entry,
    HistoryRow,
    Lock,
    State,
    Unique,
    family_counts,
    with_traceback,
)
from penstock.queue.handling.context import Context
from penstock.queue.handling.handler import DEFAULT_RETRY, Handler
from penstock.queue.handling.middleware import Middleware
from penstock.queue.handling.register import Register
from penstock.queue.many import new_entries, split
from penstock.queue.options import (
    LinkOptions,
    ManyLinkOptions,
    check_flag,
    check_headers,
    check_id,
    check_ids,
    check_labels,
    check_options,
    check_priority,
    check_reason,
    check_searched,
    check_seq,
    check_values,
    moment_or_duration,
    read_label_limit,
    read_state,
    read_unique,
    sticky_node,
)
from penstock.queue.protocol import Changes, Definition, Find, NewEntry, On, PutResult, Scope, Source, Step
from penstock.queue.removal import delete_queue, queue_exists
from penstock.queue.results import Progress, Result
from penstock.queue.schedule import TO_CHANGE, CatchUp, ScheduleSpec, another_definition, report_changed
from penstock.tracing import begin

if TYPE_CHECKING:
    from penstock.queue.queues import QueueStore

T = TypeVar("T")
R = TypeVar("R")

OPERATOR = "operator"


class Queue(Generic[T]):
    """A typed handle on a queue. It is cheap to make and safe to share between threads.

    ``fifo``, ``rate`` (``"100/s"``) and ``in_flight`` (``{"customer": 2}``: at most two at once per value of that
    label) are kept in the store and hold for everybody. Leave them out to follow what is stored. ``rate="none"`` and
    ``in_flight={}`` remove them.

    Throughout:
        id: of the entry
        labels: only entries with all of these
        after: the ``seq`` of the last one of the page before
        limit: at most so many
        force: also if it is running
        connection: your own transaction: the call is part of it
    """

    def __init__(
        self,
        store: QueueStore | Declarations,
        name: str,
        type: Any = Any,
        *,
        family: bool = False,
        fifo: bool | None = None,
        rate: str | Rate | None = None,
        in_flight: dict[str, int] | None = None,
        codec: Codec[T] | None = None,
    ) -> None:
        """Open the handle. Settings are stored now, and nothing else."""
        # One of the two; a declared queue gets its store when it is opened.
        self._store = None if isinstance(store, Declarations) else store
        self._declarations = store if isinstance(store, Declarations) else None
        self.name = check_name(name, kind="family" if family else "queue")
        self.is_family = family
        self.codec: Codec[T] = codec or codec_for(type)
        self._type = type
        self._scope = Scope(self.name, family)
        if fifo is not None and not isinstance(fifo, bool):
            raise BadInput(f"fifo={fifo!r} of {self.name!r} is neither yes nor no.", hint="Use True or False.")
        self.definition = Definition(
            fifo=fifo,
            rate=None if rate is None else Rate.read(rate),
            label_limit=read_label_limit(in_flight),
        )
        self._define()

    @property
    def store(self) -> QueueStore:
        """Where the queue is kept."""
        if self._declarations is not None:
            self._declarations.open_when_used()
        if self._store is None:
            raise NotOpen(f"queue {self.name!r} is declared, but not open.", hint="Call queues.open(url) first.")
        return self._store

    @property
    def is_open(self) -> bool:
        """Whether it is kept in a store, not only declared."""
        return self._store is not None

    def bind(self, store: QueueStore) -> None:
        """Keep a declared queue in this store from now on."""
        self._store, self._declarations = store, None
        self._define()

    def unbind(self, declarations: Declarations) -> None:
        """Make the queue only declared again."""
        self._store, self._declarations = None, declarations

    def __repr__(self) -> str:
        """Name, type and store."""
        kind = "family" if self.is_family else "queue"
        where = "not open" if self._store is None else f"in {self._store!r}"
        return f"<{kind} {self.name} of {self.codec.type_name} {where}>"

    def member(self, name: str) -> Queue[T]:
        """One queue of this family, with the family's type and settings.

        Args:
            name: of the queue
        """
        if not self.is_family:
            raise BadInput(f"{self!r} is not a family, so it has no members.", hint="Make one: store.family(prefix).")
        if not name.startswith(self.name):
            raise BadInput(f"{name!r} is not a member of {self!r}.", hint=f"Its name has to start with {self.name!r}.")
        member = Queue[T](self.store, name, self._type, codec=self.codec)
        member.definition = self.definition
        member._define()
        return member

    # --- putting -----------------------------------------------------------------------------------

    def put(
        self,
        value: T,
        *,
        due: datetime | None = None,
        delay: Duration | None = None,
        priority: int = 0,
        unique: str | Unique | None = None,
        labels: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        expires: datetime | Duration | None = None,
        sticky: bool | str = False,
        id: str | None = None,
        connection: Any = None,
        after: Sequence[str] = (),
        on: On = "done",
        batch: str | None = None,
    ) -> PutResult:
        """Put one entry. When this returns, it is stored.

        Args:
            value: of the queue's type
            due: when it may be claimed; now by default
            delay: how long from now; not together with ``due``
            priority: -100 to 100, higher first; not on FIFO queues
            unique: text, or ``Unique(key, until, period, on_conflict)``: while one entry holds it there is no second
            labels: text by name, to find it
            headers: text by name, for the handler
            expires: when it ends as ``expired`` instead of running
            sticky: True: only for workers of this node; or the name of a node
            id: your own makes the put repeatable: the same id is stored once
            after: ids of entries that it waits for: until then it is held
            on: ``"done"``, or ``"ended"``: it waits for their end, whatever it is
            batch: the id of a batch that is held: the entry becomes a member of it

        Returns:
            its id, queue and due time; ``created`` is False if an entry with this unique id was there

        Raises:
            WrongType: the value is not of the queue's type
            PayloadTooLarge: it is larger than the store takes
            BadInput: an option that cannot work
            UniqueHeld: with ``on_conflict="raise"``, or if ``"replace"`` meets a running entry
            Conflict: the id exists with another payload, or an entry in ``after`` has ended and will never be done
            EntryNotFound: an id in ``after`` is not known
            NotHeld: the batch is over, or there is none of this id
            StoreFull: the store has no room
            Unsupported: the store has no transaction to be part of
        """
        driver = self.store.driver
        span = begin(driver.tracing, "put", self.name, headers)
        try:
            if after or batch is not None or on != "done":
                entry, links = linked_entry(
                    self, value, LinkOptions(
                        due=due, delay=delay, priority=priority, unique=unique, labels=labels, headers=headers,
                        expires=expires, sticky=sticky, id=id, after=after, on=on, batch=batch,
                    )
                )  # fmt: skip
                result = driver.commit(Step(puts=(entry,), links=tuple(links)), connection=connection).puts[0]
            else:
                entry = self.new(
                    value, due=due, delay=delay, priority=priority, unique=unique, labels=labels, headers=headers,
                    expires=expires, sticky=sticky, id=id,
                )  # fmt: skip
                result = driver.put((entry,), connection=connection)[0]
        except BaseException as error:
            if span is not None:
                span.end(error)
            raise
        if span is not None:
            span.message(result.id)
            span.end()
        return result

    def put_many(
        self,
        values: Iterable[T],
        *,
        chunk: int | None = None,
        connection: Any = None,
        **options: Unpack[ManyLinkOptions],
    ) -> list[PutResult]:
        """Put many entries as one unit: all or none.

        Args:
            values: of the queue's type
            chunk: splits them into several units of so many
            **options: those of :meth:`put` except ``id``, for every entry

        Returns:
            what :meth:`put` returns, for each
        """
        if chunk is not None and (not isinstance(chunk, int) or not 1 <= chunk <= sys.maxsize):
            raise BadInput(f"put_many(chunk={chunk!r}) puts nothing.", hint="Use 1 or more.")
        if "id" in options:
            raise BadInput("put_many cannot give one id to many entries.", hint="Leave id out, or use put().")
        check_options(options, "put_many", ManyLinkOptions)
        source = check_values(values, "put_many")
        results: list[PutResult] = []
        driver = self.store.driver
        for part in split(source, chunk):
            span = begin(driver.tracing, "put", self.name, options.get("headers"))
            try:
                if {"after", "on", "batch"}.isdisjoint(options):
                    entries = new_entries(self, part, options, self._encode)
                    results += driver.put(entries, connection=connection)
                else:
                    entries, links = linked_entries(self, part, options)
                    step = Step(puts=tuple(entries), links=tuple(links))
                    results += driver.commit(step, connection=connection).puts
            except BaseException as error:
                if span is not None:
                    span.end(error)
                raise
            if span is not None:
                span.message("", len(entries))
                span.end()
        return results

    def new(
        self,
        value: T,
        *,
        due: datetime | None = None,
        delay: Duration | None = None,
        priority: int = 0,
        unique: str | Unique | None = None,
        labels: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        expires: datetime | Duration | None = None,
        sticky: bool | str = False,
        id: str | None = None,
    ) -> NewEntry:
        """Check and encode an entry without putting it. Units and handler contexts collect such entries."""
        if self.is_family:
            raise BadInput(f"{self.name!r} is a family, not a queue.", hint="Put into family.member(name).")
        if due is not None and delay is not None:
            raise BadInput(f"put into {self.name!r} gives both due and delay.", hint="Give one of them.")
        check_priority(priority)
        payload = self._encode(value)
        store = self.store
        if len(payload) > store.driver.payload_limit:
            raise store.driver.too_large(len(payload))
        expires_us, expires_in_us = (None, None) if expires is None else moment_or_duration(expires, "expires")
        own_headers = check_headers(headers) if headers else {}
        if store.driver.tracing is not None:
            own_headers = store.driver.tracing.inject(own_headers, self.name)
        return NewEntry(
            id=check_id(id) if id is not None else new_id(),
            queue=self.name,
            payload=payload,
            codec=self.codec.name,
            type=self.codec.type_name,
            priority=priority,
            due_us=None if due is None else to_micros(due, name="due"),
            delay_us=0 if delay is None else duration_micros(delay, name="delay"),
            labels=check_labels(labels) if labels else {},
            headers=own_headers,
            unique=None if unique is None else read_unique(unique),
            expires_us=expires_us,
            expires_in_us=expires_in_us,
            node=None if sticky is False else sticky_node(sticky, store.node),
            repeat=id is not None,
        )

    def _encode(self, value: T) -> bytes:
        try:
            return self.codec.encode(value)
        except WrongType as error:
            raise WrongType(f"queue {self.name!r}: {error.message}", hint=error.hint) from error

    def result(self, id: str, *, timeout: Duration | None = None) -> Result:
        """What has become of an entry, and what its handler returned if that is kept (``handler(keep_result=)``).

        Args:
            timeout: how long to wait for its end; without one it does not wait

        Returns:
            a :class:`Result`; ``is_final`` says whether the entry has ended

        Raises:
            EntryNotFound: there is no such entry, and no history of it
        """
        check_ids((id,))
        where = None if self.is_family else self.name
        seconds = 0.0 if timeout is None else duration(timeout, name="timeout").total_seconds()
        return results.wait_for(self.store, id, where, seconds)

    def progress(self, id: str) -> Progress | None:
        """How far the handler of an entry has come, by what it said last with ``ctx.progress``.

        Returns:
            None if it has said nothing

        Raises:
            EntryNotFound: it is not live
        """
        return results.progress_of(self.store, self.get(id))

    # --- looking -----------------------------------------------------------------------------------

    def get(self, id: str, *, connection: Any = None) -> Entry[T]:
        """A live entry by its id.

        Raises:
            EntryNotFound: it is not live
        """
        entries = self.store.driver.find(self._where(ids=check_ids((id,))), connection=connection)
        if not entries:
            raise EntryNotFound(
                f"queue {self.name!r} has no live entry {id!r}.", hint="history() and dead() show ended ones."
            )
        return self._typed(entries)[0]

    def find(
        self,
        *,
        labels: dict[str, str] | None = None,
        state: State | None = None,
        due_from: datetime | None = None,
        due_before: datetime | None = None,
        after: int = 0,
        limit: int = 1000,
        connection: Any = None,
    ) -> list[Entry[T]]:
        """Live entries in the order they were put.

        Args:
            state: ``"waiting"``, ``"held"`` or ``"leased"``; all of them by default
            due_from, due_before: by due time; the first is included
        """
        where = self._where(
            labels=labels or {}, states=read_state(state, State), from_us=_micros(due_from),
            before_us=_micros(due_before), after=after, limit=limit,
        )  # fmt: skip
        return self._typed(self.store.driver.find(where, connection=connection))

    def dead(self, *, labels: dict[str, str] | None = None, after: int = 0, limit: int = 1000) -> list[Entry[T]]:
        """Dead letters: entries that ran out of attempts, were rejected or could not be read."""
        return self._typed(self.store.driver.dead(self._where(labels=labels or {}, after=after, limit=limit)))

    def history(
        self,
        id: str | None = None,
        *,
        labels: dict[str, str] | None = None,
        state: AttemptState | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        after: int = 0,
        limit: int = 1000,
        newest_first: bool = False,
    ) -> list[HistoryRow]:
        """Ended attempts, oldest first unless told otherwise.

        Args:
            id: of one entry
            state: how the attempt ended
            since, before: by the end of the attempt; the first is included
            newest_first: turns the order around
        """
        rows = self.store.driver.history(
            self._where(
                ids=None if id is None else check_ids((id,)),
                labels=labels or {},
                states=read_state(state, AttemptState),
                from_us=_micros(since),
                before_us=_micros(before),
                after=after,
                limit=limit,
                newest_first=check_flag(newest_first, "newest_first"),
            )
        )
        for row in rows:
            row.reader = self.codec
        return [with_traceback(row) for row in rows]

    def counts(self) -> Counts:
        """What the queue (or the whole family) holds."""
        if not self.is_family:
            return self.store.counts(queue=self.name)[0]
        return family_counts(self.name, self.store.counts(family=self.name))

    def exists(self) -> bool:
        """Whether the queue holds or held anything, is locked, defined, scheduled for or subscribed.

        A deleted queue exists again when something is put into it or set for it. Its history alone does not count.
        """
        return queue_exists(self)

    # --- changing ----------------------------------------------------------------------------------

    def update(
        self,
        id: str,
        value: T | None = None,
        *,
        labels: dict[str, str] | None = None,
        priority: int | None = None,
        force: bool = False,
        connection: Any = None,
    ) -> None:
        """Change a waiting entry's content. What is not given stays.

        Args:
            value: another payload
            labels: other labels, in place of all it has
            priority: -100 to 100

        Raises:
            WrongType: the value is not of the queue's type
            EntryNotFound: it is not live
            EntryLeased: it is running; ``force`` changes it all the same, and its worker loses it
        """
        check_ids((id,))
        if priority is not None:
            check_priority(priority)
        changes = Changes(
            payload=None if value is None else self._encode(value),
            codec=None if value is None else self.codec.name,
            type=None if value is None else self.codec.type_name,
            labels=None if labels is None else check_labels(labels),
            priority=priority,
        )
        self.store.driver.update(
            id, changes, force=check_flag(force, "force"), connection=connection, scope=self._scope
        )

    def reschedule(
        self,
        id: str,
        *,
        due: datetime | None = None,
        delay: Duration | None = None,
        force: bool = False,
        connection: Any = None,
    ) -> None:
        """Move a waiting entry's due time.

        Args:
            due: when it may be claimed
            delay: how long from now; not together with ``due``

        Raises:
            EntryNotFound: it is not live
            EntryLeased: it is running; ``force`` moves it all the same, and its worker loses it
        """
        check_ids((id,))
        if (due is None) == (delay is None):
            raise BadInput(f"reschedule of {id!r} needs a due time or a delay.", hint="Give exactly one of them.")
        changes = Changes(due_us=_micros(due), delay_us=None if delay is None else duration_micros(delay, name="delay"))
        self.store.driver.update(
            id, changes, force=check_flag(force, "force"), connection=connection, scope=self._scope
        )

    def cancel(self, *ids: str, force: bool = False, connection: Any = None) -> int:
        """Cancel waiting entries, all or none.

        Args:
            *ids: of the entries

        Returns:
            how many were cancelled

        Raises:
            EntryNotFound: one of them is not live
            EntryLeased: one of them is running; ``force`` cancels it all the same, and its worker loses it
        """
        return self.store.driver.cancel(
            check_ids(ids), force=check_flag(force, "force"), connection=connection, scope=self._scope
        )

    def cancel_where(self, *, labels: dict[str, str], connection: Any = None) -> int:
        """Cancel every waiting entry with these labels. Entries that a worker takes meanwhile are left to it.

        Returns:
            how many were cancelled

        Raises:
            BadInput: no label is given, which would be all that wait
        """
        if not labels:
            raise BadInput(
                f"cancel_where(labels={labels!r}) would cancel all that waits in {self.name!r}.",
                hint="Name a label, or cancel(*ids) what find() gives.",
            )
        cancelled = 0
        for entry in self.find(labels=labels, state="waiting", limit=1_000_000, connection=connection):
            try:
                cancelled += self.store.driver.cancel((entry.id,), connection=connection)
            except (EntryLeased, EntryNotFound):
                continue
        return cancelled

    def replay(self, *ids: str) -> int:
        """Put ended entries back to the tail of the queue, as a new generation of the same id.

        Args:
            *ids: of dead letters, or of ended entries whose history is kept

        Returns:
            how many were put back

        Raises:
            EntryNotFound: one of them is not there
            UniqueHeld: another entry has its unique id now
        """
        return self.store.driver.replay(check_ids(ids), scope=self._scope)

    def purge_dead(self, *, before: datetime | None = None, labels: dict[str, str] | None = None) -> int:
        """Remove dead letters for good.

        Args:
            before: only those that died before this time

        Returns:
            how many were removed
        """
        return self.store.driver.purge_dead(
            self._where(before_us=_micros(before), labels=labels or {}, limit=1_000_000)
        )

    # --- locking -----------------------------------------------------------------------------------

    def delete(self) -> None:
        """Take the queue, which has to be empty, off the lists and forget its settings and locks.

        Its history stays until it is pruned, and a put brings the queue back.

        Raises:
            Conflict: it holds entries or dead letters, or something puts into it by itself
        """
        delete_queue(self.store, self.name)

    def lock(self, *, holder: str = OPERATOR, reason: str = "") -> None:
        """Stop claims from this queue until this holder unlocks it. Work in hand continues.

        Args:
            holder: who holds it; each holder has one lock
            reason: what others see
        """
        self._one("lock")
        self.store.driver.lock(self.name, check_name(holder, kind="holder"), check_reason(reason))

    def unlock(self, *, holder: str = OPERATOR) -> bool:
        """Remove this holder's lock. Other holders' locks stay.

        Args:
            holder: whose lock

        Returns:
            whether it held one
        """
        self._one("unlock")
        return self.store.driver.unlock(self.name, check_name(holder, kind="holder"))

    def locks(self) -> list[Lock]:
        """Who holds the queue, and why."""
        return self.store.locks(self.name)

    # --- handling ----------------------------------------------------------------------------------

    @overload
    def handler(self, function: Callable[[T], R]) -> Callable[[T], R]: ...

    @overload
    def handler(self, function: Callable[[T, Context[T]], R]) -> Callable[[T, Context[T]], R]: ...

    @overload
    def handler(
        self,
        *,
        retry: Retry = ...,
        concurrency: int = ...,
        prefetch: int | None = ...,
        on_dead: Callable[[T, str], Any] | None = ...,
        executor: Executor | Literal["processes"] | None = ...,
        breaker: Any = ...,
        middleware: Iterable[Middleware] = ...,
        timeout: Duration | None = ...,
        keep_result: Duration | None = ...,
    ) -> Register[T]: ...

    def handler(
        self,
        function: Any = None,
        *,
        retry: Retry = DEFAULT_RETRY,
        concurrency: int = 10,
        prefetch: int | None = None,
        on_dead: Callable[[T, str], Any] | None = None,
        executor: Executor | Literal["processes"] | None = None,
        breaker: Any = None,
        middleware: Iterable[Middleware] = (),
        timeout: Duration | None = None,
        keep_result: Duration | None = None,
    ) -> Any:
        """Set the function that handles this queue's entries: a decorator.

        A handler that raises or returns False has failed this attempt. Any other value is a success.

        Args:
            function: takes ``(value)`` or ``(value, ctx)``; sync or async
            retry: what a failure means
            concurrency: how many run at once per worker process
            prefetch: how many more a worker may hold ready; by default about 50 ms worth
            on_dead: called with value and error when an entry is given up; not if the process dies in the last attempt
            executor: a pool of your own for a sync handler; ``"processes"``: it runs in processes of its own
            breaker: a ``penstock.Breaker`` or one of its guards: keeps entries back while the far side is down
            middleware: functions ``(ctx, call_next)`` around it, the outermost first
            timeout: an attempt that takes longer has failed with ``HandlerTimeout``: an async handler is cancelled, a
                process killed; a thread cannot be stopped
            keep_result: how long to keep what it returns, for :meth:`result`

        Returns:
            the function

        Raises:
            Conflict: the queue has a handler
            BadInput: an option that cannot work, such as a ``timeout`` for threads on a FIFO or limited queue
        """

        def register(real: Callable[..., R]) -> Callable[..., R]:
            self.add_handler(
                real, retry=retry, concurrency=concurrency, prefetch=prefetch, on_dead=on_dead, executor=executor,
                breaker=breaker, middleware=middleware, timeout=timeout, keep_result=keep_result,
            )  # fmt: skip
            return real

        return register if function is None else register(function)

    def add_handler(
        self,
        function: Callable[[T], Any] | Callable[[T, Context[T]], Any],
        *,
        retry: Retry = DEFAULT_RETRY,
        concurrency: int = 10,
        prefetch: int | None = None,
        on_dead: Callable[[T, str], Any] | None = None,
        executor: Executor | Literal["processes"] | None = None,
        breaker: Any = None,
        middleware: Iterable[Middleware] = (),
        timeout: Duration | None = None,
        keep_result: Duration | None = None,
    ) -> Handler:
        """Do what the decorator :meth:`handler` does, as a call. It also works while a worker is running.

        Args:
            function: takes ``(value)`` or ``(value, ctx)``; sync or async
            retry, concurrency, prefetch, on_dead, executor, breaker, middleware, timeout, keep_result: as of
                :meth:`handler`
        """
        key = (self.name, self.is_family)
        handlers = self._handlers()
        if key in handlers:
            known = handlers[key]
            raise Conflict(
                f"{'family' if self.is_family else 'queue'} {self.name!r} already has the handler {known.title}.",
                hint="Remove it first with remove_handler(), or use the bus to have several receivers.",
            )
        handler = Handler(
            self, function, retry=retry, concurrency=concurrency, prefetch=prefetch, on_dead=on_dead, executor=executor,
            breaker=breaker, middleware=middleware, timeout=timeout, keep_result=keep_result,
        )  # fmt: skip
        handlers[key] = handler
        if self._store is not None:
            self._store.driver.wake()
        return handler

    def remove_handler(self) -> bool:
        """Stop handling this queue. Returns whether it was handled. Work in hand continues, later entries wait."""
        removed = self._handlers().pop((self.name, self.is_family), None)
        if self._store is not None:
            self._store.driver.wake()
        return removed is not None

    def _handlers(self) -> dict[tuple[str, bool], Handler]:
        return self.store.handlers if self._declarations is None else self._declarations.handlers

    def source(self, limit: int, attempts: int | None) -> Source:
        """This queue as a place to claim from."""
        return Source(self.name, limit, attempts, self.is_family)

    # --- schedules ---------------------------------------------------------------------------------

    def schedule(
        self,
        name: str,
        value: T,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        zone: str = "UTC",
        version: int = 1,
        catch_up: CatchUp = "one",
        labels: dict[str, str] | None = None,
        priority: int = 0,
        on_conflict: Literal["warn", "raise"] = "warn",
    ) -> bool:
        """Put a value at every time of a cron line or interval, once per cluster.

        The highest ``version`` of a name wins. A schedule stays until it is removed. The schedule of a declared queue
        is set when the queue is opened.

        Args:
            name: of the schedule
            value: what is put
            cron, every: a cron line or an interval: one of them
            zone: of the cron line; changes to and from summer time are heeded
            version: raise it when you change the definition
            catch_up: for missed times put ``"one"`` entry, ``"all"`` of them, or ``"none"``
            labels, priority: of the entries
            on_conflict: what to do about another definition under the stored version: ``"warn"`` (``ScheduleChanged``)
                or ``"raise"``

        Returns:
            whether this definition is in force

        Raises:
            Conflict: another definition is stored under this version, with ``on_conflict="raise"``
        """
        spec = ScheduleSpec.read(cron=cron, every=every, zone=zone, catch_up=catch_up)
        if self._declarations is not None:
            self._encode(value)  # refused where it is written
            again = partial(
                self.schedule, name, value, cron=cron, every=every, zone=zone, version=version, catch_up=catch_up,
                labels=labels, priority=priority, on_conflict=on_conflict,
            )  # fmt: skip
            self._declarations.declare_schedule(again)
            return False
        # What it fires belongs to no trace, least of all to that of whoever set it.
        sample = msgspec.structs.replace(self.new(value, labels=labels, priority=priority), headers={})
        if priority and self.counts().fifo:
            raise BadInput(
                f"schedule {name!r} has priority {priority}, but queue {self.name!r} is a FIFO queue.",
                hint="A FIFO queue knows no priorities; leave it out.",
            )
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise BadInput(f"version {version!r} of schedule {name!r} is not allowed.", hint="Use 1 or more.")
        wanted = spec.stored(check_name(name, kind="schedule"), version, sample, self.store.now())
        if (changed := another_definition(self.store, wanted)) is not None:
            if on_conflict == "raise":
                raise Conflict(changed, hint=TO_CHANGE)
            report_changed(changed)
            return False
        return self.store.driver.set_schedule(wanted)

    # --- inside ------------------------------------------------------------------------------------

    def _define(self) -> None:
        if self._store is not None and not self.is_family and not self.definition.empty:
            self._store.driver.define(self.name, self.definition)

    def _where(self, **conditions: Any) -> Find:
        limit = conditions.get("limit", 1)
        if isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit < 1 << 31:
            raise BadInput(f"limit={limit!r} is not a number of entries.", hint="Use 0 or more.")
        check_seq(conditions.get("after", 0))
        if "labels" in conditions:
            check_searched(conditions["labels"])
        if self.is_family:
            return Find(family=self.name, **conditions)
        return Find(queue=self.name, **conditions)

    def _typed(self, entries: list[Entry[Any]]) -> list[Entry[T]]:
        for entry in entries:
            entry.reader = self.codec
        return [with_traceback(entry) for entry in entries]

    def _one(self, what: str) -> None:
        if self.is_family:
            raise BadInput(f"cannot {what} the family {self.name!r}.", hint="Name one queue: family.member(name).")


def _micros(moment: datetime | None) -> Micros | None:
    return None if moment is None else to_micros(moment)

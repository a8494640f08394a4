"""Batch and chain: entries that wait for others, put together; and what has become of a batch.

A batch is its members and one entry that is held until they have ended. It is put in one step where the store takes it
in one. A larger one is put in parts: first the held entry and a *door*, an entry that stands for the parts to come. The
last part cancels the door; if its maker dies before, the door expires and the batch is cancelled.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import msgspec

from penstock.clock import SECOND, Duration, Micros, duration_micros
from penstock.errors import (
    BadInput,
    Conflict,
    EntryNotFound,
    OutcomeUnknown,
    PenstockError,
    StoreUnavailable,
    UnitTooLarge,
)
from penstock.ids import new_id
from penstock.queue.entry import Entry
from penstock.queue.forgetting import REMEMBERED
from penstock.queue.options import (
    LinkOptions,
    ManyLinkOptions,
    ManyOptions,
    PutOptions,
    check_headers,
    check_ids,
    check_labels,
    check_options,
    check_values,
)
from penstock.queue.protocol import Find, Link, NewEntry, On, Step, Wait

if TYPE_CHECKING:
    from penstock.queue.queue import Queue
    from penstock.queue.queues import QueueStore

T = TypeVar("T")

LABEL = "penstock.batch"  # of every member: the batch's id
ON_HEADER = "penstock.batch.on"  # of a member whose batch waits for any end
WAITS_HEADER = "penstock.batch.waits"  # of the entry of a batch that waits for any end
DOORS = "penstock.doors"  # the queue of entries that stand for parts to come
PAGE = 1000
TOGETHER = 200  # members that are cancelled in one step


class Batch:
    """Members and what happens after them, collected and put when the block ends.

    ``id`` is that of the entry that waits for them.
    """

    def __init__(
        self,
        store: QueueStore,
        then: tuple[Queue[Any], Any],
        *,
        on: On = "done",
        inside: Batch | str | None = None,
        within: Duration = "1h",
        **options: Unpack[PutOptions],
    ) -> None:
        """See :meth:`penstock.QueueStore.batch`."""
        check_options(options, "batch", PutOptions)
        self.store = store
        self.on = check_on(on)
        self._outer = inside if isinstance(inside, Batch) else None
        queue, value = check_pair(then, "then", store)
        if self.on != "done":
            options["headers"] = {**check_headers(options.get("headers") or {}), WAITS_HEADER: self.on}
        outer_id: str | None = inside.id if isinstance(inside, Batch) else inside
        outer_on = inside.on if isinstance(inside, Batch) else None
        self._target, self._links = linked_entry(queue, value, options, batch=outer_id, batch_on=outer_on)
        self.id: str = self._target.id
        self._members: list[NewEntry] = []
        self._within_us = duration_micros(within, name="within")
        self._door: NewEntry | None = None  # where it is put in parts
        self._parts: list[list[NewEntry]] = []
        self._is_put = False
        self._is_left = False  # whether its with block has ended
        self._doubtful_since: float | None = None  # when a commit began that may have happened

    def put(self, queue: Queue[T], value: T, **options: Unpack[LinkOptions]) -> str:
        """Add a member.

        Args:
            queue: of the same space
            value: of the queue's type
            **options: those of :meth:`penstock.Queue.put`

        Returns:
            its id
        """
        check_options(options, "batch.put", LinkOptions)
        check_pair((queue, value), "batch.put", self.store)
        if options.get("batch") is not None:
            raise BadInput("batch.put(batch=...) names a second batch.", hint="A member belongs to one batch.")
        member, links = linked_entry(queue, value, options, batch=self.id, batch_on=self.on)
        self._add([member], links)
        return member.id

    def put_many(self, queue: Queue[T], values: Iterable[T], **options: Unpack[LinkOptions]) -> list[str]:
        """Add a member for each value.

        Args:
            queue: of the same space
            values: of the queue's type
            **options: those of :meth:`penstock.Queue.put`

        Returns:
            their ids
        """
        return [self.put(queue, value, **options) for value in check_values(values, "batch.put_many")]

    def commit(self) -> str:
        """Put it all, as the ``with`` block does at its end.

        Returns:
            the batch's id

        Raises:
            OutcomeUnknown: all of it, some of it or nothing has happened: call it again; nothing is put twice
            StoreUnavailable: the same
        """
        if self._is_put:
            raise Conflict(f"batch {self.id} is put already.", hint="Add members with queue.put(..., batch=id).")
        if not self._members:
            raise BadInput("a batch of nothing would wait for nothing.", hint="Put a member, or the entry by itself.")
        if self._outer is not None and not self._outer._is_put:  # noqa: SLF001 - another of its own kind
            self._outer._add([self._target, *self._members], self._links)  # noqa: SLF001
            self._is_put = True
            return self.id
        self._check_not_forgotten()
        self._is_left = True
        began = time.monotonic()
        try:
            self._put_all()
        except PenstockError as error:
            if isinstance(error, OutcomeUnknown | StoreUnavailable):
                self._doubtful_since = self._doubtful_since or began
            raise
        except BaseException:  # interrupted, nobody knows where
            self._doubtful_since = self._doubtful_since or began
            raise
        self._is_put = True
        return self.id

    def _check_not_forgotten(self) -> None:
        since = self._doubtful_since
        if since is not None and time.monotonic() - since > REMEMBERED / SECOND:
            # What was put may have ended and been forgotten since: sent again, it would be put again.
            raise OutcomeUnknown(
                f"nobody can tell any more whether batch {self.id} was put: the store has not been asked for too long.",
                hint=f"Look for it with penstock batch show {self.id}, then decide.",
            )

    def _put_all(self) -> None:
        if self._door is None:
            step = Step(puts=(self._target, *self._members), links=tuple(self._links), repeat=self._is_doubtful)
            try:
                self.store.driver.commit(step)
                return
            except UnitTooLarge:
                pass
        self._put_in_parts()

    @property
    def _is_doubtful(self) -> bool:
        return self._doubtful_since is not None

    def cancel(self) -> int:
        """Cancel what is left of it: the entry that waits, then its members.

        Returns:
            the number of entries
        """
        return cancel_batch(self.store, self.id)

    def __enter__(self) -> Batch:
        """Collect members in a ``with`` block."""
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        """Put it all, or nothing if the block failed."""
        self._is_left = True
        if error_type is None and not self._is_put:
            self.commit()

    def __del__(self) -> None:
        """Warn of members that were collected and never put."""
        # A constructor that raised leaves an object without fields.
        if getattr(self, "_members", None) and not (self._is_put or self._is_left or self._is_doubtful):
            warnings.warn(
                f"batch {self.id} with {len(self._members):,} members was never put. Use it in a with block, or call "
                "batch.commit().",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def _add(self, members: list[NewEntry], links: list[Link]) -> None:
        if self._is_put:
            raise Conflict(f"batch {self.id} is put already.", hint="Add members with queue.put(..., batch=id).")
        if self._is_doubtful:
            raise Conflict(
                f"batch {self.id} was sent to be put, and nobody knows yet whether it was.",
                hint="Call commit() again: it says what happened.",
            )
        self._members += members
        self._links += links

    # --- in parts ----------------------------------------------------------------------------------

    def _put_in_parts(self) -> None:
        """Put it step by step. Repeating a step is safe, because the store knows it by its ids."""
        driver = self.store.driver
        if self._door is None:
            self._door = self._new_door()
            limit = driver.unit_limit
            self._parts = [self._members[start : start + limit] for start in range(0, len(self._members), limit)]
        outer = tuple(link for link in self._links if link.source == self.id)
        door = Link(self._door.id, self.id, "open")
        driver.commit(Step(puts=(self._target, self._door), links=(door, *outer), repeat=self._is_doubtful))
        try:
            self._put_members()
        except (OutcomeUnknown, StoreUnavailable):
            raise  # commit() continues it, or the door expires
        except BaseException:
            cancel_batch(self.store, self.id)
            raise
        driver.cancel([self._door.id])

    def _new_door(self) -> NewEntry:
        own = {link.target for link in self._links if self.id in (link.source, link.target)}
        if {link.target for link in self._links} - own:
            raise UnitTooLarge(
                f"batch {self.id} with batches inside is over what {self.store.name} commits in one step.",
                hint="Put the inner batches by themselves, with inside=batch.id, while this one is held.",
            )
        return NewEntry(
            new_id(), DOORS, b"null", "json", "Any", delay_us=2 * self._within_us, expires_in_us=self._within_us,
            labels={LABEL: self.id},
        )  # fmt: skip

    def _put_members(self) -> None:
        links = {link.source: link for link in self._links if link.target == self.id}
        index = 0
        while index < len(self._parts):
            part = self._parts[index]
            step = Step(puts=tuple(part), links=tuple(links[member.id] for member in part), repeat=self._is_doubtful)
            try:
                self.store.driver.commit(step)
            except UnitTooLarge:
                half = len(part) // 2
                if not half:
                    raise
                self._parts[index : index + 1] = [part[:half], part[half:]]
                continue
            index += 1


def chain(
    store: QueueStore, steps: Sequence[tuple[Queue[Any], Any]], options: ManyOptions, *, on: On = "done"
) -> list[str]:
    """Put entries of which each waits for the one before. Returns their ids."""
    # An option such as after= would take the place of the links between the steps.
    check_options(options, "chain", ManyOptions)
    if not steps:
        raise BadInput("a chain of nothing.", hint="Write store.chain((queue, value), (queue, value)).")
    entries: list[NewEntry] = []
    links: list[Link] = []
    for step in steps:
        queue, value = check_pair(step, "a step of a chain", store)
        linking: LinkOptions = {**options, "on": on}  # type: ignore[typeddict-item]
        entry, own = linked_entry(queue, value, linking, after=[entries[-1].id] if entries else [])
        entries.append(entry)
        links += own
    store.driver.commit(Step(puts=tuple(entries), links=tuple(links)))
    return [entry.id for entry in entries]


# --- options ---------------------------------------------------------------------------------------------


def linked_entry(
    queue: Queue[T],
    value: T,
    options: LinkOptions | PutOptions | ManyOptions,
    *,
    after: Sequence[str] = (),
    batch: str | None = None,
    batch_on: On | None = None,
) -> tuple[NewEntry, list[Link]]:
    """A new entry and the links that its options, or else the arguments, ask for.

    ``on`` says when the entries it waits for count. Its batch says when it counts itself.
    """
    plain, linking = _split(queue, options, after=after, batch=batch, batch_on=batch_on)
    entry = queue.new(value, **plain)
    return entry, linking.links(entry.id)


def linked_entries(queue: Queue[T], values: Iterable[T], options: ManyLinkOptions) -> tuple[list[NewEntry], list[Link]]:
    """New entries with the same options, and their links."""
    plain, linking = _split(queue, options)
    entries = [queue.new(value, **plain) for value in values]
    return entries, [link for entry in entries for link in linking.links(entry.id)]


class _Linking(msgspec.Struct, frozen=True):
    """Whom an entry waits for, and who waits for it."""

    after: tuple[str, ...]
    on: On
    batch: str | None
    batch_on: On

    def links(self, id_: str) -> list[Link]:
        links = [Link(source, id_, self.on) for source in self.after]
        if self.batch is not None:
            links.append(Link(id_, self.batch, self.batch_on))
        return links


def _split(
    queue: Queue[Any],
    options: Mapping[str, Any],
    *,
    after: Sequence[str] = (),
    batch: str | None = None,
    batch_on: On | None = None,
) -> tuple[dict[str, Any], _Linking]:
    """The options of an entry itself, and those of its links."""
    plain = dict(options)
    after, on = plain.pop("after", None) or after, check_on(plain.pop("on", "done"))
    batch = plain.pop("batch", None) or batch
    if isinstance(after, str | bytes) or not isinstance(after, Iterable):
        raise BadInput(f"after={after!r} is not a list of ids.", hint="Write after=[id1, id2].")
    after = check_ids(after, "an id in after=")
    if batch is not None:
        check_ids((batch,), "the id of a batch")
        batch_on = batch_on or waits_for(queue.store, batch)
        plain["labels"] = {**check_labels(plain.get("labels") or {}), LABEL: batch}
        if batch_on != "done":
            plain["headers"] = {**check_headers(plain.get("headers") or {}), ON_HEADER: batch_on}
    return plain, _Linking(tuple(dict.fromkeys(after)), on, batch, batch_on or "done")


def waits_for(store: QueueStore, batch: str) -> On:
    """Which ends of its members a batch that was put counts."""
    entries = store.driver.find(Find(ids=(batch,))) if isinstance(batch, str) else []
    return "ended" if entries and entries[0].headers.get(WAITS_HEADER) == "ended" else "done"


def check_on(on: On) -> On:
    """What to wait for."""
    if on not in ("done", "ended"):
        raise BadInput(f"on={on!r} is unknown.", hint="Use 'done' (success only) or 'ended' (any end).")
    return on


def check_pair(pair: tuple[Queue[Any], Any], name: str, store: QueueStore) -> tuple[Queue[Any], Any]:
    """A queue of this store's space, and a value."""
    if not isinstance(pair, tuple) or len(pair) != 2 or not hasattr(pair[0], "new"):
        raise BadInput(f"{name} is {pair!r}, not a queue and a value.", hint="Write (queue, value).")
    if not store.driver.shares_with(pair[0].store.driver):
        raise BadInput(
            f"{pair[0]!r} is in {pair[0].store!r}, not in {store!r}.",
            hint="What waits for each other has to live in one space of one store.",
        )
    return pair


# --- looking and cancelling --------------------------------------------------------------------------------


class BatchStatus(msgspec.Struct, frozen=True):
    """What has become of a batch: its held entry, what that still needs, and its members by state."""

    id: str
    queue: str
    state: str
    needs: int
    tally: dict[str, int]
    members: dict[str, int]


def batch_status(store: QueueStore, id_: str) -> BatchStatus:
    """Look at a batch. Raises ``EntryNotFound`` for an id under which nothing was ever held."""
    waits = store.driver.waits([id_])
    known = state_of(store, id_)
    if not waits or known is None:
        raise no_batch(id_)
    states = {entry.id: str(entry.state) for entry in _members(store, id_)}
    members = Counter(states.values()) + _ended_members(store, id_, set(states))
    _add_forgotten(members, waits[0])
    return BatchStatus(id_, known[0], known[1], waits[0].needs, waits[0].tally, dict(members))


def _add_forgotten(members: Counter[str], wait: Wait) -> None:
    """Add members that have left the history; the tally says how they ended."""
    forgotten = wait.needs + sum(wait.tally.values()) - members.total()
    for state, count in wait.tally.items():
        missing = min(forgotten, count - members[state])
        if missing > 0:
            members[state] += missing
            forgotten -= missing


class BatchLine(msgspec.Struct, frozen=True):
    """One of the entries that are held: of which queue, what it still needs, and how those before it ended."""

    id: str
    queue: str
    created_us: Micros
    needs: int
    tally: dict[str, int]


def held_batches(store: QueueStore, *, queue: str | None = None, limit: int = 100) -> list[BatchLine]:
    """What is held, in the order it was put: batches, steps of chains, and entries put after others."""
    held = store.driver.find(Find(queue=queue, states=("held",), limit=limit))
    waits = {wait.id: wait for wait in store.driver.waits([entry.id for entry in held])}
    return [
        BatchLine(entry.id, entry.queue, entry.created_us, wait.needs, wait.tally)
        for entry in held
        if (wait := waits.get(entry.id)) is not None
    ]


def no_batch(id_: str) -> EntryNotFound:
    """Nothing was ever held under this id."""
    return EntryNotFound(f"no batch {id_!r} is known.", hint="Its id is that of the entry which waits.")


def _members(store: QueueStore, batch: str) -> Iterator[Entry[Any]]:
    """Live members and dead letters."""
    for read in (store.driver.find, store.driver.dead):
        after = 0
        while page := read(Find(labels={LABEL: batch}, after=after, limit=PAGE)):
            yield from (entry for entry in page if entry.queue != DOORS)
            after = page[-1].seq


def _ended_members(store: QueueStore, batch: str, others: set[str]) -> Counter[str]:
    """Members by the state of their last row, of those that are neither live nor dead letters."""
    last: dict[str, str] = {}
    after = 0
    while page := store.driver.history(Find(labels={LABEL: batch}, after=after, limit=PAGE)):
        last.update((row.id, row.state) for row in page if row.queue != DOORS)
        after = page[-1].seq
    return Counter(state for id_, state in last.items() if id_ not in others)


def state_of(store: QueueStore, id_: str) -> tuple[str, str] | None:
    """Queue and state of an entry, live or ended, or None if nobody knows it."""
    rows: Sequence[Any] = store.driver.find(Find(ids=(id_,))) or store.driver.dead(Find(ids=(id_,)))
    rows = rows or store.driver.history(Find(ids=(id_,), newest_first=True, limit=1))
    return (rows[0].queue, rows[0].state) if rows else None


def cancel_batch(store: QueueStore, id_: str) -> int:
    """Cancel a batch and the batches inside it: first what waits, then the members. Returns the number of entries.

    A call that was interrupted can be repeated: it also descends into batches whose own entry has ended already.
    """
    cancelled = _cancel(store, [id_])
    members = list(_members(store, id_))
    for inner in _batches_inside(store, id_, members):
        cancelled += cancel_batch(store, inner)
    left = [entry.id for entry in members if entry.state not in ("held", "dead")]
    left += [door.id for door in store.driver.find(Find(queue=DOORS, labels={LABEL: id_}))]
    for start in range(0, len(left), TOGETHER):
        cancelled += _cancel(store, left[start : start + TOGETHER])
    return cancelled


def _batches_inside(store: QueueStore, batch: str, members: list[Entry[Any]]) -> Iterator[str]:
    """The members that wait for members of their own, or did so until they were cancelled or expired."""
    yield from (entry.id for entry in members if entry.state == "held")
    after = 0
    gone = Find(labels={LABEL: batch}, states=("cancelled", "expired"), limit=PAGE)
    while rows := store.driver.history(msgspec.structs.replace(gone, after=after)):
        yield from (wait.id for wait in store.driver.waits([row.id for row in rows]))
        after = rows[-1].seq


def _cancel(store: QueueStore, ids: Sequence[str]) -> int:
    """Cancel entries together, or one by one where some have ended meanwhile. Returns how many were cancelled."""
    try:
        return store.driver.cancel(ids, force=True)
    except EntryNotFound:
        return sum(_cancel(store, [id_]) for id_ in ids) if len(ids) > 1 else 0
    except UnitTooLarge:
        if len(ids) == 1:
            raise
        half = len(ids) // 2
        return _cancel(store, ids[:half]) + _cancel(store, ids[half:])

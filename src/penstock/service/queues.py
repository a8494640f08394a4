"""Queues, their entries, history, dead letters and locks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Annotated, Any, Literal, cast

import msgspec
from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field

from penstock.clock import from_micros
from penstock.errors import BadInput, EntryNotFound
from penstock.ids import derived_id
from penstock.queue.batch import batch_status, linked_entry, no_batch
from penstock.queue.entry import AttemptState, Entry, Lock
from penstock.queue.held import reasons
from penstock.queue.options import LinkOptions
from penstock.queue.protocol import Find, Link, NewEntry, PutResult, Step
from penstock.queue.queue import Queue
from penstock.queue.queues import QueueStore
from penstock.queue.refusals import unknown_source
from penstock.queue.removal import is_deleted, listed_queues
from penstock.queue.results import progress_of
from penstock.service.access import Admin, Producer, Reader, check_queue, note
from penstock.service.ids import own_id, stored_id, stored_ids, visible_id
from penstock.service.keys import ApiKey
from penstock.service.paging import page_of
from penstock.service.problems import responses
from penstock.service.recording import as_text, locks_text, named, record
from penstock.service.routing import CheckedRoute
from penstock.service.schemas import (
    ID,
    After,
    BatchView,
    Body,
    DurationText,
    Entries,
    EntryId,
    EntryView,
    History,
    IdText,
    Labels,
    Limit,
    Locks,
    LockView,
    ManyEntries,
    Moment,
    Name,
    NewEntryBody,
    Number,
    ProgressView,
    PutsView,
    PutView,
    Queues,
    QueueView,
    ResultView,
    aware,
    entry_view,
    history_view,
    lock_view,
    queue_view,
    read_labels,
    unbase64,
    written,
)
from penstock.service.settings import ServiceSettings
from penstock.tracing import with_trace

router = APIRouter(prefix="/v1", tags=["queues"], route_class=CheckedRoute)

IdempotencyKey = Annotated[
    str | None,
    Header(max_length=200, description="The same key stores the same entries once, however often it is sent."),
]
Force = Annotated[bool, Query(description="Also take a leased entry away from its worker.")]


class Definition(Body):
    """How a queue behaves for everybody; what is left out stays as it is."""

    fifo: bool | None = None
    rate: str | None = Field(None, max_length=64, description='"100/s", or "none" to remove it.')
    in_flight: dict[str, int] | None = Field(None, description="At most so many at once per value of a label.")


class EntryChanges(Body):
    """What to change in a waiting entry; what is left out stays as it is."""

    value: Any = None
    bytes: str | None = None
    labels: dict[str, str] | None = None
    priority: int | None = Field(None, ge=-100, le=100)
    due: Moment | None = None
    delay: DurationText | None = None


class Ids(Body):
    """Entries by their ids."""

    ids: list[IdText] = Field(min_length=1, max_length=1000)


class LockBody(Body):
    """Why a queue is locked."""

    reason: str = Field("", max_length=1000)


def store_of(request: Request) -> QueueStore:
    """The queue store that is served."""
    store: QueueStore = request.app.state.queues
    return store


def existing_queue(request: Request, name: str, *, or_deleted: bool = False) -> Queue[Any]:
    """An existing queue: a typo in a name must not look like an empty queue."""
    queue: Queue[Any] = store_of(request).queue(name)
    if queue.exists():
        return queue
    if not is_deleted(store_of(request), name):
        raise EntryNotFound(f"there is no queue {name!r}.", hint="GET /v1/queues lists those there are.")
    if not or_deleted:
        raise EntryNotFound(f"queue {name!r} was deleted.", hint="A put brings it back; its history can still be read.")
    return queue


def page(request: Request, limit: int | None) -> int:
    """How many a page holds."""
    settings: ServiceSettings = request.app.state.settings
    return min(limit or settings.page, settings.longest_page)


# --- queues ------------------------------------------------------------------------------------------


@router.get("/queues", responses=responses())
def list_queues(
    request: Request,
    key: Reader,
    after: Annotated[str, Query(max_length=128, description="Read on after this name.")] = "",
    prefix: Annotated[str, Query(max_length=128, pattern=r"^[A-Za-z0-9._%-]*$")] = "",
    limit: Limit = None,
) -> Queues:
    """The queues by name, with what they hold."""
    if not (prefix.startswith(key.prefix) or key.prefix.startswith(prefix)):
        return Queues(items=[], next=None)
    most = page(request, limit)
    wanted = max(prefix, key.prefix, key=len)
    queues = listed_queues(store_of(request), prefix=wanted, after=after, limit=most)
    return Queues(
        items=[queue_view(counts) for counts in queues], next=queues[-1].queue if len(queues) == most else None
    )


@router.get("/queues/{queue}", responses=responses(404))
def show_queue(request: Request, key: Reader, queue: Name) -> QueueView:
    """What a queue holds right now."""
    return queue_view(existing_queue(request, check_queue(key, queue)).counts())


@router.patch("/queues/{queue}", responses=responses(404, 409))
def define_queue(request: Request, key: Admin, queue: Name, definition: Definition) -> QueueView:
    """Say how a queue behaves: strict order, rate, how many at once."""
    note(key, "definition", check_queue(key, queue), definition.model_dump(exclude_unset=True))
    before = store_of(request).driver.definitions().get(queue)
    defined = store_of(request).queue(
        check_queue(key, queue), fifo=definition.fifo, rate=definition.rate, in_flight=definition.in_flight
    )
    after = store_of(request).driver.definitions().get(queue)
    record(request, key, ("definition of queue", queue), as_text(before), as_text(after))
    return queue_view(defined.counts())


@router.delete("/queues/{queue}", status_code=204, responses=responses(404, 409))
def delete_queue(request: Request, key: Admin, queue: Name) -> None:
    """Take an empty queue off the lists and forget its settings and locks; a put brings it back."""
    handle = existing_queue(request, check_queue(key, queue))
    before = locks_text(handle)
    store_of(request).queue(queue).delete()
    record(request, key, ("deletion of queue", queue), f"empty, {before}", "deleted")


# --- entries -----------------------------------------------------------------------------------------


@router.post("/queues/{queue}/entries", status_code=201, responses={**responses(404, 409, 507), 200: {
    "model": PutView, "description": "It was there already."}})  # fmt: skip
def put(
    request: Request,
    response: Response,
    key: Producer,
    queue: Name,
    entry: NewEntryBody,
    idempotency_key: IdempotencyKey = None,
) -> PutView:
    """Put one entry; when this answers it is stored."""
    store = store_of(request)
    check_queue(key, queue)
    [new], links = _new_entries(request, key, queue, [entry], idempotency_key)
    [result] = _put(store, [new], links)
    response.status_code = 201 if result.created else 200
    return _put_view(result)


@router.post("/queues/{queue}/entries/bulk", status_code=201, responses=responses(404, 409, 507))
def put_many(
    request: Request, key: Producer, queue: Name, many: ManyEntries, idempotency_key: IdempotencyKey = None
) -> PutsView:
    """Put up to 1,000 entries as one unit: all or none."""
    store = store_of(request)
    check_queue(key, queue)
    entries, links = _new_entries(request, key, queue, many.entries, idempotency_key)
    return PutsView(items=[_put_view(result) for result in _put(store, entries, links)])


@router.get("/queues/{queue}/entries", response_model=Entries, responses=responses(404))
def find_entries(
    request: Request,
    key: Reader,
    queue: Name,
    state: Literal["waiting", "held", "leased"] | None = None,
    label: Labels = None,
    due_from: Moment | None = None,
    due_before: Moment | None = None,
    after: After = 0,
    limit: Limit = None,
) -> Response:
    """Live entries in the order they were put."""
    find = partial(
        existing_queue(request, check_queue(key, queue)).find, state=state, labels=read_labels(label),
        due_from=aware(due_from), due_before=aware(due_before),
    )  # fmt: skip
    entries, following = page_of(request, find, after, page(request, limit))
    return written(Entries(items=[entry_view(entry) for entry in entries], next=following))


@router.get("/queues/{queue}/entries/{id:path}", response_model=EntryView, responses=responses(404))
def show_entry(request: Request, key: Reader, queue: Name, id: EntryId) -> Response:
    """A live entry."""
    handle = store_of(request).queue(check_queue(key, queue))
    entry = handle.get(stored_id(handle, key, id))
    view = entry_view(entry)
    progress = progress_of(handle.store, entry)
    if progress is not None:
        view.progress = ProgressView(
            done=progress.done, total=progress.total, text=progress.text, at=from_micros(progress.at_us)
        )
    for wait in handle.store.driver.waits([entry.id]) if entry.state == "held" else ():
        # The entries it waits for may be in queues that the key does not see.
        view.waits_for = reasons(handle.store, wait) if not key.prefix else [f"waits for {wait.needs:,} entries"]
    return written(view)


@router.get("/queues/{queue}/results/{id:path}", response_model=ResultView, responses=responses(404))
def show_result(request: Request, key: Reader, queue: Name, id: EntryId) -> Response:
    """What has become of an entry, live or ended, and what its handler returned if that is kept."""
    handle = store_of(request).queue(check_queue(key, queue))
    result = handle.result(stored_id(handle, key, id, ended=True))
    available = result.payload is not None
    view = ResultView(id=result.id, state=result.state, error=result.error, available=available)
    if available:
        view.value = result.value
    return written(view)


@router.get("/batches/{id:path}", response_model=BatchView, responses=responses(404))
def show_batch(request: Request, key: Reader, id: EntryId) -> BatchView:
    """What has become of a batch: what its entry still needs, how members ended, and how many are in which state."""
    store = store_of(request)
    stored = visible_id(store, key, id)
    if stored is None:  # a key for other queues learns nothing of it, not even that it exists
        raise no_batch(id)
    return BatchView(**msgspec.structs.asdict(batch_status(store, stored)))


@router.patch("/queues/{queue}/entries/{id:path}", response_model=EntryView, responses={**responses(404, 409), 204: {
    "description": "It was changed, and has ended since."}})  # fmt: skip
def change_entry(
    request: Request, key: Admin, queue: Name, id: EntryId, changes: EntryChanges, force: Force = False
) -> Response:
    """Change a waiting entry's content, labels or priority, or move its due time."""
    handle = _handle(store_of(request), check_queue(key, queue), changes.bytes is not None)
    id = stored_id(handle, key, id)
    note(key, "change", queue, [id, *sorted(changes.model_fields_set)])
    value = unbase64(changes.bytes) if changes.bytes is not None else changes.value
    before = next(iter(store_of(request).driver.find(Find(queue=queue, ids=(id,), limit=1))), None)
    given = {"id": id, **changes.model_dump(exclude_unset=True, exclude={"value", "bytes"})}
    given |= {"value": "changed"} if value is not None else {}
    if changes.due is not None or changes.delay is not None:
        if value is not None or changes.labels is not None or changes.priority is not None:
            raise BadInput("an entry is changed or moved, not both at once.", hint="Send two requests.")
        handle.reschedule(id, due=aware(changes.due), delay=changes.delay, force=force)
    else:
        handle.update(id, value, labels=changes.labels, priority=changes.priority, force=force)
    record(request, key, ("change of entry", queue), _entry_text(before), as_text(given))
    try:
        return written(entry_view(handle.get(id)))
    except EntryNotFound:
        return Response(status_code=204)


@router.delete("/queues/{queue}/entries/{id:path}", responses=responses(404, 409))
def cancel(request: Request, key: Admin, queue: Name, id: EntryId, force: Force = False) -> Number:
    """End a waiting entry as cancelled."""
    handle = store_of(request).queue(check_queue(key, queue))
    whole = stored_id(handle, key, id)
    count = handle.cancel(whole, force=force)
    record(request, key, ("cancelling", queue), f"{whole} live", "cancelled")
    return Number(count=count)


@router.post("/queues/{queue}/cancel", responses=responses(404, 409))
def cancel_many(request: Request, key: Admin, queue: Name, which: Ids, force: Force = False) -> Number:
    """End waiting entries as cancelled, all or none."""
    handle = store_of(request).queue(check_queue(key, queue))
    ids = stored_ids(handle, key, which.ids)
    note(key, "cancelling", queue, ids)
    count = handle.cancel(*ids, force=force)
    record(request, key, ("cancelling", queue), f"{count} live: {named(ids)}", "cancelled")
    return Number(count=count)


# --- history and dead letters ------------------------------------------------------------------------


@router.get("/queues/{queue}/history", response_model=History, responses=responses(404))
def history(
    request: Request,
    key: Reader,
    queue: Name,
    id: Annotated[str | None, Query(max_length=64, pattern=ID)] = None,
    state: AttemptState | None = None,
    label: Labels = None,
    since: Moment | None = None,
    before: Moment | None = None,
    after: After = 0,
    limit: Limit = None,
) -> Response:
    """Ended attempts, oldest first; also those of a deleted queue."""
    handle = existing_queue(request, check_queue(key, queue), or_deleted=True)
    find = partial(
        handle.history, None if id is None else stored_id(handle, key, id, ended=True), state=state,
        labels=read_labels(label), since=aware(since), before=aware(before),
    )  # fmt: skip
    rows, following = page_of(request, find, after, page(request, limit))
    return written(History(items=[history_view(row) for row in rows], next=following))


@router.get("/queues/{queue}/dead", response_model=Entries, responses=responses(404))
def dead(
    request: Request, key: Reader, queue: Name, label: Labels = None, after: After = 0, limit: Limit = None
) -> Response:
    """Dead letters."""
    find = partial(existing_queue(request, check_queue(key, queue)).dead, labels=read_labels(label))
    entries, following = page_of(request, find, after, page(request, limit))
    return written(Entries(items=[entry_view(entry) for entry in entries], next=following))


@router.post("/queues/{queue}/replay", responses=responses(404, 409))
def replay(request: Request, key: Admin, queue: Name, which: Ids) -> Number:
    """Put ended entries back to the tail of the queue."""
    handle = store_of(request).queue(check_queue(key, queue))
    ids = stored_ids(handle, key, which.ids, ended=True)
    note(key, "replay", queue, ids)
    count = handle.replay(*ids)
    record(request, key, ("replay", queue), f"{count} ended: {named(ids)}", "ready")
    return Number(count=count)


@router.delete("/queues/{queue}/dead", responses=responses(404))
def purge(
    request: Request,
    key: Admin,
    queue: Name,
    before: Annotated[Moment, Query(description="Only what died before this time.")],
    label: Labels = None,
) -> Number:
    """Remove dead letters for good."""
    handle = existing_queue(request, check_queue(key, queue))
    purged = handle.purge_dead(before=aware(before), labels=read_labels(label))
    note(key, "purge of dead letters", queue, purged)
    record(request, key, ("purge of dead letters", queue), f"{purged} dead letters", "removed")
    return Number(count=purged)


# --- locks -------------------------------------------------------------------------------------------


@router.get("/locks", responses=responses())
def all_locks(
    request: Request,
    key: Reader,
    after: Annotated[str, Query(max_length=300, description="Read on after this `queue/holder`.")] = "",
    limit: Limit = None,
) -> Locks:
    """The locks on all queues."""
    most = page(request, limit)
    behind = tuple(after.partition("/")[::2])
    locks = sorted((lock for lock in store_of(request).locks() if key.sees(lock.queue)), key=_place)
    shown = [lock for lock in locks if _place(lock) > behind][:most]
    following = "/".join(_place(shown[-1])) if len(shown) == most else None
    return Locks(items=[lock_view(lock) for lock in shown], next=following)


@router.put("/queues/{queue}/locks/{holder}", responses=responses(404))
def lock(request: Request, key: Admin, queue: Name, holder: Name, body: LockBody | None = None) -> LockView:
    """Stop claims from a queue until this holder unlocks it."""
    handle = store_of(request).queue(check_queue(key, queue))
    reason = "" if body is None else body.reason
    before = locks_text(handle)
    handle.lock(holder=holder, reason=reason)
    record(request, key, ("lock", queue), before, locks_text(handle), why=reason)
    # Another caller may have unlocked it since; the answer still says what was done.
    done = Lock(queue, holder, reason, store_of(request).now())
    return lock_view(next((lock for lock in handle.locks() if lock.holder == holder), done))


@router.delete("/queues/{queue}/locks/{holder}", status_code=204, responses=responses(404))
def unlock(request: Request, key: Admin, queue: Name, holder: Name) -> None:
    """Let go; other holders' locks stay."""
    handle = store_of(request).queue(check_queue(key, queue))
    before = locks_text(handle)
    if not handle.unlock(holder=holder):
        raise EntryNotFound(f"{holder!r} holds no lock on queue {queue!r}.", hint="GET /v1/locks lists them.")
    record(request, key, ("unlock", queue), before, locks_text(handle))


# --- inside ------------------------------------------------------------------------------------------


def _handle(store: QueueStore, queue: str, raw: bool) -> Queue[Any]:
    return store.queue(queue, bytes) if raw else store.queue(queue)


def _new_entries(
    request: Request, key: ApiKey, queue: str, bodies: list[NewEntryBody], idempotency_key: str | None
) -> tuple[list[NewEntry], list[Link]]:
    entries: list[NewEntry] = []
    links: list[Link] = []
    together = {body.id for body in bodies}
    for number, body in enumerate(bodies):
        once = None if idempotency_key is None else derived_id("http", queue, idempotency_key, str(number))
        new, own = _new(request, key, queue, body, once, together)
        entries.append(new)
        links += own
    return entries, links


def _new(
    request: Request, key: ApiKey, queue: str, entry: NewEntryBody, once: str | None, together: Collection[str | None]
) -> tuple[NewEntry, list[Link]]:
    if entry.id is not None and once is not None:
        raise BadInput("an entry has both an id and an Idempotency-Key.", hint="Give one of them.")
    id_ = once if entry.id is None else own_id(key, entry.id)
    aware(entry.due)
    options = entry.options()
    options["headers"] = with_trace(entry.headers, request.headers.items())
    handle = _handle(store_of(request), queue, entry.bytes is not None)
    if not entry.after and entry.batch is None:
        return handle.new(entry.payload(), id=id_, **options), []
    after = [_waited_for(handle.store, key, source, together) for source in entry.after]
    batch = None if entry.batch is None else _waited_for(handle.store, key, entry.batch, together)
    linking = {**options, "id": id_, "after": after, "on": entry.on, "batch": batch}
    return linked_entry(handle, entry.payload(), cast(LinkOptions, linking))


def _put(store: QueueStore, entries: list[NewEntry], links: list[Link]) -> Sequence[PutResult]:
    if not links:
        return store.driver.put(entries)
    return store.driver.commit(Step(puts=tuple(entries), links=tuple(links))).puts


def _waited_for(store: QueueStore, key: ApiKey, given: str, together: Collection[str | None]) -> str:
    """The stored id of an entry to link with, one that is put ``together`` with the others first."""
    stored = own_id(key, given) if given in together else visible_id(store, key, given)
    if stored is None:
        raise unknown_source(given)
    return stored


def _entry_text(entry: Entry[Any] | None) -> str:
    """The changeable parts of an entry, for the record of changes; its value is not copied."""
    if entry is None:
        return "not there"
    return as_text({"id": entry.id, "labels": entry.labels, "priority": entry.priority, "due": entry.due})


def _place(lock: Lock) -> tuple[str, ...]:
    return lock.queue, lock.holder


def _put_view(result: PutResult) -> PutView:
    return PutView(id=result.id, queue=result.queue, created=result.created)

"""Actions by hand on queues and entries: lock, unlock, replay, purge, cancel, run now, put."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from penstock.errors import BadInput, EntryLeased, EntryNotFound
from penstock.queue.entry import Entry
from penstock.queue.protocol import Find
from penstock.queue.queue import Queue
from penstock.service.access import check_queue
from penstock.service.dashboard.actions import WHY, Done, Field, Given, Preview, action, undo_address
from penstock.service.dashboard.formatting import plural, short_id, whole_number
from penstock.service.dashboard.frame import Visit
from penstock.service.dashboard.reading import errors_of
from penstock.service.schemas import read_labels

HOLDER = "dashboard"
MOST_AT_ONCE = 10_000  # entries that one confirmation may touch
CHUNK = 500
UNTIL = "until"  # the field with the last one shown: when a dead letter died, or the sequence number of an entry


def _queue(visiting: Visit, given: Given) -> Queue[Any]:
    return visiting.reading.queue(check_queue(visiting.key, given.needed("queue", "the queue")))


# --- locks -------------------------------------------------------------------------------------------


def _preview_lock(visiting: Visit, given: Given) -> Preview:
    queue = _queue(visiting, given)
    counts = visiting.reading.counts_of(visiting.key, queue.name)
    return Preview(
        title=f"Lock {queue.name}?",
        note="Nothing is claimed from it until it is unlocked; running work continues, and new entries are accepted.",
        facts=(
            ("Entries that will wait", f"{counts.ready + counts.retrying + counts.delayed:,}"),
            ("Entries in workers, which continue", f"{counts.leased:,}"),
        ),
        fields=(Field("why", "Reason (shown to all users)", given.text("why"), "the mail server moves"),),
        button="Lock the queue",
        keep="Leave it open",
    )


@action("lock", "lock", _preview_lock)
def lock(visiting: Visit, given: Given) -> Done:
    """Stop claims from a queue."""
    queue = _queue(visiting, given)
    before = _locks_text(queue)
    queue.lock(holder=HOLDER, reason=given.text("why")[:500])
    undo = undo_address("unlock", queue=queue.name, holder=HOLDER, back=given.text("back"))
    return Done(f"{queue.name} is locked.", queue.name, before, _locks_text(queue), undo)


def _preview_unlock(visiting: Visit, given: Given) -> Preview:
    queue = _queue(visiting, given)
    holder = given.text("holder", HOLDER)
    counts, locks = visiting.reading.counts_of(visiting.key, queue.name), queue.locks()
    others = len([lock for lock in locks if lock.holder != holder])
    held = next((lock for lock in locks if lock.holder == holder), None)
    return Preview(
        title=f"Unlock {queue.name}?",
        note=f"The lock of {holder} is taken away."
        + (f" {plural(others, 'lock')} of others stay: it stays locked." if others else ""),
        facts=(
            ("Entries ready", f"{counts.ready:,}"),
            ("Held since", "" if held is None else f"{held.since:%Y-%m-%d %H:%M:%S}"),
            ("Reason", "" if held is None else held.reason or "none"),
        ),
        warning=""
        if holder in (HOLDER, "operator")
        else f"{holder} has a reason of its own: a circuit that is open, or a copy under way.",
        fields=(WHY,),
        button="Unlock the queue",
        keep="Leave it locked",
        refusal="" if held is not None else f"{holder} holds no lock on {queue.name}.",
    )


@action("unlock", "unlock", _preview_unlock)
def unlock(visiting: Visit, given: Given) -> Done:
    """Take one holder's lock away."""
    queue = _queue(visiting, given)
    before = _locks_text(queue)
    holder = given.text("holder", HOLDER)
    reason = next((lock.reason for lock in queue.locks() if lock.holder == holder), "")
    queue.unlock(holder=holder)
    undo = undo_address("lock", queue=queue.name, why=reason, back=given.text("back"))
    return Done(f"{queue.name} is unlocked.", queue.name, before, _locks_text(queue), undo)


def _locks_text(queue: Queue[Any]) -> str:
    locks = queue.locks()
    return ", ".join(f"locked by {lock.holder}: {lock.reason or 'no reason'}" for lock in locks) or "not locked"


# --- dead letters ------------------------------------------------------------------------------------


def _chosen_dead(visiting: Visit, given: Given) -> dict[str, list[Entry[Any]]]:
    """The dead letters that are meant, by queue: by id, or all that have a label or whose error mentions a text."""
    reading, key = visiting.reading, visiting.key
    ids, label = given.many("id"), given.text("label")
    labels = read_labels([label]) if label else {}
    name = given.text("queue")
    if name:
        reading.queue(check_queue(key, name))
    where = Find(queue=name or None, family=None if name else key.prefix or None, labels=labels)
    if ids:
        by_queue: dict[str, list[Entry[Any]]] = {}
        for start in range(0, len(ids), CHUNK):
            some = msgspec.structs.replace(where, ids=tuple(ids[start : start + CHUNK]), limit=CHUNK)
            _sort_in(by_queue, reading.queues.driver.dead(some))
        return by_queue
    until = _until(given)
    matching = reading.matching_dead(where, given.text("error"), MOST_AT_ONCE + 1)
    # The user has not seen what has died since the preview was shown.
    return _sort_in({}, (entry for entry in matching if until is None or (entry.ended_us or 0) <= until))


def _until(given: Given) -> int | None:
    return whole_number(given.text(UNTIL))


def _sort_in(by_queue: dict[str, list[Entry[Any]]], entries: Iterable[Entry[Any]]) -> dict[str, list[Entry[Any]]]:
    for entry in entries:
        by_queue.setdefault(entry.queue, []).append(entry)
    return by_queue


def _which(given: Given) -> str:
    parts = [f"{len(given.many('id'))} chosen"] if given.many("id") else []
    parts += [f"label {given.text('label')}"] if given.text("label") else []
    parts += [f"error mentions {given.text('error')!r}"] if given.text("error") else []
    return ", ".join(parts) or "all"


def _preview_dead(visiting: Visit, given: Given, preview: Preview, refusal: str) -> Preview:
    by_queue = _chosen_dead(visiting, given)
    entries = [entry for some in by_queue.values() for entry in some]
    count = len(entries)
    locked = [name for name in by_queue if visiting.reading.queues.queue(name).locks()]
    errors = errors_of(entries)
    more = count > MOST_AT_ONCE
    number = f"{MOST_AT_ONCE:,}" if more else f"{count:,}"
    noun = "dead letter" if count == 1 else "dead letters"
    warning = preview.warning
    if locked and not preview.is_dangerous:
        warning = f"{', '.join(locked[:3])} {'is' if len(locked) == 1 else 'are'} locked: they wait until that ends."
    if more:
        warning = f"There are more: this takes the oldest {MOST_AT_ONCE:,}; do it again for the rest."
    queues = ", ".join(sorted(by_queue)[:5]) + (" …" if len(by_queue) > 5 else "")
    return msgspec.structs.replace(
        preview,
        title=preview.title.format(number=number, noun=noun),
        button=preview.button.format(number=number, noun=noun),
        facts=(("Queues", queues), ("Which", _which(given))),
        head=("Error", "Entries"),
        rows=tuple((error, f"{times:,}") for error, times in errors[:8]),
        warning=warning,
        refusal="" if count else refusal,
        shown=((UNTIL, str(max((entry.ended_us or 0 for entry in entries), default=0))),),
    )


def _preview_replay(visiting: Visit, given: Given) -> Preview:
    preview = Preview(
        title="Replay {number} {noun}?",
        note="They become ready under the same ids, as their next generation; attempts start again.",
        button="Replay {number} {noun}",
        keep="Keep as they are",
        fields=(WHY,),
    )
    return _preview_dead(
        visiting, given, preview, "No matching dead letter is left: another user may have replayed them."
    )


@action("replay", "replay", _preview_replay)
def replay(visiting: Visit, given: Given) -> Done:
    """Put dead letters back."""
    by_queue = _chosen_dead(visiting, given)
    count = 0
    for name, entries in by_queue.items():
        queue = visiting.reading.queues.queue(name)
        for start in range(0, min(len(entries), MOST_AT_ONCE - count), CHUNK):
            count += queue.replay(*[entry.id for entry in entries[start : start + CHUNK]])
    target = given.text("queue") or next(iter(by_queue), "")
    text = plural(count, "entry is", "entries are")
    return Done(f"{text} ready again.", target, f"{plural(count, 'dead letter')} ({_which(given)})", f"{text} ready")


def _preview_purge(visiting: Visit, given: Given) -> Preview:
    name = given.needed("queue", "the queue")
    preview = Preview(
        title="Remove {number} {noun} for good?",
        note="They and their payloads are gone then; only the history tells of them.",
        button="Remove {number} {noun}",
        keep="Keep them",
        fields=(WHY,),
        typed=name,
        is_dangerous=True,
        warning="This cannot be undone.",
    )
    return _preview_dead(visiting, given, preview, "No dead letter is left that matches.")


@action("purge", "purge of dead letters", _preview_purge)
def purge(visiting: Visit, given: Given) -> Done:
    """Remove dead letters."""
    entries = [entry for some in _chosen_dead(visiting, given).values() for entry in some][:MOST_AT_ONCE]
    name = given.needed("queue", "the queue")
    count = 0
    for start in range(0, len(entries), CHUNK):
        ids = tuple(entry.id for entry in entries[start : start + CHUNK])
        count += visiting.reading.queues.driver.purge_dead(Find(queue=name, ids=ids, limit=CHUNK))
    text = plural(count, "dead letter")
    return Done(f"{text} removed from {name}.", name, f"{text} ({_which(given)})", "removed")


# --- live entries ------------------------------------------------------------------------------------


def _waiting(visiting: Visit, given: Given) -> list[Entry[Any]]:
    queue, label = _queue(visiting, given), given.text("label")
    ids = given.many("id")
    if ids:
        where = Find(queue=queue.name, ids=tuple(ids[:MOST_AT_ONCE]), limit=MOST_AT_ONCE)
        return [entry for entry in visiting.reading.queues.driver.find(where) if entry.state in ("waiting", "held")]
    if not label:
        raise BadInput("which entries is not said.", hint="Select some, or filter by a label.")
    until = _until(given)
    matching = queue.find(labels=read_labels([label]), state="waiting", limit=MOST_AT_ONCE + 1)
    # The user has not seen what was put since the preview was shown.
    return [entry for entry in matching if until is None or entry.seq <= until]


def _preview_cancel(visiting: Visit, given: Given) -> Preview:
    entries = _waiting(visiting, given)
    is_more, entries = len(entries) > MOST_AT_ONCE, entries[:MOST_AT_ONCE]
    noun = "entry" if len(entries) == 1 else "entries"
    more = f" There are more: this takes the first {MOST_AT_ONCE:,}; do it again for the rest." if is_more else ""
    return Preview(
        title=f"Cancel {len(entries):,} waiting {noun}?",
        note="They end as cancelled without being handled, and stay in the history; those that a worker has continue.",
        facts=(("Queue", given.text("queue")), ("Which", _which(given))),
        warning=f"This cannot be undone, but a cancelled entry can be replayed while the history has it.{more}",
        fields=(WHY,),
        button=f"Cancel {len(entries):,} {noun}",
        keep="Keep them waiting",
        is_dangerous=True,
        refusal="" if entries else "No waiting entry is left that matches: workers may have taken them.",
        shown=((UNTIL, str(max((entry.seq for entry in entries), default=0))),),
    )


@action("cancel", "cancelling", _preview_cancel)
def cancel(visiting: Visit, given: Given) -> Done:
    """End waiting entries as cancelled."""
    queue, count = _queue(visiting, given), 0
    ids = [entry.id for entry in _waiting(visiting, given)[:MOST_AT_ONCE]]
    for start in range(0, len(ids), CHUNK):
        count += cancel_some(queue, ids[start : start + CHUNK])
    text = plural(count, "entry", "entries")
    return Done(f"{text} cancelled.", queue.name, f"{text} waiting ({_which(given)})", "cancelled")


def cancel_some(queue: Queue[Any], ids: list[str]) -> int:
    """Cancel entries in one step, or one by one if a worker was faster with some of them."""
    try:
        return queue.cancel(*ids)
    except (EntryLeased, EntryNotFound):
        return 0 if len(ids) == 1 else sum(cancel_some(queue, [id_]) for id_ in ids)


def _preview_now(visiting: Visit, given: Given) -> Preview:
    queue, id_ = _queue(visiting, given), given.needed("id", "the entry")
    entry = queue.get(id_)
    return Preview(
        title=f"Make entry {short_id(id_)} due now?",
        note="It is claimed as soon as a worker is free, instead of at its due time.",
        facts=(("Due", f"{entry.due:%Y-%m-%d %H:%M:%S} UTC"), ("Attempts so far", str(entry.attempt))),
        fields=(WHY,),
        button="Make it due now",
        keep="Leave its due time",
        refusal={"waiting": "", "held": "It waits for other entries."}.get(entry.state, "A worker has it already."),
    )


@action("now", "rescheduling", _preview_now)
def now(visiting: Visit, given: Given) -> Done:
    """Make an entry due."""
    queue, id_ = _queue(visiting, given), given.needed("id", "the entry")
    before = queue.get(id_).due
    queue.reschedule(id_, delay="0s")
    return Done(f"Entry {short_id(id_)} is due.", queue.name, f"{id_} due {before:%Y-%m-%d %H:%M:%S}", f"{id_} due now")


def _preview_put(visiting: Visit, given: Given) -> Preview:
    name = check_queue(visiting.key, given.needed("queue", "the queue"))
    return Preview(
        title=f"Put an entry into {name}",
        note="It is stored when this answers, and handled as any other.",
        facts=(),
        button="Put the entry",
        keep="Do not",
        fields=(
            Field(
                "value",
                "Value, as JSON",
                given.text("value"),
                '{"to": "ann@example.org"}',
                is_required=True,
                kind="area",
            ),
            Field("delay", "Delay", given.text("delay"), "none, or 45m"),
            Field("new_label", "Label", given.text("new_label"), "none, or customer=ann"),
            Field("unique", "Unique id", given.text("unique"), "none"),
        ),
    )


@action("put", "put", _preview_put, scope="produce")
def put(visiting: Visit, given: Given) -> Done:
    """Put one entry."""
    name = check_queue(visiting.key, given.needed("queue", "the queue"))
    try:
        value = msgspec.json.decode(given.needed("value", "the value"))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as cause:
        raise BadInput(f"the value is not JSON: {cause}.", hint='Texts need quotes: "hello".') from cause
    label = given.text("new_label")
    result = visiting.reading.queues.queue(name).put(
        value,
        delay=given.text("delay") or None,
        labels=read_labels([label]) if label else None,
        unique=given.text("unique") or None,
    )
    what = "is stored" if result.created else "was there already"
    return Done(f"Entry {short_id(result.id)} {what}.", name, "", result.id)

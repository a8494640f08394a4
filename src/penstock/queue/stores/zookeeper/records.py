"""What lies in the znodes: entries, heads of queues, pages of the history and records of the log, as msgpack."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from operator import attrgetter
from typing import Any

import msgspec

from penstock.clock import Micros
from penstock.codec import prepared
from penstock.policy import Rate
from penstock.queue.entry import HistoryRow, Lease, Lock
from penstock.queue.store import StepDone
from penstock.queue.stores.memory.lanes import Item, LiveQueue, Receipt
from penstock.queue.stores.memory.state import Hold

_NOT_KEPT = ("reader", "traceback")  # the traceback is kept behind the error
_ITEM = tuple(name for name in Item.__struct_fields__ if name not in (*_NOT_KEPT, "lease", "receipt"))
_ROW = tuple(name for name in HistoryRow.__struct_fields__ if name not in _NOT_KEPT)
_item_values = attrgetter(*_ITEM)
_row_values = attrgetter(*_ROW)
_NOTHING = StepDone()

encode = msgspec.msgpack.encode
decode = msgspec.msgpack.decode


def digest(payload: bytes) -> bytes:
    """What stands for a payload in the replica: equal payloads, and in practice no others, have it in common."""
    return blake2b(payload, digest_size=20).digest()


def number_of(seq: int) -> int:
    """The number in the names of an entry's znodes."""
    return seq >> 16


# --- entries -----------------------------------------------------------------------------------------


def write_item(item: Item) -> bytes:
    """An entry without its payload."""
    return encode(_packed(item, lambda done: None if done == _NOTHING else done))


def read_item(data: bytes) -> Item:
    """An entry without its payload."""
    return _unpacked(decode(data), lambda done: _NOTHING if done is None else msgspec.convert(done, StepDone))


def write_whole(item: Item, payload: bytes) -> bytes:
    """An entry with its payload."""
    return encode((write_item(item), payload))


def read_whole(data: bytes) -> tuple[Item, bytes]:
    """An entry with its payload."""
    text, payload = decode(data)
    return read_item(text), payload


def _packed(item: Item, note: Callable[[StepDone], Any]) -> list[Any]:
    lease, receipt = item.lease, item.receipt
    return [
        *_item_values(item),
        None if lease is None else (lease.token, lease.fence, lease.owner, lease.claimed_us, lease.until_us),
        # Of the step's receipt an entry keeps its own part: with all of them a large unit would grow squared.
        None if receipt is None else (*receipt.settled[item.id], note(receipt.done)),
    ]


def _unpacked(values: list[Any], done: Callable[[Any], StepDone]) -> Item:
    *plain, lease, receipt = values
    item = Item(**dict(zip(_ITEM, plain, strict=True)))
    item.settled = tuple((token, outcome) for token, outcome in item.settled)
    if lease is not None:
        item.lease = Lease(item.id, item.queue, *lease)
    if receipt is not None:
        token, outcome, gave = receipt
        item.receipt = Receipt({item.id: (token, outcome)}, done(gave))
    return item


def write_hold(hold: Hold) -> bytes:
    """Who holds a unique id; the key is in the node, for its name is escaped."""
    return encode((hold.id, hold.until_us))


def read_hold(data: bytes) -> Hold:
    """Who holds a unique id."""
    return Hold(*decode(data))


# --- pages of the history ----------------------------------------------------------------------------


def write_page(rows: list[HistoryRow], ended: list[Item]) -> bytes:
    """Rows and ended entries of one commit; what their steps gave is written once."""
    dones: list[StepDone] = []
    places: dict[int, int] = {}

    def note(done: StepDone) -> int | None:
        if done == _NOTHING:
            return None
        if id(done) not in places:
            places[id(done)] = len(dones)
            dones.append(done)
        return places[id(done)]

    packed = [_packed(item, note) for item in ended]
    return encode((dones, [_row_values(row) for row in rows], packed))


def read_page(data: bytes) -> tuple[list[HistoryRow], list[Item]]:
    """Rows and ended entries of one commit."""
    packed_dones, rows, ended = decode(data)
    dones = [msgspec.convert(done, StepDone) for done in packed_dones]
    return (
        [HistoryRow(**dict(zip(_ROW, row, strict=True))) for row in rows],
        [_unpacked(values, lambda place: _NOTHING if place is None else dones[place]) for values in ended],
    )


# --- queues ------------------------------------------------------------------------------------------


class Head(msgspec.Struct, array_like=True):
    """What is kept of a queue itself. Whoever changes anything in the queue sets its head, with a version check."""

    defined: bool = False
    fifo: bool = False
    rate: tuple[int, int] | None = None
    locks: list[tuple[str, str, Micros]] = []
    tat: str = "0"  # as text: it may need more than 64 bits
    served: tuple[Micros, int] = (0, 0)
    tick: int = 0  # the highest number given out in this queue
    buckets: list[int] = []  # those there are, in order


def head_of(queue: LiveQueue | None, tick: int, buckets: list[int]) -> Head:
    """The head of a queue as it is now; None: nothing is left of it."""
    if queue is None:
        return Head(tick=tick, buckets=buckets)
    rate = None if queue.rate is None else (queue.rate.count, queue.rate.period)
    locks = sorted((lock.holder, lock.reason, lock.since_us) for lock in queue.locks.values())
    return Head(queue.defined, queue.fifo, rate, locks, str(queue.tat), queue.served, tick, buckets)


def restore(queue: LiveQueue, head: Head) -> None:
    """Make a queue what its head says."""
    queue.defined = head.defined
    queue.fifo = head.fifo
    queue.rate = None if head.rate is None else Rate(*head.rate)
    queue.locks = {holder: Lock(queue.name, holder, reason, since) for holder, reason, since in head.locks}
    queue.tat = int(head.tat)
    queue.served = head.served


# --- the log -----------------------------------------------------------------------------------------


class Change(msgspec.Struct, array_like=True, gc=False):
    """One value that a commit changed. ``data`` is None where it is gone; ``extra`` is what its kind needs."""

    kind: str  # live, dead, hold, page, schedule, document, subscriptions
    queue: str
    key: str
    data: bytes | None
    extra: int = 0


@prepared
class Record(msgspec.Struct, array_like=True):
    """One commit, as the other replicas are told of it."""

    handle: str
    op: str
    heads: dict[str, tuple[int, Head]] = {}  # with their new versions
    changes: list[Change] = []
    reload: list[str] = []  # queues of which too much has changed to be told here


def read_record(data: bytes) -> Record:
    """A record of the log."""
    return decode(data, type=Record)


def read_head(data: bytes) -> Head:
    """The head of a queue."""
    return decode(data, type=Head) if data else Head()

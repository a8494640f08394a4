"""What the reaper cleans up on top of the contract: pages nobody is shown, empty buckets, locks of lost sessions."""

from __future__ import annotations

from penstock.clock import Micros
from penstock.queue.store import REMEMBERED
from penstock.queue.stores.zookeeper.layout import BUCKET, Layout
from penstock.queue.stores.zookeeper.mirror import Mirror
from penstock.queue.stores.zookeeper.records import number_of
from penstock.queue.stores.zookeeper.session import Session

_ROUND = 100  # pages and buckets per round


def find_vanished(mirror: Mirror, layout: Layout, session: Session, queues: set[str] | None = None) -> None:
    """Look which leased entries have no lock any more: their session is gone, and so is their owner's claim to them."""
    leased: dict[str, list[str]] = {}
    for id_ in mirror.lineup.leases:
        item = mirror.live[id_]
        if queues is None or item.queue in queues:
            leased.setdefault(item.queue, []).append(id_)
    found = session.list_many([layout.folder(queue, "locks") for queue in leased])
    for ids, names in zip(leased.values(), found, strict=True):
        there = set(names or ())
        for id_ in ids:
            item = mirror.live[id_]
            token = item.lease.token if item.lease is not None else ""
            if layout.guard(item.queue, number_of(item.seq), token).rpartition("/")[2] not in there:
                mirror.vanished.add(id_)


def sweep(mirror: Mirror, now: Micros) -> None:
    """Mark what this round removes: pages that are neither shown nor needed to know an id again, and empty buckets."""
    for queue, pages in mirror.pages.items():
        for page, known in pages.items():
            if known.shown or len(mirror.swept) >= _ROUND:
                break
            if known.newest_us < now - REMEMBERED:
                mirror.swept.append((queue, page))
    used: dict[str, set[int]] = {}
    if any(len(head.buckets) > 1 for _, head in mirror.heads.values()):
        for item in (*mirror.live.values(), *mirror.dead.values()):
            used.setdefault(item.queue, set()).add(number_of(item.seq) // BUCKET)
    for queue, (_, head) in mirror.heads.items():
        empty = [bucket for bucket in head.buckets[:-1] if bucket not in used.get(queue, ())]
        if empty:
            mirror.emptied[queue] = empty[:_ROUND]
            mirror.touched.add(queue)

"""What the reaper cleans up on top of the contract: pages nobody is shown, and empty buckets."""

from __future__ import annotations

from penstock.clock import Micros
from penstock.queue.driver import REMEMBERED
from penstock.queue.drivers.zookeeper.layout import BUCKET
from penstock.queue.drivers.zookeeper.mirror import Mirror
from penstock.queue.drivers.zookeeper.serialization import number_of

ROUND = 200  # pages and buckets that one commit removes


def sweep(mirror: Mirror, now: Micros) -> bool:
    """Remove pages that are neither shown nor needed to know an id again, and empty buckets; whether there is more."""
    old = _old_pages(mirror, now)
    with mirror.state.atomic():
        for key in old:
            mirror.drop_page(key)
    used: dict[str, set[int]] = {}
    if any(len(head.buckets) > 1 for _, head in mirror.heads.values()):
        for body in mirror.bodies.values():
            used.setdefault(body.queue, set()).add(number_of(body.number) // BUCKET)
        for letter in mirror.state.dead.values():
            used.setdefault(letter.live.queue, set()).add(number_of(letter.live.seq) // BUCKET)
    for queue, (_, head) in mirror.heads.items():
        empty = [bucket for bucket in head.buckets[:-1] if bucket not in used.get(queue, ())]
        if empty:
            mirror.emptied[queue] = empty[:ROUND]
            mirror.touched.add(queue)
    return len(old) == ROUND


def _old_pages(mirror: Mirror, now: Micros) -> list[tuple[str, str]]:
    """The pages to be removed at once. One without rows, as of a release, is shown to nobody."""
    old: list[tuple[str, str]] = []
    for queue, names in mirror.pages_of.items():
        for name in names:
            page = mirror.pages[queue, name]
            if page.at_us >= now - REMEMBERED or len(old) >= ROUND:
                break
            if not page.shown or not page.rows:
                old.append((queue, name))
    return old

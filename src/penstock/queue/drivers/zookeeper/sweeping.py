"""What the reaper cleans up on top of the contract: pages nobody is shown, empty buckets, and silent nodes."""

from __future__ import annotations

from penstock.clock import Micros
from penstock.queue.drivers.zookeeper.connection import Connection, Op
from penstock.queue.drivers.zookeeper.layout import BUCKET, Layout
from penstock.queue.drivers.zookeeper.mirror import Mirror
from penstock.queue.drivers.zookeeper.serialization import number_of
from penstock.queue.forgetting import REMEMBERED
from penstock.queue.rules import reap

ROUND = 200  # pages and buckets that one commit removes


def sweep(mirror: Mirror, now: Micros) -> bool:
    """Remove pages that nothing shows or needs any more, and empty buckets. Returns whether there are more."""
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


def heard_nodes(connection: Connection, layout: Layout) -> dict[str, tuple[Micros, int]]:
    """When each node was last heard of, and the version of its znode."""
    [names] = connection.list_many([layout.nodes])
    znodes = connection.read_many([layout.node(name) for name in names or ()])
    pairs = zip(names or (), znodes, strict=True)
    return {name: (int(znode[0]), znode[1].version) for name, znode in pairs if znode and znode[0]}


def forget_nodes(
    connection: Connection, layout: Layout, heard: dict[str, tuple[Micros, int]], sticky_after_us: Micros, now: Micros
) -> None:
    """Remove nodes that were silent for long; one that is heard of meanwhile stays.

    Whether it happened is of no interest: the next round looks again.
    """
    times = {name: at for name, (at, _) in heard.items()}
    for name in reap.silent_nodes(times, sticky_after_us, now):
        connection.multi([Op("delete", layout.node(name), version=heard[name][1])])

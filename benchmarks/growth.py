"""Claims over backlogs of several sizes: stores with each size stand side by side and are claimed from in turn.

Whatever else the machine does, it does to all of them; the worst hundredth of one size can be compared with that of
another.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from benchmarks.measure import Bar, quantile
from benchmarks.peers import PAYLOAD
from penstock import QueueStore
from penstock.ids import new_nonce
from penstock.queue.protocol import ClaimRequest, Source

BLOCKS = 3
LAPS = 300  # of a block; the smallest backlog has to last for all blocks
SMALL = 1_000

Laps = list[list[float]]  # microseconds, by block


def fill(store: QueueStore, size: int) -> None:
    """A backlog that is due, and something that is not."""
    queue = store.queue("mails", dict)
    queue.put_many([PAYLOAD] * size, chunk=5_000)
    queue.put_many([PAYLOAD] * 100, delay="1h")


def claim_one(store: QueueStore) -> float:
    """Microseconds that a claim of one entry takes."""
    request = ClaimRequest(f"claim-{new_nonce()}", (Source("mails", 1),), 1, "bench", "bench", 600_000_000)
    begin = time.perf_counter()
    claimed = store.driver.claim(request)
    taken = (time.perf_counter() - begin) * 1e6
    assert len(claimed.entries) == 1
    return taken


def laps_of(stores: Mapping[int, QueueStore]) -> dict[int, Laps]:
    """Claims from each store in turn, after some that warm up."""
    laps: dict[int, Laps] = {size: [] for size in stores}
    for store in stores.values():
        for _ in range(20):
            claim_one(store)
    for _ in range(BLOCKS):
        for size in stores:
            laps[size].append([])
        for _ in range(LAPS):
            for size, store in stores.items():
                laps[size][-1].append(claim_one(store))
    return laps


def p99(laps: Laps) -> float:
    """The median of the blocks."""
    return statistics.median(quantile(block, 0.99) for block in laps)


def measure(
    name: str, open_filled: Callable[[int], QueueStore], sizes: tuple[int, ...], before: Callable[[], None]
) -> tuple[list[Bar], list[str], dict[int, QueueStore]]:
    """Bars and notes, and the stores, which are still open; ``before`` is called when all are filled."""
    stores = {size: open_filled(size) for size in sizes}
    before()
    laps = laps_of(stores)
    worst = {size: p99(laps[size]) for size in sizes}
    middle = {size: statistics.median(lap for block in laps[size] for lap in block) for size in sizes}
    large = max(sizes)
    ratio = worst[large] / worst[SMALL]
    return (
        [Bar(f"{name}claim, backlog {large:,} vs {SMALL:,}, p99", "<= 2x", f"{ratio:.2f}x", ratio <= 2)],
        [f"{name}claim over {size:,}: p50 {middle[size]:.0f} µs, p99 {worst[size]:.0f} µs" for size in sizes],
        stores,
    )

"""The long run: FAULTS_SOAK_MINUTES (20) over all durable stores, with a kill every few seconds and servers among them.

What leaks shows here: one worker writes down its memory, its file handles and its threads, and its last third must not
be above its first.
"""

import os
import random
import time
from collections.abc import Callable
from statistics import median

import pytest
from tests.faults import load
from tests.faults.arena import Arena, wait_steps
from tests.faults.conftest import KINDS

STORES = ("sqlite", *KINDS)
SECONDS = float(os.environ.get("FAULTS_SOAK_MINUTES", "20")) * 60 / len(STORES)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(int(SECONDS) + 300)]


@pytest.mark.parametrize("kind", STORES)
def test_soak(kind: str, arena: Callable[[str], Arena]) -> None:
    play = arena(kind)
    play.ensemble()
    play.play(load.measure)
    seed = random.Random(29)
    end = time.monotonic() + SECONDS
    rounds = 0
    while time.monotonic() < end:
        wait_steps(play.folder, 100)
        time.sleep(min(5.0, SECONDS / 20))
        rounds += 1
        if play.server is not None and rounds % 6 == 0:
            play.server.crash()
            play.server.start()
        else:
            victim = seed.choice([*play.members(load.work), *play.members(load.cook), *play.members(load.produce)])
            victim.kill()
            play.replace(victim)
    dump = play.finish()

    # A handle on ZooKeeper has all of its space in memory, and every end for a quarter of an hour.
    known = 4000 * len(dump.history) if kind == "zookeeper" else 0
    usage = [[int(word) for word in line.split()] for line in (play.folder / "usage").read_text().splitlines()]
    third = len(usage) // 3
    if third >= 20:  # below that a start is still a large part of it
        first, last = usage[third // 2 : third + third // 2], usage[-third:]
        for what, column, slack in (("memory", 0, 8_000_000 + known), ("file handles", 1, 10), ("threads", 2, 10)):
            before, after = (median(row[column] for row in rows) for rows in (first, last))
            print(f"{kind}: {what} {before:,.0f} -> {after:,.0f}")
            assert after <= before * 1.05 + slack, f"{what} grew from {before:,.0f} to {after:,.0f}"

"""The long run: FAULTS_SOAK_MINUTES (20) over all durable stores, with a kill every few seconds and servers among them.

What leaks shows here. One worker writes down its memory, its file handles and its threads; the server is asked what the
data takes: rows, tables, logs, Lua. History is pruned meanwhile, so the last third must not be above the first. And who
starves shows: three families always have work, and each gets its share.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable

import pytest
from tests.faults import soak_load
from tests.faults.arena import Arena, StepCounter, wait_steps
from tests.faults.footprint import footprint
from tests.faults.soak_load import FAMILIES, KEEP_SECONDS, SECONDS, STORES
from tests.faults.soak_verdicts import Sample, claims_while_all_ready, growths, starved

CRASH_SECONDS = max(30.0, SECONDS / 8)  # between two crashes of the server

pytestmark = [pytest.mark.faults, pytest.mark.timeout(int(SECONDS) + 1200)]


@pytest.mark.parametrize("kind", STORES)
def test_soak(kind: str, arena: Callable[..., Arena]) -> None:
    # Everything is pruned an order of magnitude sooner than in production: so rows have to be vacuumed sooner.
    play = arena(kind, **({"autovacuum_naptime": "5s"} if kind == "postgres" else {}))
    play.play(
        soak_load.produce_steadily, soak_load.work_and_prune, soak_load.work_and_prune, soak_load.cook_steadily,
        soak_load.measure, soak_load.keep_ready, soak_load.serve_families,
    )  # fmt: skip
    samples = _disturb(play)
    play.finish(forgotten=soak_load.QUEUES)

    usage = [Sample(at, 0, {"memory": memory, "file handles": handles, "threads": threads})
             for at, memory, handles, threads in _numbers(play, "usage")]  # fmt: skip
    measured = growths(usage, KEEP_SECONDS) + growths(samples, KEEP_SECONDS)
    print(*(f"{kind}: {growth}" for growth in measured), sep="\n")
    queues = claims_while_all_ready(play.events, [(at, fewest) for at, fewest in _numbers(play, "ready")])
    shares = Counter(queue.partition(".")[0] for queue in queues if queue.partition(".")[1])
    print(f"{kind}: while all had work {shares.total()} were claimed: {dict(shares)}")
    print(f"{kind}: by queue {dict(sorted(Counter(queue for queue in queues if '.' in queue).items()))}")

    assert [str(growth) for growth in measured if growth.after > growth.allowed] == []
    assert SECONDS < 600 or (measured and len(queues) > 5000), "the run says too little"
    assert starved([queue for queue in queues if "." in queue], FAMILIES) == []


def _disturb(play: Arena) -> list[Sample]:
    """Kill processes, and now and then the server; what the data took before each of these."""
    seed = random.Random(29)
    counter = StepCounter(play.folder)
    samples: list[Sample] = []
    start = time.monotonic()
    next_crash = start + CRASH_SECONDS / 2
    while time.monotonic() < start + SECONDS:
        wait_steps(play.folder, 100, counter=counter)
        time.sleep(min(5.0, SECONDS / 80))
        samples.append(Sample(time.monotonic_ns(), counter.count(), footprint(play)))
        with (play.folder / "footprints").open("a") as out:  # for who looks for why it failed
            out.write(json.dumps(samples[-1]) + "\n")
        if play.server is not None and time.monotonic() > next_crash:
            next_crash += CRASH_SECONDS
            play.server.crash()
            play.server.start()
        else:
            roles = (
                soak_load.work_and_prune,
                soak_load.cook_steadily,
                soak_load.produce_steadily,
                soak_load.serve_families,
            )
            victim = seed.choice([child for role in roles for child in play.members(role)])
            victim.kill()
            play.replace(victim)
    return samples


def _numbers(play: Arena, name: str) -> list[list[int]]:
    return [[int(word) for word in line.split()] for line in (play.folder / name).read_text().splitlines()]

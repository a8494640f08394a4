"""Event time on SparkRunner: the random topologies of the stream contract, with probes, silence and restarts."""

import random
import time
from collections.abc import Callable

from tests.contract.stream import event_time

from penstock import LogStore
from penstock.stream.runner import Runner

Make = Callable[..., Runner]
PATIENCE = "200s"


def run_with_backlogs(logs: LogStore, make: Make, seed: int, *, probes: bool) -> None:
    """Batches are smaller than what waits; no probe may see a late record."""
    case = event_time.make_case(seed, slowness=0.5)
    event_time.create_edges(case, logs)
    event_time.feed(case, logs, 0.0, 0.4)
    running = make(event_time.topology(case, probes=probes), checkpoint_records=40).start()
    event_time.feed(case, logs, 0.4, 1.0, random.Random(seed))
    assert running.drain(PATIENCE, final=True), running.status()
    event_time.check(case, logs)


def run_with_restarts(logs: LogStore, make: Make, seed: int) -> None:
    """The runner is stopped or broken off in the middle of its work, and another one goes on."""
    case = event_time.make_case(seed, slowness=0.2)
    rng = random.Random(seed)
    event_time.create_edges(case, logs)
    for begin, end in ((0.0, 0.3), (0.3, 0.7)):
        running = make(event_time.topology(case), checkpoint_records=40).start()
        event_time.feed(case, logs, begin, end, rng)
        time.sleep(rng.choice([0, 0.1, 0.5]))  # wherever it is then
        running.shutdown() if rng.random() < 0.5 else running.stop()
    event_time.feed(case, logs, 0.7, 1.0)
    running = make(event_time.topology(case), checkpoint_records=40).start()
    assert running.drain(PATIENCE, final=True), running.status()
    event_time.check(case, logs)


def run_with_silence(logs: LogStore, make: Make, seed: int) -> None:
    """Inputs become idle between feeds; no record that waits in a log is made late by that."""
    case = event_time.make_case(seed, slowness=0.2, idle="50ms")
    rng = random.Random(seed)
    event_time.create_edges(case, logs)
    running = make(event_time.topology(case)).start()
    for begin, end in ((0.0, 0.3), (0.3, 0.6), (0.6, 1.0)):
        time.sleep(rng.choice([0, 0.1, 0.3]))  # all partitions may have become silent
        event_time.feed_times(case, logs, begin, end)
        if rng.random() < 0.3:
            running.shutdown() if rng.random() < 0.5 else running.stop()
            running = make(event_time.topology(case)).start()
    assert running.drain(PATIENCE, final=True), running.status()
    event_time.check(case, logs)

"""Event time on local runners: whoever runs when and at whatever speed, results are those of the definitions."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.contract.stream import event_time

import penstock
from penstock import LogStore
from penstock.ids import new_id
from penstock.stream import LocalRunner
from penstock.stream.local.process_runner import ProcessRunner

EXAMPLES = int(os.environ.get("PENSTOCK_EXAMPLES", "0"))
KINDS = {
    "memory": lambda folder: f"memory://{new_id()}",
    "file": lambda folder: f"file://{folder / 'logs'}?durability=fast",
}


@pytest.fixture(params=list(KINDS))
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], LogStore]:
    url = KINDS[request.param](tmp_path)
    return lambda: penstock.open_logs(url)


def run_case(case: event_time.Case, logs: LogStore, rng: random.Random, *, check: bool = True) -> None:
    """Feed a case in random pieces, before and while it runs, with restarts; then let it end."""
    event_time.create_edges(case, logs)
    before = {name: [bounds.end for bounds in logs.bounds(name)] for name in case.edges}
    cuts = sorted(rng.random() for _ in range(rng.randint(0, 2)))
    for begin, end in zip([0.0, *cuts], [*cuts, 1.0], strict=True):
        if rng.random() < 0.5:
            event_time.feed(case, logs, begin, end)
        runner = LocalRunner(event_time.topology(case), logs, **case.options).start()
        if rng.random() < 0.5:
            time.sleep(rng.choice([0, 0.2]))  # the runner waits for work; then it comes
        for name, partitions in case.edges.items():
            fed = [bounds.end - start for bounds, start in zip(logs.bounds(name), before[name], strict=True)]
            if fed != [int(end * len(rows)) for rows in partitions]:
                event_time.feed(case, logs, begin, end, rng)
                break
        if rng.random() < 0.3:  # partitions move to another runner, and back
            other = LocalRunner(event_time.topology(case), logs, **case.options).start()
            time.sleep(rng.choice([0, 0.2]))
            other.shutdown() if rng.random() < 0.5 else other.stop()
        time.sleep(rng.choice([0, 0.1, 0.3]))
        if end < 1.0:
            runner.shutdown() if rng.random() < 0.5 else runner.stop()
            continue
        assert runner.drain("60s", final=True), runner.status()
    if check:
        event_time.check(case, logs)


@pytest.mark.parametrize("seed", range(max(20, EXAMPLES)))
def test_results_are_those_of_the_definitions(open_store: Callable[[], LogStore], seed: int) -> None:
    with open_store() as logs:
        run_case(event_time.make_case(seed), logs, random.Random(seed))


@pytest.mark.parametrize("seed", range(max(10, EXAMPLES)))
def test_runs_after_the_end_of_the_input(open_store: Callable[[], LogStore], seed: int) -> None:
    """More comes after the input had ended: what is newer than all of it is counted as ever."""
    case = event_time.make_case(seed)
    later = event_time.make_case(seed, begin=1_010_000_000)
    with open_store() as logs:
        run_case(case, logs, random.Random(seed), check=False)
        run_case(later, logs, random.Random(seed + 1), check=False)
        event_time.check(event_time.both(case, later), logs)


@pytest.mark.parametrize("seed", range(max(10, EXAMPLES)))
def test_silence_makes_no_record_late_that_waits_in_a_log(open_store: Callable[[], LogStore], seed: int) -> None:
    case = event_time.make_case(seed, idle="50ms")
    rng = random.Random(seed)
    with open_store() as logs:
        event_time.create_edges(case, logs)
        runner = LocalRunner(event_time.topology(case), logs, **case.options).start()
        for begin, end in ((0.0, 0.3), (0.3, 0.6), (0.6, 1.0)):
            time.sleep(rng.choice([0, 0.1, 0.3]))  # all partitions may have become silent
            event_time.feed_times(case, logs, begin, end)
            if rng.random() < 0.3:
                runner.shutdown() if rng.random() < 0.5 else runner.stop()
                runner = LocalRunner(event_time.topology(case), logs, **case.options).start()
        assert runner.drain("60s", final=True), runner.status()
        event_time.check(case, logs)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("killed", [False, True], ids=["undisturbed", "killed"])
def test_several_processes_come_to_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, killed: bool
) -> None:
    monkeypatch.setenv("PENSTOCK_CASE", str(seed))
    case = event_time.make_case(seed)
    url = KINDS["file"](tmp_path)
    rng = random.Random(seed)
    with penstock.open_logs(url) as logs:
        event_time.create_edges(case, logs)
        event_time.feed(case, logs, 0.0, 0.5)
        runner = ProcessRunner(
            "tests.contract.stream.event_time:from_environment", logs, url, processes=2, **case.options
        ).start()
        if killed:
            time.sleep(rng.choice([0, 0.2, 0.5]))
            os.kill(rng.choice(runner._processes).pid, signal.SIGKILL)
        event_time.feed(case, logs, 0.5, 1.0, rng)
        assert runner.drain("60s", final=True), runner.status()
        event_time.check(case, logs)


MORE_SEEDS = [pytest.param(seed, marks=pytest.mark.faults) for seed in range(3, 20)]


@pytest.mark.parametrize("seed", [*range(max(3, EXAMPLES)), *MORE_SEEDS[max(0, EXAMPLES - 3) :]])
def test_silence_in_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Partitions become silent while processes are killed, stopped and started late."""
    monkeypatch.setenv("PENSTOCK_CASE", str(seed))
    monkeypatch.setenv("PENSTOCK_CASE_IDLE", "50ms")
    case = event_time.make_case(seed, idle="50ms")
    url = KINDS["file"](tmp_path)
    rng = random.Random(seed)
    with penstock.open_logs(url) as logs:

        def start(processes: int) -> ProcessRunner:
            name = "tests.contract.stream.event_time:from_environment"
            return ProcessRunner(name, logs, url, processes=processes, **case.options).start()

        event_time.create_edges(case, logs)
        runner = start(2)
        disturbances = rng.sample(["none", "kill", "kill all", "restart", "late start"], 3)
        for begin, end, disturbance in zip((0.0, 0.3, 0.6), (0.3, 0.6, 1.0), disturbances, strict=True):
            time.sleep(rng.choice([0, 0.1, 0.3]))  # all partitions may have become silent
            event_time.feed_times(case, logs, begin, end)
            time.sleep(rng.choice([0, 0.1]))
            if disturbance.startswith("kill"):
                count = len(runner._processes) if disturbance == "kill all" else 1
                for process in rng.sample(runner._processes, count):
                    with contextlib.suppress(ProcessLookupError):  # the one before is not started again yet
                        os.kill(process.pid, signal.SIGKILL)
            elif disturbance == "restart":
                runner.shutdown() if rng.random() < 0.5 else runner.stop()
                runner = start(rng.choice([1, 2]))
            elif disturbance == "late start":  # it takes some of the partitions, and gives them back
                other = start(1)
                time.sleep(rng.choice([0, 0.3]))
                other.shutdown() if rng.random() < 0.5 else other.stop()
        assert runner.drain("60s", final=True), runner.status()
        event_time.check(case, logs)

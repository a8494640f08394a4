"""`penstock worker` in real processes: stopping in order, dying, being restarted."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock import Queue, QueueStore

pytestmark = [pytest.mark.crash, pytest.mark.timeout(90)]

APP = '''
"""An application as a user writes one."""
import os, time
import penstock

store = penstock.open_queues("sqlite:///shop.db")
work = store.queue("work", dict)
other = store.queue("other", dict)

@work.handler(concurrency=4)
def handle(job):
    time.sleep(job.get("seconds", 0.01))
    with open("done.txt", "a") as file:
        file.write(f"{job['n']} {os.getpid()}\\n")

@other.handler
async def handle_other(job):
    with open("other.txt", "a") as file:
        file.write("x\\n")

def make():
    return store

empty = penstock.open_queues("sqlite:///shop.db")
not_a_store = 17
'''


class Running:
    """A worker command and what it has logged."""

    def __init__(self, folder: Path, words: tuple[str, ...]) -> None:
        self.log_path = folder / f"worker-{time.monotonic_ns()}.log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "worker", *words], cwd=folder, stderr=log, stdout=log
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def stop(self, number: int = signal.SIGTERM, timeout: float = 30) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout)

    def children(self) -> list[int]:
        return [int(pid) for pid in re.findall(r"process \d+ is (\d+)", self.log)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shopapp.py").write_text(APP)
    return tmp_path


@pytest.fixture
def store(folder: Path) -> Iterator[QueueStore]:
    with penstock.open_queues(f"sqlite:///{folder}/shop.db") as opened:
        yield opened


@pytest.fixture
def work(store: QueueStore) -> Queue[dict]:
    return store.queue("work", dict)


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Running]]:
    running: list[Running] = []

    def call(*words: str) -> Running:
        running.append(Running(folder, words))
        return running[-1]

    yield call
    for one in running:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def eventually(condition: Callable[[], object], what: str, timeout: float = 40) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended but was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def written(folder: Path) -> Counter[int]:
    path = folder / "done.txt"
    return Counter(int(line.split()[0]) for line in path.read_text().splitlines()) if path.exists() else Counter()


def done(queue: Queue[dict]) -> Counter[str]:
    """How often each entry was recorded as done."""
    return Counter(row.id for row in queue.history(state="done", limit=100_000))


def test_two_processes_stop_in_order_and_lose_nothing(folder: Path, work: Queue[dict], start) -> None:
    running = start("shopapp:store", "--processes", "2")
    eventually(lambda: running.log.count("working on") == 2, "both processes up")
    ids = {result.id for result in work.put_many([{"n": n} for n in range(300)])}
    eventually(lambda: len(done(work)) > 30 and len(pids(folder)) == 2, "both processes at work")
    assert running.stop() == 0, running.log
    assert "SIGTERM: stopping" in running.log
    assert "all 2 processes have ended" in running.log
    assert not any(alive(pid) for pid in running.children())
    counts = work.counts()
    assert counts.leased == 0
    assert len(done(work)) + counts.ready == 300
    assert all(entry.attempt == 0 for entry in work.find()), "what was given back spent no attempt"

    assert start("shopapp:store", "--drain").process.wait(60) == 0
    assert set(done(work)) == ids
    assert set(done(work).values()) == {1}
    assert written(folder) == Counter(range(300))


def pids(folder: Path) -> set[str]:
    path = folder / "done.txt"
    return {line.split()[1] for line in path.read_text().splitlines() if " " in line} if path.exists() else set()


def test_a_killed_child_is_restarted_and_its_entries_are_done(folder: Path, work: Queue[dict], start) -> None:
    ids = {result.id for result in work.put_many([{"n": n, "seconds": 0.1} for n in range(60)])}
    running = start("shopapp:store", "--processes", "2", "--lease", "2s", "--reap-every", "500ms")
    eventually(lambda: len(running.children()) == 2 and work.counts().leased >= 4, "work in hand")
    owners = Counter(int(e.lease.owner.split("/")[1].split("-")[0]) for e in work.find(state="leased") if e.lease)
    victim = owners.most_common(1)[0][0]
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: work.counts().live == 0, "all entries done")
    assert f"({victim}) was killed by SIGKILL; restarting it" in running.log
    assert len(running.children()) == 3
    assert running.stop() == 0, running.log
    assert set(done(work)) == ids
    assert set(done(work).values()) == {1}
    assert set(written(folder)) == set(range(60))
    assert work.history(state="reaped"), "the dead process held something"
    assert work.counts().dead == 0


def test_a_child_stopped_by_somebody_else_is_restarted_too(work: Queue[dict], start) -> None:
    running = start("shopapp:store", "--processes", "2")
    eventually(lambda: running.log.count("working on") == 2, "both processes up")
    os.kill(running.children()[0], signal.SIGTERM)
    eventually(lambda: len(running.children()) == 3, "a third process")
    assert "ended with exit code 0; restarting it" in running.log
    assert running.stop() == 0


def test_children_stop_when_their_parent_is_killed(work: Queue[dict], start) -> None:
    running = start("shopapp:store", "--processes", "2")
    eventually(lambda: running.log.count("working on") == 2, "both processes up")
    running.stop(signal.SIGKILL)
    eventually(lambda: not any(alive(pid) for pid in running.children()), "no orphans")
    assert "the parent process is gone; stopping" in running.log


@pytest.mark.parametrize("processes", ["1", "2"])
def test_handlers_over_the_grace_time_are_cut_off(work: Queue[dict], start, processes: str) -> None:
    work.put({"n": 1, "seconds": 60})
    running = start("shopapp:store", "--processes", processes, "--grace", "500ms")
    eventually(lambda: work.counts().leased == 1, "the handler runs")
    began = time.monotonic()
    assert running.stop() == 1, running.log
    assert time.monotonic() - began < 8
    [entry] = work.find()
    assert (entry.state, entry.attempt) == ("waiting", 0)


def test_the_grace_time_is_used(folder: Path, work: Queue[dict], start) -> None:
    work.put({"n": 1, "seconds": 1.5})
    running = start("shopapp:store")
    eventually(lambda: work.counts().leased == 1, "the entry is claimed")
    time.sleep(0.5)  # from the claim to the handler's start; what has not started would be released instead
    assert running.stop(signal.SIGINT) == 0, running.log
    assert written(folder) == Counter([1])
    assert "stopped after 1 settled attempt" in running.log


def test_a_second_signal_ends_at_once(work: Queue[dict], start) -> None:
    work.put({"n": 1, "seconds": 60})
    running = start("shopapp:store")
    eventually(lambda: work.counts().leased == 1, "the handler runs")
    running.process.send_signal(signal.SIGTERM)
    time.sleep(1)
    assert running.process.poll() is None
    assert running.stop(timeout=5) == 128 + signal.SIGTERM


def test_only_the_named_queues_are_handled(folder: Path, store: QueueStore, work: Queue[dict], start) -> None:
    other = store.queue("other", dict)
    other.put({})
    work.put({"n": 1})
    running = start("shopapp:make", "--queue", "other", "--verbose")
    eventually(lambda: other.counts().live == 0, "the named queue is done")
    time.sleep(0.5)
    assert work.counts().ready == 1
    assert running.stop() == 0
    assert re.search(r"\d\d:\d\d:\d\d \d+ DEBUG +other [0-9a-f-]+: done", running.log)


def test_drain_handles_what_is_due_and_ends(folder: Path, work: Queue[dict], start) -> None:
    work.put_many([{"n": n} for n in range(5)])
    work.put({"n": 99}, delay="1h")
    running = start("shopapp:store", "--drain")
    assert running.process.wait(30) == 0
    assert "drained: 5 handler runs" in running.log
    assert work.counts().delayed == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere:store"], "there is no module 'nowhere'"),
        (["shopapp"], "'shopapp' does not name an application"),
        (["shopapp:missing"], "'shopapp' has no 'missing'"),
        (["shopapp:not_a_store"], "shopapp:not_a_store is a int, not a queue store"),
        (["shopapp:empty"], "shopapp:empty has no handlers"),
        (["shopapp:store", "--queue", "typo"], "queue 'typo' has no handler. Those with one: other, work."),
        (["shopapp:store", "--grace", "15"], "grace '15' is not a duration"),
        (["shopapp:store", "--processes", "2", "--drain"], "--drain works in one process"),
        (["nowhere:store", "--processes", "2"], "there is no module 'nowhere'"),
    ],
)
def test_what_cannot_start_says_why_and_ends_with_2(folder: Path, start, words: list[str], told: str) -> None:
    running = start(*words)
    assert running.process.wait(20) == 2, running.log
    assert f"error: {told}" in running.log
    assert "Traceback" not in running.log


def test_an_error_inside_the_application_keeps_its_traceback(folder: Path, start) -> None:
    (folder / "broken.py").write_text("import no_such_library\n")
    running = start("broken:store")
    assert running.process.wait(20) == 1
    assert "No module named 'no_such_library'" in running.log
    assert "broken.py" in running.log

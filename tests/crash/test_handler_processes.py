"""A worker that is killed takes the processes of its handlers with it; a killed process costs one attempt."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock import QueueStore, Retry, Worker, open_queues

PROGRAM = """
import sys
import penstock
from tests.contract.queue.in_processes import note_pid

if __name__ == "__main__":
    store = penstock.open_queues(sys.argv[1])
    queue = store.queue("jobs", str)
    retry = penstock.Retry(attempts=None, backoff="0s")
    queue.add_handler(note_pid, executor="processes", timeout=sys.argv[2], retry=retry)
    penstock.Worker(store, lease="2s").run()
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[QueueStore]:
    with open_queues(f"sqlite:///{tmp_path}/queues.db") as opened:
        yield opened


@pytest.fixture
def start(tmp_path: Path, store: QueueStore) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start_worker(timeout: str) -> subprocess.Popen[bytes]:
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(PROGRAM))
        paths = os.pathsep.join(path for path in sys.path if path)
        started.append(
            subprocess.Popen(
                [sys.executable, str(program), store.name, timeout],
                env={**os.environ, "PYTHONPATH": f"{Path.cwd()}{os.pathsep}{paths}"},
            )
        )
        return started[-1]

    yield start_worker
    for process in started:
        process.kill()
        process.wait(10)


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    folder = tmp_path / "pids"
    folder.mkdir()
    return folder


def test_the_handler_ends_with_its_killed_worker_and_the_entry_has_one_outcome(
    store: QueueStore, start: Callable[[str], subprocess.Popen[bytes]], pids: Path
) -> None:
    queue = store.queue("jobs", str)
    id_ = queue.put(str(pids)).id
    worker = start("10m")
    [handler] = wait_for_pids(pids, 1)
    os.kill(worker.pid, signal.SIGKILL)
    wait_for(lambda: not is_alive(handler))
    queue.add_handler(lambda value: None, retry=Retry(attempts=3))
    wait_for(lambda: Worker(store).drain() == 1)
    assert [(row.attempt, row.state) for row in queue.history(id_)] == [(1, "reaped"), (2, "done")]


def test_a_worker_killed_at_a_time_limit_leaves_no_process(
    store: QueueStore, start: Callable[[str], subprocess.Popen[bytes]], pids: Path
) -> None:
    """Killed while processes are being killed and replaced: all end, and the attempts are those that history has."""
    queue = store.queue("jobs", str)
    id_ = queue.put(str(pids)).id
    worker = start("200ms")
    wait_for_pids(pids, 2)  # the first was killed and replaced
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(10)
    wait_for(lambda: not any(is_alive(int(path.name)) for path in pids.iterdir()))
    first = queue.history(id_)[0]
    assert (first.attempt, first.state) == (1, "retried")
    assert (first.error or "").startswith("HandlerTimeout: ")
    queue.add_handler(lambda value: None, retry=Retry(attempts=10))
    wait_for(lambda: Worker(store).drain() == 1)
    rows = queue.history(id_)
    assert [row.attempt for row in rows] == list(range(1, len(rows) + 1))
    assert rows[-1].state == "done"


def test_a_killed_process_costs_one_attempt_and_is_replaced(
    store: QueueStore, start: Callable[[str], subprocess.Popen[bytes]], pids: Path
) -> None:
    queue = store.queue("jobs", str)
    id_ = queue.put(str(pids)).id
    start("10m")
    [first] = wait_for_pids(pids, 1)
    os.kill(first, signal.SIGKILL)
    both = wait_for_pids(pids, 2)
    assert first in both
    [row] = queue.history(id_)
    assert (row.attempt, row.state) == (1, "retried")
    assert "was ended by SIGKILL" in (row.error or "")


def wait_for_pids(folder: Path, count: int) -> list[int]:
    """The handlers' processes that have begun."""
    wait_for(lambda: len(list(folder.iterdir())) >= count)
    return [int(path.name) for path in folder.iterdir()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < deadline, "it never became so"
        time.sleep(0.02)

"""Handlers in processes of their own: outcomes as in threads; what is late is killed, what dies is replaced."""

from pathlib import Path

import pytest
from tests.contract.queue import in_processes
from tests.contract.queue.shorthand import Contract, OpenStore
from tests.contract.worker.test_timeouts import ONCE, running, wait_for

from penstock import QueueStore, Retry
from penstock.testing import drain


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    folder = tmp_path / "pids"
    folder.mkdir()
    return folder


class TestOutcomes(Contract):
    def test_they_mean_what_they_mean_in_a_thread(self, store: QueueStore) -> None:
        queue = store.queue("q", str)
        queue.add_handler(in_processes.outcome, retry=ONCE, executor="processes")
        values = ["done", "false", "reject", "error", "awkward", "exit", "system exit", "unsendable", "snooze"]
        queue.put_many(values)
        assert drain(store) == len(values)
        errors = {letter.value: letter.error or "" for letter in queue.dead()}
        assert errors.keys() == {"false", "reject", "error", "awkward", "exit", "system exit"}
        assert errors["reject"] == "rejected: no such address"
        assert errors["error"] == "ValueError: bad value"
        assert "Awkward: cannot be sent" in errors["awkward"]
        assert errors["exit"].startswith("HandlerDied: ")
        assert "ended with 3" in errors["exit"]
        assert errors["system exit"] == "SystemExit: 5"
        assert queue.counts().delayed == 1, "the one that was snoozed"
        [letter] = [letter for letter in queue.dead() if letter.value == "error"]
        assert 'raise ValueError("bad value")' in (letter.traceback or ""), "as it was there"

    def test_a_policy_of_a_failure_comes_through(self, store: QueueStore) -> None:
        queue = store.queue("q", str)
        queue.add_handler(in_processes.outcome, executor="processes")
        id_ = queue.put("again").id
        drain(store)
        entry = queue.get(id_)
        assert (entry.due - entry.created).total_seconds() >= 7200
        assert "the carrier asked for it" in (entry.error or "")


class TestTimeLimit(Contract):
    def test_the_process_is_killed_and_replaced(self, open_store: OpenStore) -> None:
        """On a FIFO queue too: the next entry does not run beside the one that was late."""
        store = open_store(clock=None)
        queue = store.queue("q", str, fifo=True)
        queue.add_handler(in_processes.sleep_or_return, retry=ONCE, timeout="300ms", executor="processes")
        queue.put_many(["brief", "long", "brief"])
        with running(store):
            wait_for(lambda: queue.counts().live == 0)
        [letter] = queue.dead()
        assert letter.value == "long"
        assert (letter.error or "").startswith("HandlerTimeout: ")
        assert "its process was killed" in (letter.error or "")
        assert [row.state for row in queue.history()] == ["done", "dead", "done"]

    def test_it_runs_no_more(self, open_store: OpenStore, pids: Path) -> None:
        store = open_store(clock=None)
        queue = store.queue("q", str)
        queue.add_handler(in_processes.note_pid, retry=ONCE, timeout="300ms", executor="processes")
        queue.put(str(pids))
        with running(store):
            pid = wait_for_a_process(pids)
            wait_for(lambda: len(queue.dead()) == 1)
            wait_for(lambda: has_ended(pid))

    def test_what_still_runs_when_the_worker_stops_is_killed(self, open_store: OpenStore, pids: Path) -> None:
        """Its entry is another worker's from then on."""
        store = open_store(clock=None)
        queue = store.queue("q", str)
        queue.add_handler(in_processes.note_pid, retry=Retry(attempts=3), executor="processes")
        queue.put(str(pids))
        with running(store) as worker:
            pid = wait_for_a_process(pids)
            assert worker.stop("100ms") is False
            wait_for(lambda: has_ended(pid))
        assert [(entry.state, entry.attempt) for entry in queue.find()] == [("waiting", 0)]


def wait_for_a_process(folder: Path) -> int:
    """The process that left a file here."""
    wait_for(lambda: any(folder.iterdir()))
    return int(next(folder.iterdir()).name)


def has_ended(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX"  # killed, whether or not somebody has asked for its exit code

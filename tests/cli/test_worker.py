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
    with open("started.txt", "a") as file:
        file.write("x")
    time.sleep(job.get("seconds", 0.01))
    with open("done.txt", "a") as file:
        file.write(f"{job['n']} {os.getpid()}\\n")

@other.handler
async def handle_other(job):
    with open("other.txt", "a") as file:
        file.write("x\\n")

def make():
    return store

def needs(url):
    return store

def fails():
    return penstock.open_queues({}["SHOP_URL"])

empty = penstock.open_queues("sqlite:///shop.db")
not_a_store = 17
'''


TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


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


def started(folder: Path) -> int:
    """How many handlers of the queue work have begun; an entry may be claimed for a while before that."""
    path = folder / "started.txt"
    return path.stat().st_size if path.exists() else 0


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
def test_handlers_over_the_grace_time_are_cut_off(folder: Path, work: Queue[dict], start, processes: str) -> None:
    work.put({"n": 1, "seconds": 60})
    running = start("shopapp:store", "--processes", processes, "--grace", "500ms")
    eventually(lambda: started(folder) == 1, "the handler runs")
    began = time.monotonic()
    assert running.stop() == 1, running.log
    assert time.monotonic() - began < 8
    [entry] = work.find()
    assert (entry.state, entry.attempt) == ("waiting", 0)


def test_the_grace_time_is_used(folder: Path, work: Queue[dict], start) -> None:
    work.put({"n": 1, "seconds": 1.5})
    running = start("shopapp:store")
    eventually(lambda: started(folder) == 1, "the handler runs")
    assert running.stop(signal.SIGINT) == 0, running.log
    assert written(folder) == Counter([1])
    assert "stopped after 1 settled attempt" in running.log


def test_a_second_signal_ends_at_once(folder: Path, work: Queue[dict], start) -> None:
    work.put({"n": 1, "seconds": 60})
    running = start("shopapp:store")
    eventually(lambda: started(folder) == 1, "the handler runs")
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
    line = rf"{TIME} \d+ DEBUG +queue 'other', entry [0-9a-f-]+ \(attempt 1\): done"
    assert re.search(line, running.log)


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
        (["shopapp:store", "--grace", "15"], "--grace '15' is not a duration. Write it as 500ms, 30s"),
        (["shopapp:store", "--lease", "0s"], "--lease 0s is too short. Use 1s or more."),
        (["shopapp:store", "--reap-every", "0s"], "--reap-every 0s is too short."),
        (["shopapp:needs"], "shopapp:needs needs arguments"),
        (["shopapp:fails"], "shopapp:fails() failed: KeyError: 'SHOP_URL' (shopapp.py line 30)."),
        (
            ["lacking:store"],
            "cannot import lacking: ModuleNotFoundError: No module named 'no_such_library' (lacking.py ",
        ),
        (["lacking:store", "--processes", "2"], "cannot import lacking: ModuleNotFoundError"),
        (["slip:store"], "cannot import slip: SyntaxError: "),
        (["raising:store"], "cannot import raising: RuntimeError: no way (deeper.py line 2)."),
        (["exiting:store"], "cannot import exiting: SystemExit: 7 (exiting.py line 2)."),
        (["unopened:store"], "cannot open "),
        (["shopapp:store", "--processes", "2", "--drain"], "--drain works in one process"),
        (["nowhere:store", "--processes", "2"], "there is no module 'nowhere'"),
    ],
)
def test_what_cannot_start_says_why_and_ends_with_2(folder: Path, start, words: list[str], told: str) -> None:
    (folder / "lacking.py").write_text("import os\nimport no_such_library\n")
    (folder / "slip.py").write_text("def broken(:\n")
    (folder / "deeper.py").write_text("def fail():\n    raise RuntimeError('no way')\n")
    (folder / "raising.py").write_text("import deeper\ndeeper.fail()\n")
    (folder / "exiting.py").write_text("import sys\nsys.exit(7)\n")
    (folder / "unopened.py").write_text("import penstock\npenstock.open_queues('sqlite:///no/such/folder/x.db')\n")
    running = start(*words)
    assert running.process.wait(20) == 2, running.log
    assert f"error: {told}" in running.log
    assert "Traceback" not in running.log


def test_verbose_shows_the_way_to_an_error_of_the_application_and_nothing_else(folder: Path, start) -> None:
    (folder / "deeper.py").write_text("def fail():\n    raise RuntimeError('no way')\n")
    (folder / "raising.py").write_text("import deeper\ndeeper.fail()\n")
    running = start("raising:store", "--verbose")
    assert running.process.wait(20) == 2
    assert re.findall(r'File ".*?(\w+\.py)", line (\d)', running.log) == [("raising.py", "2"), ("deeper.py", "2")]
    assert "RuntimeError: no way" in running.log


# --- ending a drain ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_drain_in_order(folder: Path, work: Queue[dict], start, number: int, code: int) -> None:
    work.put_many([{"n": n, "seconds": 1.5} for n in range(3)])
    running = start("shopapp:store", "--drain")
    eventually(lambda: started(folder) == 1, "the first handler runs")
    assert running.stop(number) == code, running.log
    assert written(folder) == Counter([0]), "the running handler ended, no other began"
    assert [(entry.state, entry.attempt) for entry in work.find()] == [("waiting", 0)] * 2
    assert len(done(work)) == 1
    assert f"{signal.Signals(number).name}: stopping when the running handler has ended; again" in running.log
    assert "Traceback" not in running.log


def test_a_second_signal_ends_a_drain_at_once(folder: Path, work: Queue[dict], start) -> None:
    work.put({"n": 1, "seconds": 60})
    running = start("shopapp:store", "--drain")
    eventually(lambda: started(folder) == 1, "the handler runs")
    running.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert running.process.poll() is None
    assert running.stop(signal.SIGINT, timeout=5) == -signal.SIGINT
    assert written(folder) == Counter()


def test_the_first_signal_is_answered_at_once(folder: Path, work: Queue[dict], start) -> None:
    work.put({"n": 1, "seconds": 3})
    running = start("shopapp:store")
    eventually(lambda: started(folder) == 1, "the handler runs")
    running.process.send_signal(signal.SIGINT)
    eventually(lambda: "SIGINT: stopping, running handlers get 15s; again to end at once" in running.log, "a word", 2)
    assert running.process.wait(30) == 0


def test_what_did_not_succeed_is_logged_without_asking(folder: Path, start) -> None:
    (folder / "refusing.py").write_text(
        "import penstock\n"
        "store = penstock.open_queues('sqlite:///refusing.db')\n"
        "mails = store.queue('mails', str)\n"
        "@mails.handler\n"
        "def send(mail): return penstock.Reject('no such address')\n"
        "mails.put('x')\n"
    )
    running = start("refusing:store", "--drain")
    assert running.process.wait(20) == 0
    assert re.search(
        r"WARNING handler send of queue 'mails', entry \S+ \(attempt 1 of 5\): Reject: no such", running.log
    )
    assert "-> dead letter" in running.log
    assert f"created a new store: space penstock in {folder}/refusing.db" in running.log


DECLARED = """
import os
import penstock

queues = penstock.Queues()
work = queues.queue("work", dict)

@work.handler
def handle(job):
    with open("done.txt", "a") as file:
        file.write(f"{job['n']} {os.getpid()}\\n")
"""


@pytest.mark.parametrize("options", [("--drain",), ("--processes", "2")], ids=["drain", "processes"])
def test_declared_queues_are_opened_where_the_url_says(
    folder: Path, work: Queue[dict], start: Callable[..., Running], options: tuple[str, ...]
) -> None:
    (folder / "declared.py").write_text(DECLARED)
    work.put_many([{"n": number} for number in range(5)])
    running = start("declared:queues", "--url", f"sqlite:///{folder}/shop.db", *options)
    eventually(lambda: sorted(written(folder)) == [0, 1, 2, 3, 4], running.log)
    if "--drain" in options:
        assert running.process.wait(30) == 0
    else:
        assert running.stop() == 0


def test_declared_queues_without_a_url_say_what_is_missing(folder: Path, start: Callable[..., Running]) -> None:
    (folder / "declared.py").write_text(DECLARED)
    running = start("declared:queues")
    assert running.process.wait(30) == 2
    assert "declared:queues is declared, but not open" in running.log
    assert "--url" in running.log


@pytest.mark.parametrize("options", [("--drain",), ("--processes", "2")], ids=["drain", "processes"])
def test_a_url_for_a_store_that_is_open_already_is_refused(
    folder: Path, start: Callable[..., Running], options: tuple[str, ...]
) -> None:
    running = start("shopapp:store", "--url", f"sqlite:///{folder}/other.db", *options)
    assert running.process.wait(30) == 2
    assert f"shopapp:store has opened sqlite:///{folder}/shop.db itself, so --url would change nothing." in running.log
    assert "penstock.Queues()" in running.log
    assert not (folder / "other.db").exists()


@pytest.mark.parametrize("url", ["sqlite:///shop.db", "sqlite:///{folder}/shop.db?busy_timeout=5s"])
def test_the_url_that_an_open_store_has_is_no_contradiction(
    folder: Path, work: Queue[dict], start: Callable[..., Running], url: str
) -> None:
    work.put({"n": 1})
    running = start("shopapp:store", "--url", url.format(folder=folder), "--drain")
    assert running.process.wait(30) == 0, running.log
    assert written(folder) == Counter([1])


def test_the_url_of_the_environment_does_not_contradict_an_open_store(
    folder: Path, work: Queue[dict], start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", f"sqlite:///{folder}/other.db")
    work.put({"n": 1})
    running = start("shopapp:store", "--drain")
    assert running.process.wait(30) == 0, running.log


def test_two_signals_at_once_are_one_wish(folder: Path, work: Queue[dict], start) -> None:
    """As `timeout` sends them: to the process and to its group."""
    work.put({"n": 1, "seconds": 1})
    running = start("shopapp:store")
    eventually(lambda: started(folder) == 1, "the handler runs")
    running.process.send_signal(signal.SIGTERM)
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(30) == 0, running.log
    assert written(folder) == Counter([1]), "the running handler ended"

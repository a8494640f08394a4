"""Metrics and health of worker processes, one and several: asked over HTTP and by file, as Prometheus and probes do."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import penstock
from penstock import Queue, QueueStore
from penstock.cli.health import main as probe

pytestmark = [pytest.mark.crash, pytest.mark.timeout(150)]

APP = """
import os, time
import penstock
from penstock.errors import StoreUnavailable

store = penstock.open_queues("sqlite:///shop.db")
work = store.queue("work", dict)
family = store.family("customer.", dict)

@work.handler(concurrency=2, retry=penstock.Retry(attempts=1))
def handle(job):
    if job.get("kill"):
        os.kill(os.getpid(), 9)
    time.sleep(job.get("seconds", 0.01))
    if job.get("fail"):
        raise KeyError("x")

family.handler(lambda job: None)

def shaky():
    '''A store that does not answer while there is a file.'''
    locks, settle = store.driver.locks, store.driver._settle
    def away(real):
        def call(*args):
            if os.path.exists("away"):
                raise StoreUnavailable("away")
            return real(*args)
        return call
    store.driver.locks, store.driver._settle = away(locks), away(settle)
    return store
"""


class Running:
    def __init__(self, folder: Path, *words: str) -> None:
        self.log_path = folder / f"worker-{time.monotonic_ns()}.log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "worker", *words], cwd=folder, stderr=log, stdout=log
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def url(self) -> str:
        eventually(lambda: "metrics and health at" in self.log or self.process.poll() is not None, "a port")
        return re.search(r"metrics and health at (\S+)", self.log)[1]

    def children(self) -> list[int]:
        return [int(pid) for pid in re.findall(r"process \d+ is (\d+)", self.log)]

    def samples(self) -> dict[tuple[str, ...], float]:
        """Values by name and labels."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def asks(self, path: str) -> int:
        try:
            with urllib.request.urlopen(self.url + path, timeout=20) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            error.close()
            return error.code


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
        running.append(Running(folder, *words))
        return running[-1]

    yield call
    for one in running:
        if one.process.poll() is None:
            one.process.send_signal(signal.SIGCONT)
            one.process.kill()
            one.process.wait()


def eventually(condition: Callable[[], object], what: str, timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.05)


def history(work: Queue[dict]) -> Counter[str]:
    return Counter(row.state for row in work.history(limit=100_000))


def test_one_process_tells_what_it_did_and_how_it_is(
    folder: Path, store: QueueStore, work: Queue[dict], start: Callable[..., Running]
) -> None:
    work.put_many([{"fail": n % 4 == 0} for n in range(20)])
    for number in range(30):
        store.queue(f"customer.{number}", dict).put({})
    running = start("shopapp:shaky", "--port", "0", "--health-file", "health")
    eventually(lambda: not store.counts(queue="work")[0].live and history(work).total() == 20, "all is done")
    eventually(lambda: running.samples()["penstock_attempts_total", "customer.*", "done"] == 30, "all is counted")
    read = running.samples()
    rows = history(work)
    assert rows == {"done": 15, "dead": 5}
    for state in ("done", "dead"):
        assert read["penstock_attempts_total", "work", state] == rows[state]
    assert read["penstock_failures_total", "work", "KeyError"] == 5
    assert read["penstock_slots", "work"] == 2
    assert read["penstock_processes",] == 1
    eventually(lambda: running.asks("/ready") == 200, "it is ready")
    assert running.asks("/live") == 200
    # Without its store it is live and not ready, and both ways of asking say so.
    (folder / "away").touch()
    eventually(lambda: running.asks("/ready") == 503, "it is not ready")
    assert running.asks("/live") == 200
    file = str(folder / "health")
    eventually(lambda: not json.loads(Path(file).read_bytes())["ready"], "the file says so too")
    assert (probe([file]), probe([file, "--ready"])) == (0, 1)
    (folder / "away").unlink()
    eventually(lambda: running.asks("/ready") == 200, "it is ready again")
    # One that is stopped says nothing.
    running.process.send_signal(signal.SIGSTOP)
    assert probe([running.url, "--timeout", "1"]) == 1
    eventually(lambda: probe([file, "--within", "3"]) == 1, "the file grows old")
    running.process.send_signal(signal.SIGCONT)
    eventually(lambda: probe([running.url]) == probe([file, "--within", "3"]) == 0, "it lives again")
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(40) == 0
    assert not Path(file).exists()
    assert probe([file]) == 1


def test_the_sums_of_several_processes_outlive_one_that_is_killed(
    folder: Path, store: QueueStore, work: Queue[dict], start: Callable[..., Running]
) -> None:
    running = start("shopapp:store", "--processes", "3", "--port", "0", "--health-file", "health")
    eventually(lambda: running.asks("/ready") == 200, "all processes are ready", timeout=90)
    work.put_many([{"seconds": 0.02, "fail": n % 5 == 0} for n in range(100)])
    eventually(lambda: history(work).total() == 100, "all is done")
    eventually(lambda: running.samples().get(("penstock_attempts_total", "work", "done")) == 80, "all is counted")
    read = running.samples()
    assert (read["penstock_slots", "work"], read["penstock_processes",]) == (6, 3)
    # One is killed; what it had counted stays, and another one takes its place.
    os.kill(running.children()[0], signal.SIGKILL)
    eventually(lambda: len(running.children()) == 4, "it is replaced")
    work.put_many([{} for _ in range(50)])
    eventually(lambda: history(work).total() == 150, "all is done")
    eventually(lambda: running.samples()["penstock_attempts_total", "work", "done"] == 130, "all is counted")
    read, rows = running.samples(), history(work)
    assert read["penstock_attempts_total", "work", "dead"] == rows["dead"] == 20
    assert read["penstock_attempt_seconds_count", "work"] == rows.total() == 150
    eventually(lambda: running.asks("/ready") == 200, "all are ready again", timeout=90)
    assert running.samples()["penstock_slots", "work"] == 6
    # One that hangs makes the whole not live.
    os.kill(running.children()[1], signal.SIGSTOP)
    eventually(lambda: running.asks("/live") == 503, "one does not answer")
    os.kill(running.children()[1], signal.SIGCONT)
    eventually(lambda: running.asks("/live") == 200, "it answers again")
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(60) == 0
    assert "Traceback" not in running.log.replace("KeyError", "").split("all 3 processes have ended")[-1]
    assert not (folder / "health").exists()


def test_what_ended_last_is_counted_although_its_process_ends(
    folder: Path, store: QueueStore, work: Queue[dict], start: Callable[..., Running]
) -> None:
    running = start("shopapp:store", "--processes", "2", "--port", "0")
    eventually(lambda: running.asks("/ready") == 200, "all processes are ready", timeout=90)
    first, _ = running.children()
    work.put_many([{"seconds": 0.3} for _ in range(4)])
    eventually(lambda: store.counts(queue="work")[0].leased == 4, "all is running")
    os.kill(first, signal.SIGTERM)  # it lets its handlers end
    eventually(lambda: len(running.children()) == 3, "it is replaced")
    eventually(lambda: history(work).total() == 4, "all is done")
    eventually(lambda: running.samples().get(("penstock_attempts_total", "work", "done")) == 4, "all is counted")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--port", "0", "--drain"), "--drain ends by itself"),
        (("--health-file", "nowhere/health"), "cannot be written"),
        (("--port", "70000"), "65535"),
        (("--port", "0", "--host", "192.0.2.1"), "cannot listen on 192.0.2.1"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(
    folder: Path, start: Callable[..., Running], words: tuple[str, ...], said: str
) -> None:
    running = start("shopapp:store", *words)
    assert running.process.wait(60) == 2
    assert said in running.log
    assert "Traceback" not in running.log

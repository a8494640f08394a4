"""Several processes on one SQLite file: they take turns, and nobody who dies, stops or forks keeps the others out."""

import errno
import fcntl
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock import Worker, open_queues
from penstock.queue.drivers.sql.sqlite_turns import Turns

PATIENCE = 60.0
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.02)


def drain(path: str, begin: Any, counts: Any) -> None:
    """Handle what is there, once all are ready, and tell how many it was."""
    handled = 0

    def handle(_: int) -> None:
        nonlocal handled
        handled += 1

    with open_queues(f"sqlite:///{path}?durability=fast") as store:
        store.queue("q", int).add_handler(handle, concurrency=1)
        worker = Worker(store, batch=10)
        begin.wait(PATIENCE)
        worker.start()
        wait_for(lambda: not store.queue("q").counts().live, "all is handled")
        worker.stop()
    counts.put(handled)


@contextmanager
def draining(path: Path, processes: int) -> Iterator[Any]:
    """Processes that drain a file at the same time; the queue of what each has handled."""
    begin, counts = SPAWN.Barrier(processes + 1), SPAWN.Queue()
    children = [SPAWN.Process(target=drain, args=(str(path), begin, counts)) for _ in range(processes)]
    for child in children:
        child.start()
    begin.wait(PATIENCE)
    yield counts
    for child in children:
        child.join(PATIENCE)
    assert [child.exitcode for child in children] == [0] * processes


def test_two_processes_that_drain_one_file_share_alike(path: Path) -> None:
    entries = 6000
    with open_queues(f"sqlite:///{path}?durability=fast") as store:
        store.queue("q", int).put_many(range(entries))
    with draining(path, 2) as counts:
        shares = sorted(counts.get(timeout=PATIENCE) for _ in range(2))
    assert sum(shares) == entries
    # Without turns it is 98 to 2. On a busy machine one of the two may be given less time than the other; how turns
    # are shared whatever time each is given is counted below.
    assert shares[0] >= 0.2 * entries, shares


def test_a_user_who_writes_and_reads_meanwhile_gets_through(path: Path) -> None:
    with open_queues(f"sqlite:///{path}?durability=fast") as store:
        store.queue("q", int).put_many(range(4000))
        with closing(sqlite3.connect(path, timeout=PATIENCE)) as db:
            db.execute("CREATE TABLE business (n INTEGER)")
            db.commit()
            with draining(path, 2) as counts:
                for number in range(20):
                    db.execute("INSERT INTO business VALUES (?)", (number,))
                    store.queue("own", int).put(number, connection=db)
                    db.commit()
                    assert store.queue("own").counts().ready == number + 1
                    store.queue("other", int).put(number, connection=db)  # begins the transaction by itself
                    db.rollback()
                assert sum(counts.get(timeout=PATIENCE) for _ in range(2)) == 4000
            assert db.execute("SELECT count(*) FROM business").fetchone() == (20,)
        assert store.queue("other").counts().ready == 0


# --- the lock files --------------------------------------------------------------------------------------------------


FOLLOW = """
import sys
from pathlib import Path
from penstock.queue.drivers.sql.sqlite_turns import Turns
turns = Turns(Path(sys.argv[1]), 60)
for line in sys.stdin:
    assert turns.take()
    Path(line.strip()).touch()
    turns.pass_on()
"""


def test_whoever_had_a_turn_waits_for_the_one_who_waits(path: Path) -> None:
    path.touch()
    turns = Turns(path, PATIENCE)
    command = [sys.executable, "-c", FOLLOW, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        for number in range(50):
            had_it = path.parent / str(number)
            assert turns.take()
            other.stdin.write(f"{had_it}\n")
            other.stdin.flush()
            wait_for(lambda: is_locked(f"{path}-next"), "the other process waits for its turn")
            turns.pass_on()
            assert turns.take()
            assert had_it.exists(), "it was the other one's turn"
            turns.pass_on()
        other.stdin.close()
    turns.close()


PUT = """
import sys
from penstock import open_queues
name, url = sys.argv[1:]
with open_queues(url) as store:
    queue = store.queue("q", str)
    queue.counts()
    print("ready", flush=True)
    for _ in sys.stdin:
        queue.put(name)
        print("put", flush=True)
"""


def test_processes_that_write_all_the_time_get_every_other_turn(path: Path) -> None:
    """Each waits for its turn in every round, whoever asked first in front: of all turns each gets half."""
    rounds, url = 20, f"sqlite:///{path}?durability=fast"
    with open_queues(url) as store, ExitStack() as stack:
        store.queue("q", str).counts()
        turns = Turns(path, PATIENCE)
        children = {
            name: stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", PUT, name, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for name in ("a", "b")
        }
        for child in children.values():
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for number in range(rounds):
            first, second = ("a", "b") if number % 2 else ("b", "a")
            assert turns.take()  # nobody else has it before both have been told
            tell(children[first])
            wait_for(lambda: is_locked(f"{path}-next"), "the first waits for its turn")
            tell(children[second])
            turns.pass_on()
            for child in children.values():
                assert child.stdout is not None
                assert child.stdout.readline() == "put\n"
        turns.close()
        for child in children.values():
            assert child.stdin is not None
            child.stdin.close()
        order = "".join(entry.value for entry in store.queue("q", str).find(limit=1000))
    assert order == "baab" * (rounds // 2)


def tell(child: Any) -> None:
    child.stdin.write("go\n")
    child.stdin.flush()


def is_locked(path: str) -> bool:
    with open(path) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


HOLD = """
import os, signal, sys, time
from pathlib import Path
from penstock.queue.drivers.sql.sqlite_turns import Turns
{setup}
turns = Turns(Path(sys.argv[1]), 60)
{fork}
assert turns.take()
print(os.getpid(), flush=True)
time.sleep(600)
"""


@contextmanager
def holder(path: Path, setup: str = "", fork: str = "") -> Iterator[Any]:
    """A process that has the turn and keeps it."""
    path.touch()
    program = HOLD.format(setup=setup, fork=fork)
    process = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == str(process.pid)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_turn_of_a_killed_process_is_free(path: Path) -> None:
    turns = Turns(path, PATIENCE)
    with holder(path) as process:
        process.kill()
        process.wait()
        assert turns.take()
    turns.pass_on()
    turns.close()


def test_a_stopped_process_keeps_nobody_out(path: Path) -> None:
    with open_queues(f"sqlite:///{path}?busy_timeout=1") as store, holder(path) as process:
        os.kill(process.pid, signal.SIGSTOP)
        for number in range(50):
            store.queue("q").put(number)
        assert store.queue("q").counts().ready == 50


FORK = """
turns.take(); turns.pass_on()
class Told:
    def forked(self): turns.forked()
from penstock.process import tell_of_forks
told = Told(); tell_of_forks(told)
if os.fork() == 0:
    os.close(1)
    Path(sys.argv[1] + ".child").write_text(str(os.getpid()))
    time.sleep(600)
"""


def test_a_child_that_lives_on_does_not_keep_its_dead_parents_turn(path: Path) -> None:
    child = Path(f"{path}.child")
    turns = Turns(path, PATIENCE)
    with holder(path, fork=FORK) as process:
        wait_for(lambda: child.exists() and child.read_text(), "the child lives")
        process.kill()
        process.wait()
        try:
            assert turns.take()
        finally:
            os.kill(int(child.read_text()), signal.SIGKILL)
    turns.pass_on()
    turns.close()


def test_the_lock_files_are_for_all_who_may_write_the_database(path: Path) -> None:
    path.touch()
    path.chmod(0o660)
    with open_queues(f"sqlite:///{path}") as store:
        store.queue("q").put(1)
    assert {Path(f"{path}-{name}").stat().st_mode & 0o777 for name in ("next", "turn")} == {0o660}


def test_where_there_can_be_no_lock_files_all_goes_on(path: Path) -> None:
    for name in ("next", "turn"):
        Path(f"{path}-{name}").mkdir()
    with open_queues(f"sqlite:///{path}") as store:
        store.queue("q").put(1)
        assert store.queue("q").counts().ready == 1


def test_nor_does_a_file_system_without_locks_stop_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    with open_queues(f"sqlite:///{path}") as store:
        monkeypatch.setattr(fcntl, "flock", refuse)
        store.queue("q").put(1)
        monkeypatch.undo()
        assert store.queue("q").counts().ready == 1

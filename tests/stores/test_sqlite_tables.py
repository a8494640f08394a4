"""The tables of the SQLite store: no number is given twice; statements are few, and read no more than they need."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock import PenstockError, Reject, Worker, open_queues
from penstock.errors import StoreCorrupt
from penstock.ids import new_id
from penstock.queue.drivers.sql.driver import SqlDriver
from penstock.queue.drivers.sql.sqlite import SqliteServer
from penstock.queue.drivers.sql.sqlite_file import SqliteFile
from penstock.queue.drivers.sql.statements import read_statements, script
from penstock.queue.protocol import ClaimRequest, Ending, Find, Source, Step
from penstock.queue.queues import QueueStore
from penstock.testing import FakeClock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(path: Path, clock: FakeClock) -> Iterator[QueueStore]:
    with open_queues(f"sqlite:///{path}?durability=fast", clock=clock) as opened:
        assert isinstance(opened.driver, SqlDriver)
        yield opened


def file_of(store: QueueStore) -> SqliteFile:
    assert isinstance(store.driver.server, SqliteServer)
    return store.driver.server.file


def handle_all(store: QueueStore, handler: Callable[[Any], Any] = lambda value: None) -> None:
    store.queue("q").add_handler(handler)
    Worker(store).drain()
    store.queue("q").remove_handler()


def claim(store: QueueStore, entries: int, queue: str = "q") -> ClaimRequest:
    return ClaimRequest(new_id(), (Source(queue, entries),), entries, "worker", store.node, 60_000_000)


# --- numbers ---------------------------------------------------------------------------------------------------------


class TestNumbers:
    """A reader goes on from the last number it saw, so none is given a second time."""

    def ended(self, store: QueueStore, handler: Callable[[Any], Any] = lambda value: None) -> tuple[int, int]:
        """The numbers of an entry that is put and ends, and of its row in the history."""
        id_ = store.queue("q").put(1).id
        [entry] = store.driver.find(Find(ids=(id_,)))
        handle_all(store, handler)
        [row] = store.driver.history(Find(ids=(id_,)))
        return entry.seq, row.seq

    def test_after_the_newest_was_pruned(self, store: QueueStore, clock: FakeClock) -> None:
        before = self.ended(store)
        clock.advance("8d")
        assert store.driver.prune(older_than_us=0) == 1
        assert store.driver.history(Find()) == []
        after = self.ended(store)
        assert after[0] > before[0]
        assert after[1] > before[1]
        assert store.driver.mark("history") == after[1]

    @pytest.mark.parametrize("order", ["ASC", "DESC"])
    def test_after_the_history_was_emptied_by_hand(self, store: QueueStore, path: Path, order: str) -> None:
        before = max(self.ended(store) for _ in range(3))
        with closing(sqlite3.connect(path)) as db:
            for (seq,) in db.execute(f"SELECT seq FROM penstock_history ORDER BY seq {order}").fetchall():
                db.execute("DELETE FROM penstock_history WHERE seq = ?", (seq,))
            db.commit()
        assert self.ended(store)[1] > before[1]

    def test_after_it_was_truncated_by_hand(self, store: QueueStore, path: Path) -> None:
        before = max(self.ended(store) for _ in range(3))
        with closing(sqlite3.connect(path)) as db:
            db.execute("DELETE FROM penstock_history")
            db.commit()
        assert store.driver.mark("history") == before[1]
        assert self.ended(store)[1] > before[1]

    def test_after_the_newest_dead_letter_was_purged(self, store: QueueStore) -> None:
        def reject(_: object) -> None:
            raise Reject("never")

        self.ended(store, reject)
        [before] = store.driver.dead(Find())
        store.driver.purge_dead(Find())
        self.ended(store, reject)
        [after] = store.driver.dead(Find())
        assert after.seq > before.seq

    def test_a_replayed_entry_has_a_number_of_its_own(self, store: QueueStore) -> None:
        first = store.queue("q").put(1).id
        handle_all(store)
        store.driver.replay([first])
        second = store.queue("q").put(2).id
        [replayed], [put] = store.driver.find(Find(ids=(first,))), store.driver.find(Find(ids=(second,)))
        assert replayed.seq < put.seq

    def test_a_copied_space_goes_on_behind_what_it_got(self, store: QueueStore, tmp_path: Path) -> None:
        self.ended(store)
        store.queue("q").put_many([1, 2, 3])
        with open_queues(f"sqlite:///{tmp_path}/other.db") as other:
            other.driver.load(store.driver.export("live"))
            other.driver.load(store.driver.export("history"))
            last = max(entry.seq for entry in other.driver.find(Find()))
            id_ = other.queue("q").put(4).id
            assert other.driver.find(Find(ids=(id_,)))[0].seq > last


# --- statements ------------------------------------------------------------------------------------------------------


class TestStatements:
    def traced(self, store: QueueStore, call: Callable[[], object]) -> list[str]:
        """What is run inside the transaction of a call."""
        seen: list[str] = []
        file_of(store)._writer.set_trace_callback(seen.append)
        call()
        file_of(store)._writer.set_trace_callback(None)
        begin, end = seen.index("BEGIN IMMEDIATE"), seen.index("COMMIT")
        assert seen.count("COMMIT") == 1
        return [statement for statement in seen[begin + 1 : end] if not statement.startswith("--")]

    def test_a_plain_put_takes_two(self, store: QueueStore) -> None:
        store.queue("q").put("makes the queue")
        assert len(self.traced(store, lambda: store.queue("q").put(1))) == 2

    @pytest.mark.parametrize("entries", [1, 50])
    def test_a_plain_round_trip_takes_six(self, store: QueueStore, entries: int) -> None:
        store.queue("q").put_many(range(entries * 3))
        held = store.driver.settle([], claim(store, entries)).claimed.entries
        steps = [Step((Ending(entry.lease, "done"),)) for entry in held if entry.lease is not None]
        assert len(steps) == entries
        assert len(self.traced(store, lambda: store.driver.settle(steps, claim(store, entries)))) == 6

    def test_a_heartbeat_changes_one_row_whatever_the_claim_holds(self, store: QueueStore) -> None:
        store.queue("q").put_many(range(80))
        held = store.driver.settle([], claim(store, 80)).claimed.entries
        before = file_of(store)._writer.total_changes
        ends = store.driver.extend([entry.lease for entry in held if entry.lease is not None], "2m")
        assert None not in ends
        assert file_of(store)._writer.total_changes == before + 1

    def test_who_holds_an_entry_is_looked_up_by_its_number(self, store: QueueStore, path: Path) -> None:
        texts = read_statements("sqlite.sql", "penstock")
        for name in ("live_by_seq", "lock_waiting", "lock_claimed", "held", "held_until", "extend"):
            for part in script(texts[name], ":{}").parts:
                values = {name: "[1]" if name in ("seqs", "claims") else 1 for name in part.names}
                with closing(sqlite3.connect(path)) as db:
                    plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {part.text}", values)]
                assert [step for step in plan if step.startswith("SCAN") and "VIRTUAL TABLE" not in step] == [], name

    @pytest.mark.parametrize("part", ["find_history", "find_dead", "find_live"])
    def test_the_newest_of_a_queue_are_found_without_sorting_the_queue(
        self, store: QueueStore, path: Path, part: str
    ) -> None:
        row, queue = ("e", "e.queue") if part == "find_live" else ("h", "q.queue")
        text = read_statements("sqlite.sql", "penstock")[part]
        with closing(sqlite3.connect(path)) as db:
            tail = f"WHERE {queue} = 'q' ORDER BY {row}.seq DESC LIMIT 10"
            plan = [step[3] for step in db.execute(f"EXPLAIN QUERY PLAN {text} {tail}")]
        assert [step for step in plan if "TEMP B-TREE" in step] == []

    @pytest.mark.parametrize("what", ["ready", "delayed", "more urgent and delayed"])
    def test_a_claim_does_not_read_the_backlog(self, store: QueueStore, what: str) -> None:
        def work_for_a_claim() -> int:
            counted = 0

            def count() -> int:
                nonlocal counted
                counted += 1
                return 0

            file_of(store)._writer.set_progress_handler(count, 10)
            assert len(store.driver.claim(claim(store, 5)).entries) == 5
            file_of(store)._writer.set_progress_handler(None, 10)
            return counted

        queue = store.queue("q")
        queue.put_many(range(10))
        options: dict[str, Any] = {
            "ready": {}, "delayed": {"delay": "1h"}, "more urgent and delayed": {"delay": "1h", "priority": 5}
        }[what]  # fmt: skip
        queue.put_many(range(100), **options)
        few = work_for_a_claim()
        queue.put_many(range(10_000), **options)
        assert work_for_a_claim() <= 2 * few


# --- commits that are shared -----------------------------------------------------------------------------------------


def test_an_unguarded_call_that_fails_is_undone_alone(store: QueueStore) -> None:
    """Calls that need no savepoint share the commit without one; should one fail all the same, they are done again."""
    import threading

    store.queue("q").put("makes the queue")
    file = file_of(store)
    outcomes: dict[int, Any] = {}

    def broken(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO penstock_meta VALUES ('half', 'done')")
        db.execute("SELECT * FROM no_such_table")

    def work(number: int) -> None:
        try:
            outcomes[number] = file.write(broken, guarded=False) if number == 2 else store.queue("q").put(number)
        except PenstockError as error:
            outcomes[number] = error

    file._lock.acquire()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    while len(file._pending) < 5:
        threading.Event().wait(0.001)
    file._let_go()
    for thread in threads:
        thread.join(30)
    assert isinstance(outcomes.pop(2), StoreCorrupt)
    assert all(outcome.created for outcome in outcomes.values())
    assert store.queue("q").counts().ready == 5
    with file.reading() as db:
        assert db.execute("SELECT count(*) FROM penstock_meta WHERE name = 'half'").fetchone() == (0,)


# --- what it needs ---------------------------------------------------------------------------------------------------

PUT_AND_DRAIN = """
import sys, penstock
with penstock.open_queues(sys.argv[1]) as store:
    handled = []
    store.queue("q", int).put(1)
    store.queue("q", int).put_many([2, 3])
    store.queue("q", int).add_handler(handled.append)
    penstock.Worker(store).drain()
    assert sorted(handled) == [1, 2, 3], handled
unwanted = ("sqlalchemy", "psycopg", "pymysql", "redis", "asyncio", "multiprocessing")
print(sorted(name for name in sys.modules if name.partition(".")[0] in unwanted))
"""


def test_the_standard_library_is_enough(path: Path) -> None:
    command = [sys.executable, "-c", PUT_AND_DRAIN, f"sqlite:///{path}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == "[]"

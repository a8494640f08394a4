"""What only the SQLite store does: its file, its library, its checkpoints, its commits, its neighbours."""

import importlib.util
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from penstock import PenstockError, QueueStore, Worker, open_queues
from penstock.errors import (
    BadInput,
    CannotOpen,
    SchemaMismatch,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from penstock.queue.drivers.sql import sqlite_file
from penstock.queue.drivers.sql.driver import SqlDriver
from penstock.queue.drivers.sql.sqlite import SqliteServer
from penstock.queue.drivers.sql.sqlite_file import SqliteFile
from penstock.queue.protocol import Find
from penstock.testing import FakeClock

PATIENCE = 30.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.db"


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[..., QueueStore]]:
    stores: list[QueueStore] = []

    def open_one(query: str = "", **options: Any) -> QueueStore:
        store = open_queues(f"sqlite:///{path}{query}", **options)
        assert isinstance(store.driver, SqlDriver)
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        store.close()


def file_of(store: QueueStore) -> SqliteFile:
    assert isinstance(store.driver.server, SqliteServer)
    return store.driver.server.file


def pragma(db: sqlite3.Connection, name: str) -> Any:
    return db.execute(f"PRAGMA {name}").fetchone()[0]


def in_child(work: Callable[[], None], *, uid: int | None = None) -> None:
    """Run work in a forked child, under another user if told, and fail if it fails."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if uid is not None and os.getuid() == 0:
                os.setgid(uid)
                os.setuid(uid)
            work()
            code = 0
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode()[:4000])
        finally:
            os._exit(code)
    os.close(writer)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(reader) as said:
        assert status == 0, said.read()


class TestOpening:
    """Everything that can be in the way is named, with what to do."""

    def test_relative_and_absolute_paths(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with open_queues("sqlite:///relative.db") as one, open_queues(f"sqlite:///{tmp_path}/relative.db") as other:
            one.queue("q").put("x")
            assert len(other.queue("q").find()) == 1
        assert (tmp_path / "relative.db").exists()

    def test_a_name_with_odd_characters(self, tmp_path: Path) -> None:
        with open_queues(f"sqlite:///{tmp_path}/my%20shop%3F%23%25.db") as store:
            store.queue("q").put("x")
        assert (tmp_path / "my shop?#%.db").exists()

    @pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite://host/shop.db", "sqlite://shop.db"])
    def test_no_file_named(self, url: str) -> None:
        with pytest.raises(BadInput, match="three slashes"):
            open_queues(url)

    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(CannotOpen, match=r"the folder .*/nowhere/deep does not exist.*mkdir -p"):
            open_queues(f"sqlite:///{tmp_path}/nowhere/deep/shop.db")

    def test_a_folder_instead_of_a_file(self, tmp_path: Path) -> None:
        with pytest.raises(CannotOpen, match="it is a folder"):
            open_queues(f"sqlite:///{tmp_path}")

    @pytest.mark.parametrize("query", ["?busy_timeout=soon", "?busy_timeout=-1", "?payload_limit=1k"])
    def test_bad_numbers(self, path: Path, query: str) -> None:
        with pytest.raises(BadInput, match=query[1:].partition("=")[0]):
            open_queues(f"sqlite:///{path}{query}")

    def test_payload_limit(self, opened: Callable[..., QueueStore]) -> None:
        assert opened("?payload_limit=1000").driver.payload_limit == 1000

    def test_no_database(self, path: Path) -> None:
        path.write_bytes(b"this is not a database at all, it is a letter to my aunt\n" * 50)
        before = path.read_bytes()
        with pytest.raises(StoreCorrupt, match="Nothing was changed") as caught:
            open_queues(f"sqlite:///{path}")
        assert str(path) in str(caught.value)
        assert path.read_bytes() == before

    def test_a_damaged_database_is_found_out_when_it_is_used(
        self, path: Path, opened: Callable[..., QueueStore]
    ) -> None:
        store = opened()
        store.queue("q").put_many([{"n": number, "pad": "x" * 200} for number in range(2000)])
        file_of(store).checkpoint()
        store.close()
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(4096 * 20)
            file.write(os.urandom(size - 4096 * 21))

        def use_it() -> None:
            damaged = opened()
            for _ in range(50):
                damaged.queue("q").find(limit=5000)
                assert not all(one.level == "good" for one in damaged.check()), "doctor sees nothing"
                damaged.queue("q").put("more")

        with pytest.raises(StoreCorrupt, match="damaged"):
            use_it()

    def test_tables_that_somebody_dropped(self, path: Path, opened: Callable[..., QueueStore]) -> None:
        store = opened()
        with sqlite3.connect(path) as connection:
            connection.execute("DROP TABLE penstock_schedules")
        with pytest.raises(StoreCorrupt, match=r"lost tables.*penstock_schedules"):
            store.schedules()

    @pytest.mark.parametrize("what", ["file", "folder"])
    def test_read_only(self, what: str) -> None:
        """As root nothing is read-only, so the check runs as nobody."""
        folder = Path(tempfile.mkdtemp(prefix="penstock-readonly-"))
        try:
            path = folder / "shop.db"
            if what == "file":
                open_queues(f"sqlite:///{path}").close()
                for one in folder.iterdir():
                    one.chmod(0o444)
            folder.chmod(0o555)

            def work() -> None:
                with pytest.raises((CannotOpen, StoreReadOnly), match="rights of the file and its folder") as caught:
                    open_queues(f"sqlite:///{path}")
                assert str(path) in str(caught.value)

            in_child(work, uid=65534)
        finally:
            folder.chmod(0o755)
            shutil.rmtree(folder)

    def test_a_connection_that_may_not_write(self, opened: Callable[..., QueueStore]) -> None:
        store = opened()
        file_of(store)._writer.execute("PRAGMA query_only = 1")
        with pytest.raises(StoreReadOnly, match="cannot be written"):
            store.queue("q").put("x")
        file_of(store)._writer.execute("PRAGMA query_only = 0")
        store.queue("q").put("x")

    def test_a_full_disk(self, opened: Callable[..., QueueStore]) -> None:
        store = opened()
        store.queue("q").put("before")
        pages = pragma(file_of(store)._writer, "page_count")
        file_of(store)._writer.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreFull, match="nothing was written"):
            store.queue("q").put_many(["x" * 200_000] * 20)
        assert [entry.payload for entry in store.driver.find(Find())] == [b'"before"']
        file_of(store)._writer.execute("PRAGMA max_page_count = 1000000")
        store.queue("q").put("after")

    def test_locked_by_another_for_too_long(self, path: Path, opened: Callable[..., QueueStore]) -> None:
        store = opened("?busy_timeout=1")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match=r"is locked.*BEGIN IMMEDIATE"):
            store.queue("q").put("x")
        other.execute("ROLLBACK")
        other.close()
        store.queue("q").put("x")

    def test_a_newer_schema_is_refused_and_left_alone(self, path: Path, opened: Callable[..., QueueStore]) -> None:
        store = opened()
        store.queue("q").put("x")
        store.close()
        db = sqlite3.connect(path)
        db.execute("UPDATE penstock_meta SET value = '999' WHERE name IN ('schema', 'schema_post')")
        db.commit()
        with pytest.raises(SchemaMismatch, match=r"version 999.*pip install --upgrade penstock"):
            opened()
        assert db.execute("SELECT count(*) FROM penstock").fetchone() == (1,)
        db.close()
        with open_queues(f"sqlite:///{path}?space=other") as other:
            other.queue("q").put("another space of the file is not touched by that")

    def test_opening_again_finds_everything(self, opened: Callable[..., QueueStore]) -> None:
        clock = FakeClock()
        store = opened(clock=clock)
        store.queue("q", fifo=True, rate="5/s").put("x", labels={"a": "1"}, unique="u")
        store.driver.lock("q", "me", "why")
        store.queue("q").schedule("s", "x", every="1h")
        before = store.counts(), store.schedules(), store.driver.find(Find())
        store.close()
        again = opened(clock=clock)
        assert (again.counts(), again.schedules(), again.driver.find(Find())) == before

    def test_spaces_are_table_families(self, path: Path, opened: Callable[..., QueueStore]) -> None:
        opened("?space=bus_events")
        opened("?space=notifications")
        db = sqlite3.connect(path)
        names = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        db.close()
        assert {"bus_events", "bus_events_history", "notifications", "notifications_history"} <= names

    def test_a_closed_store_lets_go_of_the_file(self, path: Path, opened: Callable[..., QueueStore]) -> None:
        store = opened()
        store.queue("q").put("x")
        store.close()
        folder = Path("/proc/self/fd")
        held = [os.readlink(folder / name) for name in os.listdir(folder) if (folder / name).is_symlink()]
        assert not [one for one in held if one.startswith(str(path))]


class TestAFileThatWasTakenAway:
    """Nothing is acknowledged into a file that nobody will find again."""

    @pytest.fixture
    def store(self, opened: Callable[..., QueueStore]) -> QueueStore:
        store = opened()
        store.queue("mails").put("first")
        return store

    @pytest.fixture(params=["removed", "replaced", "the folder removed"])
    def away(self, request: pytest.FixtureRequest, path: Path, store: QueueStore) -> None:
        if request.param == "the folder removed":
            shutil.rmtree(path.parent)
            return
        for name in path.parent.glob("shop.db*"):
            name.unlink()
        if request.param == "replaced":
            with open_queues(f"sqlite:///{path}") as other:
                other.queue("mails").put("of another file")

    @pytest.mark.usefixtures("away")
    def test_every_call_is_refused(self, path: Path, store: QueueStore) -> None:
        mails = store.queue("mails")
        calls: list[Callable[[], object]] = [
            lambda: mails.put("lost"), lambda: mails.put_many(["a", "b"]), mails.counts, store.check,
            lambda: store.driver.find(Find(queue="mails")), lambda: store.locks("none"),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(StoreUnavailable, match="removed or replaced"):
                call()

    @pytest.mark.usefixtures("away")
    def test_so_is_a_callers_transaction(self, path: Path, store: QueueStore) -> None:
        path.parent.mkdir(exist_ok=True)
        with sqlite3.connect(path) as connection, pytest.raises(StoreUnavailable, match="removed or replaced"):
            store.queue("mails").put("lost", connection=connection)

    def test_put_back_it_goes_on(self, path: Path, store: QueueStore) -> None:
        for name in sorted(path.parent.glob("shop.db*")):
            name.rename(name.with_name(f"away-{name.name}"))
        with pytest.raises(StoreUnavailable, match="removed or replaced"):
            store.queue("mails").put("not yet")
        for name in sorted(path.parent.glob("away-*")):
            name.rename(name.with_name(name.name.removeprefix("away-")))
        store.queue("mails").put("second")
        assert store.queue("mails").counts().ready == 2


class TestRights:
    def test_only_the_owner_reads_the_files(self, path: Path, opened: Callable[..., QueueStore]) -> None:
        old = os.umask(0)
        try:
            store = opened()
            store.queue("q").put_many(range(100))
            file_of(store).checkpoint()
        finally:
            os.umask(old)
        modes = {one.name: one.stat().st_mode & 0o777 for one in path.parent.iterdir()}
        assert modes.keys() >= {"shop.db", "shop.db-wal", "shop.db-shm"}
        assert set(modes.values()) == {0o600}

    def test_a_file_that_is_there_keeps_its_rights(self, path: Path, opened: Callable[..., QueueStore]) -> None:
        path.touch(mode=0o640)
        path.chmod(0o640)
        opened()
        assert path.stat().st_mode & 0o777 == 0o640


class TestOneLibrary:
    """A second SQLite library in the process silently drops the first one's file locks."""

    @pytest.mark.parametrize("name", ["apsw", "pysqlite3"])
    def test_refused_at_the_opening(self, path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        with pytest.raises(CannotOpen, match=rf"{name} brings a second SQLite library.*in another process"):
            open_queues(f"sqlite:///{path}")
        assert not path.exists()

    def test_one_that_comes_later_stops_the_checkpoints(
        self, opened: Callable[..., QueueStore], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = opened()
        monkeypatch.setitem(sys.modules, "apsw", ModuleType("apsw"))
        with pytest.raises(CannotOpen, match="apsw"):
            file_of(store).checkpoint()
        store.queue("q").put("puts go on")

    def test_the_real_ones_where_they_are_installed(self, path: Path) -> None:
        code = (
            "import sys, importlib, penstock; importlib.import_module(sys.argv[1]); penstock.open_queues(sys.argv[2])"
        )
        for name in sqlite_file.OTHER_LIBRARIES:
            if importlib.util.find_spec(name) is not None:
                command = [sys.executable, "-c", code, name, f"sqlite:///{path}"]
                result = subprocess.run(command, capture_output=True, text=True, check=False)
                assert "CannotOpen" in result.stderr


class TestPragmas:
    def test_durable_by_default(self, opened: Callable[..., QueueStore]) -> None:
        with file_of(opened()).reading() as db:
            assert (pragma(db, "journal_mode"), pragma(db, "synchronous")) == ("wal", 2)
        assert pragma(file_of(opened())._writer, "synchronous") == 2

    def test_fast_is_visible(self, opened: Callable[..., QueueStore]) -> None:
        store = opened("?durability=fast")
        assert pragma(file_of(store)._writer, "synchronous") == 1
        assert [one.level for one in store.check() if one.what == "durability"] == ["warning"]

    def test_no_connection_of_ours_checkpoints_by_itself(self, opened: Callable[..., QueueStore]) -> None:
        store = opened()
        assert sqlite_file.needs_guard() is (sqlite3.sqlite_version_info < (3, 51, 3))
        expected = 0 if sqlite_file.needs_guard() else 1000
        file_of(store).checkpoint()
        with file_of(store).reading() as db:
            assert pragma(db, "wal_autocheckpoint") == expected
        for own in (file_of(store)._writer, file_of(store)._checkpointer, file_of(store).connect()):
            assert own is not None
            assert pragma(own, "wal_autocheckpoint") == expected

    @pytest.mark.parametrize("began", [True, False])
    def test_nor_does_a_connection_passed_in(self, path: Path, opened: Callable[..., QueueStore], began: bool) -> None:
        store = opened()
        db = sqlite3.connect(path)
        if began:
            db.execute("CREATE TABLE business (n)")
            db.execute("INSERT INTO business VALUES (1)")
        assert pragma(db, "wal_autocheckpoint") == 1000
        store.queue("q").put("x", connection=db)
        assert pragma(db, "wal_autocheckpoint") == (0 if sqlite_file.needs_guard() else 1000)
        db.commit()
        db.close()

    @pytest.mark.parametrize(
        ("version", "guarded"), [((3, 51, 2), True), ((3, 51, 3), False), ((3, 40, 1), True), ((3, 54, 0), False)]
    )
    def test_the_guard_goes_by_the_librarys_version(
        self,
        opened: Callable[..., QueueStore],
        monkeypatch: pytest.MonkeyPatch,
        version: tuple[int, ...],
        guarded: bool,
    ) -> None:
        monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
        store = opened()
        assert pragma(file_of(store)._writer, "wal_autocheckpoint") == (0 if guarded else 1000)
        [library] = [one for one in store.check() if one.what == "sqlite library"]
        assert library.level == ("warning" if guarded else "good")


class TestCheckpoints:
    """Guarded: one at a time over all processes, with the write lock held."""

    @pytest.fixture(autouse=True)
    def guarded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite_file, "needs_guard", lambda: True)

    def test_the_log_does_not_grow_without_bound(self, path: Path, opened: Callable[..., QueueStore]) -> None:
        store = opened("?durability=fast")
        queue, log = store.queue("q"), Path(f"{path}-wal")
        sizes = []
        for _ in range(20):
            for number in range(300):
                queue.put({"n": number, "pad": "x" * 500})
            sizes.append(log.stat().st_size)
        assert max(sizes[10:]) <= 2 * max(sizes[:10]), sizes
        assert max(sizes) < 100 * 1024 * 1024

    def test_pages_reach_the_file(self, path: Path, opened: Callable[..., QueueStore]) -> None:
        store = opened()
        before = path.stat().st_size
        store.queue("q").put_many(["x" * 1000] * 500)
        assert file_of(store).checkpoint() > 0
        assert path.stat().st_size > before + 400_000

    def test_only_under_the_flock(self, path: Path, opened: Callable[..., QueueStore]) -> None:
        import fcntl

        store = opened()
        store.queue("q").put_many(["x" * 1000] * 100)
        with open(f"{path}-checkpoint", "a") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            assert file_of(store).checkpoint() == 0
        assert file_of(store).checkpoint() > 0

    def test_with_the_write_lock_held(self, opened: Callable[..., QueueStore]) -> None:
        store = opened()
        store.queue("q").put("x")
        file_of(store).checkpoint()
        assert file_of(store)._checkpointer is not None
        seen: list[str] = []
        file_of(store)._writer.set_trace_callback(lambda statement: seen.append(f"writer {statement}"))
        file_of(store)._checkpointer.set_trace_callback(lambda statement: seen.append(f"checkpointer {statement}"))
        file_of(store).checkpoint()
        assert [one for one in seen if "data_version" not in one] == [
            "writer BEGIN IMMEDIATE", "checkpointer PRAGMA wal_checkpoint(PASSIVE)", "writer ROLLBACK"
        ]  # fmt: skip

    def test_a_busy_writer_of_another_process_delays_it(self, path: Path, opened: Callable[..., QueueStore]) -> None:
        store = opened("?busy_timeout=1")
        store.queue("q").put("x")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable):
            file_of(store).checkpoint()
        other.execute("ROLLBACK")
        other.close()

    def test_a_failing_checkpoint_fails_no_put(
        self, opened: Callable[..., QueueStore], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = opened("?durability=fast")
        calls = []

        def fail() -> int:
            calls.append(1)
            raise StoreUnavailable("no checkpoint today")

        monkeypatch.setattr(file_of(store), "checkpoint_locked", fail)
        for number in range(200):
            store.queue("q").put(number)
        assert calls
        assert len(store.queue("q").find()) == 200


class TestGroupCommit:
    """Callers that come together share a commit, and nothing else."""

    def commits(self, store: QueueStore) -> list[str]:
        seen: list[str] = []
        file_of(store)._writer.set_trace_callback(
            lambda statement: seen.append(statement) if statement == "COMMIT" else None
        )
        return seen

    def test_eight_threads_need_far_fewer_commits_than_puts(self, opened: Callable[..., QueueStore]) -> None:
        store = opened()
        commits = self.commits(store)
        queue, barrier = store.queue("q"), threading.Barrier(8)

        def work() -> None:
            barrier.wait(PATIENCE)
            for number in range(50):
                queue.put(number)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert len(queue.find()) == 400
        assert len(commits) <= 200, f"{len(commits)} commits for 400 puts"

    def test_those_who_wait_for_the_writer_are_one_commit(self, opened: Callable[..., QueueStore]) -> None:
        store = opened()
        commits, results = self.commits(store), []
        file_of(store)._lock.acquire()

        def work(number: int) -> None:
            results.append(store.queue("q").put(number, unique=str(number % 5)))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
        for thread in threads:
            thread.start()
        while len(file_of(store)._pending) < 10:
            threading.Event().wait(0.001)
        file_of(store)._let_go()
        for thread in threads:
            thread.join(PATIENCE)
        assert len(commits) == 1
        assert sum(one.created for one in results) == 5
        assert len(store.queue("q").find()) == 5

    def test_one_callers_failure_is_no_others(self, opened: Callable[..., QueueStore]) -> None:
        store = opened()
        store.queue("q").put("there", id="taken")
        outcomes: dict[int, Any] = {}
        file_of(store)._lock.acquire()

        def broken(db: sqlite3.Connection) -> None:
            db.execute("INSERT INTO penstock_meta VALUES ('half', 'done')")
            db.execute("SELECT * FROM no_such_table")

        def work(number: int) -> None:
            try:
                if number == 0:
                    outcomes[number] = store.queue("q").put("other", id="taken")
                elif number == 1:
                    outcomes[number] = file_of(store).write(broken)
                else:
                    outcomes[number] = store.queue("q").put(number)
            except PenstockError as error:
                outcomes[number] = error

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        while len(file_of(store)._pending) < 6:
            threading.Event().wait(0.001)
        file_of(store)._let_go()
        for thread in threads:
            thread.join(PATIENCE)
        assert [type(outcomes[number]).__name__ for number in range(6)] == [
            "Conflict", "StoreCorrupt", "PutResult", "PutResult", "PutResult", "PutResult"
        ]  # fmt: skip
        assert len(store.queue("q").find()) == 5
        with file_of(store).reading() as db:
            assert db.execute("SELECT count(*) FROM penstock_meta WHERE name = 'half'").fetchone() == (0,)

    def test_a_commit_that_fails_fails_all_and_leaves_nothing(
        self, path: Path, opened: Callable[..., QueueStore]
    ) -> None:
        store = opened("?busy_timeout=1")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        errors: list[BaseException] = []

        def work(number: int) -> None:
            try:
                store.queue("q").put(number)
            except PenstockError as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        other.execute("ROLLBACK")
        other.close()
        assert [type(error) for error in errors] == [StoreUnavailable] * 4
        assert store.queue("q").find() == []


def _put_there(path: str, name: str, number: int) -> None:
    with open_queues(f"sqlite:///{path}") as store:
        for index in range(number):
            store.queue("q").put([name, index], unique=f"{name}-{index}")


def _work_there(path: str) -> None:
    with open_queues(f"sqlite:///{path}?space=penstock") as store:
        store.queue("q").add_handler(lambda value, ctx: ctx.put(store.queue("done"), value))
        Worker(store).drain()


class TestSeveralProcesses:
    def spawn(self, *targets: tuple[Any, ...]) -> None:
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=target, args=args) for target, *args in targets]
        for process in processes:
            process.start()
        for process in processes:
            process.join(PATIENCE * 2)
        assert [process.exitcode for process in processes] == [0] * len(processes)

    def test_all_write_at_once_and_nothing_is_lost(self, path: Path, opened: Callable[..., QueueStore]) -> None:
        self.spawn(*[(_put_there, str(path), name, 60) for name in "abc"])
        store = opened()
        assert len(store.queue("q").find()) == 180
        assert [one.level for one in store.check() if one.what == "integrity"] == ["good"]

    def test_all_work_at_once_and_nothing_is_done_twice(self, path: Path, opened: Callable[..., QueueStore]) -> None:
        store = opened()
        store.queue("q").put_many(range(150))
        self.spawn(*[(_work_there, str(path))] * 3)
        done = sorted(int(entry.payload) for entry in store.driver.find(Find(queue="done")))
        assert done == list(range(150))
        assert len(store.driver.history(Find(queue="q"))) == 150

    def test_a_put_of_another_process_rings_here(self, path: Path, opened: Callable[..., QueueStore]) -> None:
        store = opened()
        store.driver.wait(store.driver.bell(), 0.01)
        seen, rang = store.driver.bell(), threading.Event()

        def wait() -> None:
            if store.driver.wait(seen, PATIENCE):
                rang.set()

        threading.Thread(target=wait, daemon=True).start()
        self.spawn((_put_there, str(path), "a", 1))
        assert rang.wait(PATIENCE)


class TestForks:
    """A forked child must not touch its parent's connections, and must not need to know."""

    def test_parent_and_child_both_go_on(self, opened: Callable[..., QueueStore]) -> None:
        store = opened()
        queue = store.queue("q")
        queue.put("before")
        for connection in (file_of(store)._writer,):
            assert connection.in_transaction is False

        def work() -> None:
            queue.put("child")
            assert len(queue.find()) == 2
            with store.unit() as unit:
                unit.take(queue)
                unit.put(store.queue("r"), "of the child")
                unit.commit()
            assert store.driver.wait(store.driver.bell(), 0.05) in (True, False)

        in_child(work)
        queue.put("after")
        assert sorted(entry.payload for entry in store.driver.find(Find())) == [
            b'"after"',
            b'"child"',
            b'"of the child"',
        ]
        assert [one.level for one in store.check() if one.what == "integrity"] == ["good"]

    def test_the_child_uses_no_connection_of_its_parent(self, opened: Callable[..., QueueStore]) -> None:
        store = opened()
        store.queue("q").put("x")
        assert store.queue("q").find()
        file_of(store).checkpoint()
        store.driver.wait(store.driver.bell(), 0.01)
        inherited = [file_of(store)._writer, *file_of(store)._readers, file_of(store)._checkpointer]

        def work() -> None:
            def touched(statement: str) -> None:
                os._exit(9)

            for connection in inherited:
                assert connection is not None
                connection.set_trace_callback(touched)
            store.queue("q").put("y")
            store.queue("q").find()
            store.driver.wait(store.driver.bell(), 0.05)
            file_of(store).checkpoint()

        in_child(work)

    def test_the_child_keeps_its_own_leases_alive(self, opened: Callable[..., QueueStore]) -> None:
        store = opened()
        store.queue("q").put_many([1, 2])
        unit = store.unit(lease="300ms")
        unit.take(store.queue("q"))

        def work() -> None:
            beaten = threading.Event()
            store.signals.subscribe(lambda signal: beaten.set(), "extended")
            with store.unit(lease="300ms") as mine:
                mine.take(store.queue("q"))
                assert beaten.wait(PATIENCE), "no heartbeat in the child"
                mine.rollback()

        in_child(work)
        unit.rollback()

    def test_a_fork_while_another_thread_writes(self, opened: Callable[..., QueueStore]) -> None:
        store = opened("?durability=fast")
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                store.queue("q").put("x")

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(5):
                in_child(lambda: store.queue("child").put("y") and None)
        finally:
            stop.set()
            thread.join(PATIENCE)
        assert len(store.queue("child").find()) == 5


class TestConnections:
    """What a caller may pass in."""

    def test_sqlalchemys_connection_and_session(self, path: Path, opened: Callable[..., QueueStore]) -> None:
        store = opened()
        engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE business (n INTEGER)"))
        with engine.begin() as connection:
            connection.execute(text("INSERT INTO business VALUES (1)"))
            store.queue("q").put("connection", connection=connection)
        with Session(engine) as session:
            session.execute(text("INSERT INTO business VALUES (2)"))
            store.queue("q").put("rolled back", connection=session)
            session.rollback()
        with Session(engine) as session, session.begin():
            session.execute(text("INSERT INTO business VALUES (3)"))
            store.queue("q").put("session", connection=session)
        with engine.connect() as connection:
            assert [row[0] for row in connection.execute(text("SELECT n FROM business"))] == [1, 3]
        engine.dispose()
        assert [entry.payload for entry in store.driver.find(Find())] == [b'"connection"', b'"session"']

    def test_sqlalchemy_with_begin_immediate(self, path: Path, opened: Callable[..., QueueStore]) -> None:
        store = opened()
        engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        with engine.begin() as connection:
            store.queue("q").put("x", connection=connection)
            assert store.queue("q").find() == []
        engine.dispose()
        assert len(store.queue("q").find()) == 1

    @pytest.mark.parametrize("bad", ["another file", "memory", "no connection", "autocommit"])
    def test_refused(self, path: Path, tmp_path: Path, opened: Callable[..., QueueStore], bad: str) -> None:
        store = opened()
        connection: Any = {
            "another file": lambda: sqlite3.connect(tmp_path / "other.db"),
            "memory": lambda: sqlite3.connect(":memory:"),
            "no connection": object,
            "autocommit": lambda: sqlite3.connect(path, isolation_level=None),
        }[bad]()
        with pytest.raises(BadInput, match="connection=") as caught:
            store.queue("q").put("x", connection=connection)
        assert caught.value.hint
        if hasattr(connection, "close"):
            connection.close()
        assert store.queue("q").find() == []

    def test_autocommit_inside_a_transaction_is_fine(self, path: Path, opened: Callable[..., QueueStore]) -> None:
        store = opened()
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        store.queue("q").put("x", connection=connection)
        connection.execute("COMMIT")
        connection.close()
        assert len(store.queue("q").find()) == 1

    def test_a_reader_that_cannot_become_a_writer_is_told_what_to_do(
        self, path: Path, opened: Callable[..., QueueStore]
    ) -> None:
        store = opened()
        connection = sqlite3.connect(path, timeout=0.1, isolation_level=None)
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM penstock").fetchone()
        store.queue("q").put("meanwhile")
        with pytest.raises(StoreUnavailable, match="BEGIN IMMEDIATE"):
            store.queue("q").put("x", connection=connection)
        connection.execute("ROLLBACK")
        connection.close()


class TestDoctor:
    def test_all_is_well(self, opened: Callable[..., QueueStore]) -> None:
        store: QueueStore = opened()
        found = {one.what: one for one in store.check()}
        assert found.keys() >= {"integrity", "schema", "durability", "sqlite library", "write-ahead log"}
        assert sqlite3.sqlite_version in found["sqlite library"].detail
        assert [one.level for one in found.values() if one.what != "sqlite library"] == ["good"] * (len(found) - 1)

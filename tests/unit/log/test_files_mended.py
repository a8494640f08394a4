"""The file store beside others: repair, retention, full disks, foreign files, forks, stopped committers."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import LogStore, open_logs
from penstock.errors import (
    AppenderTaken,
    Closed,
    Fenced,
    OffsetOutOfRange,
    PayloadTooLarge,
    PenstockError,
    RecordCorrupt,
    StoreCorrupt,
    StoreFull,
)
from penstock.log import Partition, Retention
from penstock.log.drivers.files import locks
from penstock.log.drivers.files.format import segments
from penstock.log.drivers.files.groups.leases import GroupState
from penstock.log.drivers.files.ops import repair, verify
from penstock.log.drivers.files.reading.reader import FileReader
from penstock.log.drivers.files.writing.producers import ProducerEpoch

PLACE = Partition("log", 0)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    handles: list[LogStore] = []

    def open_one(options: str = "durability=fast") -> Any:
        handles.append(open_logs(f"file://{tmp_path / 'store'}?{options}"))
        return handles[-1]

    yield open_one
    for handle in handles:
        handle.close()


def count(store: LogStore) -> int:
    return sum(map(len, store.batches(PLACE)))


def folder(store: Any) -> Path:
    return Path(store.driver.root) / "logs" / "log" / "p-0000"


# --- beside appenders and retention -----------------------------------------------------------------------


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_deleted_log_does_not_keep_others_from_the_disk(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, *, elsewhere: bool
) -> None:
    store, other = opened(), opened()
    monkeypatch.setattr(store.driver.background_sync, "_seconds", 600)
    for name in ("a", "log", "z"):
        store.create(name)
        with store.appender(name, bytes) as out:
            out.append(b"x")
    store.sync()
    for name in ("a", "log", "z"):
        with store.appender(name, bytes) as out:
            out.append(b"y")
    (other if elsewhere else store).delete("a")
    store.driver.background_sync.sync_all()
    for name in ("log", "z"):
        part = store.driver.folder(name).partition(0)
        assert part.slot.durable() == part.slot.end()


def test_repair_of_a_log_that_grows_changes_nothing(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = opened(), opened()
    store.create("log", segment_bytes=65536)
    with store.appender("log", bytes) as out, other.appender("log", bytes) as beside:
        out.append_many([b"x" * 200] * 50)
        real = segments.bases
        rolling: list[threading.Thread] = []

        def grow() -> None:
            for _ in range(12):
                beside.append_many([b"y" * 200] * 50)

        def slow(path: Path) -> list[int]:
            if not rolling:
                rolling.append(threading.Thread(target=grow))
                rolling[0].start()
                rolling[0].join(0.3)  # it goes on if nothing keeps it away
            return real(path)

        monkeypatch.setattr(verify, "bases", slow)
        monkeypatch.setattr(repair, "bases", slow)
        assert [one.level for one in store.repair("log")] == ["good"]
        rolling[0].join(10)
        assert count(store) == 650
        assert not list(folder(store).glob("*.damaged"))
        assert [one.level for one in store.verify("log")] == ["good"]


def test_what_another_one_repaired_is_not_put_aside(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened()
    store.create("log")
    with store.appender("log", bytes) as out:
        out.append_many([b"x"] * 10)
    real, calls = verify.damages, []

    def stale(part: Any) -> Any:
        calls.append(part)
        return iter([verify.Damage(0, 0, 8, 0, 5, "was bad")]) if len(calls) == 1 else real(part)

    monkeypatch.setattr(repair, "damages", stale)
    assert [one.level for one in store.repair("log")] == ["good"]
    assert count(store) == 10


def test_retention_at_the_heels_of_a_reader(opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """It strikes between the look at the start and the look at the files: reading goes on where something is left."""
    store, other = opened(), opened()
    store.create("log", segment_bytes=4096, retention=Retention(size=20_000))
    with (
        other.appender("log", bytes) as out,
        store.tailer("log", "early", bytes, out_of_range="earliest") as early,
        store.tailer("log", "strict", bytes, out_of_range="error") as strict,
    ):
        for _ in range(4):
            out.append_many([b"x" * 300] * 10)
        early.read(2)
        strict.read(2)
        batches = store.batches(PLACE)
        next(batches)
        real = FileReader.read
        struck: list[bool] = []

        def late(self: FileReader, offset: int, limit: int) -> Any:
            if not struck:
                struck.append(True)
                self.close()  # it begins with a search, as after a seek
                for _ in range(20):
                    out.append_many([b"y" * 300] * 10)
            return real(self, offset, limit)

        monkeypatch.setattr(FileReader, "read", late)
        skipped: list[Any] = []
        store.signals.subscribe(skipped.append, "skipped")
        assert early.read(1000)[-1].offset == 239
        assert len(skipped) == 1
        with pytest.raises(OffsetOutOfRange):
            strict.read(1000)
        with pytest.raises(OffsetOutOfRange, match="retention"):
            list(batches)


def test_reading_while_retention_removes(opened: Callable[..., Any]) -> None:
    store = opened()
    store.create("log", segment_bytes=16384, retention=Retention(size=50_000))
    ended = threading.Event()

    def write() -> None:
        with opened().appender("log", bytes) as out:
            while not ended.is_set():
                out.append_many([b"x" * 200] * 100)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with store.tailer("log", "g", bytes, out_of_range="earliest") as tail:
            until = time.monotonic() + 2
            while time.monotonic() < until:
                tail.read(7, timeout="100ms")
                store.bounds("log")
                assert all(one.level == "good" for one in store.verify("log"))
                try:
                    for _ in store.batches(PLACE):
                        pass
                except OffsetOutOfRange:
                    pass  # typed, and true
    finally:
        ended.set()
        writer.join()


# --- full disks and limits ----------------------------------------------------------------------------------


def test_deleting_needs_no_room(opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened()
    for name in ("log", "other"):
        store.create(name)
    with store.tailer("other", "g") as tail:
        tail.commit()
    half = Path(store.driver.root) / "groups" / "half"
    (half / "offsets").mkdir(parents=True)
    (half / "leases").mkdir()
    (half / "state").touch()  # what a group that found no room leaves behind

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("penstock.log.drivers.files.groups.leases.os.pwrite", full)
    assert store.forget("half") is False
    assert store.delete("log")
    with pytest.raises(StoreFull):
        store.reset("new", {Partition("other", 0): 0})
    assert store.forget("g") is True
    assert store.delete("other")


def test_a_group_without_room_keeps_no_file_open(opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.log.drivers.files.groups.offsets import GroupFolder

    store = opened()

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("penstock.log.drivers.files.groups.leases.os.pwrite", full)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(OSError, match="space"):
            GroupState(GroupFolder(store.driver.root, "g"))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("url", ["memory://", "file"])
def test_the_limit_is_for_the_whole_record(url: str, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store" if url == "file" else url
    with open_logs(f"{url}?record_limit=1000" if url != "memory://" else url) as store:
        store.driver.record_limit = 1000
        store.create("log")
        with store.appender("log", bytes) as out:
            out.append(b"x" * 500, key="k" * 300, headers={"h": "v" * 199})
            for record in (
                {"key": "k" * 501},
                {"key": "é" * 251},
                {"headers": {"h": "v" * 500}},
                {"key": "k" * 300, "headers": {"h": "v" * 200}},
            ):
                with pytest.raises(PayloadTooLarge):
                    out.append(b"x" * 500, **record)
            out.append_many([b"x" * 900] * 5, keys=["k" * 90] * 5)
            with pytest.raises(PayloadTooLarge):
                out.append_many([b"x" * 900] * 5, keys=["k", None, "k" * 101, None, None])
        assert store.bounds("log")[0].end == 6


# --- exclusive appenders and producers -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_an_exclusive_appender_keeps_transactions_away(kind: str, tmp_path: Path) -> None:
    url = "memory://exclusive" if kind == "memory" else f"file://{tmp_path}/store?durability=fast"
    with open_logs(url) as store, open_logs(url) as other:
        store.create("log")

        def transact(through: LogStore) -> None:
            with through.transaction() as unit:
                unit.append("log", "x")
                unit.commit()

        with store.appender("log", exclusive=True):
            with pytest.raises(AppenderTaken, match="exclusive"):
                transact(other)
            transact(store)
        transact(other)
        with store.appender("log"):
            transact(other)
        assert store.bounds("log")[0].end == 3


def test_a_producer_is_fenced_under_the_lock(opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened()
    store.create("log")
    with store.appender("log", producer="p") as old:
        old.append("one", sequence=1)
        real = ProducerEpoch.stamp

        def late(self: ProducerEpoch, sequence: int | None) -> Any:
            stamp = real(self, sequence)
            monkeypatch.undo()
            ProducerEpoch(Path(store.driver.root) / "producers", "p").close()  # another one begins meanwhile
            return stamp

        monkeypatch.setattr(ProducerEpoch, "stamp", late)
        with pytest.raises(Fenced):
            old.append("two", sequence=2)
    assert count(store) == 1


def test_a_refused_transaction_of_memory_can_be_repeated() -> None:
    with open_logs("memory://") as store:
        store.create("log")
        store.create("in")
        with store.tailer("in", "g", max_poll="1s") as tail:
            unit = store.transaction(producer="p", sequence=1)
            unit.append("log", "x")
            unit.commit_offsets(tail)
            tail.source.epochs[Partition("in", 0)] = 99  # type: ignore[attr-defined]
            with pytest.raises(Fenced):
                unit.commit()
        with store.transaction(producer="p", sequence=1) as again:
            again.append("log", "x")
            assert not again.commit().duplicate
        assert store.bounds("log")[0].end == 1


# --- damage and foreign files ----------------------------------------------------------------------------------


def spoil_mark(root: Path) -> None:
    (root / "penstock-logs.json").write_text('{"for')


def spoil_mark_otherwise(root: Path) -> None:
    (root / "penstock-logs.json").write_text("[1]")


def remove_partition(root: Path) -> None:
    shutil.rmtree(root / "logs" / "log" / "p-0000")


def remove_segment(root: Path) -> None:
    segments.segment_path(root / "logs" / "log" / "p-0000", 0).unlink()


def put_folder_in_place(root: Path) -> None:
    path = segments.segment_path(root / "logs" / "log" / "p-0000", 0)
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "spoil", [spoil_mark, spoil_mark_otherwise, remove_partition, remove_segment, put_folder_in_place]
)
def test_damage_is_told_in_our_words(opened: Callable[..., Any], spoil: Callable[[Path], None]) -> None:
    store = opened()
    store.create("log")
    with store.appender("log", bytes) as out:
        out.append_many([b"x"] * 10)
    store.close()
    spoil(store.driver.root)

    def read() -> None:
        with opened().tailer("log", "g", bytes) as tail:
            tail.read()

    def append() -> None:
        with opened().appender("log", bytes) as out:
            out.append(b"y")

    for use in (read, append, lambda: list(opened().batches(PLACE))):
        with pytest.raises(StoreCorrupt):
            use()
    with contextlib.suppress(StoreCorrupt):
        assert any(one.level == "bad" for one in opened().verify("log"))


def test_foreign_files_among_groups(opened: Callable[..., Any]) -> None:
    store = opened()
    store.create("log")
    with store.tailer("log", "g") as tail:
        tail.commit()
    for folder in ("groups", "staged"):
        (Path(store.driver.root) / folder / "junk").write_text("x")
    assert store.groups("log") == ["g"]
    assert all(one.level == "good" for one in store.verify("log"))
    store.stage("log").discard()
    assert store.delete("log")


def test_without_a_control_file_whole_records_behind_a_bad_one_stay(opened: Callable[..., Any]) -> None:
    store = opened()
    store.create("log")
    with store.appender("log", bytes) as out:
        for number in range(20):
            out.append(b"%d" % number)
    store.close()
    path = segments.segment_path(folder(store), 0)
    data = bytearray(path.read_bytes())
    size = len(data) // 20
    data[5 * size + size - 8] ^= 1
    path.write_bytes(data[:-3])  # and a torn tail
    (Path(store.driver.root) / "logs" / "log" / "ctl").unlink()
    store = opened()
    assert store.bounds("log")[0].end == 19
    with pytest.raises(RecordCorrupt, match="offset 5"):
        list(store.batches(PLACE))
    assert any(one.level == "bad" for one in store.repair("log"))
    assert count(store) == 18
    with store.appender("log", bytes) as out:
        assert out.append(b"on").value == 19


# --- forks and stopped processes ----------------------------------------------------------------------------------


def test_a_forked_child_may_close_and_not_read(opened: Callable[..., Any]) -> None:
    store = opened()
    store.create("log")
    with store.appender("log") as out, store.tailer("log", "g") as tail:
        out.append("one")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                try:
                    tail.read()
                except Closed:
                    code = 2
                tail.close()
                store.close()
                store.close()
                code += 10
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 12
        out.append("two")
        assert [record.value for record in tail.read(timeout="1s")] == ["one", "two"]
        tail.commit()


STOPPED = """
import signal, sys, threading
import penstock
from penstock import failpoints
writes = []
def strike(point):
    if point == "log.write.after":
        writes.append(point)
        if len(writes) == 2:
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
failpoints.arm(strike)
with penstock.open_logs(sys.argv[1]) as store, store.transaction() as unit:
    unit.append("log", "T")
    unit.commit()
"""


def test_a_stopped_committer_stands_only_in_the_way_of_its_logs(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 1.0)
    store = opened()
    for name in ("log", "other"):
        store.create(name)
        with store.transaction() as unit:
            unit.append(name, "0")
            unit.commit()
    child = subprocess.Popen([sys.executable, "-c", STOPPED, f"file://{tmp_path / 'store'}?durability=fast"])
    try:
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert store.bounds("other")[0].end == 1
        with store.tailer("other", "g") as tail:
            assert [record.value for record in tail.read()] == ["0"]
            begin = time.monotonic()
            for _ in range(20):
                tail.read()
            tail.commit()
            assert store.lag("other", "g").lag == 0
            assert time.monotonic() - begin < 0.8
        with pytest.raises(PenstockError, match="locked by another process"):
            store.bounds("log")
    finally:
        os.kill(child.pid, signal.SIGCONT)
    assert child.wait(20) == 0
    assert store.bounds("log")[0].end == 2


def test_a_log_made_anew_by_another_handle_is_the_new_one(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/logs?durability=fast"
    with open_logs(url) as mine, open_logs(url) as theirs:
        mine.create("log", 4)
        with mine.appender("log", int) as appender:
            appender.append_many(range(10), partition=1)
        assert theirs.delete("log")
        theirs.create("log", 2)
        assert mine.settings("log").partitions == 2
        assert [bounds.end for bounds in mine.bounds("log")] == [0, 0]
        with mine.appender("log", int) as appender:
            appender.append(7, partition=1)
        with mine.transaction() as transaction:
            transaction.append("log", 8, int, partition=1)
            transaction.commit()
        assert [record.value for record in theirs.log("log", int).records(1)] == [7, 8]
        assert [record.value for record in mine.log("log", int).records(1)] == [7, 8]


def test_damage_in_one_partition_takes_nothing_from_the_others(opened: Callable[..., Any]) -> None:
    store = opened()
    store.create("log", 3)
    with store.appender("log", bytes) as out:
        for partition in range(3):
            out.append_many([b"%d" % number for number in range(10)], partition=partition)
            out.append_many([b"%d" % number for number in range(10, 20)], partition=partition)
    path = segments.segment_path(folder(store).with_name("p-0001"), 0)
    data = bytearray(path.read_bytes())
    second = next(at for at, header in segments.headers(data, 0, 0, len(data)) if header.offset == 10)
    data[second + 130] ^= 1
    path.write_bytes(data)
    found: list[tuple[int, int]] = []

    def read_on() -> None:
        for _ in range(10):
            found.extend((record.partition, record.offset) for record in tail.read(timeout="0s"))

    with store.tailer("log", "readers", bytes) as tail, pytest.raises(RecordCorrupt, match="offsets 10 to 19") as told:
        read_on()
    assert (told.value.partition, told.value.offset) == ("log-01", 10)
    assert sorted(found) == [
        (partition, offset) for partition, last in ((0, 20), (1, 10), (2, 20)) for offset in range(last)
    ]

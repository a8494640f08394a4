"""Files that were written aside become segments: nothing is copied, and nothing is half done."""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import LogStore, failpoints, open_logs
from penstock.errors import Conflict, StoreUnavailable
from penstock.log import Partition
from penstock.log.drivers.files.format import control, index, segments
from penstock.log.drivers.files.writing import adoption
from penstock.log.protocol import Staged
from penstock.log.record import NewRecords

PLACE = Partition("log", 0)
DAY = 24 * 3600 * 1_000_000


@pytest.fixture(params=["durable", "fast"])
def opened(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], LogStore]]:
    handles: list[Any] = []
    monkeypatch.setattr(adoption, "ADOPT_BYTES", 100)

    def open_one() -> LogStore:
        handles.append(open_logs(f"file://{tmp_path / 'store'}?durability={request.param}"))
        store: LogStore = handles[-1]
        return store

    yield open_one
    for handle in handles:
        handle.close()


@pytest.fixture
def store(opened: Callable[[], LogStore]) -> LogStore:
    found = opened()
    found.create("log", 2)
    return found


def value(number: int) -> bytes:
    return b"%05d " % number + b"x" * 94


def stage(store: LogStore, numbers: range, partition: int = 0, each: int = 10) -> Staged:
    """Write some records aside, in frames of ``each``; the time of a record is its number of days."""
    aside = store.stage("log")
    for begin in range(numbers.start, numbers.stop, each):
        ranks = range(begin, min(begin + each, numbers.stop))
        records = NewRecords(list(map(value, ranks)), [f"k{one}" for one in ranks], [one * DAY for one in ranks])
        aside.append([(partition, records)])
    return aside.close()


def commit(store: LogStore, *staged: Staged, sequence: int = 1) -> bool:
    """Whether it had not happened before."""
    with store.transaction(producer="query", sequence=sequence) as transaction:
        transaction.append_staged(*staged)
        return not transaction.commit().duplicate


def held(store: LogStore, partition: int = 0) -> list[int]:
    return [int(record.payload[:5]) for record in store.log("log", bytes).records(partition)]


def folder(store: LogStore, partition: int = 0) -> Path:
    return store.driver.root / "logs" / "log" / f"p-{partition:04d}"


def inode(store: LogStore, staged: Staged, rank: int = 0) -> int:
    return (store.driver.root / "staged" / staged.path / staged.files[rank].name).stat().st_ino


def inodes(store: LogStore) -> list[int]:
    return [segments.segment_path(folder(store), base).stat().st_ino for base in segments.bases(folder(store))]


def assert_whole(store: LogStore) -> None:
    assert [one for one in store.verify() if one.level != "good"] == []
    assert list((store.driver.root / "staged").iterdir()) == []


def test_a_staged_file_is_the_segment(store: LogStore) -> None:
    first, second = stage(store, range(50)), stage(store, range(50, 90))
    expected = [inode(store, first), inode(store, second)]
    assert commit(store, first, second)
    assert inodes(store) == expected
    assert held(store) == list(range(90))
    assert [record.offset for record in store.log("log", bytes).records(0)] == list(range(90))
    assert_whole(store)


def test_appends_go_on_in_the_adopted_segment(store: LogStore, opened: Callable[[], LogStore]) -> None:
    other = opened()
    with store.appender("log", bytes) as mine, other.appender("log", bytes) as theirs:
        mine.append(value(0), partition=0)
        theirs.append(value(1), partition=0)
        assert commit(store, stage(store, range(2, 40)))
        theirs.append(value(40), partition=0)
        mine.append(value(41), partition=0)
        assert commit(other, stage(other, range(42, 60)), sequence=2)
        mine.append(value(60), partition=0)
    assert held(store) == held(other) == list(range(61))
    assert_whole(store)


def test_a_handle_that_has_the_empty_segment_open_does_not_write_to_it(
    store: LogStore, opened: Callable[[], LogStore]
) -> None:
    other = opened()
    other.driver.folder("log").partition(0).durability.sync()
    part = other.driver.folder("log").partition(0)
    with part.lock:
        part.durability.sync_current()
    assert part.is_open
    assert commit(store, stage(store, range(20)))
    with other.appender("log", bytes) as out:
        out.append(value(20), partition=0)
    assert held(store) == list(range(21))
    assert_whole(store)


def test_a_tailer_that_waits_reads_across_adopted_segments(store: LogStore, opened: Callable[[], LogStore]) -> None:
    with opened().tailer(PLACE, "readers", bytes) as tail:
        found: list[int] = []
        for sequence in range(4):
            commit(store, stage(store, range(20 * sequence, 20 * sequence + 20)), sequence=sequence)
            while got := tail.read(7, timeout="0s"):
                found += [int(record.payload[:5]) for record in got]
    assert found == list(range(80))


def test_any_offset_and_time_is_found_by_the_index(
    store: LogStore, opened: Callable[[], LogStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "INTERVAL", 2048)
    for sequence in range(3):
        commit(store, stage(store, range(100 * sequence, 100 * sequence + 100), each=4), sequence=sequence)
    reader = opened()
    lines = [index.read_index(folder(store), base) for base in segments.bases(folder(store))]
    assert [len(one) > 3 for one in lines] == [True, True, True]
    assert [line.offset for one in lines for line in one] == sorted({line.offset for one in lines for line in one})
    for offset in (0, 1, 99, 100, 101, 157, 250, 299):
        assert next(iter(reader.log("log", bytes).records(0, start=offset))).offset == offset
        assert reader.driver.offset_at(PLACE, offset * DAY) == offset
    assert reader.driver.offset_at(PLACE, 1000 * DAY) == 300


def test_a_long_file_becomes_several_segments(opened: Callable[[], LogStore]) -> None:
    store = opened()
    store.create("log", 1, segment_bytes=4096)
    staged = stage(store, range(200))
    assert len(staged.files) > 3
    assert staged.counts == {0: 200}
    commit(store, staged)
    assert len(segments.bases(folder(store))) == len(staged.files)
    assert held(store) == list(range(200))
    assert_whole(store)


def test_small_files_are_copied_into_one_segment(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adoption, "ADOPT_BYTES", 1 << 20)
    commit(store, *(stage(store, range(10 * rank, 10 * rank + 10)) for rank in range(6)))
    assert segments.bases(folder(store)) == [0]
    assert held(store) == list(range(60))
    assert_whole(store)


def test_files_on_another_disk_are_copied(store: LogStore, tmp_path: Path) -> None:
    elsewhere = Path("/dev/shm") / f"penstock-{random.Random().getrandbits(60):x}"
    if not elsewhere.parent.exists() or elsewhere.parent.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system here")
    elsewhere.mkdir()
    try:
        (store.driver.root / "staged").rmdir()
        (store.driver.root / "staged").symlink_to(elsewhere)
        assert "copied" in store.staged_commit()
        staged = stage(store, range(50))
        expected = inodes(store)
        commit(store, staged)
        assert inodes(store) == expected
        assert held(store) == list(range(50))
        assert_whole(store)
    finally:
        shutil.rmtree(elsewhere)


def test_a_commit_that_fails_leaves_the_files_aside_for_the_next(store: LogStore) -> None:
    with store.appender("log", bytes) as out:
        out.append(value(0), partition=1)
    both = [stage(store, range(30)), stage(store, range(1, 30), partition=1), stage(store, range(30, 60))]

    def fail(name: str) -> None:
        if name == "log.transaction.before":
            raise OSError(5, "the disk is unwell")

    failpoints.arm(fail)
    try:
        with pytest.raises(StoreUnavailable, match="unwell"):
            commit(store, *both)
    finally:
        failpoints.arm(None)
    assert (held(store), held(store, 1)) == ([], [0])
    assert [len(segments.bases(folder(store, index))) for index in (0, 1)] == [1, 1]
    with store.appender("log", bytes) as out:
        out.append(value(99), partition=0)
    assert commit(store, *both)
    assert (held(store), held(store, 1)) == ([99, *range(60)], list(range(30)))
    assert_whole(store)


def test_a_damaged_or_missing_file_takes_nothing_along(store: LogStore, opened: Callable[[], LogStore]) -> None:
    """Not even from a segment that another handle has ended since this one had it open."""
    with store.appender("log", bytes) as out:
        out.append_many([value(one) for one in range(30)], partition=0)
    other = opened()
    part = other.driver.folder("log").partition(0)
    with part.lock:
        part.roll(part.begin())
    good, bad = stage(store, range(30, 50)), stage(store, range(50, 70))
    path = store.driver.root / "staged" / bad.path / bad.files[0].name
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    with pytest.raises(StoreUnavailable, match="damaged"):
        commit(store, good, bad)
    path.unlink()
    with pytest.raises(Conflict, match="is gone"):
        commit(store, good, bad)
    assert held(store) == list(range(30))
    path.write_bytes(whole)
    assert commit(store, good, bad)
    assert held(store) == list(range(70))
    assert_whole(store)


def test_a_producer_is_known_behind_an_adopted_segment(store: LogStore, opened: Callable[[], LogStore]) -> None:
    with store.appender("log", bytes, producer="writer") as out:
        out.append(value(0), partition=0, sequence=7)
    commit(store, stage(store, range(1, 20)))
    with opened().appender("log", bytes, producer="writer") as out:
        assert out.last_sequence(0) == 7
        assert out.append(value(0), partition=0, sequence=7).value == 0
    assert held(store) == list(range(20))


@pytest.mark.parametrize("known", ["with the control file", "without the control file"])
def test_what_was_adopted_and_not_committed_is_gone_after_a_restart(
    store: LogStore, opened: Callable[[], LogStore], monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    """As it lies on disk when the power goes between the second names and the journal."""
    commit(store, stage(store, range(20)))
    two = [stage(store, range(20, 40)), stage(store, range(40, 60))]
    target = store.driver.root.parent / "copy"

    def copy(name: str) -> None:
        if name == "log.transaction.before":
            shutil.copytree(store.driver.root, target)

    failpoints.arm(copy)
    try:
        commit(store, *two, sequence=2)
    finally:
        failpoints.arm(None)
    assert len(segments.bases(target / "logs" / "log" / "p-0000")) == 3
    if known.startswith("without"):
        (target / "logs" / "log" / "ctl").unlink()
    monkeypatch.setattr(control, "_boot_id", random.Random().getrandbits(60) + 1)
    with open_logs(f"file://{target}?durability={'durable' if store.driver.durable else 'fast'}") as again:
        assert held(again) == list(range(20))
        assert commit(again, *two, sequence=2)
        assert held(again) == list(range(60))
        assert_whole(again)  # type: ignore[arg-type]


def test_a_committed_adoption_survives_a_restart(
    store: LogStore, opened: Callable[[], LogStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(store, stage(store, range(20)), stage(store, range(20, 40)))
    store.close()
    monkeypatch.setattr(control, "_boot_id", random.Random().getrandbits(60) + 1)
    again = opened()
    assert held(again) == list(range(40))
    assert not commit(again, stage(again, range(20)))
    assert_whole(again)


def test_a_backup_holds_adopted_segments(store: LogStore, tmp_path: Path) -> None:
    commit(store, stage(store, range(20)), stage(store, range(20, 40)))
    store.backup(str(tmp_path / "backup"))
    with open_logs(f"file://{tmp_path / 'backup'}") as copied:
        assert held(copied) == list(range(40))
        assert_whole(copied)  # type: ignore[arg-type]


def test_what_was_staged_travels_as_plain_data(store: LogStore) -> None:
    staged = stage(store, range(5))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(staged), type=Staged) == staged
    assert "hard link" in store.staged_commit()
    store.discard(staged)

"""The file store alone: opening, recovery, damage, repair, backup, rolling, disks."""

import logging
import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import LogStore, open_logs
from penstock.errors import (
    BadInput,
    CannotOpen,
    Closed,
    Conflict,
    OffsetOutOfRange,
    RecordCorrupt,
    SchemaMismatch,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from penstock.log import Partition, Retention
from penstock.log.drivers.files import filesystem, folder
from penstock.log.drivers.files.format import control, index, segments
from penstock.log.drivers.files.format.frames import read_header
from penstock.testing import FakeClock

PLACE = Partition("log", 0)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., LogStore]]:
    handles: list[LogStore] = []
    clock = FakeClock()

    def open_one(folder: str = "store", options: str = "durability=fast") -> Any:
        handles.append(open_logs(f"file://{tmp_path / folder}?{options}", clock=clock))
        return handles[-1]

    yield open_one
    for handle in handles:
        handle.close()


def fill(store: LogStore, batches: int = 6, each: int = 5, **settings: Any) -> list[bytes]:
    store.create("log", **settings)
    values = []
    with store.appender("log", bytes) as out:
        for number in range(batches):
            batch = [b"%04d-%02d " % (number, rank) + b"x" * (37 * rank % 90) for rank in range(each)]
            out.append_many(batch, keys=[f"k{rank}" for rank in range(each)])
            values += batch
    return values


def held(store: LogStore, start: int | None = None) -> list[bytes]:
    return [payload for batch in store.batches(PLACE, start) for payload in batch.payloads()]


def segment(store: LogStore, rank: int = -1) -> Path:
    folder = store.driver.root / "logs" / "log" / "p-0000"
    return segments.segment_path(folder, segments.bases(folder)[rank])


def restarted(monkeypatch: pytest.MonkeyPatch, store: LogStore | None = None) -> None:
    """As if the machine had been started again: nobody trusts the control file's ends."""
    if store is not None:
        store.close()
    monkeypatch.setattr(control, "_boot_id", random.Random().getrandbits(60) + 1)


def frames(path: Path) -> list[tuple[int, int]]:
    data = path.read_bytes()
    return [(at, header.size) for at, header in segments.headers(data, int(path.stem), 0, len(data))]


def not_synced(store: LogStore, offset: int) -> None:
    """Pretend that nothing from this offset on had reached the disk."""
    slot = store.driver.folder("log").slot(0)
    end = slot.end()
    for position, header in segments.headers(segments.mapped(segment(store)), end.base, 0, end.position):
        if header.offset == offset:
            slot.set_durable(control.End(offset, position, end.base))
            return
    raise AssertionError


class TestOpening:
    def test_a_folder_of_others_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "holiday.jpg").touch()
        with pytest.raises(CannotOpen, match=r"holiday\.jpg"):
            open_logs(f"file://{tmp_path}")
        assert [one.name for one in tmp_path.iterdir()] == ["holiday.jpg"]

    def test_a_newer_format_is_refused(self, opened: Callable[..., LogStore]) -> None:
        store = opened()
        fill(store)
        path = store.driver.root / "logs" / "log" / "log.json"
        path.write_text(path.read_text().replace('"format":2', '"format":3'))
        other = opened()
        with pytest.raises(SchemaMismatch, match="format 3"):
            other.settings("log")
        path.write_text("{broken")
        with pytest.raises(StoreCorrupt):
            opened().settings("log")
        (store.driver.root / "penstock-logs.json").write_text('{"format":9}')
        with pytest.raises(SchemaMismatch):
            opened()

    @pytest.mark.parametrize(
        "url", ["file://", "file:///", "file:///x?space=other", "file:///x?oops=1", "file:///x?record_limit=0",
                "file:///x?min_free=lots", "file:///x?network=maybe", "file:///x?durability=maybe"],
    )  # fmt: skip
    def test_bad_urls(self, url: str) -> None:
        with pytest.raises(BadInput) as caught:
            open_logs(url)
        assert caught.value.hint

    def test_a_file_in_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(CannotOpen):
            open_logs(f"file://{tmp_path / 'file'}")

    def test_a_network_file_system_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        mounts = tmp_path / "mountinfo"
        place = tmp_path / "far away"
        escaped = str(place).replace(" ", "\\040")
        mounts.write_text(
            "22 1 0:21 / / rw,relatime - ext4 /dev/vda rw\n"
            f"40 22 0:40 / {escaped} rw,relatime shared:1 - nfs4 host:/export rw\n"
        )
        assert filesystem.filesystem(place / "logs", mounts) == "nfs4"
        assert filesystem.filesystem(tmp_path, mounts) == "ext4"
        assert filesystem.filesystem(tmp_path, tmp_path / "nowhere") == ""
        monkeypatch.setattr(filesystem.filesystem, "__defaults__", (mounts,))
        with pytest.raises(CannotOpen, match=r"network file system \(nfs4\)"):
            open_logs(f"file://{place}")
        open_logs(f"file://{place}?network=allow").close()

    def test_foreign_files_are_left_alone(self, opened: Callable[..., LogStore], caplog: Any) -> None:
        store = opened()
        values = fill(store)
        stray = segment(store).parent / "notes.txt"
        stray.write_text("mine")
        with caplog.at_level(logging.WARNING, "penstock.log"):
            assert held(opened()) == values
        assert "notes.txt" in caplog.text
        with pytest.raises(Conflict, match=r"notes\.txt"):
            store.delete("log")
        assert stray.read_text() == "mine"
        stray.unlink()
        assert store.delete("log")
        (store.driver.root / "logs" / "other").mkdir()
        assert store.names() == []
        with pytest.raises(Conflict, match="in the way"):
            store.create("other")

    def test_a_forked_child_has_to_open_its_own(self, opened: Callable[..., LogStore]) -> None:
        store = opened()
        fill(store)
        tail = store.tailer("log", "g", bytes)
        out = store.appender("log", bytes, exclusive=True)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for call in (lambda: out.append(b"x"), lambda: store.bounds("log")):
                    try:
                        call()
                    except Closed:
                        code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        out.append(b"still mine")
        assert tail.read()
        tail.commit()


class TestSegments:
    def test_rolling_and_reading_across(self, opened: Callable[..., LogStore]) -> None:
        store = opened()
        values = fill(store, batches=60, segment_bytes=4096)
        folder = segment(store).parent
        assert len(segments.bases(folder)) > 5
        assert held(store) == held(opened()) == values
        for start in (0, 1, 17, 133, 298, 299, 300):
            assert held(store, start) == values[start:]
        with store.tailer("log", "g", bytes) as tail:
            found: list[bytes] = []
            while len(found) < len(values):
                found += [record.payload for record in tail.read(7)]
        assert found == values

    def test_segments_end_by_age(self, opened: Callable[..., LogStore]) -> None:
        store = opened()
        fill(store, segment_age="1h")
        clock: Any = store.clock
        clock.advance("2h")
        store.log("log", bytes).append(b"x")
        assert len(segments.bases(segment(store).parent)) == 2

    def test_the_index_can_be_lost_or_damaged(self, opened: Callable[..., LogStore]) -> None:
        store = opened()
        store.create("log", segment_bytes=1 << 20)
        clock: Any = store.clock
        moments = []
        with store.appender("log", bytes) as out:
            for number in range(300):
                moments.append(clock.now())
                out.append_many([b"%d" % number + b"y" * 9000])
                clock.advance("1s")
        folder = segment(store).parent
        assert len(segments.bases(folder)) > 2
        assert sum(len(index.read_index(folder, base)) for base in segments.bases(folder)) > 30

        def asked() -> list[int]:
            other = opened()
            return [other.offset_at(PLACE, moments[at]).value for at in (0, 57, 133, 299)] + [
                int(held(other, at)[0].rstrip(b"y")) for at in (5, 140, 290)
            ]

        whole = asked()
        assert whole == [0, 57, 133, 299, 5, 140, 290]
        for path in folder.glob("*.idx"):
            raw = bytearray(path.read_bytes())
            raw[len(raw) // 2] ^= 1
            path.write_bytes(raw[:-3])
        assert asked() == whole
        assert any("index" in one.detail for one in store.verify("log"))
        store.repair("log")
        assert all(one.level == "good" for one in store.verify("log"))
        assert asked() == whole
        for path in folder.glob("*.idx"):
            path.unlink()
        assert asked() == whole

    def test_a_clock_that_goes_back(self, opened: Callable[..., LogStore]) -> None:
        store = opened()
        store.create("log", segment_bytes=4096)
        clock: Any = store.clock
        begin = clock.now()
        times = []
        with store.appender("log", bytes) as out:
            for number in range(100):
                times.append(clock.now())
                out.append(b"x" * 300)
                if number % 10 == 9:
                    clock.set(begin)
                else:
                    clock.advance("1m")
        for wanted in times[:10]:
            assert store.offset_at(PLACE, wanted).value == next(at for at, one in enumerate(times) if one >= wanted)

    def test_compressed_frames(self, opened: Callable[..., LogStore]) -> None:
        store = opened()
        values = fill(store, batches=20, each=50, compression="zlib")
        assert held(opened()) == values
        assert segment(store).stat().st_size < sum(map(len, values)) / 2

    def test_many_partitions_with_few_files_open(
        self, opened: Callable[..., LogStore], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(folder, "OPEN_FILES", 100)
        store = opened()
        store.create("log", partitions=600)
        with store.appender("log", bytes) as out:
            before = len(os.listdir("/proc/self/fd"))
            for round_ in range(2):
                for number in range(600):
                    out.append(b"%d" % round_, partition=number)
                store.driver.background_sync.sync_all()  # as its thread does from time to time
            assert len(os.listdir("/proc/self/fd")) - before < 250
        assert store.lag("log", "g").lag == 1200
        with store.tailer("log", "g", bytes) as tail:
            found = []
            while got := tail.read():
                found += got
        assert len(found) == 1200


class TestTornTails:
    """What a dead writer or a power cut left at the end."""

    def test_cut_at_every_byte_of_the_last_two_frames(
        self, opened: Callable[..., LogStore], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        store = opened()
        values = fill(store, batches=6, each=3)
        not_synced(store, 12)
        path = segment(store)
        (first, _), (second, size) = frames(path)[-2:]
        store.driver.background_sync = type(store.driver.background_sync)(1e6)  # closing would sync
        shutil.copytree(store.driver.root, tmp_path / "torn")
        for cut in range(first, second + size):
            shutil.rmtree(tmp_path / "one", ignore_errors=True)
            shutil.copytree(tmp_path / "torn", tmp_path / "one")
            target = tmp_path / "one" / path.relative_to(store.driver.root)
            os.truncate(target, cut)
            restarted(monkeypatch)
            again = opened("one")
            expected = values[:12] if cut < second else values[:15]
            assert held(again) == expected, f"cut at byte {cut}"
            assert again.log("log", bytes).append(b"next").value == len(expected)
            assert held(again) == [*expected, b"next"]
            again.close()

    def test_below_the_durable_mark_nothing_is_cut(
        self, opened: Callable[..., LogStore], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = opened(options="durability=durable")
        values = fill(store)
        path = segment(store)
        begin, _ = frames(path)[-1]
        restarted(monkeypatch, store)
        size = path.stat().st_size
        os.truncate(path, begin + 20)
        with pytest.raises(RecordCorrupt, match="bytes that were there are gone"):
            opened()
        assert path.stat().st_size == begin + 20
        os.truncate(path, size)
        assert len(values) == 30

    def test_a_flipped_bit_below_the_mark_is_told_and_not_cut(
        self, opened: Callable[..., LogStore], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = opened(options="durability=durable")
        values = fill(store)
        path = segment(store)
        at, _ = frames(path)[2]
        restarted(monkeypatch, store)
        raw = bytearray(path.read_bytes())
        raw[at + 150] ^= 4
        path.write_bytes(raw)
        again = opened()
        assert again.bounds("log")[0].end == 30
        assert path.stat().st_size == len(raw)
        again.log("log", bytes).append(b"after")
        with pytest.raises(RecordCorrupt):
            held(again)
        assert held(again, 15) == [*values[15:], b"after"]

    def test_bit_flips_in_the_unsynced_tail_are_cut(
        self, opened: Callable[..., LogStore], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        store = opened()
        values = fill(store, batches=4, each=3)
        not_synced(store, 6)
        path = segment(store)
        begin, size = frames(path)[2]
        shutil.copytree(store.driver.root, tmp_path / "whole")
        for at in range(begin, begin + size, 7):
            shutil.rmtree(tmp_path / "one", ignore_errors=True)
            shutil.copytree(tmp_path / "whole", tmp_path / "one")
            target = tmp_path / "one" / path.relative_to(store.driver.root)
            raw = bytearray(target.read_bytes())
            raw[at] ^= 1 << (at % 8)
            target.write_bytes(raw)
            restarted(monkeypatch)
            again = opened("one")
            assert held(again) == values[:6], "a prefix, never a torn record"
            again.close()

    def test_without_a_control_file(self, opened: Callable[..., LogStore]) -> None:
        store = opened()
        values = fill(store, batches=30, segment_bytes=4096)
        store.close()
        (store.driver.root / "logs" / "log" / "ctl").unlink()
        again = opened()
        assert held(again) == values
        assert again.log("log", bytes).append(b"next").value == len(values)

    def test_a_damaged_control_file_in_the_same_boot(self, opened: Callable[..., LogStore]) -> None:
        store = opened()
        values = fill(store)
        store.close()
        (store.driver.root / "logs" / "log" / "ctl").write_bytes(b"garbage")
        assert held(opened()) == values

    def test_a_roll_that_died(self, opened: Callable[..., LogStore], monkeypatch: pytest.MonkeyPatch) -> None:
        store = opened()
        values = fill(store)
        restarted(monkeypatch, store)
        segments.segment_path(segment(store).parent, len(values)).touch()
        again = opened()
        assert held(again) == values
        again.log("log", bytes).append(b"next")
        assert held(again) == [*values, b"next"]


class TestDamage:
    """Damage below the end: told with its place, never cut, repaired on request."""

    @pytest.fixture
    def damaged(self, opened: Callable[..., LogStore]) -> tuple[LogStore, list[bytes]]:
        store = opened()
        values = fill(store, batches=60, segment_bytes=4096)
        path = segment(store, 2)
        at, _ = frames(path)[1]
        raw = bytearray(path.read_bytes())
        raw[at + 130] ^= 8
        path.write_bytes(raw)
        return store, values

    def test_it_is_told_with_its_place(self, damaged: tuple[LogStore, list[bytes]]) -> None:
        store, _ = damaged
        path = segment(store, 2)
        at, _ = frames(path)[1]
        header = read_header(path.read_bytes(), at, int(path.stem))
        assert header is not None
        with pytest.raises(RecordCorrupt) as caught:
            held(store)
        assert f"offsets {header.offset} to {header.next_offset - 1}" in str(caught.value)
        assert f"{path.name} at byte {at}" in str(caught.value)
        found = [one for one in store.verify() if one.level == "bad"]
        assert len(found) == 1
        assert f"at byte {at}" in found[0].detail

    def test_repair_leaves_a_hole(self, damaged: tuple[LogStore, list[bytes]], opened: Any) -> None:
        store, values = damaged
        at, _ = frames(segment(store, 2))[1]
        header = read_header(segment(store, 2).read_bytes(), at, int(segment(store, 2).stem))
        assert header is not None
        before = segment(store, 2).read_bytes()
        assert [one.level for one in store.repair("log", dry_run=True)] == ["bad"]
        assert segment(store, 2).read_bytes() == before
        reader = store.tailer("log", "g", bytes)
        found: list[Any] = []

        def read_on() -> None:
            while got := reader.read(3):
                found.extend(got)

        with pytest.raises(RecordCorrupt):
            read_on()
        store.repair("log")
        read_on()
        expected = [one for rank, one in enumerate(values) if not header.offset <= rank < header.next_offset]
        assert [record.payload for record in found] == expected == held(store) == held(opened())
        assert [record.offset for record in found] == [
            rank for rank in range(len(values)) if not header.offset <= rank < header.next_offset
        ], "offsets are never renumbered"
        assert all(one.level == "good" for one in store.verify())
        assert segment(store, 2).with_suffix(".seg.damaged").read_bytes() == before
        reader.close()
        assert store.delete("log")

    def test_other_partitions_go_on(self, opened: Callable[..., LogStore]) -> None:
        store = opened()
        fill(store, partitions=3)
        with store.appender("log", bytes) as out:
            for number in range(3):
                out.append_many([b"a", b"b"], partition=number)
        path = segment(store)
        raw = bytearray(path.read_bytes())
        raw[110] ^= 1
        path.write_bytes(raw)
        for number in (1, 2):
            assert list(store.log("log", bytes).payloads(number))[-2:] == [b"a", b"b"]
        with pytest.raises(RecordCorrupt):
            held(store)

    def test_damage_in_the_written_segment(self, opened: Callable[..., LogStore]) -> None:
        store, other = opened(), opened()
        values = fill(store)
        out = other.appender("log", bytes)
        out.append(b"from another handle")
        path = segment(store)
        at, _ = frames(path)[1]
        with path.open("r+b") as file:
            file.seek(at + 30)
            file.write(b"\xff\xff\xff")
        store.repair("log")
        out.append(b"goes to the new file")
        assert held(store) == [*values[:5], *values[10:], b"from another handle", b"goes to the new file"]

    def test_a_missing_segment(self, opened: Callable[..., LogStore]) -> None:
        store = opened()
        values = fill(store, batches=60, segment_bytes=4096)
        folder = segment(store).parent
        bases = segments.bases(folder)
        segments.segment_path(folder, bases[1]).unlink()
        with pytest.raises(RecordCorrupt):
            held(store)
        assert any(one.level == "bad" for one in store.verify())
        store.repair("log")
        assert held(store) == values[: bases[1]] + values[bases[2] :]
        segment(store, 0).write_bytes(b"")
        assert any("ends early" in one.detail for one in store.verify())
        store.repair("log")
        assert held(store) == values[bases[2] :]

    def test_a_torn_offset_leaves_the_one_before(self, opened: Callable[..., LogStore]) -> None:
        store = opened()
        fill(store)
        with store.tailer("log", "g", bytes) as tail:
            for count in (3, 4):
                tail.read(count)
                tail.commit()
        path = store.driver.root / "groups" / "g" / "offsets" / "log"
        raw = bytearray(path.read_bytes())
        assert store.committed("log", "g") == [7]
        raw[64 * 0 + 8] ^= 1  # generation 2 is in the first slot
        path.write_bytes(raw)
        assert opened().committed("log", "g") == [3]


class TestDisks:
    def test_too_little_room_is_refused_before_it_is_gone(self, opened: Callable[..., LogStore]) -> None:
        store = opened(options=f"durability=fast&min_free={1 << 60}")
        store.create("log")
        with store.appender("log", bytes) as out, pytest.raises(StoreFull, match="min_free"):
            out.append(b"x")
        assert store.bounds("log")[0].end == 0

    @pytest.mark.parametrize("durability", ["fast", "durable"])
    def test_a_full_disk_leaves_nothing_and_gets_well(
        self, opened: Callable[..., LogStore], monkeypatch: pytest.MonkeyPatch, durability: str
    ) -> None:
        store = opened(options=f"durability={durability}")
        values = fill(store)
        whole, room = os.pwritev, 100

        def pwritev(fd: int, buffers: Any, at: int) -> int:
            os.pwrite(fd, b"".join(buffers)[:room], at)  # half of it, then no more room
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "pwritev", pwritev)
        out = store.appender("log", bytes)
        with pytest.raises(StoreFull, match="nothing of the call was written"):
            out.append_many([b"y" * 100] * 3)
        with store.transaction() as tx:
            tx.append("log", b"z", bytes)
            with pytest.raises(StoreFull):
                tx.commit()
        assert held(store) == values
        monkeypatch.setattr(os, "pwritev", whole)
        assert out.append(b"after").value == len(values)
        assert held(opened()) == [*values, b"after"]

    def test_an_index_that_cannot_be_written_costs_only_time(
        self, opened: Callable[..., LogStore], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = opened()
        store.create("log")

        def write(fd: int, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        with store.appender("log", bytes) as out:
            out.append(b"x")
            with monkeypatch.context() as patch:
                patch.setattr(os, "write", write)
                out.append_many([b"x" * 1000] * 200)
        assert len(held(store)) == 201

    def test_a_failed_sync_is_never_tried_again(
        self, opened: Callable[..., LogStore], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = opened(options="durability=durable")
        values = fill(store)
        out = store.appender("log", bytes)

        def fdatasync(fd: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fdatasync)
            with pytest.raises(StoreReadOnly):
                out.append(b"lost?")
        for _ in range(2):
            with pytest.raises(StoreReadOnly, match="nothing more is accepted"):
                out.append(b"no later acknowledgement on top")
        assert isinstance(StoreReadOnly(), StoreUnavailable)
        assert held(store)[: len(values)] == values
        again = opened(options="durability=durable")
        again.log("log", bytes).append(b"after")
        assert held(again)[-1] == b"after"


class TestBackups:
    def test_a_backup_is_a_store(self, opened: Callable[..., LogStore], tmp_path: Path) -> None:
        store = opened()
        values = fill(store, batches=60, segment_bytes=4096)
        store.create("empty", partitions=3, retention=Retention(age="9d"))
        with store.appender("log", bytes, producer="p") as out:
            out.append(b"numbered", sequence=4)
        with store.tailer("log", "g", bytes) as tail:
            tail.read(33)
            tail.commit()
        with store.transaction(producer="q", sequence=1) as tx:
            tx.append("log", b"in a transaction", bytes)
            tx.commit()
        target = tmp_path / "copy"
        assert "would copy 302 records" in store.backup(str(target), dry_run=True)[1].detail
        assert not target.exists()
        store.backup(str(target))
        store.log("log", bytes).append(b"later")
        copy = opened("copy")
        assert held(copy) == [*values, b"numbered", b"in a transaction"]
        assert copy.committed("log", "g") == [33]
        assert copy.settings("empty") == store.settings("empty")
        assert all(one.level == "good" for one in copy.verify())
        with copy.appender("log", bytes, producer="p") as out:
            assert out.last_sequence(0) == 4
        assert copy.log("log", bytes).append(b"goes on").value == 302

    def test_where_it_cannot_go(self, opened: Callable[..., LogStore], tmp_path: Path) -> None:
        store = opened()
        fill(store)
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "x").touch()
        with pytest.raises(Conflict, match="not an empty folder"):
            store.backup(str(tmp_path / "full"))
        with pytest.raises(BadInput, match="inside the store"):
            store.backup(str(store.driver.root / "backup"))

    def test_doctor(self, opened: Callable[..., LogStore]) -> None:
        found = {one.what: one for one in opened().check()}
        assert found["durability"].level == "warning"
        assert found["room"].level in ("good", "warning")


class TestReaders:
    def test_retention_under_a_reader(self, opened: Callable[..., LogStore]) -> None:
        store = opened()
        values = fill(store, batches=60, segment_bytes=4096, retention=Retention(age="1h"))
        clock: Any = store.clock
        batches = store.batches(PLACE)
        first = next(batches)
        clock.advance("2h")
        store.enforce_retention()
        assert first.payloads() == values[:5], "a batch in hand stays readable"
        assert first.records()[0].key == "k0"
        with pytest.raises((OffsetOutOfRange, RecordCorrupt)):
            list(batches)
        with store.tailer("log", "g", bytes) as tail:
            assert tail.read() == [], "a new group starts at what is left"

    def test_polling_instead_of_inotify(self, opened: Callable[..., LogStore], monkeypatch: pytest.MonkeyPatch) -> None:
        from penstock.log.drivers.files.reading import watch

        def none_left(self: Any) -> None:
            raise OSError(24, "too many")

        monkeypatch.setattr(watch.Inotify, "__init__", none_left)
        store = opened()
        fill(store, batches=0)
        with store.tailer("log", "g", bytes) as tail, store.appender("log", bytes) as out:
            assert isinstance(tail.source._watch, watch.PollingWatch)  # type: ignore[attr-defined]
            assert tail.read(timeout="30ms") == []
            out.append(b"x")
            assert tail.read(timeout="5s")[0].payload == b"x"
            assert not store.wait_for(tail.position(PLACE), "g", "20ms")


class TestTogether:
    """What several threads and transactions do to each other."""

    def test_threads_share_a_sync(self, opened: Callable[..., LogStore], monkeypatch: pytest.MonkeyPatch) -> None:
        store = opened(options="durability=durable")
        store.create("log")
        real, calls = os.fdatasync, []

        def slow(fd: int) -> None:
            calls.append(fd)
            time.sleep(0.01)
            real(fd)

        monkeypatch.setattr(os, "fdatasync", slow)
        with store.appender("log", bytes) as out:
            threads = [threading.Thread(target=lambda: [out.append(b"x") for _ in range(10)]) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert store.bounds("log")[0].end == 80
        assert len(calls) < 50, "one syncs for all that wait"

    def test_a_reader_never_sees_what_is_not_on_disk(
        self, opened: Callable[..., LogStore], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store, other = opened(options="durability=durable"), opened(options="durability=durable")
        store.create("log")
        seen = []
        real = os.fdatasync

        def looking(fd: int) -> None:
            seen.append(other.bounds("log")[0].end)
            real(fd)

        with store.appender("log", bytes) as out:
            out.append(b"a")
            monkeypatch.setattr(os, "fdatasync", looking)
            out.append(b"b")
        assert seen[0] == 1
        assert other.bounds("log")[0].end == 2

    def test_the_journal_does_not_grow_for_ever(
        self, opened: Callable[..., LogStore], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from penstock.log.drivers.files.transactions import journal

        small = msgspec.structs.replace(journal.JOURNAL, segment_bytes=4096)
        monkeypatch.setattr(journal, "JOURNAL", small)
        store = opened()
        store.create("in")
        store.create("out")
        with store.appender("in", bytes) as out:
            out.append_many([b"%d" % number for number in range(200)])
        tail = store.tailer("in", "g", bytes)
        for number in range(200):
            with store.transaction(producer="q", sequence=number) as tx:
                tx.append("out", tail.read(1)[0].payload, bytes)
                tx.commit_offsets(tail)
                tx.commit()
        folder = store.driver.root / "txn" / "p-0000"
        assert len(segments.bases(folder)) <= 4
        assert segments.bases(folder)[0] > 0
        tail.close()
        restarted(monkeypatch, store)
        again = opened()
        assert [int(one) for one in again.log("out", bytes).payloads(0)] == list(range(200))
        assert again.committed("in", "g") == [200]
        with again.transaction(producer="q", sequence=199) as tx:
            tx.append("out", b"x", bytes)
            assert tx.commit().duplicate

    def test_offsets_lost_in_a_power_cut_come_back_from_the_journal(
        self, opened: Callable[..., LogStore], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = opened(options="durability=durable")
        store.create("in")
        store.create("out")
        with store.appender("in", bytes) as out:
            out.append_many([b"x"] * 9)
        with store.tailer("in", "g", bytes) as tail:
            for _ in range(3):
                with store.transaction() as tx:
                    tx.append_many("out", [record.payload for record in tail.read(3)], bytes)
                    tx.commit_offsets(tail)
                    tx.commit()
        path = store.driver.root / "groups" / "g" / "offsets" / "in"
        restarted(monkeypatch, store)
        path.write_bytes(bytes(path.stat().st_size))
        assert opened().committed("in", "g") == [9]

    def test_a_backup_under_load_is_consistent(self, opened: Callable[..., LogStore], tmp_path: Path) -> None:
        store = opened()
        for name in ("in", "out-a", "out-b"):
            store.create(name, segment_bytes=1 << 18)
        stop = threading.Event()

        def appending() -> None:
            with store.appender("in", bytes) as out:
                number = 0
                while not stop.is_set():
                    out.append_many([b"%d" % (number + rank) for rank in range(5)])
                    number += 5

        def moving() -> None:
            with store.tailer("in", "g", bytes) as tail:
                while not stop.is_set():
                    records = tail.read(20, timeout="5ms")
                    with store.transaction() as tx:
                        for name in ("out-a", "out-b"):
                            tx.append_many(name, [record.payload for record in records], bytes)
                        tx.commit_offsets(tail)
                        tx.commit()

        threads = [threading.Thread(target=appending), threading.Thread(target=moving)]
        for thread in threads:
            thread.start()
        try:
            for number in range(5):
                time.sleep(0.05)
                store.backup(str(tmp_path / f"copy{number}"))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        for number in range(5):
            copy = opened(f"copy{number}")
            held_in = [int(one) for one in copy.log("in", bytes).payloads(0)]
            moved = [int(one) for one in copy.log("out-a", bytes).payloads(0)]
            assert held_in == list(range(len(held_in)))
            assert moved == [int(one) for one in copy.log("out-b", bytes).payloads(0)]
            assert moved == held_in[: len(moved)]
            assert (copy.committed("in", "g")[0] or 0) == len(moved)
            assert all(one.level == "good" for one in copy.verify())
        assert len(moved) > 0

    def test_a_kept_appender_can_be_let_go(self, opened: Callable[..., LogStore]) -> None:
        store = opened()
        store.create("log")
        with store.log("log", bytes) as log:
            log.append(b"x")
            with pytest.raises(Conflict):
                store.delete("log")
        assert store.delete("log")

"""Disks that are full and disks that lose power: a refused put leaves nothing, an acknowledged one is there."""

import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash import scenes
from tests.crash.checker import check
from tests.crash.driver import PATIENCE, Child
from tests.crash.dumps import read_sqlite
from tests.crash.recorder import read_events
from tests.crash.scenes import Stage

from penstock import Worker
from penstock.errors import StoreFull

pytestmark = [pytest.mark.crash, pytest.mark.privileged]

EXT4_IOC_SHUTDOWN = 0x8004587D
WITHOUT_FLUSHING = 2  # what is not on the disk yet never gets there

Mount = Callable[..., Path]


def fill(place: Path) -> Path:
    """Take all the room there is."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as out:
        size = 65536
        while size:
            try:
                out.write(bytes(size))
            except OSError:
                size //= 2
    return ballast


def put_until_full(stage: Stage) -> int:
    texts = stage.store.queue("texts", str)
    for number in range(10_000):
        try:
            texts.put("x" * 100_000)
        except StoreFull:
            return number
    raise AssertionError("the disk never got full")


def judge(folder: Path, disk: Path, **options: bool) -> None:
    broken = check(read_events(folder), read_sqlite(disk / "queues.db"), **options)
    assert broken == [], "\n".join(str(one) for one in broken)


def test_a_full_disk_refuses_puts_and_gets_well_by_itself(mount: Mount, folder: Path) -> None:
    disk = mount("-t", "tmpfs", "-o", "size=64m", "tmpfs")
    reserve = disk / "reserve"
    reserve.write_bytes(bytes(44_000_000))  # draining writes as much again, and the log grows until its checkpoint
    stage = Stage(folder, disk=disk)
    texts = stage.store.queue("texts", str)
    before = put_until_full(stage)
    assert before > 10

    with pytest.raises(StoreFull):
        texts.put("y" * 100_000)
    with pytest.raises(StoreFull):
        texts.put_many(["z" * 100_000] * 5)
    assert len(texts.find(limit=10_000)) == before, "reading goes on, and nothing of the refused puts is there"
    judge(folder, disk, drained=False)
    # Taking and ending may need room too. Then they say so, and what was taken comes back when its lease is over.
    ended = 0
    try:
        with stage.store.unit() as unit:
            ended = len(unit.take(texts, limit=3))
            unit.commit()
    except StoreFull:
        ended = 0

    reserve.unlink()
    texts.put("after")
    stage.advance("2m")
    texts.add_handler(lambda text: None)
    assert stage.drain() == before + 1 - ended
    judge(folder, disk)
    stage.store.close()


def test_a_worker_outlives_a_full_disk(mount: Mount, folder: Path) -> None:
    disk = mount("-t", "tmpfs", "-o", "size=64m", "tmpfs")
    stage = Stage(folder, disk=disk)
    texts = stage.store.queue("texts", str)
    texts.put_many(["x" * 3000] * 60)
    seen: list[str] = []
    errors: list[Any] = []
    stage.store.signals.subscribe(errors.append, "store_error")

    def handler(text: str, ctx: Any) -> None:
        stage.recorder.started(ctx)
        if not seen:
            fill(disk)
        seen.append(text)

    texts.add_handler(handler, concurrency=1, prefetch=0)
    worker = Worker(stage.store, poll="20ms")
    worker.start()
    wait_for(lambda: errors, "the full disk is noticed")
    assert isinstance(errors[0].data["error"], StoreFull)
    (disk / "ballast").unlink()
    wait_for(lambda: texts.counts().live == 0, "all handled once there is room again")
    assert worker.stop()
    assert len(seen) == 60, "nothing ran twice"
    judge(folder, disk)
    stage.store.close()


def test_room_that_comes_back_is_not_eaten_by_the_log(mount: Mount, folder: Path) -> None:
    """The checkpoint comes first: then the log starts over in the room it has, and all goes on without a restart."""
    disk = mount("-t", "tmpfs", "-o", "size=64m", "tmpfs")
    stage = Stage(folder, disk=disk)
    texts = stage.store.queue("texts", str)
    for _ in range(50):  # fewer than a checkpoint comes after
        texts.put("x" * 100_000)
    log = (disk / "queues.db-wal").stat().st_size
    ballast = fill(disk)
    with pytest.raises(StoreFull):
        texts.put("y" * 100_000)
    # As much room as the log's pages need in the file, and a little more.
    os.truncate(ballast, ballast.stat().st_size - log - 500_000)

    texts.add_handler(lambda text: None)
    assert stage.drain() == 50
    for _ in range(200):
        texts.put("small")
    assert stage.drain() == 200
    judge(folder, disk)
    stage.store.close()


def test_a_full_disk_leaves_room_for_the_checkpoint(mount: Mount, folder: Path) -> None:
    """While it is full, what trickles back is kept together until it is enough."""
    disk = mount("-t", "tmpfs", "-o", "size=64m", "tmpfs")
    stage = Stage(folder, disk=disk)
    texts = stage.store.queue("texts", str)
    for _ in range(50):
        texts.put("x" * 100_000)
    log = (disk / "queues.db-wal").stat().st_size
    ballast = fill(disk)
    with pytest.raises(StoreFull):
        texts.put("y" * 100_000)
    step = 250_000
    refused = 0
    for _ in range(log // step + 8):
        os.truncate(ballast, ballast.stat().st_size - step)
        try:
            texts.put("z" * 1000)
            break
        except StoreFull:
            refused += 1
    else:
        raise AssertionError("it never went on, although there is room for all")
    assert refused > 0, "the test has to have seen a disk that was too full"
    ballast.unlink()
    texts.add_handler(lambda text: None)
    assert stage.drain() == 51
    judge(folder, disk)
    stage.store.close()


def wait_for(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.005)


# --- power -----------------------------------------------------------------------------------------------------------


def cut_power(disk: Path) -> None:
    """Everything the kernel has not written yet is gone, as when the plug is pulled.

    Freeze whoever writes there before, and kill it after: a sync that is under way when the disk goes may return as if
    all were well, and on a machine without power nobody would have told anybody.
    """
    handle = os.open(disk, os.O_RDONLY)
    try:
        fcntl.ioctl(handle, EXT4_IOC_SHUTDOWN, struct.pack("I", WITHOUT_FLUSHING))
    except OSError as error:
        pytest.skip(f"this kernel does not let us cut the power of a disk: {error}")
    finally:
        os.close(handle)


def play_until_the_power_goes(
    mount: Mount, start: Callable[..., Child], folder: Path, options: str
) -> tuple[set[str], Path]:
    """Puts on a disk of its own until the plug is pulled; the acknowledged ids, and the disk as it comes up again."""
    image = folder / "image"
    with image.open("wb") as out:
        out.truncate(64 * 1024 * 1024)
    made = subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no ext4 can be made here: {made.stderr.strip()}")
    disk = mount("-o", "loop", str(image))
    acknowledged = folder / "acknowledged"
    child = start(scenes.put_for_ever, disk, acknowledged, options)
    child.wait_file(acknowledged)
    enough = 300 if options else 100  # each waits for a disk that others may keep busy
    wait_for(lambda: len(acknowledged.read_text().splitlines()) >= enough, f"{enough} puts are acknowledged")
    child.freeze()
    cut_power(disk)
    child.kill()
    subprocess.run(["umount", str(disk)], check=True)
    again = mount("-o", "loop", str(image))
    return set(acknowledged.read_text().splitlines()), again


def test_an_acknowledged_put_survives_a_power_cut(mount: Mount, start: Callable[..., Child], folder: Path) -> None:
    acknowledged, disk = play_until_the_power_goes(mount, start, folder, "")
    dump = read_sqlite(disk / "queues.db")
    assert dump.damage == []
    found = {row["id"] for row in dump.live}
    assert acknowledged - found == set()
    assert len(found - acknowledged) <= 1, "at most the one that was on its way"


def test_the_fast_profile_loses_the_last_puts_but_never_its_shape(
    mount: Mount, start: Callable[..., Child], folder: Path
) -> None:
    """It is also the proof that the cut is a real one: here something has to be lost."""
    acknowledged, disk = play_until_the_power_goes(mount, start, folder, "?durability=fast")
    dump = read_sqlite(disk / "queues.db")
    assert dump.damage == []
    found = {row["id"] for row in dump.live}
    assert acknowledged - found != set()
    assert len(found - acknowledged) <= 1

"""Disks that are full and disks that lose power, under the file log: real ones."""

import os
import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash import log_scenes as scenes
from tests.crash.driver import Child
from tests.crash.test_disks import Mount, cut_power, fill, wait_for

from penstock.errors import StoreFull
from penstock.log.drivers.files.format import control

pytestmark = [pytest.mark.crash, pytest.mark.privileged]


def test_a_full_disk_refuses_appends_and_gets_well_by_itself(mount: Mount, folder: Path) -> None:
    disk = mount("-t", "tmpfs", "-o", "size=64m", "tmpfs")
    with scenes.open_logs(f"file://{disk / 'store'}?min_free=0") as store:
        store.create("log", partitions=2, segment_bytes=1 << 20)
        store.create("out")
        out = store.appender("log", bytes)
        tail = store.tailer("log", "g", bytes)
        held = [out.append(b"%d" % number + b"x" * 5000).value for number in range(50)]
        ballast = fill(disk)
        before = [one.end for one in store.bounds("log")]
        refused = 0
        for number in range(30):
            try:
                out.append_many([b"y" * 5000] * 5, partition=number % 2)
            except StoreFull:
                refused += 1
        assert refused > 20
        with store.transaction() as tx:
            tx.append("out", b"z" * 200_000, bytes)
            tx.append("log", b"z" * 200_000, bytes)
            with pytest.raises(StoreFull):
                tx.commit()
        records = tail.read(timeout="1s")
        assert len(records) >= len(held), "reading goes on"
        assert [one.end for one in store.bounds("log")] >= before
        assert store.bounds("out")[0].end == 0, "nothing of the transaction is there"
        tail.commit()
        ballast.unlink()
        for number in range(10):
            out.append(b"%d after" % number)
        with store.transaction() as tx:
            tx.append("out", b"z" * 200_000, bytes)
            tx.commit()
        assert all(one.level == "good" for one in store.verify())
        assert store.bounds("out")[0].end == 1


def stop_before_a_sync(child: Child, folder: Path) -> None:
    """Stop it when something that it has acknowledged is not on disk: only then has the cut something to take."""

    def stopped() -> bool:
        os.kill(child.pid, signal.SIGSTOP)
        child.wait_stopped()
        if scenes.is_unsynced(folder):
            return True
        child.go_on()
        return False

    wait_for(stopped, "something is acknowledged and not on disk")


def until_the_power_goes(mount: Mount, start: Callable[..., Child], folder: Path, durability: str) -> Path:
    image = folder / "image"
    with image.open("wb") as out:
        out.truncate(64 * 1024 * 1024)
    made = subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no ext4 can be made here: {made.stderr.strip()}")
    disk = mount("-o", "loop", str(image))
    scenes.prepare(disk)
    subprocess.run(["sync", "-f", str(disk)], check=True)
    child = start(scenes.endless, folder, disk, durability)
    acknowledged = ("appended", "moved")
    enough = 300 if durability == "fast" else 100  # each waits for a disk that others may keep busy
    wait_for(
        lambda: sum(note[0] in acknowledged for note in scenes.noted(folder)) >= enough, f"{enough} are acknowledged"
    )
    if durability == "fast":
        stop_before_a_sync(child, folder)
    child.freeze()
    cut_power(disk)
    child.kill()
    subprocess.run(["umount", str(disk)], check=True)
    return mount("-o", "loop", str(image))


@pytest.fixture
def restart(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """As if the machine had been started again."""
    return lambda: monkeypatch.setattr(control, "_boot_id", random.Random().getrandbits(60) + 1)


def test_everything_acknowledged_survives_a_power_cut(
    mount: Mount, start: Callable[..., Child], folder: Path, restart: Callable[[], None]
) -> None:
    disk = until_the_power_goes(mount, start, folder, "durable")
    restart()
    scenes.judge(folder, disk=disk, batches=scenes.ENDLESS)


def test_the_fast_profile_loses_the_last_records_but_no_half_transaction(
    mount: Mount, start: Callable[..., Child], folder: Path, restart: Callable[[], None]
) -> None:
    disk = until_the_power_goes(mount, start, folder, "fast")
    restart()
    acknowledged = sum(len(note[3]) for note in scenes.noted(folder) if note[0] == "appended")
    for notes in folder.glob("*.notes"):
        notes.unlink()
    scenes.judge(folder, disk=disk, batches=scenes.ENDLESS)
    with scenes.opened(disk) as store:
        assert sum(one.end for one in store.bounds("in")) < acknowledged, "the cut was a real one"

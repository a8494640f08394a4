"""The plug is pulled: everything the kernel had not written yet is gone, and what was acknowledged is there."""

import fcntl
import os
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash.driver import Child
from tests.faults.arena import Arena, wait_steps
from tests.faults.conftest import KINDS, options_of
from tests.stores.own_servers import starting

from penstock import open_queues

pytestmark = [pytest.mark.faults, pytest.mark.privileged, pytest.mark.timeout(900)]

EXT4_IOC_SHUTDOWN = 0x8004587D
WITHOUT_FLUSHING = 2  # what is not on the disk yet never gets there


class Disk:
    """A file system of its own in a file, whose power can be cut."""

    def __init__(self, folder: Path) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="penstock-power-"))
        self.place.chmod(0o755)
        self._image = folder / "image"
        with self._image.open("wb") as out:
            out.truncate(512 * 1024 * 1024)
        _run("mkfs.ext4", "-q", "-F", str(self._image))
        self.mount()
        self.place.chmod(0o777)  # servers run as their own users

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self._image), str(self.place))

    def cut_power(self) -> None:
        handle = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, EXT4_IOC_SHUTDOWN, struct.pack("I", WITHOUT_FLUSHING))
        except OSError as error:
            pytest.skip(f"this kernel does not let us cut the power of a disk: {error}")
        finally:
            os.close(handle)

    def unmount(self) -> None:
        _run("umount", str(self.place))

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.place)], capture_output=True, check=False)
        self.place.rmdir()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"this machine does not let us: {' '.join(command)}: {done.stderr.strip()}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0:
        pytest.skip("mounting a disk of one's own needs root")
    made = Disk(tmp_path)
    yield made
    made.close()


def pull_the_plug(disk: Disk, server: Any) -> None:
    """All ends in one moment: a sync that is under way when the disk goes may return as if all were well."""
    server.freeze()
    disk.cut_power()
    server.crash()


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_acknowledged_survives(kind: str, disk: Disk, tmp_path: Path, start: Callable[..., Child]) -> None:
    """D1, D2: with the settings that the durable profile demands nothing acknowledged is lost."""
    with starting() as starter:
        server: Any = starter(kind, durable=True, base=disk.place)
        play = Arena(tmp_path, server.url + options_of(kind), start, server)
        os.sync()  # its files were made without syncing: only what follows is the test
        play.ensemble()
        wait_steps(play.folder, 400)
        pull_the_plug(disk, server)
        disk.unmount()
        disk.mount()
        server.start()
        wait_steps(play.folder, 200)
        play.finish()


def test_without_syncing_something_is_lost(disk: Disk) -> None:
    """The proof that the cut is a real one."""
    with starting() as starter:
        server: Any = starter("redis", durable=True, base=disk.place, appendfsync="no")
        with open_queues(server.url + "?durability=fast") as store:
            for number in range(300):
                store.queue("jobs").put(number)
        pull_the_plug(disk, server)
        disk.unmount()
        disk.mount()
        server.start()
        with open_queues(server.url + "?durability=fast") as store:
            assert store.queue("jobs").counts().live < 300

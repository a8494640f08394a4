"""Folders, children that never outlive their test, and disks of one's own for the tests that need one."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash.driver import Child, children

from penstock.ids import new_nonce

DURABLE = ("sqlite", "postgres", "mysql", "redis", "zookeeper")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose store is a file in it."""
    return tmp_path


@pytest.fixture(scope="session")
def staged(servers: Callable[[str], Any]) -> Callable[[Path, str], Path]:
    """Makes a folder whose store is a fresh space of the given kind."""

    def stage(folder: Path, kind: str) -> Path:
        if kind != "sqlite":
            # Killing clients asks nothing of the server's disk; what does is in tests/faults.
            address = servers(kind).url.partition("?")[0]
            (folder / "url").write_text(f"{address}?space=s{new_nonce()}&durability=fast")
        return folder

    return stage


@pytest.fixture(params=DURABLE)
def theatre(request: pytest.FixtureRequest, tmp_path: Path, staged: Callable[[Path, str], Path]) -> Path:
    """A folder for every durable store."""
    return staged(tmp_path, request.param)


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    """Starts a child process; it is gone when the test ends."""
    with children() as starter:
        yield starter


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mounts a file system for this test alone; where that is not possible the test is skipped, which CI refuses."""
    mounted: list[Path] = []

    def mount_here(*command: str) -> Path:
        if os.geteuid() != 0:
            pytest.skip("mounting a disk of one's own needs root")
        place = tmp_path / f"disk{len(mounted)}"
        place.mkdir()
        done = subprocess.run(["mount", *command, str(place)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"this machine does not let us mount: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield mount_here
    for place in mounted:
        # Lazily: a test that failed may still have files open there.
        subprocess.run(["umount", "--lazy", str(place)], capture_output=True, check=False)

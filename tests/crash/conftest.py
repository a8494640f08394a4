"""Folders, children that never outlive their test, and disks of one's own for the tests that need one."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.crash.driver import Child, children


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


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

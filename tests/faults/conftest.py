"""Servers with durable settings, one per test, and the arena on them."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash.conftest import start  # noqa: F401 - a fixture
from tests.crash.driver import Child
from tests.faults.arena import Arena
from tests.stores.own_servers import starting
from tests.stores.wire_proxy import Proxy

KINDS = ("postgres", "mysql", "redis", "zookeeper")


@pytest.fixture
def own() -> Iterator[Callable[..., Any]]:
    """Starts durable servers that are this test's alone."""
    with starting() as starter:
        yield lambda kind, **settings: starter(kind, durable=True, **settings)


def options_of(kind: str) -> str:
    """Short waits, so that a fault of seconds is a long one."""
    if kind == "sqlite":
        return ""
    return {"redis": "?timeout=2", "zookeeper": "?session=4s&timeout=4s"}.get(kind, "?timeout=2&reply_timeout=3")


@pytest.fixture
def arena(tmp_path: Path, own: Callable[..., Any], start: Callable[..., Child]) -> Callable[..., Arena]:  # noqa: F811
    """Opens a store of a kind on a server of its own (or on a file)."""

    def make(kind: str, **settings: Any) -> Arena:
        if kind == "sqlite":
            return Arena(tmp_path, f"sqlite:///{tmp_path / 'queues.db'}", start)
        server = own(kind, **settings)
        return Arena(tmp_path, server.url + options_of(kind), start, server)

    return make


@pytest.fixture
def wired(
    tmp_path: Path,
    own: Callable[..., Any],
    start: Callable[..., Child],  # noqa: F811
) -> Iterator[Callable[[str], tuple[Arena, Proxy]]]:
    """The same at the other end of a wire that can be cut."""
    proxies: list[Proxy] = []

    def make(kind: str) -> tuple[Arena, Proxy]:
        server = own(kind)
        proxies.append(Proxy(server.port))
        url = server.url.replace(f":{server.port}", f":{proxies[-1].port}")
        return Arena(tmp_path, url + options_of(kind), start, server), proxies[-1]

    yield make
    for proxy in proxies:
        proxy.close()


@pytest.fixture
def disk() -> Iterator[Callable[[str], Path]]:
    """Mounts a disk of a size for this test, where also a server's own user gets."""
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        if os.geteuid() != 0:
            pytest.skip("mounting a disk of one's own needs root")
        place = Path(tempfile.mkdtemp(prefix="penstock-disk-"))
        place.chmod(0o755)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=777", "tmpfs", str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            place.rmdir()
            pytest.skip(f"this machine does not let us mount: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        # Lazily: a test that failed may still have files open there.
        subprocess.run(["umount", "--lazy", str(place)], capture_output=True, check=False)
        place.rmdir()

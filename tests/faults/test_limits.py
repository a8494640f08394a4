"""What runs out: connections, locks, disks. Calls fail in time and by name, nothing is lost, and all goes on after."""

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.driver import Child
from tests.crash.scenes import claim
from tests.faults import load
from tests.faults.arena import Arena, wait_steps
from tests.faults.conftest import KINDS, options_of

from penstock.errors import LeaseLost
from penstock.queue.protocol import Ending, Step

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_fewer_connections_than_processes_want(kind: str, own: Callable[..., Any], tmp_path: Path, start: Any) -> None:
    """E5: a server that takes ten; six processes that would like three or four each."""
    most = {"postgres": {"max_connections": "10", "superuser_reserved_connections": "0"}}
    server = own(kind, **most.get(kind, {"max-connections": "10"}))
    play = Arena(tmp_path, server.url + options_of(kind) + "&pool_size=3", start, server)
    # A pool keeps what it once opened: who comes too late gets nothing until somebody leaves.
    for role in (load.produce, load.cook, load.work):
        play.play(role)
        wait_steps(play.folder, 40)
    play.play(*([load.work] * 3))
    wait_steps(play.folder, 400, 120)
    for one in play.members(load.work)[1:]:  # whoever looks on needs a connection too
        one.kill()
        play.dismiss(one)
    play.finish()


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_pool_of_one(kind: str, own: Callable[..., Any], tmp_path: Path, start: Any) -> None:
    server = own(kind)
    play = Arena(tmp_path, server.url + options_of(kind) + "&pool_size=1", start, server)
    play.ensemble()
    wait_steps(play.folder, 400, 120)
    play.finish()


def cross(folder: Path) -> None:
    """Units that end the same entries in opposite order, as fast as they can: deadlocks, one after the other."""
    stage = load.stage_of(folder, "cross")
    seed = random.Random(3)
    while load.going(folder):
        try:
            stage.queue("raw").put_many(range(6))
            entries = claim(stage.queue("raw"), 6, attempts=None, lease=load.LEASE)
        except load.AWAY:
            continue

        def end(order: list[Any]) -> None:
            try:
                endings = tuple(Ending(entry.lease, "done") for entry in order)
                stage.store.driver.commit(Step(endings, tuple(stage.queue("cooked").new(1) for _ in order)))
            except (LeaseLost, *load.AWAY):
                return

        shuffled = [seed.sample(entries, len(entries)) for _ in range(3)]
        threads = [threading.Thread(target=end, args=(order,)) for order in shuffled]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    stage.store.close()


@pytest.mark.parametrize("kind", ["sqlite", *KINDS])
def test_deadlocks(kind: str, arena: Callable[..., Arena]) -> None:
    """M1: units that want the same entries in different orders; where they lock each other out, all but one give up."""
    play = arena(kind)
    play.play(cross, cross, load.work, load.cook)
    wait_steps(play.folder, 500, 120)
    # The crossing ones go on putting: they have to stop first.
    for one in play.members(cross):
        one.kill()
        play.dismiss(one)
    play.finish()


# --- disks -----------------------------------------------------------------------------------------------------------

SMALL = {
    "postgres": {"max_wal_size": "32MB", "min_wal_size": "32MB", "wal_keep_size": "0", "shared_buffers": "16MB"},
    "mysql": {"innodb-log-file-size": "8M", "innodb-buffer-pool-size": "32M"},
    "redis": {"auto-aof-rewrite-percentage": "0"},
    "zookeeper": {"preAllocSize": "1024"},
}
SIZE = {"postgres": "180m", "mysql": "220m", "redis": "24m", "zookeeper": "24m"}


@pytest.mark.privileged
@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk(
    kind: str, disk: Callable[[str], Path], own: Callable[..., Any], tmp_path: Path, start: Callable[..., Child]
) -> None:
    """DF1 to DF3: whether the server refuses or dies, it comes back with all it acknowledged once there is room."""
    room = disk(SIZE[kind])
    server = own(kind, base=room, **SMALL[kind])
    play = Arena(tmp_path, server.url + options_of(kind), start, server)
    play.ensemble()
    wait_steps(play.folder, 200)
    ballast = room / "ballast"
    with ballast.open("wb", buffering=0) as out:
        end = time.monotonic() + 6
        size = 65536
        while time.monotonic() < end:
            try:
                out.write(bytes(size))
            except OSError:
                size = max(size // 2, 512)
                time.sleep(0.005)
    ballast.unlink()
    for _ in range(5):  # a server that died has to be started by somebody; one that recovers may need a moment
        if not server.answers():
            server.stop()
            try:
                server.start()
            except RuntimeError as error:
                print(error)
                time.sleep(1)
    wait_steps(play.folder, 200)
    play.finish()

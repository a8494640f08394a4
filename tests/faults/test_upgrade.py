"""An older commit, as it really was, is replaced by this one while both work: nothing is lost and nothing done twice.

BASELINE is the last commit whose stores have the version of the schema before this one's. Its source is taken from the
repository and runs in processes of its own, with the packages of this environment.
"""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.store_urls import STORES
from tests.stores.test_upgrades import ROOT, environment, fleet, migrate

import penstock
from penstock.errors import SchemaMismatch
from penstock.queue.drivers.redis.schema import VERSION as REDIS_VERSION
from penstock.queue.drivers.sql.schema import VERSION as SQL_VERSION
from penstock.queue.drivers.zookeeper.schema import VERSION as ZOOKEEPER_VERSION

BASELINE = "87da0b02fc532f2da3c2749eeb98b5ec0d7b06bf"
VERSIONS = {"sql": 3, "redis": 2, "zookeeper": 3}  # of BASELINE

PUTTER = """
import sys, penstock
url, first, last = sys.argv[1:]
with penstock.open_queues(url) as store:
    for number in range(int(first), int(last)):
        store.queue("q", int).put(number, id=f"entry-{number}")
"""

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of BASELINE."""
    folder = tmp_path_factory.mktemp("older")
    archive = subprocess.run(
        ["git", "archive", BASELINE, "src"], cwd=Path(__file__).parents[2], capture_output=True, check=False
    )
    if archive.returncode != 0:
        pytest.skip(f"the history of this checkout has no commit {BASELINE[:12]}: it is shallow, or not git")
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    return folder / "src"


def put(release: Path, url: str, first: int, last: int) -> None:
    command = [sys.executable, "-c", PUTTER, url, str(first), str(last)]
    done = subprocess.run(command, env=environment(release), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def place_of(kind: str, folder: Path, servers: Callable[[str], Any]) -> str:
    """A space of its own: the server is used again."""
    url = STORES[kind](folder, servers).url
    return f"{url}{'&' if '?' in url else '?'}space=u{os.urandom(4).hex()}"


def refused(release: Path, url: str) -> bool:
    """Whether a process with this source may not open the space."""
    program = "import sys, penstock; penstock.open_queues(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", program, url], env=environment(release), capture_output=True, text=True, check=False
    )
    return done.returncode != 0 and SchemaMismatch.__name__ in done.stderr


def test_the_baseline_is_of_the_version_before() -> None:
    """Whoever raises a version records the commit before as BASELINE, and its versions here."""
    now = {"sql": SQL_VERSION, "redis": REDIS_VERSION, "zookeeper": ZOOKEEPER_VERSION}
    assert {name: version - 1 for name, version in now.items()} == VERSIONS


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql"])
def test_workers_of_both_go_through_a_migration(
    kind: str, older: Path, tmp_path: Path, servers: Callable[[str], Any]
) -> None:
    url = place_of(kind, tmp_path, servers)
    put(older, url, 0, 50)
    with fleet(url, tmp_path) as workers:
        workers.start("old", older)
        workers.await_all(50)
        # The tables change under those that work; what is started now is still the older source.
        assert "links" in migrate(ROOT, url, "pre")
        put(older, url, 50, 100)
        workers.await_all(100)
        workers.start("another", older)
        workers.stop("old")
        put(older, url, 100, 150)
        workers.await_all(150)
        # Both at once, fed by both.
        workers.start("new", ROOT)
        put(ROOT, url, 150, 200)
        put(older, url, 200, 250)
        workers.await_all(250)
        workers.stop("another")
        migrate(ROOT, url, "post")
        put(ROOT, url, 250, 300)
        workers.await_all(300)
        workers.stop("new")
        assert set(Counter(number for _, number in workers.handled()).values()) == {1}
        assert {name for name, _ in workers.handled()} == {"old", "another", "new"}
    assert refused(older, url)
    with penstock.open_queues(url) as store:
        assert len(store.queue("q").history(limit=1000)) == 300


@pytest.mark.parametrize("kind", ["redis", "zookeeper"])
def test_workers_of_both_work_on_stores_without_migrations(
    kind: str, older: Path, tmp_path: Path, servers: Callable[[str], Any]
) -> None:
    """What is open goes on; who of the older source comes later is refused."""
    url = place_of(kind, tmp_path, servers)
    put(older, url, 0, 50)
    with fleet(url, tmp_path) as workers:
        workers.start("old", older)
        workers.await_all(50)
        workers.start("new", ROOT)
        put(ROOT, url, 50, 150)
        workers.await_all(150)
        assert refused(older, url)
        workers.stop("old")
        put(ROOT, url, 150, 200)
        workers.await_all(200)
        workers.stop("new")
        assert set(Counter(number for _, number in workers.handled()).values()) == {1}

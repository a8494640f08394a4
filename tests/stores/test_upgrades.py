"""A release is replaced by the next one while both work: migrate --pre, new workers, old ones end, migrate --post."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.queue.shorthand import end, take_one
from tests.store_urls import STORES
from tests.stores.own_servers import eventually

import penstock
from penstock.errors import SchemaMismatch
from penstock.queue.queues import QueueStore
from penstock.queue.results import values_of_batch

ROOT = Path(penstock.__file__).parents[1]

WORKER = """
import sys, threading
from pathlib import Path
import penstock
url, out, name, stop = sys.argv[1:]
store = penstock.open_queues(url)
handled = open(out, "a", buffering=1)
store.queue("q", int).add_handler(lambda number: print(name, number, file=handled), concurrency=1)
worker = penstock.Worker(store, poll="100ms")
worker.start()
while not Path(stop).exists():
    threading.Event().wait(0.05)
worker.stop()
store.close()
"""


@pytest.fixture
def next_release(tmp_path: Path) -> Path:
    """The code as it would be with one more step of migration."""
    root = tmp_path / "next"
    shutil.copytree(ROOT / "penstock", root / "penstock", ignore=shutil.ignore_patterns("__pycache__"))
    schema = root / "penstock/queue/drivers/sql/schema.py"
    text = schema.read_text()
    for old, new in (
        ("VERSION = 5", "VERSION = 6"),
        (
            "    ]\n",
            '        Migration(6, "a note", pre=[f"ALTER TABLE {space}_ready ADD COLUMN note int", '
            'f"ALTER TABLE {space}_history ADD COLUMN note int", f"ALTER TABLE {space}_claims ADD COLUMN note int"], '
            'post=[f"CREATE TABLE {space}_notes (note int)"]),\n    ]\n',
        ),
    ):
        assert text.count(old) == 1, f"the schema module has changed: {old!r}"
        text = text.replace(old, new)
    schema.write_text(text)
    return root


class Fleet:
    """Workers of both releases, each a process."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.out = folder / "handled"
        self.out.touch()
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, release: Path) -> None:
        command = [sys.executable, "-c", WORKER, self.url, str(self.out), name, str(self.folder / f"stop-{name}")]
        self._running[name] = subprocess.Popen(command, env=environment(release))

    def stop(self, name: str) -> None:
        (self.folder / f"stop-{name}").touch()
        assert self._running.pop(name).wait(30) == 0

    def kill_all(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def handled(self) -> list[tuple[str, int]]:
        return [(name, int(number)) for name, number in map(str.split, self.out.read_text().splitlines())]

    def await_all(self, count: int) -> None:
        eventually(lambda: len({number for _, number in self.handled()}) == count, f"{count} are handled")


@contextlib.contextmanager
def fleet(url: str, folder: Path) -> Iterator[Fleet]:
    workers = Fleet(url, folder)
    try:
        yield workers
    finally:
        workers.kill_all()


def environment(release: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(release)}


def migrate(release: Path, url: str, phase: str) -> str:
    command = [sys.executable, "-m", "penstock", "schema", "migrate", f"--{phase}", url]
    done = subprocess.run(command, env=environment(release), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql"])
def test_the_next_release_takes_over(
    kind: str, next_release: Path, tmp_path: Path, servers: Callable[[str], Any]
) -> None:
    # A space of its own: the place is used again by tests that know nothing of the next release.
    place = STORES[kind](tmp_path, servers).url
    url = f"{place}{'&' if '?' in place else '?'}space=u{os.urandom(4).hex()}"
    with penstock.open_queues(url) as store, fleet(url, tmp_path) as workers:
        queue = store.queue("q", int)

        def put(first: int, last: int) -> None:
            for number in range(first, last):
                queue.put(number)

        workers.start("old", ROOT)
        put(0, 50)
        workers.await_all(50)
        # The tables change under those that work; what is started now is still the old release.
        assert "6 pre: a note" in migrate(next_release, url, "pre")
        put(50, 100)
        workers.await_all(100)
        workers.start("another", ROOT)
        workers.stop("old")
        put(100, 150)
        workers.await_all(150)
        # Both releases at once, then the next one alone.
        workers.start("next", next_release)
        put(150, 200)
        workers.await_all(200)
        workers.stop("another")
        assert "6 post: a note" in migrate(next_release, url, "post")
        put(200, 250)
        workers.await_all(250)
        workers.stop("next")
        assert set(Counter(number for _, number in workers.handled()).values()) == {1}
        assert len(queue.history(limit=1000)) == 250
    with pytest.raises(SchemaMismatch, match=r"version 6.*up to 5.*[Uu]pgrade"):
        penstock.open_queues(url)


# --- from the version before ----------------------------------------------------------------------------------------


def undo_version_4(kind: str, connection: Any) -> None:
    """Make a space what the version before would have left."""
    if kind == "redis":
        connection.set("{penstock}:schema", 2)
        return
    cursor = connection.cursor()
    for table in ("links", "waits", "results"):
        cursor.execute(f"DROP TABLE penstock_{table}")
    if kind == "postgres":
        cursor.execute("ALTER TABLE penstock_claims DROP COLUMN linked")
    if kind == "mysql":
        cursor.execute("ALTER TABLE penstock_held DROP COLUMN linked")
    cursor.execute("UPDATE penstock_meta SET value = '3' WHERE name IN ('schema', 'schema_post')")
    connection.commit()


@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql", "redis", "zookeeper"])
def test_a_space_of_the_version_before_gets_links(kind: str, tmp_path: Path, servers: Callable[[str], Any]) -> None:
    place = STORES[kind](tmp_path, servers)
    with penstock.open_queues(place.url) as store:
        first = store.queue("work", int).put(1).id
    if kind == "zookeeper":
        step_back_in_zookeeper(place.url)
    else:
        with contextlib.closing(redis_of(servers) if kind == "redis" else place.connect()) as connection:  # type: ignore[misc]
            undo_version_4(kind, connection)
    if kind in ("sqlite", "postgres", "mysql"):
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "schema", "check", place.url],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode != 0
    with penstock.open_queues(place.url) as store:
        done_in: list[int] = []
        work = store.queue("work", int)
        work.add_handler(done_in.append)
        work.put(2, after=[first])
        penstock.Worker(store).drain()
        assert done_in == [1, 2]


@pytest.mark.parametrize("has_columns", [False, True], ids=["without columns", "with columns"])
@pytest.mark.parametrize("kind", ["sqlite", "postgres", "mysql"])
def test_results_of_version_4_get_their_queue(
    kind: str, has_columns: bool, tmp_path: Path, servers: Callable[[str], Any]
) -> None:
    """Builds of version 4 made the table with and without them."""
    place = STORES[kind](tmp_path, servers)
    with penstock.open_queues(place.url) as store:
        work = store.queue("work", int)
        work.add_handler(lambda number: number, keep_result="1h")
        first = work.put(1).id
        penstock.Worker(store).drain()
    with contextlib.closing(place.connect()) as connection:  # type: ignore[misc]
        cursor = connection.cursor()
        if not has_columns:
            if kind != "postgres":  # where an index goes with its column
                on = " ON penstock_results" if kind == "mysql" else ""
                cursor.execute(f"DROP INDEX {'batch' if kind == 'mysql' else 'penstock_results_batch'}{on}")
            for column in ("queue", "batch"):
                cursor.execute(f"ALTER TABLE penstock_results DROP COLUMN {column}")
        cursor.execute("UPDATE penstock_meta SET value = '4' WHERE name IN ('schema', 'schema_post')")
        connection.commit()
    with penstock.open_queues(place.url) as store:
        work = store.queue("work", int)
        work.add_handler(lambda number: number, keep_result="1h")
        with store.batch(then=(store.queue("then", str), "all")) as batch:
            batch.put_many(work, [2, 3])
        penstock.Worker(store).drain()
        assert work.result(first).value == 1
        assert sorted(values_of_batch(store, batch.id).values()) == [2, 3]


def test_letters_of_an_earlier_redis_space_come_first_in_their_order(
    tmp_path: Path, servers: Callable[[str], Any]
) -> None:
    url = STORES["redis"](tmp_path, servers).url

    def bury(store: QueueStore, *numbers: int) -> None:
        for number in numbers:
            store.queue("work", int).put(number, labels={"kind": "a"})
            end(store, take_one(store, "work"), "dead")

    with penstock.open_queues(url) as store:
        bury(store, 1, 2, 3)
    with contextlib.closing(redis_of(servers)) as connection:
        for key in connection.keys("{penstock}:dead*"):
            if connection.type(key) == b"zset":
                connection.zadd(key, dict.fromkeys(connection.zrange(key, 0, -1), 0))
        connection.set("{penstock}:schema", 3)
    with penstock.open_queues(url) as store:
        bury(store, 4)
        work = store.queue("work", int)
        assert [letter.payload for letter in work.dead()] == [b"1", b"2", b"3", b"4"]
        assert [letter.payload for letter in work.dead(labels={"kind": "a"})] == [b"1", b"2", b"3", b"4"]
        first = work.dead(limit=2)
        assert [letter.payload for letter in work.dead(after=first[-1].seq)] == [b"3", b"4"]


def redis_of(servers: Callable[[str], Any]) -> Any:
    from redis import Redis

    return Redis(port=servers("redis").port)


def step_back_in_zookeeper(url: str) -> None:
    from kazoo.client import KazooClient

    hosts, _, root = url.removeprefix("zookeeper://").partition("/")
    client = KazooClient(hosts)
    client.start()
    try:
        for folder in ("links", "waits", "results"):
            client.delete(f"/{root}/penstock/{folder}", recursive=True)
        client.set(f"/{root}/penstock/schema", b"3")
    finally:
        client.stop()
        client.close()

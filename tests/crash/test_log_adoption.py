"""kill -9 while staged files become segments: the transaction is whole or not there, and can be made again."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.crash import log_scenes as scenes
from tests.crash.driver import Child, Strike

from penstock import LogStore
from penstock.log.protocol import Staged
from penstock.log.record import NewRecords

pytestmark = pytest.mark.crash

FILES, PARTITIONS, RECORDS = 3, 2, 20
BEFORE = [
    *(("log.adopt.segment", hit) for hit in range(1, FILES * PARTITIONS + 1)),
    ("log.adopt.index", 1), ("log.adopt.index", 4), ("log.transaction.written", 1), ("log.transaction.written", 2),
    ("log.transaction.before", 1),
]  # fmt: skip
BEHIND = [
    ("log.transaction.committed", 1), ("log.transaction.published", 1), ("log.transaction.published", 2),
    ("log.transaction.offsets", 1),
]  # fmt: skip


def value(rank: int, number: int) -> bytes:
    return b"%d/%02d" % (rank, number) + b"." * 60


def stage(store: LogStore) -> list[Staged]:
    """As several tasks do, each with something for every partition."""
    staged = []
    for rank in range(FILES):
        aside = store.stage("rows")
        values = [value(rank, number) for number in range(RECORDS)]
        aside.append([(partition, NewRecords(values)) for partition in range(PARTITIONS)])
        staged.append(aside.close())
    return staged


def commit(folder: Path, durability: str) -> bool:
    """Commit what was staged, as one batch of a query. Returns False if it had been."""
    staged = msgspec.json.decode((folder / "staged.json").read_bytes(), type=list[Staged])
    with scenes.opened(folder, durability) as store, store.transaction(producer="query", sequence=0) as transaction:
        transaction.append_staged(*staged)
        return not transaction.commit().duplicate


def held(store: LogStore) -> list[list[str]]:
    return [scenes.payloads(store, "rows", partition) for partition in range(PARTITIONS)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("durability", ["fast", "durable"])
@pytest.mark.parametrize("begun", ["a new log", "a log with records"])
def test_a_killed_commit_is_whole_or_not_there_and_happens_once(
    tmp_path: Path, start: Callable[..., Child], durability: str, begun: str
) -> None:
    rows = [value(rank, number).decode() for rank in range(FILES) for number in range(RECORDS)]
    for round_, (point, hit) in enumerate([*BEFORE, *BEHIND]):
        folder = tmp_path / str(round_)
        folder.mkdir()
        earlier = ["earlier"] if begun == "a log with records" else []
        with scenes.opened(folder, durability) as store:
            store.create("rows", PARTITIONS)
            with store.appender("rows", bytes) as out:
                for partition in range(PARTITIONS if earlier else 0):
                    out.append(b"earlier", partition=partition)
            (folder / "staged.json").write_bytes(msgspec.json.encode(stage(store)))
        start(commit, folder, durability, strike=Strike(point, hit)).was_killed()
        is_done = (point, hit) in BEHIND
        with scenes.opened(folder, durability) as store:
            later = ["later"] if round_ % 2 else []  # somebody appends first
            with store.appender("rows", bytes) as out:
                for partition in range(PARTITIONS if later else 0):
                    out.append(b"later", partition=partition)
            between = [*earlier, *rows, *later] if is_done else [*earlier, *later]
            assert held(store) == [between] * PARTITIONS, f"killed at {point} {hit}"
        assert commit(folder, durability) is not is_done
        with scenes.opened(folder, durability) as store:
            assert held(store) == [between if is_done else [*between, *rows]] * PARTITIONS
            assert {finding.level for finding in store.verify()} == {"good"}
            assert list((folder / "store" / "staged").iterdir()) == []
            assert not list((folder / "store" / "logs").rglob("*.fresh"))

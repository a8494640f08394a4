"""kill -9 in the middle of a copy: started again it goes on, and nothing is lost or there twice."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.driver import Child
from tests.crash.dying import die_at

import penstock
from penstock.queue import transfer

pytestmark = pytest.mark.crash

COUNT = 60


def fill(folder: Path) -> None:
    with penstock.open_queues(f"sqlite:///{folder}/from.db") as store:
        mails = store.queue("mails", int)
        mails.put_many(range(COUNT), labels={"kind": "mail"})
        mails.add_handler(lambda value: penstock.Reject("fifth") if value % 5 == 0 else None)
        penstock.Worker(store).drain(limit=COUNT // 2)


def copy(folder: Path, point: str, nth: int) -> None:
    """Copy, and die at the nth time that a point is reached."""
    transfer.PAGE = 7
    die_at(point, nth)
    with (
        penstock.open_queues(f"sqlite:///{folder}/from.db") as source,
        penstock.open_queues(f"sqlite:///{folder}/to.db") as target,
    ):
        transfer.Copy(source, target).run()


@pytest.mark.parametrize(
    ("point", "nth"),
    [("copy.before", 3), ("copy.loaded", 1), ("copy.loaded", 6), ("commit.after", 12), ("copy.verified", 1),
     ("copy.marked", 1)],
)  # fmt: skip
def test_a_killed_copy_goes_on(folder: Path, start: Callable[..., Child], point: str, nth: int) -> None:
    fill(folder)
    start(copy, folder, point, nth).was_killed()
    start(copy, folder, "never", 0).ended_well()
    with (
        penstock.open_queues(f"sqlite:///{folder}/from.db") as source,
        penstock.open_queues(f"sqlite:///{folder}/to.db") as target,
    ):
        for part in ("live", "dead", "history"):
            mine, theirs = ([one.essence() for one in store.driver.export(part)] for store in (source, target))
            assert mine == theirs
        assert len(target.driver.export("live")) == COUNT // 2
        assert target.locks() == []
        seen: list[int] = []
        target.queue("mails", int).add_handler(seen.append)
        penstock.Worker(target).drain()
        assert sorted(seen) == list(range(COUNT // 2, COUNT))
        source.queue("mails", int).add_handler(seen.append)
        assert penstock.Worker(source).drain() == 0  # it stays locked

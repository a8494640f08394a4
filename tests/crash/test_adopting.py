"""kill -9 in the middle of an adoption: started again it goes on, and nothing is lost or there twice."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash.driver import Child
from tests.crash.dying import die_at

import penstock
from penstock import failpoints
from penstock.adopt import adoption, open_source

pytestmark = pytest.mark.crash

QUEUES, ITEMS = 3, 20
DATABASE = 6


@pytest.fixture
def redisques(servers: Callable[[str], Any]) -> Iterator[str]:
    """Queues of redisques, one of them locked."""
    import redis

    server = servers("redis")
    with redis.Redis(port=server.port, db=DATABASE) as client:
        client.flushdb()
        for queue in range(QUEUES):
            client.rpush(f"redisques:queues:q{queue}", *(f'["{queue}",{item}]' for item in range(ITEMS)))
        client.hset("redisques:locks", "q0", '{"requestedBy":"ann","timestamp":1}')
        yield f"redis://127.0.0.1:{server.port}/{DATABASE}"
        client.flushdb()


def adopt(url: str, folder: Path, point: str, nth: int) -> None:
    """Take over, and die at the nth time that a point is reached."""
    adoption.PAGE = 7
    die_at(point, nth)
    with penstock.open_queues(f"sqlite:///{folder}/to.db") as target:
        adoption.Adoption(open_source("redisques", url), target).run()


@pytest.mark.parametrize(
    ("point", "nth"),
    [("adopt.begun", 1), ("adopt.locked", 1), ("adopt.before", 3), ("adopt.loaded", 1), ("adopt.loaded", 6),
     ("commit.after", 6), ("commit.after", 9), ("adopt.verified", 1), ("adopt.marked", 1)],
)  # fmt: skip
def test_a_killed_adoption_goes_on(
    redisques: str, folder: Path, start: Callable[..., Child], point: str, nth: int
) -> None:
    start(adopt, redisques, folder, point, nth).was_killed()
    start(adopt, redisques, folder, "never", 0).ended_well()
    start(adopt, redisques, folder, "never", 0).ended_well()  # once more changes nothing
    with penstock.open_queues(f"sqlite:///{folder}/to.db") as target:
        for queue in range(QUEUES):
            items = [entry.value for entry in target.queue(f"requests.q{queue}", list, fifo=True).find()]
            assert items == [[str(queue), item] for item in range(ITEMS)]
        assert [(lock.queue, lock.holder, lock.reason) for lock in target.locks()] == [
            ("requests.q0", "redisques", "ann")
        ]


def test_nothing_is_handed_out_before_all_of_it_is_there(
    redisques: str, folder: Path, start: Callable[..., Child]
) -> None:
    start(adopt, redisques, folder, "adopt.verified", 1).was_killed()
    with penstock.open_queues(f"sqlite:///{folder}/to.db") as target:
        family = target.family("requests.", list, fifo=True)
        family.add_handler(lambda item: None)
        assert penstock.Worker(target).drain() == 0
        assert sum(one.live for one in target.counts()) == QUEUES * ITEMS


def test_a_second_process_stops_the_first(redisques: str, folder: Path) -> None:
    with penstock.open_queues(f"sqlite:///{folder}/to.db") as target:
        first = adoption.Adoption(open_source("redisques", redisques), target)

        def start_another(point: str) -> None:
            if point == "adopt.locked":
                failpoints.arm(None)
                adoption.Adoption(open_source("redisques", redisques), target).run()

        failpoints.arm(start_another)
        try:
            with pytest.raises(penstock.errors.Conflict):
                first.run()
        finally:
            failpoints.arm(None)
        assert sum(one.live for one in target.counts()) == QUEUES * ITEMS


def test_a_source_that_changed_between_two_runs_is_refused(
    redisques: str, folder: Path, start: Callable[..., Child]
) -> None:
    import redis

    start(adopt, redisques, folder, "adopt.loaded", 2).was_killed()
    with redis.Redis.from_url(redisques) as client:
        client.lpop("redisques:queues:q0")
    with (
        penstock.open_queues(f"sqlite:///{folder}/to.db") as target,
        pytest.raises(penstock.errors.Conflict, match="changed while it was taken over"),
    ):
        adoption.Adoption(open_source("redisques", redisques), target).run()

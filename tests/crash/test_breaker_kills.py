"""kill -9 on one of two nodes that share a breaker: no circuit and no queue stays locked forever."""

import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash import breaker_scenes
from tests.crash.breaker_scenes import EACH, QUEUES, open_store
from tests.crash.driver import PATIENCE, Child, Strike

import penstock
from penstock import Breaker

pytestmark = pytest.mark.crash

BREAKER = Path(penstock.__file__).parent / "breaker"
POINTS = sorted(
    {hit for path in BREAKER.glob("*.py") for hit in re.findall(r'failpoints\.point\("([\w.]+)"\)', path.read_text())}
)


def play(folder: Path, start: Callable[..., Child], strike: Strike | None, kill_after: float = 0.0) -> None:
    """A backend goes down and comes back while one of two nodes dies; everything has to be delivered, in order."""
    breaker_scenes.fill(folder)
    other = start(breaker_scenes.node, folder, "other")
    doomed = start(breaker_scenes.node, folder, "doomed", strike=strike)
    for child, name in ((other, "other"), (doomed, "doomed")):
        if child is other or strike is None:
            child.wait_file(folder / f"ready-{name}")
    time.sleep(0.5)
    (folder / "down").unlink()
    if strike is None:
        time.sleep(kill_after)
        doomed.kill()
    with open_store(folder) as store:
        breaker = Breaker(store, breaker_scenes.CONFIG, breaker_scenes.SETTINGS)
        deadline = time.monotonic() + PATIENCE
        while True:
            left, locks = store.family("q.").counts().live, store.locks()
            circuits = breaker.circuits()  # none, if one who died had all entries in hand and told of none
            if (left, locks, [one.state for one in circuits]) == (0, [], ["closed"]):
                break
            assert time.monotonic() < deadline, f"{left} entries, {locks}, {circuits}"
            time.sleep(0.05)
        (folder / "end").touch()
        other.ended_well()
        doomed.wait()
        assert store.locks() == []
    came = breaker_scenes.deliveries(folder)
    for number in range(QUEUES):
        mine = list(dict.fromkeys(value for value in came if value.startswith(f"{number}-")))
        assert mine == [f"{number}-{index}" for index in range(EACH)]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("hit", [1, 3])
def test_killed_at_every_point(folder: Path, start: Callable[..., Child], point: str, hit: int) -> None:
    play(folder, start, Strike(point, hit))


@pytest.mark.parametrize("number", [1, 2])
def test_killed_at_any_moment_on_every_store(theatre: Path, start: Callable[..., Child], number: int) -> None:
    play(theatre, start, None, kill_after=random.Random(f"{theatre}{number}").uniform(0, 0.6))

"""kill -9 at every named point: whatever was going on, nothing acknowledged is lost and nothing is half done."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash import scenes
from tests.crash.checker import check, read_sqlite
from tests.crash.driver import Child, Strike, Tally, children
from tests.crash.recorder import read_events

import penstock

pytestmark = pytest.mark.crash

# Their points are for tests of their own.
ELSEWHERE = ("stores/redis", "stores/zookeeper", "sql/server", "sql/postgres", "sql/mysql", "queue/copying", "log/")
POINTS = sorted(
    {
        name
        for path in Path(penstock.__file__).parent.rglob("*.py")
        if not any(place in path.as_posix() for place in ELSEWHERE)
        for name in re.findall(r'chaos\.point\("([\w.]+)"\)', path.read_text("utf-8"))
    }
)


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """How often an undisturbed life reaches every point; of those that threads reach, only the first are counted on."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with children() as start:
        start(scenes.life, folder, strike=Tally(folder / "tally")).ended_well()
    scenes.afterlife(folder)
    judge(folder)
    steady: dict[str, int] = json.loads((folder / "tally.steady").read_text())
    return {**dict.fromkeys(json.loads((folder / "tally.whole").read_text()), 2), **steady}


def judge(folder: Path) -> None:
    broken = check(read_events(folder), read_sqlite(folder / "queues.db"), forgotten=scenes.FORGOTTEN)
    assert broken == [], "\n".join(str(one) for one in broken)


@pytest.mark.parametrize("point", POINTS)
def test_every_point_is_reached_by_the_life_that_is_played(point: str, reached: dict[str, int]) -> None:
    """Otherwise the test below would prove nothing for it."""
    assert reached.get(point, 0) >= 1, f"{point} is never reached: add to scenes.life what leads there"


@pytest.mark.parametrize("point", POINTS)
def test_killed_there_everything_acknowledged_comes_to_one_end(
    point: str, reached: dict[str, int], tmp_path: Path, start: Callable[..., Child]
) -> None:
    count = reached[point]
    for hit in sorted({1, min(2, count), (count + 1) // 2, count}):
        folder = tmp_path / str(hit)
        folder.mkdir()
        start(scenes.life, folder, strike=Strike(point, hit)).was_killed()
        scenes.afterlife(folder)
        judge(folder)


@pytest.mark.parametrize("hit", [7, 23, 41, 68])
def test_the_life_after_a_crash_may_crash_too(hit: int, folder: Path, start: Callable[..., Child]) -> None:
    start(scenes.life, folder, strike=Strike("commit.before", hit)).was_killed()
    for again in (1, 2, 3):
        start(scenes.afterlife, folder, strike=Strike("commit.after", again)).wait()
    scenes.afterlife(folder)
    judge(folder)

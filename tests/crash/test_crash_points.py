"""kill -9 at every named point: whatever was going on, nothing acknowledged is lost and nothing is half done."""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.crash import scenes
from tests.crash.driver import Child, Strike, Tally, children
from tests.crash.judging import judge

import penstock

pytestmark = pytest.mark.crash

Reached = Callable[[str], dict[str, int]]
Staged = Callable[[Path, str], Path]

# What each store has of its own, and what of that is another one's.
KINDS = {
    "sqlite": ("drivers/sql", ("sql/postgres", "sql/mysql")),
    "postgres": ("drivers/sql", ("sql/sqlite", "sql/mysql")),
    "mysql": ("drivers/sql", ("sql/sqlite", "sql/postgres")),
    "redis": ("drivers/redis", ()),
    "zookeeper": ("drivers/zookeeper", ()),
}
ELSEWHERE = ("queue/transfer",)  # in tests of its own


def points_of(kind: str) -> list[str]:
    """The points on the way of one store: its own and those that all have in common."""
    own, others = KINDS[kind]
    package = Path(penstock.__file__).parent
    found: set[str] = set()
    for path in [*package.glob("*.py"), *(package / "queue").rglob("*.py")]:
        place = path.relative_to(package).as_posix()
        foreign = place.startswith(("queue/stores/", "queue/drivers/")) and own not in place
        if not foreign and not any(one in place for one in (*others, *ELSEWHERE)):
            found.update(re.findall(r'failpoints\.point\("([\w.]+)"\)', path.read_text("utf-8")))
    return sorted(point for point in found if not point.startswith("links."))  # these have tests of their own


SHARED = set(points_of("redis")) & set(points_of("zookeeper"))
POINTS = [(kind, point) for kind in KINDS for point in points_of(kind)]


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory, staged: Staged) -> Reached:
    """How often an undisturbed life reaches every point; of those that threads reach, only the first are counted on."""

    @cache
    def counted(kind: str) -> dict[str, int]:
        folder = staged(tmp_path_factory.mktemp("undisturbed"), kind)
        with children() as start:
            start(scenes.life, folder, strike=Tally(folder / "tally")).ended_well()
        scenes.afterlife(folder)
        judge(folder, forgotten=scenes.FORGOTTEN)
        steady: dict[str, int] = json.loads((folder / "tally.steady").read_text())
        return {**dict.fromkeys(json.loads((folder / "tally.whole").read_text()), 2), **steady}

    return counted


@pytest.mark.parametrize(("kind", "point"), POINTS)
def test_every_point_is_reached_by_the_life_that_is_played(kind: str, point: str, reached: Reached) -> None:
    """Otherwise the test below would prove nothing for it."""
    assert reached(kind).get(point, 0) >= 1, f"{point} is never reached: add to scenes.life what leads there"


@pytest.mark.parametrize(("kind", "point"), POINTS)
def test_killed_there_everything_acknowledged_comes_to_one_end(
    kind: str, point: str, reached: Reached, staged: Staged, tmp_path: Path, start: Callable[..., Child]
) -> None:
    count = reached(kind)[point]
    hits = {1, (count + 1) // 2}
    if kind == "sqlite":
        hits |= {min(2, count), count}
    elif point in SHARED:
        hits = {(count + 1) // 2}  # the code around it is the same
    for hit in sorted(hits):
        folder = tmp_path / str(hit)
        folder.mkdir()
        staged(folder, kind)
        start(scenes.life, folder, strike=Strike(point, hit)).was_killed()
        scenes.afterlife(folder)
        judge(folder, forgotten=scenes.FORGOTTEN)


AROUND = {
    "sqlite": ("commit.before", "commit.after"),
    "postgres": ("commit.before", "commit.after"),
    "mysql": ("commit.before", "commit.after"),
    "redis": ("redis.before", "redis.after"),
    "zookeeper": ("zookeeper.before", "zookeeper.after"),
}


@pytest.mark.parametrize(
    ("kind", "hit"),
    [*(("sqlite", hit) for hit in (7, 23, 41, 68)), *((kind, 23) for kind in KINDS if kind != "sqlite")],
)
def test_the_life_after_a_crash_may_crash_too(
    kind: str, hit: int, staged: Staged, tmp_path: Path, start: Callable[..., Child]
) -> None:
    folder = staged(tmp_path, kind)
    before, after = AROUND[kind]
    start(scenes.life, folder, strike=Strike(before, hit)).was_killed()
    for again in (1, 2, 3):
        start(scenes.afterlife, folder, strike=Strike(after, again)).wait()
    scenes.afterlife(folder)
    judge(folder, forgotten=scenes.FORGOTTEN)

"""kill -9 of a runner at every point of a checkpoint: the visible result is that of an undisturbed run."""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.driver import Child, Strike, Tally, children
from tests.crash.stream import scenes

from penstock.ids import new_id

pytestmark = pytest.mark.crash

POINTS = (
    "stream.checkpoint.before",
    "stream.checkpoint.after",
    "log.transaction.written",
    "log.transaction.before",
    "log.transaction.committed",
    "log.transaction.published",
    "log.transaction.offsets",
)


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """How often an undisturbed life reaches every point."""
    folder = tmp_path_factory.mktemp("undisturbed")
    scenes.prepare(folder)
    with children() as start:
        start(scenes.life, folder, strike=Tally(folder / "tally")).ended_well()
    scenes.judge(folder)
    found: dict[str, int] = json.loads((folder / "tally.whole").read_text())
    return found


@pytest.mark.parametrize("point", POINTS)
def test_every_point_is_reached(point: str, reached: dict[str, int]) -> None:
    assert reached.get(point, 0) >= 10


@pytest.mark.timeout(120)
@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_the_result_is_the_same(
    point: str, reached: dict[str, int], tmp_path: Path, start: Callable[..., Child]
) -> None:
    rng = random.Random(point)
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        scenes.prepare(folder)
        for _ in range(2):  # and once more on the way back
            start(scenes.life, folder, strike=Strike(point, rng.randint(1, max(2, reached[point] // 2)))).wait()
        start(scenes.life, folder).ended_well()
        scenes.judge(folder)


@pytest.mark.timeout(120)
def test_killed_again_and_again_at_any_moment(tmp_path: Path, start: Callable[..., Child]) -> None:
    """Not only at named points."""
    scenes.prepare(tmp_path)
    rng = random.Random(3)
    for _ in range(6):
        child = start(scenes.life, tmp_path)
        time.sleep(0.15 + rng.random() * 0.3)
        child.kill()
    start(scenes.life, tmp_path).ended_well()
    scenes.judge(tmp_path)


@pytest.mark.timeout(120)
def test_durable_as_well(tmp_path: Path, start: Callable[..., Child]) -> None:
    scenes.prepare(tmp_path)
    for hit in (3, 5):
        start(scenes.life, tmp_path, "durable", strike=Strike("log.transaction.committed", hit)).wait()
    start(scenes.life, tmp_path, "durable").ended_well()
    scenes.judge(tmp_path)


@pytest.mark.timeout(120)
def test_one_who_comes_back_from_a_stop_is_fenced(tmp_path: Path, start: Callable[..., Child]) -> None:
    scenes.prepare(tmp_path)
    zombie = start(scenes.member, tmp_path, "300ms", 25)
    zombie.wait_stopped()
    survivor = start(scenes.life, tmp_path)  # takes over once the other one is silent for too long
    survivor.ended_well()
    scenes.judge(tmp_path)
    zombie.go_on()
    time.sleep(0.5)
    zombie.kill()
    scenes.judge(tmp_path)


@pytest.mark.timeout(180)
def test_on_kafka_as_well(tmp_path: Path, start: Callable[..., Child], servers: Callable[[str], Any]) -> None:
    """Its transactions carry the offsets; one that a dead process left open ends after three times the timeout."""
    (tmp_path / "url").write_text(f"{servers('kafka').url}/{new_id()}?timeout=4")
    scenes.prepare(tmp_path)
    start(scenes.life, tmp_path, strike=Strike("stream.checkpoint.after", 9)).wait()
    start(scenes.life, tmp_path, strike=Strike("stream.checkpoint.before", 4)).wait()
    start(scenes.life, tmp_path).ended_well()
    scenes.judge(tmp_path)

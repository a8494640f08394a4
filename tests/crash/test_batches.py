"""kill -9 at every step of the last ending of a batch: its callback runs once, never twice, and its tally is right."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash import batch_scenes
from tests.crash.conftest import DURABLE
from tests.crash.driver import Child, Strike, Tally, children

from penstock.queue.protocol import Wait

pytestmark = pytest.mark.crash

Staged = Callable[[Path, str], Path]
MOST_HITS = 2  # of one point


def prepared(staged: Staged, folder: Path, kind: str, how: str) -> Path:
    folder.mkdir()
    staged(folder, kind)
    batch_scenes.put(folder, how)
    return folder


@pytest.mark.timeout(0)
@pytest.mark.parametrize("how", list(batch_scenes.ENDS))
@pytest.mark.parametrize("kind", DURABLE)
def test_killed_at_any_step_of_the_last_ending_the_callback_runs_once(
    kind: str, how: str, staged: Staged, tmp_path: Path
) -> None:
    whole = prepared(staged, tmp_path / "whole", kind, how)
    with children() as start:
        start(batch_scenes.end_the_last, whole, strike=Tally(whole / "tally")).ended_well()
        batch_scenes.afterlife(whole)
        assert batch_scenes.judge(whole) == []
        points: dict[str, int] = json.loads((whole / "tally.whole").read_text())
        assert points, "no point is reached"
        strikes = [(point, hit) for point, count in points.items() for hit in range(1, min(count, MOST_HITS) + 1)]
        for number, (point, hit) in enumerate(strikes):
            folder = prepared(staged, tmp_path / str(number), kind, how)
            start(batch_scenes.end_the_last, folder, strike=Strike(point, hit)).was_killed()
            batch_scenes.afterlife(folder)
            assert batch_scenes.judge(folder) == [], f"killed at {point} the {hit}. time"


@pytest.mark.parametrize("kind", DURABLE)
def test_the_judge_finds_a_callback_that_runs_twice(kind: str, staged: Staged, tmp_path: Path) -> None:
    folder = prepared(staged, tmp_path / "double", kind, "done")
    batch_scenes.end_the_last(folder)
    batch_scenes.afterlife(folder)
    store, _ = batch_scenes.opened(folder)
    store.driver.replay([json.loads((folder / "batch").read_text())["id"]])
    store.close()
    batch_scenes.afterlife(folder)
    assert "the callback ran 2 times" in batch_scenes.judge(folder)


@pytest.mark.parametrize("kind", DURABLE)
def test_the_judge_finds_a_callback_that_is_lost(kind: str, staged: Staged, tmp_path: Path) -> None:
    folder = prepared(staged, tmp_path / "lost", kind, "done")
    store, _ = batch_scenes.opened(folder)
    [wait] = store.driver.waits()
    store.driver.load_links([], [Wait(wait.id, wait.needs + 1, wait.done)])
    store.close()
    batch_scenes.end_the_last(folder)
    batch_scenes.afterlife(folder)
    assert "the callback ran 0 times" in batch_scenes.judge(folder)


def test_children_are_children(start: Callable[..., Child], tmp_path: Path, staged: Staged) -> None:
    """A child that nothing strikes ends its batch as this process would."""
    folder = prepared(staged, tmp_path / "calm", "sqlite", "done")
    start(batch_scenes.end_the_last, folder).ended_well()
    batch_scenes.afterlife(folder)
    assert batch_scenes.judge(folder) == []

"""Workers that end the members of a batch are killed: its callback is put once, and its tally is right."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.crash import batch_worker_scenes as scenes
from tests.crash.conftest import DURABLE
from tests.crash.driver import Child, Shutdown, Strike, Tally

pytestmark = [pytest.mark.crash, pytest.mark.timeout(0)]

Staged = Callable[[Path, str], Path]
Start = Callable[..., Child]

# Where something has become of members, or is about to.
POINTS = (
    "handler.before", "handler.after", "worker.round_trip", "links.consumed", "finish.recorded", "end.recorded",
    "links.made", "commit.begin", "commit.before", "commit.after", "redis.before", "redis.after", "zookeeper.before",
    "zookeeper.after",
)  # fmt: skip


def prepared(staged: Staged, folder: Path, kind: str, play: str) -> Path:
    folder.mkdir()
    staged(folder, kind)
    scenes.put(folder, play)
    return folder


def reached(start: Start, folder: Path) -> dict[str, int]:
    """How often an undisturbed worker reaches every point; then its batch is judged."""
    start(scenes.work_on, folder, strike=Tally(folder / "tally")).ended_well()
    scenes.afterlife(folder)
    assert scenes.judge(folder) == []
    points: dict[str, int] = json.loads((folder / "tally.whole").read_text())
    return {point: points[point] for point in POINTS if point in points}


def judge_after(folder: Path, what: object) -> None:
    scenes.afterlife(folder)
    assert scenes.judge(folder) == [], f"after {what}"


@pytest.mark.parametrize("play", list(scenes.PLAYS))
@pytest.mark.parametrize("kind", DURABLE)
def test_a_worker_killed_while_it_ends_members_puts_the_callback_once(
    kind: str, play: str, staged: Staged, tmp_path: Path, start: Start
) -> None:
    """A sample: the worker dies in the middle, and the one after it near the end."""
    counts = reached(start, prepared(staged, tmp_path / "whole", kind, play))
    assert {"handler.after", "worker.round_trip"} < counts.keys()
    last = {point: counts[point] for point in counts if point in {"worker.round_trip", "links.consumed"}}
    settling = next(point for point in ("commit.before", "redis.after", "zookeeper.after") if point in counts)
    for point in {**last, settling: 0}:
        folder = prepared(staged, tmp_path / point, kind, play)
        start(scenes.work_on, folder, strike=Strike(point, 2)).was_killed()
        start(scenes.work_on, folder, strike=Strike(point, 1)).ended_or_was_killed()
        judge_after(folder, point)


@pytest.mark.parametrize("kind", DURABLE)
def test_a_worker_killed_while_it_stops_puts_the_callback_once(
    kind: str, staged: Staged, tmp_path: Path, start: Start
) -> None:
    for more in (1, 4):
        folder = prepared(staged, tmp_path / str(more), kind, "plain")
        start(scenes.work_on, folder, strike=Shutdown("handler.after", 5, more)).ended_or_was_killed()
        judge_after(folder, more)


@pytest.mark.faults
@pytest.mark.parametrize("play", list(scenes.PLAYS))
@pytest.mark.parametrize("kind", DURABLE)
def test_killed_at_every_hit_of_every_point(kind: str, play: str, staged: Staged, tmp_path: Path, start: Start) -> None:
    """Threads reach the last hits only in some runs, so a strike there may miss. Then the second worker has no work."""
    counts = reached(start, prepared(staged, tmp_path / "whole", kind, play))
    kills = 0
    for strike in every(counts):
        folder = prepared(staged, tmp_path / f"{strike.point}.{strike.hit}", kind, play)
        kills += start(scenes.work_on, folder, strike=strike).ended_or_was_killed()
        kills += start(scenes.work_on, folder, strike=Strike(strike.point, 1)).ended_or_was_killed()
        judge_after(folder, strike)
    assert kills > sum(counts.values()), f"{kills} kills for {counts}"


@pytest.mark.faults
@pytest.mark.parametrize("play", list(scenes.PLAYS))
@pytest.mark.parametrize("kind", DURABLE)
def test_killed_at_every_point_of_a_shutdown(
    kind: str, play: str, staged: Staged, tmp_path: Path, start: Start
) -> None:
    counts = reached(start, prepared(staged, tmp_path / "whole", kind, play))
    kills = 0
    for point in counts:
        for more in range(1, 13):
            folder = prepared(staged, tmp_path / f"{point}.{more}", kind, play)
            shutdown = Shutdown(point, (counts[point] + 1) // 2, more)
            kills += start(scenes.work_on, folder, strike=shutdown).ended_or_was_killed()
            judge_after(folder, shutdown)
    assert kills > len(counts)


def every(counts: dict[str, int]) -> Iterator[Strike]:
    for point, count in counts.items():
        yield from (Strike(point, hit) for hit in range(1, count + 1))


# --- makers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DURABLE)
def test_a_maker_killed_between_parts_leaves_a_whole_batch_or_a_cancelled_one(
    kind: str, staged: Staged, tmp_path: Path, start: Start
) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    staged(whole, kind)
    start(scenes.put_in_parts, whole, strike=Tally(whole / "tally")).ended_well()
    scenes.afterlife(whole)
    assert scenes.judge_parts(whole) == []
    assert (whole / "effects").exists()
    before, counts = (json.loads((whole / f"tally.{part}").read_text()) for part in ("opened", "whole"))
    strikes = [
        strike for strike in every(counts) if strike.point in POINTS and strike.hit > before.get(strike.point, 0)
    ]
    assert len(strikes) >= len(scenes.PARTS), strikes
    for strike in strikes:
        folder = tmp_path / f"{strike.point}.{strike.hit}"
        folder.mkdir()
        staged(folder, kind)
        start(scenes.put_in_parts, folder, strike=strike).was_killed()
        scenes.afterlife(folder)
        assert scenes.judge_parts(folder) == [], f"after {strike}"


# --- planted mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("play", list(scenes.PLAYS))
@pytest.mark.parametrize("kind", DURABLE)
def test_the_judge_finds_a_callback_that_is_lost(kind: str, play: str, staged: Staged, tmp_path: Path) -> None:
    folder = prepared(staged, tmp_path / "lost", kind, play)
    plant(folder, needs=1)
    scenes.afterlife(folder)
    assert "the callback ran 0 times" in scenes.judge(folder)


@pytest.mark.parametrize("play", list(scenes.PLAYS))
@pytest.mark.parametrize("kind", DURABLE)
def test_the_judge_finds_a_member_that_counts_twice(kind: str, play: str, staged: Staged, tmp_path: Path) -> None:
    folder = prepared(staged, tmp_path / "double", kind, play)
    plant(folder, done=1)
    scenes.afterlife(folder)
    assert any("the tally is" in problem for problem in scenes.judge(folder))


@pytest.mark.parametrize("kind", DURABLE)
def test_the_judge_finds_a_callback_that_is_put_twice(kind: str, staged: Staged, tmp_path: Path) -> None:
    folder = prepared(staged, tmp_path / "double", kind, "plain")
    scenes.afterlife(folder)
    store, _ = scenes.opened(folder)
    store.driver.replay([json.loads((folder / "batch").read_text())["id"]])
    store.close()
    scenes.afterlife(folder)
    assert "the callback ran 2 times" in scenes.judge(folder)


def plant(folder: Path, *, needs: int = 0, done: int = 0) -> None:
    """Make the batch need more than it has members, or count one that there is not."""
    store, _ = scenes.opened(folder)
    [wait] = store.driver.waits()
    store.driver.load_links([], [replace(wait, needs=wait.needs + needs, done=wait.done + done)])
    store.close()

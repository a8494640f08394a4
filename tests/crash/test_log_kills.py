"""kill -9 at every named point of the file log: nothing acknowledged is lost, no transaction is half done."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash import log_scenes as scenes
from tests.crash.driver import Child, Strike, Tally, children

import penstock.log

pytestmark = pytest.mark.crash

ROUNDS = 100
POINTS = sorted(
    {
        name
        for path in Path(penstock.log.__file__).parent.rglob("*.py")
        for name in re.findall(r'failpoints\.point\("(log\.[\w.]+)"\)', path.read_text("utf-8"))
    }
)
RECOVERY = [point for point in POINTS if point.startswith("log.recover.")]


@pytest.fixture(scope="module", params=["fast", "durable"])
def reached(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, int]]:
    """How often an undisturbed life reaches every point."""
    folder = tmp_path_factory.mktemp("undisturbed")
    scenes.prepare(folder)
    with children() as start:
        start(scenes.life, folder, request.param, strike=Tally(folder / "tally")).ended_well()
    scenes.judge(folder)
    scenes.afterlife(folder)
    scenes.judge(folder, finished=True)
    return request.param, json.loads((folder / "tally.whole").read_text())


def play(
    folder: Path, start: Callable[..., Child], strike: Strike, durability: str, again: Strike | None = None
) -> None:
    """A life that is struck, perhaps an afterlife that is struck too, and one that is not."""
    folder.mkdir()
    scenes.prepare(folder)
    start(scenes.life, folder, durability, strike=strike).wait()
    if again is not None:
        start(scenes.afterlife, folder, durability, strike=again).wait()
    scenes.judge(folder)
    scenes.afterlife(folder, durability)
    scenes.judge(folder, finished=True)


@pytest.mark.parametrize("point", [point for point in POINTS if point not in RECOVERY])
def test_every_point_is_reached(point: str, reached: tuple[str, dict[str, int]]) -> None:
    """Otherwise the rounds below would prove nothing for it."""
    durability, counts = reached
    assert counts.get(point, 0) >= 1 or (durability == "fast" and point.startswith("log.sync")), (
        f"{point} is never reached: add to log_scenes.life what leads there"
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("part", range(4))
def test_killed_anywhere_nothing_acknowledged_is_lost(
    part: int, reached: tuple[str, dict[str, int]], tmp_path: Path, start: Callable[..., Child]
) -> None:
    durability, counts = reached
    rng = random.Random(f"{part} {durability}")
    known = [point for point in POINTS if counts.get(point)]
    for number in range(ROUNDS // 8 + 1):
        point = known[(number + part * (ROUNDS // 8)) % len(known)]
        strike = Strike(point, rng.randint(1, counts[point]))
        play(tmp_path / str(number), start, strike, durability)


@pytest.mark.timeout(120)
def test_recovery_may_be_killed_too(tmp_path: Path, start: Callable[..., Child]) -> None:
    rng = random.Random(7)
    number = 0
    for point in ("log.write.after", "log.publish.middle", "log.transaction.written", "log.transaction.committed",
                  "log.transaction.published"):  # fmt: skip
        for again in RECOVERY:
            number += 1
            play(tmp_path / str(number), start, Strike(point, rng.randint(1, 9)), "fast", Strike(again))


@pytest.mark.timeout(120)
def test_every_torn_length_of_a_write(tmp_path: Path, start: Callable[..., Child]) -> None:
    """A process that dies in the middle of a write leaves any number of its bytes."""
    import os
    import shutil

    folder = tmp_path / "one"
    folder.mkdir()
    scenes.prepare(folder)
    start(scenes.life, folder, strike=Strike("log.write.after", 30)).was_killed()
    with scenes.opened(folder) as store:
        pass
    touched = [
        path
        for path in store.driver.root.glob("logs/*/p-*/*.seg")  # type: ignore[attr-defined]
        if path.stat().st_size
    ]
    newest = max(touched, key=lambda path: path.stat().st_mtime_ns)
    size = newest.stat().st_size
    for cut in sorted({*range(max(0, size - 420), size, 9), size - 1}):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        target = copy / newest.relative_to(folder)
        if target.stat().st_size < cut:
            continue
        data = target.read_bytes()
        # Only what was written last and never acknowledged is torn.
        from penstock.log.drivers.files.format import segments

        frames = [(at, header.size) for at, header in segments.headers(data, int(newest.stem), 0, len(data))]
        if not frames or cut <= frames[-1][0]:
            continue
        os.truncate(target, cut)
        scenes.judge(copy)

"""A thousand rounds of kill -9 in the file log; `make faults`."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash import log_scenes as scenes
from tests.crash.driver import Child, Strike, Tally, children
from tests.crash.test_log_kills import POINTS, RECOVERY, play

pytestmark = [pytest.mark.faults, pytest.mark.crash]

ROUNDS = 1000


@pytest.mark.timeout(0)
@pytest.mark.parametrize("durability", ["fast", "durable"])
def test_a_thousand_kills(durability: str, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    scenes.prepare(whole)
    with children() as start:
        start(scenes.life, whole, durability, strike=Tally(whole / "tally")).ended_well()
        counts = json.loads((whole / "tally.whole").read_text())
        known = [point for point in POINTS if counts.get(point)]
        for number in range(int(os.environ.get("PENSTOCK_ROUNDS", ROUNDS)) // 2):
            rng = random.Random(number)
            point = rng.choice(known)
            again = Strike(rng.choice(RECOVERY + known), rng.randint(1, 3)) if number % 3 == 0 else None
            strike = Strike(point, rng.randint(1, counts[point]))
            try:
                round_(tmp_path / str(number), start, strike, durability, again)
            except Exception as error:
                raise AssertionError(f"round {number}: {strike}, then {again}") from error


def round_(folder: Path, start: Callable[..., Child], strike: Strike, durability: str, again: Strike | None) -> None:
    import shutil

    play(folder, start, strike, durability, again)
    shutil.rmtree(folder)

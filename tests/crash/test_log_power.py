"""The plug is pulled: the durable profile loses nothing acknowledged, the fast one leaves no half transaction."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash import log_scenes as scenes
from tests.crash.driver import Child, Strike

from penstock.log.drivers.files.format import control, segments

pytestmark = pytest.mark.crash


@pytest.fixture
def restart(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """As if the machine had been started again."""
    return lambda: monkeypatch.setattr(control, "_boot_id", random.Random().getrandbits(60) + 1)


def tear(root: Path, rng: random.Random) -> None:
    """What a power cut does to files of the fast profile: each keeps what was synced and some of what came later.

    The kernel writes files back in any order, so one may have everything and another nothing. Ended segments are
    always there. Nothing was synced here since the start, but for what a roll brings to disk.
    """
    for ctl in root.glob("logs/*/ctl"):
        words = memoryview(bytearray(ctl.read_bytes())[control.PAGE :]).cast("Q")
        for number, folder in enumerate(sorted(ctl.parent.glob("p-*"))):
            slot = control.Slot(words[number * control.WORDS : (number + 1) * control.WORDS])
            cut_some(folder, slot, rng)
    ctl = root / "txn" / "ctl"
    if ctl.exists():
        words = memoryview(bytearray(ctl.read_bytes())[control.PAGE :]).cast("Q")
        cut_some(root / "txn" / "p-0000", control.Slot(words[: control.WORDS]), rng)
    for path in root.glob("groups/*/offsets/*"):
        if rng.random() < 0.3:
            raw = bytearray(path.read_bytes())
            at = 64 * rng.randrange(len(raw) // 64)
            raw[at : at + 64] = bytes(64)
            path.write_bytes(raw)


def cut_some(folder: Path, slot: control.Slot, rng: random.Random) -> None:
    base = segments.bases(folder)[-1]
    path = segments.segment_path(folder, base)
    durable = slot.durable()
    floor = durable.position if durable is not None and durable.base == base else 0
    size = path.stat().st_size
    if size > floor and rng.random() < 0.8:
        os.truncate(path, rng.randint(floor, size))


@pytest.mark.timeout(120)
def test_no_half_transaction_survives_a_power_cut_in_the_fast_profile(
    tmp_path: Path, start: Callable[..., Child], restart: Callable[[], None]
) -> None:
    life = tmp_path / "life"
    life.mkdir()
    scenes.prepare(life)
    start(scenes.life, life, strike=Strike("log.write.after", 75)).wait()
    lost = 0
    for seed in range(25):
        folder = tmp_path / str(seed)
        shutil.copytree(life, folder)
        for notes in folder.glob("*.notes"):
            notes.unlink()  # the fast profile promises no acknowledgement across a power cut
        tear(folder / "store", random.Random(seed))
        restart()
        scenes.judge(folder)
        with scenes.opened(folder) as store:
            lost += store.bounds("out-a")[0].end
        scenes.afterlife(folder)
        scenes.judge(folder, finished=True)
    assert lost, "some transactions survived"


def test_everything_acknowledged_survives_in_the_durable_profile(
    tmp_path: Path, start: Callable[..., Child], restart: Callable[[], None]
) -> None:
    """Only what was never synced may go; in this profile that is what was never acknowledged."""
    for hit in (9, 40, 71):
        folder = tmp_path / str(hit)
        folder.mkdir()
        scenes.prepare(folder)
        start(scenes.life, folder, "durable", strike=Strike("log.sync.before", hit)).wait()
        store = folder / "store"
        for ctl in store.glob("logs/*/ctl"):
            words = memoryview(bytearray(ctl.read_bytes())[control.PAGE :]).cast("Q")
            for number, part in enumerate(sorted(ctl.parent.glob("p-*"))):
                slot = control.Slot(words[number * control.WORDS : (number + 1) * control.WORDS])
                cut_some(part, slot, random.Random(hit))
        restart()
        scenes.judge(folder)
        scenes.afterlife(folder, "durable")
        scenes.judge(folder, finished=True)

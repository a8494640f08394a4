"""The judge of the log's crash tests judges: planted bugs are caught."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash import log_scenes as scenes
from tests.crash.driver import Child, Strike

from penstock import PenstockError
from penstock.log.drivers.files.transactions.journal import Journal
from penstock.log.drivers.files.writing import recovery

pytestmark = pytest.mark.crash

Start = Callable[..., Child]


def died_at(folder: Path, start: Start, point: str, hit: int) -> None:
    scenes.prepare(folder)
    start(scenes.life, folder, strike=Strike(point, hit)).was_killed()


def test_frames_of_a_transaction_that_never_happened_are_kept(
    folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    died_at(folder, start, "log.transaction.written", 3)
    monkeypatch.setattr(Journal, "is_committed", lambda self, txn, hint: True)
    with scenes.opened(folder) as store:
        store.log("out-a", bytes).append(b"someone else's")  # recovery looks only where somebody writes
    with pytest.raises(AssertionError, match="whole in both logs"):
        scenes.judge(folder)


def test_frames_of_a_transaction_that_happened_are_cut(
    folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    died_at(folder, start, "log.transaction.committed", 2)
    monkeypatch.setattr(Journal, "is_committed", lambda self, txn, hint: False)
    with pytest.raises(AssertionError, match="the offsets say exactly what was moved"):
        scenes.judge(folder)


def test_offsets_of_a_dead_transaction_are_forgotten(
    folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    died_at(folder, start, "log.transaction.published", 4)
    monkeypatch.setattr(Journal, "apply_offsets", lambda self, record, txn: None)
    with pytest.raises(AssertionError, match="the offsets say exactly what was moved"):
        scenes.judge(folder)


def test_recovery_that_counts_wrong(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The life dies before a write; recovery believes that one more record is there."""
    real = recovery.scan

    def believing(data: Any, offset: int, *args: Any) -> Any:
        found = real(data, offset, *args)
        return found._replace(next=found.next + 1)

    def play(hit: int) -> None:
        folder = tmp_path / str(hit)
        folder.mkdir()
        died_at(folder, start, "log.write.before", hit)
        with monkeypatch.context() as patch:
            patch.setattr(recovery, "scan", believing)
            scenes.afterlife(folder)
        scenes.judge(folder, finished=True)

    caught = 0
    for hit in (1, 2, 3):  # an input, a brief one, an input
        try:
            play(hit)
        except (AssertionError, PenstockError):
            caught += 1
    assert caught >= 2


def test_an_acknowledged_record_is_gone(folder: Path, start: Start) -> None:
    scenes.prepare(folder)
    start(scenes.life, folder).ended_well()
    scenes.judge(folder)
    newest = max((folder / "store/logs/in/p-0000").glob("*.seg"), key=lambda path: path.name)
    os.truncate(newest, 0)
    with pytest.raises(Exception, match=r"damaged|acknowledged|there"):
        scenes.judge(folder)

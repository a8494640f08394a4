"""Servers that are restarted, killed and frozen under load: whatever they acknowledged is there afterwards, once."""

import time
from collections.abc import Callable

import pytest
from tests.faults.arena import Arena, wait_steps
from tests.faults.conftest import KINDS

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


@pytest.mark.parametrize("kind", KINDS)
def test_restarted_three_times(kind: str, arena: Callable[[str], Arena]) -> None:
    """SR1: a clean restart."""
    play = arena(kind)
    play.ensemble()
    for pause in (0.0, 1.0, 3.0):
        wait_steps(play.folder, 300)
        play.server.stop()
        time.sleep(pause)
        play.server.start()
    wait_steps(play.folder, 200)
    play.finish()


@pytest.mark.parametrize("kind", KINDS)
def test_killed_three_times(kind: str, arena: Callable[[str], Arena]) -> None:
    """SR2: kill -9; the server recovers from its log."""
    play = arena(kind)
    play.ensemble()
    for pause in (0.0, 1.0, 3.0):
        wait_steps(play.folder, 300)
        play.server.crash()
        time.sleep(pause)
        play.server.start()
    wait_steps(play.folder, 200)
    play.finish()


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_for_longer_than_a_lease(kind: str, arena: Callable[[str], Arena]) -> None:
    """SR3: it lives, holds every connection and says nothing."""
    play = arena(kind)
    play.ensemble()
    for pause in (1.0, 8.0):
        wait_steps(play.folder, 300)
        play.server.freeze()
        time.sleep(pause)
        play.server.thaw()
    wait_steps(play.folder, 200)
    play.finish()

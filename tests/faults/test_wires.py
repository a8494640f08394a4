"""Connections that are cut before or after a reply, that swallow everything, or that only one process loses."""

import random
import time
from collections.abc import Callable

import pytest
from tests.faults import load
from tests.faults.arena import Arena, wait_steps
from tests.faults.conftest import KINDS
from tests.stores.wire_proxy import Proxy

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

Wired = Callable[[str], tuple[Arena, Proxy]]


@pytest.mark.parametrize("which", ["cut_requests", "cut_replies"])
@pytest.mark.parametrize("kind", KINDS)
def test_cut_a_hundred_times(kind: str, which: str, wired: Wired) -> None:
    """N1, N2: a request that never arrives; a reply, of a commit among others, that never comes back."""
    play, proxy = wired(kind)
    play.ensemble()
    wait_steps(play.folder, 200)
    seed = random.Random(17)
    for _ in range(100):
        proxy.cut_later(which, seed.randrange(12))
        time.sleep(0.1)
    wait_steps(play.folder, 200)
    play.finish()


@pytest.mark.parametrize("kind", KINDS)
def test_a_black_hole(kind: str, wired: Wired) -> None:
    """N3: nobody is told that the connection is dead."""
    play, proxy = wired(kind)
    play.ensemble()
    for pause in (1.0, 8.0):
        wait_steps(play.folder, 200)
        proxy.silent = True
        time.sleep(pause)
        proxy.silent = False
        proxy.cut_all()
    wait_steps(play.folder, 200)
    play.finish()


@pytest.mark.parametrize("kind", KINDS)
def test_replies_never_come(kind: str, wired: Wired) -> None:
    """N7: requests arrive, replies do not, for seconds: attempts stay within their bounds and nothing is lost."""
    play, proxy = wired(kind)
    play.ensemble()
    wait_steps(play.folder, 200)
    end = time.monotonic() + 6
    while time.monotonic() < end:
        proxy.cut_replies = 1
        time.sleep(0.02)
    proxy.cut_replies = 0
    wait_steps(play.folder, 200)
    play.finish()


@pytest.mark.parametrize("kind", KINDS)
def test_one_worker_is_cut_off_and_the_others_go_on(kind: str, wired: Wired) -> None:
    """N6: what it holds is taken over; what it says later is refused."""
    play, proxy = wired(kind)
    play.ensemble(workers=1)
    wait_steps(play.folder, 200)
    # The others reach the server directly.
    url = (play.folder / "url").read_text()
    (play.folder / "url").write_text(url.replace(f":{proxy.port}", f":{play.server.port}"))
    play.play(load.work, load.produce, load.cook)
    wait_steps(play.folder, 200)
    proxy.silent = True
    time.sleep(8)
    wait_steps(play.folder, 200)
    proxy.silent = False
    proxy.cut_all()
    play.finish()

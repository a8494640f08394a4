"""Scan hints: a claim starts where the last one ended, until it is time to look at all that waits."""

import pytest

from penstock.queue.drivers.sql import round_trip
from penstock.queue.drivers.sql.round_trip import WHOLE_LOOK_SECONDS, Hint


def hint(**fields: object) -> Hint:
    """One of a look a tenth of a second ago, with claims left and the bell as it was."""
    return Hint(**{"priority": 0, "due": 1, "seq": 1, "rings": 7, "claims_left": 5, "looked_at": 99.9, **fields})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_trip.time, "monotonic", lambda: 100.0)


def test_it_holds_for_some_claims_some_time_and_until_the_bell_rings() -> None:
    assert hint().holds(7)
    assert not hint().holds(8)
    assert not hint(claims_left=0).holds(7)
    assert not hint(looked_at=100 - WHOLE_LOOK_SECONDS).holds(7)


def test_dear_looks_take_a_third_of_the_time_whatever_rings() -> None:
    """Beside an open snapshot a look steps over all that was deleted since."""
    looks = (0.4, 0.4)
    assert hint(looks=looks, looked_at=99.21, claims_left=0).holds(8)
    assert not hint(looks=looks, looked_at=99.19).holds(7)
    assert not hint(looks=(0.02, 0.02), looked_at=100 - WHOLE_LOOK_SECONDS).holds(7)


def test_only_what_looks_take_beyond_other_claims_is_dear() -> None:
    """Neither large entries, nor a server that is far away, nor a single wait for a lock."""
    assert not hint(looks=(0.4, 0.4), hinted=0.4).holds(8)
    assert not hint(looks=(5.0, 0.001)).holds(8)

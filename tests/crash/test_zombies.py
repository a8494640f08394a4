"""Workers that sleep through their lease: the store hands their entries on and refuses what they say later."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash import scenes
from tests.crash.driver import Child, Strike
from tests.crash.judging import dump_of, judge
from tests.crash.recorder import read_events
from tests.crash.scenes import Stage

from penstock import open_queues
from penstock.errors import StoreUnavailable

pytestmark = pytest.mark.crash

Start = Callable[..., Child]


def refusals(folder: Path, child: Child) -> list[str]:
    return [
        event["error"]
        for event in read_events(folder)
        if event["op"] == "step" and event["phase"] == "fail" and event["process"] == child.pid
    ]


@pytest.mark.parametrize("point", ["handler.before", "handler.after"])
def test_a_late_outcome_is_refused(point: str, theatre: Path, start: Start) -> None:
    stage = Stage(theatre)
    put = stage.queue("jobs").put(1)
    zombie = start(scenes.handle_one, theatre, strike=Strike(point, signal=signal.SIGSTOP))
    zombie.wait_stopped()

    stage.handle("jobs", lambda value, ctx: None)
    assert stage.drain() == 0, "the lease still holds"
    stage.advance("61s")
    assert stage.drain() == 1
    zombie.go_on()
    zombie.ended_well()

    assert refusals(theatre, zombie) == ["LeaseLost"]
    history = dump_of(theatre).history
    assert [(row["id"], row["state"], row["attempt"]) for row in history] == [
        (put.id, "reaped", 1),
        (put.id, "done", 2),
    ]
    judge(theatre)
    stage.store.close()


def test_a_late_outcome_is_refused_while_another_worker_is_at_it(theatre: Path, start: Start) -> None:
    stage = Stage(theatre)
    stage.queue("jobs").put(1)
    zombie = start(scenes.handle_one, theatre, strike=Strike("handler.after", signal=signal.SIGSTOP))
    zombie.wait_stopped()
    stage.advance("61s")
    other = start(scenes.handle_one, theatre, strike=Strike("handler.after", signal=signal.SIGSTOP))
    other.wait_stopped()

    zombie.go_on()
    zombie.ended_well()
    assert refusals(theatre, zombie) == ["LeaseLost"]
    [row] = dump_of(theatre).live
    assert (row["leased"], row["fence"]) == (True, 2), "the other one still holds it"
    other.go_on()
    other.ended_well()
    assert refusals(theatre, other) == []
    judge(theatre)
    stage.store.close()


def test_a_late_extension_is_refused(theatre: Path, start: Start) -> None:
    stage = Stage(theatre)
    stage.queue("jobs").put(1)
    zombie = start(scenes.handle_one, theatre, True, strike=Strike("handler.before", signal=signal.SIGSTOP))
    zombie.wait_stopped()
    stage.handle("jobs", lambda value, ctx: None)
    stage.advance("61s")
    assert stage.drain() == 1
    zombie.go_on()
    zombie.ended_well()

    assert (theatre / "refused").exists(), "the handler was told"
    extended = [event["until"] for event in read_events(theatre) if event["op"] == "extended"]
    assert extended == [None]
    assert refusals(theatre, zombie) == ["LeaseLost"]
    judge(theatre)
    stage.store.close()


def test_a_late_unit_of_work_writes_nothing(theatre: Path, start: Start) -> None:
    stage = Stage(theatre)
    stage.queue("jobs").put_many(range(2))
    zombie = start(scenes.commit_unit, theatre, strike=Strike("unit.before", signal=signal.SIGSTOP))
    zombie.wait_stopped()
    stage.handle("jobs", lambda value, ctx: None)
    stage.advance("61s")
    # One of its two entries goes on to somebody else: enough to undo all of the unit.
    [entry] = [one for one in stage.queue("jobs").find() if one.value == 0]
    stage.store.driver.reap(node="stage")
    assert stage.drain() == 2
    zombie.go_on()
    zombie.ended_well()

    assert (theatre / "refused").exists()
    dump = dump_of(theatre)
    assert [row["queue"] for row in dump.live] == []
    assert {row["queue"] for row in dump.history} == {"jobs"}, "not one of its puts"
    assert [row["state"] for row in dump.history if row["id"] == entry.id] == ["reaped", "done"]
    judge(theatre)
    stage.store.close()


def test_a_process_that_stops_inside_a_commit_delays_others_and_loses_nothing(folder: Path, start: Start) -> None:
    stage = Stage(folder)
    stage.queue("jobs").put(0)
    sleeper = start(scenes.put_one, folder, strike=Strike("commit.before", signal=signal.SIGSTOP))
    sleeper.wait_stopped()
    with open_queues(f"sqlite:///{folder / 'queues.db'}?busy_timeout=0.2", clock=stage.clock) as hasty:
        with pytest.raises(StoreUnavailable, match="locked"):
            stage.recorder.watch(hasty).queue("jobs", int).put(2)
        assert [entry.value for entry in hasty.queue("jobs", int).find()] == [0], "reading goes on"
        sleeper.go_on()
        sleeper.ended_well()
        hasty.queue("jobs", int).put(3)
    assert [entry.value for entry in stage.queue("jobs").find()] == [0, 1, 3]
    judge(folder, drained=False)
    stage.store.close()

"""Many processes at once: all workers killed together, many writers, a reaper against late finishers, poison."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash import scenes
from tests.crash.driver import Child
from tests.crash.judging import judge
from tests.crash.recorder import read_events
from tests.crash.scenes import Stage, url_of

from penstock import Retry, Worker

pytestmark = pytest.mark.crash

Start = Callable[..., Child]


def test_all_workers_killed_at_once_with_all_they_have_leased(theatre: Path, start: Start) -> None:
    """What was reaped is claimed one by one, so a server, with a round trip for each, gets fewer."""
    many = 1000 if url_of(theatre).startswith("sqlite") else 200
    stage = Stage(theatre, options="?durability=fast")
    jobs = stage.queue("jobs")
    jobs.put_many(range(many))
    workers = [start(scenes.hold_many, theatre, many // 4, theatre / f"ready{number}") for number in range(4)]
    for number, worker in enumerate(workers):
        worker.wait_file(theatre / f"ready{number}")
    assert jobs.counts().leased == many
    for worker in workers:
        worker.kill()
    stage.handle("jobs", lambda value, ctx: None)
    assert stage.drain() == 0, "their leases still hold"

    stage.advance("61s")
    worker = Worker(stage.store, poll="20ms")
    found = stage.store.driver.reap(node="stage")
    assert len(found.reaped) == many
    worker.start()
    try:
        for _ in range(4000):
            if not jobs.counts().live:
                break
            stage.store.driver.wait(stage.store.driver.bell(), 0.01)
    finally:
        assert worker.stop()
    dump = judge(theatre)
    assert [row["state"] for row in dump.history].count("reaped") == many
    assert [row["state"] for row in dump.history].count("done") == many
    stage.store.close()


def test_a_second_handle_of_a_process_keeps_the_first_one_alive(folder: Path, start: Start) -> None:
    """Closing any file handle drops a process's POSIX locks; then another process's close would take the log away."""
    first = Stage(folder)
    first.queue("jobs").put(0)
    second = Stage(folder)
    second.queue("jobs").put(1)
    start(scenes.put_one, folder).ended_well()
    first.queue("jobs").put(2)
    second.store.close()
    start(scenes.put_one, folder).ended_well()
    first.queue("jobs").put(3)
    assert len(judge(folder, drained=False).live) == 6
    start(scenes.handle_one, folder).ended_well()
    judge(folder)
    first.store.close()


def test_eight_writing_processes_never_see_a_failure(theatre: Path, start: Start) -> None:
    stage = Stage(theatre, fake=False)
    writers = [start(scenes.write_much, theatre, number, 60) for number in range(8)]
    for writer in writers:
        writer.ended_well()
    trouble = [event for event in read_events(theatre) if event.get("phase") in ("fail", "info")]
    assert trouble == []
    stage.handle("jobs", lambda value, ctx: None, retry=Retry(attempts=None))
    stage.handle("results", lambda value, ctx: None, retry=Retry(attempts=None))
    stage.drain()
    dump = judge(theatre)
    puts = [put for event in read_events(theatre) for put in event.get("puts", ()) if put["queue"] == "jobs"]
    values = {put["id"]: int(bytes.fromhex(put["payload"])) for put in puts}
    done = sorted(values[row["id"]] for row in dump.history if row["queue"] == "jobs")
    assert done == sorted(number * 10_000 + offset for number in range(8) for offset in range(60)), "each once"
    stage.store.close()


def test_a_reaper_and_late_finishers_agree_on_one_winner(theatre: Path, start: Start) -> None:
    """Five hundred races: whoever comes first has it, the other is told so."""
    stage = Stage(theatre, options="?durability=fast")
    jobs = stage.queue("jobs")
    jobs.put_many(range(500))
    leases = [entry.lease for _ in range(5) for entry in scenes.claim(jobs, 100)]
    stage.advance("2m")
    gate = theatre / "gate"
    finisher = start(scenes.finish_all, theatre, leases, gate)
    reaper = start(scenes.reap_all, theatre, gate)
    for child in (finisher, reaper):
        child.wait_file(gate.with_suffix(f".{child.pid}"))
    gate.touch()
    finisher.ended_well()
    reaper.ended_well()

    told = [
        event["phase"] for event in read_events(theatre) if event["op"] == "step" and event["process"] == finisher.pid
    ]
    dump = judge(theatre, drained=False)
    first = {row["id"]: row["state"] for row in dump.history if row["attempt"] == 1}
    assert len(first) == len(dump.history) == 500
    assert told.count("ok") == list(first.values()).count("done")
    assert told.count("fail") == list(first.values()).count("reaped") == len(dump.live)
    assert told.count("ok") + told.count("fail") == 500
    stage.store.close()


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_poison_entry_dies_and_takes_no_innocent_with_it(attempts: int, theatre: Path, start: Start) -> None:
    """A hundred are leased together; number 50 kills every worker that starts it."""
    stage = Stage(theatre)
    jobs = stage.queue("jobs")
    jobs.put_many(range(100))
    for _ in range(attempts + 1):
        code = start(scenes.poison, theatre, attempts).wait()
        assert code in (0, -9)
        stage.advance("61s")
        stage.store.driver.reap(node="stage")
        if code == 0 and not jobs.counts().live:
            break
    dump = judge(theatre)
    assert [int(bytes.fromhex(row["payload"])) for row in dump.dead] == [50]
    finals = [row["state"] for row in dump.history if row["state"] in ("done", "dead")]
    assert (finals.count("done"), finals.count("dead")) == (99, 1)
    starts = [event for event in read_events(theatre) if event["op"] == "start" and event["id"] == dump.dead[0]["id"]]
    assert len(starts) == attempts
    stage.store.close()

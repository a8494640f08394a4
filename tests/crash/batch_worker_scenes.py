"""What child processes play with batches when a worker runs: it ends the members, or the maker dies between parts."""

import json
import time
from collections import Counter
from pathlib import Path

from tests.crash.batch_scenes import LEASE, note_run, opened
from tests.crash.driver import write_tally

from penstock import Context, QueueStore, Reaper, Reject, Retry, Worker
from penstock.queue.protocol import Find
from penstock.queue.worker.shutdown import until_asked

MEMBERS = 20
CLAIM = 8  # so a round trip settles several members, and a batch takes several claims
ROUNDS = 20  # of half an hour, after a crash; the door of a batch in parts stays open for one
PARTS = (4, 4, 2)  # of a batch that its maker puts in parts
# What the batch of a play waits for. In `plain` all members are done; in `mixed` some fail for good, some fail once,
# and one adds another member.
PLAYS = {"plain": "done", "mixed": "ended"}
DEAD, FLAKY, ADDING = {3, 19}, {1, 7, 18}, {5}
TALLIES = {
    "plain": {"done": MEMBERS, "dead": 0, "cancelled": 0, "expired": 0},
    "mixed": {"done": MEMBERS - len(DEAD) + len(ADDING), "dead": len(DEAD), "cancelled": 0, "expired": 0},
}


def put(folder: Path, play: str) -> None:
    """Put a batch whose members a worker will end."""
    store, _ = opened(folder)
    work, then = store.queue("work", int), store.queue("then", int)
    with store.batch(then=(then, 1), on=PLAYS[play]) as batch:  # type: ignore[arg-type]
        batch.put_many(work, range(MEMBERS))
    (folder / "batch").write_text(json.dumps({"id": batch.id, "play": play}))
    store.close()


def handle_members(store: QueueStore, play: str) -> None:
    """The handler of the members."""
    work = store.queue("work", int)

    def handle(number: int, ctx: Context[int]) -> int:
        if play == "mixed" and number in DEAD:
            raise Reject("it was planned")
        if play == "mixed" and number in FLAKY and ctx.entry.attempt == 1:
            raise RuntimeError("not yet")
        if play == "mixed" and number in ADDING:
            ctx.put(work, number + 100, batch=ctx.batch)
        return number * 2

    # Crashes spend attempts, too.
    work.add_handler(handle, retry=Retry(attempts=20, delays=["0s"]), keep_result="1d" if play == "mixed" else None)


def work_on(folder: Path) -> None:
    """The scene that is killed: a worker in the background ends all members, or until SIGTERM stops it."""
    play = json.loads((folder / "batch").read_text())["play"]
    store, clock = opened(folder)
    clock.advance("2m")  # whatever a killed worker had in hand can be reaped
    handle_members(store, play)
    worker = Worker(store, lease=LEASE, poll="20ms", batch=CLAIM, reaper=Reaper(store, keep_history=None))
    deadline = time.monotonic() + 60
    with until_asked(5) as asked:  # as Worker.run() does
        worker.start()
        while not asked.wait(0.02) and store.queue("work", int).counts().live:
            assert time.monotonic() < deadline, "the worker did not get through"
        worker.stop()
    write_tally("whole")
    store.close()


def afterlife(folder: Path) -> None:
    """Everything that was left is worked on; the callback writes down that it ran."""
    known = json.loads((folder / "batch").read_text())
    store, clock = opened(folder)
    handle_members(store, known["play"])
    store.queue("then", int).add_handler(lambda number: note_run(folder))
    for number in range(ROUNDS):
        clock.advance("31m")
        Worker(store, lease=LEASE, reaper=Reaper(store, keep_history=None)).drain()
        left = store.driver.find(Find())
        if not left or (number >= 2 and all(entry.state == "held" for entry in left)):
            break
        time.sleep(0.05)  # a server may not have noticed yet that the killed process is gone, and keep its locks
    store.close()


def judge(folder: Path) -> list[str]:
    """What is wrong with the batch: nothing, if its callback was put and ran once and its tally is right."""
    known = json.loads((folder / "batch").read_text())
    store, _ = opened(folder)
    problems = _problems_of_end(folder, store, known["id"], TALLIES[known["play"]])
    if known["play"] == "mixed":
        work = store.queue("work", int)
        ended = store.driver.history(Find(queue="work", states=("done",)))
        results = Counter(work.result(row.id).value // 2 for row in ended)
        expected = Counter([*(set(range(MEMBERS)) - DEAD), *(number + 100 for number in ADDING)])
        if results != expected:
            problems.append(f"the results are those of {sorted(results.elements())}")
    store.close()
    return problems


def _problems_of_end(folder: Path, store: QueueStore, batch: str, tally: dict[str, int]) -> list[str]:
    """What is wrong with a batch that is to have been released."""
    problems = []
    effects = folder / "effects"
    runs = len(effects.read_text().splitlines()) if effects.exists() else 0
    if runs != 1:
        problems.append(f"the callback ran {runs} times")
    rows = store.driver.history(Find(ids=(batch,)))
    if [(row.state, row.generation) for row in rows] != [("done", 1)]:
        problems.append(f"the callback's history is {[(row.state, row.generation) for row in rows]}")
    [wait] = store.driver.waits([batch])
    if wait.needs or wait.tally != tally:
        problems.append(f"the tally is {wait}, not {tally}")
    return problems + _left(store)


def _left(store: QueueStore) -> list[str]:
    problems = []
    if store.driver.links():
        problems.append(f"links are left: {store.driver.links()}")
    if live := store.driver.find(Find()):
        problems.append(f"entries are left: {live}")
    return problems


# --- a batch in parts --------------------------------------------------------------------------------------


def put_in_parts(folder: Path) -> None:
    """The scene that is killed: a batch is put that is larger than one step."""
    store, _ = opened(folder)
    store.driver.unit_limit = max(PARTS)
    work, then = store.queue("work", int), store.queue("then", int)
    batch = store.batch(then=(then, 1))
    batch.put_many(work, range(sum(PARTS)))
    (folder / "batch").write_text(json.dumps({"id": batch.id, "play": "plain"}))
    write_tally("opened")
    batch.commit()
    write_tally("whole")
    store.close()


def judge_parts(folder: Path) -> list[str]:
    """What is wrong with a batch whose maker may have died between its parts."""
    known = json.loads((folder / "batch").read_text())
    store, _ = opened(folder)
    members = len(store.driver.history(Find(queue="work", states=("done",))))
    rows = store.driver.history(Find(ids=(known["id"],)))
    try:
        if members not in {sum(PARTS[:count]) for count in range(len(PARTS) + 1)}:
            return [f"{members} members were put: half a part"]
        if not store.driver.waits([known["id"]]):
            return [f"{members} members without a batch"] if members or rows else []
        if [row.state for row in rows] == ["cancelled"]:
            runs = ["the callback of a cancelled batch ran"] if (folder / "effects").exists() else []
            return runs + _left(store)
        tally = {"done": sum(PARTS), "dead": 0, "cancelled": 0, "expired": 0}
        return _problems_of_end(folder, store, known["id"], tally)
    finally:
        store.close()

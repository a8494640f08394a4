"""What child processes play with batches: put one, end its members in every way, and what comes after."""

import json
import os
from collections import Counter
from pathlib import Path

from tests.crash.driver import write_tally
from tests.crash.scenes import claim, url_of

from penstock import QueueStore, Reaper, Worker, open_queues
from penstock.queue.protocol import Ending, Find, Step
from penstock.testing import FileClock

MEMBERS = 4
LEASE = "60s"
# How the last member ends, and what its batch waits for.
ENDS = {"done": "done", "dead": "ended", "cancelled": "ended", "expired": "ended", "reaped": "ended", "added": "done"}


def opened(folder: Path) -> tuple[QueueStore, FileClock]:
    clock = FileClock(folder / "clock")
    return open_queues(url_of(folder), clock=clock, node="stage"), clock


def put(folder: Path, how: str) -> None:
    """Put a batch whose callback is a number, and end all members but the last."""
    store, _ = opened(folder)
    work, then = store.queue("work", int), store.queue("then", int)
    expires = "10m" if how == "expired" else None
    with store.batch(then=(then, 1), on=ENDS[how]) as batch:  # type: ignore[arg-type]
        ids = [batch.put(work, number, expires=expires) for number in range(MEMBERS)]
    for entry in claim(work, MEMBERS - 1):
        assert entry.lease is not None
        store.driver.commit(Step((Ending(entry.lease, "done"),)))
    (folder / "batch").write_text(json.dumps({"id": batch.id, "members": ids, "how": how}))
    store.close()


def end_the_last(folder: Path) -> None:
    """The scene that is killed: the end of the last member."""
    known = json.loads((folder / "batch").read_text())
    store, clock = opened(folder)
    work = store.queue("work", int)
    how = known["how"]
    if how in ("done", "dead", "added", "reaped"):
        [entry] = claim(work, 1, attempts=1 if how == "reaped" else 5)
        assert entry.lease is not None
        if how == "reaped":
            clock.advance("2m")
            store.driver.reap(node="stage")
        elif how == "added":
            with_more(store, entry.lease, known["id"])
        else:
            store.driver.commit(Step((Ending(entry.lease, how),)))  # type: ignore[arg-type]
    elif how == "cancelled":
        [entry] = work.find()
        store.driver.cancel([entry.id])
    else:
        clock.advance("11m")
        store.driver.reap(node="stage")
    write_tally("whole")
    store.close()


def with_more(store: QueueStore, lease: object, batch: str) -> None:
    """The last member adds one more while it ends."""
    from penstock.queue.batch import linked_entry

    entry, links = linked_entry(store.queue("work", int), 99, {"batch": batch})
    store.driver.commit(Step((Ending(lease, "done"),), (entry,), links=tuple(links)))  # type: ignore[arg-type]


def afterlife(folder: Path) -> None:
    """Everything that was left is worked on; the callback writes down that it ran."""
    known = json.loads((folder / "batch").read_text())
    store, clock = opened(folder)
    store.queue("work", int).add_handler(lambda number: None)
    store.queue("then", int).add_handler(lambda number: note_run(folder))
    for _ in range(3):
        clock.advance("11m")
        Worker(store, lease=LEASE, reaper=Reaper(store, keep_history=None)).drain()
    if known["how"] == "dead" and store.driver.dead(Find(queue="work")):
        store.driver.replay([letter.id for letter in store.driver.dead(Find(queue="work"))])
        Worker(store, lease=LEASE, reaper=Reaper(store, keep_history=None)).drain()
    store.close()


def note_run(folder: Path) -> None:
    """Write down that the callback ran."""
    handle = os.open(folder / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, b"ran\n")
    os.close(handle)


def judge(folder: Path) -> list[str]:
    """What is wrong with the batch: nothing, if its callback ran once and its tally is right."""
    known = json.loads((folder / "batch").read_text())
    store, _ = opened(folder)
    problems = []
    effects = folder / "effects"
    ran = len(effects.read_text().splitlines()) if effects.exists() else 0
    if ran != 1:
        problems.append(f"the callback ran {ran} times")
    [wait] = store.driver.waits([known["id"]])
    rows = store.driver.history(Find(ids=(known["id"],)))
    if Counter(row.state for row in rows) != {"done": 1}:
        problems.append(f"the callback's history is {[row.state for row in rows]}")
    added = len(store.driver.history(Find(queue="work", states=("done",)))) if known["how"] == "added" else MEMBERS
    if wait.needs or sum(wait.tally.values()) != added:
        problems.append(f"the tally is {wait} for {added} members")
    if store.driver.links():
        problems.append(f"links are left: {store.driver.links()}")
    store.close()
    return problems

"""Members of groups that are killed or stopped, and appenders in a crowd."""

import json
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash import log_scenes as scenes
from tests.crash.driver import PATIENCE, Child, Strike

from penstock import LogStore
from penstock.errors import PartitionTaken
from penstock.log import Offset, Partition
from penstock.log.tailer import Tailer

pytestmark = pytest.mark.crash

Start = Callable[..., Child]


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.005)


def test_the_partitions_of_a_killed_member_go_to_another(folder: Path, start: Start) -> None:
    scenes.prepare(folder)
    with scenes.opened(folder) as store:
        store.create("many", partitions=4)
        out = store.appender("in", bytes)
        tail = store.subscribe("in", "watchers", bytes)
        for round_ in range(5):
            child = start(scenes.holder, folder, f"ready{round_}")
            wait_for(
                lambda child=child, round_=round_: (
                    tail.read(timeout="5ms") is not None
                    and (folder / f"ready{round_}").exists()
                    and len(tail.assignment()) == 1
                ),
                "the two share the partitions",
            )
            theirs = 1 - tail.assignment()[0].index
            child.kill()
            begin = time.monotonic()
            placed = out.append(b"x", partition=theirs)
            while not any(record.position == placed for record in tail.read(timeout="1s")):
                assert time.monotonic() < begin + PATIENCE
            tail.commit()
        tail.close()


@pytest.mark.parametrize(
    "point", ["log.transaction.written", "log.offset.before", "log.write.before", "log.transaction.before"]
)
def test_a_member_that_stops_outside_or_inside_a_commit(point: str, folder: Path, start: Start) -> None:
    """Stopped in the middle of a commit it holds its locks, and others wait; continued it finishes."""
    scenes.prepare(folder)
    with scenes.opened(folder) as store:
        scenes.append_on(store, None, until=6)
    zombie = start(scenes.member, folder, "300ms", "zombie", strike=Strike(point, 3, signal.SIGSTOP))
    zombie.wait_stopped()
    other = start(scenes.member, folder, "10s", "other")
    time.sleep(0.5)
    zombie.go_on()
    with scenes.opened(folder) as store:
        wait_for(lambda: store.lag("in", "g").lag == 0, "everything is moved")
    zombie.kill()
    other.kill()
    scenes.judge(folder)


@pytest.mark.parametrize("when", ["holding", "idle"])
def test_a_stopped_member_is_fenced_and_its_work_refused(when: str, folder: Path, start: Start) -> None:
    """Another one takes its partitions and does its work; what it has in hand is refused, and it is a member again."""
    scenes.prepare(folder)
    with scenes.opened(folder) as store:
        scenes.append_on(store, None, until=2)
        zombie = start(scenes.member, folder, "300ms", "zombie", "durable")
        zombie.wait_file(folder / "zombie")
        wait_for(lambda: store.lag("in", "g").lag == 0, "it works")
        (folder / f"stop {when}").touch()
        if when == "holding":
            scenes.append_on(store, None, until=3)
        zombie.wait_stopped()
        scenes.append_on(store, None, until=8)
        with store.subscribe("in", "g", bytes, max_poll="10m") as tail:
            wait_for(
                lambda: tail.read(1, timeout="10ms") is not None and len(tail.assignment()) == 2,
                "taken from the hung one",
            )
            tail.to_committed()
            while scenes.move(store, None, tail):
                pass
            zombie.go_on()
            wait_for(
                lambda: tail.read(1, timeout="10ms") is not None and len(tail.assignment()) == 1,
                "the two share the partitions",
            )
        wait_for(lambda: store.lag("in", "g").lag == 0, "all moved")
    zombie.kill()
    refused = [values for kind, *values in scenes.noted(folder) if kind == "fenced"]
    if when == "holding":
        assert refused == [[[scenes.value(2, 0).decode()]]]
    scenes.judge(folder)


def test_a_manual_tailer_that_slept_is_refused(folder: Path, start: Start) -> None:
    scenes.prepare(folder)
    with scenes.opened(folder) as store:
        scenes.append_on(store, None, until=8)
        zombie = start(scenes.silent, folder)
        zombie.wait_stopped()
        with taken(store) as tail:
            tail.seek(Offset("in", 0, 1))
            tail.commit()
            zombie.go_on()
            wait_for(lambda: any(note[0] == "refused" for note in scenes.noted(folder)), "it is told")
        assert store.committed("in", "manual")[0] == 1
    assert [note[1] for note in scenes.noted(folder) if note[0] == "refused"] == ["Fenced"]


def taken(store: LogStore) -> Tailer[bytes]:
    """A tailer of what a sleeping one holds, as soon as that has slept for too long."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return store.tailer(Partition("in", 0), "manual", bytes)
        except PartitionTaken:
            assert time.monotonic() < deadline, "not in time: the lease ends"
            time.sleep(0.01)


def test_a_crowd_of_appenders_leaves_no_gap_and_no_overlap(folder: Path, start: Start) -> None:
    with scenes.opened(folder) as store:
        store.create("crowd", partitions=2, segment_bytes=65536)
    crowd = [start(scenes.crowd, folder, name, 1.0) for name in range(4)]
    time.sleep(0.3)
    crowd[0].kill()  # one of them dies wherever it is
    for child in crowd[1:]:
        child.ended_well()
    with scenes.opened(folder) as store:
        held = [scenes.payloads(store, "crowd", number) for number in (0, 1)]
        order: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for number, values in enumerate(held):
            assert len(values) == len(set(values))
            for at in range(0, len(values), 3):
                name, batch, _ = values[at].split("/")
                assert values[at : at + 3] == [f"{name}/{batch}/{rank}" for rank in range(3)], "batches stay whole"
                order[number, int(name)].append(int(batch))
        assert all(batches == sorted(batches) for batches in order.values()), "each in its own order"
        for _, number, offset, name, batch in scenes.noted(folder):
            assert held[number][offset] == f"{name}/{batch}/0", "acknowledged, so there"
        assert all(finding.level == "good" for finding in store.verify())
        assert json.dumps(store.bounds("crowd")[0].end)

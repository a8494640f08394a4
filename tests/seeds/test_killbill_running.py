"""killbill-queue's promises in our words, what runs it: back-pressure, node names, clocks, load."""

import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.seeds.watching import at_once, claimed, eventually, finish, working

from penstock import QueueStore, Worker, open_queues
from penstock.clock import SystemClock
from penstock.queue.queues import default_node
from penstock.testing import FakeClock, FileClock


@pytest.mark.seed("A3.35")
def test_a_full_worker_claims_no_more_and_loses_nothing(store: QueueStore) -> None:
    """The seed blocks its dispatcher on a full queue in memory; here the rest waits in the store for room."""
    jobs = store.queue("jobs", int)
    gate, busy = threading.Event(), threading.Semaphore(0)
    done: list[int] = []

    def handler(number: int) -> None:
        busy.release()
        assert gate.wait(30)
        done.append(number)

    jobs.add_handler(handler, concurrency=3, prefetch=7)
    jobs.put_many(range(12))  # room for 3 + 7, and two more
    with working(store):
        for _ in range(3):
            assert busy.acquire(timeout=30)
        Worker(store, [store.queue("another")]).drain()  # others are free to move
        counts = jobs.counts()
        assert 3 <= counts.leased <= 10
        assert counts.ready == 12 - counts.leased, "what has no room waits where everybody can see it"
        gate.set()
        eventually(lambda: len(done) == 12, "all handled")
    assert sorted(done) == list(range(12))
    assert jobs.counts().live == 0


@pytest.mark.seed("A3.36")
def test_a_node_name_is_cut_to_45_characters(
    open_store: Callable[..., QueueStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_store(node="n" * 60).node == "n" * 45
    assert open_store(node="n" * 45).node == "n" * 45
    monkeypatch.setattr("socket.gethostname", lambda: "host-" + "x" * 100)
    assert default_node() == "host-" + "x" * 40
    monkeypatch.setattr("socket.gethostname", lambda: "")
    assert default_node(), "a host without a name still has one"


@pytest.mark.seed("A3.36")
def test_the_cut_name_still_is_the_same_node(open_store: Callable[..., QueueStore]) -> None:
    one, two = open_store(node="n" * 60), open_store(node="n" * 70)
    one.queue("jobs", int).put(1, sticky=True)
    assert len(claimed(two.queue("jobs", int)).entries) == 1
    sticky_to_a_long_name = two.queue("jobs", int).put(2, sticky="n" * 60)
    assert [entry.id for entry in claimed(one.queue("jobs", int)).entries] == [sticky_to_a_long_name.id]


@pytest.mark.seed("A3.39")
def test_a_fake_clock_is_set_advanced_and_reset() -> None:
    clock = FakeClock(datetime(2026, 1, 31, 12, tzinfo=UTC))
    clock.advance("1d")
    assert clock.now() == datetime(2026, 2, 1, 12, tzinfo=UTC)
    clock.set(datetime(2026, 1, 31, 12, tzinfo=UTC))
    clock.advance(months=1)
    assert clock.now() == datetime(2026, 2, 28, 12, tzinfo=UTC), "the last day of a shorter month"
    clock.advance(years=2)
    assert clock.now() == datetime(2028, 2, 28, 12, tzinfo=UTC)
    clock.advance(timedelta(days=1))
    assert clock.now() == datetime(2028, 2, 29, 12, tzinfo=UTC)
    clock.advance(years=1)
    assert clock.now() == datetime(2029, 2, 28, 12, tzinfo=UTC)
    clock.set(datetime(2030, 6, 15, tzinfo=UTC))
    assert clock.now() == datetime(2030, 6, 15, tzinfo=UTC)
    assert clock.now() == clock.now(), "it stands still"
    clock.reset()
    assert clock.now() == datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.seed("A3.39")
def test_the_real_clock_is_near_the_real_time() -> None:
    before = datetime.now(UTC)
    told = SystemClock().micros()
    after = datetime.now(UTC)
    assert before - timedelta(seconds=1) <= datetime.fromtimestamp(told / 1e6, UTC) <= after + timedelta(seconds=1)


ANOTHER_PROCESS = """
import sys
from penstock import Worker, open_queues
from penstock.testing import FileClock
clock = FileClock(sys.argv[1])
store = open_queues(sys.argv[2], clock=clock)
jobs = store.queue("jobs", str)
for line in sys.stdin:
    word = line.strip()
    if word == "now":
        print(clock.now().isoformat(), flush=True)
    elif word == "claim":
        with store.unit() as unit:
            print(",".join(entry.value for entry in unit.take(jobs, limit=9)) or "-", flush=True)
            unit.commit()
    else:
        clock.advance(word)
        print("moved", flush=True)
"""


@pytest.mark.seed("A3.39")
def test_a_file_clock_moves_two_processes_together(tmp_path: Path) -> None:
    """The seed shares its clock through Redis; here a file does it."""
    clock = FileClock(tmp_path / "clock", datetime(2026, 1, 1, tzinfo=UTC))
    url = f"sqlite:///{tmp_path / 'store.db'}"
    with (
        open_queues(url, clock=clock) as store,
        subprocess.Popen(
            [sys.executable, "-c", ANOTHER_PROCESS, str(tmp_path / "clock"), url],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as other,
    ):  # fmt: skip
        assert other.stdin is not None
        assert other.stdout is not None

        def ask(word: str) -> str:
            print(word, file=other.stdin, flush=True)
            return other.stdout.readline().strip()

        jobs = store.queue("jobs", str)
        jobs.put("tomorrow", delay="1d")
        assert ask("now") == "2026-01-01T00:00:00+00:00"
        assert ask("claim") == "-"
        clock.advance("1d")
        assert ask("now") == "2026-01-02T00:00:00+00:00"
        assert ask("claim") == "tomorrow"
        assert ask("36h") == "moved"
        assert clock.now() == datetime(2026, 1, 3, 12, tzinfo=UTC)
        clock.reset()
        assert ask("now") == "2026-01-01T00:00:00+00:00"
        other.stdin.close()
        assert other.wait(30) == 0


@pytest.mark.seed("A3.40")
def test_a_thousand_entries_are_claimed_ten_at_a_time(store: QueueStore) -> None:
    jobs = store.queue("jobs", int)
    ids = [put.id for put in jobs.put_many(range(1000))]
    seen: list[str] = []
    for _ in range(100):
        batch = claimed(jobs, 10).entries
        assert len(batch) == 10
        seen += [entry.id for entry in batch]
        finish(store, *batch)
    assert claimed(jobs, 10).entries == []
    assert seen == ids, "each once, in the order they were put"


@pytest.mark.seed("A3.40")
def test_ten_thousand_entries_and_three_readers(open_store: Callable[..., QueueStore]) -> None:
    stores = [open_store(node=f"reader{number}") for number in range(3)]
    stores[0].queue("jobs", int).put_many(range(10_000), chunk=2500)

    def read(store: QueueStore) -> list[str]:
        jobs, seen = store.queue("jobs", int), []
        while batch := claimed(jobs, 100, owner=store.node).entries:
            seen += [entry.id for entry in batch]
            finish(store, *batch)
        return seen

    seen = at_once(*(lambda store=store: read(store) for store in stores))
    assert [one for one in seen if isinstance(one, Exception)] == []
    together = [id_ for one in seen for id_ in one]
    assert len(together) == len(set(together)) == 10_000
    assert stores[0].queue("jobs").counts().live == 0


@pytest.mark.seed("A3.40")
def test_many_threads_and_slow_handlers(store: QueueStore) -> None:
    """540-byte payloads and a handler that takes its time on many threads, in small; nothing is said about speed."""
    jobs = store.queue("jobs", str)
    lock = threading.Lock()
    now = most = 0
    done: set[str] = set()

    def handler(text: str) -> None:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
        threading.Event().wait(0.02)
        with lock:
            now -= 1
            assert text not in done
            done.add(text)

    jobs.add_handler(handler, concurrency=40)
    with working(store):
        at_once(
            *(lambda part=part: jobs.put_many([f"{part}-{n}".ljust(540, "x") for n in range(100)]) for part in range(4))
        )
        eventually(lambda: jobs.counts().live == 0, "all handled")
    assert len(done) == 400
    assert 1 < most <= 40

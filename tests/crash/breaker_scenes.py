"""Two nodes behind one breaker: what each of them plays, and how to see that nothing is stuck."""

import os
import time
from pathlib import Path

from tests.crash.scenes import url_of

from penstock import Breaker, QueueStore, Reaper, Retry, Worker, open_queues
from penstock.breaker import BreakerConfig, BreakerSettings

QUEUES, EACH = 8, 4
CONFIG = BreakerConfig.active(
    min_queue_sample_count=4,
    error_threshold_percentage=50,
    open_to_half_open=150,
    unlock_queues=30,
    unlock_sample_queues=100,
)
SETTINGS = BreakerSettings(permit_ms=1500)
SOON = Retry(attempts=None, delays=["50ms"])


def open_store(folder: Path) -> QueueStore:
    """The store of a play, on the real clock."""
    return open_queues(url_of(folder))


def fill(folder: Path) -> None:
    """Entries that cannot be delivered yet."""
    (folder / "down").touch()
    with open_store(folder) as store:
        family = store.family("q.", fifo=True)
        for number in range(QUEUES):
            family.member(f"q.{number}").put_many([f"{number}-{index}" for index in range(EACH)])


def node(folder: Path, name: str) -> None:
    """Work until told to end; far side and memory of what was done are files."""
    done = os.open(folder / f"done-{name}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    with open_store(folder) as store:
        breaker = Breaker(store, CONFIG, SETTINGS)

        def send(value: str) -> None:
            if (folder / "down").exists():
                raise ConnectionError("down")
            os.write(done, f"{time.time_ns()} {value}\n".encode())

        store.family("q.", fifo=True).add_handler(send, breaker=breaker, retry=SOON)
        worker = Worker(store, lease="1s", reaper=Reaper(store, every="200ms"))
        worker.start()
        (folder / f"ready-{name}").touch()
        while not (folder / "end").exists():
            time.sleep(0.01)
        worker.stop()


def deliveries(folder: Path) -> list[str]:
    """What was delivered, in order."""
    lines = [line for path in folder.glob("done-*") for line in path.read_text().splitlines()]
    return [line.split()[1] for line in sorted(lines, key=lambda line: int(line.split()[0]))]

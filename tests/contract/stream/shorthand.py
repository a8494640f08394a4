"""Short ways to fill streams and to read results, for the tests of this suite."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from penstock.log.record import Record
from penstock.log.store import LogStore
from penstock.stream.runner import Runner
from penstock.stream.topology import Topology

PATIENCE = 30.0  # seconds before a test gives up

Row = tuple[str | None, Any, int]  # key, value, event time in microseconds


class Run(Protocol):
    """Makes a runner of a topology on the store ``logs``: what a runner's author provides as the fixture ``runner``."""

    def __call__(self, topology: Topology, **options: Any) -> Runner:
        """Not started; a test may make several, one after the other or at once."""


def fill(logs: LogStore, stream: str, rows: Iterable[Row], *, partitions: int = 1) -> None:
    """Append rows to a stream, by key."""
    logs.create(stream, partitions)
    listed = list(rows)
    if not listed:
        return
    with logs.appender(stream) as out:
        out.append_many(
            [value for _, value, _ in listed],
            keys=[key for key, _, _ in listed],
            timestamps=[at for _, _, at in listed],
        )


def numbers(count: int, keys: int = 5) -> list[Row]:
    """Rows with the numbers 0.., each a millisecond after the one before."""
    return [(f"k{number % keys}", number, (number + 1) * 1000) for number in range(count)]


def records(logs: LogStore, stream: str, type_: Any = Any) -> list[Record[Any]]:
    """All records of a stream, partition after partition."""
    log = logs.log(stream, type_)
    return [record for place in log.partitions for record in log.records(place.index)]


def payloads(logs: LogStore, stream: str) -> list[bytes]:
    """What records hold as it is stored: of some, such as dead letters, the type is not known."""
    return [one for place in logs.partitions(stream) for batch in logs.batches(place) for one in batch.payloads()]


def values(logs: LogStore, stream: str, type_: Any = Any) -> list[Any]:
    """All values of a stream, partition after partition."""
    return [record.value for record in records(logs, stream, type_)]


def rows(logs: LogStore, stream: str) -> list[Row]:
    """Keys, values and times, sorted: results that have no order across partitions."""
    return sorted(((one.key, one.value, one.time_us) for one in records(logs, stream)), key=repr)


def drained(run: Run, topology: Topology, *, final: bool = True, **options: Any) -> Runner:
    """Run a topology over what is there, to its end."""
    runner = run(topology, **options)
    runner.start()
    assert runner.drain(f"{PATIENCE:g}s", final=final), told(runner)
    return runner


def told(runner: Runner) -> str:
    """What a runner says, for a failed assert."""
    return "\n".join(map(str, runner.status()))


def wait_until(condition: Callable[[], Any], what: str) -> None:
    """Wait for another thread's doing."""
    deadline = time.monotonic() + PATIENCE
    never = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        never.wait(0.005)

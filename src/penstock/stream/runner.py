"""Runner: the contract of what executes a topology, and what it says about itself."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from penstock.clock import Duration, duration
from penstock.errors import BadInput, Closed
from penstock.log.store import LogStore
from penstock.stream.engine.checkpoint import Counts
from penstock.stream.explaining import explain, path_in_engine
from penstock.stream.topology import Topology
from penstock.stream.validate import ResolvedTopology

State = Literal["starting", "running", "restarting", "failed", "stopped"]


class Status(Counts):
    """One instance of a computation: its state, its counts, and its last error."""

    computation: str
    instance: int
    state: State = "starting"
    partitions: list[int] = []  # noqa: RUF012 - msgspec copies it
    restarts: int = 0
    watermark: datetime | None = None
    error: str | None = None
    process: int = 0  # which of a ProcessRunner's processes it is in, counted from 0; not its pid

    @property
    def spare(self) -> bool:
        """Whether it runs without a partition, ready to take over."""
        return self.state == "running" and not self.partitions


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a runner works: when it makes checkpoints, and how long a silent instance keeps its partitions.

    ``leave_out`` names computations that it does not run. ``run`` is for runners that end a run together: what several
    of them do at the end of a partition counts once; numbers rise from run to run, and 0 is for one alone.
    """

    checkpoint_records: int = 10_000
    checkpoint_every: Duration = timedelta(milliseconds=200)
    read: int = 2_000
    max_poll: Duration = timedelta(minutes=5)
    restart_backoff: Duration = timedelta(milliseconds=200)
    restart_backoff_max: Duration = timedelta(seconds=30)
    leave_out: tuple[str, ...] = ()
    run: int = 0

    def __post_init__(self) -> None:
        """Refuse settings that no runner can work with."""
        for name in ("checkpoint_records", "read"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BadInput(f"{name}={value!r} is not a number of records.", hint="Use 1 or more.")
        for name in ("checkpoint_every", "max_poll", "restart_backoff", "restart_backoff_max"):
            duration(getattr(self, name), name=name)


class Runner(ABC):
    """Executes a topology over the logs of a store.

    Every runner must hold to this, and ``tests/contract/stream`` checks it:

    - records of one key are processed in order, by one object at a time;
    - outputs, input offsets, state and timers of a checkpoint are visible together or never;
    - after any crash the visible result is that of an undisturbed run;
    - within a checkpoint records come before timers, and timers fire by (time, key);
    - ``drain`` returns when everything that was in the inputs when it was called has gone all the way through.

    Throughout:
        name: of the computation
        computation: its name
        timeout: how long to wait
        moment: an aware ``datetime``
    """

    topology: Topology
    store: LogStore
    resolved: ResolvedTopology
    _ended: Sequence[Status] = ()  # the last status of instances that have ended

    @abstractmethod
    def start(self) -> Any:
        """Check everything, then begin in the background. Returns the runner."""

    @abstractmethod
    def wait_for_assignments(self, timeout: Duration = "10s") -> bool:
        """Wait until every partition of every computation has an instance. Returns False if not in time."""

    @abstractmethod
    def drain(self, timeout: Duration = "60s", *, final: bool = False) -> bool:
        """Process what is in the inputs now, all the way through, then stop.

        Args:
            final: the inputs have ended: event time goes to its end, and all event-time timers fire

        Returns:
            False if that took too long, or at once if a computation fails: ``status`` has its error
        """

    @abstractmethod
    def stop(self, timeout: Duration = "30s") -> bool:
        """Stop after the record under work, with a checkpoint. Returns False if not in time."""

    @abstractmethod
    def shutdown(self) -> None:
        """Stop at once, without a checkpoint: what was not committed is done again next time."""

    @abstractmethod
    def status(self) -> list[Status]:
        """The status of every instance."""

    @abstractmethod
    def watermark(self, computation: str | None = None) -> datetime | None:
        """The low watermark of a computation, or the least of all, or None while one is not known."""

    @abstractmethod
    def is_done(self, moment: datetime) -> bool:
        """Whether everything up to an event time has gone all the way through."""

    def explain(self) -> str:
        """How each computation is computed: what it reads and writes, in how many tasks, on which path, and why."""
        return explain(self.resolved, path_in_engine, "commit by each instance")

    @property
    def is_terminated(self) -> bool:
        """Whether nothing runs any more."""
        return all(status.state in ("failed", "stopped") for status in self.status())

    @property
    def metrics(self) -> dict[str, int]:
        """Sums over all instances, also of those that ended."""
        statuses = [*self.status(), *self._ended]
        return {
            name: sum(getattr(status, name) for status in statuses)
            for name in ("records", "produced", "timers", "checkpoints", "failures", "skipped", "restarts")
        }

    def __enter__(self) -> Any:
        """Start."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()


def check_runner_arguments(runner: str, topology: object, store: object) -> None:
    """Raise for arguments that are not a topology and a store, for instance swapped ones."""
    if not isinstance(topology, Topology):
        raise BadInput(f"a {type(topology).__name__} is not a topology.", hint=f"Write {runner}(topology, store).")
    if not isinstance(store, LogStore):
        raise BadInput(
            f"a {type(store).__name__} is not a log store.", hint='Open one: penstock.open_logs("file://logs").'
        )


def not_started() -> Closed:
    """What a runner answers that was not started."""
    return Closed("the runner does not run.", hint="Start it first: runner.start().")


def wait_until(condition: Callable[[], bool], seconds: float, pause: float = 0.005) -> bool:
    """Poll until something holds. Returns False if it does not in time."""
    deadline = time.monotonic() + seconds
    never = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            return False
        never.wait(pause)
    return True

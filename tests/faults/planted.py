"""Bugs planted in the stores on servers: each breaks a promise in one process, and the verdict has to name it."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from tests.crash.scenes import Stage, claim

from penstock.queue.drivers.redis import RedisDriver
from penstock.queue.drivers.sql.driver import SqlDriver
from penstock.queue.drivers.zookeeper import ZookeeperDriver
from penstock.queue.protocol import ClaimRequest, Ending, PutResult, Settled, Step, StepDone

STORES: dict[str, Any] = {"postgres": SqlDriver, "mysql": SqlDriver, "redis": RedisDriver, "zookeeper": ZookeeperDriver}


def _no_shorter_way(self: Any, entry: Any) -> None:
    """Every put is a step that is settled. To be planted before the stage is set: it records through what is there."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def unit_in_two_steps(folder: Path, kind: str) -> None:
    """First the endings, then the puts; and the process dies in between."""
    store = STORES[kind]
    honest = store._settle

    def settle(self: Any, steps: Sequence[Step], request: ClaimRequest | None, connection: Any) -> Settled:
        if any(step.endings and step.puts for step in steps):
            honest(self, [replace(step, puts=()) for step in steps], None, connection)
            die()
        return honest(self, steps, request, connection)  # type: ignore[no-any-return]

    store._settle = settle
    stage = Stage(folder, fake=False)
    with stage.store.unit() as unit:
        for entry in unit.take(stage.queue("jobs"), limit=2):
            unit.put(stage.queue("results"), entry.value)
        unit.commit()


def answer_before_the_commit(folder: Path, kind: str) -> None:
    """Say that it is done and send nothing: what a server does that answers before it has written."""
    STORES[kind]._put_plain = _no_shorter_way
    stage = Stage(folder, fake=False)
    stage.queue("jobs").put(0)
    honest = STORES[kind]._settle
    reply = stage.store.driver.settle([Step(puts=(stage.queue("jobs").new(1),))])

    def settle(self: Any, steps: Sequence[Step], request: ClaimRequest | None, connection: Any) -> Settled:
        if request is not None or any(step.endings for step in steps):
            return honest(self, steps, request, connection)  # type: ignore[no-any-return]
        return Settled(
            [StepDone(tuple(PutResult(put.id, put.queue, True, 0) for put in step.puts)) for step in steps],
            reply.claimed,
            reply.now_us,
        )

    STORES[kind]._settle = settle
    stage.queue("jobs").put(2)
    die()


def any_token_will_do(folder: Path, kind: str) -> None:
    """A late owner whose outcome is taken although another one has the entry by now."""
    stage = Stage(folder, fake=False)
    [late] = claim(stage.queue("jobs"), 1, attempts=None, lease="50ms")
    time.sleep(0.2)
    stage.store.driver.reap(node="stage")
    [now] = claim(stage.queue("jobs"), 1, attempts=None)
    honest = STORES[kind]._settle

    def settle(self: Any, steps: Sequence[Step], request: ClaimRequest | None, connection: Any) -> Settled:
        stolen = [replace(step, endings=tuple(replace(one, lease=now.lease) for one in step.endings)) for step in steps]
        return honest(self, stolen, request, connection)  # type: ignore[no-any-return]

    STORES[kind]._settle = settle
    stage.store.driver.settle([Step((Ending(late.lease, "done"),))])
    stage.store.close()


def sent_twice(folder: Path, kind: str) -> None:
    """A repeat that is taken for something new: the put happens twice, under two ids."""
    STORES[kind]._put_plain = _no_shorter_way
    stage = Stage(folder, fake=False)
    honest = STORES[kind]._settle

    def settle(self: Any, steps: Sequence[Step], request: ClaimRequest | None, connection: Any) -> Settled:
        for step in steps:
            again = tuple(replace(put, id=f"{put.id[:-1]}x") for put in step.puts)
            honest(self, [Step(puts=again)], None, connection)
        return honest(self, steps, request, connection)  # type: ignore[no-any-return]

    STORES[kind]._settle = settle
    stage.queue("jobs").put(1)
    stage.store.close()


BUGS: dict[str, tuple[Callable[[Path, str], None], str]] = {
    "a unit of work in two steps": (unit_in_two_steps, "Q7"),
    "an answer before the commit": (answer_before_the_commit, "Q1"),
    "a late outcome that is taken": (any_token_will_do, "Q5"),
    "a repeat that is taken for something new": (sent_twice, "Q2"),
}

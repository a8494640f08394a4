"""One thread of a computation: it works in shifts; a shift that fails is followed by another, after a pause."""

from __future__ import annotations

import logging
import random
import threading
from typing import Any

from penstock.errors import BadInput, SchemaMismatch
from penstock.log.store import LogStore
from penstock.policy import Retry
from penstock.stream.checks import Plan
from penstock.stream.runner import Settings, Status
from penstock.stream.shift import Shift
from penstock.stream.task import Task
from penstock.stream.topology import Node
from penstock.stream.work import Orders, Stopped

logger = logging.getLogger("penstock.stream")


class Instance:
    """One thread of a computation."""

    def __init__(self, store: LogStore, plan: Plan, node: Node, number: int, settings: Settings) -> None:
        """Nothing runs before :meth:`start`."""
        self.store = store
        self.plan = plan
        self.node = node
        self.settings = settings
        self.status = Status(node.name, number)
        self.orders = Orders()
        self.frozen = threading.Event()  # it reads nothing: no partition comes or goes
        self.finished = threading.Event()  # all is done that finishing means; partitions are still held
        self.released = threading.Event()
        self._shift: Shift | None = None
        self._rng = random.Random()
        self._thread = threading.Thread(target=self._run, name=f"penstock-{node.name}-{number}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self, seconds: float) -> bool:
        """Wait for its end."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End after the record under work, with a checkpoint."""
        self.orders.stopping.set()
        self.released.set()
        self._interrupt()

    def kill(self) -> None:
        """End at once, without a checkpoint."""
        self.orders.killed.set()
        self.stop()

    def hurry(self) -> None:
        """Batches are not waited for any more."""
        self.orders.draining = True

    def freeze(self, on: bool) -> None:
        """Read nothing for a while, or go on."""
        self.orders.freeze = on
        self._interrupt()

    def finish(self, final: bool) -> None:
        """Its input has ended and it is frozen: do what is left, and hold the partitions until :meth:`release`."""
        self.orders.finishing = final
        self._interrupt()

    def release(self) -> None:
        """End after :meth:`finish`."""
        self.released.set()

    def tick(self) -> None:
        """Called now and then by the runner."""
        if self._shift is not None:
            self._shift.tick()

    def _interrupt(self) -> None:
        if self._shift is not None:
            self._shift.interrupt()

    @property
    def tasks(self) -> list[Task]:
        """The partitions it has."""
        return [] if self._shift is None else list(self._shift.tasks.values())

    @property
    def ended(self) -> bool:
        """Whether it has ended for good."""
        return self.status.state in ("failed", "stopped")

    @property
    def quiet(self) -> bool:
        """Whether, as a source, it has nothing to do now: it was started, and no timer is due."""
        return self._shift is None or self._shift.quiet

    def _run(self) -> None:
        backoff = Retry(
            attempts=None, backoff=self.settings.restart_backoff, max_backoff=self.settings.restart_backoff_max
        )
        stopping = self.orders.stopping
        failed_in_a_row = 0
        while not stopping.is_set():
            before = self.status.checkpoints
            try:
                self._live()
            except Stopped as stopped:
                self._note("failed", stopped.__cause__ or stopped)
                return
            except (SchemaMismatch, BadInput) as error:
                self._note("failed", error)  # trying again would not help
                return
            except BaseException as error:
                if self.orders.finishing is not None:
                    self._note("failed", error)  # another shift would have nothing to finish
                    return
                failed_in_a_row = 1 if self.status.checkpoints > before else failed_in_a_row + 1
                self._note("restarting", error)
                self.status.restarts += 1
                delay = backoff.delay(failed_in_a_row, self._rng)
                stopping.wait(0.0 if delay is None else delay.total_seconds())
        self.status.state = "stopped"

    def _note(self, state: Any, error: BaseException) -> None:
        self.status.state = state
        self.status.error = f"{type(error).__name__}: {error}"
        logger.error("%s %d is %s: %s", self.node.name, self.status.instance, state, self.status.error, exc_info=error)
        self.store.signals.tell(
            "store_error", self.node.name, (), self.store.now(), step=f"instance {self.status.instance} {state}",
            error=self.status.error,
        )  # fmt: skip

    def _live(self) -> None:
        """One shift, from joining the group to leaving it."""
        orders = self.orders
        shift = self._shift = Shift(
            self.store, self.plan, self.node, settings=self.settings, status=self.status, orders=orders
        )
        self.status.state = "running"
        self.frozen.clear()
        graceful = False
        try:
            while not orders.stopping.is_set():
                if not orders.freeze:
                    shift.turn()
                    continue
                self.frozen.set()
                if orders.finishing is not None:
                    shift.finish(orders.finishing)
                    self.finished.set()
                    self.released.wait()
                    orders.stopping.set()
                orders.stopping.wait(0.002)
                if not orders.freeze:
                    self.frozen.clear()
            graceful = not orders.killed.is_set()
        finally:
            shift.leave(graceful=graceful)

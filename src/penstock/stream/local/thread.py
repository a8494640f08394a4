"""One thread of a computation: it reads, lets the engine work, and commits; after a failure it begins again.

:meth:`Membership.round` is the loop, :meth:`Membership.commit` what makes a checkpoint visible.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from datetime import timedelta
from typing import Any

from penstock import failpoints
from penstock.clock import FIRST_TIME, LAST_TIME, duration, from_micros
from penstock.errors import Fenced, StoreCorrupt, StoreUnavailable
from penstock.log.protocol import Commit, Committed
from penstock.log.store import LogStore
from penstock.policy import Retry
from penstock.stream.engine.changelog import start_over
from penstock.stream.engine.checkpoint import Checkpoint
from penstock.stream.engine.engine import Engine
from penstock.stream.engine.permanent import failed_at, is_permanent
from penstock.stream.engine.retry import Stopped
from penstock.stream.engine.task import Task
from penstock.stream.engine.watermark import LOWEST
from penstock.stream.internal_logs import cut_state_log, ends_of, last_reports, restore_task
from penstock.stream.local.event_time import StoreEventTime, guess_time
from penstock.stream.local.input import Input
from penstock.stream.runner import Settings, Status
from penstock.stream.topology import Node
from penstock.stream.validate import ResolvedTopology
from penstock.tracing import Tracing

logger = logging.getLogger("penstock.stream")

LOOK = 0.1  # seconds after which a waiting thread checks its orders
HOLD = 0.02  # the same where somebody waits for it: during a drain, or for partitions that are not given back yet
UNSEEN = 120.0  # seconds to wait for what a dead process has committed to become visible
AHEAD = 500  # records that may come while a thread waits to try one again


class Control:
    """What a thread should do, set by its runner."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.stopping = threading.Event()  # after the record under work, with a checkpoint
        self.killed = threading.Event()  # at once
        self.finishing: bool | None = None  # True: the input has ended; False: only drain
        self.is_hurried = False  # batches are not waited for
        self.is_frozen = False  # read nothing, so that no partition comes or goes


class Membership:
    """One membership of a group, from joining to leaving it: the engine, and the store around it."""

    def __init__(
        self, store: LogStore, topology: ResolvedTopology, node: Node, *, settings: Settings, status: Status,
        control: Control,
    ) -> None:  # fmt: skip
        """Join the group; partitions come with the first rounds."""
        self.status = status
        self._store = store
        self._topology = topology
        self._node = node
        self._settings = settings
        self._control = control
        self._resolved = topology.computation(store, node)
        self._event_time = StoreEventTime(store, topology, node)
        self.engine = Engine(
            self._resolved, self._event_time, clock=store.now, counts=status,
            checkpoint_records=settings.checkpoint_records,
            checkpoint_seconds=duration(settings.checkpoint_every, name="checkpoint_every").total_seconds(),
        )  # fmt: skip
        self._arrived: list[int] = []  # tasks that are assigned and not at work yet
        self._began = time.monotonic()
        self._has_left = False
        self._max_poll = duration(settings.max_poll, name="max_poll")
        self._polled = 0.0
        self._working = 0  # odd while the engine works and its checkpoint is committed
        self._input = Input(
            store, topology, node, assigned=self._arrived.extend, revoked=self._revoked, lost=self._lost,
            max_poll=self._max_poll,
        )  # fmt: skip

    # --- the loop --------------------------------------------------------------------------------------

    def round(self) -> None:
        """Read if nothing waits, let the engine work until a checkpoint is due, commit it."""
        engine = self.engine
        idle = False
        if not engine.queue.waiting and engine.retrying is None:
            idle = self._read() == 0
        engine.is_hurried = self._control.is_hurried
        self._working += 1
        try:
            checkpoint = engine.step(idle=idle)
            if checkpoint is not None and not self._control.killed.is_set():
                self.commit(checkpoint)
        finally:
            self._working += 1
        if engine.retrying is not None:
            self._pause(engine.retrying.wait)

    def _read(self) -> int:
        """Read, and feed the engine. Returns how many records."""
        wait = 0.0 if self._control.is_frozen else self.engine.wait(HOLD if self._control.is_hurried else LOOK)
        try:
            batches = self._input.read(self._settings.read, timedelta(seconds=wait))
        except StoreCorrupt:
            if self.engine.position is None:
                raise
            self._control.stopping.wait(HOLD)
            return 0  # what came before the damage is done first
        self._polled = time.monotonic()
        must_report = bool(self._arrived) and self._welcome()
        records = 0
        for index, stream, batch in batches:
            if index in self.engine.tasks:
                records += self.engine.feed(index, stream, batch)
            elif index in self._arrived:
                self._input.rewind(batch)  # its other inputs are not here yet
        self.engine.read_to = self._input.positions(self.engine.tasks)
        if must_report:  # with the offsets of all partitions: a former owner is refused
            self._report()
        if self._arrived:
            self._control.stopping.wait(HOLD)
        return records

    def _traced(self, tracing: Tracing, commit: Commit, records: int) -> Committed:
        span = tracing.checkpointing(self._node.name, records)
        try:
            done = self._store.transact(commit)
        except BaseException as error:
            span.end(error)
            raise
        span.end()
        return done

    def commit(self, checkpoint: Checkpoint) -> None:
        """Make a checkpoint visible: everything in it, or nothing."""
        ends = {}
        if not checkpoint.is_empty:
            # 1. One transaction: outputs, state and timers, dead letters, watermark reports, and the input offsets.
            #    The end of a partition counts once in a run: it has a producer and a sequence.
            producer = None if checkpoint.ending is None else self._name_of_end(checkpoint.ending)
            appends = checkpoint.appends()
            commit = Commit(
                appends, self._input.by_source(checkpoint.offsets), producer=producer,
                sequence=None if producer is None else self._settings.run,
            )  # fmt: skip
            failpoints.point("stream.checkpoint.before")
            tracing = self._store.tracing
            if tracing is None:
                done = self._store.transact(commit)
            else:
                done = self._traced(tracing, commit, sum(len(records) for _, records in appends))
            failpoints.point("stream.checkpoint.after")
            # 2. Where the records went. Another process may have done the same before it died: then they are there.
            ends = {partition: offsets[-1] + 1 for partition, offsets in done.offsets.items() if len(offsets)}
            if done.duplicate:
                ends = {partition: self._store.bounds_of(partition).end for partition, _ in appends}
        # 3. The engine forgets what can no longer be undone; the state logs lose what was written again.
        for partition, start in self.engine.committed(checkpoint, ends).items():
            cut_state_log(self._store, partition, start)
        # 4. Reports of other computations up to these offsets are not needed any more.
        if self._event_time.follows_writers:
            self._event_time.passed(self.engine.tasks.values(), checkpoint.offsets)
        # 5. What the runner shows. Times that no calendar has come from elsewhere only; they must not stop the work.
        low = min(max(checkpoint.watermark, FIRST_TIME), LAST_TIME)
        self.status.watermark = None if checkpoint.watermark == LOWEST else from_micros(low)

    def _name_of_end(self, task: int) -> str | None:
        if not self._settings.run:
            return None
        return f"{self._topology.topology.name}.{self._node.name}.end-{task}"

    def _pause(self, seconds: float) -> None:
        """Wait for the next attempt, showing that the thread lives."""
        if self._control.stopping.wait(min(seconds, LOOK)):
            return
        patience = min(self._max_poll.total_seconds() / 4, 30.0)
        if time.monotonic() - self._polled > patience and self.engine.waiting_records() < AHEAD:
            for index, stream, batch in self._input.read(1, timedelta(0)):
                if index in self.engine.tasks:
                    self.engine.feed(index, stream, batch)
            self.engine.read_to = self._input.positions(self.engine.tasks)
            self._polled = time.monotonic()

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to do now but wait: no task to begin, no timer due, nothing to be committed."""
        before = self._working
        now = self._store.now()
        idle = not self._arrived and not any(task.is_due(now) for task in list(self.engine.tasks.values()))
        return idle and before % 2 == 0 and before == self._working

    # --- partitions come and go --------------------------------------------------------------------------

    def _welcome(self) -> bool:
        """Restore the tasks that were assigned. Those whose other inputs are still held elsewhere wait.

        Returns whether reports of some of them have to be replaced at once.
        """
        welcomed = [task for index in list(self._arrived) if (task := self._begin(index)) is not None]
        self.status.partitions = sorted(self.engine.tasks)
        if not welcomed or not self._resolved.reports_time:
            return False
        last = last_reports(self._store, self._node.name)
        ends = ends_of(self._store, self._node.outputs.values())
        return self.engine.resume_reports(welcomed, last, ends)

    def _begin(self, index: int) -> Task | None:
        if not self._input.follow(index):
            return None
        task = Task(self._resolved, index, self._store.now)
        try:
            offsets = self._restored(task)
        except Exception as error:
            if is_permanent(error):
                raise failed_at(self._node.name, error, self._input.committed(index)) from error
            raise
        if not self._input.is_seen(index, offsets):
            if time.monotonic() - self._began > UNSEEN:
                raise StoreUnavailable(
                    f"the state of {self._node.name} is behind its offsets: was its log cut, or were they moved?",
                    hint=f"Start over with {start_over(self._node.name)}.",
                )
            return None
        moved = self._input.seek(index, offsets)
        self._arrived.remove(index)
        self._event_time.add(index)
        self.engine.add(task, moved)
        return task

    def _restored(self, task: Task) -> dict[str, int]:
        """Restore a task's state. Returns the input offsets (by stream) that go with it."""
        if task.changelog is None:
            guess_time(task, self._store, self._node)
            return {}
        return restore_task(self._store, task, self._node)

    def _revoked(self, indexes: list[int]) -> None:
        """Commit the work on partitions that go to another member."""
        try:
            if self.engine.tasks and not self._has_left:
                # What was read but not begun is left to the next owner; only what is done is committed.
                checkpoint = self.engine.checkpoint(fire=False)
                if checkpoint is not None:
                    self.commit(checkpoint)
                self._report()
        except Fenced:
            pass  # it is undone with the partitions that go; those that stay do it again
        self._lost(indexes)

    def _lost(self, indexes: list[int]) -> None:
        for index in indexes:
            if index in self._arrived:
                self._arrived.remove(index)
            self._event_time.drop(index)
            self._input.drop(index)
        self.engine.drop(indexes)
        self.status.partitions = sorted(self.engine.tasks)

    def _report(self) -> None:
        """Report at once how far event time is."""
        checkpoint = self.engine.report()
        if checkpoint is not None:
            self.commit(checkpoint)

    def leave(self, *, graceful: bool) -> None:
        """Give the partitions back, if ``graceful`` after a last checkpoint."""
        try:
            if not graceful:
                self.engine.abandon()
            elif self.engine.tasks:
                self._revoked(list(self.engine.tasks))
        finally:
            self._has_left = True
            self._event_time.close()
            self._input.close()
            self.engine.abandon()
            self.status.partitions = []

    def finish(self, final: bool) -> bool:
        """Finish the work at the end of the input. Returns False if the thread has to stop before that."""
        self.engine.end_input(final)
        while not self.engine.has_ended:
            checkpoint = self.engine.step(idle=True)
            if checkpoint is not None and not self._control.killed.is_set():
                self.commit(checkpoint)
            elif self._control.stopping.is_set():
                return False
            elif self.engine.retrying is not None:
                self._pause(self.engine.retrying.wait)
        self._report()
        return True


class StreamThread:
    """One thread of a computation. When a membership fails, another follows after a pause."""

    def __init__(
        self, store: LogStore, topology: ResolvedTopology, node: Node, number: int, settings: Settings
    ) -> None:
        """Nothing runs before :meth:`start`."""
        self.store = store
        self.topology = topology
        self.node = node
        self.settings = settings
        self.status = Status(node.name, number)
        self.control = Control()
        self.frozen = threading.Event()  # it reads nothing: no partition comes or goes
        self.finished = threading.Event()  # finishing is done; partitions are still held
        self.released = threading.Event()
        self._membership: Membership | None = None
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
        self.control.stopping.set()
        self.released.set()
        if self._membership is not None:
            self._membership.engine.is_stopping = True
        self._interrupt()

    def kill(self) -> None:
        """End at once, without a checkpoint."""
        self.control.killed.set()
        self.stop()

    def hurry(self) -> None:
        """Batches are not waited for any more."""
        self.control.is_hurried = True

    def freeze(self, on: bool) -> None:
        """Read nothing for a while, or continue."""
        self.control.is_frozen = on
        self._interrupt()

    def finish(self, final: bool) -> None:
        """Do what is left once the input has ended; hold the partitions until :meth:`release`. The thread is frozen."""
        self.control.finishing = final
        self._interrupt()

    def release(self) -> None:
        """End after :meth:`finish`."""
        self.released.set()

    def tick(self) -> None:
        """Called now and then by the runner."""
        if self._membership is not None:
            self._membership.engine.tick()

    def _interrupt(self) -> None:
        if self._membership is not None:
            self._membership.engine.interrupt()

    @property
    def tasks(self) -> list[Task]:
        """The partitions it has."""
        return [] if self._membership is None else list(self._membership.engine.tasks.values())

    @property
    def ended(self) -> bool:
        """Whether it has ended for good."""
        return self.status.state in ("failed", "stopped")

    @property
    def quiet(self) -> bool:
        """Whether a source has nothing to do now: it was started, and no timer is due."""
        return self._membership is None or self._membership.is_quiet

    def _run(self) -> None:
        backoff = Retry(
            attempts=None, backoff=self.settings.restart_backoff, max_backoff=self.settings.restart_backoff_max
        )
        stopping = self.control.stopping
        failed_in_a_row = 0
        while not stopping.is_set():
            before = self.status.checkpoints
            try:
                self._live()
            except Stopped as stopped:
                self._note("failed", stopped.__cause__ or stopped)
                return
            except BaseException as error:
                if is_permanent(error, again=failed_in_a_row > 0):
                    self._note("failed", failed_at(self.node.name, error))
                    return
                if self.control.finishing is not None:
                    self._note("failed", error)  # another membership has nothing to finish
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
        """One membership, from joining the group to leaving it."""
        control = self.control
        membership = self._membership = Membership(
            self.store, self.topology, self.node, settings=self.settings, status=self.status, control=control
        )
        membership.engine.is_stopping = control.stopping.is_set()
        self.status.state = "running"
        self.frozen.clear()
        graceful = False
        try:
            while not control.stopping.is_set():
                if not control.is_frozen:
                    membership.round()
                    continue
                self.frozen.set()
                if control.finishing is not None and membership.finish(control.finishing):
                    self.finished.set()
                    self.released.wait()
                    control.stopping.set()
                control.stopping.wait(0.002)
                if not control.is_frozen:
                    self.frozen.clear()
            graceful = not control.killed.is_set()
        except Exception as error:
            if is_permanent(error):
                raise failed_at(self.node.name, error, membership.engine.position) from error
            raise
        finally:
            membership.leave(graceful=graceful)

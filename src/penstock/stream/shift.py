"""One membership of an instance, from joining its group to leaving it: reads, processes, makes checkpoints.

Work since the last checkpoint can always be thrown away and done again. When a record fails, that is done up to the
record; what came before it is committed, and the record is tried alone, as the policy says.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter, deque
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from penstock import failpoints
from penstock.clock import FIRST_TIME, LAST_TIME, Micros, duration, from_micros
from penstock.errors import Fenced, PayloadTooLarge, PenstockError, StoreUnavailable, Undecodable, WrongType
from penstock.log.record import NewRecords, Partition, Record, RecordBatch
from penstock.log.store import Commit, LogStore, Source
from penstock.policy import Reject
from penstock.stream.checks import Plan, dead_log
from penstock.stream.intake import Intake
from penstock.stream.runner import Settings, Status
from penstock.stream.task import Task
from penstock.stream.timekeeping import Positions, Timekeeper
from penstock.stream.timers import Timer
from penstock.stream.topology import Node
from penstock.stream.watermark import LOWEST
from penstock.stream.watermark_log import encoded, low_log
from penstock.stream.work import Orders, Stopped, TimerFailed, Work, WrongState, merged, rank_of

logger = logging.getLogger("penstock.stream")

LOOK = 0.1  # seconds after which a waiting instance looks around
HOLD = 0.02  # seconds to wait for partitions that another one has not given back yet
UNSEEN = 120.0  # seconds to wait for what a dead process has committed to become visible
AHEAD = 500  # records that may come while an instance waits to try one again


class Shift:
    """What an instance does while it is a member of its group."""

    def __init__(
        self, store: LogStore, plan: Plan, node: Node, *, settings: Settings, status: Status, orders: Orders
    ) -> None:
        """Join the group; partitions come with the first turns."""
        self.store = store
        self.plan = plan
        self.node = node
        self.settings = settings
        self.status = status
        self.orders = orders
        self.tasks: dict[int, Task] = {}
        self.arrived: list[int] = []
        self._backlog: deque[Work] = deque()
        self._filling: dict[tuple[int, str], tuple[float, Work]] = {}  # batches that wait for more
        self._epoch: list[Work] = []
        self._epoch_records = 0
        self._epoch_began = 0.0
        self._rounds = 0  # checkpoints that were begun or ended: odd while one is under way
        self._dead: list[tuple[bytes, Any, Micros, dict[str, str | bytes]]] = []
        self._kept: dict[Partition, int] = {}
        self._at = 0  # the record of the current work that failed
        self._left = False
        self._began = time.monotonic()
        self._rng = random.Random()
        self._every = duration(settings.checkpoint_every, name="checkpoint_every").total_seconds()
        self._max_poll = duration(settings.max_poll, name="max_poll")
        self._polled = 0.0
        self._batch = node.computation.batch
        self._linger = 0.0 if self._batch is None else duration(self._batch.linger).total_seconds()
        self._time = self._make_timekeeper()
        self._intake = self._make_intake()

    def _make_intake(self) -> Intake:
        return Intake(
            self.store, self.plan, self.node, taken=self._taken, given=self._given, lost=self._lost,
            max_poll=self._max_poll,
        )  # fmt: skip

    def _make_timekeeper(self) -> Timekeeper:
        return Timekeeper(self.store, self.plan, self.node)

    def _make_task(self, index: int) -> Task:
        return Task(self.store, self.plan, self.node, index)

    def tick(self) -> None:
        """Long work is interrupted for its checkpoint."""
        if self._epoch_began and time.monotonic() - self._epoch_began > self._every:
            self.interrupt()

    def interrupt(self) -> None:
        """Come back after the record under work."""
        for task in list(self.tasks.values()):
            task.ctx.full = True

    def leave(self, *, graceful: bool) -> None:
        """Give the partitions back; ``graceful``: with a last checkpoint."""
        try:
            if not graceful:
                self.abandon()
            elif self.tasks:
                self._given(list(self.tasks))
        finally:
            self._left = True
            self._time.close()
            self._intake.close()
            self.abandon()

    def abandon(self) -> None:
        """Drop everything that was not committed."""
        for task in self.tasks.values():
            self._destroy(task)
        self.tasks.clear()
        self._forget()
        self.status.partitions = []

    def _forget(self) -> None:
        self._backlog.clear()
        self._filling.clear()
        self._epoch.clear()
        self._epoch_records, self._epoch_began = 0, 0.0
        self._dead.clear()
        self._kept.clear()
        self.arrived.clear()

    # --- tasks that come and go ------------------------------------------------------------------------

    def _taken(self, indexes: list[int]) -> None:
        self.arrived += indexes

    def _given(self, indexes: list[int]) -> None:
        """Partitions go to another instance: what was done with them is committed first."""
        try:
            if self.tasks and not self._left:
                # Read but not begun is left to the next owner; only what is done is committed.
                self.checkpoint(timers=False)
                self._publish()
        except Fenced:
            self._rollback()
        self._lost(indexes)

    def _lost(self, indexes: list[int]) -> None:
        gone = set(indexes)
        if gone & self.tasks.keys():
            # Work of all tasks is in one checkpoint: without these it begins anew for the others.
            self._replay_without(gone)
        for index in indexes:
            if index in self.arrived:
                self.arrived.remove(index)
            task = self.tasks.pop(index, None)
            if task is not None:
                self._destroy(task)
                self._time.drop(index)
            self._intake.drop(index)
        self._kept = {place: offset for place, offset in self._kept.items() if place.index not in gone}
        self._backlog = deque(work for work in self._backlog if work.task.index not in gone)
        self._filling = {place: one for place, one in self._filling.items() if place[0] not in gone}
        self.status.partitions = sorted(self.tasks)

    def _replay_without(self, gone: set[int]) -> None:
        epoch = [work for work in self._epoch if work.task.index not in gone]
        self._rollback()
        self._backlog.extendleft(reversed(epoch))

    def _destroy(self, task: Task) -> None:
        try:
            task.computation.destroy()
        except Exception:
            logger.exception("destroy() of %s failed", self.node.name)

    def _welcome(self) -> list[Task]:
        """Restore the tasks that have arrived; those whose other inputs are still held elsewhere wait."""
        arrived: list[Task] = []
        for index in list(self.arrived):
            if not self._intake.follow(index):
                continue
            task = self._make_task(index)
            offsets = task.restore()
            if not self._intake.is_seen(index, offsets):
                if time.monotonic() - self._began > UNSEEN:
                    raise StoreUnavailable(
                        f"the state of {self.node.name} is behind its offsets: was its log cut, or were they moved?",
                        hint=f"Begin anew with reset({self.node.name!r}).",
                    )
                continue
            self._kept.update(self._intake.seek(index, offsets))
            self.arrived.remove(index)
            self.tasks[index] = task
            arrived.append(task)
            self._time.add(index)
            task.begin()
            self.status.partitions = sorted(self.tasks)
        return arrived

    # --- the loop ------------------------------------------------------------------------------------

    def turn(self) -> None:
        read = 0
        if not self._backlog:
            batches = list(self._intake.read(self.settings.read, timedelta(seconds=self._patience())))
            self._polled = time.monotonic()
            arrived = self._welcome()
            for index, stream, batch in batches:
                read += self._take(index, stream, batch)
            if self._time.resume(arrived):
                self._publish()
            if self.arrived:
                self.orders.stopping.wait(HOLD)
        self._ripen()
        self._work()
        if self.orders.killed.is_set() or self.orders.stopping.is_set():
            return
        if self._is_due(idle=read == 0):
            self.checkpoint()

    def _patience(self) -> float:
        if self._epoch or self.orders.freeze:
            return 0.0
        wait = LOOK
        if self._filling:
            wait = min(wait, self._linger / 4)
        now = self.store.now()
        for task in self.tasks.values():
            at = task.timers.next("processing")
            if at is not None:
                wait = min(wait, max(0.0, (at - now) / 1e6))
            if task.publisher is not None:
                wait = min(wait, max(0.0, task.publisher.wait()))
        return wait

    def _take(self, index: int, stream: str, batch: RecordBatch) -> int:
        task = self.tasks.get(index)
        if task is None:
            if index in self.arrived:
                self._intake.back(batch)  # its other inputs are not here yet
            return 0
        start = self._kept.get(batch.partition)
        if start is not None:
            batch = batch.from_offset(start)
        if not len(batch):
            return 0
        work = Work(
            task, stream, batch.partition, batch.records(), list(batch.keys()), list(batch.times()),
            any(batch.headers()),
        )  # fmt: skip
        if self._batch is None:
            self._backlog.append(work)
            return len(batch)
        since, waiting = self._filling.get((index, stream), (time.monotonic(), None))
        if waiting is not None:
            waiting.records += work.records
            waiting.keys += work.keys
            waiting.times += work.times
            waiting.has_headers |= work.has_headers
            work = waiting
        self._filling[index, stream] = (since, work)
        return len(batch)

    def _ripen(self) -> None:
        """Move batches that are full, or have waited long enough, to the work."""
        if self._batch is None or not self._filling:
            return
        size = self._batch.size
        now = time.monotonic()
        hurried = self.orders.draining
        for place, (since, work) in list(self._filling.items()):
            while len(work.records) >= size:
                self._backlog.append(work.cut(0, size))
                work = work.cut(size)  # noqa: PLW2901 - what is left of it
                since = now  # noqa: PLW2901
            if work.records and (now - since >= self._linger or hurried):
                self._backlog.append(work)
                work = work.cut(0, 0)  # noqa: PLW2901
            if work.records:
                self._filling[place] = (since, work)
            else:
                del self._filling[place]

    def _work(self) -> None:
        while self._backlog and not self.orders.stopping.is_set():
            work = self._backlog.popleft()
            if work.error is not None:
                self._try_again(work)
            else:
                self._process(work)
            if self.orders.stopping.is_set() or self.orders.killed.is_set():
                return
            if self._backlog and self._is_due(idle=False):
                self.checkpoint()

    def _process(self, work: Work) -> None:
        """Run a batch of records; one that fails goes back to the backlog, with what came before it."""
        if not self._epoch_began:
            self._epoch_began = time.monotonic()
        done = 0
        try:
            done = self._run_records(work)
        except Exception as error:
            self._failed(work, error)
            return
        if done < len(work.records):
            self._backlog.appendleft(work.cut(done))
            work = work.cut(0, done)
        self._did(work)

    def _did(self, work: Work) -> None:
        if work.records:
            work.error, work.attempt = None, 0
            self._epoch.append(work)
            self._epoch_records += len(work.records)
            work.task.watermark.mark(work.stream, max(work.times), work.task.ctx.now)

    def _run_records(self, work: Work) -> int:
        """How many were processed: fewer than all if a checkpoint is wanted."""
        task = work.task
        ctx = task.ctx
        ctx.now = self.store.now()
        ctx.of_batch(work.stream, has_headers=work.has_headers, strict=work.alone or work.error is not None)
        self._at = 0
        if self._batch is not None:
            ctx.record, ctx.key, ctx.own_key = None, "", None
            task.computation.process_batch(list(work.records), ctx)
            return len(work.records)
        process = task.computation.process
        record: Record[Any] | None = None
        try:
            for record, key in zip(work.records, work.keys, strict=True):
                ctx.record = record
                ctx.own_key = key
                ctx.key = key or ""
                process(record, ctx)
                if ctx.full:
                    return rank_of(work.records, record) + 1
        except BaseException:
            self._at = rank_of(work.records, record)
            raise
        return len(work.records)

    # --- failures --------------------------------------------------------------------------------------

    def _failed(self, work: Work, error: BaseException) -> None:
        """Everything since the last checkpoint is done again up to what failed, which then comes alone."""
        self.status.failures += 1
        at = self._at
        again = [*self._epoch]
        if self._batch is not None and len(work.records) > 1:
            singles = [work.cut(number, number + 1) for number in range(len(work.records))]
            again += singles
        else:
            if at:
                again.append(work.cut(0, at))
            bad = work.cut(at, at + 1)
            bad.error, bad.attempt = error, work.attempt + 1
            again.append(bad)
            if at + 1 < len(work.records):
                again.append(work.cut(at + 1))
        self._rollback()
        self._backlog.extendleft(reversed(again))

    def _try_again(self, work: Work) -> None:
        """What failed, alone: until it succeeds, its attempts are used up, or the instance is to stop."""
        error = work.error
        assert error is not None  # noqa: S101 - that is why it is here
        self._backlog.appendleft(work)
        self.checkpoint()  # what came before it holds, whatever becomes of this one
        if self._backlog[0] is not work:
            return
        while error is not None:
            delay = self._delay(error, work.attempt)
            if delay is None:
                self._give_up(error, work.attempt, self._letter(work.records[0], work.keys[0]), work.place)
                self._backlog.popleft()
                self.commit()
                return
            if not self._pause(delay) or self._backlog[0] is not work:
                return
            try:
                self._run_records(work)
            except Exception as again:
                self.status.failures += 1
                self._rollback()
                work.error = error = again
                work.attempt += 1
            else:
                error = None
        self._backlog.popleft()
        self._did(work)
        self.checkpoint()  # what was so hard to get is not put at risk by what comes next

    def _delay(self, error: BaseException, attempt: int) -> timedelta | None:
        if isinstance(error, Reject | Undecodable):
            return None  # would fail again
        return self.node.policy.retry.delay(attempt, self._rng)

    def _pause(self, delay: timedelta) -> bool:
        """Wait for the next attempt, showing that the instance lives; False if it is to stop."""
        until = time.monotonic() + delay.total_seconds()
        patience = min(self._max_poll.total_seconds() / 4, 30.0)
        while (left := until - time.monotonic()) > 0:
            if self.orders.stopping.wait(min(left, LOOK)):
                return False
            self._stay_alive(patience)
        self._stay_alive(patience)
        return not self.orders.stopping.is_set()

    def _stay_alive(self, patience: float) -> None:
        if time.monotonic() - self._polled > patience and len(self._backlog) < AHEAD:
            for index, stream, batch in self._intake.beat():
                self._take(index, stream, batch)
            self._polled = time.monotonic()

    def _letter(self, record: Record[Any], key: str | None) -> tuple[bytes, Any, Micros, dict[str, str | bytes]]:
        return record.payload, key, record.time_us, dict(record.headers)

    def _give_up(
        self, error: BaseException, attempts: int, letter: tuple[bytes, Any, Micros, dict[str, str | bytes]], what: Any
    ) -> None:
        if not self._may_pass():
            raise Stopped(f"{self.node.name} failed at {what}") from error
        self.status.skipped += 1
        logger.warning(
            "%s goes on without a record of %s after %d attempts: %s: %s", self.node.name, what, attempts,
            type(error).__name__, error,
        )  # fmt: skip
        if self.node.policy.dead_letters:
            payload, key, at, headers = letter
            told: dict[str, str | bytes] = {
                "penstock-error": f"{type(error).__name__}: {error}"[:1000],
                "penstock-attempts": str(attempts),
                "penstock-from": str(what),
            }
            self._dead.append((payload, key, at, {**headers, **told}))

    def _rollback(self) -> None:
        for task in self.tasks.values():
            task.rollback()
        self._epoch.clear()
        self._epoch_records, self._epoch_began = 0, 0.0
        self._dead.clear()

    # --- checkpoints -----------------------------------------------------------------------------------

    def _is_due(self, *, idle: bool) -> bool:
        if self._epoch and (
            idle
            or self._epoch_records >= self.settings.checkpoint_records
            or time.monotonic() - self._epoch_began >= self._every
        ):
            return True
        now = self.store.now()
        if any(task.ctx.full or task.is_due(now) for task in self.tasks.values()):
            return True
        if not idle:
            return False
        positions = self._positions()
        self._time.look(self.tasks.values(), positions)
        return any(self._time_moves(task, positions, now) for task in self.tasks.values()) or self._moved()

    def _time_moves(self, task: Task, positions: Positions, now: Micros) -> bool:
        """Whether a checkpoint without records would move event time, here or for those who read the outputs."""
        if task.publisher is not None and task.publisher.wait() <= 0:
            return True
        return task.watermark.would_move(self._time.silent(task, positions, now))

    def _moved(self) -> bool:
        """Whether positions went on without records: marks of transactions have offsets too."""
        return any(self._kept.get(place, offset) != offset for _, place, offset in self._unread()[0])

    def checkpoint(self, *, timers: bool = True) -> None:
        """Move the watermarks, fire timers, then commit all of it as one."""
        self._rounds += 1
        try:
            if timers and self.tasks:
                self._fire_all()
            self.commit()
        except WrongState as wrong:
            if all(work.alone for work in self._epoch):
                raise wrong.error from None
            self._singly()
        finally:
            self._rounds += 1

    @property
    def quiet(self) -> bool:
        """Whether there is nothing to do now but wait: no task to begin, no timer due, nothing to be committed."""
        before = self._rounds
        now = self.store.now()
        idle = not self.arrived and not any(task.is_due(now) for task in list(self.tasks.values()))
        return idle and before % 2 == 0 and before == self._rounds

    def _fire_all(self) -> None:
        try:
            self._fire()
        except TimerFailed as failed:
            self._again()
            self.commit()
            self._fire_one_by_one(failed)

    def _singly(self) -> None:
        """A state was given a value of a wrong type, by which record is not known: each comes alone."""
        singles = [work.cut(number, number + 1) for work in self._epoch for number in range(len(work.records))]
        for one in singles:
            one.alone = True
        self._rollback()
        self._backlog.extendleft(reversed(singles))

    def _fire(self) -> None:
        positions = self._positions()
        self._time.look(self.tasks.values(), positions)
        now = self.store.now()
        for task in self.tasks.values():
            task.move(self._time.silent(task, positions, now))
            while (timer := task.take_due(now)) is not None:
                self._call(task, timer)

    def _call(self, task: Task, timer: Timer) -> None:
        try:
            task.call(timer)
        except Exception as error:
            self.status.failures += 1
            raise TimerFailed(task, timer, error) from error
        self.status.timers += 1

    def _again(self) -> None:
        """Do the records since the last checkpoint once more, without timers."""
        epoch = [*self._epoch]
        self._rollback()
        for work in epoch:
            self._run_records(work)
            self._did(work)

    def _fire_one_by_one(self, first: TimerFailed) -> None:
        """Timers in order, each with a checkpoint of its own; ``first`` says which one has failed once."""
        for task in list(self.tasks.values()):
            while (timer := self._take_due(task)) is not None:
                known = first.task is task and first.timer == timer
                self._alone(task, timer, first.error if known else None)
                self.commit()

    def _take_due(self, task: Task) -> Timer | None:
        if task.index not in self.tasks:
            return None  # lost meanwhile
        positions = self._positions()
        self._time.look([task], positions)
        now = self.store.now()
        task.move(self._time.silent(task, positions, now))
        return task.take_due(now)

    def _alone(self, task: Task, timer: Timer, error: BaseException | None) -> None:
        """One timer until it succeeds or is given up; nothing else is in this checkpoint."""
        attempt = 0 if error is None else 1
        while True:
            if error is None:
                try:
                    self._call(task, timer)
                except TimerFailed as failed:
                    error, attempt = failed.error, attempt + 1
                else:
                    return
            delay = self._delay(error, attempt)
            self._rollback()
            if delay is None:
                what = f"timer {timer.name!r} of key {timer.key!r}"
                self._give_up(error, attempt, (b"null", timer.key or None, timer.time_us, {}), what)
                self._take_due(task)
                return
            if not self._pause(delay):
                raise TimerFailed(task, timer, error)
            if self._take_due(task) != timer:
                raise TimerFailed(task, timer, error)  # it went to another instance while we waited
            error = None

    def _publish(self) -> None:
        """Report at once how far event time is, without waiting for more."""
        if self._time.due(self.tasks.values(), at_once=True):
            self.commit(publish=True)

    def commit(self, *, publish: bool = False, ending: Task | None = None) -> None:
        """Outputs, offsets, state and timers as one transaction; the end of a task counts once in a run."""
        now = self.store.now()
        positions, offsets = self._unread()
        outputs: list[tuple[Partition, NewRecords]] = []
        produced = 0
        for task in self.tasks.values():
            made = task.produced()
            produced += sum(len(records) for _, records in made)
            outputs += made
            mine = {place.log: offset for _, place, offset in positions if place.index == task.index}
            try:
                outputs += task.changes(now, mine)
            except (WrongType, Undecodable) as error:
                raise WrongState(error) from error
        if self._dead:
            values, keys, times, headers = zip(*self._dead, strict=True)
            outputs.append((Partition(dead_log(self.node.name), 0), NewRecords(values, keys, times, headers)))
        # A repeated end writes nothing: reports do not go with it.
        reports = [] if ending is not None else self._time.due(self.tasks.values(), at_once=publish)
        if reports:
            outputs.append((Partition(low_log(self.node.name), 0), encoded(reports)))
        moved = any(self._kept.get(place) != offset for _, place, offset in positions)
        ends: dict[Partition, int] = {}
        if outputs or (moved and (self._epoch or self._kept or self._moved())) or self._dead:
            try:
                for partition, records in outputs:
                    self.store.check_records(partition.log, records)
            except PayloadTooLarge as error:  # a state that has grown too large, say
                raise WrongState(error) from error
            failpoints.point("stream.checkpoint.before")
            once = None if ending is None or not self.settings.run else self._name_of_end(ending)
            sequence = None if once is None else self.settings.run
            done = self.store.transact(Commit(merged(outputs), offsets, producer=once, sequence=sequence))
            failpoints.point("stream.checkpoint.after")
            ends = {place: found[-1] + 1 for place, found in done.offsets.items() if len(found)}
            if done.duplicate:  # another process did it, and died; its records are there
                ends = {place: self.store.bounds_of(place).end for place, _ in outputs}
            self.status.checkpoints += 1
            self.status.produced += produced
            self.status.records += self._epoch_records
        self._kept.update({place: offset for _, place, offset in positions})
        for task in self.tasks.values():
            task.committed(ends)
        self._time.committed(self.tasks.values(), {place: at for _, place, at in positions}, ends)
        self._epoch.clear()
        self._epoch_records, self._epoch_began = 0, 0.0
        self._dead.clear()
        known = [task.watermark.low for task in self.tasks.values() if task.watermark.low != LOWEST]
        # Times that no calendar has come from elsewhere only; they must not stop the work.
        self.status.watermark = from_micros(min(max(min(known), FIRST_TIME), LAST_TIME)) if known else None

    def _positions(self) -> Positions:
        return {place: offset for _, place, offset in self._unread()[0]}

    def _unread(self) -> tuple[list[tuple[Source, Partition, int]], list[tuple[Source, dict[Partition, int]]]]:
        """For every partition the first record that is not processed: what to commit."""
        first: dict[Partition, int] = {}
        for work in (*self._backlog, *(one for _, one in self._filling.values())):
            first.setdefault(work.place, work.records[0].offset)
        positions = [
            (source, place, first.get(place, offset))
            for source, place, offset in self._intake.positions()
            if place.index in self.tasks
        ]
        by_source: dict[int, tuple[Source, dict[Partition, int]]] = {}
        for source, place, offset in positions:
            by_source.setdefault(id(source), (source, {}))[1][place] = offset
        return positions, list(by_source.values())

    # --- the end of the input ----------------------------------------------------------------------------

    def finish(self, final: bool) -> None:
        """Nothing more comes: fire what event time brings at its end, call on_drain, commit."""
        self.checkpoint()
        for task in self.tasks.values():
            self._carefully(task, final)
            self.commit(ending=task)
        self._publish()

    def _name_of_end(self, task: Task) -> str:
        return f"{self.plan.topology.name}.{self.node.name}.end-{task.index}"

    def _close_task(self, task: Task, final: bool, passed: Mapping[Timer, object]) -> None:
        if final:
            for timer in task.end_of_input():
                if task.still_set(timer) and timer not in passed:
                    try:
                        task.call(timer)
                    except Exception as error:
                        raise TimerFailed(task, timer, error) from error
                    self.status.timers += 1
        task.drained()
        if final:
            task.close_time()

    def _carefully(self, task: Task, final: bool) -> None:
        """The end of a partition as one attempt, tried again as the policy says, without the timers it gives up."""
        attempts: Counter[Timer | None] = Counter()
        passed: dict[Timer, tuple[BaseException, int]] = {}
        while True:
            try:
                self._close_task(task, final, passed)
            except PenstockError:
                raise
            except Exception as failure:
                timer, error = (failure.timer, failure.error) if isinstance(failure, TimerFailed) else (None, failure)
                self.status.failures += 1
                self._rollback()
                attempts[timer] += 1
                delay = self._delay(error, attempts[timer])
                if delay is None and timer is not None and self._may_pass():
                    passed[timer] = (error, attempts[timer])
                elif delay is None or not self._pause(delay):
                    raise Stopped(f"{self.node.name} failed at the end of its input") from error
            else:
                break
        for timer, (error, number) in passed.items():
            what = f"timer {timer.name!r} of key {timer.key!r}"
            self._give_up(error, number, (b"null", timer.key or None, timer.time_us, {}), what)

    def _may_pass(self) -> bool:
        """Whether the policy lets what failed for good be passed over."""
        policy = self.node.policy
        return policy.on_failure != "stop" or self.status.skipped < policy.skip_first

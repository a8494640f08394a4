"""One computation at the driver: its query, the tickets it gets, and the commits of what was done.

What a turn reads begins where the group has committed, so the log store says how far a computation is, and the tools
that show lags need not know about Spark. The conductor holds the group's partitions as a tailer does: nobody else can
run the computation at the same time.
"""

from __future__ import annotations

import json
import logging
import random
import re
import shutil
import tempfile
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from penstock import failpoints
from penstock.clock import Micros, duration, from_micros
from penstock.errors import BadInput, Conflict, SchemaMismatch, StoreUnavailable, Unsupported
from penstock.ids import is_another, new_id
from penstock.log.record import Bounds, Partition
from penstock.log.store import LogStore
from penstock.log.tailer import Tailer
from penstock.policy import Retry
from penstock.spark.explaining import explain
from penstock.spark.identity import producer_of
from penstock.spark.log_source import rationed
from penstock.spark.running.processor import COLUMNS, Keeping, Passing
from penstock.spark.running.sending import Load, pack_load
from penstock.spark.running.source import FORMAT, Post
from penstock.spark.running.tickets import Again, Done, Job, Ticket, done_of
from penstock.stream.engine.changelog import check_inputs
from penstock.stream.engine.task import watermark_of
from penstock.stream.engine.watermark import END, LOWEST, Promise, SilentInput, Watermark
from penstock.stream.engine.watermark_log import WatermarkPublisher, encoded, low_log, reports_time
from penstock.stream.internal_logs import ends_of, last_reports
from penstock.stream.runner import Settings, Status
from penstock.stream.topology import Node
from penstock.stream.validate import ResolvedTopology
from penstock.stream.watermark_reader import LogEnds, WatermarkReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("penstock.stream")

LOOK = 0.02  # seconds after which a conductor that has nothing to do looks around
HELD = timedelta(days=20)  # how long partitions are held without a sign of life, which is shown more often
BEAT = 3600.0
COMMIT = 10.0
FATAL = (BadInput, SchemaMismatch, Unsupported)  # another attempt would not help


_CAUSE = re.compile(r"^\s*([\w.]+(?:Error|Exception): .+)$", re.MULTILINE)


class Failed(Exception):
    """A computation has failed for good: its policy says stop."""


class Conductor:
    """Runs one computation on Spark."""

    def __init__(
        self, store: LogStore, plan: ResolvedTopology, node: Node, *, session: SparkSession, load: Load,
        checkpoint: str, slots: list[int] | None, settings: Settings, seen: bool, inputs: dict[str, str],
    ) -> None:  # fmt: skip
        """``seen``: it has kept state in this checkpoint before; ``inputs``: the identities of the logs it reads."""
        self.store = store
        self.plan = plan
        self.node = node
        self.status = Status(node.name, 0)
        self.stopping = threading.Event()
        self.killed = threading.Event()
        self.settings = settings
        self._resolved = plan.computation(store, node)
        self._session = session
        self._load = load
        self._checkpoint = checkpoint
        self._slots = slots
        self._seen = seen
        self._inputs = inputs
        self._tasks = range(plan.tasks[node.name])
        self._places = [
            Partition(stream, index) for stream in node.inputs.values() for index in range(plan.partitions[stream])
        ]
        self._local = {stream: local for local, stream in node.inputs.items()}
        self._every = duration(settings.checkpoint_every).total_seconds()
        self._positions: dict[Partition, int] = {}
        self._known: dict[int, Done] = {}
        self._again: dict[int, tuple[Again, float]] = {}
        self._log_ends = LogEnds(store)
        self._upstream = WatermarkReader(store, node.inputs, plan.writers, self._log_ends)
        self._publishers: dict[int, WatermarkPublisher] = {}
        self._output_ends: dict[str, list[int]] = {}
        self._resumed: dict[int, tuple[Micros, Micros]] = {}  # what was promised, and reached, before this query
        self._since: Micros = 0
        self._error: BaseException | None = None
        self._failure: str | None = None
        self._tailer: Tailer[Any] | None = None
        self._query: StreamingQuery | None = None
        self._started = threading.Event()
        self._turn = -1  # the last that was committed
        self._finish: bool | None = None
        self._ends: dict[Partition, int] | None = None  # where the input ends, once it does
        self.finished = threading.Event()
        self._rng = random.Random()
        self._thread = threading.Thread(target=self._run, name=f"penstock-spark-{node.name}", daemon=True)

    # --- what the runner asks and tells -----------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self, seconds: float) -> bool:
        """Wait for its end."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End after the turn under way."""
        self.stopping.set()

    def kill(self) -> None:
        """End at once."""
        self.killed.set()
        self.stopping.set()

    def finish(self, final: bool) -> None:
        """The input ends where it ends now: do what is left, then end."""
        self._ends = {place: one.end for place, one in self._bounds().items()}
        self._finish = final

    @property
    def ended(self) -> bool:
        """Whether it has ended for good."""
        return self.status.state in ("failed", "stopped")

    def lows(self) -> list[Micros]:
        """The watermarks of its tasks; one that has never had a record holds nobody back."""
        lags = [self.store.lags(stream, self.node.name) for stream in self.node.inputs.values()]
        found = {index: self._known[index].low if index in self._known else LOWEST for index in self._tasks}
        return [
            low for index, low in found.items()
            if low != LOWEST or any(lag[index].lag for lag in lags if index < len(lag))
        ]  # fmt: skip

    def waits(self, until: Micros) -> bool:
        """Whether a timer up to an event time waits."""
        return any(one.next_event is not None and one.next_event <= until for one in self._known.values())

    # --- life --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff = Retry(
            attempts=None, backoff=self.settings.restart_backoff, max_backoff=self.settings.restart_backoff_max
        )
        failed_in_a_row = 0
        while not self.stopping.is_set():
            before = self.status.checkpoints
            try:
                self._live()
            except Failed as failed:
                self._note("failed", str(failed), None)
                return
            except BaseException as error:
                if self.stopping.is_set():
                    logger.debug("%s on Spark was broken off", self.node.name, exc_info=error)
                    break
                cause = self._error or explain(error) or error
                if isinstance(cause, FATAL) or type(cause) is Conflict:
                    self._note("failed", _line(cause), cause)
                    return
                failed_in_a_row = 1 if self.status.checkpoints > before else failed_in_a_row + 1
                self._note("restarting", _line(cause), cause)
                self.status.restarts += 1
                delay = backoff.delay(failed_in_a_row, self._rng)
                self.stopping.wait(0.0 if delay is None else delay.total_seconds())
        self.status.state = "stopped"

    def _note(self, state: Any, text: str, error: BaseException | None) -> None:
        self.status.state = state
        self.status.error = text
        logger.error("%s on Spark is %s: %s", self.node.name, state, text, exc_info=error)
        self.store.signals.tell(
            "store_error", self.node.name, (), self.store.now(), step=f"on Spark {state}", error=text
        )

    def _live(self) -> None:
        """One query, from its start to its end."""
        folder = tempfile.mkdtemp(prefix="penstock-spark-")
        post = Post(folder)
        self._error = None
        self._known.clear()
        self._again.clear()
        self._since = self.store.now()
        self._started.clear()
        try:
            self._look_at_inputs()
            self._tailer = self.store.tailer(list(self._places), self.node.name, bytes, max_poll=HELD)
            self._upstream = WatermarkReader(self.store, self.node.inputs, self.plan.writers, self._log_ends)
            for index in self._tasks:
                self._upstream.add(index)
            self._look_up()
            self._resume_reports()
            self._query = self._begin(folder)
            self._started.set()
            self._turn = self._first(post)
            self._look_up()
            self.status.partitions = list(self._tasks)
            self.status.state = "running"
            self._work(post)
        finally:
            self._started.set()
            self.status.partitions = []
            if self._query is not None:
                self._query.stop()
                self._query = None
            self._upstream.close()
            if self._tailer is not None:
                self._tailer.close()
                self._tailer = None
            shutil.rmtree(folder, ignore_errors=True)

    def _begin(self, folder: str) -> StreamingQuery:
        load = Load(new_id(), self._load.url, self._load.topology, self._load.name, self.plan.writers)
        told = {"post": folder, "url": load.url, "group": self.node.name, "slots": self._slots}
        rows = self._session.readStream.format(FORMAT).option("ticket", json.dumps(told)).load()
        if self._slots is not None:
            made = rows.groupBy("slot").transformWithState(Keeping(pack_load(load)), COLUMNS, "Append", "None")
        else:
            made = rows.mapInArrow(Passing(pack_load(load)), COLUMNS)
        return (
            made.writeStream.foreachBatch(self._commit)
            .queryName(f"{self.node.name} {load.id}")
            .option("checkpointLocation", self._checkpoint)
            .trigger(processingTime="0 seconds")
            .start()
        )

    def _first(self, post: Post) -> int:
        """Wait until the query asks for a ticket; a turn that was under way when it ended last is done again before."""
        while (turn := post.asked()) is None:
            self._check()
            if self.stopping.wait(LOOK):
                raise StoreUnavailable(f"{self.node.name} was stopped before it began.")
        if (
            turn == 0
            and self._seen
            and any(
                offset is not None for stream in self._local for offset in self.store.committed(stream, self.node.name)
            )
        ):
            raise Conflict(
                f"the state of {self.node.name} was in the checkpoint {self._checkpoint}, which is empty.",
                hint=f"Bring the folder back, or begin anew with reset({self.node.name!r}).",
            )
        return turn

    def _check(self) -> None:
        """Raise what has ended the query."""
        query = self._query
        if self._error is not None:
            raise self._error
        if query is not None and not query.isActive:
            raise query.exception() or StoreUnavailable(f"the query of {self.node.name} has ended.")

    # --- turns -------------------------------------------------------------------------------------------

    def _work(self, post: Post) -> None:
        fresh = self._slots is not None or self.node.computation.overrides("init")
        last, beat = 0.0, time.monotonic()
        while not self.stopping.is_set() and not self.finished.is_set():
            self._check()
            if self._finish is None and time.monotonic() - last < self._every:
                self.stopping.wait(LOOK)
                continue
            ticket = self._ticket(everybody=fresh)
            if ticket is None:
                if self._finish is not None and self._is_read():
                    self.finished.set()
                    continue
                self._report()
                if time.monotonic() - beat > BEAT:
                    beat = time.monotonic()
                    self._show_life()
                self.stopping.wait(LOOK)
                continue
            last = time.monotonic()
            post.put(ticket)
            while self._turn < ticket.turn:
                self._check()
                if self.killed.wait(LOOK / 4):
                    return
            fresh = False
            if self._failure is not None:
                raise Failed(self._failure)
            self._report()
        self._let_it_commit(post)
        if self.finished.is_set() and self._finish:
            self._report_end()
        elif self._publishers:
            self._report()
            self._publish(at_once=True)
        if self.finished.is_set():
            self.stopping.set()

    def _let_it_commit(self, post: Post) -> None:
        """Spark asks for the next ticket when it has noted the last batch; ended before, it would do it again."""
        until = time.monotonic() + COMMIT
        while (post.asked() or 0) < self._turn and time.monotonic() < until and not self.killed.wait(LOOK / 4):
            self._check()

    def _ticket(self, *, everybody: bool) -> Ticket | None:
        """What to do next; None: nothing."""
        now = self.store.now()
        jobs: dict[int, Job] = {}
        self._add_ranges(jobs)
        self._look_at_time()
        finish = self._finish if self._ends is not None and self._closes(jobs) else None
        for index in self._tasks:
            if index not in jobs and (everybody or finish is not None or self._is_due(index, now)):
                jobs[index] = Job(index)
        if not jobs:
            return None
        for index, job in jobs.items():
            if self._slots is None and index in self._known:
                job.low, job.highs = self._known[index].low, self._known[index].highs
            if job.ranges and index in self._again:
                job.again = self._again.pop(index)[0]
            self._add_time(job, now)
        if any(job.ranges for job in jobs.values()):
            self._look_at_inputs(running=True)
        return Ticket(self._turn + 1, now, list(jobs.values()), finish, self.status.skipped, self._inputs)

    def _look_at_inputs(self, *, running: bool = False) -> None:
        """See that they are still the same logs; what keeps nothing goes on with those that were made anew."""
        found = {log: self.store.identity(log) for log in self._local}
        if self._slots is not None:
            check_inputs(self.node.computation, self._inputs, found)
        for log in [one for one in found if is_another(self._inputs[one], found[one])]:
            if running:
                raise StoreUnavailable(f"log {log!r} was made anew.")  # so is the query, from its beginning
            self._positions = {place: at for place, at in self._positions.items() if place.log != log}
        self._inputs = found

    def _closes(self, jobs: dict[int, Job]) -> bool:
        """Whether these jobs come to the end of the input, and there is something to do there."""
        computation = self.node.computation
        if not computation.overrides("on_drain") and not (self._finish and computation.keeps):
            return False
        ends = {Partition(log, job.task): stop for job in jobs.values() for log, (_, stop) in job.ranges.items()}
        return self._is_read(ends)

    def _is_read(self, ahead: dict[Partition, int] | None = None) -> bool:
        """Whether all is read up to the end of the input, by what is done or about to be done."""
        at = {**self._positions, **(ahead or {})}
        bounds = self._bounds()
        return all(at.get(place, bounds[place].start) >= end for place, end in (self._ends or {}).items())

    def _bounds(self) -> dict[Partition, Bounds]:
        return {Partition(stream, one.partition): one for stream in self._local for one in self.store.bounds(stream)}

    def _add_ranges(self, jobs: dict[int, Job]) -> None:
        resting = {index for index, (_, until) in self._again.items() if time.monotonic() < until}
        bounds = self._bounds()
        if self._ends is not None:
            bounds = {place: msgspec.structs.replace(one, end=self._ends[place]) for place, one in bounds.items()}
        chosen = [place for place in self._places if place.index not in resting]
        starts = {place: self._positions.get(place, bounds[place].start) for place in chosen}
        ends = rationed(
            {rank: starts[place] for rank, place in enumerate(chosen)},
            {rank: bounds[place].end for rank, place in enumerate(chosen)},
            self.settings.checkpoint_records,
        )
        for rank, place in enumerate(chosen):
            if ends[rank] > starts[place]:
                job = jobs.setdefault(place.index, Job(place.index, {}))
                job.ranges[place.log] = (starts[place], ends[rank])

    def _is_due(self, index: int, now: Micros) -> bool:
        """Whether a task has something to do without records: a timer, or a watermark that an idle input held."""
        known = self._known.get(index)
        if known is None:
            return False
        if known.next_processing is not None and known.next_processing <= now:
            return True
        if self._slots is None:
            return False
        return self._watermark(index).next(self._silent(index, now)) > known.low

    # --- event time --------------------------------------------------------------------------------------

    def _look_at_time(self) -> None:
        """Read what the writers of the inputs have reported, behind the records that a ticket names."""
        self._log_ends.forget()
        self._upstream.look()

    def _add_time(self, job: Job, now: Micros) -> None:
        """How far the inputs of a job count, before its ranges and at their ends."""
        watermark = self._watermark(job.task)
        job.firm = watermark.firm
        for local in watermark.reaches:
            log = self.node.inputs[local]
            at = self._positions.get(Partition(log, job.task), 0)
            start, stop = job.ranges.get(log, (at, at))
            job.reaches[local] = (
                self._upstream.reach(job.task, local, start), self._upstream.reach(job.task, local, stop)
            )  # fmt: skip
        silent = self._silent(job.task, now)
        job.silent = {local: found for local, found in silent.items() if self.node.inputs[local] not in job.ranges}

    def _watermark(self, index: int) -> Watermark:
        """The watermark of a task that has processed everything up to the positions it has committed."""
        watermark = watermark_of(self._resolved, index, self._since)
        known = self._known.get(index)
        firm, reached = self._resumed.get(index, (LOWEST, LOWEST))
        if known is not None:
            watermark.load(known.low, known.highs)
            watermark.heard.update(known.heard)
            firm, reached = max(firm, known.firm), known.low
        watermark.resume(firm, reached)
        for local in watermark.reaches:
            at = self._positions.get(Partition(self.node.inputs[local], index), 0)
            watermark.reaches[local] = self._upstream.reach(index, local, at)
        return watermark

    def _silent(self, index: int, now: Micros) -> dict[str, SilentInput]:
        """The inputs of a task from outside that are read to their ends and had nothing for a while."""
        silent = {}
        for local in self._watermark(index).quiet(now):
            place = Partition(self.node.inputs[local], index)
            end = self._log_ends.of(place.log, place.index)
            if end is not None and self._positions.get(place, 0) >= end:
                silent[local] = SilentInput(place.log, place.index, end)
        return silent

    def _resume_reports(self) -> None:
        """Take up what was reported before; what does not hold any more is replaced before anything is produced."""
        if not reports_time(self.plan.topology, self.node):
            return
        tasks = self.plan.tasks[self.node.name]
        self._publishers = {
            index: WatermarkPublisher(index, tasks, self.plan.topology.name, tuple(self._local))
            for index in self._tasks
        }
        self._output_ends = ends_of(self.store, self.node.outputs.values())
        last = last_reports(self.store, self.node.name)
        for index, publisher in self._publishers.items():
            publisher.resume(last)
            if index in last:
                report = last[index]
                self._resumed[index] = (report.reached if report.low == END else report.low, report.reached)
            if publisher.must_announce:
                firm, reached = self._resumed.get(index, (LOWEST, LOWEST))
                publisher.offer(Promise(firm), reached, self._output_ends)
        self._publish(at_once=True)

    def _report(self) -> None:
        """Between two turns: tell those that read the outputs how far they may go."""
        now = self.store.now()
        if self._publishers:
            self._look_at_time()
        for index, publisher in self._publishers.items():
            watermark, silent = self._watermark(index), self._silent(index, now)
            if index in self._again or (self._slots is not None and watermark.next(silent) > watermark.low):
                continue  # its timers come first: with its next turn
            watermark.move(silent)
            known = self._known.get(index)
            promise = watermark.promise_until(None if known is None else known.next_event)
            if promise is not None:
                publisher.offer(promise, watermark.low, self._output_ends)
        self._publish()

    def _publish(self, *, at_once: bool = False) -> None:
        """Write the reports that are due."""
        due = {
            index: report
            for index, publisher in self._publishers.items()
            if (report := publisher.due(now=at_once)) is not None
        }
        if due and self._tailer is not None:
            mine = {place: at for place, at in self._positions.items() if place.index in due}
            with self.store.transaction() as transaction:
                values = encoded(due.values()).values
                transaction.append_many(low_log(self.node.name), values, bytes, partition=0)
                transaction.commit_offsets(self._tailer, mine)  # whoever lost its partitions has nothing to report
                transaction.commit()
            for index in due:
                self._publishers[index].committed()

    def _report_end(self) -> None:
        """The input has ended."""
        for index, publisher in self._publishers.items():
            known = self._known.get(index)
            reached = LOWEST if known is None else known.low
            publisher.offer(Promise(END), reached, self._output_ends)
        self._publish(at_once=True)

    # --- commits -----------------------------------------------------------------------------------------

    def _commit(self, frame: DataFrame, batch: int) -> None:
        """A batch: run it, and make what it did visible with the offsets it came to, once."""
        try:
            self._started.wait()
            query, tailer = self._query, self._tailer
            if query is None or tailer is None:
                raise StoreUnavailable(f"{self.node.name} was stopped.")
            dones = sorted((done_of(bytes(row.done)) for row in frame.collect()), key=lambda one: one.task)
            if not dones:
                return  # the first batch of a query: nothing was asked for yet
            staged = [one for done in dones for one in done.staged]
            positions = {Partition(log, done.task): at for done in dones for log, at in done.positions.items()}
            duplicate = False
            if staged or any(self._positions.get(place) != at for place, at in positions.items()):
                failpoints.point("stream.checkpoint.before")
                with self.store.transaction(producer=producer_of(str(query.id)), sequence=batch) as transaction:
                    transaction.append_staged(*staged)
                    transaction.commit_offsets(tailer, positions)
                    duplicate = transaction.commit().duplicate
                failpoints.point("stream.checkpoint.after")
            self._apply(dones, positions, duplicate=duplicate)
        except BaseException as error:
            if self._error is None and explain(error) is not None:
                self._error = explain(error)
            raise

    def _apply(self, dones: list[Done], positions: dict[Partition, int], *, duplicate: bool) -> None:
        if duplicate:
            self._look_up()
        else:
            self._positions.update(positions)
        if self._publishers and any(done.staged for done in dones):
            self._output_ends = ends_of(self.store, self.node.outputs.values())
        status = self.status
        for done in dones:
            self._known[done.task] = done
            self._upstream.passed(done.task, done.positions)
            if done.again is not None:
                self._again[done.task] = (done.again, time.monotonic() + done.again.delay_us / 1e6)
            if done.error is not None:
                self._failure = done.error
            status.failures += done.failures
            if not duplicate:
                status.records += done.records
                status.produced += done.produced
                status.timers += done.timers
                status.skipped += done.skipped
        status.checkpoints += not duplicate
        lows = [one.low for one in self._known.values() if one.low != LOWEST]
        status.watermark = from_micros(min(lows)) if lows else None
        if self._finish is not None and all(done.finished for done in dones):
            self.finished.set()
        self._turn = max((done.turn for done in dones), default=self._turn)

    def _look_up(self) -> None:
        """Where the group is."""
        for stream in self._local:
            for index, offset in enumerate(self.store.committed(stream, self.node.name)):
                if offset is not None:
                    self._positions[Partition(stream, index)] = offset

    def _show_life(self) -> None:
        """Read a record, so that the partitions are not taken for abandoned; positions here mean nothing."""
        if self._tailer is not None:
            self._tailer.read_batches(1)


def _line(error: BaseException) -> str:
    """An error in one line: of Spark's pages the last cause that is not Spark's own wrapping."""
    text = str(error).strip()
    causes = [one for one in _CAUSE.findall(text) if not one.startswith(("py4j.", "pyspark.", "org.apache.spark."))]
    if causes:
        return str(causes[-1])
    return f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"

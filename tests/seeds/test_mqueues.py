"""nuxeo-mqueues' promises about computations, topologies, watermarks and processors, in our words.

An MQueue is a log, a stream settings' concurrency is ``add(…, concurrency=)``, the manager is the runner. The promises
about logs and their pools are in test_mqueues_log.py.
"""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.contract.stream.shorthand import fill, numbers, told, values, wait_until

import penstock
from penstock import LogStore, Record
from penstock.bridge import LogToQueue
from penstock.clock import from_micros, to_micros
from penstock.errors import BadInput, WrongType
from penstock.ids import new_id
from penstock.log.pools.producer import ProducerPool
from penstock.policy import Batching, Retry
from penstock.stream import operators
from penstock.stream.computation import CONTINUE, Computation, Policy, computation
from penstock.stream.engine.task import Task
from penstock.stream.engine.watermark import LOWEST, Watermark
from penstock.stream.internal_logs import restore_task
from penstock.stream.local.runner import LocalRunner
from penstock.stream.state import Value
from penstock.stream.topology import Topology
from penstock.stream.validate import ResolvedTopology

SECOND = 1_000_000


@pytest.fixture(params=["memory", "file"])
def logs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LogStore]:
    url = f"memory://{new_id()}" if request.param == "memory" else f"file://{tmp_path / 'logs'}?durability=fast"
    with penstock.open_logs(url) as store:
        yield store


@pytest.fixture
def run(logs: LogStore) -> Iterator[Callable[..., LocalRunner]]:
    made: list[LocalRunner] = []

    def start(topology: Topology, **options: Any) -> LocalRunner:
        made.append(LocalRunner(topology, logs, **options).start())
        return made[-1]

    yield start
    for one in made:
        if not one.is_terminated:
            one.shutdown()


class Forward(Computation):
    """Hands records on to its outputs in turn."""

    def __init__(self, name: str, inputs: int, outputs: int, *, to_all: bool = False) -> None:
        self.name = name
        self.inputs = tuple(f"i{number}" for number in range(1, inputs + 1))
        self.outputs = tuple(f"o{number}" for number in range(1, outputs + 1))
        self.to_all = to_all
        self.turns = itertools.cycle(self.outputs)

    def __deepcopy__(self, memo: Any) -> "Forward":
        return Forward(self.name, len(self.inputs), len(self.outputs), to_all=self.to_all)

    def process(self, record: Record[Any], ctx: Any) -> None:
        for output in self.outputs if self.to_all else (next(self.turns),):
            ctx.produce(output, record)


class Source(Computation):
    """Makes so many records, in batches, driven by a timer."""

    states = (Value("done", int, 0),)

    def __init__(self, name: str, records: int, outputs: int = 1, each: int = 3, target: int = SECOND) -> None:
        self.name = name
        self.outputs = tuple(f"o{number}" for number in range(1, outputs + 1))
        self.records, self.each, self.target = records, each, target

    def init(self, ctx: Any) -> None:
        if ctx.value("done").get() < self.records:
            ctx.set_timer(ctx.now_us, "make", kind="processing")

    def on_timer(self, timer: Any, ctx: Any) -> None:
        done = ctx.value("done").get()
        more = min(self.each, self.records - done)
        for number in range(done, done + more):
            for output in self.outputs:
                at = self.target - (self.records - 1 - number)
                ctx.produce(output, number, key=f"{ctx.partition}-{number}", timestamp=at)
        ctx.value("done").set(done + more)
        if done + more < self.records:
            ctx.set_timer(ctx.now_us, "make", kind="processing")


class Counter2(Computation):
    """Counts the records of its partition and tells at the end of the input, then begins again at 0."""

    name, inputs, outputs = "counter", "i1", "o1"
    states = (Value("n", int, 0),)

    def init(self, ctx: Any) -> None:
        ctx.set_timer(10**15, "tell")

    def process(self, record: Record[Any], ctx: Any) -> None:
        key, ctx.key = ctx.key, ""
        ctx.value("n").set(ctx.value("n").get() + 1)
        ctx.key = key

    def on_timer(self, timer: Any, ctx: Any) -> None:
        ctx.produce("o1", ctx.value("n").get())
        ctx.value("n").set(0)


def alone(logs: LogStore, made: Computation, **streams: Any) -> Task:
    """One partition of a computation without a runner."""
    topology = Topology("alone")
    for name in (*made.inputs, *made.outputs) if not isinstance(made.inputs, str) else (made.inputs, made.outputs):
        topology.stream(str(name))
    topology.add(made)
    node = topology.nodes[made.name]
    task = Task(ResolvedTopology(topology, logs).computation(logs, node), 0, logs.now)
    if task.changelog is not None:
        restore_task(logs, task, node)
    task.begin()
    return task


def produced(task: Task) -> dict[str, list[Any]]:
    return {name: [row for rows in out.rows for row in rows] for name, out in task.outputs.items()}


# --- computations alone ---------------------------------------------------------------------------


@pytest.mark.seed("M38")
def test_forward_hands_out_in_turn(logs: LogStore) -> None:
    task = alone(logs, Forward("forward", 2, 4))
    assert (task.computation.inputs, task.computation.outputs) == (("i1", "i2"), ("o1", "o2", "o3", "o4"))
    assert len(task.timers) == 0
    logs.log("i1").append_many(range(8), keys=[f"k{number}" for number in range(8)])
    for record in logs.log("i1").records(0):
        task.ctx.record, task.ctx.own_key = record, record.key
        task.computation.process(record, task.ctx)
    assert {name: [(row[1], row[0]) for row in rows] for name, rows in produced(task).items()} == {
        f"o{one + 1}": [(f"k{number}", b"%d" % number) for number in (one, one + 4)] for one in range(4)
    }


@pytest.mark.seed("M39")
def test_source_makes_its_records_by_timers(logs: LogStore) -> None:
    task = alone(logs, Source("source", 7, outputs=2, each=3))
    assert len(task.timers) == 1
    calls = 0
    while (timer := task.take_due(logs.now())) is not None:
        task.call(timer)
        calls += 1
    assert calls == 3
    assert {name: len(rows) for name, rows in produced(task).items()} == {"o1": 7, "o2": 7}
    assert max(row[2] for row in produced(task)["o1"]) == SECOND, "the newest event time is the target"


@pytest.mark.seed("M40")
def test_counter_tells_by_its_timer_and_begins_again(logs: LogStore) -> None:
    task = alone(logs, Counter2())
    assert len(task.timers) == 1
    logs.log("i1").append_many(range(42))
    found = list(logs.log("i1").records(0))
    for record in found:
        task.ctx.record = record
        task.computation.process(record, task.ctx)
    assert produced(task)["o1"] == []
    for expected in (42, 1):
        task.end_time()
        [timer] = task.timers_of_event_time() or [None]
        assert timer is not None
        task.call(timer)
        assert produced(task)["o1"][-1][0] == b"%d" % expected
        task.computation.process(found[0], task.ctx)


# --- topologies -----------------------------------------------------------------------------------


def five() -> Topology:
    topology = Topology("five")
    for number in range(1, 6):
        topology.stream(f"s{number}", int)
    topology.add(Source("c1", 1), streams={"o1": "s1"})
    topology.add(Forward("c2", 1, 2), streams={"i1": "s1", "o1": "s2", "o2": "s3"})
    topology.add(Forward("c3", 1, 1), streams={"i1": "s2", "o1": "s4"})
    topology.add(Forward("c4", 1, 1), streams={"i1": "s3", "o1": "s4"})
    return topology.add(Forward("c5", 1, 1), streams={"i1": "s4", "o1": "s5"})


@pytest.mark.seed("M41")
def test_a_topology_knows_who_comes_before_and_behind() -> None:
    topology = five().check()
    assert topology.ancestors("c1") == set()
    assert topology.ancestors("c5") == {"s4", "c3", "c4", "s2", "s3", "c2", "s1", "c1"}
    assert topology.parents("s4") == {"c3", "c4"}
    assert topology.children("c2") == {"s2", "s3"}
    assert topology.descendants("s3") == {"c4", "s4", "c5", "s5"}
    assert topology.parents_of("c5") == ["c3", "c4"]
    assert (topology.is_source("c1"), topology.is_sink("c1")) == (True, False)
    assert (topology.is_source("s5"), topology.is_sink("s5")) == (False, True)
    with pytest.raises(BadInput):
        topology.ancestors("c9")


@pytest.mark.seed("M42")
def test_several_roots() -> None:
    topology = Topology("roots").stream("outside", int).stream("inside", int).stream("out", int)
    topology.add(Source("source", 1), streams={"o1": "inside"})
    topology.add(Forward("join", 2, 1), streams={"i1": "outside", "i2": "inside", "o1": "out"})
    assert topology.check().roots() == {"outside", "source"}
    assert topology.descendants("outside") == {"join", "out"}


@pytest.mark.seed("M43")
def test_plantuml() -> None:
    drawn = five().draw("plantuml")
    assert drawn.startswith("@startuml\n")
    assert drawn.endswith("@enduml\n")
    assert drawn.count("==>") == 10


# --- watermarks -----------------------------------------------------------------------------------


@pytest.mark.seed("M44")
def test_times_are_exact_and_lowest_is_below_all() -> None:
    moment = datetime(2150, 5, 6, 7, 8, 9, 123_457, tzinfo=UTC)
    assert from_micros(to_micros(moment)) == moment, "neither truncated nor rounded"
    mark = Watermark(["in"])
    assert mark.low == LOWEST
    assert LOWEST < 0 < to_micros(moment)
    assert not mark.done(0)
    with pytest.raises(BadInput):
        to_micros(datetime(2026, 1, 1))  # noqa: DTZ001 - a time without a zone names no moment


@pytest.mark.seed("M45")
def test_order_without_overflow() -> None:
    low, high = Watermark(["in"]), Watermark(["in"])
    low.mark("in", 1, 0)
    high.mark("in", 2**60, 0)
    assert low.next({}) < high.next({})
    low.mark("in", 2, 0)
    assert low.next({}) == 2, "of two marks the higher"


@pytest.mark.seed("M46")
def test_done_is_what_lies_before_the_mark() -> None:
    mark = Watermark(["in"])
    mark.mark("in", 10, 0)
    mark.move({})
    assert mark.done(9)
    assert not mark.done(10)


@pytest.mark.seed("M47")
def test_marks_in_any_order_count_with_the_checkpoint() -> None:
    mark = Watermark(["in"])
    for at in (5, 9, 3):
        mark.mark("in", at, 0)
    assert mark.high == 9
    assert not any(mark.done(at) for at in range(10)), "nothing is done before the checkpoint"
    mark.move({})
    assert all(mark.done(at) for at in range(9))
    assert mark.final() == 9


@pytest.mark.seed("M48")
def test_marks_below_the_checkpoint_change_nothing() -> None:
    mark = Watermark(["in"])
    mark.mark("in", 9, 0)
    mark.move({})
    for _ in range(3):
        mark.mark("in", 4, 0)
        mark.move({})
        assert mark.low == 9
    untouched = Watermark(["in"])
    untouched.move({})
    assert untouched.low == LOWEST, "without marks nothing is known"


@pytest.mark.seed("M49")
def test_what_comes_after_the_checkpoint_is_still_greater() -> None:
    mark = Watermark(["in"])
    mark.mark("in", 9, 0)
    mark.move({})
    before = mark.low
    mark.mark("in", 10, 0)
    mark.move({})
    assert mark.low == before + 1


# --- processors -----------------------------------------------------------------------------------


@pytest.mark.seed("M50")
@pytest.mark.parametrize("records", [1, 17, 1003])
def test_a_chain_is_done_when_it_says_so(logs: LogStore, run: Callable[..., LocalRunner], records: int) -> None:
    topology = Topology("chain")
    for number in range(1, 5):
        topology.stream(f"s{number}", int)
    topology.add(Source("source", records, each=100), streams={"o1": "s1"})
    for number in range(1, 4):
        topology.add(Forward(f"f{number}", 1, 1), streams={"i1": f"s{number}", "o1": f"s{number + 1}"})
    runner = run(topology)
    assert runner.wait_for_assignments("20s")
    wait_until(lambda: runner.is_done(from_micros(SECOND)), "the target is done")
    assert len(values(logs, "s4")) == records
    assert runner.stop()


def six(threads: int, partitions: int, records: int) -> Topology:
    """Six computations, six streams: every record reaches the counter twice."""
    topology = Topology("six", partitions=partitions)
    for number in range(1, 7):
        topology.stream(f"s{number}", int)
    topology.add(Source("source", records, each=200), streams={"o1": "s1"}, concurrency=threads)
    topology.add(Forward("a", 1, 2, to_all=True), streams={"i1": "s1", "o1": "s2", "o2": "s3"}, concurrency=threads)
    topology.add(Forward("b", 1, 1), streams={"i1": "s2", "o1": "s4"}, concurrency=threads)
    topology.add(Forward("c", 1, 1), streams={"i1": "s3", "o1": "s4"}, concurrency=threads)
    topology.add(Forward("d", 1, 1), streams={"i1": "s4", "o1": "s5"}, concurrency=threads)
    return topology.add(Counter2, streams={"i1": "s5", "o1": "s6"}, concurrency=threads)


@pytest.mark.seed("M51")
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("records", "threads", "partitions"),
    [(1, 1, 1), (1, 1, 8), (17, 1, 1), (1003, 1, 1), (1, 8, 8), (17, 8, 8), (101, 32, 1), (100, 10, 11)],
)
def test_a_drained_diamond_has_counted_all(
    logs: LogStore, run: Callable[..., LocalRunner], records: int, threads: int, partitions: int
) -> None:
    if threads > 8 and not logs.name.startswith("memory"):
        threads, records = 10, min(records, 50)  # two hundred members of five groups are too many for one disk
    runner = run(six(threads, partitions, records))
    assert runner.drain("100s", final=True), told(runner)
    assert sum(values(logs, "s6")) == 2 * threads * records


@pytest.mark.seed("M51")
@pytest.mark.timeout(120)
def test_a_drained_diamond_of_many_records() -> None:
    """As many records as the seed's largest, on fewer threads."""
    with penstock.open_logs("memory://") as logs:
        runner = LocalRunner(six(4, 8, 8024), logs).start()
        assert runner.drain("100s", final=True), told(runner)
        assert sum(values(logs, "s6")) == 2 * 4 * 8024


@pytest.mark.seed("M52")
@pytest.mark.timeout(120)
def test_killed_ten_times_nothing_is_lost_and_nothing_doubled(logs: LogStore, run: Callable[..., LocalRunner]) -> None:
    """The seed allows duplicates; here the result is exact."""
    threads, records = 2, 1001
    for _ in range(10):
        runner = run(six(threads, 4, records), checkpoint_records=50, read=50)
        time.sleep(0.05)
        runner.shutdown()
    runner = run(six(threads, 4, records))
    assert runner.drain("100s", final=True), told(runner)
    assert sum(values(logs, "s6")) == 2 * threads * records


@pytest.mark.seed("M53")
def test_a_drained_source_has_made_its_records(logs: LogStore, run: Callable[..., LocalRunner]) -> None:
    topology = Topology("sources").stream("out", int)
    runner = run(topology.add(Source("source", 1), streams={"o1": "out"}, concurrency=10))
    assert runner.drain("30s")
    assert len(values(logs, "out")) == 10


# --- what the successor added ---------------------------------------------------------------------


def one_step(function: Any, **options: Any) -> Topology:
    made = computation("step", inputs="in", outputs="out", **options)(function)
    return Topology("step").stream("in", int).stream("out", int).add(made)


@pytest.mark.seed("M63")
def test_drain_waits_for_slow_records(logs: LogStore, run: Callable[..., LocalRunner]) -> None:
    def slow(record: Any, ctx: Any) -> None:
        threading.Event().wait(1.5 if record.value == 1 else 0)
        ctx.produce("out", record.value)

    fill(logs, "in", numbers(4))
    assert run(one_step(slow)).drain("30s")
    assert values(logs, "out") == [0, 1, 2, 3]


@pytest.mark.seed("M64")
def test_one_source_is_active_and_the_other_takes_over(logs: LogStore, run: Callable[..., LocalRunner]) -> None:
    class Ticks(Source):
        def on_timer(self, timer: Any, ctx: Any) -> None:
            done = ctx.value("done").get()
            ctx.produce("o1", done)
            ctx.value("done").set(done + 1)
            if done + 1 < 200:
                ctx.set_timer_after("2ms", "make")

    topology = Topology("ticks").stream("out", int).add(Ticks("source", 200), streams={"o1": "out"})
    first, second = run(topology), run(topology)
    wait_until(lambda: len(values(logs, "out")) >= 10, "one of them ticks")
    assert sum(len(one.partitions) for runner in (first, second) for one in runner.status()) == 1
    active = first if first.status()[0].partitions else second
    active.shutdown()
    wait_until(lambda: len(values(logs, "out")) == 200, "the spare one goes on")
    assert Counter(values(logs, "out")) == Counter(range(200)), "each once, not at most twice"


@pytest.mark.seed("M65")
def test_policies(logs: LogStore, run: Callable[..., LocalRunner]) -> None:
    attempts: Counter[int] = Counter()

    def fails(record: Any, ctx: Any) -> None:
        attempts[record.value] += 1
        if record.value == 1 or (record.value == 2 and attempts[2] < 3):
            raise RuntimeError("no")

    fill(logs, "in", [("k", 1, 1), ("k", 3, 2)])
    for policy, lag in (
        (Policy(), 2),
        (Policy(skip_first=1), 0),
        (CONTINUE, 0),
    ):
        logs.forget("step")
        run(one_step(fails, policy=policy)).drain("20s")
        assert logs.lag("in", "step").lag == lag
    fill(logs, "in", [("k", 2, 3)])
    attempts.clear()
    assert run(one_step(fails, policy=Policy(retry=Retry(attempts=3, backoff="1ms")))).drain("20s")
    assert (logs.lag("in", "step").lag, attempts[2]) == (0, 3)


@pytest.mark.seed("M66")
def test_batches(logs: LogStore, run: Callable[..., LocalRunner]) -> None:
    calls = itertools.count()

    def fails(batch: Any, ctx: Any) -> None:
        if next(calls) < failures:
            raise RuntimeError("no")

    batch = Batching(size=2, linger="200ms")
    fill(logs, "in", numbers(3))
    failures = 10**9
    assert not run(one_step(fails, batch=batch)).drain("20s")
    assert logs.lag("in", "step").lag == 3
    calls, failures = itertools.count(), 2
    assert run(one_step(fails, batch=batch, policy=Policy(retry=Retry(attempts=3, backoff="1ms")))).drain("20s")
    assert logs.lag("in", "step").lag == 0


@pytest.mark.seed("M67")
def test_concurrency_nought_only_makes_the_streams(logs: LogStore, run: Callable[..., LocalRunner]) -> None:
    topology = Topology("none").stream("in", int).stream("out", int)
    topology.add(Forward("forward", 1, 1), streams={"i1": "in", "o1": "out"}, concurrency=0)
    runner = run(topology)
    assert logs.exists("in")
    assert logs.exists("out")
    assert runner.is_terminated
    assert runner.drain("5s")


@pytest.mark.seed("M68")
def test_one_computation_stops_and_starts_while_others_run(logs: LogStore, run: Callable[..., LocalRunner]) -> None:
    topology = Topology("two").stream("a", int).stream("b", int).stream("c", int)
    topology.add(Forward("first", 1, 1), streams={"i1": "a", "o1": "b"})
    topology.add(Forward("second", 1, 1), streams={"i1": "b", "o1": "c"})
    runner = run(topology)
    fill(logs, "a", numbers(5))
    wait_until(lambda: len(values(logs, "c")) == 5, "both run")
    for _ in range(2):
        assert runner.stop_computation("second")
    fill(logs, "a", numbers(5))
    wait_until(lambda: len(values(logs, "b")) == 10, "the first goes on")
    assert logs.lag("b", "second").lag == 5
    assert logs.latency("b", "second").lag == 5
    for _ in range(2):
        runner.start_computation("second")
    wait_until(lambda: len(values(logs, "c")) == 10, "the second catches up")
    with pytest.raises(BadInput):
        runner.stop_computation("third")
    assert runner.drain("20s")


@pytest.mark.seed("M69")
def test_codecs_of_streams(logs: LogStore, run: Callable[..., LocalRunner]) -> None:
    """A log that is of another codec is refused before anything runs; outputs may differ among themselves."""

    class Odd:
        name = type_name = "odd"

        def encode(self, value: Any) -> bytes:
            return f"odd {value}".encode()

        def decode(self, payload: bytes) -> Any:
            return int(payload[4:])

    logs.create("in", codec="json")
    step = Forward("step", 1, 2, to_all=True)
    topology = Topology("codecs").stream("in", codec=Odd()).stream("o1").stream("o2")
    with pytest.raises(WrongType):
        LocalRunner(topology.add(step, streams={"i1": "in"}), logs)

    @computation("mixed", inputs="in", outputs=("o1", "o2"))
    def mixed(record: Any, ctx: Any) -> None:
        ctx.produce("o1", record.value)
        ctx.produce("o2", record.value)

    logs.log("in", int).append_many([1, 2])
    made = Topology("codecs").stream("in", int).stream("o1", int).stream("o2", codec=Odd()).add(mixed)
    assert run(made).drain("20s")
    assert [one.payload for one in logs.log("o1", bytes).records(0)] == [b"1", b"2"]
    assert [one.payload for one in logs.log("o2", bytes).records(0)] == [b"odd 1", b"odd 2"]


@pytest.mark.seed("M70")
def test_records_can_be_changed_and_dropped_on_the_way(logs: LogStore, run: Callable[..., LocalRunner]) -> None:
    topology = Topology("filters").stream("in", int).stream("kept", int).stream("out", int)
    topology.add(operators.filter_values("drop", lambda value: value % 2, "in", "kept"))
    topology.add(operators.map_values("change", lambda value: -value, "kept", "out"))
    fill(logs, "in", numbers(6))
    assert run(topology).drain("20s")
    assert values(logs, "out") == [-1, -3, -5]


# --- in a host application --------------------------------------------------------------------------


@pytest.mark.seed("M54")
def test_a_record_goes_end_to_end_at_once(logs: LogStore, run: Callable[..., LocalRunner]) -> None:
    runner = run(Topology("host").stream("i1", int).stream("o1", int).add(Forward("forward", 1, 1)))
    assert runner.wait_for_assignments("20s")
    with logs.tailer("o1", "reader", int) as tail:
        began = time.monotonic()
        logs.log("i1", int).append(7)
        assert [record.value for record in tail.read(timeout="20s")] == [7]
        assert time.monotonic() - began < 1


@pytest.mark.seed("M55")
def test_one_event_is_one_entry_once_the_lag_is_gone(logs: LogStore) -> None:
    logs.create("audit", 2)
    log = logs.log("audit", str)
    log.append("login", key="ann")
    with penstock.open_queues("memory://") as queues, LogToQueue("writer", log, queues.queue("backend", str)) as bridge:
        bridge.drain()
        assert log.lag("writer").lag == 0
        assert [entry.value for entry in queues.queue("backend", str).find()] == ["login"]


@pytest.mark.seed("M56")
def test_an_import_pipeline_commits_all_items(logs: LogStore, run: Callable[..., LocalRunner]) -> None:
    logs.create("blobs", 4)
    pool = ProducerPool(logs.log("blobs", str), lambda number: (f"{number}-{item}" for item in range(100)), 3)
    assert sum(status.appended for status in pool.run()) == 300
    topology = Topology("import", partitions=4).stream("blobs", str).stream("documents", list)
    topology.add(
        operators.map_values("create", lambda blob: ["document of", blob], "blobs", "documents"), concurrency=4
    )
    assert run(topology).drain("30s")
    assert Counter(blob for _, blob in values(logs, "documents")) == Counter(
        f"{number}-{item}" for number in range(3) for item in range(100)
    )

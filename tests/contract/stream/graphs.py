"""Random topologies and inputs, made by hypothesis, against plain Python.

Every computation is one of a few kinds whose result does not depend on the order across partitions and inputs. The
oracle computes the same with lists and dicts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.contract.stream.shorthand import Row, Run, drained, fill, rows

from penstock.log.store import LogStore
from penstock.stream.chaining import chain
from penstock.stream.computation import Computation
from penstock.stream.state import List, Map
from penstock.stream.topology import Topology

Oracle = Callable[[list[tuple[int, Row]]], list[Row]]


class Step(Computation):
    """A step of a random topology: any number of inputs, one output."""

    def __init__(self, kind: str, parameter: int, inputs: Sequence[str], to: str = "out") -> None:
        """From some streams to one."""
        self.name = kind
        self.kind = kind
        self.parameter = parameter
        self.inputs, self.outputs, self.to = inputs, to, to
        self.states = {
            "collect": (List("items", list), Map("sums", int)),
            "window": (Map("open", int),),
        }.get(kind, ())

    def overrides(self, method: str) -> bool:
        """Only windows and collections have timers."""
        return method in ("process", "on_timer") and (method == "process" or self.kind in ("window", "collect"))

    def process(self, record: Any, ctx: Any) -> None:
        """One record."""
        getattr(self, f"_{self.kind}")(record, ctx)

    def _add(self, record: Any, ctx: Any) -> None:
        ctx.produce(self.to, record.value + self.parameter)

    def _some(self, record: Any, ctx: Any) -> None:
        if record.value % (self.parameter + 2) != 0:
            ctx.produce(self.to, record)

    def _spread(self, record: Any, ctx: Any) -> None:
        for turn in range(self.parameter % 3):
            ctx.produce(self.to, record.value * 10 + turn, key=f"s{(record.value + turn) % 4}")

    def _collect(self, record: Any, ctx: Any) -> None:
        ctx.list("items").append([record.time_us, record.value])
        ctx.map("sums").set(str(record.value % 3), ctx.map("sums").get(str(record.value % 3), 0) + record.value)
        ctx.set_timer(10**15, "end")

    def _window(self, record: Any, ctx: Any) -> None:
        size = 1000 * (self.parameter + 1)
        start = record.time_us // size * size
        ctx.map("open").set(str(start), ctx.map("open").get(str(start), 0) + record.value)
        ctx.set_timer(10**14 + start + size, str(start))  # far off: whatever comes late still counts

    def on_timer(self, timer: Any, ctx: Any) -> None:
        """The end of the input."""
        if self.kind == "collect":
            items = ctx.list("items").items()
            ctx.produce(self.to, len(items), timestamp=max(at for at, _ in items))
            ctx.produce(self.to, sum(ctx.map("sums").items().values()), timestamp=1)
        else:
            ctx.produce(self.to, ctx.map("open").get(timer.name), timestamp=int(timer.name))


def piece(kind: str, parameter: int, inputs: Sequence[str]) -> Computation:
    """A step, or several that run as one, of which the last keeps state."""
    if not kind.startswith("chained "):
        return Step(kind, parameter, inputs)
    last = kind.removeprefix("chained ")
    return chain(
        kind.replace(" ", "-"),
        Step("add", parameter, inputs, to="added"),
        Step("some", parameter, ["added"], to="chosen"),
        Step(last, parameter, ["chosen"]),
    )


def oracle(kind: str, parameter: int, given_rows: list[Row]) -> list[Row]:
    """What a step makes of all its records."""
    found: list[Row] = []
    if kind.startswith("chained "):
        for step in ("add", "some", kind.removeprefix("chained ")):
            given_rows = oracle(step, parameter, given_rows)
        return given_rows
    if kind == "add":
        return [(key, value + parameter, at) for key, value, at in given_rows]
    if kind == "some":
        return [(key, value, at) for key, value, at in given_rows if value % (parameter + 2) != 0]
    if kind == "spread":
        for _, value, at in given_rows:
            found += [(f"s{(value + turn) % 4}", value * 10 + turn, at) for turn in range(parameter % 3)]
        return found
    by_key: dict[str | None, list[Row]] = defaultdict(list)
    for row in given_rows:
        by_key[row[0]].append(row)
    for key, mine in by_key.items():
        if kind == "collect":
            found.append((key, len(mine), max(at for _, _, at in mine)))
            found.append((key, sum(value for _, value, _ in mine), 1))
        elif kind == "window":
            sums: Counter[int] = Counter()
            size = 1000 * (parameter + 1)
            for _, value, at in mine:
                sums[at // size * size] += value
            starts = {at // size * size for _, _, at in mine}
            found += [(key, sums[start], start) for start in starts]
    return found


KINDS = ("add", "some", "spread", "collect", "window", "chained window", "chained collect")

plans = st.lists(
    st.tuples(
        st.sampled_from(KINDS), st.integers(0, 4), st.lists(st.integers(0, 20), min_size=1, max_size=3),
        st.integers(1, 3),
    ),
    min_size=1, max_size=6,
)  # fmt: skip
inputs = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "d", "e"]), st.integers(0, 50), st.integers(1, 20_000)), max_size=60
)


def run(make: Callable[[], tuple[LogStore, Run]], *, examples: int) -> None:
    """Random topologies; ``make`` gives a fresh store and its runner for each."""

    @settings(
        max_examples=examples, deadline=None, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(plan=plans, rows_in=st.tuples(inputs, inputs), partitions=st.integers(1, 3), every=st.integers(1, 50))
    def check(plan: Any, rows_in: Any, partitions: int, every: int) -> None:
        logs, runner = make()
        with logs:
            topology = Topology("random", partitions=partitions).stream("s0", int).stream("s1", int)
            expected: dict[str, list[Row]] = {}
            for number, given_rows in enumerate(rows_in):
                expected[f"s{number}"] = given_rows
                fill(logs, f"s{number}", given_rows, partitions=partitions)
            for number, (kind, parameter, wanted, concurrency) in enumerate(plan):
                # Any streams that are there already: this is how a graph without cycles is made.
                sources = sorted({f"s{one % (number + 2)}" for one in wanted})
                target = f"s{number + 2}"
                topology.stream(target, int)
                mapped = {f"i{rank}": source for rank, source in enumerate(sources)}
                topology.add(
                    piece(kind, parameter, [*mapped]), name=f"c{number}", concurrency=concurrency,
                    streams={**mapped, "out": target},
                )  # fmt: skip
                expected[target] = oracle(kind, parameter, [row for one in sources for row in expected[one]])
            drained(runner, topology, checkpoint_records=every, read=every)
            for stream, wanted_rows in expected.items():
                assert rows(logs, stream) == sorted(wanted_rows, key=repr), stream

    check()

"""Windows and totals of many keys, on changing runners: what the definition says, whoever has them, in any batches."""

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.stream.shorthand import Row, Run, fill, rows, told
from tests.spark.changing import local

import penstock
from penstock import LogStore
from penstock.ids import new_id
from penstock.scalars import canonical_text
from penstock.stream import (
    CONTINUE,
    Sliding,
    Topology,
    Tumbling,
    Windowed,
    chain,
    map_values,
    running_count,
    running_fold,
    running_max,
    running_min,
    running_sum,
    windowed_count,
    windowed_fold,
    windowed_max,
    windowed_sum,
)
from penstock.stream.engine import task as task_module
from penstock.stream.windows import Session

SECOND = 1_000_000
LEG = 60 * SECOND
LEGS = 4
DISORDER = 3 * SECOND
KEYS = [f"user-{number}" for number in range(400)] + ["", "ä"]
SLOW = 7  # records of such values take a while


def leg(number: int) -> tuple[list[Row], list[Row]]:
    """The records of one leg, a little out of order; and those that are late whatever was in which batch."""
    chance = random.Random(number)
    begin = (number + 1) * LEG
    some = [
        (chance.choice(KEYS), chance.randrange(1000), begin + chance.randrange(LEG // 2) // SECOND * SECOND)
        for _ in range(1500)
    ]
    some.sort(key=lambda row: row[2] + chance.randrange(DISORDER))
    late = [(chance.choice(KEYS), 1000, begin - LEG + chance.randrange(10) * SECOND) for _ in range(20)]
    return some, late if number else []


def slowly(value: int) -> int:
    if value % 100 == SLOW:
        time.sleep(0.005)
    return value


def longest(held: list[int], value: int) -> list[int]:
    """A fold of one's own, which changes what it is given."""
    held.append(value)
    held.sort()
    del held[:-3]
    return held


def topology() -> Topology:
    made = Topology("many", partitions=3).stream("in", int, out_of_order="3s")
    for name in ("counted", "slid", "least", "best", "visits"):
        made.stream(name, Windowed).stream(f"{name}-late", int)
    made.add(windowed_count("count", "in", "counted", Tumbling("10s"), late="counted-late"))
    made.add(
        chain(
            "slide",
            map_values("slowly", slowly, "in", "slow"),
            windowed_sum("sum", "slow", "slid", Sliding("9s", "3s"), late="slid-late"),
        )
    )
    made.add(
        windowed_max(
            "most", "in", "least", Sliding("5s", "2s"), late="least-late",
            key=lambda window: window.start,
            result=lambda window: Windowed(window.key, window.start, window.end, -window.value),
        )
    )  # fmt: skip
    made.add(windowed_fold("top", "in", "best", Tumbling("20s"), initial=[], fold=longest, late="best-late"))
    return made.add(windowed_count("visit", "in", "visits", Session("2s"), late="visits-late"))


def defined(size: int, every: int, some: list[Row], fold: Any) -> Counter[Any]:
    """Windows and their values by the definition."""
    windows: dict[Any, list[int]] = defaultdict(list)
    for key, value, at in some:
        for start in range(at - at % every, at - size, -every):
            windows[key, start, start + size].append(value)
    return Counter((*window, repr(fold(values))) for window, values in windows.items())


def sessions(gap: int, some: list[Row]) -> Counter[Any]:
    found: Counter[Any] = Counter()
    times = defaultdict(list)
    for key, _, at in some:
        times[key].append(at)
    for key, moments in times.items():
        held = [min(moments)]
        for at in [*sorted(moments)[1:], 1 << 60]:
            if at - held[-1] > gap:
                found[key, held[0], held[-1] + gap, repr(len(held))] += 1
                held = []
            held.append(at)
    return found


def told_by(logs: LogStore, stream: str) -> Counter[Any]:
    log = logs.log(stream, Windowed)
    values = [record.value for place in log.partitions for record in log.records(place.index)]
    return Counter((one.key, one.start, one.end, repr(one.value)) for one in values)


class TestManyKeys:
    @pytest.mark.parametrize("order", ["ssss", "slsl", "llss"], ids=["stays", "to and fro", "to spark"])
    def test_windows_are_those_of_the_definition(self, logs: LogStore, runner: Run, order: str) -> None:
        """Every leg has a new runner, which stopped in the middle of what came for it."""
        makers: Iterator[Run] = (runner if letter == "s" else local(logs) for letter in order)
        good: list[Row] = []
        late: list[Row] = []
        for number, make in enumerate(makers):
            some, gone = leg(number)
            good, late = good + some, late + gone
            for part in (some[:700], some[700:] + gone):
                fill(logs, "in", part, partitions=3)
                running = make(topology(), checkpoint_records=500).start()
                is_last = number == LEGS - 1 and part[-1:] == gone[-1:]
                assert running.drain("150s", final=is_last), told(running)
        assert told_by(logs, "counted") == defined(10 * SECOND, 10 * SECOND, good, len)
        assert told_by(logs, "slid") == defined(9 * SECOND, 3 * SECOND, good, sum)
        assert told_by(logs, "least") == defined(5 * SECOND, 2 * SECOND, good, lambda values: -max(values))
        assert told_by(logs, "best") == defined(20 * SECOND, 20 * SECOND, good, lambda values: sorted(values)[-3:])
        assert told_by(logs, "visits") == sessions(2 * SECOND, good)
        for name in ("counted", "slid", "least", "best", "visits"):
            assert [row[:3] for row in rows(logs, f"{name}-late")] == sorted(late, key=repr)


TOTALS = ("counts", "sums", "least", "most", "doubled", "best")


def totals() -> Topology:
    """Each of them gives up on what it cannot add, and goes on."""
    made = Topology("totals", partitions=3).stream("in")
    for name in TOTALS:
        made.stream(name)
    made.add(running_count("count", "in", "counts"), policy=CONTINUE)
    made.add(running_sum("sum", "in", "sums", of=number_of), policy=CONTINUE)
    made.add(running_min("min", "in", "least", of=number_of), policy=CONTINUE)
    made.add(running_max("max", "in", "most", of=number_of), policy=CONTINUE)
    double = map_values("double", lambda value: 2 * number_of(value), "in", "twice")
    made.add(chain("chained", double, running_sum("last", "twice", "doubled")), policy=CONTINUE)
    return made.add(running_fold("top", "in", "best", initial=[], fold=three_best), policy=CONTINUE)


def number_of(value: Any) -> Any:
    return value["n"] if isinstance(value, dict) else value


def three_best(held: list[int], value: Any) -> list[int]:
    return longest(held, number_of(value))


def numbers_of(seed: int, *, odd: bool) -> list[Row]:
    """Of keys of all kinds. Odd ones are not all of one type; some of them cannot be added."""
    chance = random.Random(seed)
    keys = [*KEYS, *map(canonical_text, (1, 1.5, True, None)), *(f"more-{number}" for number in range(200 * seed))]
    some: list[Row] = []
    for rank in range(2000):
        value: Any = chance.randrange(-(1 << 40), 1 << 40)
        if odd and chance.random() < 0.02:
            value = chance.choice([0.5, {"n": value}, {"m": value}, 1 << 62, "text"])
        some.append((chance.choice(keys), value, (seed * 2000 + rank) * 1000))
    return some


def last_of_keys(logs: LogStore, stream: str) -> dict[str, str]:
    """The last total of each key, and its time."""
    log = logs.log(stream, Any)
    of_all = (record for place in log.partitions for record in log.records(place.index))
    last: dict[str, Any] = {}
    for record in of_all:
        if record.time_us >= last.get(record.key, (0,))[0]:
            last[record.key] = record.time_us, repr(record.value)
    return last


def totals_of(some: list[Row]) -> dict[str, dict[str, Any]]:
    """The last totals by the definition, of numbers that can all be added."""
    values: dict[str, list[int]] = defaultdict(list)
    times: dict[str, int] = {}
    for key, value, at in some:
        values[str(key)].append(value)
        times[str(key)] = at
    folds: dict[str, Any] = {
        "counts": len, "sums": sum, "least": min, "most": max, "doubled": lambda held: 2 * sum(held),
        "best": lambda held: sorted(held)[-3:],
    }  # fmt: skip
    return {name: {key: (times[key], repr(fold(held))) for key, held in values.items()} for name, fold in folds.items()}


class TestManyTotals:
    @pytest.mark.parametrize("odd", [False, True], ids=["whole numbers", "odd ones"])
    @pytest.mark.parametrize("order", ["ssss", "slsl", "llss"], ids=["stays", "to and fro", "to spark"])
    def test_totals_are_those_of_the_definition(self, logs: LogStore, runner: Run, order: str, odd: bool) -> None:
        """Every leg has a new runner. Odd numbers come to what one runner makes of them, record by record."""
        makers: Iterator[Run] = (runner if letter == "s" else local(logs) for letter in order)
        some: list[Row] = []
        for number, make in enumerate(makers):
            some += (more := numbers_of(number, odd=odd and number > 1))
            fill(logs, "in", more, partitions=3)
            running = make(totals(), checkpoint_records=700).start()
            assert running.drain("150s", final=number == LEGS - 1), told(running)
        found = {name: last_of_keys(logs, name) for name in TOTALS}
        assert found == (one_by_one(some) if odd else totals_of(some))
        assert len(found["counts"]) > len(KEYS) + 400


def one_by_one(some: list[Row]) -> dict[str, dict[str, Any]]:
    """The last totals of a runner that folds nothing."""
    with pytest.MonkeyPatch.context() as patch, penstock.open_logs(f"memory://{new_id()}") as logs:
        patch.setattr(task_module, "fold_of", lambda computation, codec: None)
        fill(logs, "in", some, partitions=3)
        running = local(logs)(totals()).start()
        assert running.drain("150s"), told(running)
        return {name: last_of_keys(logs, name) for name in TOTALS}

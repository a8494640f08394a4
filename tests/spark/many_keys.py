"""Windows of many keys, on changing runners: what the definition says, whoever closes them, and in which batches."""

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.stream.shorthand import Row, Run, fill, rows, told
from tests.spark.changing import local

from penstock import LogStore
from penstock.stream import (
    Sliding,
    Topology,
    Tumbling,
    Windowed,
    chain,
    map_values,
    windowed_count,
    windowed_fold,
    windowed_max,
    windowed_sum,
)
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

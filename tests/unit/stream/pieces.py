"""A topology of many ready-made pieces, which other processes import by name, and random records for it."""

from __future__ import annotations

import random
from typing import Any

from tests.contract.stream.shorthand import Row, fill, records

from penstock.log.store import LogStore
from penstock.stream import (
    Map,
    Session,
    SideOutput,
    Sliding,
    Topology,
    Tumbling,
    chain,
    computation,
    filter_values,
    join,
    map_values,
    regular_join,
    rekey,
    table_join,
    window_join,
    windowed_count,
    windowed_sum,
    windowed_top,
)

SECOND = 1_000_000
PARTITIONS = 3
OUTPUTS = (
    "by-number", "large", "odd", "intervals", "windows", "sessions", "named", "pairs", "busy", "top", "checked",
)  # fmt: skip
CHANGING = "updated"  # its results come again; the last one of a window counts


@computation("check", inputs=("in", "rules"), broadcast="rules", outputs="checked", states=[Map("m", int, keyed=False)])
def check(record: Any, ctx: Any) -> None:
    if ctx.stream == "rules":
        ctx.map("m").set(ctx.key, record.value)
    else:
        ctx.produce("checked", [record.value, ctx.map("m").get(record.value % 4)])


def number(value: int) -> Any:
    return value * 2 if value % 5 else SideOutput("odd", value)


def topology() -> Topology:
    made = Topology("pieces", partitions=PARTITIONS).stream("in", int, out_of_order="4s")
    made.stream("other", int, out_of_order="4s").stream("rules", int, partitions=2).stream("counts")
    for name in (*OUTPUTS, CHANGING):
        made.stream(name)
    made.add(
        chain(
            "split",
            map_values("number", number, "in", "doubled", side_outputs="odd"),
            filter_values("sizes", lambda value: value < 100, "doubled", "small", otherwise="large"),
            rekey("by-number", lambda value: value % 7, "small", "by-number"),
        )
    )
    made.add(join("interval", "in", "other", "intervals", before="1s", after="3s", how="outer"))
    made.add(window_join("window", "in", "other", "windows", Sliding("6s", "3s"), how="left"))
    made.add(window_join("session", "in", "other", "sessions", Session("2s"), how="right"))
    made.add(table_join("table", "in", "other", "named", how="left"))
    made.add(regular_join("regular", "odd", "large", "pairs", key=lambda left, right: left))
    made.add(
        windowed_count(
            "count", "in", "counts", Tumbling("10s"), key=lambda _: True, result=lambda one: [one.value, one.key]
        )
    )
    made.add(windowed_top("top-of", "counts", "top", Tumbling("10s"), 2, by=lambda pair: pair[0], ties="keep"))
    made.add(windowed_sum("sum", "by-number", "busy", Session("4s")))
    made.add(windowed_count("update", "in", CHANGING, Tumbling("5s"), allowed_lateness="30s"))
    return made.add(check)


def legs(seed: int, count: int = 3) -> list[dict[str, list[Row]]]:
    """Records of each leg; the rules come before all others."""
    chance = random.Random(seed)

    def some(first: int) -> list[Row]:
        times = sorted(first + chance.randrange(20 * SECOND) for _ in range(60))
        return [(f"k{chance.randrange(6)}", chance.randrange(90), at - chance.randrange(3 * SECOND)) for at in times]

    rules: dict[str, list[Row]] = {"rules": [(f"json:{rank}", 100 + rank, 1) for rank in range(4)]}
    starts = [(10 + 20 * leg) * SECOND for leg in range(count)]
    return [rules, *({"in": some(at), "other": some(at)} for at in starts)]


def put(logs: LogStore, leg: dict[str, list[Row]]) -> None:
    for stream, partitions in (("in", PARTITIONS), ("other", PARTITIONS), ("rules", 2)):
        fill(logs, stream, leg.get(stream, []), partitions=partitions)


def results(logs: LogStore) -> dict[str, Any]:
    """What came of it, without an order."""
    found: dict[str, Any] = {
        name: sorted((repr(one.key), repr(one.value), one.time_us) for one in records(logs, name)) for name in OUTPUTS
    }
    found[CHANGING] = {(one.key, one.value["start"]): one.value["value"] for one in records(logs, CHANGING)}
    return found

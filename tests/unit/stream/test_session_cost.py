"""Sessions come to what their definition says, and a record looks at those it can touch, not at all that are open."""

from __future__ import annotations

import random
from typing import Any

import pytest

import penstock
from penstock.codec import JsonCodec
from penstock.ids import new_id
from penstock.stream import LocalRunner, Session, Topology, windowed_fold

SECOND = 1_000_000
GAP = 10


def gathering(name: str = "visits", **options: Any) -> windowed_fold:
    """Sessions with everything that was in them, in the order in which it came."""
    return windowed_fold(
        name, "in", "out", Session(f"{GAP}s"), initial=[], fold=lambda held, value: [*held, value],
        merge=lambda earlier, later: [*earlier, *later], late="late", **options,
    )  # fmt: skip


def topology(piece: windowed_fold, out_of_order: str) -> Topology:
    streams = (
        Topology("sessions", partitions=1)
        .stream("in", int, out_of_order=out_of_order)
        .stream("out")
        .stream("late", int)
    )
    return streams.add(piece)


def append(logs: Any, times: list[int], first: int = 0) -> None:
    with logs.appender("in", int) as out:
        for number, time in enumerate(times, first):
            out.append(number, key="hot", timestamp=time * SECOND)


def drain(logs: Any, piece: windowed_fold, *, final: bool, out_of_order: str = "0s") -> None:
    assert LocalRunner(topology(piece, out_of_order), logs, checkpoint_records=7).start().drain("30s", final=final)


def sessions(logs: Any) -> list[tuple[int, int, list[int]]]:
    """Start and end in seconds, and what is in it, in the order of the results."""
    values = [record.value for record in logs.log("out").records(0)]
    return [(value["start"] // SECOND, value["end"] // SECOND, value["value"]) for value in values]


def expected(times: list[int]) -> list[tuple[int, int, list[int]]]:
    """By the definition: a session goes on as long as the next record comes at most the gap after the last."""
    found: list[tuple[int, int, list[int]]] = []
    for number in sorted(range(len(times)), key=times.__getitem__):
        time = times[number]
        if found and time <= found[-1][1]:
            start, _, numbers = found.pop()
            found.append((start, time + GAP, sorted([*numbers, number])))
        else:
            found.append((time, time + GAP, [number]))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_sessions_are_those_of_the_definition(seed: int) -> None:
    """Out of order, before and after 1970, over restarts, with sessions that grow together."""
    chance = random.Random(seed)
    times = [chance.randrange(-600, 600) for _ in range(chance.choice([20, 60, 120]))]
    with penstock.open_logs(f"memory://{new_id()}") as logs:
        logs.create("in", 1)
        middle = len(times) // 2
        append(logs, times[:middle])
        drain(logs, gathering(), final=False, out_of_order="1h")
        append(logs, times[middle:], middle)
        drain(logs, gathering(), final=True, out_of_order="1h")
        results = [(start, end, sorted(numbers)) for start, end, numbers in sessions(logs)]
        assert results == expected(times)
        assert list(logs.log("late", int).records(0)) == []


@pytest.mark.parametrize("base", [-1000, -5, 0, 1000])
def test_one_record_joins_the_sessions_on_both_sides(base: int) -> None:
    """The record goes into the earlier one; the later one is put behind it."""
    with penstock.open_logs(f"memory://{new_id()}") as logs:
        logs.create("in", 1)
        append(logs, [base + 12, base, base + 6, base + 100])
        drain(logs, gathering(), final=True, out_of_order="1h")
        assert sessions(logs) == [(base, base + 22, [1, 2, 0]), (base + 100, base + 110, [3])]


def test_a_record_exactly_the_gap_later_belongs_to_the_session() -> None:
    """As in Flink, Spark and Kafka Streams; a microsecond later another one begins."""
    with penstock.open_logs(f"memory://{new_id()}") as logs:
        logs.create("in", 1)
        append(logs, [0, 10, -10, 19])
        with logs.appender("in", int) as out:
            out.append(4, key="hot", timestamp=29 * SECOND + 1)
        drain(logs, gathering(), final=True, out_of_order="1h")
        assert sessions(logs) == [(-10, 29, [0, 1, 2, 3]), (29, 39, [4])]


def test_a_session_is_open_as_long_as_a_record_at_its_end_can_come_in_time() -> None:
    with penstock.open_logs(f"memory://{new_id()}") as logs:
        logs.create("in", 1)
        append(logs, [0])
        with logs.appender("in", int) as out:
            out.append(1, key="other", timestamp=10 * SECOND)
        drain(logs, gathering(), final=False)  # the watermark is at the very end of the session
        append(logs, [10], 2)
        drain(logs, gathering(), final=True)
        assert sessions(logs) == [(0, 20, [0, 2]), (10, 20, [1])]


def test_a_late_record_finds_an_open_session_or_none() -> None:
    """What reaches into a session that is open belongs to it, however old; what is on its own is late."""
    with penstock.open_logs(f"memory://{new_id()}") as logs:
        logs.create("in", 1)
        append(logs, [-100, -50, 0, 5, 14])
        drain(logs, gathering(), final=False)  # event time is at 14 now; the session from 0 to 24 is open
        append(logs, [-4, -60, -7, 3], 5)
        drain(logs, gathering(), final=True)
        assert sessions(logs) == [(-100, -90, [0]), (-50, -40, [1]), (-7, 24, [2, 3, 4, 5, 7, 8])]
        assert [record.value for record in logs.log("late", int).records(0)] == [6]


def decodes_of_one_more_record(open_sessions: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many values are decoded for a record that joins two of so many open sessions of its key."""
    with penstock.open_logs(f"memory://{new_id()}") as logs:
        logs.create("in", 1)
        append(logs, [15 * number for number in range(open_sessions)])
        drain(logs, gathering(), final=False, out_of_order="10d")
        append(logs, [15 * 50 + 8], open_sessions)
        decodes = 0
        decode = JsonCodec.decode

        def counted(self: Any, payload: bytes) -> Any:
            nonlocal decodes
            decodes += 1
            return decode(self, payload)

        with monkeypatch.context() as patched:
            patched.setattr(JsonCodec, "decode", counted)
            drain(logs, gathering(), final=False, out_of_order="10d")
        drain(logs, gathering(), final=True, out_of_order="10d")
        assert (15 * 50, 15 * 51 + GAP, [50, open_sessions, 51]) in sessions(logs)
        assert len(sessions(logs)) == open_sessions - 1
        return decodes


def test_sessions_far_away_in_time_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decodes_of_one_more_record(800, monkeypatch) == decodes_of_one_more_record(100, monkeypatch)

"""Windows that end are closed for all keys at once, and one by one where one of them fails: to the same results."""

import random
from typing import Any

import pytest
from tests.contract.stream.shorthand import Row, fill, payloads, told, values
from tests.unit.stream.stored import stored

import penstock
from penstock.errors import SchemaMismatch
from penstock.ids import new_id
from penstock.log.store import LogStore
from penstock.stream import (
    CONTINUE,
    LocalRunner,
    SideOutput,
    Sliding,
    Topology,
    Tumbling,
    chain,
    map_values,
    windowed_count,
    windowed_fold,
    windowed_sum,
    windowed_top,
)
from penstock.stream.engine import task as task_module
from penstock.stream.engine.changelog import state_log
from penstock.stream.engine.task import Task

SECOND = 1_000_000
BAD = "k13"


def fails(window: Any) -> Any:
    if window.key == BAD:
        raise ValueError("not this one")
    return [window.key, window.value]


def side(window: Any) -> Any:
    return SideOutput("odd", window.value) if window.value % 2 else window


PIECES: dict[str, Any] = {
    "plain": lambda: windowed_count("w", "in", "out", Tumbling("10s")),
    "sliding": lambda: windowed_sum("w", "in", "out", Sliding("9s", "3s")),
    "failing": lambda: windowed_count("w", "in", "out", Tumbling("10s"), result=fails),
    "keyless": lambda: windowed_count("w", "in", "out", Tumbling("10s"), key=lambda window: None),
    "side": lambda: windowed_count("w", "in", "out", Tumbling("10s"), result=side, side_outputs="odd"),
    "top": lambda: windowed_top("w", "in", "out", Tumbling("10s"), 2),
    "fold": lambda: windowed_fold("w", "in", "out", Tumbling("10s"), initial=[], fold=lambda held, one: [*held, one]),
    "wrong": lambda: windowed_fold("w", "in", "out", Tumbling("10s"), initial=0, fold=lambda held, one: held + one,
                                   result=lambda window: {1} if window.key == BAD else window),
    "chain": lambda: chain("w", map_values("m", abs, "in", "a"), windowed_sum("s", "a", "out", Tumbling("5s"))),
}  # fmt: skip


def some(seed: int) -> list[Row]:
    chance = random.Random(seed)
    keys = ["", "json:1", "ä", *(f"k{number}" for number in range(40))]
    return [(chance.choice(keys), chance.randrange(100), seed * 40 * SECOND + at * SECOND // 20) for at in range(600)]


def run(logs: LogStore, made: Topology, *, final: bool) -> None:
    runner = LocalRunner(made, logs, checkpoint_records=200, checkpoint_every="1h").start()
    assert runner.drain("60s", final=final), told(runner)


def topology(piece: Any) -> Topology:
    made = Topology("closing", partitions=2).stream("in", int, out_of_order="2s").stream("out").stream("odd")
    return made.add(piece, policy=CONTINUE)


def results(piece: str) -> list[Any]:
    """What is in the logs in between and at the end, and what is kept."""
    found: list[Any] = []
    with penstock.open_logs(f"memory://{new_id()}") as logs:
        for seed in range(3):
            fill(logs, "in", some(seed), partitions=2)
            run(logs, topology(PIECES[piece]()), final=seed == 2)
            for log in ("out", "odd", "w.dead"):
                found.append([
                    [(one.key, one.time_us, one.payload) for batch in logs.batches(place) for one in batch.records()]
                    for place in (logs.partitions(log) if logs.exists(log) else ())
                ])  # fmt: skip
            places = logs.partitions(state_log("w"))
            found += [stored(one for batch in logs.batches(place) for one in batch.payloads()) for place in places]
    return found


@pytest.mark.parametrize("piece", PIECES)
def test_together_and_one_by_one_are_the_same(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    together = results(piece)
    with monkeypatch.context() as patch:
        patch.setattr(task_module, "closing_step", lambda computation: None)
        single = results(piece)
    for some_, others in zip(together, single, strict=True):
        assert some_ == others
    assert sum(map(len, together[0])) > 20
    assert together[-2:] == [{}, {}], "every window has closed, also those that failed"


@pytest.mark.parametrize("piece", ["failing", "wrong"])
def test_only_the_window_that_fails_is_a_dead_letter(piece: str) -> None:
    with penstock.open_logs(f"memory://{new_id()}") as logs:
        fill(logs, "in", some(1), partitions=2)
        run(logs, topology(PIECES[piece]()), final=True)
        assert payloads(logs, "w.dead") == [b"null"] * 3
        assert len(payloads(logs, "out")) > 100


def test_closing_together_really_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    close_windows = Task.close_windows

    def watched(self: Task) -> int:
        closed.append(close_windows(self))
        return closed[-1]

    def called(self: Task, timer: Any) -> None:
        raise AssertionError("one by one")

    monkeypatch.setattr(Task, "close_windows", watched)
    monkeypatch.setattr(Task, "call", called)
    results("plain")
    assert sum(closed) > 300


def test_windows_that_get_allowed_lateness_do_not_take_over_the_state() -> None:
    with penstock.open_logs(f"memory://{new_id()}") as logs:
        fill(logs, "in", some(1), partitions=2)
        run(logs, topology(windowed_count("w", "in", "out", Tumbling("10s"))), final=False)
        patient = windowed_count("w", "in", "out", Tumbling("10s"), allowed_lateness="1m")
        with pytest.raises(SchemaMismatch, match=r"kept as windows of .* declared as map of"):
            LocalRunner(topology(patient), logs).start()


def test_windows_of_another_size_close_beside_those_of_before() -> None:
    with penstock.open_logs(f"memory://{new_id()}") as logs:
        fill(logs, "in", [("a", 1, 1), ("a", 1, 2)])
        run(logs, topology(windowed_count("w", "in", "out", Tumbling("10s"))), final=False)
        fill(logs, "in", [("a", 1, 3)])
        run(logs, topology(windowed_count("w", "in", "out", Tumbling("5s"))), final=True)
        found = values(logs, "out")
    assert [(one["start"], one["end"], one["value"]) for one in found] == [
        (0, 5 * SECOND, 1), (0, 10 * SECOND, 2),
    ]  # fmt: skip

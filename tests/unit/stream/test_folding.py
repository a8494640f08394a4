"""Windows that fold a batch before they touch the state: the same as record by record, and as the definition says."""

import random
from collections import Counter, defaultdict
from typing import Any

import msgspec
import pytest
from tests.contract.stream.shorthand import told
from tests.unit.stream.stored import stored

import penstock
from penstock.ids import new_id
from penstock.log.store import LogStore
from penstock.stream import (
    CONTINUE,
    LocalRunner,
    Session,
    Sliding,
    Topology,
    Tumbling,
    Value,
    running_count,
    running_max,
    running_min,
    running_sum,
    windowed_count,
    windowed_max,
    windowed_min,
    windowed_sum,
)
from penstock.stream.engine import folding
from penstock.stream.engine import task as task_module
from penstock.stream.engine.changelog import state_log
from penstock.stream.engine.state_store import Cell
from penstock.stream.engine.value_cell import ValueCell

SECOND = 1_000_000
WINDOWS = {
    "tumbling": Tumbling("10s"), "sliding": Sliding("10s", "2s"), "uneven": Sliding("10s", "3s"),
    "sampling": Sliding("2s", "5s"), "session": Session("3s"),
}  # fmt: skip
FOLDS: dict[str, Any] = {"count": windowed_count, "sum": windowed_sum, "min": windowed_min, "max": windowed_max}
Row = tuple[str | bytes | None, int, bytes]


def field(value: Any) -> Any:
    """Takes numbers out of objects, and raises for some."""
    return value["n"] if isinstance(value, dict) else value


def payload(random_: random.Random, style: str) -> bytes:
    number: Any = random_.choice([0, 1, -1, random_.randrange(-50, 50), random_.randrange(-(1 << 40), 1 << 40)])
    if style == "floats" and random_.random() < 0.5:
        number = random_.choice([0.1, 0.2, 1e300, -1e300, -0.0, 0.0, 2.0, 1e-300])
    elif style == "odd" and random_.random() < 0.15:
        number = random_.choice([True, False, None, 1 << 63, -(1 << 62), "text", [1], {"n": 3}, {"m": 3}, 1.0])
    elif style == "bad" and random_.random() < 0.1:
        return random_.choice([b"", b"{", b"[1,", b"\xff", b"1 2"])
    return msgspec.json.encode(number)


def rows(seed: int, style: str, count: int, *, after: int = 0) -> list[Row]:
    """Records mostly in order, some out of order, some very late, with and without keys."""
    random_ = random.Random(seed)
    made: list[Row] = []
    now = after
    for _ in range(count):
        now += random_.choice([0, 1, SECOND // 2, SECOND, 3 * SECOND, random_.randrange(4 * SECOND)])
        at = now - SECOND * random_.choice([0, 0, 0, 1, 5, random_.choice([0, 0, 0, 0, 9, 11, 60])])
        made.append((random_.choice(["a", "b", "c", "", None, "ü"]), at, payload(random_, style)))
    return made


def fill(logs: LogStore, some: list[Row]) -> None:
    """In frames of many sizes."""
    logs.create("in", 1)
    random_ = random.Random(len(some))
    with logs.appender("in", bytes) as out:
        while some:
            part, some = some[: (size := random_.choice([1, 3, 20, 50]))], some[size:]
            out.append_many(
                [value for *_, value in part], keys=[key for key, *_ in part], timestamps=[at for _, at, _ in part]
            )


def topology(fold: str, window: str, **options: Any) -> Topology:
    of = {} if fold == "count" else {"of": field}
    made = FOLDS[fold]("fold", "in", "out", WINDOWS[window], late="late", **of, **options)
    return Topology("folding").stream("in", out_of_order="1s").stream("out").stream("late").add(made, policy=CONTINUE)


def run(logs: LogStore, made: Topology, *, final: bool) -> None:
    """With checkpoints after so many records, never by time: two runs make the same ones."""
    runner = LocalRunner(made, logs, checkpoint_records=40, checkpoint_every="1h").start()
    assert runner.drain("60s", final=final), told(runner)


def results(made: Topology, seed: int, style: str) -> tuple[dict[str, Any], dict[Any, Any]]:
    """What is in the logs after two runs, and in the state between them."""
    with penstock.open_logs(f"memory://{new_id()}") as logs:
        first = rows(seed, style, 150)
        fill(logs, first)
        run(logs, made, final=False)
        kept = state(logs)
        fill(logs, rows(seed + 1, style, 150, after=max(at for _, at, _ in first)))
        run(logs, made, final=True)
        found = {
            log: [
                (record.key, record.time_us, dict(record.headers), record.payload)
                for record in logs.log(log, bytes).records(0)
            ]
            for log in ("out", "late", "fold.dead")
        }
    return found, kept


def state(logs: LogStore) -> dict[Any, Any]:
    batches = logs.batches(logs.partitions(state_log("fold"))[0])
    return stored(payload for batch in batches for payload in batch.payloads())


CASES = [
    *((fold, window) for fold in ("count", "sum", "min") for window in ("tumbling", "sliding", "session")),
    ("max", "session"), ("sum", "uneven"), ("sum", "sampling"),
]  # fmt: skip


TOTALS: dict[str, Any] = {"count": running_count, "sum": running_sum, "min": running_min, "max": running_max}


@pytest.mark.parametrize("style", ["ints", "floats", "odd", "bad"])
@pytest.mark.parametrize("fold", TOTALS)
def test_totals_come_to_the_same(fold: str, style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last total of each key, its time, the state and the dead letters; fewer totals come on the way."""
    of = {} if fold == "count" else {"of": field}
    made = Topology("folding").stream("in").stream("out").stream("late")
    made.add(TOTALS[fold]("fold", "in", "out", **of), policy=CONTINUE)
    seed = hash_of(fold, "totals", style)
    folded, kept = results(made, seed, style)
    with monkeypatch.context() as patch:
        patch.setattr(task_module, "fold_of", lambda computation, codec: None)
        plain, state_kept = results(made, seed, style)
    assert kept == state_kept
    assert last_of_keys(folded["out"]) == last_of_keys(plain["out"])
    assert sorted(folded["fold.dead"], key=repr) == sorted(plain["fold.dead"], key=repr)
    assert 3 <= len(folded["out"]) <= len(plain["out"])


@pytest.mark.parametrize("style", ["ints", "odd"])
@pytest.mark.parametrize("fold", TOTALS)
def test_totals_go_on_from_what_older_versions_wrote(fold: str, style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """These wrote an entry for each key. What goes on from there is the same as if all was in blocks."""
    of = {} if fold == "count" else {"of": field}
    made = Topology("folding").stream("in").stream("out").stream("late")
    made.add(TOTALS[fold]("fold", "in", "out", **of), policy=CONTINUE)
    found = []
    for is_old in (True, False):
        with penstock.open_logs(f"memory://{new_id()}") as logs:
            for leg in range(3):
                fill(logs, rows(leg, style, 150, after=leg * 1000 * SECOND))
                with monkeypatch.context() as patch:
                    if is_old and leg == 0:
                        patch.setattr(ValueCell, "changes", Cell.changes)
                        patch.setattr(Value, "written", Value.shape)
                    run(logs, made, final=False)
                if is_old and leg == 0:
                    assert all(payload.startswith(b"-") or payload[:1].isdigit() for payload, _ in state(logs).values())
            found.append([(record.key, record.time_us, record.payload) for record in logs.log("out", bytes).records(0)])
    assert found[0] == found[1]
    assert len(found[0]) >= 15


def last_of_keys(results_of_log: list[Any]) -> dict[str, Any]:
    """No key and an empty one have the same total."""
    return {row[0] or "": row for row in results_of_log}


@pytest.mark.parametrize("style", ["ints", "floats", "odd", "bad"])
@pytest.mark.parametrize(("fold", "window"), CASES)
def test_folded_and_one_by_one_are_the_same(
    fold: str, window: str, style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = hash_of(fold, window, style)
    folded = results(topology(fold, window), seed, style)
    with monkeypatch.context() as patch:
        patch.setattr(task_module, "fold_of", lambda computation, codec: None)
        plain = results(topology(fold, window), seed, style)
    assert folded == plain
    assert folded[0]["out"]


def hash_of(*texts: str) -> int:
    return sum(ord(letter) * (rank + 1) for rank, letter in enumerate("".join(texts)))


def test_folding_really_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: Counter[bool] = Counter()
    for kind in (folding.WindowFold, folding.SessionFold):
        take = kind.take

        def watched(self: Any, batch: Any, low: int, take: Any = take) -> bool:
            taken[done := take(self, batch, low)] += 1
            return bool(done)

        monkeypatch.setattr(kind, "take", watched)
    results(topology("sum", "sliding"), 1, "ints")
    results(topology("sum", "session"), 1, "ints")
    assert taken[True]
    assert taken[False], "late records are looked at one by one"


@pytest.mark.parametrize("seed", range(5))
def test_counts_are_those_of_the_definition(seed: int) -> None:
    """In order and to the end, so nothing is late: a count for every key and window that has records."""
    random_ = random.Random(seed)
    times = sorted(random_.randrange(100 * SECOND) for _ in range(500))
    some = [(random_.choice("abc"), at, b"1") for at in times]
    expected: Counter[tuple[str, int]] = Counter()
    for key, at, _ in some:
        for start in range(at - at % (2 * SECOND) - 8 * SECOND, at + 1, 2 * SECOND):
            expected[key, start] += start <= at < start + 10 * SECOND
    with penstock.open_logs(f"memory://{new_id()}") as logs:
        fill(logs, some)
        run(logs, topology("count", "sliding"), final=True)
        found = [record.value for record in logs.log("out").records(0)]
    assert {(one["key"], one["start"]): one["value"] for one in found} == expected


@pytest.mark.parametrize("seed", range(5))
def test_sessions_are_those_of_the_definition(seed: int) -> None:
    """Records of a key that are at most a gap apart belong together."""
    random_ = random.Random(seed)
    some = [(random_.choice("abc"), random_.randrange(300 * SECOND), b"1") for _ in range(150)]
    by_key: dict[str, list[int]] = defaultdict(list)
    for key, at, _ in some:
        by_key[key].append(at)
    expected = set()
    for key, times in by_key.items():
        session = [min(times)]
        for at in [*sorted(times)[1:], 1 << 60]:
            if at - session[-1] > 3 * SECOND:
                expected.add((key, session[0], session[-1] + 3 * SECOND, len(session)))
                session = []
            session.append(at)
    made = windowed_count("fold", "in", "out", WINDOWS["session"])
    everything = Topology("sessions").stream("in", out_of_order="1h").stream("out").add(made)
    with penstock.open_logs(f"memory://{new_id()}") as logs:
        fill(logs, some)
        run(logs, everything, final=True)
        found = [record.value for record in logs.log("out").records(0)]
    assert {(one["key"], one["start"], one["end"], one["value"]) for one in found} == expected
    assert len(found) == len(expected)


def test_sums_of_floats_are_folded_where_they_may_be_approximate() -> None:
    some = [("k", number * 1000, msgspec.json.encode(number / 7)) for number in range(400)]
    made = {}
    for approx in (False, True):
        with penstock.open_logs(f"memory://{new_id()}") as logs:
            fill(logs, some)
            run(logs, topology("sum", "tumbling", approx=approx), final=True)
            [record] = logs.log("out").records(0)
            made[approx] = record.value["value"]
    exact = 0.0
    for number in range(400):
        exact += number / 7
    assert made[False] == exact
    assert made[True] == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("made", [running_count("fold", "in", "out"), running_sum("fold", "in", "out", of=field)])
def test_totals_touch_a_key_once_and_come_to_the_same(made: Any) -> None:
    some = [(key, at, value) for key, at, value in rows(3, "ints", 300) if key]
    expected: Counter[Any] = Counter()
    for key, _, value in some:
        expected[key] += 1 if folding.aggregate_of(made) == "count" else int(value)
    with penstock.open_logs(f"memory://{new_id()}") as logs:
        fill(logs, some)
        run(logs, Topology("totals").stream("in").stream("out").add(made), final=True)
        found = {record.key: record.value for record in logs.log("out").records(0)}
    assert found == expected

"""The judge is judged: every planted bug must be found, and a clean run must not be accused."""

import signal
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from tests.crash import mutants, scenes
from tests.crash.checker import Dump, check
from tests.crash.driver import Child, Strike
from tests.crash.judging import dump_of
from tests.crash.recorder import read_events
from tests.crash.scenes import Stage

pytestmark = pytest.mark.crash

Start = Callable[..., Child]


def rules_broken(folder: Path, *, drained: bool = False) -> set[str]:
    found = check(read_events(folder), dump_of(folder), drained=drained)
    return {violation.rule for violation in found}


# --- bugs planted in a running store ---------------------------------------------------------------------------------


def test_an_early_acknowledgement_is_found(folder: Path, start: Start) -> None:
    Stage(folder).store.close()
    start(mutants.mutated, "acknowledge_early", mutants.put_ten, folder).was_killed()
    assert rules_broken(folder) == {"Q1"}


def test_an_outcome_without_token_check_is_found(folder: Path, start: Start) -> None:
    stage = Stage(folder)
    stage.queue("jobs").put(1)
    asleep = Strike("handler.after", signal=signal.SIGSTOP)
    zombie = start(mutants.mutated, "no_token_check", scenes.handle_one, folder, strike=asleep)
    zombie.wait_stopped()
    stage.advance("61s")
    other = start(scenes.handle_one, folder, strike=asleep)
    other.wait_stopped()
    zombie.go_on()
    zombie.ended_well()
    other.go_on()
    other.ended_well()
    assert "Q5" in rules_broken(folder)
    stage.store.close()


def test_a_unit_in_two_transactions_is_found(folder: Path, start: Start) -> None:
    stage = Stage(folder)
    stage.queue("jobs").put_many(range(2))
    start(mutants.mutated, "unit_in_two_transactions", scenes.commit_unit, folder).was_killed()
    assert "Q7" in rules_broken(folder)
    stage.store.close()


def test_a_finish_in_two_transactions_is_found(folder: Path, start: Start) -> None:
    stage = Stage(folder)
    stage.queue("jobs").put(1)
    start(mutants.mutated, "finish_in_two_transactions", scenes.handle_one, folder).was_killed()
    assert {"Q1", "Q13"} <= rules_broken(folder)
    stage.store.close()


def test_an_attempt_that_is_not_counted_at_the_claim_is_found(folder: Path, start: Start) -> None:
    stage = Stage(folder)
    stage.queue("jobs").put(50)
    for _ in range(3):
        start(mutants.mutated, "attempt_not_counted_at_claim", scenes.poison, folder, 2).was_killed()
        stage.advance("61s")
    assert "Q8" in rules_broken(folder)
    stage.store.close()


def test_a_fence_that_does_not_rise_is_found(folder: Path, start: Start) -> None:
    stage = Stage(folder)
    stage.queue("jobs").put(50)
    for _ in range(2):
        start(mutants.mutated, "fence_used_again", scenes.poison, folder, 5).was_killed()
        stage.advance("61s")
    assert "Q6" in rules_broken(folder)
    stage.store.close()


def test_a_second_lease_beside_the_first_is_found(folder: Path, start: Start) -> None:
    stage = Stage(folder)
    stage.queue("jobs").put(1)
    start(mutants.mutated, "leased_handed_out", mutants.claim_twice, folder).ended_well()
    assert "Q4" in rules_broken(folder)
    stage.store.close()


def test_a_claim_before_the_due_time_is_found(folder: Path, start: Start) -> None:
    stage = Stage(folder)
    stage.queue("jobs").put(1, delay="30m")
    start(mutants.mutated, "claimed_early", scenes.handle_one, folder).ended_well()
    assert "Q9" in rules_broken(folder)
    stage.store.close()


def test_every_bug_is_in_a_test() -> None:
    text = Path(__file__).read_text("utf-8")
    assert [name for name in mutants.BUGS if f'"{name}"' not in text] == []


# --- damage done to a clean record -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Dump]:
    """A short life without faults: a retry, a success with puts, a dead letter, one entry still waiting."""
    folder = tmp_path_factory.mktemp("clean")
    stage = Stage(folder)
    scenes.cast(stage)
    stage.queue("orders").put(1, unique="one")
    stage.queue("flaky").put(2)
    stage.queue("doomed").put(3)
    for _ in range(4):
        stage.drain()
        stage.advance("2s")
    stage.queue("later").put(4)
    stage.store.close()
    return read_events(folder), dump_of(folder)


def one(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    return next(row for row in rows if all(row[key] == value for key, value in wanted.items()))


def forget(dump: Dump, queue: str) -> None:
    ids = {row["id"] for row in (*dump.live, *dump.history, *dump.dead) if row["queue"] == queue}
    for rows in (dump.live, dump.history, dump.dead):
        rows[:] = [row for row in rows if row["id"] not in ids]


DAMAGES: dict[str, tuple[str, Callable[[Dump], Any]]] = {
    "a waiting entry vanishes": ("Q1", lambda dump: forget(dump, "later")),
    "a done entry vanishes": ("Q1", lambda dump: forget(dump, "flaky")),
    "a dead letter vanishes": ("Q1", lambda dump: dump.dead.clear()),
    "a payload changes": ("Q1", lambda dump: dump.live[0].update(payload="00")),
    "the file is damaged": ("Q1", lambda dump: dump.damage.append("page 7 is never used")),
    "an ended entry lives on": (
        "Q1", lambda dump: dump.live.append({**dump.live[0], "id": one(dump.history, queue="orders")["id"]}),
    ),
    "a ghost waits": ("Q2", lambda dump: dump.live.append({**dump.live[0], "id": "ghost"})),
    "an entry ends twice": ("Q3", lambda dump: dump.history.append(dict(one(dump.history, state="done")))),
    "a lease is let go late": ("Q4", lambda dump: one(dump.history, state="retried").update(ended=2**60)),
    "an outcome has a foreign token": ("Q5", lambda dump: one(dump.history, queue="orders").update(token="9-x")),
    "fences fall": ("Q6", lambda dump: one(dump.history, state="retried").update(fence=99)),
    "a put of a step is missing": ("Q7", lambda dump: forget(dump, "invoices")),
    "an attempt is left out": ("Q13", lambda dump: one(dump.history, state="dead").update(attempt=7)),
    "an entry goes on after its end": (
        "Q13", lambda dump: one(dump.history, state="retried", queue="flaky").update(state="done"),
    ),
    "an end comes before the start": ("Q13", lambda dump: one(dump.history, state="done").update(started=2**60)),
    "a unique id is held by an ended entry": (
        "Q13", lambda dump: dump.holds.append({"id": dump.dead[0]["id"], "unique_key": "x", "until": None}),
    ),
}  # fmt: skip


def test_a_clean_record_is_not_accused(clean: tuple[list[dict[str, Any]], Dump]) -> None:
    assert check(clean[0], clean[1], drained=False) == []
    assert {violation.rule for violation in check(clean[0], clean[1], drained=True)} == {"Q10"}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found(damage: str, clean: tuple[list[dict[str, Any]], Dump]) -> None:
    rule, do = DAMAGES[damage]
    dump = deepcopy(clean[1])
    do(dump)
    assert rule in {violation.rule for violation in check(clean[0], dump, drained=False)}


def test_pruned_history_is_not_taken_for_a_loss(clean: tuple[list[dict[str, Any]], Dump]) -> None:
    events, whole = clean
    queues = frozenset(row["queue"] for row in (*whole.history, *whole.live))
    for pruned in range(len(whole.history) + 1):
        dump = deepcopy(whole)
        del dump.history[:pruned]
        assert check(events, dump, drained=False, forgotten=queues) == []


def test_what_nobody_has_ended_is_lost_also_where_history_is_pruned(clean: tuple[list[dict[str, Any]], Dump]) -> None:
    dump = deepcopy(clean[1])
    forget(dump, "later")
    broken = check(clean[0], dump, drained=False, forgotten=frozenset({"later"}))
    assert {violation.rule for violation in broken} == {"Q1"}


def test_a_refused_put_that_is_there_is_found(clean: tuple[list[dict[str, Any]], Dump]) -> None:
    events = deepcopy(clean[0])
    put = next(event for event in events if event["op"] == "step" and event["puts"] and event["phase"] == "invoke")
    answer = next(
        event for event in events
        if event["op"] == "step" and event["phase"] == "ok" and event["number"] == put["number"]
    )  # fmt: skip
    answer.update(phase="fail", error="StoreFull")
    assert "Q2" in {violation.rule for violation in check(events, clean[1], drained=False)}


def test_too_many_starts_are_found(clean: tuple[list[dict[str, Any]], Dump]) -> None:
    starts = [event for event in clean[0] if event["op"] == "start"]
    assert "Q8" in {violation.rule for violation in check([*clean[0], starts[0]], clean[1], drained=False)}

"""The parts of a breaker that need no store: statistics, configuration, advice, samples, masks."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Breaker, open_queues
from penstock.breaker import BreakerConfig, BreakerSettings
from penstock.breaker.advice import advise
from penstock.breaker.masking import masked
from penstock.breaker.samples import FULL, Samples, read_outcomes
from penstock.breaker.settings import Override, check_together, read_config
from penstock.breaker.statistics import Statistics
from penstock.errors import BadInput


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans(), st.integers(0, 3)), max_size=60),
    st.integers(1, 5),
    st.integers(0, 20),
)
def test_statistics_are_the_last_outcome_of_each_id(
    reports: list[tuple[str, bool, int]], most: int, window: int
) -> None:
    """Held against the plain meaning: of each id its last outcome; of each kind the newest, within the window."""
    statistics, plain, now = Statistics(), {}, 0
    order: list[str] = []
    for id_, ok, passed in reports:
        now += passed
        if ok and len(reports) % 2:
            statistics.add_successes([id_], now)
        else:
            statistics.add(id_, ok, now)
        statistics.trim(most)
        plain.pop(id_, None)
        plain[id_] = (ok, now)
        for kind in (True, False):
            mine = [one for one, (well, _) in plain.items() if well is kind]
            for old in mine[: max(0, len(mine) - most)]:
                del plain[old]
        order.append(id_)
    figures = statistics.count(now, window)
    counted = [ok for ok, at in plain.values() if at >= now - window]
    assert (figures.successes, figures.failures) == (counted.count(True), counted.count(False))
    total = figures.samples
    assert figures.ratio == (100 * figures.failures // total if figures.failures else 0)


def test_a_late_report_does_not_undo_a_later_one() -> None:
    statistics = Statistics()
    statistics.add("r", True, 10)
    statistics.add("r", False, 5)  # heard from another node
    assert (statistics.count(10, 100).successes, statistics.count(10, 100).failures) == (1, 0)
    statistics.add("r", False, 11)
    assert statistics.count(11, 100).failures == 1


def test_samples_fill_documents_and_remove_old_ones() -> None:
    samples = Samples("b.samples.w.h")
    chunks = []
    for number in range(10):
        chunk, notes = samples.take(
            (number, [f"{number}-{index}" for index in range(FULL)], []), 0, most=4 * FULL, oldest=-1
        )
        samples.give_back(chunk, 0)
        chunks.append([(note.name, note.value is None) for note in notes])
    assert [len(notes) for notes in chunks] == [1, 1, 1, 1, 1, 2, 2, 2, 2, 2]
    assert chunks[-1][0][0] == "b.samples.w.h.0.10"
    assert chunks[-1][1] == ("b.samples.w.h.0.5", True)
    small, notes = samples.take((99, ["a"], []), 1, most=4 * FULL, oldest=-1)
    samples.give_back(small, 1)
    again, notes = samples.take((100, [], ["b"]), 1, most=4 * FULL, oldest=-1)
    assert again is small
    assert read_outcomes(notes[0].value or b"") == [(99, ["a"], []), (100, [], ["b"])]


def test_two_at_once_write_two_documents() -> None:
    samples = Samples("b")
    one, _ = samples.take((1, ["a"], []), 0, most=100, oldest=-1)
    two, _ = samples.take((1, ["b"], []), 0, most=100, oldest=-1)
    assert one.name != two.name


def test_advice_is_the_seeds_example() -> None:
    found = advise(capacity=10_000, load=2_000, per_minute=600)
    resource = found.resource()
    assert (resource["entriesMaxAgeMS"], resource["maxQueueSampleCount"], resource["errorThresholdPercentage"]) == (
        300_000, 4000, 80,
    )  # fmt: skip
    assert 13 <= found.survival_minutes < 14
    assert advise(capacity=10_000, load=0, per_minute=1000).survival_minutes == 10


def test_advice_does_not_contradict_itself_where_time_is_short() -> None:
    found = advise(capacity=1000, load=900, per_minute=600)
    assert found.config.entries_max_age_ms / 60_000 < found.survival_minutes / 2
    assert found.why["entriesMaxAgeMS"].startswith("4 s: without a breaker the system lasts about 10 s")
    hopeless = advise(capacity=1000, load=999, per_minute=6000)
    assert "no window is short enough" in hopeless.why["entriesMaxAgeMS"]


def test_advice_can_always_be_stored() -> None:
    rng = random.Random(1)
    for _ in range(500):
        capacity = rng.randint(2, 100_000)
        found = advise(capacity=capacity, load=rng.randrange(capacity), per_minute=rng.uniform(0.1, 10_000))
        config = read_config(found.resource())
        assert check_together(config, BreakerSettings()) == []
        assert config.entries_max_age_ms >= 1000


@pytest.mark.parametrize(
    "wrong",
    [
        {"capacity": 0, "load": 0, "per_minute": 1}, {"capacity": 10, "load": 10, "per_minute": 1},
        {"capacity": 10, "load": 1, "per_minute": 0}, {"capacity": 10, "load": 1, "per_minute": float("nan")},
        {"capacity": 10, "load": 1, "per_minute": 1, "threshold": 0},
    ],
)  # fmt: skip
def test_advice_refuses_nonsense(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput):
        advise(**wrong)  # type: ignore[arg-type]


def test_settings_that_never_work_are_refused_or_told() -> None:
    for wrong in ({"probes": 0}, {"successes": 0}, {"permit_ms": 0}, {"statistics": "all"}, {"locking": "soon"}):
        with pytest.raises(BadInput):
            BreakerSettings(**wrong)
    for odd in ({"error_threshold_percentage": 101}, {"min_queue_sample_count": -1}, {"max_queue_sample_count": "9"}):
        with pytest.raises(BadInput):
            Override(**odd)  # type: ignore[arg-type]
    with open_queues("memory://") as store, pytest.raises(BadInput, match="dot"):
        Breaker(store, name="breaker.crm")
    settings = BreakerSettings(circuits={"crm": Override(max_queue_sample_count=5)})
    [said] = check_together(BreakerConfig(), settings)
    assert "crm" in said
    assert settings.applied_to("crm", BreakerConfig()).max_queue_sample_count == 5
    assert settings.applied_to("erp", BreakerConfig()).max_queue_sample_count == 5000


def test_secrets_are_masked() -> None:
    told = masked({"http://u:pw@crm/(.*)": [{"apiKey": "k", "n": 1}], "x": ("https://t0ken@h",)})
    assert "pw" not in str(told)
    assert "k'" not in str(told).replace("apiKey'", "")
    assert "t0ken" not in str(told)

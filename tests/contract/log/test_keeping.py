"""Keeping: retention by age, size and consumption."""

from __future__ import annotations

from typing import Any

import pytest
from tests.contract.log.shorthand import LogContract, needs

from penstock.clock import FakeClock
from penstock.errors import BadInput, Unsupported
from penstock.log.record import Partition
from penstock.log.settings import Retention
from penstock.log.store import LogStore


class TestRetention(LogContract):
    """What goes and what stays."""

    @pytest.fixture(autouse=True)
    def able(self, store: LogStore) -> None:
        """Only where Penstock does it."""
        needs(store, "retention")

    def _filled(self, store: LogStore, rule: Retention, rounds: int = 10) -> None:
        store.create("log", retention=rule, segment_bytes=4096)
        self._more(store, rounds)

    def _more(self, store: LogStore, rounds: int = 1) -> None:
        with store.appender("log", bytes) as out:
            for _ in range(rounds):
                out.append_many([b"x" * 500] * 10)

    def test_by_age(self, store: LogStore, clock: FakeClock) -> None:
        self._filled(store, Retention(age="1h"))
        assert store.enforce_retention("log") == []
        clock.advance("50m")
        self._more(store)
        clock.advance("20m")
        removed = store.enforce_retention("log")
        assert removed[0].reason == "age"
        assert 0 < store.bounds("log")[0].start <= 100
        assert store.bounds("log")[0].end == 110, "ends never move back"
        assert store.log("log", bytes).append(b"x").value == 110, "offsets are never used again"

    def test_an_idle_log_ages_too(self, store: LogStore, clock: FakeClock) -> None:
        self._filled(store, Retention(age="1h"))
        clock.advance("2d")
        store.enforce_retention()
        assert [(one.start, one.end) for one in store.bounds("log")] == [(100, 100)]
        assert store.log("log", bytes).append(b"x").value == 100

    def test_by_size(self, store: LogStore) -> None:
        self._filled(store, Retention(size=20_000))
        store.enforce_retention()
        bounds = store.bounds("log")[0]
        assert 0 < bounds.start < 100
        assert bounds.size <= 20_000 + 6_000, "at most a segment more"

    def test_what_a_group_needs_stays(self, store: LogStore, clock: FakeClock) -> None:
        self._filled(store, Retention(age="1h", keep_for=("billing",)))
        clock.advance("2h")
        self._more(store)
        assert store.enforce_retention() == []
        store.reset("billing", {Partition("log", 0): 55})
        store.reset("other", {Partition("log", 0): 99})
        store.enforce_retention()
        assert 0 < store.bounds("log")[0].start <= 55

    def test_unless_the_hard_size_is_passed(self, store: LogStore) -> None:
        self._filled(store, Retention(age=None, keep_for=("billing",), hard_size=30_000))
        assert store.enforce_retention()[0].reason == "hard_size"
        assert store.bounds("log")[0].start > 0

    def test_what_is_consumed_goes(self, store: LogStore) -> None:
        self._filled(store, Retention(age="1h", keep_for=("a", "b"), consumed=True))
        store.reset("a", {Partition("log", 0): 90})
        assert store.enforce_retention() == []
        store.reset("b", {Partition("log", 0): 60})
        store.enforce_retention()
        assert 0 < store.bounds("log")[0].start <= 60

    def test_a_dry_run_changes_nothing(self, store: LogStore, clock: FakeClock) -> None:
        self._filled(store, Retention(age="1h"))
        clock.advance("2h")
        would = store.enforce_retention(dry_run=True)
        assert store.bounds("log")[0].start == 0
        told: list[Any] = []
        store.signals.subscribe(told.append, "retained")
        assert store.enforce_retention() == would
        assert [one.data["offset"] for one in told] == [would[0].start]

    def test_appending_goes_on_around_it(self, store: LogStore, clock: FakeClock) -> None:
        self._filled(store, Retention(age="1h"))
        for _ in range(5):
            clock.advance("2h")
            self._more(store)
            store.enforce_retention("log")
            store.enforce_retention("log")
        bounds = store.bounds("log")[0]
        assert bounds.end == 150
        assert [record.offset for record in store.log("log", bytes).records(0)] == list(range(bounds.start, 150))

    def test_forever(self, store: LogStore, clock: FakeClock) -> None:
        self._filled(store, Retention(age=None))
        clock.advance(years=10)
        assert store.enforce_retention() == []


class TestRetentionElsewhere(LogContract):
    """Rules that make no sense, and stores whose server keeps."""

    def test_bad_rules(self) -> None:
        for rule in ({"size": 0}, {"hard_size": -1}, {"age": "soon"}, {"keep_for": "g"}, {"keep_for": ("a b",)}):
            with pytest.raises(BadInput):
                Retention(**rule)
        with pytest.raises(BadInput, match="names no group"):
            Retention(consumed=True)

    def test_others_say_so(self, store: LogStore) -> None:
        if store.capabilities.retention:
            pytest.skip("the store declares retention=True")
        with pytest.raises(Unsupported):
            store.enforce_retention()

"""Input: what is refused before anything is written, text of every kind, and spaces that share nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.contract.queue.shorthand import (
    SECOND,
    Contract,
    OpenStore,
    living,
    new,
    put,
    take_one,
    values,
)

from penstock.clock import FakeClock, to_micros
from penstock.errors import (
    BadInput,
    PayloadTooLarge,
    StoreUnavailable,
    UnitTooLarge,
)
from penstock.queue.protocol import Find
from penstock.queue.queues import QueueStore


class TestInput(Contract):
    """What a store or queue refuses, before anything is written."""

    def test_payload_over_the_limit(self, store: QueueStore) -> None:
        store.driver.payload_limit = 1000
        queue = store.queue("q")
        queue.put("x" * 998)
        for call in (
            lambda: queue.put("x" * 999),
            lambda: queue.put_many(["y", "x" * 999]),
            lambda: store.driver.put([new("q", "y"), new("q", "x" * 999)]),
            lambda: queue.update(queue.find()[0].id, "x" * 999),
        ):
            with pytest.raises(PayloadTooLarge, match=r"1,001 bytes .* 1,000"):
                call()
        assert values(queue.find()) == ["x" * 998]

    @pytest.mark.parametrize("far", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"])
    def test_times_outside_of_the_calendar(self, store: QueueStore, far: str) -> None:
        queue, moment = store.queue("q"), datetime.fromisoformat(far)
        there = queue.put("near")
        for call in (
            lambda: queue.put("x", due=moment),
            lambda: queue.put("x", expires=moment),
            lambda: queue.put_many(["x"], due=moment),
            lambda: store.driver.put([new("q", "y"), new("q", "x", due_us=to_micros(moment))]),
            lambda: queue.reschedule(there.id, due=moment),
            lambda: queue.put("x", id="set", due=datetime(9999, 1, 1, tzinfo=UTC), expires=moment),
        ):
            with pytest.raises(BadInput, match="outside of the calendar"):
                call()
        assert values(queue.find()) == ["near"]
        assert queue.put("last", due=datetime.max.replace(tzinfo=UTC)).due.year == 9999

    def test_unit_over_the_limit_is_refused_before_anything_is_sent(self, store: QueueStore) -> None:
        store.driver.unit_limit = 3
        queue = store.queue("q")
        with pytest.raises(UnitTooLarge, match="chunk="):
            queue.put_many(range(4))
        assert queue.find() == []
        assert len(queue.put_many(range(4), chunk=3)) == 4
        store.driver.unit_limit, store.driver.unit_bytes = 10_000, 10
        with pytest.raises(UnitTooLarge):
            queue.put_many(["12345", "12345"])
        assert len(queue.find()) == 4

    @pytest.mark.parametrize(
        "options",
        [
            {"delay": timedelta(seconds=-1)},
            {"delay": 45},
            {"delay": "soon"},
            {"due": datetime(2026, 1, 1)},  # noqa: DTZ001
            {"delay": "1s", "due": datetime.fromisoformat("2026-01-01T00:00:00+00:00")},
            {"priority": 101},
            {"priority": -101},
            {"labels": {"a b": "x"}},
            {"labels": {"a": 1}},
            {"labels": {"a": "x" * 256}},
            {"labels": {"a": "nul\0"}},
            {"unique": ""},
            {"unique": "x" * 256},
            {"headers": {"a": 1}},
            {"id": ""},
            {"id": "x" * 65},
            {"id": "naïve"},
            {"sticky": "no node!"},
            {"expires": datetime(2026, 1, 1)},  # noqa: DTZ001
        ],
        ids=str,
    )
    def test_bad_options(self, store: QueueStore, options: dict[str, Any]) -> None:
        with pytest.raises(BadInput) as caught:
            store.queue("q").put("x", **options)
        assert caught.value.hint
        assert store.driver.find(Find()) == []

    @pytest.mark.parametrize("name", ["", "a b", "../x", "a..b", "ä", "-x", "x" * 129, "a/b", "a\n", "{x}", "a*"])
    def test_bad_queue_names(self, store: QueueStore, name: str) -> None:
        with pytest.raises(BadInput, match="not allowed"):
            store.queue(name)

    def test_a_family_holds_nothing_itself(self, store: QueueStore) -> None:
        with pytest.raises(BadInput, match="member"):
            store.family("f.").put("x")
        with pytest.raises(BadInput):
            store.family("f.").member("g.1")
        assert store.family("f.").member("f.1").put("x").created

    def test_text_is_kept_and_compared_bytewise(self, store: QueueStore) -> None:
        queue = store.queue("q")
        hostile = [
            "A",
            "a",
            "a ",
            " a",
            "é",
            "e\u0301",
            "ß",
            "ss",
            "%",
            "_",
            "'",
            '"',
            "\\",
            "{x}",
            "*",
            "🦉",
            "\n",
            "x" * 255,
        ]
        for text in hostile:
            assert queue.put(text, unique=text, labels={"text": text}, headers={text: text}).created, text
        found = queue.find()
        assert values(found) == hostile
        assert [(one.unique, one.labels, one.headers) for one in found] == [(t, {"text": t}, {t: t}) for t in hostile]
        if store.capabilities.label_search:
            for text in hostile:
                assert values(queue.find(labels={"text": text})) == [text]

    def test_queue_names_compare_bytewise(self, store: QueueStore) -> None:
        for name in ("q", "Q", "q.", "q%41"):
            put(store, name, name)
        for name in ("q", "Q", "q.", "q%41"):
            assert values(store.driver.find(Find(queue=name))) == [name]
        assert values(store.driver.find(Find(family="q"))) == ["q", "q.", "q%41"]

    def test_a_closed_store_says_so(self, open_store: OpenStore) -> None:
        store = open_store()
        queue = store.queue("q")
        store.close()
        store.close()
        for call in (lambda: queue.put("x"), queue.find, queue.counts, queue.lock):
            with pytest.raises(StoreUnavailable, match="closed"):
                call()

    def test_find_refuses_states_no_live_entry_has(self, store: QueueStore) -> None:
        with pytest.raises(BadInput):
            store.queue("q").find(state="done")


class TestSpaces(Contract):
    """Spaces share nothing but the database."""

    def test_nothing_crosses_spaces(self, store: QueueStore, open_store: OpenStore) -> None:
        other = open_store(space="other")
        put(store, "q", "here", unique="u", id="mine")
        store.driver.lock("q", "me")
        store.driver.beat("someone")
        assert other.driver.find(Find()) == []
        assert other.locks() == []
        assert "someone" not in other.driver.nodes()
        result = other.queue("q").put("there", unique="u", id="mine")
        assert result.created
        assert values([take_one(other, "q")]) == ["there"]
        assert values(store.driver.find(Find())) == ["here"]

    def test_definitions_schedules_and_subscriptions_stay_inside(
        self, store: QueueStore, open_store: OpenStore
    ) -> None:
        other = open_store(space="other")
        queue = store.queue("q", fifo=True)
        queue.schedule("daily", "x", every="24h")
        assert other.schedules() == []
        assert other.driver.subscriptions() == []
        other.queue("q").put("x", priority=1)
        assert other.queue("q").counts().fifo is False

    def test_time_is_counted_in_microseconds(self, store: QueueStore, clock: FakeClock) -> None:
        clock.advance(timedelta(microseconds=123_457))
        entry = living(store, put(store, "q", delay=timedelta(microseconds=1)))
        assert entry.due_us - entry.created_us == 1
        assert entry.created_us % SECOND == 123_457
        assert store.now() == clock.micros()

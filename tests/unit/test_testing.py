"""The testing package as its users meet it."""

from datetime import timedelta

import pytest

from penstock import QueueStore, open_queues
from penstock.testing import FakeClock, all_put, assert_put, drain, refute_put

pytest_plugins = ["pytester"]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock):
    with open_queues("memory://", clock=clock) as opened:
        yield opened


def test_drain_handles_all_that_is_due(store: QueueStore, clock: FakeClock) -> None:
    seen: list[object] = []
    queue, other = store.queue("q"), store.queue("other")
    queue.add_handler(seen.append)
    other.add_handler(seen.append)
    queue.put(1)
    queue.put(2, delay="1h")
    other.put(3)
    assert drain(store, queue) == 1
    assert seen == [1]
    clock.advance("1h")
    assert drain(store, limit=1) == 1
    assert drain(store) == 1
    assert sorted(seen) == [1, 2, 3]


class TestAsserting:
    def test_by_value_labels_due_and_count(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        queue.put({"n": 1}, labels={"a": "1", "b": "2"}, delay="45m")
        queue.put({"n": 2})
        assert [entry.value for entry in assert_put(queue)] == [{"n": 1}, {"n": 2}]
        assert_put(queue, {"n": 1}, labels={"a": "1"}, count=1)
        assert_put(queue, due=clock.now() + timedelta(minutes=45), count=1)
        assert_put(queue, {"n": 1}, due=clock.now() + timedelta(minutes=44), within="1m")
        assert_put(queue, within="0s", count=1)
        assert_put(queue, within="1h", count=2)
        refute_put(queue, {"n": 3})
        refute_put(queue, {"n": 2}, labels={"a": "1"})
        refute_put(queue, {"n": 1}, within="44m")
        assert [entry.value for entry in all_put(queue, labels={"b": "2"})] == [{"n": 1}]

    def test_none_is_a_value_to_look_for(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.put(None)
        assert_put(queue, None, count=1)
        refute_put(queue, 0)

    def test_what_is_being_worked_on_counts_and_what_ended_does_not(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.put("x")
        with store.unit() as unit:
            unit.take(queue)
            assert_put(queue, "x")
            unit.commit()
        refute_put(queue)

    def test_a_failure_shows_what_is_there(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("mails")
        queue.put({"to": "bob"}, labels={"kind": "news"}, delay="1h")
        with pytest.raises(AssertionError) as caught:
            assert_put(queue, {"to": "ann"}, labels={"kind": "news"})
        text = str(caught.value)
        assert (
            "expected at least one entry in 'mails' with value {'to': 'ann'}, labels {'kind': 'news'}, found 0" in text
        )
        assert "{'to': 'bob'} waiting, due 2026-01-01T01:00:00+00:00 labels {'kind': 'news'}" in text
        with pytest.raises(AssertionError, match=r"expected 2 entries .*found 1"):
            assert_put(queue, count=2)
        with pytest.raises(AssertionError, match=r"expected no entry in 'mails', found 1"):
            refute_put(queue)

    def test_an_empty_queue_tells_where_things_are(self, store: QueueStore) -> None:
        store.queue("elsewhere").put_many([1, 2])
        with pytest.raises(AssertionError, match=r"empty; the store holds: elsewhere \(2\)"):
            assert_put(store.queue("q"))

    def test_long_queues_are_cut(self, store: QueueStore) -> None:
        store.queue("q").put_many(range(1500))
        with pytest.raises(AssertionError, match=r"and 1480 more"):
            assert_put(store.queue("q"), "x")

    def test_what_cannot_be_read_is_shown_as_bytes(self, store: QueueStore) -> None:
        store.queue("q").put("text")
        with pytest.raises(AssertionError, match="b'\"text\"'"):
            assert_put(store.queue("q", int), 5)


def test_the_plugin_gives_clock_queues_and_drain(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["penstock.testing.fixtures"]')
    pytester.makepyfile(
        """
        from penstock.testing import assert_put, refute_put

        def test_one(queues, clock, drain):
            seen = []
            mails = queues.queue("mails", str)
            mails.add_handler(seen.append)
            mails.put("hello", delay="45m")
            assert_put(mails, "hello", within="45m")
            assert drain() == 0
            clock.advance("45m")
            assert drain(mails) == 1
            assert seen == ["hello"]
            refute_put(mails)

        def test_two_knows_nothing_of_it(queues):
            assert queues.counts() == []
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)

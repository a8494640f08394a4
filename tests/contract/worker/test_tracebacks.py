"""The traceback of a failed attempt is kept with it, its end at least, on every store alike."""

import logging
from typing import Any

import pytest
from tests.contract.queue.shorthand import Contract

from penstock import QueueStore, Reject, Retry, Snooze, open_queues
from penstock.queue.handling.outcomes import ERROR_LENGTH, TRACEBACK_LENGTH
from penstock.queue.transfer import Copy
from penstock.testing import FakeClock, drain


def deep(depth: int) -> None:
    if depth:
        deep_again(depth)
    raise ValueError("the bottom")


def deep_again(depth: int) -> None:
    deep(depth - 1)


class TestTracebacks(Contract):
    def test_every_failed_attempt_has_its_own(self, store: QueueStore, clock: FakeClock) -> None:
        queue, errors = store.queue("q", str), iter([KeyError("first"), ValueError("second")])

        @queue.handler(retry=Retry(attempts=2, delays=["1s"]))
        def ship(value: str) -> None:
            raise next(errors)

        id_ = queue.put("x").id
        drain(store)
        waiting = queue.get(id_)
        assert waiting.error == "KeyError: 'first'"
        assert waiting.traceback is not None
        assert "in ship" in waiting.traceback
        clock.advance("1s")
        drain(store)
        first, second = queue.history(id_)
        assert (first.error, second.error) == ("KeyError: 'first'", "ValueError: second")
        assert (first.traceback or "").endswith("KeyError: 'first'\n")
        assert (second.traceback or "").endswith("ValueError: second\n")
        [letter] = queue.dead()
        assert (letter.error, letter.traceback) == (second.error, second.traceback)

    def test_it_begins_with_the_handler(self, store: QueueStore) -> None:
        queue = store.queue("q", str)
        queue.add_handler(lambda value: deep(0), retry=Retry(attempts=1))
        queue.put("x")
        drain(store)
        [letter] = queue.dead()
        lines = (letter.traceback or "").splitlines()
        assert lines[0] == "Traceback (most recent call last):"
        assert __file__ in lines[1], "no frames of Penstock above the handler's"

    def test_only_the_end_of_a_long_one_is_kept(self, store: QueueStore) -> None:
        queue = store.queue("q", str)
        queue.add_handler(lambda value: deep(100), retry=Retry(attempts=1))
        queue.put("x")
        drain(store)
        [letter] = queue.dead()
        assert letter.error == "ValueError: the bottom"
        assert letter.traceback is not None
        assert letter.traceback.splitlines()[1] == "  ..."
        assert letter.traceback.endswith("ValueError: the bottom\n")
        assert len(letter.traceback) <= TRACEBACK_LENGTH + 100

    def test_the_longest_that_there_can_be_fits_into_every_store(self, store: QueueStore, clock: FakeClock) -> None:
        """In characters of four bytes; and a hundred of them in the history of one queue."""
        queue = store.queue("q", int)

        def fail(value: int) -> None:
            raise ValueError("\U0001f6b0" * 10_000)

        queue.add_handler(fail, retry=Retry(attempts=1))
        queue.put_many(range(100))
        drain(store)
        letters = queue.dead()
        assert len(letters) == 100
        assert {len(letter.error or "") for letter in letters} == {ERROR_LENGTH}
        assert all(letter.traceback for letter in letters)
        rows = queue.history(limit=1000)
        assert len(rows) == 100
        assert all(row.traceback for row in rows)

    @pytest.mark.parametrize(
        "outcome", [False, Reject("no"), Reject("no\nTraceback, said the judge")], ids=["False", "Reject", "lines"]
    )
    def test_what_was_not_raised_has_none(self, store: QueueStore, outcome: Any) -> None:
        queue = store.queue("q", str)
        queue.add_handler(lambda value: outcome, retry=Retry(attempts=1))
        queue.put("x")
        drain(store)
        [letter] = queue.dead()
        assert letter.traceback is None
        assert letter.error

    def test_a_message_of_many_lines_stays_whole(self, store: QueueStore) -> None:
        queue = store.queue("q", str)

        def fail(value: str) -> None:
            raise ValueError("one\ntwo\nthree")

        queue.add_handler(fail, retry=Retry(attempts=1))
        queue.put("x")
        drain(store)
        [letter] = queue.dead()
        assert letter.error == "ValueError: one\ntwo\nthree"

    def test_what_no_store_could_keep_is_written_out(self, store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
        # What pytest captures of the log could not be sent between its processes.
        monkeypatch.setattr(logging.getLogger("penstock.queue.worker"), "disabled", True)
        queue = store.queue("q", str)

        def fail(value: str) -> None:
            raise ValueError("nul \0 and \udcff")

        queue.add_handler(fail, retry=Retry(attempts=1))
        queue.put("x")
        drain(store)
        [letter] = queue.dead()
        assert letter.error == "ValueError: nul \\0 and \\udcff"
        assert (letter.traceback or "").endswith("ValueError: nul \\0 and \\udcff\n")

    def test_a_snooze_and_a_success_keep_the_last_error_of_a_failure(self, store: QueueStore, clock: FakeClock) -> None:
        queue, outcomes = store.queue("q", str), iter([ValueError("bad"), Snooze("1s"), None])

        def handle(value: str) -> Any:
            outcome = next(outcomes)
            if isinstance(outcome, ValueError):
                raise outcome
            return outcome

        queue.add_handler(handle, retry=Retry(attempts=3, delays=["1s"]))
        id_ = queue.put("x").id
        drain(store)
        clock.advance("1s")
        drain(store)
        assert queue.get(id_).error == "ValueError: bad"
        assert queue.get(id_).traceback
        clock.advance("1s")
        drain(store)
        assert [(row.state, row.error, bool(row.traceback)) for row in queue.history(id_)] == [
            ("retried", "ValueError: bad", True),
            ("done", None, False),
        ]

    def test_the_handler_the_hook_and_the_signals_see_the_error_alone(
        self, store: QueueStore, clock: FakeClock
    ) -> None:
        queue, seen = store.queue("q", str), []
        store.signals.subscribe(lambda signal: seen.append(signal.data["error"]), "settled")

        def fail(value: str, ctx: Any) -> None:
            seen.append(ctx.entry.error)
            raise ValueError("bad")

        queue.add_handler(
            fail, retry=Retry(attempts=2, delays=["1s"]), on_dead=lambda value, error: seen.append(f"hook: {error}")
        )
        queue.put("x")
        drain(store)
        clock.advance("1s")
        drain(store)
        assert seen == [None, "ValueError: bad", "ValueError: bad", "ValueError: bad", "hook: ValueError: bad"]

    def test_a_copy_to_another_store_takes_it_along(self, store: QueueStore) -> None:
        queue = store.queue("q", str)
        queue.add_handler(lambda value: deep(3), retry=Retry(attempts=1))
        queue.put("x")
        drain(store)
        [letter] = queue.dead()
        with open_queues("memory://") as other:
            Copy(store, other).run()
            [copied] = other.queue("q", str).dead()
            assert (copied.error, copied.traceback) == (letter.error, letter.traceback)

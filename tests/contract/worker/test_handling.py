"""What becomes of what handlers do: results, exceptions, policies, dead letters; handled in the calling thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.contract.queue.shorthand import (
    MINUTE,
    SECOND,
    Contract,
    dead,
    living,
    put,
    take,
    trail,
    values,
)

from penstock.clock import FakeClock
from penstock.errors import BadInput, Conflict
from penstock.policy import Reject, Retry, Snooze, TryAgain
from penstock.queue.handling.context import Context
from penstock.queue.protocol import Find
from penstock.queue.queues import QueueStore
from penstock.queue.worker import Worker

NOW = Retry(attempts=3, backoff="0s", jitter=False)


def drain(store: QueueStore, **options: Any) -> int:
    """Handle what is due here and now."""
    return Worker(store).drain(**options)


class TestResults(Contract):
    """What a handler returns."""

    @pytest.mark.parametrize("result", [None, True, 0, "", [], "text", {"a": 1}], ids=repr)
    def test_any_value_but_a_few_is_done(self, store: QueueStore, result: Any) -> None:
        queue = store.queue("q")
        queue.add_handler(lambda value: result)
        id_ = queue.put("x").id
        assert drain(store) == 1
        assert trail(store, id_) == [(1, 1, "done")]

    def test_false_is_a_failure(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.add_handler(lambda value: False, retry=NOW)
        id_ = queue.put("x").id
        assert drain(store) == 3
        assert trail(store, id_) == [(1, 1, "retried"), (1, 2, "retried"), (1, 3, "dead")]
        assert "returned False, which is a failure; return None" in (dead(store, id_).error or "")

    @pytest.mark.parametrize("kind", ["coroutine", "generator", "async_generator"])
    def test_what_nobody_runs_is_no_success(self, store: QueueStore, kind: str) -> None:
        async def coroutine(value: Any) -> None:
            pytest.fail("nobody awaits it")

        def generator(value: Any) -> Iterator[Any]:
            yield value

        async def async_generator(value: Any) -> AsyncIterator[Any]:
            yield value

        made = {"coroutine": coroutine, "generator": generator, "async_generator": async_generator}[kind]
        queue = store.queue("q")
        queue.add_handler(lambda value: made(f"{value}!"), retry=Retry(attempts=1))
        id_ = queue.put("x").id
        assert drain(store) == 1
        assert f"returned a {kind}, which nobody runs" in (dead(store, id_).error or "")

    def test_a_generator_is_refused(self, store: QueueStore) -> None:
        def generator(value: Any) -> Iterator[Any]:
            yield value

        with pytest.raises(BadInput, match="is a generator"):
            store.queue("q").add_handler(generator)

    def test_snooze_comes_later_and_spends_nothing(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        seen: list[int] = []

        @queue.handler(retry=Retry(attempts=1))
        def handle(value: str, ctx: Context) -> Snooze | None:
            seen.append(ctx.entry.attempt)
            return Snooze("10m") if len(seen) < 4 else None

        id_ = queue.put("x").id
        for expected in (1, 2, 3):
            assert drain(store) == 1
            assert living(store, id_).due_us == clock.micros() + 10 * MINUTE
            clock.advance("10m")
            assert len(seen) == expected
        drain(store)
        assert seen == [1, 1, 1, 1]
        assert trail(store, id_) == [(1, 1, "done")]

    def test_reject_is_dead_now(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.add_handler(lambda value: Reject("not for us"), retry=Retry(attempts=None))
        id_ = queue.put("x").id
        assert drain(store) == 1
        assert dead(store, id_).error == "rejected: not for us"

    @pytest.mark.parametrize("how", ["return", "raise"])
    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_outcomes_may_be_returned_or_raised(self, store: QueueStore, clock: FakeClock, kind: str, how: str) -> None:
        def handle(value: str) -> Any:
            outcomes: dict[str, Any] = {
                "reject": Reject("no"),
                "bare reject": Reject,
                "snooze": Snooze("5m"),
                "again": TryAgain(Retry(delays=["3h"]), "busy"),
                "bare again": TryAgain,
            }
            if how == "raise":
                raise outcomes[value]
            return outcomes[value]

        async def handle_async(value: str) -> Any:
            return handle(value)

        queue = store.queue("q", str)
        queue.add_handler(handle if kind == "sync" else handle_async, retry=Retry(delays=["1m"]))
        made = {name: queue.put(name).id for name in ("reject", "bare reject", "snooze", "again", "bare again")}
        assert drain(store) == 5
        assert dead(store, made["reject"]).error == "rejected: no"
        assert dead(store, made["bare reject"]).error == "rejected"
        assert trail(store, made["snooze"]) == []
        for name, minutes in {"snooze": 5, "again": 180, "bare again": 1}.items():
            assert living(store, made[name]).due_us == clock.micros() + minutes * MINUTE
        assert trail(store, made["again"]) == trail(store, made["bare again"]) == [(1, 1, "retried")]
        assert living(store, made["again"]).error == "TryAgain: busy"

    def test_a_class_that_needs_an_argument_is_a_failure_that_says_so(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.add_handler(lambda value: Snooze, retry=Retry(attempts=1))
        id_ = queue.put("x").id
        drain(store)
        assert "the class Snooze" in (dead(store, id_).error or "")

    def test_a_bad_snooze_is_a_failure_of_the_attempt(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.add_handler(lambda value: Snooze("soon"), retry=Retry(attempts=1))
        id_ = queue.put("x").id
        drain(store)
        assert "BadInput" in (dead(store, id_).error or "")


class TestFailures(Contract):
    """What a handler raises."""

    @pytest.mark.parametrize(
        "error", [RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError]
    )
    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_every_exception_is_a_failure(self, store: QueueStore, error: type[BaseException], kind: str) -> None:
        queue = store.queue("q")

        def handle(value: str) -> None:
            raise error("boom")

        async def handle_async(value: str) -> None:
            raise error("boom")

        queue.add_handler(handle if kind == "sync" else handle_async, retry=Retry(attempts=1))
        id_ = queue.put("x").id
        drain(store)
        assert dead(store, id_).error == f"{error.__name__}: boom"
        assert trail(store, id_) == [(1, 1, "dead")]

    def test_retries_follow_the_policy_then_the_dead_letters(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        starts: list[int] = []

        @queue.handler(retry=Retry(attempts=4, delays=["1s", "1m"]))
        def handle(value: str) -> None:
            starts.append(clock.micros())
            raise ValueError("no")

        id_ = queue.put("x").id
        for delay in ("0s", "1s", "1m", "1m"):
            clock.advance(delay)
            assert drain(store) == 1
            assert drain(store) == 0
        clock.advance("1d")
        assert drain(store) == 0
        assert [later - starts[0] for later in starts] == [0, SECOND, 61 * SECOND, 121 * SECOND]
        assert [row[2] for row in trail(store, id_)] == ["retried"] * 3 + ["dead"]
        assert {row.error for row in queue.history()} == {"ValueError: no"}

    def test_immediate_retries_come_first(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        queue.add_handler(lambda value: False, retry=Retry(attempts=4, immediate=2, backoff="1m", jitter=False))
        id_ = queue.put("x").id
        assert drain(store) == 3
        assert living(store, id_).due_us == clock.micros() + MINUTE

    def test_relative_to_the_original_due_time(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        queue.add_handler(lambda value: False, retry=Retry(attempts=9, delays=["1h"], relative_to="due"))
        id_ = queue.put("x").id
        due = clock.micros()
        clock.advance("20m")
        drain(store)
        assert living(store, id_).due_us == due + 60 * MINUTE

    def test_unlimited_attempts_never_end(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")
        queue.add_handler(lambda value: False, retry=Retry(attempts=None, backoff="2m"))
        id_ = queue.put("x").id
        for _ in range(60):
            drain(store)
            clock.advance("10m")
        assert (living(store, id_).attempt, store.driver.dead(Find())) == (60, [])

    def test_success_after_failures(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.add_handler(lambda value, ctx: ctx.entry.attempt >= 3, retry=NOW)
        id_ = queue.put("x").id
        assert drain(store) == 3
        assert trail(store, id_) == [(1, 1, "retried"), (1, 2, "retried"), (1, 3, "done")]

    @pytest.mark.parametrize(("handlers", "raised", "runs"), [(5, 2, 2), (2, 4, 2), (1, 3, 1), (None, 3, 3)])
    def test_try_again_brings_its_own_policy(
        self, store: QueueStore, handlers: int | None, raised: int, runs: int
    ) -> None:
        """The latest policy counts, but never beyond the handler's own attempts: K is at most K."""
        queue = store.queue("q")

        def handle(value: str) -> None:
            raise TryAgain(Retry(attempts=raised, backoff="0s"), "busy")

        queue.add_handler(handle, retry=Retry(attempts=handlers, backoff="0s"))
        id_ = queue.put("x").id
        assert drain(store) == runs
        assert dead(store, id_).error == "TryAgain: busy"
        assert [row[2] for row in trail(store, id_)] == ["retried"] * (runs - 1) + ["dead"]

    def test_try_again_sets_the_delay(self, store: QueueStore, clock: FakeClock) -> None:
        queue = store.queue("q")

        def handle(value: str) -> None:
            raise TryAgain(Retry(delays=["3h"]))

        queue.add_handler(handle, retry=Retry(delays=["1m"]))
        id_ = queue.put("x").id
        drain(store)
        assert living(store, id_).due_us == clock.micros() + 180 * MINUTE

    def test_long_errors_are_cut(self, store: QueueStore) -> None:
        queue = store.queue("q")

        def handle(value: str) -> None:
            raise RuntimeError("x" * 100_000)

        queue.add_handler(handle, retry=Retry(attempts=1))
        id_ = queue.put("x").id
        drain(store)
        assert 100 < len(dead(store, id_).error or "") <= 2000

    def test_one_failing_queue_stops_no_other(self, store: QueueStore) -> None:
        store.queue("bad").add_handler(lambda value: 1 / 0, retry=Retry(attempts=1))
        seen: list[Any] = []
        store.queue("good").add_handler(seen.append)
        for number in range(5):
            put(store, "bad", number)
            put(store, "good", number)
        drain(store)
        assert seen == list(range(5))
        assert len(store.driver.dead(Find(queue="bad"))) == 5


class TestSayingSo(Contract):
    """Every attempt that did not succeed is logged with what comes next."""

    @pytest.mark.parametrize(
        ("result", "first", "last"),
        [
            (Reject("bad"), "entry ID (attempt 1 of 2): Reject: bad -> dead letter", ""),
            (
                False,
                "entry ID (attempt 1 of 2): returned False, which is a failure -> again in 1s",
                "2 of 2): returned False, which is a failure -> dead letter",
            ),
            (ValueError("no"), "(attempt 1 of 2): ValueError: no -> again in 1s", "ValueError: no -> dead letter"),
            (TryAgain(Retry(delays=["2h"])), "TryAgain: asked to be tried again -> again in 2:00:00", "-> dead letter"),
        ],
        ids=repr,
    )
    def test_in_one_line(
        self, store: QueueStore, clock: FakeClock, caplog: pytest.LogCaptureFixture, result: Any, first: str, last: str
    ) -> None:
        queue = store.queue("mails")

        @queue.handler(retry=Retry(attempts=2, delays=["1s"]))
        def send(value: str) -> Any:
            if isinstance(result, ValueError):
                raise result
            return result

        id_ = queue.put("x").id
        drain(store)
        clock.advance("3h")
        drain(store)
        told = [one for one in caplog.records if one.name == "penstock.queue.worker"]
        assert {one.levelname for one in told} == {"WARNING"}
        for one, expected in zip(told, [first, last] if last else [first], strict=True):
            assert expected.replace("ID", id_) in one.getMessage()
            assert "send of queue 'mails'" in one.getMessage()


class Mail(msgspec.Struct):
    """A typed payload."""

    to: str


class TestUndecodable(Contract):
    """What cannot be read is a dead letter at once and stops nobody."""

    @pytest.mark.parametrize("kind", ["wrong shape", "other codec", "no json"])
    def test_dead_without_a_handler_run(self, store: QueueStore, kind: str) -> None:
        mails = store.queue("mails", Mail)
        seen: list[Mail] = []
        mails.add_handler(seen.append)
        bad = {
            "wrong shape": lambda: put(store, "mails", {"from": "ann"}),
            "other codec": lambda: store.queue("mails", bytes).put(b'{"to":"x"}').id,
            "no json": lambda: (
                store.driver.put([msgspec.structs.replace(mails.new(Mail("x")), payload=b"\xff{")])[0].id
            ),
        }[kind]()
        mails.put(Mail("bob"))
        drain(store)
        assert seen == [Mail("bob")]
        assert trail(store, bad) == [(1, 1, "dead")]
        assert "Undecodable" in (dead(store, bad).error or "")

    def test_it_can_be_replayed_once_the_type_is_mended(self, store: QueueStore) -> None:
        bad = put(store, "mails", {"from": "ann"})
        mails = store.queue("mails", Mail)
        mails.add_handler(lambda mail: None)
        drain(store)
        mails.remove_handler()
        seen: list[Any] = []
        store.queue("mails", dict).add_handler(seen.append)
        store.driver.replay([bad])
        drain(store)
        assert seen == [{"from": "ann"}]


class TestOnDead(Contract):
    """The exhaustion hook."""

    def test_told_once_with_value_and_error(self, store: QueueStore) -> None:
        queue = store.queue("q")
        told: list[tuple[Any, str]] = []
        queue.add_handler(lambda value: False, retry=NOW, on_dead=lambda value, error: told.append((value, error)))
        queue.put({"n": 1})
        drain(store)
        assert [(value, error.partition(",")[0]) for value, error in told] == [
            ({"n": 1}, "RuntimeError: the handler returned False")
        ]

    def test_told_of_what_cannot_be_read(self, store: QueueStore) -> None:
        told: list[Any] = []
        store.queue("q", int).add_handler(lambda value: None, on_dead=lambda value, error: told.append(value))
        put(store, "q", "text")
        drain(store)
        assert told == [None]

    def test_its_own_failure_harms_nobody(self, store: QueueStore) -> None:
        queue = store.queue("q")
        queue.add_handler(lambda value: Reject("no"), on_dead=lambda value, error: 1 / 0)
        queue.put_many([1, 2])
        assert drain(store) == 2
        assert len(store.driver.dead(Find())) == 2


class TestHandlers(Contract):
    """Registering, and which handler gets what."""

    def test_a_second_handler_is_refused(self, store: QueueStore) -> None:
        queue = store.queue("q")

        @queue.handler
        def first(value: Any) -> None: ...

        with pytest.raises(Conflict, match="first"):
            queue.add_handler(lambda value: None)
        assert queue.remove_handler() is True
        assert queue.remove_handler() is False
        queue.add_handler(lambda value: None)

    def test_without_a_handler_nothing_is_taken(self, store: QueueStore) -> None:
        id_ = put(store, "q")
        store.queue("r").add_handler(lambda value: None)
        assert drain(store) == 0
        assert living(store, id_).attempt == 0

    def test_a_family_handler_serves_all_its_queues_but_named_ones(self, store: QueueStore) -> None:
        seen: list[tuple[str, Any]] = []
        store.family("f.").add_handler(lambda value, ctx: seen.append((f"family {ctx.entry.queue}", value)))
        store.family("f.x.").add_handler(lambda value: seen.append(("longer", value)))
        store.queue("f.1").add_handler(lambda value: seen.append(("named", value)))
        for name in ("f.1", "f.2", "f.x.1", "g"):
            put(store, name, name)
        drain(store)
        assert sorted(seen) == [("family f.2", "f.2"), ("longer", "f.x.1"), ("named", "f.1")]

    @pytest.mark.parametrize(
        "bad",
        [
            {"retry": 5}, {"retry": "3"}, {"retry": None}, {"concurrency": "x"}, {"concurrency": 0},
            {"concurrency": True}, {"prefetch": -1}, {"prefetch": "many"}, {"on_dead": "tell"}, {"executor": 4},
        ],
        ids=repr,
    )  # fmt: skip
    def test_bad_options_are_refused_where_they_are_written(self, store: QueueStore, bad: Any) -> None:
        with pytest.raises(BadInput, match=next(iter(bad))) as caught:
            store.queue("q").add_handler(lambda value: None, **bad)
        assert caught.value.hint
        assert store.handlers == {}

    @pytest.mark.parametrize("bad", [lambda: None, lambda a, b, c: None, lambda *, value: None])
    def test_functions_of_the_wrong_shape(self, store: QueueStore, bad: Any) -> None:
        with pytest.raises(BadInput, match=r"\(value\) or \(value, ctx\)"):
            store.queue("q").add_handler(bad)

    def test_functions_of_every_good_shape(self, store: QueueStore) -> None:
        seen: list[str] = []

        class Callable:
            def __call__(self, value: str) -> None:
                seen.append(f"object {value}")

            def method(self, value: str, ctx: Context) -> None:
                seen.append(f"method {value} {ctx.entry.queue}")

        async def coroutine(value: str) -> None:
            await asyncio.sleep(0)
            seen.append(f"async {value}")

        def with_default(value: str, extra: int = 7) -> None:
            seen.append(f"default {extra}")

        shapes: list[Any] = [Callable(), Callable().method, coroutine, with_default, seen.append]
        for number, function in enumerate(shapes):
            store.queue(f"q{number}").add_handler(function)
            put(store, f"q{number}", "x")
        drain(store)
        assert sorted(seen) == ["async x", "default 7", "method x q1", "object x", "x"]

    def test_drain_of_chosen_queues_and_with_a_limit(self, store: QueueStore) -> None:
        seen: list[Any] = []
        for name in ("q", "r"):
            store.queue(name).add_handler(seen.append)
            store.queue(name).put_many([f"{name}{number}" for number in range(5)])
        assert Worker(store, [store.queue("q")]).drain() == 5
        assert Worker(store).drain(limit=2) == 2
        assert seen == ["q0", "q1", "q2", "q3", "q4", "r0", "r1"]
        assert [entry.attempt for entry in store.driver.find(Find())] == [0, 0, 0]
        assert len(take(store, "r")) == 3

    def test_draining_goes_on_with_what_handlers_put(self, store: QueueStore) -> None:
        queue = store.queue("q", int)
        queue.add_handler(lambda value, ctx: ctx.put(queue, value - 1) if value else None)
        queue.put(5)
        assert drain(store) == 6

    def test_own_codec(self, store: QueueStore) -> None:
        class Shouting:
            name = "shouting"
            type_name = "str"

            def encode(self, value: str) -> bytes:
                return value.upper().encode()

            def decode(self, payload: bytes) -> str:
                return payload.decode().lower()

        queue = store.queue("q", codec=Shouting())
        seen: list[str] = []
        queue.add_handler(seen.append)
        queue.put("Hello")
        [entry] = queue.find()
        assert (entry.payload, entry.codec) == (b"HELLO", "shouting")
        drain(store)
        assert seen == ["hello"]

    def test_expired_work_is_not_handled(self, store: QueueStore, clock: FakeClock) -> None:
        seen: list[Any] = []
        store.queue("q").add_handler(seen.append)
        put(store, "q", "late", expires="1m")
        clock.advance(timedelta(minutes=1))
        assert drain(store) == 0
        assert [row.state for row in store.driver.history(Find())] == ["expired"]
        assert values(store.driver.find(Find())) == []

"""A signal during a drain in the main thread: the running handler ends, the rest goes back, the caller is told."""

import asyncio
import os
import signal
import threading
from types import FrameType

import pytest

import penstock
from penstock import QueueStore, Retry, Worker


@pytest.fixture
def store():
    with penstock.open_queues("memory://") as opened:
        yield opened


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_the_first_signal_stops_in_order(
    store: QueueStore, number: signal.Signals, raised: type[BaseException], kind: str
) -> None:
    mine: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        mine.append(number)

    queue = store.queue("q", int)
    ended: list[int] = []

    def handle(value: int) -> None:
        os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_DFL or kind == "async", "a second one ends the process"
        ended.append(value)

    async def handle_async(value: int) -> None:
        handle(value)
        await asyncio.sleep(0)

    queue.add_handler(handle if kind == "sync" else handle_async)
    queue.put_many(range(3))
    before = {one: signal.signal(one, on_signal) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(raised) as caught:
            Worker(store).drain()
        assert [signal.getsignal(one) for one in before] == [on_signal] * 2, "the program has its handlers back"
    finally:
        for one, old in before.items():
            signal.signal(one, old)
    if raised is SystemExit:
        assert caught.value.code == 143  # type: ignore[attr-defined]
    assert mine == []
    assert ended == [0]
    assert [(entry.value, entry.attempt, entry.state) for entry in queue.find()] == [
        (1, 0, "waiting"),
        (2, 0, "waiting"),
    ]
    assert [row.state for row in queue.history()] == ["done"]


def test_a_handler_that_exits_is_a_failure_and_the_drain_goes_on(store: QueueStore) -> None:
    queue = store.queue("q", str)
    errors = {"interrupt": KeyboardInterrupt, "exit": SystemExit}

    @queue.handler(retry=Retry(attempts=1))
    def handle(value: str) -> None:
        if value in errors:
            raise errors[value]("mine")

    queue.put_many([*errors, "fine"])
    assert Worker(store).drain() == 3
    assert [letter.error for letter in queue.dead()] == ["KeyboardInterrupt: mine", "SystemExit: mine"]


def test_elsewhere_than_in_the_main_thread_signals_are_left_alone(store: QueueStore) -> None:
    seen: list[object] = []
    queue = store.queue("q", str)
    queue.add_handler(lambda value: seen.append(signal.getsignal(signal.SIGINT)))
    queue.put("x")
    thread = threading.Thread(target=Worker(store).drain)
    thread.start()
    thread.join(20)
    assert seen == [signal.getsignal(signal.SIGINT)]

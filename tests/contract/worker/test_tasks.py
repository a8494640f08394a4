"""Tasks: functions whose calls are entries, on every store."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.contract.queue.shorthand import OpenStore

from penstock import Context, Queues, QueueStore, Retry, Task, Worker
from penstock.errors import BadInput, NotOpen, PayloadTooLarge, WrongType


class Address(msgspec.Struct):
    """Part of a payload."""

    street: str
    number: int = 1


@pytest.fixture
def store(open_store: OpenStore) -> QueueStore:
    return open_store()


def test_a_call_that_was_put_is_made_by_a_worker(store: QueueStore) -> None:
    calls: list[Any] = []

    @store.task("mails", retry=Retry(attempts=2))
    def send(to: Address, copies: int = 1, *, urgent: bool = False) -> None:
        calls.append((to, copies, urgent))

    put = send.put(Address("Elm"), urgent=True)
    send.options(labels={"customer": "ann"}, unique="order-17").put(to=Address("Oak", 3), copies=2)
    assert (put.queue, put.created) == ("mails", True)
    assert send.queue.counts().live == 2
    assert not send.options(unique="order-17").put(Address("Ash")).created
    Worker(store).drain()
    assert sorted(calls, key=lambda call: call[0].street) == [
        (Address("Elm"), 1, True),
        (Address("Oak", 3), 2, False),
    ]


def test_a_default_is_that_of_the_code_which_runs(store: QueueStore) -> None:
    """What was not given is not stored."""

    @store.task("mails")
    def send(to: str, copies: int = 1) -> None: ...

    entry = send.queue.get(send.put("ann").id)
    assert entry is not None
    assert msgspec.json.decode(entry.payload) == {"to": "ann"}


def test_a_task_may_ask_for_its_context_and_be_async(store: QueueStore) -> None:
    @store.task("sums", keep_result="1h")
    async def add(ctx: Context[Any], left: int, right: int = 2) -> int:
        await asyncio.sleep(0)
        assert ctx.entry.queue == "sums"
        return left + right

    put = add.put(40)
    Worker(store).drain()
    assert add.queue.result(put.id).value == 42
    with pytest.raises(BadInput, match="which only a worker has"):
        add(1)


def test_a_task_is_called_here_like_the_function_it_was(store: QueueStore) -> None:
    @store.task("doubles")
    def double(number: int) -> int:
        return 2 * number

    assert double(21) == 42
    assert double.queue.counts().live == 0


def test_tasks_are_declared_before_there_is_a_store(store: QueueStore) -> None:
    queues, calls = Queues(), []

    @queues.task("mails")
    def send(to: str) -> None:
        calls.append(to)

    with pytest.raises(NotOpen):
        send.put("ann")
    queues.open(store)
    send.put("ann")
    Worker(store).drain()
    assert calls == ["ann"]


def no_names(*numbers: int) -> None: ...


def positions_only(number: int, /) -> None: ...


def unknown_type(number: "Nowhere") -> None: ...  # type: ignore[name-defined] # noqa: F821


@pytest.mark.parametrize(
    ("function", "why"),
    [(no_names, "has no name in a payload"), (positions_only, "has no name"), (unknown_type, "cannot be read")],
)
def test_a_function_without_named_and_known_parameters_is_refused(
    store: QueueStore, function: Callable[..., None], why: str
) -> None:
    with pytest.raises(BadInput, match=why):
        store.task("odd")(function)
    assert store.counts() == []


def test_wrong_calls_put_nothing(store: QueueStore) -> None:
    @store.task("mails")
    def send(to: str, copies: int = 1) -> None: ...

    loose: Task[..., None] = send
    for call, error in (
        (loose.put, BadInput),
        (lambda: loose.put("ann", kopies=2), BadInput),
        (lambda: loose.put(3), WrongType),
        (lambda: loose.options(dely="5m"), BadInput),  # type: ignore[call-arg]
        (lambda: loose.put("x" * 10_000_000), PayloadTooLarge),
        (lambda: store.task("mails", fifi=True), BadInput),  # type: ignore[call-arg]
    ):
        with pytest.raises(error):
            call()
    assert send.queue.counts().live == 0

"""When an attempt began, by a worker whose idea of the store's time is late."""

import pytest

from penstock import Worker, open_queues
from penstock.clock import SECOND
from penstock.queue.worker.loop import Loop


def test_nothing_starts_before_it_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one of a FIFO queue would seem to run beside the one before it, a callback before its batch is done."""
    real_now = Loop.now
    monkeypatch.setattr(Loop, "now", lambda self: real_now(self) - SECOND)
    with open_queues("memory://") as store:
        queue = store.queue("q", int, fifo=True)
        queue.add_handler(lambda _: None)
        told: list[int] = []
        store.signals.subscribe(lambda signal: told.append(signal.at), "started")
        queue.put_many([1, 2, 3])
        Worker(store).drain()
        rows = queue.history()
        starts = [row.started_us for row in rows]
        assert len(rows) == 3
        assert all(start is not None and start >= row.created_us for start, row in zip(starts, rows, strict=True))
        assert all(start >= before.ended_us for start, before in zip(starts[1:], rows, strict=False) if start)
        assert all(at_us >= row.created_us for at_us, row in zip(told, rows, strict=True))

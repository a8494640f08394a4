"""Waking: waiting for records and for commits, and being closed meanwhile."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.contract.log.shorthand import LogContract, OpenLogs, filled, read_all, values

from penstock.errors import BadInput, Closed
from penstock.log.record import Offset, Partition
from penstock.log.store import LogStore


def later(work: Callable[[], Any], seconds: float = 0.1) -> threading.Timer:
    """Do it in a moment."""
    timer = threading.Timer(seconds, work)
    timer.start()
    return timer


class TestWaking(LogContract):
    """Waits end when there is something."""

    def test_a_read_waits_as_long_as_it_may(self, store: LogStore) -> None:
        store.create("log")
        with store.tailer("log", "g") as tail:
            begin = time.monotonic()
            assert tail.read(timeout="150ms") == []
            assert 0.14 < time.monotonic() - begin < 5

    def test_an_append_ends_the_wait(self, store: LogStore, open_logs: OpenLogs) -> None:
        store.create("log", partitions=3)
        other = open_logs()
        with store.tailer("log", "g") as tail, other.appender("log") as out:
            tail.read()
            timer = later(lambda: out.append("x", partition=2))
            begin = time.monotonic()
            assert values(tail.read(timeout="20s")) == ["x"]
            assert time.monotonic() - begin < 5
            timer.join()

    def test_a_transaction_ends_the_wait(self, store: LogStore, open_logs: OpenLogs) -> None:
        store.create("log")
        other = open_logs()

        def transact() -> None:
            with other.transaction() as tx:
                tx.append("log", "x")
                tx.commit()

        with store.tailer("log", "g") as tail:
            tail.read()
            timer = later(transact)
            begin = time.monotonic()
            assert values(tail.read(timeout="20s")) == ["x"]
            assert time.monotonic() - begin < 5
            timer.join()

    def test_closing_ends_the_wait(self, store: LogStore) -> None:
        store.create("log")
        tail = store.tailer("log", "g")
        timer = later(tail.close)
        begin = time.monotonic()
        with contextlib.suppress(Closed):
            assert tail.read(timeout="20s") == []
        assert time.monotonic() - begin < 5
        timer.join()
        with pytest.raises(Closed):
            tail.read()

    def test_iterating_ends_with_the_tailer(self, store: LogStore) -> None:
        filled(store, count=5)
        tail = store.tailer("log", "g")
        seen = []
        for record in tail:
            seen.append(record.value)
            if len(seen) == 5:
                later(tail.close, 0.05)
        assert seen == [0, 1, 2, 3, 4]


class TestWaitingForGroups(LogContract):
    """wait_for: until a group has committed past a record."""

    def test_it_goes_by_commits(self, store: LogStore) -> None:
        store.create("log")
        with store.appender("log") as out, store.tailer("log", "g") as tail:
            offsets = list(out.append_many(range(5)))
            assert not store.wait_for(offsets[0], "g")
            tail.read(2, timeout="1s")
            assert not out.wait_for(offsets[0], "g"), "read is not committed"
            tail.commit()
            assert [store.wait_for(one, "g") for one in offsets] == [True, True, False, False, False]
            assert not store.wait_for(offsets[0], "unknown")

    def test_a_commit_ends_the_wait(self, store: LogStore, open_logs: OpenLogs) -> None:
        filled(store, count=3)
        with open_logs().tailer("log", "g") as tail:
            read_all(tail, 3)
            timer = later(tail.commit)
            begin = time.monotonic()
            assert store.wait_for(Offset("log", 0, 2), "g", "20s")
            assert time.monotonic() - begin < 5
            timer.join()
        begin = time.monotonic()
        assert not store.wait_for(Offset("log", 0, 3), "g", "100ms")
        assert time.monotonic() - begin < 5

    def test_bad_places(self, store: LogStore) -> None:
        filled(store, "log")
        filled(store, "other")
        with store.appender("log") as out, pytest.raises(BadInput, match="is not in log"):
            out.wait_for(Offset("other", 0, 0), "g")
        with pytest.raises(BadInput):
            store.wait_for(Offset("log", 7, 0), "g")
        assert store.partitions("log") == [Partition("log", 0)]

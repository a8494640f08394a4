"""Groups: one owner per partition, subscribers that come and go, members that hang."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest
from tests.contract.log.shorthand import (
    PATIENCE,
    LogContract,
    OpenLogs,
    filled,
    needs,
    parts,
    read_all,
    values,
    wait_until,
)

from penstock.errors import BadInput, Fenced, PartitionTaken
from penstock.log.record import Partition
from penstock.log.store import LogStore
from penstock.log.tailer import Tailer


def settle(*tailers: Tailer[Any], partitions: int) -> None:
    """Let members read until every partition has an owner and shares are even."""
    deadline = time.monotonic() + PATIENCE
    while True:
        for tail in tailers:
            tail.read(1, timeout="2ms")
            tail.to_committed()
        owned = [one for tail in tailers for one in tail.assignment()]
        sizes = [len(tail.assignment()) for tail in tailers]
        if len(set(owned)) == partitions and max(sizes) - min(sizes) <= 1:
            assert len(owned) == partitions, "no partition has two owners"
            return
        assert time.monotonic() < deadline, f"shares are {sizes}"


class TestOwners(LogContract):
    """At most one open tailer per group and partition."""

    def test_a_second_tailer_is_refused(self, store: LogStore, open_logs: OpenLogs) -> None:
        filled(store, partitions=3)
        first = store.tailer(parts("log", 0, 1), "g")
        for handle in (store, open_logs()):
            with pytest.raises(PartitionTaken, match="log-01 is read by another tailer of group g"):
                handle.tailer(parts("log", 1, 2), "g")
        with open_logs().tailer(parts("log", 2), "g"), store.tailer("log", "other"):
            pass  # nothing of the refused ones is held
        first.close()
        with open_logs().tailer("log", "g") as again:
            assert again.assignment() == parts("log", 0, 1, 2)

    def test_manual_and_subscribed_never_overlap(self, store: LogStore) -> None:
        needs(store, "mixing")
        filled(store, partitions=2)
        with store.tailer(Partition("log", 0), "g"), store.subscribe("log", "g") as dynamic:
            for _ in range(5):
                dynamic.read(timeout="5ms")
            assert dynamic.assignment() == parts("log", 1)

    def test_a_hung_reader_is_fenced(self, store: LogStore, open_logs: OpenLogs) -> None:
        filled(store)
        hung = store.tailer("log", "g", max_poll="150ms")
        hung.read(5, timeout="1s")
        wait_until(lambda: _taken_over(open_logs()), "a silent reader is passed over")
        with pytest.raises(Fenced):
            hung.commit()
        assert store.committed("log", "g") == [2]
        with pytest.raises(Fenced):
            hung.read()
        hung.close()


def _taken_over(store: LogStore) -> bool:
    try:
        tail = store.tailer("log", "g")
    except PartitionTaken:
        return False
    tail.read(2, timeout="1s")
    tail.commit()
    return True


class TestSubscribers(LogContract):
    """Partitions that follow the members."""

    def test_nothing_is_assigned_before_the_first_read(self, store: LogStore) -> None:
        filled(store, partitions=3)
        with store.subscribe("log", "g") as tail:
            assert tail.assignment() == []
            read_all(tail, 10)
            assert tail.assignment() == parts("log", 0, 1, 2), "a lone subscriber owns all"

    def test_callbacks_and_signals_tell(self, store: LogStore) -> None:
        filled(store, partitions=4)
        told: list[tuple[str, int]] = []
        signals: list[str] = []
        store.signals.subscribe(lambda signal: signals.append(signal.kind), "assigned", "revoked")
        first = store.subscribe(
            "log", "g",
            on_assigned=lambda got: told.append(("got", len(got))),
            on_revoked=lambda gone: told.append(("gone", len(gone))),
        )  # fmt: skip
        read_all(first, 10)
        assert told == [("got", 4)]
        with store.subscribe("log", "g") as second:
            settle(first, second, partitions=4)
            assert told[1:] == [("gone", 2)]
        settle(first, partitions=4)
        assert told[2:] == [("got", 2)]
        first.close()
        assert told[3:] == [("gone", 4)]
        assert signals.count("revoked") >= 2

    def test_what_stays_is_never_stopped(self, store: LogStore) -> None:
        filled(store, partitions=6)
        lost: list[Partition] = []
        first = store.subscribe("log", "g", on_revoked=lost.extend)
        settle(first, partitions=6)
        with store.subscribe("log", "g") as second:
            settle(first, second, partitions=6)
            assert len(lost) == 3
            kept = first.assignment()
            with store.subscribe("log", "g") as third:
                settle(first, second, third, partitions=6)
                assert set(first.assignment()) <= set(kept), "a newcomer only takes"
        first.close()

    def test_a_revoked_partition_goes_on_where_it_was_committed(self, store: LogStore) -> None:
        filled(store, partitions=2, count=20)
        box: list[Tailer[Any]] = []
        first = store.subscribe("log", "g", on_revoked=lambda gone: box[0].commit() and None)
        box.append(first)
        seen = values(first.read(6, timeout="2s"))
        second = store.subscribe("log", "g")
        deadline = time.monotonic() + PATIENCE
        while len(seen) < 20:
            for tail in (first, second):
                seen += values(tail.read(3, timeout="2ms"))
            assert time.monotonic() < deadline
        assert sorted(seen) == list(range(20)), "each once, as everything was committed before it was given away"
        first.close()
        second.close()

    def test_more_members_than_partitions(self, store: LogStore) -> None:
        filled(store, partitions=3, count=30)
        tails = [store.subscribe("log", "g") for _ in range(6)]
        settle(*tails, partitions=3)
        assert sorted(len(tail.assignment()) for tail in tails) == [0, 0, 0, 1, 1, 1]
        for tail in tails:
            tail.close()

    def test_several_logs(self, store: LogStore) -> None:
        filled(store, "one", partitions=3, count=6)
        filled(store, "two", partitions=3, count=6)
        with store.subscribe(["one", "two"], "g") as first, store.subscribe(["two", "one"], "g") as second:
            settle(first, second, partitions=6)
            assert len(first.assignment()) == 3

    def test_members_that_want_different_logs(self, store: LogStore) -> None:
        filled(store, "one", partitions=2, count=6)
        filled(store, "two", partitions=2, count=6)
        with store.subscribe("one", "g") as first, store.subscribe("two", "g") as second:

            def settled() -> bool:
                first.read(timeout="5ms")
                second.read(timeout="5ms")
                return (first.assignment(), second.assignment()) == (parts("one", 0, 1), parts("two", 0, 1))

            wait_until(settled, "each has what it wants")

    def test_a_hung_subscriber_loses_its_partitions_and_comes_back(self, store: LogStore, open_logs: OpenLogs) -> None:
        filled(store, partitions=2)
        lost: list[Partition] = []
        # Some stores take a partition back from a silent reader before they give up on it altogether.
        hung = store.subscribe("log", "g", max_poll="200ms", on_lost=lost.extend, on_revoked=lost.extend)
        settle(hung, partitions=2)
        with open_logs().subscribe("log", "g", max_poll="200ms") as other:
            settle(other, partitions=2)
            assert len(other.assignment()) == 2
            assert lost == []
            with pytest.raises(Fenced):
                hung.commit()
            hung.read()
            assert len(lost) == 2, "told when it woke up"
            settle(hung, other, partitions=2)
        hung.close()

    def test_members_that_come_and_go_lose_nothing(self, store: LogStore) -> None:
        filled(store, partitions=5, count=300)
        seen: Counter[int] = Counter()
        lock = threading.Lock()
        stop = threading.Event()

        def member(patience: int) -> None:
            with store.subscribe("log", "g") as tail:
                first = [] if stop.is_set() else tail.read(7, timeout="200ms")
                with lock:
                    seen.update(values(first))
                tail.commit()
                for _ in range(patience):
                    got = tail.read(7, timeout="5ms")
                    tail.commit()
                    with lock:
                        seen.update(values(got))
                    if stop.is_set():
                        return

        def comes_and_goes() -> None:
            while not stop.is_set():
                member(5)

        threads = [threading.Thread(target=comes_and_goes) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_until(lambda: store.lag("log", "g").lag == 0, "everything is read")
        stop.set()
        for thread in threads:
            thread.join()
        assert set(seen) == set(range(300)), "nothing is lost"
        assert set(seen.values()) == {1}, "and with a commit after each read nothing comes twice"

    def test_a_subscription_to_nothing_is_refused(self, store: LogStore) -> None:
        with pytest.raises(BadInput):
            store.subscribe([], "g")

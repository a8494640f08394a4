"""Logs: creating, listing, settings, deleting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.contract.log.shorthand import LogContract, OpenLogs, filled, needs, parts, stored, values

from penstock.errors import Closed, Conflict, LogNotFound
from penstock.log.settings import Retention
from penstock.log.store import LogStore
from penstock.opening import open_logs as open_store


class TestLogs(LogContract):
    """What a log is before anything is in it."""

    def test_a_log_exists_once_created(self, store: LogStore) -> None:
        assert not store.exists("log")
        assert store.create("log", partitions=5) is True
        assert store.exists("log")
        assert store.create("log", partitions=5) is False
        assert store.names() == ["log"]

    def test_partitions_survive_another_handle_and_another_create(self, store: LogStore, open_logs: OpenLogs) -> None:
        store.create("log", partitions=5)
        assert store.create("log", partitions=8) is False
        other = open_logs()
        assert other.settings("log").partitions == 5
        assert other.partitions("log") == parts("log", 0, 1, 2, 3, 4)
        assert [(one.start, one.end) for one in other.bounds("log")] == [(0, 0)] * 5

    def test_a_wrong_count_of_partitions_is_told(self, store: LogStore) -> None:
        store.create("log", partitions=5)
        assert store.log("log", partitions=5).settings.partitions == 5
        with pytest.raises(Conflict, match="5 partitions, not 8"):
            store.log("log", partitions=8)

    def test_settings_are_kept_with_the_log(self, store: LogStore, open_logs: OpenLogs) -> None:
        consumption: dict[str, Any] = {"keep_for": ("billing",), "hard_size": 9_000_000}
        rule = Retention(age="7d", size=1_000_000, **(consumption if store.capabilities.retention else {}))
        store.create("log", partitions=3, partitioner="java", retention=rule)
        kept = open_logs().settings("log")
        assert (kept.partitioner, kept.partitions) == ("java", 3)
        assert kept.retention.keep_for == rule.keep_for
        assert kept.retention.size == 1_000_000

    def test_the_default_keeps_four_days(self, store: LogStore) -> None:
        store.create("log")
        assert store.settings("log").retention == Retention(age="4d") or store.settings("log").retention.age is not None

    def test_names_are_sorted(self, store: LogStore) -> None:
        for name in ("b", "a.b-c_d", "Z9"):
            store.create(name)
        assert store.names() == ["Z9", "a.b-c_d", "b"]

    def test_bounds_count_what_is_there(self, store: LogStore) -> None:
        filled(store, partitions=3, count=7)
        assert [(one.partition, one.start, one.end) for one in store.bounds("log")] == [(0, 0, 3), (1, 0, 2), (2, 0, 2)]

    def test_closing_the_store_closes_what_it_opened(self, store: LogStore) -> None:
        filled(store)
        out, tail = store.appender("log"), store.tailer("log", "g")
        store.close()
        store.close()
        assert out.closed
        assert tail.closed
        assert store.closed

    @pytest.mark.parametrize("what", ["open_sink", "open_assigned", "open_subscribed"])
    def test_what_is_opened_while_the_store_is_closed_is_closed_too(
        self, store: LogStore, what: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.create("log")
        opening, closed = getattr(store.driver, what), []

        def open_slowly(*arguments: Any, **options: Any) -> Any:
            opened = opening(*arguments, **options)
            close = opened.close
            monkeypatch.setattr(opened, "close", lambda: (closed.append(True), close()))
            store.close()  # as another thread may, just now
            return opened

        monkeypatch.setattr(store.driver, what, open_slowly)
        calls = {
            "open_sink": lambda: store.appender("log"),
            "open_assigned": lambda: store.tailer("log", "g"),
            "open_subscribed": lambda: store.subscribe("log", "g"),
        }
        with pytest.raises(Closed):
            calls[what]()
        assert closed == [True]


class TestDeletion(LogContract):
    """What goes with a log."""

    def test_a_deleted_log_can_be_made_again(self, store: LogStore) -> None:
        filled(store)
        with store.tailer("log", "g") as tail:
            tail.read()
            tail.commit()
        assert store.delete("log") is True
        assert not store.exists("log")
        assert store.names() == []
        assert store.delete("log") is False
        with pytest.raises(LogNotFound):
            store.appender("log")
        assert store.create("log", partitions=2) is True
        assert [(one.start, one.end) for one in store.bounds("log")] == [(0, 0)] * 2
        assert store.committed("log", "g") == [None, None], "offsets went with the log"

    def test_a_log_in_use_is_not_deleted(self, store: LogStore) -> None:
        filled(store, count=3)
        with store.appender("log"), pytest.raises(Conflict):
            store.delete("log")
        with store.tailer("log", "g"), pytest.raises(Conflict):
            store.delete("log")
        assert stored(store) == [0, 1, 2]
        assert store.delete("log")

    def test_other_logs_stay(self, store: LogStore) -> None:
        filled(store, "one")
        filled(store, "two")
        store.delete("one")
        with store.tailer("two", "g") as tail:
            assert values(tail.read()) == list(range(10))


class TestIdentity(LogContract):
    """What outlives a name: how a reader that comes back later knows the log it was in."""

    def test_every_log_has_its_own(self, store: LogStore, open_logs: OpenLogs) -> None:
        filled(store, "one")
        filled(store, "two")
        mine = store.identity("one")
        assert mine
        assert mine != store.identity("two")
        assert store.create("one", partitions=3) is False
        assert open_logs().identity("one") == store.identity("one") == mine
        with store.appender("one") as out:
            out.append("more")
        assert store.identity("one") == mine

    def test_a_log_made_anew_is_another_one(self, store: LogStore, open_logs: OpenLogs) -> None:
        other = open_logs()
        known = set()
        for _ in range(3):
            filled(store)
            assert other.identity("log") == store.identity("log")
            known.add(other.identity("log"))
            store.delete("log")
            for handle in (store, other):
                with pytest.raises(LogNotFound, match="no log 'log'") as caught:
                    handle.identity("log")
                assert caught.value.hint
        assert len(known) == 3

    def test_a_backup_is_the_same_log(self, store: LogStore, tmp_path: Path) -> None:
        needs(store, "copies")
        filled(store)
        store.backup(str(tmp_path / "copy"))
        with open_store(f"file://{tmp_path}/copy") as restored:
            assert restored.identity("log") == store.identity("log")
            assert stored(restored) == stored(store)

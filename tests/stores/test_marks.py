"""The mark on servers where a lower number may be committed after a higher one."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.contract.queue.read.test_ranges import rows
from tests.contract.queue.shorthand import end, ending, put, take_one
from tests.store_urls import STORES

from penstock import open_queues
from penstock.errors import Conflict
from penstock.queue.drivers.sql import mysql, postgres
from penstock.queue.protocol import Step


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_mark_waits_for_lower_numbers(kind: str, tmp_path: Path, servers: Callable[[str], Any]) -> None:
    place = STORES[kind](tmp_path, servers)
    assert place.connect is not None
    connection = place.connect()
    with open_queues(place.url) as store:
        for value in ("early", "late"):
            put(store, value)
        early, late = take_one(store, "early"), take_one(store, "late")
        store.driver.commit(Step((ending(early),)), connection=connection)  # has drawn its number, is not committed
        end(store, late)
        assert [row["queue"] for row in rows(store, "history")] == ["late"]
        marks: list[int] = []
        seen: list[list[int]] = []

        def read() -> None:
            with open_queues(place.url) as other:
                marks.append(other.driver.mark("history"))
                seen.append([row["seq"] for row in rows(other, "history", until=marks[0])])

        reader = threading.Thread(target=read)
        reader.start()
        reader.join(0.7)
        assert marks == []
        connection.commit()
        connection.close()
        reader.join(20)
        # What was below the mark when it was given is all that ever is.
        assert seen == [[row["seq"] for row in rows(store, "history", until=marks[0])]]
        assert len(seen[0]) == 2


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_transaction_that_never_ends_is_told(
    kind: str, tmp_path: Path, servers: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr({"postgres": postgres, "mysql": mysql}[kind], "MARK_SECONDS", 0.3)
    place = STORES[kind](tmp_path, servers)
    assert place.connect is not None
    connection = place.connect()
    with open_queues(place.url) as store:
        put(store, "a")
        put(store, "b")
        first, second = take_one(store, "a"), take_one(store, "b")
        store.driver.commit(Step((ending(first),)), connection=connection)
        end(store, second)
        with pytest.raises(Conflict, match="open for"):
            store.driver.mark("history")
        connection.rollback()
        connection.close()
        assert store.driver.mark("history") == rows(store, "history")[-1]["seq"]

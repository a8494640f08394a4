"""Ids by a part of them, and queues that leave the lists."""

from __future__ import annotations

import pytest
from tests.contract.queue.shorthand import Contract, OpenStore, claim, end

from penstock.errors import Conflict
from penstock.queue.removal import listed_queues


class TestIdsLike(Contract):
    """Entries of any queue are found by how their ids begin or end."""

    def test_ids_begin_or_end_with_a_part(self, open_store: OpenStore) -> None:
        store = open_store()
        for id_, queue in (("aa-1x", "q"), ("aa-2x", "r"), ("ab-1y", "q"), ("Aa-1x", "q"), ("%a*[1]?^\\x", "q")):
            store.queue(queue).put(1, id=id_)
        assert store.driver.ids_like("aa-") == ["aa-1x", "aa-2x"]
        assert store.driver.ids_like("a") == ["aa-1x", "aa-2x", "ab-1y"]
        assert store.driver.ids_like("1x", at_end=True) == ["Aa-1x", "aa-1x"]
        assert store.driver.ids_like("a", limit=2) == ["aa-1x", "aa-2x"]
        assert store.driver.ids_like("aa-1x") == ["aa-1x"]
        assert store.driver.ids_like("zz") == store.driver.ids_like("zz", at_end=True) == []
        assert store.driver.ids_like("%a*[") == store.driver.ids_like("]?^\\x", at_end=True) == ["%a*[1]?^\\x"]
        assert store.driver.ids_like("*") == []

    def test_ended_entries_and_dead_letters_are_found(self, open_store: OpenStore) -> None:
        store = open_store()
        for id_ in ("ended-1", "ended-2"):
            store.queue("q").put(1, id=id_)
        first, second = claim(store, "q", limit=2).entries
        end(store, first, "done")
        end(store, second, "dead")
        assert store.driver.ids_like("ended") == ["ended-1", "ended-2"]


class TestDeletingQueues(Contract):
    """An empty queue can be taken off the lists."""

    def test_an_empty_queue_leaves_the_lists_until_something_is_put_again(self, open_store: OpenStore) -> None:
        store = open_store()
        for name in ("a", "b", "c"):
            store.queue(name).put(1)
        store.queue("b").cancel(store.queue("b").find()[0].id)
        store.queue("b").lock(holder="ops")
        store.queue("b", rate="5/s")
        store.queue("b").delete()
        assert [one.queue for one in store.counts()] == ["a", "c"]
        assert [one.queue for one in listed_queues(store, limit=2)] == ["a", "c"]
        assert [one.queue for one in listed_queues(store, after="a", limit=1)] == ["c"]
        assert store.locks("b") == []
        assert store.driver.definitions().get("b", None) is None or store.driver.definitions()["b"].rate is None
        store.queue("b").put(2)
        assert [one.queue for one in store.counts()] == ["a", "b", "c"]
        assert len(claim(store, "b").entries) == 1

    def test_the_history_of_a_deleted_queue_does_not_make_it_exist(self, open_store: OpenStore) -> None:
        store = open_store()
        queue = store.queue("a")
        queue.put(1)
        end(store, claim(store, "a").entries[0])
        assert queue.exists()
        queue.delete()
        assert not queue.exists()
        assert len(queue.history()) == 1, "it stays until it is pruned"
        queue.put(2)
        assert queue.exists()

    def test_a_queue_that_is_not_empty_is_refused(self, open_store: OpenStore) -> None:
        store = open_store()
        store.queue("a").put(1)
        with pytest.raises(Conflict, match="1 live, 0 dead"):
            store.queue("a").delete()
        end(store, claim(store, "a").entries[0], "dead")
        with pytest.raises(Conflict, match="1 dead"):
            store.queue("a").delete()
        store.queue("s").schedule("nightly", 1, every="1h")
        with pytest.raises(Conflict, match="nightly"):
            store.queue("s").delete()
        assert [one.queue for one in store.counts() if one.queue == "a"] == ["a"]

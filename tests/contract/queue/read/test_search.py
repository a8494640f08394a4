"""Search over all queues, and short ids."""

from __future__ import annotations

import pytest
from tests.contract.queue.shorthand import Contract, OpenStore, claim, end

from penstock import Unique
from penstock.errors import BadInput, EntryNotFound
from penstock.queue.protocol import Ending, Step
from penstock.queue.search import resolve_id, search


class TestSearch(Contract):
    """What an operator has in hand: an id or a part of it, a unique id, a label, a text of an error."""

    def test_by_id_unique_id_label_and_error_over_all_queues(self, open_store: OpenStore) -> None:
        store = open_store()
        mails, orders = store.queue("mails"), store.queue("orders")
        mails.put(1, id="m-0001", labels={"customer": "ann"}, unique="order-17")
        orders.put(2, id="o-0001", labels={"customer": "ann"})
        orders.put(3, id="o-0002", unique="dead-17")
        first, second = claim(store, "orders", limit=2).entries
        end(store, first, "done")
        lease = second.lease
        assert lease is not None
        [result] = store.driver.settle([Step((Ending(lease, "dead", error="ValueError: No Such Address"),))]).results
        assert not isinstance(result, Exception)

        def found(*words: str, **options: object) -> list[tuple[str, str, str]]:
            return [(hit.id, hit.state, hit.by) for hit in search(store, *words, **options)]  # type: ignore[arg-type]

        assert found("m-0001") == [("m-0001", "waiting", "id")]
        assert found("o-00") == [("o-0001", "done", "id"), ("o-0002", "dead", "id")]
        assert found("0002") == [("o-0002", "dead", "id")]
        assert found("order-17") == [("m-0001", "waiting", "unique id")]
        assert found("dead-17") == [("o-0002", "dead", "unique id")]
        assert found(labels={"customer": "ann"}) == [("m-0001", "waiting", "label"), ("o-0001", "done", "label")]
        assert found(error="no such address") == [("o-0002", "dead", "error")]
        assert found("o-00", error="no such") == [("o-0002", "dead", "id")]
        assert found("o-0001", family="mails") == []
        assert found("nothing at all") == []
        with pytest.raises(BadInput):
            search(store)

    def test_a_part_of_an_id_stands_for_the_one_entry_that_has_it(self, open_store: OpenStore) -> None:
        store = open_store()
        for queue, id_ in (("a", "0190-aaaa-1111"), ("a", "0190-bbbb-2222"), ("b", "0190-aaaa-3333"), ("b", "0190")):
            store.queue(queue).put(1, id=id_)
        assert resolve_id(store, "0190-b") == "0190-bbbb-2222"
        assert resolve_id(store, "3333") == "0190-aaaa-3333"
        assert resolve_id(store, "0190-a", queue="a") == "0190-aaaa-1111"
        assert resolve_id(store, "0190") == "0190", "a whole id is not a part of others"
        with pytest.raises(BadInput, match=r"0190-aaaa-1111 \(waiting in a\), 0190-aaaa-3333 \(waiting in b\)"):
            resolve_id(store, "0190-a")
        with pytest.raises(EntryNotFound):
            resolve_id(store, "0190-c")
        with pytest.raises(EntryNotFound):
            resolve_id(store, "222", queue="a")

    def test_a_unique_id_that_was_released_is_not_held_by_anybody(self, open_store: OpenStore) -> None:
        store = open_store()
        store.queue("q").put(1, id="first", unique=Unique("k"))
        store.queue("r").put(1, id="second", unique=Unique("k"))
        assert store.driver.ids_with_unique("k") == ["first", "second"]
        end(store, claim(store, "q").entries[0], "done")
        assert store.driver.ids_with_unique("k") == ["second"]
        assert store.driver.ids_with_unique("K") == []

    def test_so_many_labels_that_no_search_needs_them(self, open_store: OpenStore) -> None:
        """Each label of a search costs a join; a thousand of them kept a server busy for minutes."""
        store = open_store()
        queue = store.queue("q")
        queue.put(1, labels={f"name-{number}": "x" for number in range(100)})
        many = {f"name-{number}": "x" for number in range(17)}
        for read in (queue.find, queue.dead, queue.history, queue.cancel_where, queue.purge_dead):
            with pytest.raises(BadInput, match="17 labels") as raised:
                read(labels=many)  # type: ignore[operator]
            assert "at most 16" in raised.value.hint
        with pytest.raises(BadInput, match="17 labels"):
            search(store, labels=many)
        if store.capabilities.label_search:
            del many["name-0"]
            assert [entry.value for entry in queue.find(labels=many)] == [1]
            assert [hit.by for hit in search(store, labels=many)] == ["label"]

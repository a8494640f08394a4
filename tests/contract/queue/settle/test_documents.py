"""Documents: small versioned values by name, written with a settle or by themselves."""

from __future__ import annotations

import pytest
from tests.contract.queue.shorthand import Contract, OpenStore, in_threads, lease_of, put, take_one

from penstock.clock import FakeClock
from penstock.errors import BadInput, PayloadTooLarge
from penstock.queue.protocol import ClaimRequest, DocumentWrite, Ending, Source, Step
from penstock.queue.queues import QueueStore


class TestDocuments(Contract):
    """What several processes share besides entries."""

    def test_a_document_is_written_read_and_removed(self, store: QueueStore, clock: FakeClock) -> None:
        assert store.driver.document("breaker.config") is None
        assert store.driver.write([DocumentWrite("breaker.config", b"\x00one\xff")]) == [True]
        [found] = store.driver.documents()
        assert (found.name, found.value, found.version, found.changed_us) == (
            "breaker.config", b"\x00one\xff", 1, clock.micros(),
        )  # fmt: skip
        clock.advance("1s")
        assert store.driver.write([DocumentWrite("breaker.config", b"two")]) == [True]
        again = store.driver.document("breaker.config")
        assert again is not None
        assert (again.value, again.version, again.changed_us) == (b"two", 2, clock.micros())
        assert store.driver.write([DocumentWrite("breaker.config", None)]) == [True]
        assert store.driver.document("breaker.config") is None
        assert store.driver.write([DocumentWrite("breaker.config", None)]) == [True]

    def test_a_version_is_compared(self, store: QueueStore) -> None:
        assert store.driver.write([DocumentWrite("d", b"a", 1)]) == [False]
        assert store.driver.write([DocumentWrite("d", b"a", 0)]) == [True]
        assert store.driver.write([DocumentWrite("d", b"b", 0)]) == [False]
        assert store.driver.write([DocumentWrite("d", b"b", 1)]) == [True]
        assert store.driver.write([DocumentWrite("d", b"c", 1), DocumentWrite("e", b"x", 0)]) == [False, True]
        assert store.driver.write([DocumentWrite("d", None, 1)]) == [False]
        assert store.driver.write([DocumentWrite("d", b"", 2)]) == [True]
        found = store.driver.document("d")
        assert found is not None
        assert (found.value, found.version) == (b"", 3)
        assert store.driver.write([DocumentWrite("d", None, 3)]) == [True]
        assert [one.name for one in store.driver.documents()] == ["e"]

    def test_the_same_write_again_is_a_repeat(self, store: QueueStore) -> None:
        for version, value in enumerate((b"mine", b"mine too")):
            assert store.driver.write([DocumentWrite("d", value, version)]) == [True]
            assert store.driver.write([DocumentWrite("d", value, version)]) == [True]
            found = store.driver.document("d")
            assert found is not None
            assert found.version == version + 1
        assert store.driver.write([DocumentWrite("d", None, 2)]) == [True]
        assert store.driver.write([DocumentWrite("d", None, 2)]) == [True]

    def test_a_space_knows_which_one_it_is(self, store: QueueStore, open_store: OpenStore) -> None:
        another = open_store()
        found = set(in_threads(4, lambda number: (store, another)[number % 2].driver.identity()))
        assert found == {store.driver.identity()} == {another.driver.identity()}
        assert len(store.driver.identity()) > 10
        store.driver.write([DocumentWrite("penstock.identity", None)])  # a space created again
        assert store.driver.identity() not in found

    def test_by_prefix_and_since(self, store: QueueStore, clock: FakeClock) -> None:
        store.driver.write(
            [
                DocumentWrite("a.1", b"1"),
                DocumentWrite("a.2", b"2"),
                DocumentWrite("ab", b"3"),
                DocumentWrite("b", b"4"),
            ]
        )
        assert [one.name for one in store.driver.documents("a.")] == ["a.1", "a.2"]
        assert [one.name for one in store.driver.documents("a")] == ["a.1", "a.2", "ab"]
        assert [one.name for one in store.driver.documents()] == ["a.1", "a.2", "ab", "b"]
        clock.advance("1s")
        store.driver.write([DocumentWrite("a.2", b"5")])
        assert [(one.name, one.value) for one in store.driver.documents("a.", since_us=clock.micros())] == [
            ("a.2", b"5")
        ]
        assert store.driver.documents("c") == []

    def test_notes_ride_with_steps_and_a_claim(self, store: QueueStore) -> None:
        first, second = put(store, "q", 1), put(store, "q", 2)
        entry = take_one(store, "q")
        assert entry.id == first
        step = Step((Ending(lease_of(entry), "done"),))
        wish = ClaimRequest("0" * 16, (Source("q", 5),), 5, "worker", "one", 60_000_000)
        reply = store.driver.settle([step], wish, writes=[DocumentWrite("d", b"x", 0), DocumentWrite("d", b"y", 7)])
        assert reply.written == [True, False]
        assert [one.id for one in reply.claimed.entries] == [second]
        # A step that fails is no reason to lose a note.
        stale = store.driver.settle([Step((Ending(lease_of(entry), "retry"),))], writes=[DocumentWrite("e", b"z")])
        assert stale.written == [True]
        assert {one.name: one.value for one in store.driver.documents()} == {"d": b"x", "e": b"z"}

    @pytest.mark.parametrize("fifo", [False, True])
    def test_notes_that_ride_along_are_written_in_their_order(self, store: QueueStore, fifo: bool) -> None:
        store.queue("q", int, fifo=fifo)
        for number in range(4):
            put(store, "q", number)
        notes = [
            [DocumentWrite("old", b"1"), DocumentWrite("new", b"2"), DocumentWrite("gone", b"3")],
            [DocumentWrite("new", b"4"), DocumentWrite("gone", None), DocumentWrite("old", None)],
            [DocumentWrite("twice", b"5"), DocumentWrite("twice", b"6")],  # the same one again
            [
                DocumentWrite("twice", None),
                DocumentWrite("twice", b"7"),
                DocumentWrite("new", b"8"),
                DocumentWrite("new", None),
            ],
        ]
        entry = take_one(store, "q")
        seen = []
        for number, some in enumerate(notes):
            wish = ClaimRequest(f"{number:016}", (Source("q", 1),), 1, "worker", "one", 60_000_000)
            reply = store.driver.settle([Step((Ending(lease_of(entry), "done"),))], wish, writes=some)
            assert reply.written == [True] * len(some)
            seen.append({one.name: (one.value, one.version) for one in store.driver.documents()})
            entry = reply.claimed.entries[0] if reply.claimed.entries else entry
        assert seen == [
            {"old": (b"1", 1), "new": (b"2", 1), "gone": (b"3", 1)},
            {"new": (b"4", 2)},
            {"new": (b"4", 2), "twice": (b"6", 2)},
            {"twice": (b"7", 1)},
        ]
        assert store.queue("q").counts().live == 0

    def test_of_many_who_write_at_once_one_wins(self, store: QueueStore, open_store: OpenStore) -> None:
        handles = [store, open_store(node="two")]
        store.driver.write([DocumentWrite("d", b"start", 0)])
        won: list[int] = []

        def work(index: int) -> None:
            for version in range(1, 11):
                if handles[index % 2].driver.write([DocumentWrite("d", f"{index}-{version}".encode(), version)]) == [
                    True
                ]:
                    won.append(version)

        in_threads(4, work)
        assert len(won) == len(set(won))
        found = store.driver.document("d")
        assert found is not None
        assert found.version == len(won) + 1

    def test_spaces_are_apart(self, store: QueueStore, open_store: OpenStore) -> None:
        store.driver.write([DocumentWrite("d", b"x")])
        assert open_store(space="other").driver.documents() == []

    def test_bad_ones_are_refused(self, store: QueueStore) -> None:
        with pytest.raises(BadInput, match="document name"):
            store.driver.write([DocumentWrite("no name!", b"")])
        with pytest.raises(PayloadTooLarge):
            store.driver.write([DocumentWrite("d", b"x" * (store.driver.payload_limit + 1))])
        assert store.driver.documents() == []

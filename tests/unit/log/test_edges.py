"""Offsets that cannot be, and pills behind trouble."""

import pytest

from penstock import open_logs
from penstock.errors import BadInput, OffsetOutOfRange
from penstock.log.pools import ConsumerPolicy, ConsumerPool, per_record
from penstock.log.pools.producer import append_pill
from penstock.policy import Batching


def test_what_is_not_there_cannot_be_committed() -> None:
    with open_logs("memory://edges") as store:
        store.create("a", 1)
        log = store.log("a", int)
        log.append_many([1, 2])
        [place] = log.partitions
        with log.tailer("g") as tail:
            with pytest.raises(OffsetOutOfRange):
                tail.commit({place: 100})
            for wrong in (-1, "1", True, 1.5):
                with pytest.raises(BadInput, match="not an offset"):
                    tail.commit({place: wrong})  # type: ignore[dict-item]
            assert tail.commit({place: 2}) == {place: 2}, "not read, but there"


def test_a_pill_behind_a_failed_batch_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    with open_logs("memory://pills") as store:
        store.create("a", 1)
        log = store.log("a", int)
        log.append_many([1, 2, 3])
        append_pill(log, 0)
        log.append_many([4, 5])
        seen: list[int] = []

        def take(record: object) -> None:
            seen.append(record.value)  # type: ignore[attr-defined]
            if seen[-1] == 2:
                raise RuntimeError("not this one")

        def pool(*, bounded: bool) -> None:
            policy = ConsumerPolicy(on_failure="continue", bounded=bounded, batch=Batching(size=10, linger="100ms"))
            ConsumerPool(log, "g", lambda _: per_record(take), policy).run()

        pool(bounded=False)
        assert store.committed("a", "g") == [4], "behind the pill"
        seen.clear()
        pool(bounded=True)
        assert seen == [4, 5]

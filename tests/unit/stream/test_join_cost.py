"""A join looks at the partners of a record, not at everything that waits."""

from typing import Any

import pytest

import penstock
from penstock.codec import BytesCodec, JsonCodec
from penstock.ids import new_id
from penstock.stream import LocalRunner, Topology, join

SECOND = 1_000_000


def drained(topology: Topology, logs: Any) -> None:
    assert LocalRunner(topology, logs).start().drain("30s")


def decodes_of_one_more_record(waiting: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many values are decoded for a record with one partner among so many that wait for its key."""
    with penstock.open_logs(f"memory://{new_id()}") as logs:
        topology = Topology("joins").stream("left", int).stream("right", int).stream("out", list)
        topology.add(join("pairs", "left", "right", "out", within="1s"))
        logs.create("left")
        logs.create("right")
        with logs.appender("left", int) as out:
            for number in range(waiting):
                out.append(number, key="hot", timestamp=(10_000 + 10 * number) * SECOND)
        drained(topology, logs)
        logs.log("right", int).append(7, key="hot", timestamp=10_500 * SECOND)
        decodes = 0

        def counting(codec: Any) -> Any:
            decode = codec.decode

            def counted(self: Any, payload: bytes) -> Any:
                nonlocal decodes
                decodes += 1
                return decode(self, payload)

            return counted

        with monkeypatch.context() as patched:
            for codec in (JsonCodec, BytesCodec):
                patched.setattr(codec, "decode", counting(codec))
            drained(topology, logs)
        assert [record.value for record in logs.log("out", list).records(0)] == [[50, 7]]
        return decodes


def test_what_waits_far_away_in_time_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decodes_of_one_more_record(1_000, monkeypatch) == decodes_of_one_more_record(100, monkeypatch)

"""A batch of Kafka's messages costs as much as what is in it."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka")

from penstock.log.drivers.kafka.batch import KafkaBatch
from penstock.log.record import Partition

COUNT = 500


class Message:
    """One message, and how often somebody asked for its key or offset."""

    asked = 0

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def key(self) -> bytes:
        Message.asked += 1
        return b"key %d" % self._offset

    def offset(self) -> int:
        Message.asked += 1
        return self._offset

    def value(self) -> bytes:
        return b"%d" % self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._offset

    def headers(self) -> list[tuple[str, bytes]]:
        return [("number", b"%d" % self._offset)]


@pytest.mark.parametrize("step", [1, 3])  # behind every record the mark of a transaction, or not
def test_keys_are_read_once(step: int) -> None:
    Message.asked = 0
    batch = KafkaBatch(Partition("log", 0), [Message(7 + number * step) for number in range(COUNT)])
    for record in batch.records():
        assert record.key == f"key {record.offset}"
        assert record.headers == {"number": str(record.offset)}
    assert Message.asked <= 3 * COUNT


@pytest.mark.parametrize("step", [1, 3])
def test_a_part_begins_at_or_after_an_offset(step: int) -> None:
    batch = KafkaBatch(Partition("log", 0), [Message(number * step) for number in range(10)])
    for offset in range(31):
        expected = [number * step for number in range(10) if number * step >= offset]
        if expected:
            assert list(batch.from_offset(offset).offsets) == expected

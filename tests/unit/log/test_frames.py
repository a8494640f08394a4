"""Frames: what goes in comes out, and no flipped bit goes unnoticed."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.log import Partition
from penstock.log.drivers.files.format.batch import FrameBatch
from penstock.log.drivers.files.format.frames import (
    HEADER,
    MAX_FRAME,
    body_of,
    encode,
    gap,
    pack_header,
    read_header,
    split,
)
from penstock.log.record import NewRecords

PLACE = Partition("log", 3)

texts = st.one_of(st.none(), st.text(max_size=12), st.binary(max_size=12))
rows = st.lists(
    st.tuples(
        st.binary(max_size=60),
        texts,
        st.integers(-(1 << 50), 1 << 50),
        st.one_of(
            st.none(), st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.binary(max_size=5), max_size=3)
        ),
    ),
    min_size=1,
    max_size=40,
)


def frame(records: NewRecords, compression: str | None = None, offset: int = 100) -> bytes:
    made = encode(records, compression)
    raw = made.header(offset, 7) + b"".join(made.parts)
    assert len(raw) == made.size
    assert len(raw) % 8 == 0
    return raw


def read(raw: bytes) -> FrameBatch:
    header = read_header(raw, 0, 0)
    assert header is not None
    body = body_of(header, memoryview(raw)[HEADER : header.size])
    assert body is not None
    return FrameBatch(PLACE, header, body, 0, header.records)


def key_text(key: Any) -> str | None:
    return key.decode("utf-8", "surrogateescape") if isinstance(key, bytes) else key


@settings(max_examples=150, deadline=None)
@given(rows=rows, keyed=st.booleans(), dated=st.booleans(), headed=st.booleans(), squeezed=st.booleans())
def test_what_goes_in_comes_out(rows: Any, keyed: bool, dated: bool, headed: bool, squeezed: bool) -> None:
    values, keys, times, headers = map(list, zip(*rows, strict=True))
    records = NewRecords(values, keys if keyed else None, times if dated else None, headers if headed else None)
    batch = read(frame(records, "zlib" if squeezed else None))
    assert batch.payloads() == values
    assert list(batch.offsets) == list(range(100, 100 + len(values)))
    assert list(batch.keys()) == ([key_text(key) for key in keys] if keyed else [None] * len(values))
    assert list(batch.times()) == (times if dated else [7] * len(values))
    assert [dict(one) for one in batch.headers()] == [dict(one or {}) if headed else {} for one in headers]
    half = len(values) // 2
    part = batch.slice(half, len(values))
    assert part.payloads() == values[half:]
    assert list(part.keys()) == list(batch.keys())[half:]
    assert [record.key for record in part.records()] == list(batch.keys())[half:]
    assert [dict(record.headers) for record in part.records()] == [dict(one) for one in batch.headers()][half:]
    assert [record.time_us for record in part.records()] == list(batch.times())[half:]


@settings(max_examples=40, deadline=None)
@given(rows=rows)
def test_arrow_says_the_same(rows: Any) -> None:
    pytest.importorskip("pyarrow")
    values, keys, times, headers = map(list, zip(*rows, strict=True))
    batch = read(frame(NewRecords(values, keys, times, headers)))
    half = len(values) // 2
    for part in (batch, batch.slice(half, len(values)), batch.slice(0, half)):
        if not len(part):
            continue
        table = part.arrow()
        table.validate(full=True)
        assert table.column("value").to_pylist() == part.payloads()
        assert table.column("offset").to_pylist() == list(part.offsets)
        assert table.column("partition").to_pylist() == [3] * len(part)
        assert [
            None if one is None else one.decode("utf-8", "surrogateescape") for one in table.column("key").to_pylist()
        ] == list(part.keys())
        assert table.column("time").cast("int64").to_pylist() == list(part.times())


def test_every_flipped_bit_is_noticed() -> None:
    raw = frame(NewRecords([b"one", b"two", b"three"], ["a", None, "c"], [1, 2, 3], [{"h": "x"}, None, None]))
    for at in range(len(raw)):
        for bit in (0, random.Random(at).randrange(1, 8)):
            bad = bytearray(raw)
            bad[at] ^= 1 << bit
            header = read_header(bytes(bad), 0, 0)
            if header is not None:
                assert body_of(header, memoryview(bytes(bad))[HEADER : header.size]) is None, f"byte {at}, bit {bit}"


def test_a_cut_frame_has_no_header_or_no_body() -> None:
    raw = frame(NewRecords([b"one", b"two"]))
    for size in range(len(raw)):
        header = read_header(raw[:size], 0, 0)
        assert header is None or header.size > size


def test_a_gap_stands_for_lost_records() -> None:
    header = read_header(gap(10, 17, 5, 9), 0, 10)
    assert header is not None
    assert (header.offset, header.next_offset, header.size) == (17, 22, HEADER)


def test_offsets_on_disk_count_from_the_beginning_of_the_segment() -> None:
    raw = frame(NewRecords([b"one", b"two"]), offset=5)
    first, later = read_header(raw, 0, 0), read_header(raw, 0, 1000)
    assert first is not None
    assert later == first._replace(offset=1005)
    assert pack_header(later, 1000) == raw[:HEADER]


def test_large_batches_are_split() -> None:
    records = NewRecords([b"x" * 1000] * 30, [None] * 30, None, [{"h": "y"}] * 30)
    parts = split(records, 10_000)
    assert sum(map(len, parts)) == 30
    assert all(encode(part).size < 12_000 for part in parts)
    assert all(part.headers is not None and len(part.headers) == len(part) for part in parts)
    assert len(split(NewRecords([b"x" * 50_000]), 10_000)) == 1, "one record stays whole"
    assert split(NewRecords([b"x"] * 10), MAX_FRAME)[0].values == [b"x"] * 10

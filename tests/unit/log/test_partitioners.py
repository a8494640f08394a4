"""Golden vectors of the three partitioners: what other programs compute, fixed forever."""

import zlib

import pytest

from penstock.errors import BadInput
from penstock.log.partitioner import PARTITIONERS, crc32, java, murmur2, partitioner

KEYS = ("", "a", "foo", "key1", "key2", "a key", "user-17", "größe", "日本", "😀", "x" * 100)


@pytest.mark.parametrize(
    ("key", "partition"),
    [("foo", 4), ("key1", 3), ("key2", 4), ("a key", 3)],  # the reference values of nuxeo-mqueues for 5 partitions
)
def test_java_is_the_seeds(key: str, partition: int) -> None:
    assert java(key, 5) == partition


@pytest.mark.parametrize(
    ("key", "code"),
    # String.hashCode as Java computes it, with the sign bit dropped
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", 0), ("größe", 98647774 - 0), ("😀", 1772899)],
)
def test_java_hash_codes(key: str, code: int) -> None:
    units = key.encode("utf-16-le")
    expected = 0
    for at in range(0, len(units), 2):
        expected = (31 * expected + int.from_bytes(units[at : at + 2], "little")) & 0xFFFFFFFF
    assert java(key, 1 << 31) == expected & 0x7FFFFFFF
    if key in ("", "a", "hello", "polygenelubricants"):
        assert java(key, 1 << 31) == code


@pytest.mark.parametrize(
    ("key", "code"),
    # The vectors that Kafka's own tests hold murmur2 to, with the sign bit dropped
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key: bytes, code: int) -> None:
    assert murmur2(key, 1 << 31) == code & 0x7FFFFFFF


@pytest.mark.parametrize("key", KEYS)
def test_crc32_is_zlibs(key: str) -> None:
    for count in (1, 2, 7, 1000):
        assert crc32(key, count) == zlib.crc32(key.encode()) % count


def test_crc32_golden_vectors() -> None:
    assert [crc32(key, 8) for key in ("", "a", "foo", "user-17", "größe")] == [
        0, zlib.crc32(b"a") % 8, 0x8C736521 % 8, zlib.crc32(b"user-17") % 8, zlib.crc32("größe".encode()) % 8,
    ]  # fmt: skip
    assert crc32("123456789", 1 << 32) == 0xCBF43926, "the check value of CRC-32"


@pytest.mark.parametrize("name", PARTITIONERS)
@pytest.mark.parametrize("key", KEYS)
def test_text_and_its_bytes_go_to_the_same_place(name: str, key: str) -> None:
    hashed = partitioner(name)
    assert hashed(key, 13) == hashed(key.encode(), 13)
    assert 0 <= hashed(key, 13) < 13


def test_an_unknown_partitioner() -> None:
    with pytest.raises(BadInput, match="md5"):
        partitioner("md5")
